"""The GPU under test. Nothing is skipped for want of one: who runs `pytest -m gpu` wants to hear of it.

``pytest -m gpu tests/gpu --stand-in`` is the rehearsal: the same tests on the stand-in, whose kernels the
simulator computes. It shows that the tests run, and nothing about a GPU.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "devices"))  # device_samples, which this directory shares

from cuda_standin import OpenStandIn, StandInGpu

from tuner.devices.cuda import CudaDevice
from tuner.devices.jobs import OpenCuda
from tuner.devices.serving import Opener


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stand-in", action="store_true", help="run the GPU tests on the stand-in")


@pytest.fixture(scope="session")
def opener(request: pytest.FixtureRequest) -> Opener:
    """Opens the first GPU, through CuPy; or the stand-in."""
    if request.config.getoption("--stand-in", default=False):
        return OpenStandIn(StandInGpu(launch_us=3.0, noise=0.001))
    return OpenCuda(0)


@pytest.fixture(scope="session")
def gpu(opener: Opener) -> Iterator[CudaDevice]:
    device = CudaDevice(opener)
    yield device
    device.close()


@pytest.fixture(scope="session")
def arch(gpu: CudaDevice) -> str:
    """What is emitted for it."""
    return gpu.target.arch.name
