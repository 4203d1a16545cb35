"""Where the ISA leaves something open, the simulator takes what helps a wrong kernel least: a test of each
choice, in the order of `docs/simulator.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ptx_harness import entry, evaluate, kinds, run
from test_bulk_copies import LOAD, OUT, START, WAIT
from test_matrix_instructions import SHAPES, multiply, pack, unpack
from test_wgmma import go as run_wgmma
from test_wgmma import image, operands
from test_wmma import run_wmma, wmma_body

from tuner.simulator import Launch, Memset, Report, simulate

HERE = """mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0;
ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [c]; mad.wide.u32 %rd2, %r3, 4, %rd0;
mad.wide.u32 %rd3, %r3, 4, %rd1; setp.eq.u32 %p1, %r0, 0;
"""
STORE = "st.global.u32 [%rd3], %r9; ret;"


def go(body: str, a: NDArray[Any] | None = None, **options: Any) -> Report:
    """Run a body that leaves its result in %r9, a word for every thread."""
    count = options.get("block", 32) * options.get("grid", 1)
    a = np.arange(count, dtype=np.uint32) if a is None else a
    return run(entry(HERE + body + STORE), {"a": a, "c": np.zeros(count, np.uint32)}, **options)


# -- what is under way is not there before it has to be --

TILE = ".shared .align 16 .b8 tile[128];\n mov.u32 %r4, tile; mad.lo.u32 %r5, %r0, 4, %r4;"
COPY = TILE + "cp.async.ca.shared.global [%r5], [%rd2], 4; cp.async.commit_group;"


def test_a_copy_has_brought_nothing_until_it_is_waited_for() -> None:
    early = go(COPY + "ld.shared.u32 %r9, [%r5];", races=False)
    assert not np.isin(early.buffers["c"], np.arange(32)).any()
    late = go(COPY + "cp.async.wait_group 0; ld.shared.u32 %r9, [%r5];", races=False)
    assert np.array_equal(late.buffers["c"], np.arange(32))


def test_a_bulk_copy_has_brought_nothing_until_its_mbarrier_is_waited_for() -> None:
    a = np.arange(64, dtype=np.uint32)
    texts = [entry(START + LOAD.format(256) + wait + OUT) for wait in ("", WAIT)]
    early, late = (
        run(text, {"a": a, "c": np.zeros(64, np.uint32)}, block=64, races=False).buffers["c"]
        for text in texts
    )
    assert not np.isin(early, a).any()
    assert np.array_equal(late, a)


def test_what_a_bulk_copy_writes_is_not_there_until_it_is_waited_for() -> None:
    send = "st.shared.u32 [%r5], %r0; fence.proxy.async.shared::cta; bar.sync 0;"
    send += "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r4], 128;"
    send += "@%p1 cp.async.bulk.commit_group; {} bar.sync 0; ld.global.u32 %r9, [%rd2];"
    for wait, arrived in (
        ("@%p1 cp.async.bulk.wait_group.read 0;", False),
        ("@%p1 cp.async.bulk.wait_group 0;", True),
    ):
        report = go(TILE + send.format(wait), np.full(32, 77, np.uint32))
        assert np.isin(report.buffers["c"], np.arange(32)).all() == arrived
        assert not (report.buffers["c"] == 77).any()


def test_accumulators_of_wgmma_are_poison_until_they_are_waited_for() -> None:
    a, b = operands(8)
    report = run_wgmma(image(a, 128, False), image(b, 128, False), 128, "0, 0", after="")
    assert not np.isin(report.buffers["c"], a.astype(np.float64) @ b.astype(np.float64).T + 1).any()


POLLS = """.shared .align 8 .b8 bar[8];
mov.u32 %r4, bar; @%p1 mbarrier.init.shared.b64 [%r4], 64; bar.sync 0; mov.u32 %r9, 0;
mbarrier.arrive.shared.b64 %rd9, [%r4];
W: add.u32 %r9, %r9, 1; mbarrier.{}.shared.b64 %p2, [%r4], {}; @!%p2 bra W;
"""


@pytest.mark.parametrize(
    "poll", [("try_wait.parity", "0"), ("test_wait.parity", "0"), ("try_wait", "%rd9"), ("test_wait", "%rd9")]
)
def test_a_phase_that_others_completed_may_look_open_at_the_first_poll(poll: tuple[str, str]) -> None:
    polls = {
        tuple(go(POLLS.format(*poll), block=64, seed=seed).buffers["c"][::32].tolist()) for seed in range(12)
    }
    assert polls == {(1, 1), (1, 2), (2, 1), (2, 2)}


def test_a_phase_that_a_thread_has_completed_by_itself_never_looks_open() -> None:
    body = POLLS.replace("[%r4], 64; bar.sync 0;", "[%r4], 1;").replace("W: ", "@!%p1 bra END;\nW: ")
    body = body.replace("mbarrier.arrive", "@%p1 mbarrier.arrive") + "END:"
    for seed in range(6):
        report = go(body.format("try_wait.parity", "0"), seed=seed)
        assert report.buffers["c"][0] == 1, [str(fault) for fault in report.faults]


# -- layouts and orders --


def _fragment(shape: str, role: str, layout: str, name: str, registers: int, rows: int) -> tuple[int, ...]:
    """Return which element of a matrix each half register of each lane holds."""
    names = ", ".join(f"%r{10 + i}" for i in range(registers))
    body = "ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [c]; mov.u32 %r0, %tid.x;\n"
    body += f"wmma.load.{role}.sync.aligned.{layout}.{shape}.global.{name} {{{names}}}, [%rd0], 16;"
    body += f"mad.wide.u32 %rd3, %r0, {4 * registers}, %rd1;"
    body += "".join(f"st.global.u32 [%rd3+{4 * i}], %r{10 + i};" for i in range(registers)) + "ret;"
    a = np.arange(rows * 16, dtype=np.uint16)
    report = run(entry(body), {"a": a, "c": np.zeros((32, registers), np.uint32)})
    assert report.clean, [str(fault) for fault in report.faults]
    found = report.buffers["c"].view(np.uint16).ravel()
    assert set(found.tolist()) == set(a.tolist())
    return tuple(found.tolist())


def test_fragments_of_wmma_lie_in_another_layout_for_each_shape_type_and_order() -> None:
    maps = [
        _fragment("m16n16k16", "a", "row", "f16", 8, 16),
        _fragment("m16n16k16", "a", "col", "f16", 8, 16),
        _fragment("m16n16k16", "b", "row", "f16", 8, 16),
        _fragment("m16n16k16", "a", "row", "bf16", 4, 16),
        _fragment("m32n8k16", "a", "row", "f16", 8, 32),
    ]
    like_mma = [
        16 * (lane // 4 + 8 * (i // 2 % 2)) + 2 * (lane % 4) + i % 2 + 8 * (i // 4 % 2)
        for lane in range(32)
        for i in range(16)
    ]
    assert len({*maps, tuple(like_mma)}) == 6


def test_a_wrong_guess_of_the_layout_of_wmma_gives_nonsense() -> None:
    a, b, c, out = run_wmma(wmma_body("row", "row", "col.row"))
    assert not np.array_equal(out, a @ b + c)
    assert not np.array_equal(out, a.T @ b + c)
    change = (
        "mov.u32 %r0, %laneid; shr.u32 %r1, %r0, 2; setp.eq.u32 %p1, %r1, 0; @%p1 mov.f32 %f0, 0f44000000;"
    )
    a, b, c, out = run_wmma(wmma_body("row", "row", "row.row", change))
    changed = np.argwhere(out != a @ b + c)
    assert len(changed) == 4
    assert changed.tolist() != [[0, 0], [0, 2], [0, 4], [0, 6]]


def test_lanes_that_meet_at_an_atomic_go_in_a_random_order() -> None:
    text = entry(HERE + "atom.global.add.u32 %r9, [%rd0], 1;" + STORE)
    buffers = {"a": np.zeros(1, np.uint32), "c": np.zeros(32, np.uint32)}
    orders = [run(text, buffers, seed=seed).buffers["c"].tolist() for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(32))
    assert orders[0] != list(range(32))


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("operation", ["atom", "red"])
def test_a_float_sum_by_atomics_depends_on_the_order(operation: str, space: str) -> None:
    """2**24 swallows ones that meet it, and -2**24 gives them no more back."""
    a = np.ones(32, np.float32)
    a[0], a[31] = 2.0**24, -(2.0**24)
    place = "[%r4]" if space == "shared" else "[%rd1+128]"
    result = "%f2, " if operation == "atom" else ""
    body = ".shared .align 4 .b8 cell[4];\n mov.u32 %r4, cell; ld.global.f32 %f1, [%rd2];"
    body += f"@%p1 st.{space}.f32 {place}, 0f00000000; bar.sync 0;"
    body += f"{operation}.{space}.add.f32 {result}{place}, %f1; bar.sync 0; ld.{space}.u32 %r9, {place};"
    buffers = {"a": a, "c": np.zeros(33, np.uint32)}
    text = entry(HERE + body + STORE)
    sums = {float(run(text, buffers, seed=seed).buffers["c"][:1].view(np.float32)[0]) for seed in range(8)}
    assert len(sums) > 2
    assert all(0 <= total <= 31 for total in sums)


def test_blocks_run_last_ones_first() -> None:
    """A ticket is no block number: neither the first block draws the first, nor the last one the last."""
    body = "mov.u32 %r8, 1; @%p1 atom.global.add.u32 %r8, [%rd0], 1; mov.u32 %r9, %r8;" + STORE
    text = entry(HERE + body)
    for seed in (0, 1):
        buffers = {"a": np.zeros(1, np.uint32), "c": np.zeros((40, 1024), np.uint32)}
        tickets = run(text, buffers, grid=40, block=1024, seed=seed).buffers["c"][:, 0].tolist()
        assert sorted(tickets) == list(range(40))
        assert (tickets[0], tickets[-1]) != (0, 39)
        assert tickets.index(0) > 20


def test_the_last_lane_is_elected() -> None:
    for members in (0xFFFFFFFF, 0x00FF00):
        inside = (
            f"shr.u32 %r8, {members}, %r0; and.b32 %r8, %r8, 1; setp.ne.u32 %p3, %r8, 0; mov.u32 %r9, 99;"
        )
        report = go(inside + f"@%p3 elect.sync %r9|%p2, {members};")
        chosen = set(report.buffers["c"].tolist()) - {99}
        assert chosen == {members.bit_length() - 1}


def test_warps_have_no_numbers_to_count_on() -> None:
    found = go("mov.u32 %r9, %warpid;", block=128, grid=2).buffers["c"].reshape(2, 4, 32)
    assert (found == found[:, :, :1]).all()
    assert [len(set(block)) for block in found[:, :, 0].tolist()] == [4, 4]
    assert not (found[:, :, 0] == np.arange(4)).any()
    assert set(go("mov.u32 %r9, %nwarpid;", block=128).buffers["c"].tolist()) == {64}


# -- arithmetic --


def _ulp(value: float) -> float:
    return float(np.spacing(np.float32(abs(value))))


def _half_ulp(value: float) -> float:
    return float(np.spacing(np.float16(abs(value)))) / 2


def _bfloat_half_ulp(value: float) -> float:
    return 2.0 ** (math.frexp(value)[1] - 9) if value else 0.0


Bound = Callable[[float, float], float]
APPROXIMATIONS: dict[str, tuple[Callable[[float], float], Bound, tuple[float, float]]] = {
    # exact function; largest error as the PTX ISA states it, of (argument, exact value); arguments
    "rcp.approx.f32": (lambda x: 1 / x, lambda x, y: 1.5 * _ulp(y), (1e-3, 1e3)),
    "sqrt.approx.f32": (math.sqrt, lambda x, y: 2.0**-23 * y, (1e-6, 1e6)),
    "rsqrt.approx.f32": (lambda x: 1 / math.sqrt(x), lambda x, y: 2.0**-22.9 * y, (1e-6, 1e6)),
    "ex2.approx.f32": (lambda x: 2.0**x, lambda x, y: 2.5 * _ulp(y), (-20, 20)),
    "ex2.approx.f32 of subnormals": (lambda x: 2.0**x, lambda x, y: 2.5 * 2.0**-149, (-140, -127)),
    "lg2.approx.f32": (
        math.log2,
        lambda x, y: 2.0**-22 * (1 if 0.5 < x < 2 else max(abs(y), 1)),
        (1e-3, 1e3),
    ),
    "sin.approx.f32": (math.sin, lambda x, y: 2.0**-20.5, (-3.1, 3.1)),
    "cos.approx.f32": (math.cos, lambda x, y: 2.0**-20.5, (-3.1, 3.1)),
    "tanh.approx.f32": (math.tanh, lambda x, y: 2.0**-11 * abs(y), (-4, 4)),
    "ex2.approx.f16": (lambda x: 2.0**x, lambda x, y: 2.0**-9.9 * y + _half_ulp(y), (-8, 8)),
    "ex2.approx.f16x2": (lambda x: 2.0**x, lambda x, y: 2.0**-9.9 * y + _half_ulp(y), (-8, 8)),
    "ex2.approx.ftz.bf16": (lambda x: 2.0**x, lambda x, y: 2.0**-7 * y + _bfloat_half_ulp(y), (-8, 8)),
    "ex2.approx.ftz.bf16x2": (lambda x: 2.0**x, lambda x, y: 2.0**-7 * y + _bfloat_half_ulp(y), (-8, 8)),
    "tanh.approx.f16": (math.tanh, lambda x, y: 2.0**-10.987 + _half_ulp(y), (-4, 4)),
    "tanh.approx.f16x2": (math.tanh, lambda x, y: 2.0**-10.987 + _half_ulp(y), (-4, 4)),
    "tanh.approx.bf16": (math.tanh, lambda x, y: 2.0**-8 + _bfloat_half_ulp(y), (-4, 4)),
    "tanh.approx.bf16x2": (math.tanh, lambda x, y: 2.0**-8 + _bfloat_half_ulp(y), (-4, 4)),
}


def _approximated(opcode: str, low: float, high: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (arguments, results) of an approximation, in whatever type it takes."""
    x = np.random.default_rng(5).uniform(low, high, 4000).astype(np.float32)
    x = x[x != 0]
    if "f16" not in opcode:
        return x.astype(np.float64), evaluate(f"{opcode} %d, %a;", "float32", {"a": x}).astype(np.float64)
    bits = (
        (x.view(np.uint32) >> 16).astype(np.uint16) if "bf16" in opcode else x.astype(np.float16).view("u2")
    )
    operand = bits.view(np.uint32) if opcode.endswith("x2") else bits
    found = evaluate(f"{opcode} %d, %a;", operand.dtype.name, {"a": operand}).view(np.uint16)
    if "bf16" in opcode:
        return tuple((half.astype(np.uint32) << 16).view(np.float32).astype(float) for half in (bits, found))  # type: ignore[return-value]
    return bits.view(np.float16).astype(float), found.view(np.float16).astype(float)


@pytest.mark.parametrize("name", APPROXIMATIONS)
def test_approximations_err_but_within_the_bound_of_the_isa(name: str) -> None:
    function, bound, (low, high) = APPROXIMATIONS[name]
    arguments, found = _approximated(name.split()[0], low, high)
    exact = [function(x) for x in arguments.tolist()]
    share = [
        abs(y - z) / bound(x, z) for x, y, z in zip(arguments.tolist(), found.tolist(), exact, strict=True)
    ]
    assert max(share) <= 1.0
    assert max(share) > 0.6, "the simulator must use the freedom that the ISA leaves"


@pytest.mark.parametrize("opcode", ["div.approx.f32", "div.full.f32"])
def test_approximate_quotients_err_by_up_to_two_units(opcode: str) -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.uniform(0.1, 100, 4000).astype(np.float32) for _ in range(2))
    exact = a.astype(np.float64) / b
    found = evaluate(f"{opcode} %d, %a, %b;", "float32", {"a": a, "b": b})
    units = np.abs(found - exact) / np.spacing(exact.astype(np.float32))
    assert 1.5 < units.max() <= 2.5


@pytest.mark.parametrize(
    ("opcode", "function"),
    [("rcp.approx.ftz.f64", lambda x: 1 / x), ("rsqrt.approx.ftz.f64", lambda x: x**-0.5)],
)
def test_rough_double_functions_have_twenty_good_bits_only(opcode: str, function: Callable[..., Any]) -> None:
    a = np.random.default_rng(7).uniform(0.1, 100, 4000)
    found = evaluate(f"{opcode} %d, %a;", "float64", {"a": a})
    assert (found.view(np.uint64) & np.uint64(0xFFFFFFFF) == 0).all()
    error = np.abs(found / function(a) - 1).max()
    assert 2.0**-22 < error < 2.0**-19


def test_float_sums_of_mma_lose_low_bits_towards_zero() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((16, 16)).astype(np.float16), rng.standard_normal((16, 8)).astype(np.float16)
    c = rng.standard_normal((16, 8)).astype(np.float32)
    found = _products("m16n8k16 f16", a, b, c).astype(np.float64)
    exact = a.astype(np.float64) @ b.astype(np.float64) + c
    size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) + np.abs(c)
    assert np.all(np.abs(found - exact) <= size * 2.0**-22)
    assert np.all(np.abs(found) <= np.abs(exact))
    assert np.mean(found.astype(np.float32) != exact.astype(np.float32)) > 0.3  # not simply rounded


def _products(key: str, a: NDArray[Any], b: NDArray[Any], c: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a b + c by one mma."""
    shape, bits = SHAPES[key], np.dtype(f"u{a.dtype.itemsize}")
    registers = [
        pack(matrix.view(dtype), place, count, size)
        for matrix, dtype, place, count, size in (
            (a, bits, shape.a, shape.counts[0], shape.bits),
            (b, bits, shape.b, shape.counts[1], shape.bits),
            (c, np.dtype(np.uint32), shape.c, 4, 32),
        )
    ]
    name = key.split()[1]
    _, d = multiply(shape.text.format(a=name, b=name), *registers, results=4)
    return unpack(d, shape.c, c.shape).view(np.float32)


def test_what_cancels_in_mma_takes_small_addends_along() -> None:
    """2**28 + 3 - 2**28: f32 holds the exact sum, but no order of adding that begins with 2**28 + 3 does."""
    a, b = np.zeros((16, 16), np.float16), np.zeros((16, 8), np.float16)
    a[:, [2, 7, 9]], b[[2, 7, 9]] = [16384, 1, -16384], [[16384], [3], [16384]]
    found = _products("m16n8k16 f16", a, b, np.zeros((16, 8), np.float32))
    assert not (found == 3).all()
    a[:, [2, 9]], b[[2, 9]] = [[1024, -1024]], 1024  # up to 2**24 every order is exact
    assert (_products("m16n8k16 f16", a, b, np.zeros((16, 8), np.float32)) == 3).all()


def test_low_bits_of_tf32_are_not_zero_and_mma_does_not_read_them() -> None:
    x = np.random.default_rng(8).standard_normal(64).astype(np.float32)
    converted = evaluate("cvt.rna.tf32.f32 %d, %a;", "uint32", {"a": x})
    assert (converted & 0x1FFF != 0).mean() > 0.9
    a, b = (converted.view(np.float32)[:32].reshape(16, 2), np.ones((2, 8), np.float32))
    a, b = np.pad(a, ((0, 0), (0, 6))), np.pad(b, ((0, 6), (0, 0)))
    found = _products("m16n8k8 tf32", a, b, np.zeros((16, 8), np.float32))
    cut = (a.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)
    assert np.array_equal(found, cut @ b)
    assert not np.array_equal(found, (a.astype(np.float64) @ b).astype(np.float32))


def test_float_atomics_flush_subnormals_in_global_memory_only() -> None:
    tiny = np.full(32, 2.0**-140, np.float32)
    sums = {}
    for space, place in (("global", "[%rd1+128]"), ("shared", "[%r4]")):
        body = ".shared .align 4 .b8 cell[4];\n mov.u32 %r4, cell; ld.global.f32 %f1, [%rd2];"
        body += f"@%p1 st.{space}.f32 {place}, 0f00000000; bar.sync 0; red.{space}.add.f32 {place}, %f1;"
        text = entry(HERE + body + f"bar.sync 0; ld.{space}.u32 %r9, {place};" + STORE)
        report = run(text, {"a": tiny, "c": np.zeros(33, np.uint32)})
        sums[space] = float(report.buffers["c"][:1].view(np.float32)[0])
    assert sums == {"global": 0.0, "shared": 2.0**-135}


@pytest.mark.parametrize("operation", ["div.u32", "div.s32", "rem.u32", "rem.s32"])
def test_division_by_zero_is_poison(operation: str) -> None:
    a = np.array([0, 1, 7, 0x80000000, 0xFFFFFFFF], np.uint32)
    found = evaluate(f"{operation} %d, %a, %b;", "uint32", {"a": a, "b": np.zeros(5, np.uint32)})
    assert not np.isin(found, [0, 1, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]).any()


# -- memory that nobody has written, and values that nobody gives --


@pytest.mark.parametrize(
    "body",
    [
        "ld.global.u32 %r9, [%rd3];",
        TILE + "ld.shared.u32 %r9, [%r5];",
        ".local .align 4 .b8 here[4];\n mov.u64 %rd9, here; ld.local.u32 %r9, [%rd9];",
        "mov.u32 %r9, %r50;",
    ],
    ids=["output", "shared", "local", "register"],
)
def test_what_nobody_has_written_is_poison_and_reading_it_a_fault(body: str) -> None:
    report = go(body)
    assert kinds(report) == ["uninitialised"]
    assert (report.buffers["c"] > 1 << 24).all()


@pytest.mark.parametrize(
    "product",
    [
        "mul.f32 %f1, %f2, 0f00000000; mov.b32 %r9, %f1;",
        "mov.u32 %r8, 0; mul.f16x2 %r9, %r7, %r8;",
        "mov.u32 %r8, 0; mul.bf16x2 %r9, %r7, %r8;",
    ],
    ids=["f32", "f16", "bf16"],
)
def test_no_zero_makes_a_register_harmless_that_only_other_lanes_write(product: str) -> None:
    body = "setp.lt.u32 %p3, %r0, 8; @%p3 mov.f32 %f2, 0f3F800000; @%p3 mov.u32 %r7, 0x3C003C00;"
    found = go(body + product).buffers["c"]
    assert (found[:8] == 0).all()
    assert (found[8:32] & 0x7FFF > 0x7C00).all()  # a NaN of each type has these bits


def test_the_value_of_a_lane_that_is_not_there_is_poison() -> None:
    report = go("mov.u32 %r9, 0; setp.lt.u32 %p3, %r0, 8; @%p3 shfl.sync.idx.b32 %r9, %r0, 20, 31, 0xff;")
    assert (report.buffers["c"][:8] > 1 << 24).all()


# -- addresses --


def test_shared_memory_does_not_begin_at_0() -> None:
    assert go(TILE + "mov.u32 %r9, %r4;").buffers["c"].min() >= 1024
    forgotten = go(TILE + "st.shared.u32 [%r5], %r0; mul.lo.u32 %r8, %r0, 4; ld.shared.u32 %r9, [%r8];")
    assert kinds(forgotten) == ["out_of_bounds"]


@pytest.mark.parametrize("align", [4, 16, 128, 1024])
def test_shared_variables_are_aligned_as_they_say_and_no_better(align: int) -> None:
    body = f".shared .align {align} .b8 first[8]; .shared .align {align} .b8 second[8]; mov.u32 %r9, first;"
    for start in set(go(body + "@%p1 mov.u32 %r9, second;").buffers["c"].tolist()):
        assert (start % align, start % (2 * align)) == (0, align)


def test_buffers_lie_far_apart_and_are_aligned_to_256_bytes_only() -> None:
    body = "sub.s64 %rd4, %rd1, %rd0; shr.u64 %rd4, %rd4, 40; setp.eq.u32 %p2, %r0, 1; mov.u64 %rd5, %rd0;"
    body += (
        "@%p1 mov.u64 %rd5, %rd4; @%p2 mov.u64 %rd5, %rd1; and.b64 %rd5, %rd5, 511; cvt.u32.u64 %r9, %rd5;"
    )
    found = go(body).buffers["c"].tolist()
    assert found[0] >= 1
    assert set(found[1:]) == {256}


def test_state_tokens_of_mbarriers_say_nothing() -> None:
    body = ".shared .align 8 .b8 bar[8];\n mov.u32 %r4, bar; @%p1 mbarrier.init.shared.b64 [%r4], 32;"
    body += "bar.sync 0; mbarrier.arrive.shared.b64 %rd9, [%r4]; cvt.u32.u64 %r9, %rd9;"
    assert go(body).buffers["c"].min() > 1 << 16


def test_the_same_seed_makes_the_same_choices() -> None:
    text = entry(HERE + "atom.global.add.f32 %f2, [%rd1+128], 0f3DCCCCCD; mov.b32 %r9, %f2;" + STORE)
    steps = [Memset("c", 0), Launch("k", (1, 1, 1), (32, 1, 1), 0, ("a", "c"))]
    buffers = {"a": np.zeros(32, np.uint32), "c": np.zeros(33, np.uint32)}
    first, again, other = (simulate(text, steps, buffers, seed=seed).buffers["c"] for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
