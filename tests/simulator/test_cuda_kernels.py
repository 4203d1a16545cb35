"""PTX that NVRTC wrote from CUDA C++ of our own runs right, and raises no alarm."""

from __future__ import annotations

import re

import cuda_compiler
import numpy as np
import pytest
from cuda_cases import CASES, Case

from tuner.simulator import parse, simulate

pytestmark = pytest.mark.skipif(
    not cuda_compiler.available(), reason="NVRTC (nvidia-cuda-nvrtc) is not installed"
)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.entry)
def test_kernel_of_another_compiler_is_right_and_clean(case: Case, arch: str) -> None:
    module = parse(cuda_compiler.compile_cuda(case.text, arch))
    buffers = case.buffers(np.random.default_rng(7))
    report = simulate(module, case.steps, buffers, outputs=case.outputs)
    assert [str(fault) for fault in report.faults] == []
    for name, values in case.expected(buffers).items():
        actual = report.buffers[name]
        if case.tolerance:
            scale = np.maximum(np.abs(values), 1.0)
            assert np.all(np.abs(actual.astype(np.float64) - values) <= case.tolerance * scale), name
        else:
            assert np.array_equal(actual, np.asarray(values).astype(actual.dtype).reshape(actual.shape)), name


SYNCHRONISES = re.compile(
    r"\s*(bar\.|barrier\.|membar\.|fence\.|cp\.async\.(wait|commit)|mbarrier\.arrive|mbarrier\.test)"
)
PLANTED = (
    "reduce_tree",
    "reduce_warps",
    "scan_shared",
    "transpose",
    "matmul_tiled",
    "histogram",
    "softmax_rows",
    "count_votes",
    "producer_consumer",
    "warp_exchange",
    "odd_block",
    "reduce_last_block",
    "grid_barrier",
    "work_queue",
    "wmma_s8",
    "mma_f16",
    "pipeline_sum",
    "mbarrier_handover",
)
SURVIVORS = {
    "producer_consumer": 1,  # the arrival after the last round, which nobody waits for
    "pipeline_sum": 1,  # the commit after the last copy, which nobody waits for
}


@pytest.mark.parametrize("name", PLANTED)
def test_every_synchronisation_taken_out_is_found(name: str) -> None:
    (case,) = (case for case in CASES if case.entry == name)
    lines = cuda_compiler.compile_cuda(case.text).splitlines()
    functions = sorted(function.line for function in parse("\n".join(lines)).functions.values())
    start = parse("\n".join(lines)).functions[name].line
    end = next((line for line in functions if line > start), len(lines) + 1)
    places = [number for number in range(start - 1, end - 1) if SYNCHRONISES.match(lines[number])]
    assert places
    alive = []
    for number in places:
        mutant = [*lines[:number], "", *lines[number + 1 :]]
        buffers = case.buffers(np.random.default_rng(7))
        report = simulate("\n".join(mutant), case.steps, buffers, outputs=case.outputs)
        if report.clean:
            alive.append(lines[number].strip())
    assert len(alive) == SURVIVORS.get(name, 0), alive
