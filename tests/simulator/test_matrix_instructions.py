"""mma against plain matrix products; lane maps spelled out as the PTX ISA does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ptx_harness import entry, run

from tuner.simulator import Report

Map = Callable[[int, int, int], tuple[int, int]]
"""(groupID, threadID_in_group, element number i) -> (row, column), as the ISA gives them."""


@dataclass(frozen=True)
class Shape:
    """One mma: sizes, element bits, and the maps of A, B and C."""

    text: str
    m: int
    n: int
    k: int
    bits: int
    counts: tuple[int, int, int]
    a: Map
    b: Map
    c: Map


def c_map(g: int, t: int, i: int) -> tuple[int, int]:
    return g + 8 * (i >= 2), 2 * t + (i & 1)


SHAPES = {
    "m16n8k32 s8": Shape(
        "mma.sync.aligned.m16n8k32.row.col.s32.{a}.{b}.s32",
        16,
        8,
        32,
        8,
        (16, 8, 4),
        lambda g, t, i: (g + 8 * (4 <= i < 8 or i >= 12), 4 * t + (i & 3) + 16 * (i >= 8)),
        lambda g, t, i: (4 * t + (i & 3) + 16 * (i >= 4), g),
        c_map,
    ),
    "m16n8k16 s8": Shape(
        "mma.sync.aligned.m16n8k16.row.col.s32.{a}.{b}.s32",
        16,
        8,
        16,
        8,
        (8, 4, 4),
        lambda g, t, i: (g + 8 * (i >= 4), 4 * t + (i & 3)),
        lambda g, t, i: (4 * t + (i & 3), g),
        c_map,
    ),
    "m8n8k16 s8": Shape(
        "mma.sync.aligned.m8n8k16.row.col.s32.{a}.{b}.s32",
        8,
        8,
        16,
        8,
        (4, 4, 2),
        lambda g, t, i: (g, 4 * t + i),
        lambda g, t, i: (4 * t + i, g),
        c_map,
    ),
    "m16n8k64 s4": Shape(
        "mma.sync.aligned.m16n8k64.row.col.s32.{a}.{b}.s32",
        16,
        8,
        64,
        4,
        (32, 16, 4),
        lambda g, t, i: (g + 8 * (8 <= i < 16 or i >= 24), 8 * t + (i & 7) + 32 * (i >= 16)),
        lambda g, t, i: (8 * t + (i & 7) + 32 * (i >= 8), g),
        c_map,
    ),
    "m16n8k16 f16": Shape(
        "mma.sync.aligned.m16n8k16.row.col.f32.{a}.{b}.f32",
        16,
        8,
        16,
        16,
        (8, 4, 4),
        lambda g, t, i: (g + 8 * (2 <= i < 4 or i >= 6), 2 * t + (i & 1) + 8 * (i >= 4)),
        lambda g, t, i: (2 * t + (i & 1) + 8 * (i >= 2), g),
        c_map,
    ),
    "m16n8k8 f16": Shape(
        "mma.sync.aligned.m16n8k8.row.col.f32.{a}.{b}.f32",
        16,
        8,
        8,
        16,
        (4, 2, 4),
        lambda g, t, i: (g + 8 * (i >= 2), 2 * t + (i & 1)),
        lambda g, t, i: (2 * t + (i & 1), g),
        c_map,
    ),
    "m16n8k8 tf32": Shape(
        "mma.sync.aligned.m16n8k8.row.col.f32.{a}.{b}.f32",
        16,
        8,
        8,
        32,
        (4, 2, 4),
        lambda g, t, i: (g + 8 * (i in (1, 3)), t + 4 * (i >= 2)),
        lambda g, t, i: (t + 4 * i, g),
        c_map,
    ),
    "m8n8k4 f64": Shape(
        "mma.sync.aligned.m8n8k4.row.col.f64.{a}.{b}.f64",
        8,
        8,
        4,
        64,
        (1, 1, 2),
        lambda g, t, i: (g, t),
        lambda g, t, i: (t, g),
        c_map,
    ),
}


def pack(matrix: NDArray[Any], place: Map, count: int, bits: int) -> NDArray[Any]:
    """Return the registers of 32 lanes, (32, registers), that hold a matrix of element bits."""
    width = max(bits, 32)
    registers = np.zeros((32, max(count * bits // width, 1)), np.uint64)
    for lane in range(32):
        for i in range(count):
            value = int(matrix[place(lane >> 2, lane & 3, i)]) & ((1 << bits) - 1)
            registers[lane, i * bits // width] |= np.uint64(value << (i * bits % width))
    return registers.astype(f"uint{width}")


def unpack(registers: NDArray[Any], place: Map, shape: tuple[int, int]) -> NDArray[Any]:
    matrix = np.zeros(shape, registers.dtype)
    for lane in range(32):
        for i in range(registers.shape[1]):
            matrix[place(lane >> 2, lane & 3, i)] = registers[lane, i]
    return matrix


def multiply(
    text: str, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], results: int
) -> tuple[Report, NDArray[Any]]:
    """Run one mma on given registers of 32 lanes; return the registers of D."""
    wide = a.dtype.itemsize == 8
    prefix, size, kind = ("%rd", 8, "b64") if wide else ("%r", 4, "b32")
    lines = [
        "mov.u32 %r0, %tid.x; ld.param.u64 %rd40, [a]; ld.param.u64 %rd41, [b]; ld.param.u64 %rd42, [c];"
    ]
    lines.append("ld.param.u64 %rd43, [out];")
    vectors = []
    for pointer, values, first in ((40, a, 10), (41, b, 20), (42, c, 30)):
        count = values.shape[1]
        lines.append(f"mad.wide.u32 %rd{pointer}, %r0, {count * size}, %rd{pointer};")
        names = [f"{prefix}{first + i}" for i in range(count)]
        lines += [f"ld.global.{kind} {name}, [%rd{pointer}+{i * size}];" for i, name in enumerate(names)]
        vectors.append("{" + ", ".join(names) + "}")
    target = [f"{prefix}{35 + i}" if wide else f"{prefix}{50 + i}" for i in range(results)]
    lines.append(f"{text} {{{', '.join(target)}}}, {', '.join(vectors)};")
    lines.append(f"mad.wide.u32 %rd43, %r0, {results * size}, %rd43;")
    lines += [f"st.global.{kind} [%rd43+{i * size}], {name};" for i, name in enumerate(target)]
    out = np.zeros((32, results), a.dtype)
    module = entry("\n".join(lines) + "\nret;", ("u64 a", "u64 b", "u64 c", "u64 out"))
    report = run(module, {"a": a, "b": b, "c": c, "out": out}, ("a", "b", "c", "out"), outputs=("out",))
    return report, report.buffers["out"]


def _integers(rng: np.random.Generator, name: str, shape: tuple[int, int]) -> NDArray[np.int64]:
    low, high = {"s8": (-128, 128), "u8": (0, 256), "s4": (-8, 8), "u4": (0, 16)}[name]
    values = rng.integers(low, high, shape)
    values[0, 0], values[-1, -1] = low, high - 1
    return values


@pytest.mark.parametrize("signs", ["ss", "su", "us", "uu"])
@pytest.mark.parametrize("key", ["m16n8k32 s8", "m16n8k16 s8", "m8n8k16 s8", "m16n8k64 s4"])
def test_integer_mma_is_exact_in_every_shape_and_signedness(key: str, signs: str) -> None:
    shape, rng = SHAPES[key], np.random.default_rng(1)
    names = [f"{sign}{shape.bits}" for sign in signs]
    a, b = _integers(rng, names[0], (shape.m, shape.k)), _integers(rng, names[1], (shape.k, shape.n))
    c = rng.integers(-(2**31), 2**31, (shape.m, shape.n))
    registers = [
        pack(matrix, place, count, bits)
        for matrix, place, count, bits in (
            (a, shape.a, shape.counts[0], shape.bits),
            (b, shape.b, shape.counts[1], shape.bits),
            (c, shape.c, shape.counts[2], 32),
        )
    ]
    text = shape.text.format(a=names[0], b=names[1])
    report, d = multiply(text, *registers, results=shape.counts[2])
    assert report.clean
    expected = (c + a @ b).astype(np.int64).astype(np.uint64).astype(np.uint32)
    assert np.array_equal(unpack(d, shape.c, c.shape), expected)
    _, clamped = multiply(text.replace(".row.col", ".row.col.satfinite"), *registers, results=shape.counts[2])
    exact = np.clip(c + a @ b, -(2**31), 2**31 - 1).astype(np.int32).view(np.uint32)
    assert np.array_equal(unpack(clamped, shape.c, c.shape), exact)


def _float_bits(values: NDArray[np.float64], name: str) -> NDArray[Any]:
    if name == "bf16":
        return values.astype(np.float32).view(np.uint32) >> np.uint32(16)
    dtype = {"f16": np.float16, "tf32": np.float32, "f64": np.float64}[name]
    return values.astype(dtype).view(f"uint{np.dtype(dtype).itemsize * 8}")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("m16n8k16 f16", "f16"),
        ("m16n8k16 f16", "bf16"),
        ("m16n8k8 f16", "f16"),
        ("m16n8k8 f16", "bf16"),
        ("m16n8k8 tf32", "tf32"),
        ("m8n8k4 f64", "f64"),
    ],
)
def test_float_mma_of_small_integers_is_exact(key: str, name: str) -> None:
    shape, rng = SHAPES[key], np.random.default_rng(2)
    a, b = rng.integers(-9, 10, (shape.m, shape.k)), rng.integers(-9, 10, (shape.k, shape.n))
    c = rng.integers(-99, 100, (shape.m, shape.n)).astype(np.float64)
    accumulator = "f64" if name == "f64" else "tf32"
    registers = [
        pack(_float_bits(a.astype(np.float64), name), shape.a, shape.counts[0], shape.bits),
        pack(_float_bits(b.astype(np.float64), name), shape.b, shape.counts[1], shape.bits),
        pack(_float_bits(c, accumulator), shape.c, shape.counts[2], 64 if name == "f64" else 32),
    ]
    report, d = multiply(shape.text.format(a=name, b=name), *registers, results=shape.counts[2])
    found = unpack(d, shape.c, c.shape).view(np.float64 if name == "f64" else np.float32)
    assert report.clean
    assert np.array_equal(found, c + a @ b)


@pytest.mark.parametrize("types", ["s32.s8.s8.s32", "f32.f16.f16.f32"])
def test_warps_that_take_turns_at_mma_keep_their_own_sums(types: str) -> None:
    """Rounds of the first warp, of both and of the second, without a look at the sums between them."""
    shape, of_halves = ("m16n8k16", True) if "f16" in types else ("m16n8k32", False)
    mma = f"mma.sync.aligned.{shape}.row.col.{types} {{%r20, %r21, %r22, %r23}}, {{%r10, %r10, %r10, %r10}}, "
    mma += "{%r11, %r11}, {%r20, %r21, %r22, %r23};\n"
    body = "mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [c]; setp.lt.u32 %p1, %r0, 32;\n"
    body += "mad.wide.u32 %rd2, %r0, 8, %rd0; mad.wide.u32 %rd3, %r0, 16, %rd1; mov.u32 %r1, 0;\n"
    body += "ld.global.v2.u32 {%r10, %r11}, [%rd2];\n"
    body += "".join(f"mov.u32 %r{20 + i}, 0;" for i in range(4))
    body += f"LOOP: @!%p1 bra ONE;\n{mma}{mma}ONE: {mma}@%p1 bra TWO;\n{mma}TWO:\n"
    body += "add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 3; @%p2 bra LOOP;\n"
    body += "st.global.v4.u32 [%rd3], {%r20, %r21, %r22, %r23}; ret;"
    rng, dtype = np.random.default_rng(4), np.float16 if of_halves else np.int8
    a = rng.integers(-3, 4, (64, 2, 4 // np.dtype(dtype).itemsize)).astype(dtype)
    report = run(entry(body), {"a": a, "c": np.zeros((64, 4), np.uint32)}, block=64)
    assert report.clean, [str(fault) for fault in report.faults]
    found = report.buffers["c"].view(np.float32 if of_halves else np.int32)
    for warp, rounds in ((0, 9), (1, 6)):
        lanes = a[32 * warp : 32 * warp + 32].astype(np.int64)
        x = lanes[:, 0].reshape(8, -1)  # rows g of A, the same again in rows g + 8 and in every piece of k
        y = lanes[:, 1].reshape(8, -1)
        once = 2 * x @ y.T
        expected = np.stack([once[:, 0::2], once[:, 1::2]] * 2, -1).reshape(32, 4)
        assert np.array_equal(found[32 * warp : 32 * warp + 32], rounds * expected)


@pytest.mark.parametrize("types", ["s32.s8.s8.s32", "f32.f16.f16.f32"])
def test_blocks_with_sums_of_their_own_may_have_the_same_factors(types: str) -> None:
    real = types.startswith("f32")
    shape, ones = ("m16n8k16", "0x3C003C00") if real else ("m16n8k32", "0x01010101")
    product = f"mma.sync.aligned.{shape}.row.col.{types} {{%r4, %r5, %r6, %r7}}, {{%r2, %r2, %r2, %r2}}, "
    body = "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; ld.param.u64 %rd0, [out]; mul.lo.u32 %r9, %r1, 1000;"
    body += "cvt.rn.f32.u32 %f0, %r9; mov.b32 %r9, %f0;" if real else ""
    body += f"mov.u32 %r2, {ones}; mov.u32 %r4, %r9; mov.u32 %r5, %r9; mov.u32 %r6, %r9; mov.u32 %r7, %r9;"
    body += f"{product}{{%r2, %r2}}, {{%r4, %r5, %r6, %r7}};" * 3
    body += "mad.lo.u32 %r0, %r1, 32, %r0; mad.wide.u32 %rd0, %r0, 4, %rd0; st.global.b32 [%rd0], %r6; ret;"
    out = np.zeros(96, np.float32 if real else np.int32)
    report = run(entry(body, ("u64 out",)), {"out": out}, ("out",), outputs=("out",), grid=3)
    depth = 16 if real else 32
    assert report.buffers["out"].tolist() == [
        1000 * block + 3 * depth for block in range(3) for _ in range(32)
    ]


def test_f16_accumulators_are_packed() -> None:
    shape, rng = SHAPES["m16n8k16 f16"], np.random.default_rng(4)
    a, b = rng.integers(-5, 6, (16, 16)), rng.integers(-5, 6, (16, 8))
    c = rng.integers(-50, 50, (16, 8))
    halves = [values.astype(np.float16).view(np.uint16) for values in (a, b, c)]
    registers = [
        pack(halves[0], shape.a, 8, 16),
        pack(halves[1], shape.b, 4, 16),
        pack(halves[2], c_map, 4, 16),
    ]
    _, d = multiply("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", *registers, results=2)
    found = unpack(d.view(np.uint16).reshape(32, 4), c_map, (16, 8)).view(np.float16)
    assert np.array_equal(found.astype(np.int64), a @ b + c)


@pytest.mark.parametrize("operation", ["xor", "and"])
def test_single_bit_mma_counts_bits(operation: str) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 2, (16, 256)), rng.integers(0, 2, (256, 8))

    def a_map(g: int, t: int, i: int) -> tuple[int, int]:
        return g + 8 * (32 <= i < 64 or i >= 96), 32 * t + (i & 31) + 128 * (i >= 64)

    def b_map(g: int, t: int, i: int) -> tuple[int, int]:
        return 32 * t + (i & 31) + 128 * (i >= 32), g

    registers = [pack(a, a_map, 128, 1), pack(b, b_map, 64, 1), np.zeros((32, 4), np.uint32)]
    _, d = multiply(
        f"mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.{operation}.popc", *registers, results=4
    )
    both = a[:, :, None] ^ b[None] if operation == "xor" else a[:, :, None] & b[None]
    assert np.array_equal(unpack(d, c_map, (16, 8)), both.sum(axis=1))
