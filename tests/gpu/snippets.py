"""PTX of one instruction each, run by one warp on its own data, in the simulator and on hardware.

A thread has eight 32-bit words of input in %x0..%x7 and leaves up to four of output in %y0..%y3.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emitters.target import arch_named
from tuner.simulator import Launch, parse, simulate

Words = NDArray[np.uint32]
LANES = 32
INPUTS, OUTPUTS = 8, 4


@dataclass(frozen=True)
class Snippet:
    """One instruction.

    Attributes:
        name: Of the test.
        body: PTX.
        data: ``words``, ``floats`` or ``halves``: what the input words are.
        tolerance: 0 for equal bits (any NaN equals any), else the relative error that the PTX ISA allows.
        result: ``words``, ``floats`` or ``halves``: how results are compared.
    """

    name: str
    body: str
    data: str = "words"
    tolerance: float = 0.0
    result: str = "words"


def ptx_of(snippet: Snippet, arch: str) -> str:
    """The module."""
    loads = "\n".join(
        f"    ld.global.v4.b32 {{%x{i}, %x{i + 1}, %x{i + 2}, %x{i + 3}}}, [%in + {4 * i}];" for i in (0, 4)
    )
    return f""".version {arch_named(arch).ptx_version}
.target {arch}
.address_size 64
.visible .entry snippet(.param .u64 pin, .param .u64 pout)
{{
    .reg .b64 %in, %out, %offset, %wide, %wide2;
    .reg .b32 %x<8>, %y<4>, %t<8>, %lane, %address;
    .reg .b16 %h<8>;
    .reg .pred %p, %q;
    .shared .align 512 .b8 tile[2048];
    mov.u32 %lane, %tid.x;
    ld.param.u64 %in, [pin];
    ld.param.u64 %out, [pout];
    mul.wide.u32 %offset, %lane, {4 * INPUTS};
    add.u64 %in, %in, %offset;
    mul.wide.u32 %offset, %lane, {4 * OUTPUTS};
    add.u64 %out, %out, %offset;
{loads}
    mov.b32 %y0, 0;
    mov.b32 %y1, 0;
    mov.b32 %y2, 0;
    mov.b32 %y3, 0;
    mov.u32 %address, tile;
    {snippet.body}
    st.global.v4.b32 [%out], {{%y0, %y1, %y2, %y3}};
    ret;
}}
"""


def data_of(snippet: Snippet) -> Words:
    """Input, (32, 8): extremes in the first lanes, random words behind."""
    rng = np.random.default_rng(list(snippet.name.encode()))
    match snippet.data:
        case "words":
            extremes = np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 31, 32, 0x80808080], np.uint32)
            words = rng.integers(0, 1 << 32, (LANES, INPUTS), np.uint32)
        case "floats":
            special = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 1e-40, -3.5]
            extremes = np.array(special, np.float32).view(np.uint32)
            spread = rng.standard_normal((LANES, INPUTS)) * 2.0 ** rng.integers(-20, 20, (LANES, INPUTS))
            words = spread.astype(np.float32).view(np.uint32)
        case "halves":
            extremes = np.array([0x3C003C00, 0, 0x80008000, 0x00010001, 0x7BFF7BFF, 1, 2, 3], np.uint32)
            words = rng.standard_normal((LANES, 2 * INPUTS)).astype(np.float16).view(np.uint32)
        case other:
            raise ValueError(f"data must be words, floats or halves, got {other!r}")
    words = np.ascontiguousarray(words)
    if snippet.tolerance == 0.0 or snippet.data == "floats":
        for lane in range(8):  # every extreme meets every other in the first two words
            words[lane, 0] = extremes[lane]
            words[lane, 1] = extremes[(3 * lane + 2) % 8]
    return words


def simulated(snippet: Snippet, arch: str) -> Words:
    """Output of the simulator, (32, 4)."""
    out = np.zeros((LANES, OUTPUTS), np.uint32)
    launch = Launch("snippet", (1, 1, 1), (LANES, 1, 1), 0, ("in", "out"))
    report = simulate(
        parse(ptx_of(snippet, arch)), [launch], {"in": data_of(snippet), "out": out}, outputs=("out",)
    )
    assert report.clean, report.faults
    result: Words = report.buffers["out"]
    return result


def differing(snippet: Snippet, left: Words, right: Words) -> list[str]:
    """Where two outputs differ by more than is allowed, for a person."""
    types: dict[str, type] = {"words": np.uint32, "floats": np.float32, "halves": np.float16}
    a: NDArray[Any] = np.ascontiguousarray(left).view(types[snippet.result])
    b: NDArray[Any] = np.ascontiguousarray(right).view(types[snippet.result])
    if snippet.result == "words":
        wrong = a != b
    else:
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(wide_a - wide_b) <= snippet.tolerance * np.maximum(np.abs(wide_a), np.abs(wide_b))
        same_zero = np.signbit(wide_a) == np.signbit(wide_b)
        wrong = ~((near & (same_zero | (snippet.tolerance > 0))) | (wide_a == wide_b) & same_zero)
        wrong &= ~(np.isnan(wide_a) & np.isnan(wide_b))
    return [f"lane {i}, output {j}: {a[i, j]} and {b[i, j]}" for i, j in np.argwhere(wrong)[:5]]


def _plain(names: str, operands: str = "%y0, %x0, %x1") -> tuple[Snippet, ...]:
    return tuple(Snippet(name, f"{name} {operands};") for name in names.split())


def _float(names: str, operands: str = "%y0, %x0, %x1", tolerance: float = 0.0) -> tuple[Snippet, ...]:
    return tuple(
        Snippet(name, f"{name} {operands};", "floats", tolerance, "floats") for name in names.split()
    )


_WIDE = "mov.b64 {%y0, %y1}, %wide;"
_PACK = "mov.b64 %wide, {%x0, %x1}; mov.b64 %wide2, {%x2, %x3};"
_STORE = "mul.lo.u32 %t0, %lane, 16; add.u32 %t0, %address, %t0; "
_ROW = _STORE + "st.shared.v4.b32 [%t0], {%x0, %x1, %x2, %x3}; bar.sync 0; "
_S8 = "{%y0, %y1, %y2, %y3}, {%x0, %x1, %x2, %x3}, {%x4, %x5}, {%t0, %t0, %t0, %t0}"

SNIPPETS: tuple[Snippet, ...] = (
    *_plain("add.s32 sub.s32 mul.lo.s32 mul.hi.s32 mul.hi.u32 min.s32 max.s32 min.u32 max.u32"),
    *_plain("and.b32 or.b32 xor.b32 shl.b32 shr.u32 shr.s32 mul24.lo.u32"),
    *_plain("mad.lo.s32 mad.hi.u32 dp4a.s32.s32 dp4a.u32.u32 dp4a.u32.s32 prmt.b32", "%y0, %x0, %x1, %x2"),
    *_plain("not.b32 neg.s32 abs.s32 popc.b32 clz.b32 brev.b32 bfind.u32 bfind.s32", "%y0, %x0"),
    *_plain("shf.l.wrap.b32 shf.r.clamp.b32 bfe.u32 bfe.s32", "%y0, %x0, %x1, %x2"),
    *_plain("bfi.b32", "%y0, %x0, %x1, %x2, %x3"),
    *(
        Snippet(f"lop3 {table:#x}", f"lop3.b32 %y0, %x0, %x1, %x2, {table};")
        for table in (0x96, 0xE8, 0xCA, 0x1B)
    ),
    *(
        Snippet(f"prmt {code:#x}", f"prmt.b32 %y0, %x0, %x1, {code};")
        for code in (0x5410, 0x7632, 0xBA98, 0x3333)
    ),
    *(Snippet(f"mul.wide.{t}", f"mul.wide.{t} %wide, %x0, %x1; {_WIDE}") for t in ("s32", "u32")),
    *(
        Snippet(f"{op}", f"{_PACK} {op} %wide, %wide, %wide2; {_WIDE}")
        for op in ("add.s64", "mul.lo.s64", "sub.u64")
    ),
    *(
        Snippet(f"setp.{c}.s32", f"setp.{c}.s32 %p, %x0, %x1; selp.b32 %y0, %x2, %x3, %p;")
        for c in ("lt", "ge", "eq", "ne")
    ),
    *(
        Snippet(f"setp.{c}.f32", f"setp.{c}.f32 %p, %x0, %x1; selp.b32 %y0, %x2, %x3, %p;", "floats")
        for c in ("lt", "geu", "equ", "ne", "num", "nan")
    ),
    *_float("add.rn.f32 sub.rn.f32 mul.rn.f32 add.rz.f32 mul.rm.f32 div.rn.f32 min.f32 max.f32 min.NaN.f32"),
    *_float("fma.rn.f32 fma.rz.f32 fma.rn.ftz.f32", "%y0, %x0, %x1, %x2"),
    *_float("abs.f32 neg.f32 sqrt.rn.f32 rcp.rn.f32", "%y0, %x0"),
    *_float("rcp.approx.f32", "%y0, %x0", 2.0**-22),  # 1 ulp
    *_float("rsqrt.approx.f32", "%y0, %x0", 2.0**-21),
    *_float("ex2.approx.f32", "%y0, %x0", 2.0**-21),
    *(
        Snippet(f"cvt.{mode}.{to}.f32", f"cvt.{mode}.{to}.f32 %y0, %x0;", "floats")
        for mode, to in (("rni", "s32"), ("rzi", "s32"), ("rmi", "s32"), ("rzi", "u32"))
    ),
    *(Snippet(f"cvt.rn.f32.{t}", f"cvt.rn.f32.{t} %y0, %x0;", result="floats") for t in ("s32", "u32")),
    Snippet("cvt.rn.f16.f32", "cvt.rn.f16.f32 %h0, %x0; mov.b32 %y0, {%h0, %h0};", "floats", result="halves"),
    Snippet("cvt.f32.f16", "mov.b32 {%h0, %h1}, %x0; cvt.f32.f16 %y0, %h0;", "halves", result="floats"),
    Snippet("cvt.rn.f16x2.f32", "cvt.rn.f16x2.f32 %y0, %x0, %x1;", "floats", result="halves"),
    Snippet("fma.rn.f16x2", "fma.rn.f16x2 %y0, %x0, %x1, %x2;", "halves", result="halves"),
    *_plain("cvt.s8.s32 cvt.u8.s32 cvt.s16.s32 cvt.sat.s8.s32 cvt.sat.u8.s32", "%y0, %x0"),
    *(
        Snippet(
            f"shfl.sync.{mode}",
            f"shfl.sync.{mode}.b32 %y0|%p, %x0, {by}, {clamp}, -1; selp.b32 %y1, 1, 0, %p;",
        )
        for mode, by, clamp in (("up", 3, 0), ("down", 5, 31), ("bfly", 9, 31), ("idx", 17, 31))
    ),
    Snippet("shfl.sync.bfly of 8", "shfl.sync.bfly.b32 %y0|%p, %x0, 3, 6175, -1; selp.b32 %y1, 1, 0, %p;"),
    Snippet("vote.sync.ballot", "setp.lt.s32 %p, %x0, %x1; vote.sync.ballot.b32 %y0, %p, -1;"),
    Snippet(
        "vote.sync.any", "setp.lt.s32 %p, %x0, %x1; vote.sync.any.pred %q, %p, -1; selp.b32 %y0, 1, 0, %q;"
    ),
    Snippet("match.any.sync", "and.b32 %t0, %x0, 3; match.any.sync.b32 %y0, %t0, -1;"),
    *(
        Snippet(f"redux.sync.{op}", f"redux.sync.{op} %y0, %x0, -1;")
        for op in ("add.s32", "min.s32", "max.u32", "xor.b32")
    ),
    Snippet("shared round trip", _ROW + "xor.b32 %t1, %t0, 496; ld.shared.v2.b32 {%y0, %y1}, [%t1];"),
    *(
        Snippet(
            f"ldmatrix.{count}{trans}",
            _ROW + f"ldmatrix.sync.aligned.m8n8.{count}{trans}.shared.b16 {{{registers}}}, [%t0];",
        )
        for count, registers in (("x1", "%y0"), ("x2", "%y0, %y1"), ("x4", "%y0, %y1, %y2, %y3"))
        for trans in ("", ".trans")
    ),
    Snippet(
        "cp.async of 16",
        _STORE + "cp.async.cg.shared.global [%t0], [%in], 16; cp.async.commit_group; cp.async.wait_group 0; "
        "bar.sync 0; xor.b32 %t1, %t0, 16; ld.shared.v4.b32 {%y0, %y1, %y2, %y3}, [%t1];",
    ),
    Snippet(
        "cp.async of 4, 2 of them zero",
        _STORE + "cp.async.ca.shared.global [%t0], [%in], 4, 2; cp.async.commit_group; cp.async.wait_all; "
        "ld.shared.b32 %y0, [%t0];",
    ),
    Snippet("mma s8", f"mov.b32 %t0, 7; mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {_S8};"),
    Snippet("mma s8 u8", f"mov.b32 %t0, -7; mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {_S8};"),
    Snippet(
        "mma s8 k16",
        "mov.b32 %t0, 3; mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 "
        "{%y0, %y1, %y2, %y3}, {%x0, %x1}, {%x4}, {%t0, %t0, %t0, %t0};",
    ),
    Snippet(
        "mma f16",  # the ISA leaves the accumulation open: 17 terms, each off by 2^-23 of the largest
        f"mov.b32 %t0, 0f42800000; mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {_S8};",
        "halves",
        2.0**-17,
        "floats",
    ),
    Snippet(
        "atom.shared.add",
        "setp.eq.u32 %p, %lane, 0; @%p st.shared.b32 [%address], 0; bar.sync 0; "
        "atom.shared.add.u32 %t1, [%address], %x0; bar.sync 0; ld.shared.b32 %y0, [%address];",
    ),
)
