"""Faults planted in the text of float kernels are found, each in the way that its test names."""

import re
from typing import Any

import numpy as np
import pytest
from float_proof import kernel_of, simulated
from test_float_golden import SCHEDULES

from emitters.kernel import Kernel
from emitters.target import Target


def text_of(kernel: Kernel[Any], schedule: Any) -> str:
    return kernel.emit(schedule, Target.of("sm_80")).ptx


def outcome(kernel: Kernel[Any], schedule: Any, ptx: str) -> str:
    """``right``, ``mismatch``, ``unwritten``, or the kind of the first fault, over the edge problems."""
    for problem in kernel.edge_problems(schedule):
        inputs = kernel.inputs(problem, np.random.default_rng(30))
        report = simulated(kernel, schedule, problem, inputs, ptx)
        if report.faults:
            return report.faults[0].kind
        if any(name != "workspace" for name in report.unwritten):
            return "unwritten"
        expected = kernel.reference(problem, inputs, schedule)
        if any(expected.mismatched(name, report.buffers[name]).any() for name in kernel.spec.outputs):
            return "mismatch"
    return "right"


FAULTS = [
    ("affine_f32", "fma.rn.f32", "fma.rz.f32", 0, "mismatch"),
    ("affine_f32", r"setp\.gt\.s32", "setp.ge.s32", 0, "out_of_bounds"),
    ("rmsnorm", r"    bar\.sync 0;\n", "", 1, "race"),
    ("rmsnorm", r"add\.rn\.f32 (%f\d+), (%f\d+), (%f\d+);", r"mov.f32 \1, \2;", 1, "mismatch"),
    ("rmsnorm", r"setp\.lt\.u32 (%p\d+), (%r\d+), (%r\d+);", r"setp.le.u32 \1, \2, \3;", 0, "out_of_bounds"),
    ("q4k_gemv", r"cp\.async\.wait_group 2", "cp.async.wait_group 3", 1, "race"),
    ("q4k_gemv", r"0x3030", "0x3020", 0, "mismatch"),
    ("q4k_gemv", r"setp\.ge\.u32 (%p\d+), (%r\d+), 2;", r"setp.ge.u32 \1, \2, 3;", 1, "mismatch"),
    ("q4k_gemv", r"    bar\.sync 0;\n", "", 1, "race"),
    ("q4k_soa_wmma", r"0x000F000F", "0x00070007", 0, "mismatch"),
    ("q4k_soa_wmma", r"0x80008000", "0x80000000", 1, "mismatch"),
    ("q4k_soa_wmma", r"    bar\.sync 0;\n", "", 1, "race"),
    ("q6k_soa_gemv", r"shf\.r\.wrap\.b32", "shf.l.wrap.b32", 1, "mismatch"),
    ("q6k_soa_gemv", r"bfe\.s32", "bfe.u32", 0, "mismatch"),
    ("q6k_soa_gemv", r"cp\.async\.wait_group 1", "cp.async.wait_group 2", 1, "race"),
    ("wmma_gemv", r"    bar\.sync 0;\n", "", 1, "race"),
    ("wmma_gemv", r"wmma\.load\.a\.sync\.aligned\.row", "wmma.load.a.sync.aligned.col", 0, "mismatch"),
    ("sdpa_decode", r"cp\.async\.wait_group 1", "cp.async.wait_group 2", 1, "race"),
    ("sdpa_decode", r"0f3FB8AA3B", "0f3FB8A000", 1, "mismatch"),
    ("sdpa_decode", r"    bar\.sync 0;\n", "", 1, "race"),
    ("sdpa_decode", r"max\.f32 (%f\d+), (%f\d+), (%f\d+);", r"min.f32 \1, \2, \3;", 0, "mismatch"),
]


@pytest.mark.parametrize(
    ("name", "pattern", "planted", "count", "found"), FAULTS, ids=[f"{f[0]}: {f[1]}" for f in FAULTS]
)
def test_a_planted_fault_is_found(name: str, pattern: str, planted: str, count: int, found: str) -> None:
    kernel = kernel_of(name)
    schedule = kernel.schedule(SCHEDULES[name])
    sound = text_of(kernel, schedule)
    broken, made = re.subn(pattern, planted, sound, count=count)
    assert made, "the pattern must be in the text"
    assert outcome(kernel, schedule, sound) == "right"
    assert outcome(kernel, schedule, broken) == found
