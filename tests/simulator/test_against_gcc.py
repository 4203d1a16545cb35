"""Integer instructions and conversions against the same in C, compiled by gcc at -O0 and -O2, on thousands of
values.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ptx_harness import edge_floats, edge_integers, evaluate

GCC = shutil.which("gcc")
SOURCE = Path(__file__).with_name("against_gcc.c")
COUNT = 4096
NUMPY = {
    **{f"u{bits}": f"uint{bits}" for bits in (16, 32, 64)},
    **{f"s{bits}": f"int{bits}" for bits in (16, 32, 64)},
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
}

pytestmark = pytest.mark.skipif(GCC is None, reason="gcc is not installed")


@dataclass(frozen=True)
class Case:
    """A C function, the PTX that does the same with %a, %b, %c to %d, types of result and operands."""

    name: str
    ptx: str
    result: str
    operand: str
    nonzero: bool = False


def _cases() -> list[Case]:
    cases = []
    for kind in ("u16", "s16", "u32", "s32", "u64", "s64"):
        for opcode in ("add", "sub", "mul.lo", "mul.hi", "min", "max", "div", "rem"):
            name = f"{opcode.replace('.', '_')}_{kind}"
            cases.append(Case(name, f"{opcode}.{kind} %d, %a, %b;", kind, kind, opcode in ("div", "rem")))
        cases.append(Case(f"mad_lo_{kind}", f"mad.lo.{kind} %d, %a, %b, %c;", kind, kind))
    for kind, wide in (("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")):
        cases.append(Case(f"mul_wide_{kind}", f"mul.wide.{kind} %d, %a, %b;", wide, kind))
    cases += [Case(f"abs_{kind}", f"abs.{kind} %d, %a;", kind, kind) for kind in ("s16", "s32", "s64")]
    for opcode, kind in (("shl", "u32"), ("shr", "u32"), ("shr", "s32")):
        typed = f"b{kind[1:]}" if opcode == "shl" else kind
        cases.append(Case(f"{opcode}_{kind}", f"{opcode}.{typed} %d, %a, %b;", kind, kind))
    for opcode, kind in (("shl", "u64"), ("shr", "u64"), ("shr", "s64")):
        typed = "b64" if opcode == "shl" else kind
        text = f"{{ .reg .b32 n; cvt.u32.u64 n, %b; {opcode}.{typed} %d, %a, n; }}"
        cases.append(Case(f"{opcode}_{kind}", text, kind, kind))
    for side in "lr":
        for mode in ("clamp", "wrap"):
            cases.append(Case(f"shf_{side}_{mode}", f"shf.{side}.{mode}.b32 %d, %a, %b, %c;", "u32", "u32"))
    for opcode in ("popc", "clz"):
        cases += [Case(f"{opcode}_u{n}", f"{opcode}.b{n} %d, %a;", "u32", f"u{n}") for n in (32, 64)]
    cases.append(Case("brev_u32", "brev.b32 %d, %a;", "u32", "u32"))
    cases += [Case(f"bfe_{kind}", f"bfe.{kind} %d, %a, %b, %c;", "u32", "u32") for kind in ("u32", "s32")]
    cases.append(Case("prmt", "prmt.b32 %d, %a, %b, %c;", "u32", "u32"))
    for source, results in (
        ("f32", ("s16", "u16", "s32", "u32", "s64", "u64")),
        ("f64", ("s32", "u32", "s64", "u64")),
    ):
        for result in results:
            for mode in ("rzi", "rni", "rmi", "rpi"):
                text = f"cvt.{mode}.{result}.{source} %d, %a;"
                cases.append(Case(f"{mode}_{result}_{source}", text, result, source))
    for pair in ("f32 s32", "f32 u32", "f32 s64", "f32 u64", "f64 s64", "f64 u64", "f32 f64", "f16 f32",
                 "f16 f64", "f16 s32"):  # fmt: skip
        result, source = pair.split()
        text = f"cvt.rn.{result}.{source} %d, %a;"
        cases.append(Case(f"rn_{result}_{source}", text, result, source))
    cases += [
        Case("f64_f32", "cvt.f64.f32 %d, %a;", "f64", "f32"),
        Case("f32_f16", "cvt.f32.f16 %d, %a;", "f32", "f16"),
        Case("u8_u32", "cvt.u8.u32 %d, %a;", "u32", "u32"),
        Case("s8_s32", "cvt.s8.s32 %d, %a;", "s32", "s32"),
        Case("s64_s32", "cvt.s64.s32 %d, %a;", "s64", "s32"),
        Case("sat_s8_s32", "cvt.sat.s8.s32 %d, %a;", "s32", "s32"),
        Case("sat_u8_s32", "cvt.sat.u8.s32 %d, %a;", "s32", "s32"),
        Case("sat_s16_s32", "{ .reg .b16 h; cvt.sat.s16.s32 h, %a; cvt.s32.s16 %d, h; }", "s32", "s32"),
    ]
    return cases


@pytest.fixture(scope="module", params=["-O0", "-O2"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    assert GCC is not None
    built = tmp_path_factory.mktemp("gcc") / f"against{request.param}.so"
    command = [GCC, request.param, "-std=gnu11", "-fwrapv", "-fPIC", "-shared", "-ffp-contract=off"]
    subprocess.run([*command, str(SOURCE), "-o", str(built), "-lm"], check=True, timeout=120)
    return ctypes.CDLL(str(built))


def _operands(kind: str) -> list[NDArray[Any]]:
    """Three arrays of COUNT values: edges (of integers every pair), then random ones of all magnitudes."""
    dtype = np.dtype(NUMPY[kind])
    arrays = []
    rng = np.random.default_rng(11)
    for turn in range(3):
        if dtype.kind == "f":
            edges = edge_floats(dtype.name, seed=turn)
            limits = np.ldexp(1.0, np.arange(-2, min(np.finfo(dtype).maxexp - 1, 66)))
            near = np.concatenate([limits, -limits, limits - 0.5, 0.5 - limits, limits + 1.5]).astype(dtype)
            edges = np.concatenate([edges, near])
            exponents = rng.uniform(-4, min(np.finfo(dtype).maxexp - 1, 66), COUNT)
            random = (rng.choice([-1.0, 1.0], COUNT) * 2.0**exponents).astype(dtype)
        else:
            edges = edge_integers(dtype.name, seed=turn)
            bits = rng.integers(0, 2**64, COUNT, dtype=np.uint64)
            random = (bits >> rng.integers(0, 64, COUNT, dtype=np.uint64)).astype(dtype)
            random = np.where(rng.random(COUNT) < 0.3, ~random, random)
            if turn and kind[0] in "us":  # amounts, positions and lengths of shifts and fields
                random = np.where(rng.random(COUNT) < 0.4, (random & 0x7F).astype(dtype), random)
        paired = np.repeat(edges, len(edges)) if turn == 0 and dtype.kind != "f" else edges
        first = np.resize(paired, COUNT // 2)
        assert len(edges) <= COUNT // 2
        arrays.append(np.concatenate([first, random[COUNT // 2 :]]))
    return arrays


@pytest.mark.parametrize("case", _cases(), ids=lambda case: case.name)
def test_the_simulator_does_as_gcc(case: Case, library: ctypes.CDLL) -> None:
    if "f16" in (case.result, case.operand) and not hasattr(library, case.name):
        pytest.skip("this gcc has no _Float16")
    a, b, c = _operands(case.operand)
    if case.nonzero:
        b = np.where(b == 0, np.array(3, b.dtype), b)
    expected = np.zeros(COUNT, NUMPY[case.result])
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (expected, a, b, c)]
    getattr(library, case.name)(*pointers, ctypes.c_long(COUNT))
    actual = evaluate(case.ptx, NUMPY[case.result], {"a": a, "b": b, "c": c})
    if expected.dtype.kind == "f":  # NaN has no sign or payload that the ISA would keep
        nan = np.isnan(expected)
        assert np.array_equal(np.isnan(actual), nan)
        actual, expected = actual[~nan], expected[~nan]
    raw = f"u{expected.itemsize}"
    wrong = np.nonzero(actual.view(raw) != expected.view(raw))[0]
    assert not len(wrong), [(a[i], b[i], c[i], actual[i], expected[i]) for i in wrong[:3]]
