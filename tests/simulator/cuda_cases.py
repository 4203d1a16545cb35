"""Kernels of `cuda/*.cu`: how each is launched, on what, and what NumPy says it must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator import Launch, Memset

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """One kernel. `expected` maps the inputs to outputs; `tolerance` is relative, 0 for bit equality."""

    source: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[str | int | float, ...]
    buffers: Callable[[np.random.Generator], Arrays]
    expected: Callable[[Arrays], Arrays]
    outputs: tuple[str, ...] = ("out",)
    shared_bytes: int = 0
    tolerance: float = 0.0
    memsets: tuple[Memset, ...] = ()

    @property
    def steps(self) -> list[Launch | Memset]:
        return [*self.memsets, Launch(self.entry, self.grid, self.block, self.shared_bytes, self.arguments)]

    @property
    def text(self) -> str:
        return (Path(__file__).parent / "cuda" / f"{self.source}.cu").read_text()


def _f32(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape).astype(np.float32)


def _i32(rng: np.random.Generator, *shape: int, low: int = -99, high: int = 100) -> NDArray[np.int32]:
    return rng.integers(low, high, shape, dtype=np.int32)


def _u32(rng: np.random.Generator, *shape: int) -> NDArray[np.uint32]:
    return rng.integers(0, 1 << 32, shape, dtype=np.uint32)


def _zeros(*shape: int, dtype: Any = np.int32) -> NDArray[Any]:
    return np.zeros(shape, dtype)


def _collatz(x: NDArray[np.uint32]) -> NDArray[np.int32]:
    def steps(value: int) -> int:
        count = 0
        while value != 1 and count < 1000:
            value = (3 * value + 1) & 0xFFFFFFFF if value & 1 else value // 2
            count += 1
        return count

    return np.array([steps(int(value)) for value in x], np.int32)


def _wide(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mask, rows = (1 << 64) - 1, []
    for x, y in zip(map(int, a), map(int, b), strict=True):
        total = ((x << 64 | y) + (y << 64 | x)) & ((1 << 128) - 1)
        rows.append([total & mask, total >> 64, x * y & mask, x * y >> 64, x // (y | 1), x % (y | 1)])
    return np.array(rows, np.uint64)


def _chains(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> NDArray[np.uint32]:
    rows = []
    for x, y in zip(a, b, strict=True):
        p, q = (int.from_bytes(value.tobytes(), "little") for value in (x, y))
        words = [((p + q) & ((1 << 128) - 1)), ((p - q) & ((1 << 128) - 1))]
        rows.append(np.frombuffer(b"".join(word.to_bytes(16, "little") for word in words), np.uint32))
    return np.array(rows)


def _half2(x: NDArray[np.float16], y: NDArray[np.float16], a: float) -> NDArray[np.float16]:
    wide = [np.float64(np.float16(a)) * x.astype(np.float64) + y.astype(np.float64), x.astype(np.float64) + y]
    return np.maximum(wide[0].astype(np.float16), wide[1].astype(np.float16))


def _bf16(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Round f32 bits to bf16, to nearest even."""
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def _bfloat16_mix(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    rounded = (_bf16(x.view(np.uint32)) << 16).astype(np.uint32).view(np.float32)
    return _bf16((rounded * np.float32(1.5)).view(np.uint32)).astype(np.uint16)


def _directed(exact: NDArray[np.float64], up: bool) -> NDArray[np.int32]:
    near = exact.astype(np.float32)
    wrong = near.astype(np.float64) < exact if up else near.astype(np.float64) > exact
    return np.where(wrong, np.nextafter(near, np.float32(np.inf if up else -np.inf)), near).view(np.int32)


def _conversions(x: NDArray[np.float32]) -> NDArray[np.int32]:
    d, tenth = x.astype(np.float64), np.float64(np.float32(0.1))
    columns = [
        function(d).clip(-(2**31), 2**31 - 1).astype(np.int32)
        for function in (np.rint, np.trunc, np.floor, np.ceil)
    ]
    columns.append(np.rint(d).clip(0, 2**32 - 1).astype(np.uint32).view(np.int32))
    columns.append(columns[1].astype(np.int8).astype(np.int32))
    columns += [_directed(d + tenth, False), _directed(d * tenth, True)]
    return np.stack(columns, 1)


def _functions(x: NDArray[np.float32]) -> NDArray[np.float64]:
    d = x.astype(np.float64)
    return np.stack(
        [np.exp(d), np.log(np.abs(d) + 0.125), np.sin(d), np.cos(d), np.abs(d) ** 1.5, np.tanh(d)], 1
    )


def _machine(x: NDArray[np.uint8]) -> NDArray[np.uint32]:
    mask, results = 0xFFFFFFFF, []
    for row in x:
        v = 1
        for code in row % 9:
            joined = (0x12345678 << 32 | v).to_bytes(8, "little")
            v = [
                v + 3,
                v * 5,
                v ^ 0x5A5A,
                int(f"{v:032b}"[::-1], 2),
                v - 77,
                v << 3 | v >> 29,
                v.bit_count() + v,
                int.from_bytes(bytes(joined[n] for n in (6, 2, 1, 5)), "little"),
                ~v,
            ][code] & mask
        results.append(v)
    return np.array(results, np.uint32)


def _stencil(x: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.convolve(x.astype(np.float64), [0.0625, 0.25, 0.375, 0.25, 0.0625], "same")


def _reversed_digits(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return np.array([int(str(int(value))[::-1]) & 0xFFFFFFFF for value in x], np.uint32)


def _softmax(x: NDArray[np.float32]) -> NDArray[np.float64]:
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _layernorm(x: NDArray[np.float32]) -> NDArray[np.float64]:
    d = x.astype(np.float64)
    return (d - d.mean(1, keepdims=True)) / np.sqrt(d.var(1, keepdims=True) + 1e-5)


def _groups(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    rows = np.zeros((4, len(x)), np.uint32)
    for warp in range(0, len(x), 32):
        values = x[warp : warp + 32]
        for lane, value in enumerate(values):
            same = np.nonzero(values == value)[0]
            rows[0, warp + lane] = sum(1 << int(other) for other in same)
            rows[2, warp + lane] = warp + same.max()
        rows[1, warp : warp + 32] = values.sum(dtype=np.uint32)
    rows[3] = np.uint32(0)  # all lanes agree: the whole mask, plus one
    return rows.ravel()


def _bitreduce(x: NDArray[np.int32]) -> NDArray[np.int32]:
    out = np.array([x.sum(), min(x.min(), 0), max(x.max(), 0), 0, 0, 0, len(x) % 10, -x.sum()], np.int32)
    out[4], out[5] = np.bitwise_or.reduce(x), np.bitwise_xor.reduce(x)
    return out


CASES: tuple[Case, ...] = (
    Case(
        "elementwise",
        "saxpy",
        (3, 1, 1),
        (64, 1, 1),
        ("x", "y", "out", 1.5, 1000),
        lambda rng: {"x": _f32(rng, 1000), "y": _f32(rng, 1000), "out": _zeros(1000, dtype=np.float32)},
        lambda b: {"out": 1.5 * b["x"].astype(np.float64) + b["y"]},
        tolerance=2e-7,
    ),
    Case(
        "elementwise",
        "collatz",
        (2, 1, 1),
        (64, 1, 1),
        ("x", "out", 100),
        lambda rng: {"x": rng.integers(1, 5000, 100, dtype=np.uint32), "out": _zeros(100)},
        lambda b: {"out": _collatz(b["x"])},
    ),
    Case(
        "elementwise",
        "order_pairs",
        (2, 1, 1),
        (32, 1, 1),
        ("x", "out", 50),
        lambda rng: {"x": rng.integers(-(2**62), 2**62, (50, 2)), "out": _zeros(50, 2, dtype=np.int64)},
        lambda b: {"out": np.sort(b["x"], axis=1)},
    ),
    Case(
        "elementwise",
        "local_digits",
        (2, 1, 1),
        (64, 1, 1),
        ("x", "out", 100),
        lambda rng: {"x": _u32(rng, 100), "out": _zeros(100, dtype=np.uint32)},
        lambda b: {"out": _reversed_digits(b["x"])},
    ),
    Case(
        "elementwise",
        "wide_integers",
        (2, 1, 1),
        (32, 1, 1),
        ("a", "b", "out", 40),
        lambda rng: {
            "a": rng.integers(0, 2**64, 40, dtype=np.uint64),
            "b": rng.integers(0, 2**40, 40, dtype=np.uint64),
            "out": _zeros(40, 6, dtype=np.uint64),
        },
        lambda b: {"out": _wide(b["a"], b["b"])},
    ),
    Case(
        "elementwise",
        "carry_chain",
        (2, 1, 1),
        (32, 1, 1),
        ("a", "b", "out", 40),
        lambda rng: {"a": _u32(rng, 40, 4), "b": _u32(rng, 40, 4), "out": _zeros(40, 8, dtype=np.uint32)},
        lambda b: {"out": _chains(b["a"], b["b"])},
    ),
    Case(
        "elementwise",
        "polynomial_f64",
        (2, 1, 1),
        (64, 1, 1),
        ("x", "out", 90),
        lambda rng: {"x": rng.standard_normal(90), "out": _zeros(90, dtype=np.float64)},
        lambda b: {"out": np.sqrt((b["x"] * 0.25 + 1.5) * b["x"] + 4.0) / (b["x"] ** 2 + 1.0)},
        tolerance=1e-14,
    ),
    Case(
        "elementwise",
        "half2_axpy",
        (1, 1, 1),
        (64, 1, 1),
        ("x", "y", "out", 0.75, 50),
        lambda rng: {
            "x": _f32(rng, 100).astype(np.float16),
            "y": _f32(rng, 100).astype(np.float16),
            "out": _zeros(100, dtype=np.float16),
        },
        lambda b: {"out": _half2(b["x"], b["y"], 0.75)},
    ),
    Case(
        "elementwise",
        "bfloat16_mix",
        (1, 1, 1),
        (128, 1, 1),
        ("x", "out", 100),
        lambda rng: {"x": _f32(rng, 100), "out": _zeros(100, dtype=np.uint16)},
        lambda b: {"out": _bfloat16_mix(b["x"])},
    ),
    Case(
        "elementwise",
        "conversions",
        (2, 1, 1),
        (64, 1, 1),
        ("x", "out", 100),
        lambda rng: {"x": (_f32(rng, 100) * np.float32(100)), "out": _zeros(100, 8)},
        lambda b: {"out": _conversions(b["x"])},
    ),
    Case(
        "elementwise",
        "special_functions",
        (2, 1, 1),
        (64, 1, 1),
        ("x", "out", 100),
        lambda rng: {"x": (_f32(rng, 100) * np.float32(3)), "out": _zeros(100, 6, dtype=np.float32)},
        lambda b: {"out": _functions(b["x"])},
        tolerance=3e-6,
    ),
    Case(
        "elementwise",
        "state_machine",
        (2, 1, 1),
        (32, 1, 1),
        ("x", "out", 50, 20),
        lambda rng: {"x": rng.integers(0, 256, (50, 20), dtype=np.uint8), "out": _zeros(50, dtype=np.uint32)},
        lambda b: {"out": _machine(b["x"])},
    ),
    Case(
        "elementwise",
        "stencil_constant",
        (2, 1, 1),
        (64, 1, 1),
        ("x", "out", 100),
        lambda rng: {"x": _f32(rng, 100), "out": _zeros(100, dtype=np.float32)},
        lambda b: {"out": _stencil(b["x"])},
        tolerance=1e-6,
    ),
    Case(
        "blocks",
        "reduce_tree",
        (3, 1, 1),
        (256, 1, 1),
        ("x", "out", 2000),
        lambda rng: {"x": _i32(rng, 2000).astype(np.float32), "out": _zeros(3, dtype=np.float32)},
        lambda b: {
            "out": np.array([np.pad(b["x"], (0, 304)).reshape(3, 3, 256)[:, k].sum() for k in range(3)])
        },
    ),
    Case(
        "blocks",
        "reduce_warps",
        (1, 1, 1),
        (256, 1, 1),
        ("x", "out", 1000),
        lambda rng: {"x": _i32(rng, 1000), "out": _zeros(1)},
        lambda b: {"out": b["x"].sum(keepdims=True)},
    ),
    Case(
        "blocks",
        "scan_shared",
        (1, 1, 1),
        (128, 1, 1),
        ("x", "out", 100),
        lambda rng: {"x": _i32(rng, 100), "out": _zeros(100)},
        lambda b: {"out": np.cumsum(b["x"])},
        shared_bytes=1024,
    ),
    Case(
        "blocks",
        "scan_warps",
        (1, 1, 1),
        (96, 1, 1),
        ("x", "out"),
        lambda rng: {"x": _i32(rng, 96), "out": _zeros(96)},
        lambda b: {"out": np.cumsum(b["x"].reshape(3, 32), axis=1).ravel()},
    ),
    Case(
        "blocks",
        "transpose",
        (2, 3, 1),
        (32, 8, 1),
        ("x", "out", 75, 50),
        lambda rng: {"x": _f32(rng, 75, 50), "out": _zeros(50, 75, dtype=np.float32)},
        lambda b: {"out": b["x"].T},
    ),
    Case(
        "blocks",
        "matmul_tiled",
        (2, 3, 1),
        (16, 16, 1),
        ("a", "b", "out", 40, 30, 50),
        lambda rng: {"a": _f32(rng, 40, 50), "b": _f32(rng, 50, 30), "out": _zeros(40, 30, dtype=np.float32)},
        lambda b: {"out": b["a"].astype(np.float64) @ b["b"]},
        tolerance=1e-5,
    ),
    Case(
        "blocks",
        "histogram",
        (3, 1, 1),
        (128, 1, 1),
        ("x", "out", 5000),
        lambda rng: {
            "x": rng.integers(0, 256, 5000, dtype=np.uint8) // 3,
            "out": _zeros(256, dtype=np.uint32),
        },
        lambda b: {"out": np.bincount(b["x"], minlength=256)},
        memsets=(Memset("out", 0),),
    ),
    Case(
        "blocks",
        "softmax_rows",
        (4, 1, 1),
        (256, 1, 1),
        ("x", "out", 700),
        lambda rng: {"x": _f32(rng, 4, 700), "out": _zeros(4, 700, dtype=np.float32)},
        lambda b: {"out": _softmax(b["x"])},
        tolerance=4e-6,
    ),
    Case(
        "blocks",
        "layernorm_warp",
        (3, 1, 1),
        (32, 4, 1),
        ("x", "out", 200),
        lambda rng: {"x": _f32(rng, 12, 200), "out": _zeros(12, 200, dtype=np.float32)},
        lambda b: {"out": _layernorm(b["x"])},
        tolerance=1e-5,
    ),
    Case(
        "blocks",
        "group_by_value",
        (1, 1, 1),
        (64, 1, 1),
        ("x", "out"),
        lambda rng: {"x": rng.integers(0, 6, 64, dtype=np.uint32), "out": _zeros(256, dtype=np.uint32)},
        lambda b: {"out": _groups(b["x"])},
    ),
    Case(
        "blocks",
        "count_votes",
        (1, 1, 1),
        (96, 1, 1),
        ("x", "out"),
        lambda rng: {"x": _i32(rng, 96), "out": _zeros(96)},
        lambda b: {
            "out": np.full(96, (b["x"] > 0).sum() * 4 + 2 * (b["x"] > -100).all() + (b["x"] > 90).any())
        },
    ),
    Case(
        "blocks",
        "bitonic_sort",
        (1, 1, 1),
        (256, 1, 1),
        ("x",),
        lambda rng: {"x": _u32(rng, 512)},
        lambda b: {"x": np.sort(b["x"])},
        outputs=(),
    ),
    Case(
        "blocks",
        "producer_consumer",
        (2, 1, 1),
        (128, 1, 1),
        ("x", "out", 5),
        lambda rng: {"x": _i32(rng, 5, 64), "out": _zeros(64)},
        lambda b: {"out": b["x"].sum(axis=0)[np.arange(64) ^ 33]},
    ),
    Case(
        "blocks",
        "warp_exchange",
        (1, 1, 1),
        (128, 1, 1),
        ("x", "out"),
        lambda rng: {"x": _i32(rng, 128), "out": _zeros(128)},
        lambda b: {"out": b["x"].reshape(4, 32)[:, (31 - np.arange(32)) ^ 5].ravel()},
    ),
    Case(
        "blocks",
        "odd_block",
        (2, 1, 1),
        (75, 1, 1),
        ("x", "out", 70),
        lambda rng: {"x": _i32(rng, 70), "out": _zeros(70)},
        lambda b: {"out": np.pad(b["x"], (0, 5))[74 - np.arange(70)] + np.where(np.arange(70) < 64, 32, 6)},
    ),
    Case(
        "grids",
        "reduce_last_block",
        (6, 1, 1),
        (256, 1, 1),
        ("x", "partial", "out", 4000),
        lambda rng: {"x": _i32(rng, 4000), "partial": _zeros(6), "out": _zeros(1)},
        lambda b: {"out": b["x"].sum(keepdims=True)},
        outputs=("partial", "out"),
    ),
    Case(
        "grids",
        "grid_barrier",
        (40, 1, 1),
        (64, 1, 1),
        ("data", "arrived", "out"),
        lambda rng: {"data": _zeros(2560), "arrived": _zeros(1), "out": _zeros(2560)},
        lambda b: {"out": 3 * ((np.arange(2560) + 64) % 2560)},
        outputs=("data", "arrived", "out"),
        memsets=(Memset("arrived", 0),),
    ),
    Case(
        "grids",
        "spin_lock",
        (20, 1, 1),
        (32, 1, 1),
        ("lock", "total", "trace"),
        lambda rng: {"lock": _zeros(1), "total": _zeros(1), "trace": _zeros(20)},
        lambda b: {"lock": _zeros(1), "total": np.array([210])},
        outputs=("trace",),
    ),
    Case(
        "grids",
        "add_double",
        (2, 1, 1),
        (64, 1, 1),
        ("x", "out", 100),
        lambda rng: {"x": _i32(rng, 100).astype(np.float64), "out": _zeros(1, dtype=np.float64)},
        lambda b: {"out": b["x"].sum(keepdims=True)},
        outputs=(),
        memsets=(Memset("out", 0),),
    ),
    Case(
        "grids",
        "atomic_kinds",
        (3, 1, 1),
        (64, 1, 1),
        ("x", "out", 190),
        lambda rng: {"x": _i32(rng, 190), "out": _zeros(8)},
        lambda b: {"out": _bitreduce(b["x"])},
        memsets=(Memset("out", 0),),
    ),
    Case(
        "grids",
        "work_queue",
        (4, 1, 1),
        (32, 1, 1),
        ("x", "next", "out", 30),
        lambda rng: {"x": _i32(rng, 30), "next": _zeros(1), "out": _zeros(30, 32)},
        lambda b: {"out": b["x"][:, None] * np.arange(32)},
        outputs=("next", "out"),
        memsets=(Memset("next", 0),),
    ),
    Case(
        "matrices",
        "wmma_f16",
        (2, 3, 1),
        (32, 1, 1),
        ("a", "b", "out", 48, 32, 64),
        lambda rng: {
            "a": _f32(rng, 48, 64).astype(np.float16),
            "b": _f32(rng, 32, 64).astype(np.float16),
            "out": _zeros(48, 32, dtype=np.float32),
        },
        lambda b: {"out": 2 * b["a"].astype(np.float64) @ b["b"].astype(np.float64).T},
        tolerance=2e-5,
    ),
    Case(
        "matrices",
        "wmma_s8",
        (2, 3, 1),
        (32, 1, 1),
        ("a", "b", "out", 32, 64),
        lambda rng: {
            "a": rng.integers(-128, 128, (48, 64), dtype=np.int8),
            "b": rng.integers(-128, 128, (64, 32), dtype=np.int8),
            "out": _zeros(48, 32),
        },
        lambda b: {"out": b["a"].astype(np.int32) @ b["b"].astype(np.int32)},
    ),
    Case(
        "matrices",
        "mma_f16",
        (1, 1, 1),
        (32, 1, 1),
        ("a", "b", "out", 48),
        lambda rng: {
            "a": _f32(rng, 16, 48).astype(np.float16),
            "b": _f32(rng, 8, 48).astype(np.float16),
            "out": _zeros(16, 8, dtype=np.float32),
        },
        lambda b: {"out": b["a"].astype(np.float64) @ b["b"].astype(np.float64).T},
        tolerance=2e-5,
    ),
    Case(
        "matrices",
        "pipeline_sum",
        (1, 1, 1),
        (64, 1, 1),
        ("x", "out", 9),
        lambda rng: {"x": _i32(rng, 9, 64, 4).astype(np.float32), "out": _zeros(64, 4, dtype=np.float32)},
        lambda b: {"out": b["x"].sum(axis=0)[(np.arange(64) + 1) % 64]},
    ),
    Case(
        "matrices",
        "mbarrier_handover",
        (2, 1, 1),
        (64, 1, 1),
        ("x", "out"),
        lambda rng: {"x": _i32(rng, 32), "out": _zeros(32)},
        lambda b: {"out": 2 * b["x"][::-1]},
    ),
    Case(
        "matrices",
        "dot_bytes",
        (2, 1, 1),
        (64, 1, 1),
        ("a", "b", "out", 100),
        lambda rng: {
            "a": _u32(rng, 100).view(np.int32),
            "b": _u32(rng, 100).view(np.int32),
            "out": _zeros(100),
        },
        lambda b: {
            "out": (
                b["a"].view(np.int8).reshape(-1, 4).astype(np.int32) * b["b"].view(np.int8).reshape(-1, 4)
            ).sum(1)
            + np.stack([b["a"].view(np.uint8).reshape(-1, 4), b["b"].view(np.uint8).reshape(-1, 4)], 1)
            .reshape(-1, 8)[:, [7, 0, 6, 2]]
            .copy()
            .view(np.int32)
            .ravel()
        },
    ),
)
