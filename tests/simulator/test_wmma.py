"""wmma against plain matrix products, of fragments whose layout no kernel may know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ptx_harness import entry, run


def wmma_body(a_layout: str, b_layout: str, used: str, middle: str = "") -> str:
    a, b = (", ".join(f"%r{first + i}" for i in range(8)) for first in (10, 20))
    c, d = (", ".join(f"%f{first + i}" for i in range(8)) for first in (0, 8))
    return f"""ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b]; ld.param.u64 %rd2, [c];
    ld.param.u64 %rd3, [out];
wmma.load.a.sync.aligned.{a_layout}.m16n16k16.global.f16 {{{a}}}, [%rd0], 16;
wmma.load.b.sync.aligned.{b_layout}.m16n16k16.global.f16 {{{b}}}, [%rd1], 16;
wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {{{c}}}, [%rd2], 16;
{middle}
wmma.mma.sync.aligned.{used}.m16n16k16.f32.f32 {{{d}}}, {{{a}}}, {{{b}}}, {{{c}}};
wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd3], {{{d}}}, 16; ret;"""


def run_wmma(body: str) -> tuple[NDArray[Any], ...]:
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-4, 5, (16, 16)).astype(np.float16) for _ in range(2))
    c = rng.integers(-9, 10, (16, 16)).astype(np.float32)
    report = run(
        entry(body, ("u64 a", "u64 b", "u64 c", "u64 out")),
        {"a": a, "b": b, "c": c, "out": np.zeros_like(c)},
        ("a", "b", "c", "out"),
        outputs=("out",),
    )
    assert report.clean
    return a.astype(np.float64), b.astype(np.float64), c, report.buffers["out"]


@pytest.mark.parametrize("a_layout", ["row", "col"])
@pytest.mark.parametrize("b_layout", ["row", "col"])
def test_wmma_multiplies_in_every_layout(a_layout: str, b_layout: str) -> None:
    a, b, c, out = run_wmma(wmma_body(a_layout, b_layout, f"{a_layout}.{b_layout}"))
    expected = (a if a_layout == "row" else a.T) @ (b if b_layout == "row" else b.T) + c
    assert np.array_equal(out, expected)


def test_wmma_fragments_treated_alike_in_all_elements_are_fine() -> None:
    middle = "".join(f"add.f32 %f{i}, %f{i}, %f{i};" for i in range(8))
    a, b, c, out = run_wmma(wmma_body("row", "row", "row.row", middle))
    assert np.array_equal(out, a @ b + 2 * c)


@pytest.mark.parametrize(
    ("shape", "m", "n", "registers"),
    [("m16n16k16", 16, 16, (2, 2)), ("m32n8k16", 32, 8, (4, 1)), ("m8n32k16", 8, 32, (1, 4))],
)
def test_integer_wmma(shape: str, m: int, n: int, registers: tuple[int, int]) -> None:
    a, b = (
        ", ".join(f"%r{first + i}" for i in range(count))
        for first, count in zip((10, 20), registers, strict=True)
    )
    c = ", ".join(f"%r{30 + i}" for i in range(8))
    zero = "".join(f"mov.u32 %r{30 + i}, 0;" for i in range(8))
    body = f"""ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b]; ld.param.u64 %rd3, [c]; {zero}
wmma.load.a.sync.aligned.row.{shape}.global.s8 {{{a}}}, [%rd0], 16;
wmma.load.b.sync.aligned.col.{shape}.global.s8 {{{b}}}, [%rd1], 16;
wmma.mma.sync.aligned.row.col.{shape}.s32.s8.s8.s32 {{{c}}}, {{{a}}}, {{{b}}}, {{{c}}};
wmma.store.d.sync.aligned.row.{shape}.global.s32 [%rd3], {{{c}}}, {n}; ret;"""
    rng = np.random.default_rng(7)
    x, y = rng.integers(-128, 128, (m, 16), dtype=np.int8), rng.integers(-128, 128, (n, 16), dtype=np.int8)
    report = run(
        entry(body, ("u64 a", "u64 b", "u64 c")),
        {"a": x, "b": y, "c": np.zeros((m, n), np.int32)},
        ("a", "b", "c"),
    )
    assert report.clean
    assert np.array_equal(report.buffers["c"], x.astype(np.int32) @ y.astype(np.int32).T)
