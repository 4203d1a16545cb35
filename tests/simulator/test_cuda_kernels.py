"""PTX that NVRTC wrote from CUDA C++ of our own runs right, and raises no alarm."""

from __future__ import annotations

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
