"""Kernel by kernel: the simulator, the GPU and the reference agree on the same data."""

from typing import Any

import numpy as np
import pytest
from device_samples import emitted
from gpu_jobs import RunPlan

from emitters import KERNELS
from emitters.kernel import Kernel, Problem
from emitters.target import Target
from results.expression import evaluate
from results.plan import KernelStep, MemsetStep
from search_spaces import space_for
from tuner.devices.cuda import CudaDevice
from tuner.devices.device import Candidate
from tuner.simulator import Launch, Memset, simulate

pytestmark = pytest.mark.gpu
SCHEDULES = 5  # of each kernel, besides the baseline
SEED = 11


def schedules_of(kernel: Kernel[Any], target: Target) -> list[Any]:
    """The baseline and some others of the space, the same every time."""
    space = space_for(kernel.id, target)
    numbers = np.random.default_rng(SEED).choice(len(space), min(SCHEDULES, len(space)), replace=False)
    return [kernel.baseline, *(kernel.schedule(space.values(int(number))) for number in numbers)]


def simulated(candidate: Candidate, problem: Problem) -> dict[str, Any]:
    """Outputs of the simulator on the data of `SEED`."""
    kernel = KERNELS[candidate.kernel]
    inputs = kernel.inputs(problem, np.random.default_rng(SEED))
    inputs = kernel.prepare(kernel.schedule(candidate.schedule), problem, inputs)
    outputs = {
        buffer.name: np.zeros(buffer.shape_for(problem.sizes), buffer.dtype)
        for buffer in kernel.spec.buffers
        if buffer.role == "out"
    }
    plan, sizes = candidate.emitted.plan, problem.sizes
    buffers: dict[str, Any] = {**inputs.buffers, **outputs}
    if plan.workspace_for(sizes):
        buffers["workspace"] = np.zeros(plan.workspace_for(sizes), np.uint8)
    scalars = {name: float(value) for name, value in inputs.scalars.items()}

    def step_of(step: KernelStep | MemsetStep) -> Launch | Memset:
        if isinstance(step, MemsetStep):
            return Memset(step.buffer, step.byte, evaluate(step.nbytes, sizes))
        arguments = tuple(
            name if name in buffers else scalars[name] if name in scalars else evaluate(name, sizes)
            for name in step.arguments
        )
        return Launch(step.entry, step.grid_for(sizes), step.block, step.shared_bytes, arguments)

    undefined = [name for name in buffers if name not in inputs.buffers]
    report = simulate(
        candidate.emitted.ptx, [step_of(step) for step in plan.steps], buffers, outputs=undefined
    )
    assert report.clean, report.faults
    return {name: report.buffers[name] for name in outputs}


@pytest.mark.parametrize("kernel_id", list(KERNELS))
def test_simulator_gpu_and_reference_agree(gpu: CudaDevice, arch: str, kernel_id: str) -> None:
    kernel = KERNELS[kernel_id]
    for schedule in schedules_of(kernel, gpu.target):
        candidate = emitted(kernel, schedule, arch)
        for problem in kernel.edge_problems(schedule):
            here = simulated(candidate, problem)
            there = gpu.run(RunPlan(candidate, problem, SEED))
            inputs = kernel.inputs(problem, np.random.default_rng(SEED))
            expected = kernel.reference(problem, inputs, schedule)
            for name in here:
                where = f"{schedule} on {problem}"
                assert not expected.mismatched(name, there[name]).any(), f"the GPU is wrong for {where}"
                assert not expected.mismatched(name, here[name]).any(), f"the simulator is wrong for {where}"
                if name not in expected.bounds:
                    assert np.array_equal(here[name], there[name])


@pytest.mark.parametrize("kernel_id", list(KERNELS))
def test_the_default_problem_is_right_on_two_data_sets(gpu: CudaDevice, arch: str, kernel_id: str) -> None:
    kernel = KERNELS[kernel_id]
    for seed in (1, 2):
        verdict = gpu.verify(emitted(kernel, arch=arch), kernel.default_problem, seed)
        assert verdict.is_right, verdict
