"""Syntax met in real PTX, and what is said of PTX that cannot be run."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_harness import HEAD, entry, run

from tuner.simulator import Launch, Memset, PtxError, parse, simulate
from tuner.simulator.operands import read_operand
from tuner.simulator.syntax import Address, Float, Integer, Name, Negated, Pair, Vector

BUFFERS = {"a": np.zeros(32, np.uint32), "c": np.zeros(32, np.uint32)}
STORE = "mov.u32 %r0, %tid.x; ld.param.u64 %rd1, [c]; mad.wide.u32 %rd3, %r0, 4, %rd1;\n"


def stored(body: str, **options: object) -> list[int]:
    report = run(entry(STORE + body + "\nst.global.u32 [%rd3], %r9; ret;", **options), BUFFERS)  # type: ignore[arg-type]
    assert report.clean, [str(fault) for fault in report.faults]
    return report.buffers["c"].tolist()


@pytest.mark.parametrize(
    ("text", "operand"),
    [
        ("%r1", Name("%r1")),
        ("0x1F", Integer(31)),
        ("0xFFu", None),
        ("017", Integer(15)),
        ("0b101", Integer(5)),
        ("-12", Integer(-12)),
        ("123U", Integer(123)),
        ("0f3F800000", Float(1.0)),
        ("0d4000000000000000", Float(2.0)),
        ("-1.5e3", Float(-1500.0)),
        ("{%r1, _}", Vector((Name("%r1"), Name("_")))),
        ("[ %r1 + 0 ]", Address(Name("%r1"), 0)),
        ("[%r1+-4]", Address(Name("%r1"), -4)),
        ("[smem+0x10]", Address(Name("smem"), 16)),
        ("[%rd1 - 8]", Address(Name("%rd1"), -8)),
        ("!%p1", Negated(Name("%p1"))),
        ("%p1|%p2", Pair(Name("%p1"), Name("%p2"))),
        ("[1024]", Address(None, 1024)),
    ],
)
def test_operands(text: str, operand: object) -> None:
    if operand is None:
        with pytest.raises(ValueError, match="not understood"):
            read_operand(text)
    else:
        assert read_operand(text) == operand


def test_comments_sections_and_debug_directives_are_passed_over() -> None:
    body = """/* a comment
over lines */ .loc 1 3 5, function_name $L__info, inlined_at 1 2 3
  .pragma "nounroll";  // bra NOWHERE;
mov.u32 %r9, 7; // one
"""
    text = entry(STORE + body + "st.global.u32 [%rd3], %r9; ret;")
    text = (
        text.replace(".address_size 64", '.address_size 64\n.file 1 "/x//y.cu"')
        + ".section .debug_info { .b32 7 .b8 1 }\n"
    )
    report = run(text, BUFFERS)
    assert report.clean
    assert report.buffers["c"].tolist() == [7] * 32


def test_braces_scope_registers_and_labels() -> None:
    body = (
        "mov.u32 %r9, 0;\n" + "{ .reg .pred p; .reg .b32 t; mov.u32 t, 3; setp.eq.u32 p, t, 3; @!p bra OUT; "
        "add.u32 %r9, %r9, t;\nOUT: }\n" * 3
    )
    assert stored(body) == [9] * 32


def test_vectors_of_registers_are_declared_and_ranges_work() -> None:
    assert (
        stored(
            "mov.b64 %rd9, {7, 8}; mov.b64 {my0, my1}, %rd9; add.u32 %r9, my0, my1;",
            registers=".reg .b32 my<2>;",
        )
        == [15] * 32
    )


def test_constant_and_global_variables_have_their_values() -> None:
    before = ".const .align 4 .b32 table[4] = {10, 20, 30, 40};\n.global .align 8 .f32 number = 0f40400000;\n"
    body = (
        "and.b32 %r5, %r0, 3; mov.u64 %rd5, table; mad.wide.u32 %rd5, %r5, 4, %rd5; "
        "ld.const.u32 %r9, [%rd5]; ld.global.f32 %f1, [number];"
    )
    values = stored(body + "cvt.rzi.u32.f32 %r6, %f1; add.u32 %r9, %r9, %r6;", before=before)
    assert values[:5] == [13, 23, 33, 43, 13]


def test_device_functions_are_inlined_with_their_parameters_and_returns() -> None:
    before = """.func (.param .b32 result) scale(.param .b32 x, .param .b32 by)
{ .reg .b32 %r<4>; .reg .pred %p1; ld.param.u32 %r1, [x]; ld.param.u32 %r2, [by];
setp.gt.u32 %p1, %r1, 20; @%p1 bra BIG;
  mul.lo.u32 %r3, %r1, %r2; st.param.b32 [result], %r3; ret;
BIG: st.param.b32 [result], 1000; ret; }
"""
    call = """{ .param .b32 p0; .param .b32 p1; .param .b32 back; st.param.b32 [p0], %r0;
    st.param.b32 [p1], NUMBER;
call.uni (back), scale, (p0, p1); ld.param.b32 TARGET, [back]; }
"""
    body = call.replace("NUMBER", "3").replace("TARGET", "%r8") + call.replace("NUMBER", "100").replace(
        "TARGET", "%r9"
    )
    values = stored(body + "add.u32 %r9, %r9, %r8;", before=before)
    assert values == [103 * x if x <= 20 else 2000 for x in range(32)]


def test_recursion_is_refused() -> None:
    before = ".func loop()\n{ call.uni loop, (); ret; }\n"
    with pytest.raises(PtxError, match="recursion is not simulated"):
        run(entry("call.uni loop, (); ret;", before=before), BUFFERS)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("frobnicate.u32 %r1, %r2;", "instruction frobnicate is not simulated"),
        ("add.u32.strange %r1, %r2, %r3;", "modifier .strange"),
        ("add.u32 %r1, %r2;", "takes 3 operands, got 2"),
        ("add.u32 %r1, %r2, %nope;", "%nope is not declared"),
        ("add.u32 %rd1, %r2, %r3;", "%rd1 is 64 bits wide, .u32 was expected"),
        ("add.u32 %r1, %r2, 0f3F800000;", "floating-point literal cannot be a .u32"),
        ("bra NOWHERE;", "label NOWHERE is not defined"),
        ("@%r1 bra L; L:", "%r1 is not a declared predicate"),
        ("cp.async.cg.shared.global [%r1], [%rd1], 4;", "cp-size of cp.async.cg must be 16, got 4"),
        ("bar.sync 16;", "a barrier number must be from 0 to 15, got 16"),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2}, [%r3];", "a vector of 4 was expected, got 2"),
        ("mov.u32 %r1, 12abc;", "not understood"),
        ("mov.u32 %r1, %clusterfoo;", "no special register of this name"),
    ],
)
def test_what_cannot_be_run_is_said_with_line_and_text(body: str, reason: str) -> None:
    text = entry("mov.u32 %r7, 1;\n" + body + "\nret;")
    with pytest.raises(PtxError) as caught:
        run(text, BUFFERS)
    assert reason in caught.value.reason
    assert text.splitlines()[caught.value.line - 1].startswith(body.split(";")[0].split(" ")[0])
    assert str(caught.value).startswith(f"PTX line {caught.value.line}: ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hello", "a module-level directive was expected"),
        (".visible .entry k() { ret; }", ".version and .target"),
        (HEAD + ".visible .entry k() { mov.u32 ", "not understood"),
        (HEAD + ".visible .entry k() { ret;", "no closing brace"),
        (HEAD + ".strange 7", "directive .strange is not known"),
        (HEAD.replace("64", "32"), "only 64-bit addresses"),
    ],
)
def test_malformed_modules(text: str, reason: str) -> None:
    with pytest.raises(PtxError, match=reason):
        parse(text)


LAUNCH = Launch("k", (1, 1, 1), (32, 1, 1), 0, ("a", "c"))
TYPED = entry("ret;", ("u64 a", "u32 n", "f32 x", "s8 tiny"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("a",), "takes 4 arguments"),
        (("nope", 1, 1.0, 1), "names 'nope', which is no buffer; buffers: a, c"),
        (("a", "c", 1.0, 1), "needs a 64-bit parameter"),
        (("a", 1.5, 1.0, 1), "argument n of k is a .u32, got the float 1.5"),
        (("a", 1 << 32, 1.0, 1), "does not hold 4294967296"),
        (("a", 1, 1.0, 200), "is a .s8, which does not hold 200"),
    ],
)
def test_arguments_that_do_not_fit(arguments: tuple[str | int | float, ...], reason: str) -> None:
    with pytest.raises(PtxError) as caught:
        simulate(TYPED, [Launch("k", (1, 1, 1), (32, 1, 1), 0, arguments)], BUFFERS, outputs=())
    assert reason in str(caught.value)


def test_plans_that_do_not_fit() -> None:
    text = entry("ret;")
    with pytest.raises(PtxError, match="no entry is named 'other'; the module's entries: k"):
        simulate(text, [Launch("other", (1, 1, 1), (32, 1, 1), 0, ())], BUFFERS)
    with pytest.raises(PtxError, match="output 'z' is no buffer"):
        simulate(text, [LAUNCH], BUFFERS, outputs=("z",))
    with pytest.raises(PtxError, match="memset of 'z'"):
        simulate(text, [Memset("z", 0)], BUFFERS)
    with pytest.raises(PtxError, match="memset of 999 bytes; buffer 'c' has 128"):
        simulate(text, [Memset("c", 0, 999)], BUFFERS)
    with pytest.raises(PtxError, match="at most 1024 threads, got 2048"):
        Launch("k", (1, 1, 1), (2048, 1, 1), 0, ())
    with pytest.raises(PtxError, match=r"blocks must be from 0 to 0"):
        simulate(text, [LAUNCH], BUFFERS, blocks=[3])
    with pytest.raises(PtxError, match="must be C-contiguous"):
        simulate(text, [LAUNCH], {**BUFFERS, "a": np.zeros((4, 4))[:, ::2]})
    required = text.replace(")\n{", ")\n.reqntid 64, 1, 1\n{")
    with pytest.raises(PtxError, match="requires blocks of"):
        simulate(required, [LAUNCH], BUFFERS)


def test_sampled_blocks_run_alone() -> None:
    body = (
        "mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, 32, %r0; "
        "mad.wide.u32 %rd4, %r2, 4, %rd1; st.global.u32 [%rd4], %r1; ret;"
    )
    module = parse(entry(STORE + body))
    c = np.zeros(32 * 8, np.uint32)
    steps = [Launch("k", (8, 1, 1), (32, 1, 1), 0, ("a", "c"))]
    report = simulate(module, steps, {"a": BUFFERS["a"], "c": c}, blocks=[2, 5])
    assert report.counters[0].blocks == 2
    assert report.unwritten["c"].count == 6 * 32
    assert set(report.buffers["c"][64:96].tolist()) == {2}
    again = simulate(module, steps, {"a": BUFFERS["a"], "c": c}, blocks={0: [7]})
    assert again.unwritten["c"].first[0] == 0
    assert set(again.buffers["c"][-32:].tolist()) == {7}


def test_guarded_instructions_keep_the_old_value_where_they_do_not_run() -> None:
    body = (
        "mov.u32 %r9, 5; setp.lt.u32 %p1, %r0, 10; @%p1 mov.u32 %r9, 6; "
        "@!%p1 add.u32 %r9, %r9, 2; @%p1 bra E; add.u32 %r9, %r9, 100;\nE:"
    )
    assert stored(body) == [6] * 10 + [107] * 22


def test_special_registers() -> None:
    body = """mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ctaid.y;
mov.u32 %r5, %ntid.x; mov.u32 %r6, %nctaid.y; mov.u32 %r7, %laneid;
ld.param.u64 %rd1, [c];
mad.lo.u32 %r10, %r2, 3, %r1; mad.lo.u32 %r10, %r10, 8, %r0; mad.lo.u32 %r11, %r4, 2, %r3;
mad.lo.u32 %r12, %r11, 48, %r10;
mad.wide.u32 %rd3, %r12, 16, %rd1; and.b32 %r13, %r10, -32; or.b32 %r13, %r13, %r7;
st.global.v4.u32 [%rd3], {%r10, %r13, %r5, %r6}; ret;"""
    c = np.zeros((6 * 48, 4), np.uint32)
    report = simulate(
        entry(body), [Launch("k", (2, 3, 1), (8, 3, 2), 0, ("a", "c"))], {"a": BUFFERS["a"], "c": c}
    )
    assert report.clean
    threads = np.tile(np.arange(48), 6)
    assert np.array_equal(
        report.buffers["c"], np.stack([threads, threads, np.full(288, 8), np.full(288, 3)], 1)
    )
