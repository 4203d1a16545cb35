"""A tensor of a model file on a GPU: the whole of it is compared and timed."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cuda_standin import OpenStandIn, StandInGpu, opened_machines
from device_samples import emitted

from emitters import kernel_named
from emitters.gguf_weights import weights_problem
from emitters.kernel import DataError
from emitters.quants import encode_q4_k
from tuner.devices.jobs import Bench, Verify

sys.path.append(str(Path(__file__).parent.parent / "emitters"))
from gguf_files import write_gguf

KERNEL = kernel_named("q4k_gemv")
WEIGHTS = encode_q4_k(np.random.default_rng(1).standard_normal((20, 512)))


@pytest.fixture
def bench() -> Iterator[Bench]:
    opened_machines.clear()
    yield OpenStandIn(StandInGpu())(lambda phase, limit_s: None)
    opened_machines.clear()


def test_the_tensor_is_what_is_verified(bench: Bench, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", {"w": (WEIGHTS, "Q4_K")})
    problem = weights_problem(KERNEL, file, "w")
    verdict = Verify(emitted(KERNEL), problem, 1).run(bench)
    assert verdict.is_right
    assert verdict.problems == ("20x512",)
    np.testing.assert_array_equal(bench.inputs(KERNEL, problem, 1).buffers["W"], WEIGHTS)
    made_up = KERNEL.spec.problem(20, 512)
    assert (bench.inputs(KERNEL, made_up, 1).buffers["W"] != WEIGHTS).any()


def test_a_file_that_is_gone_is_no_fault_of_the_candidate(bench: Bench, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", {"gone": (WEIGHTS, "Q4_K")})
    problem = weights_problem(KERNEL, file, "gone")
    file.unlink()
    with pytest.raises(DataError, match="No such file"):
        bench.inputs(KERNEL, problem, 1)
