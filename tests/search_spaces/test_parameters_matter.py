"""The parameters of each space matter: the cost model tells the best of a sample from its median."""

from typing import Any

import numpy as np
import pytest

from emitters import KERNELS
from emitters.kernel import Kernel
from search_spaces import space_for
from tuner.checking import sample
from tuner.devices.device import Candidate
from tuner.devices.simulated import SimulatedDevice
from tuner.ptxas import Assembler

TIE = 1.001


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["rtx4090", "a100"])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda kernel: kernel.id)
def test_the_best_of_a_sample_is_told_from_its_median(kernel: Kernel[Any], gpu: str) -> None:
    device, assembler, problem = SimulatedDevice(gpu), Assembler(), kernel.default_problem
    space = space_for(kernel.id, device.target).serving(problem.sizes)
    times = []
    for values in sample(space, 40, seed=1):
        emitted = kernel.emit(kernel.schedule(values), device.target)
        binary = assembler.assemble(emitted.ptx, device.target.arch.name)
        times.append(device.measure(Candidate(kernel.id, values, emitted, binary), problem, None).time_us)
    assert float(np.median(times)) > TIE * min(times)
    assert sum(time <= TIE * min(times) for time in times) < len(times) / 2
    assert min(times) > device.bound(kernel, problem).time_us
