"""Baselines compute what the kernel computes, are timed under its policy, and say why where they are not."""

from collections.abc import Iterator

import pytest
from cuda_standin import OpenStandIn, StandInGpu
from device_samples import GEMM, SMALL
from fake_libraries import CALL_US, FakeLibraries

from emitters import KERNELS
from results.trial import Source
from tuner.baselines import BASELINES, BaselineTime, time_baselines
from tuner.devices.cuda import CudaDevice
from tuner.devices.stopwatch import TimingPolicy
from tuner.devices.timing import StoppingRule

POLICY = TimingPolicy(
    rule=StoppingRule(most_repeats=20), group_us=60.0, warmup_ms=0.1, budget_s=5.0, warm_s=1.0, energy_s=0.0
)


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    device = CudaDevice(OpenStandIn(StandInGpu()), POLICY)
    yield device
    device.close()


def by_name(times: tuple[BaselineTime, ...]) -> dict[str, BaselineTime]:
    return {time.name: time for time in times}


@pytest.mark.parametrize("kernel", list(KERNELS))
def test_every_baseline_computes_what_its_kernel_computes(device: CudaDevice, kernel: str) -> None:
    """Compared in the worker: exactly for integers, within a stated part of the largest value for floats."""
    entry = KERNELS[kernel]
    problem = max(entry.edge_problems(entry.baseline), key=lambda problem: min(problem.sizes.values()))
    times = by_name(time_baselines(device, kernel, problem, FakeLibraries()))
    assert list(times) == [baseline.name for baseline in BASELINES[kernel]]
    for time in times.values():
        assert time.reason == ""
        assert time.measurement is not None
        assert time.measurement.time_us == pytest.approx(CALL_US)
        assert time.measurement.source is Source.CUDA_EVENTS
        assert time.measurement.policy == "cold-l2"
        assert time.measurement.details["baseline"] == time.name
        assert time.measurement.details["launch"] == "graph"


def test_every_kernel_here_has_baselines_or_none_on_purpose() -> None:
    assert set(KERNELS) <= set(BASELINES)


def test_what_is_not_installed_is_said_and_the_rest_is_timed(device: CudaDevice) -> None:
    times = by_name(time_baselines(device, GEMM.id, SMALL, FakeLibraries(missing=("torch",))))
    assert times["torch._int_mm"] == BaselineTime(
        "torch._int_mm", None, "torch does not import: No module named 'torch'"
    )
    assert times["cuBLAS s8"].measurement is not None


def test_what_refuses_the_problem_is_said(device: CudaDevice) -> None:
    tiny = GEMM.spec.problem(1, 16, 16)
    times = by_name(time_baselines(device, GEMM.id, tiny, FakeLibraries(refuses=True)))
    assert times["torch._int_mm"].measurement is None
    assert (
        "torch refuses: self.size(0) needs to be greater than 16, but got 1" in times["torch._int_mm"].reason
    )
    assert "cublasGemmEx refuses: CUBLAS_STATUS_NOT_SUPPORTED" in times["cuBLAS s8"].reason
    assert device.worker.spawned == 1


def test_a_wrong_baseline_has_no_time(device: CudaDevice) -> None:
    times = by_name(time_baselines(device, GEMM.id, SMALL, FakeLibraries(off_by=3)))
    assert times["cuBLAS s8"].measurement is None
    assert times["cuBLAS s8"].reason.startswith(f"{33 * 48} mismatches: C[0, 0] is ")
    assert times["cuBLAS f16"].measurement is None
    assert "off by up to" in times["cuBLAS f16"].reason


def test_a_kernel_without_baselines_has_none(device: CudaDevice) -> None:
    assert time_baselines(device, "unheard_of", SMALL, FakeLibraries()) == ()
