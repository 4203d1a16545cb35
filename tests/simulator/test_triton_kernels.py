"""PTX that Triton wrote for sm_80 and sm_90 (mma, wgmma, cp.async) runs right, and raises no alarm."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tuner.simulator import Launch, Memset, TensorMap, parse, simulate

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Triton's own, on import
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    pytest.importorskip("triton")
    import triton_kernels as kernels

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """A kernel: types of its parameters, constants, grid, scalar arguments, data and expected result."""

    name: str
    signature: dict[str, str]
    constants: dict[str, int]
    grid: tuple[int, int, int]
    scalars: dict[str, int | float]
    inputs: Callable[[np.random.Generator], Arrays]
    expected: Callable[[Arrays], NDArray[Any]]
    tolerance: float = 0.0


def _f32(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape).astype(np.float32)


def _softmax(x: NDArray[Any]) -> NDArray[np.float64]:
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _layernorm(b: Arrays) -> NDArray[np.float64]:
    x = b["x"].astype(np.float64)
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * b["w"]


def _functions(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x / (1 + np.exp(-1.5 * x)) + np.sin(x) + np.log(np.abs(x) + 1)


def _attention(b: Arrays) -> NDArray[np.float64]:
    q, k, v = (b[name].astype(np.float64) for name in "qkv")
    return _softmax(q @ k.T * 0.125) @ v


CASES = (
    Case(
        "add",
        {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"},
        {"SIZE": 256},
        (4, 1, 1),
        {"n": 1000},
        lambda rng: {"x": _f32(rng, 1000), "y": _f32(rng, 1000), "out": np.zeros(1000, np.float32)},
        lambda b: b["x"] + b["y"],
    ),
    Case(
        "softmax",
        {"x": "*fp32", "out": "*fp32", "n": "i32"},
        {"SIZE": 512},
        (3, 1, 1),
        {"n": 400},
        lambda rng: {"x": _f32(rng, 3, 400), "out": np.zeros((3, 400), np.float32)},
        lambda b: _softmax(b["x"]),
        1e-6,
    ),
    Case(
        "matmul",
        {"a": "*fp16", "b": "*fp16", "out": "*fp32", "m": "i32", "n": "i32", "k": "i32"},
        {"TILE_M": 64, "TILE_N": 64, "TILE_K": 32},
        (2, 3, 1),
        {"m": 112, "n": 176, "k": 272},
        lambda rng: {
            "a": _f32(rng, 112, 272).astype(np.float16),
            "b": _f32(rng, 272, 176).astype(np.float16),
            "out": np.zeros((112, 176), np.float32),
        },
        lambda b: b["a"].astype(np.float64) @ b["b"].astype(np.float64),
        1e-4,
    ),
    Case(
        "matmul_s8",
        {"a": "*i8", "b": "*i8", "out": "*i32", "n": "i32", "k": "i32"},
        {"TILE": 64},
        (2, 3, 1),
        {"n": 192, "k": 576},
        lambda rng: {
            "a": rng.integers(-128, 128, (128, 576), dtype=np.int8),
            "b": rng.integers(-128, 128, (192, 576), dtype=np.int8),
            "out": np.zeros((128, 192), np.int32),
        },
        lambda b: b["a"].astype(np.int64) @ b["b"].astype(np.int64).T,
    ),
    Case(
        "layernorm",
        {"x": "*fp32", "w": "*fp32", "out": "*fp32", "n": "i32", "eps": "fp32"},
        {"SIZE": 512},
        (3, 1, 1),
        {"n": 400, "eps": 1e-5},
        lambda rng: {"x": _f32(rng, 3, 400), "w": _f32(rng, 400), "out": np.zeros((3, 400), np.float32)},
        _layernorm,
        1e-5,
    ),
    Case(
        "running_sum",
        {"x": "*i32", "out": "*i32"},
        {"SIZE": 512},
        (1, 1, 1),
        {},
        lambda rng: {"x": rng.integers(-9, 9, 512, dtype=np.int32), "out": np.zeros(512, np.int32)},
        lambda b: np.cumsum(b["x"]),
    ),
    Case(
        "sort",
        {"x": "*i32", "out": "*i32"},
        {"SIZE": 256},
        (1, 1, 1),
        {},
        lambda rng: {"x": rng.integers(-999, 999, 256, dtype=np.int32), "out": np.zeros(256, np.int32)},
        lambda b: np.sort(b["x"]),
    ),
    Case(
        "transpose",
        {"x": "*fp32", "out": "*fp32", "m": "i32", "n": "i32"},
        {"TILE": 32},
        (2, 3, 1),
        {"m": 64, "n": 96},
        lambda rng: {"x": _f32(rng, 64, 96), "out": np.zeros((96, 64), np.float32)},
        lambda b: b["x"].T,
    ),
    Case(
        "count",
        {"x": "*i32", "out": "*i32", "n": "i32"},
        {"SIZE": 256},
        (4, 1, 1),
        {"n": 1000},
        lambda rng: {"x": rng.integers(0, 50, 1000, dtype=np.int32), "out": np.zeros(50, np.int32)},
        lambda b: np.bincount(b["x"], minlength=50),
    ),
    Case(
        "argmax",
        {"x": "*fp32", "out": "*i32", "n": "i32"},
        {"SIZE": 512},
        (3, 1, 1),
        {"n": 400},
        lambda rng: {"x": _f32(rng, 3, 400), "out": np.zeros(3, np.int32)},
        lambda b: b["x"].argmax(1),
    ),
    Case(
        "functions",
        {"x": "*fp32", "out": "*fp32", "n": "i32"},
        {"SIZE": 256},
        (4, 1, 1),
        {"n": 1000},
        lambda rng: {"x": _f32(rng, 1000), "out": np.zeros(1000, np.float32)},
        lambda b: _functions(b["x"].astype(np.float64)),
        4e-6,
    ),
    Case(
        "attention",
        {"q": "*fp16", "k": "*fp16", "v": "*fp16", "out": "*fp32", "n": "i32"},
        {"SIZE": 64, "TILE": 64},
        (2, 1, 1),
        {"n": 192},
        lambda rng: {
            **{
                name: _f32(rng, rows, 64).astype(np.float16)
                for name, rows in (("q", 128), ("k", 192), ("v", 192))
            },
            "out": np.zeros((128, 64), np.float32),
        },
        _attention,
        2e-3,
    ),
)


def _compiled(case: Case, capability: int) -> tuple[str, int, int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = getattr(kernels, case.name)
        return kernels.compile_triton(function, case.signature, case.constants, capability)


def _steps(case: Case, text: str, shared_bytes: int, threads: int) -> list[Launch | Memset]:
    """Return the plan; parameters that the source does not have are scratch pointers, which are not used."""
    (entry,) = (function for function in parse(text).functions.values() if function.is_entry)
    named: list[str | int | float] = [case.scalars.get(name, name) for name in case.signature]
    named += ["scratch"] * (len(entry.parameters) - len(named))
    return [Memset("out", 0), Launch(entry.name, case.grid, (threads, 1, 1), shared_bytes, tuple(named))]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernel_of_triton_is_right_and_clean(case: Case, capability: int) -> None:
    text, shared_bytes, threads = _compiled(case, capability)
    buffers = case.inputs(np.random.default_rng(1))
    steps = _steps(case, text, shared_bytes, threads)
    report = simulate(text, steps, {**buffers, "scratch": np.zeros(64, np.uint8)}, outputs=("out",))
    assert [str(fault) for fault in report.faults] == []
    expected, actual = case.expected(buffers), report.buffers["out"]
    if case.tolerance:
        scale = np.maximum(np.abs(expected), 1.0)
        assert np.all(np.abs(actual.astype(np.float64) - expected) <= case.tolerance * scale)
    else:
        assert np.array_equal(actual, expected)


@pytest.mark.parametrize(
    ("name", "capability"), [("matmul", 80), ("matmul", 90), ("matmul_s8", 90), ("sort", 80)]
)
def test_synchronisation_taken_out_of_a_triton_kernel_is_found(name: str, capability: int) -> None:
    (case,) = (case for case in CASES if case.name == name)
    text, shared_bytes, threads = _compiled(case, capability)
    buffers = {**case.inputs(np.random.default_rng(1)), "scratch": np.zeros(64, np.uint8)}
    steps = _steps(case, text, shared_bytes, threads)
    right = simulate(text, steps, buffers, outputs=("out",)).buffers["out"]
    lines = text.splitlines()
    found: dict[str, int] = {}
    for number, line in enumerate(lines):
        opcode = line.strip().split()[0] if line.strip() else ""
        if opcode.startswith(("bar.sync", "cp.async.wait", "wgmma.wait")):
            mutant = "\n".join([*lines[:number], "", *lines[number + 1 :]])
            report = simulate(mutant, steps, buffers, outputs=("out",))
            noticed = bool(report.faults) or not np.array_equal(report.buffers["out"], right)
            found[opcode] = found.get(opcode, 0) + noticed
    # Triton leaves a few that others make redundant (a second wait, a barrier of a ring of three stages)
    assert found
    assert all(found.values()), found


SWIZZLES = (0, 32, 64, 128)


@pytest.mark.parametrize("plant", ["", "expects too few bytes", "does not wait", "has no proxy fence"])
def test_tensor_descriptors_of_triton_become_tensor_copies(plant: str) -> None:
    shapes = {"a": (100, 200), "b": (96, 200), "c": (100, 96)}
    kinds = {name: f"tensordesc<{'fp32' if name == 'c' else 'fp16'}[64,64]>" for name in shapes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        binary = kernels.compiled(kernels.matmul_described, {**kinds, "k": "i32"}, {"TILE": 64}, 90)
    rng = np.random.default_rng(1)
    arrays: Arrays = {
        name: rng.integers(-4, 5, shape).astype(np.float32 if name == "c" else np.float16)
        for name, shape in shapes.items()
    }
    arguments: list[Any] = []
    for (name, array), meta in zip(arrays.items(), binary.metadata.tensordesc_meta, strict=True):
        box, swizzle = tuple(meta["block_size"][::-1]), SWIZZLES[meta["swizzle"]]
        sizes = [int(size) for size in (*array.shape, array.shape[1], 1)]
        arguments += [TensorMap.of(name, array, box, swizzle=swizzle), *sizes]
    arguments += [200, "scratch", "scratch"]
    text = binary.asm["ptx"]
    if plant == "expects too few bytes":
        assert ", 16384;" in text
        text = text.replace(", 16384;", ", 8192;")
    elif plant == "does not wait":
        text = text.replace("@!complete bra.uni waitLoop;", "")
    elif plant:
        assert "fence.proxy.async.shared::cta;" in text
        text = text.replace("fence.proxy.async.shared::cta;", "")
    threads = 32 * binary.metadata.num_warps
    launch = Launch("matmul_described", (2, 2, 1), (threads, 1, 1), binary.metadata.shared, tuple(arguments))
    report = simulate(text, [launch], {**arrays, "scratch": np.zeros(64, np.uint8)}, outputs=("c",))
    if plant:
        assert "race" in [fault.kind for fault in report.faults]
        return
    assert [str(fault) for fault in report.faults] == []
    assert np.array_equal(report.buffers["c"], arrays["a"].astype(float) @ arrays["b"].astype(float).T)
