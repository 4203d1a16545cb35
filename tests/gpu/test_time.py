"""Times of a real GPU: possible, repeatable, colder means slower, and a candidate ties with itself."""

import pytest
from device_samples import GEMM, emitted

from tuner.baselines import BASELINES, time_baselines
from tuner.devices.cuda import CudaDevice

pytestmark = pytest.mark.gpu
PROBLEM = GEMM.spec.problem(4096, 1280, 1280)


def test_two_measurements_agree(gpu: CudaDevice, arch: str) -> None:
    first, second = (gpu.measure(emitted(arch=arch), PROBLEM, None) for _ in range(2))
    assert first.time_us == pytest.approx(second.time_us, rel=0.02)
    assert first.details["launch"] == "graph"


def test_a_time_is_physically_possible(gpu: CudaDevice, arch: str) -> None:
    measured = gpu.measure(emitted(arch=arch), PROBLEM, None)
    assert measured.bound_us is not None
    assert measured.bound_us < measured.time_us < 100_000
    assert measured.driver is not None


def test_cold_is_not_faster_than_warm(gpu: CudaDevice, arch: str) -> None:
    measured = gpu.measure(emitted(arch=arch), GEMM.spec.problem(128, 256, 1280), None)
    assert measured.other_us["warm"] <= measured.time_us * 1.02


def test_a_candidate_ties_with_itself(gpu: CudaDevice, arch: str) -> None:
    finalists = gpu.compare([emitted(arch=arch), emitted(arch=arch)], PROBLEM, seed=0)
    assert finalists.comparison.winner is None


def test_grouped_calls_of_a_tiny_kernel_take_no_launch_latency(gpu: CudaDevice, arch: str) -> None:
    """One block of one mma: far below what a lone launch costs."""
    measured = gpu.measure(emitted(arch=arch), GEMM.spec.problem(1, 16, 32), None)
    assert float(measured.details["calls_per_group"]) >= 20
    assert measured.other_us["warm"] < 20


def test_baselines_that_are_installed_have_times(gpu: CudaDevice) -> None:
    times = time_baselines(gpu, GEMM.id, PROBLEM)
    assert [time.name for time in times] == [baseline.name for baseline in BASELINES[GEMM.id]]
    for time in times:
        assert time.measurement is not None or "does not" in time.reason, time
        if time.measurement is not None and time.name.startswith("cuBLAS"):
            assert time.measurement.details["launch"] == "graph"
