"""Plans and buffers on the device, in this process: every set of buffers is alike."""

import numpy as np
import pytest
from cuda_standin import StandInGpu, stand_in
from device_samples import GEMM, SMALL, emitted

from tuner.devices.driver import Driver
from tuner.devices.launch import Buffers, LoadedPlan, carveout_percent


@pytest.fixture
def driver() -> Driver:
    apis, _, _ = stand_in(StandInGpu())
    return Driver(apis, 0)


def test_every_set_of_buffers_gives_the_same_result(driver: Driver) -> None:
    """The second set's inputs are copied on the device."""
    candidate = emitted()
    inputs = GEMM.prepare(GEMM.baseline, SMALL, GEMM.inputs(SMALL, np.random.default_rng(1)))
    expected = GEMM.reference(SMALL, GEMM.inputs(SMALL, np.random.default_rng(1)), GEMM.baseline)
    plan = LoadedPlan(driver, driver.facts(), candidate.emitted.plan, candidate.binary.cubin)
    first = Buffers(driver, GEMM.spec, SMALL, inputs, 0, guard_bytes=0)
    second = Buffers(driver, GEMM.spec, SMALL, inputs, 0, guard_bytes=0, like=first)
    for buffers in (first, second):
        buffers.poison()
        plan.bind(GEMM.spec, SMALL, inputs.scalars, buffers.addresses)()
        assert np.array_equal(buffers.outputs()["C"], expected.values["C"])
        assert buffers.stray_write() == ""
        assert buffers.nbytes == 33 * 96 + inputs.buffers["codes"].nbytes + 4 * 33 * 48
    assert set(first.addresses.values()).isdisjoint(second.addresses.values())


@pytest.mark.parametrize(
    ("blocks", "shared_bytes", "percent"),
    [
        pytest.param(1, 227 * 1024, 100, id="227 and 1 of 228 KB"),
        pytest.param(2, 56 * 1024, 50, id="114 of 228 KB"),
        pytest.param(3, 10 * 1024 + 1, 15, id="rounded up"),
        pytest.param(32, 8 * 1024, 100, id="never more than all"),
    ],
)
def test_carveout_percent(driver: Driver, blocks: int, shared_bytes: int, percent: int) -> None:
    assert carveout_percent(driver.facts(), blocks, shared_bytes) == percent
