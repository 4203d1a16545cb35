"""`q4k_gemv` and `q6k_soa_gemv` on 1,000 random rows against what the `gguf` package reads from the same
bytes."""

import gguf
import numpy as np
import pytest
from float_proof import kernel_of, random_schedules, simulated

from emitters.quants import q4_k_grouped, q6_k_grouped

KINDS = {
    "q4k_gemv": gguf.GGMLQuantizationType.Q4_K,
    "q6k_soa_gemv": gguf.GGMLQuantizationType.Q6_K,
}

GROUPED = {"q4k_gemv": q4_k_grouped, "q6k_soa_gemv": q6_k_grouped}


@pytest.mark.parametrize("kernel", KINDS)
def test_a_thousand_rows_agree_with_gguf_within_the_bound(kernel: str) -> None:
    entry = kernel_of(kernel)
    problem = entry.spec.problem(1000, 1024)
    inputs = entry.inputs(problem, np.random.default_rng(20))
    weights = gguf.dequantize(inputs.buffers["W"], KINDS[kernel]).astype(np.float64)
    x = inputs.buffers["x"].astype(np.float64)
    theirs = weights @ x
    # gguf rounds every weight to f32, Q4_K's product before its difference as well.
    grouped = GROUPED[kernel](inputs.buffers["W"])
    magnitude = np.abs(grouped.scale[..., None] * grouped.code) + np.abs(grouped.offset[..., None])
    allowance = 2.0**-23 * magnitude.reshape(weights.shape) @ np.abs(x)
    for values in random_schedules(kernel, "sm_80", 3, seed=21):
        schedule = entry.schedule(values)
        report = simulated(entry, schedule, problem, inputs)
        expected = entry.reference(problem, inputs, schedule)
        error = np.abs(report.buffers["y"].astype(np.float64) - theirs)
        assert report.clean
        assert not report.unwritten.keys() - {"workspace"}
        assert not expected.mismatched("y", report.buffers["y"]).any()
        assert (error <= expected.bounds["y"] + allowance).all()
