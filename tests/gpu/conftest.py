"""The GPU under test. Nothing is skipped for want of one: who runs `pytest -m gpu` wants to hear of it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "devices"))  # device_samples, which this directory shares

from tuner.devices.cuda import CudaDevice
from tuner.devices.jobs import OpenCuda


@pytest.fixture(scope="session")
def gpu() -> Iterator[CudaDevice]:
    """The first GPU, through CuPy."""
    device = CudaDevice(OpenCuda(0))
    yield device
    device.close()


@pytest.fixture(scope="session")
def arch(gpu: CudaDevice) -> str:
    """What is emitted for it."""
    return gpu.target.arch.name
