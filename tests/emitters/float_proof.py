"""Build a schedule of a float kernel and run it in the simulator."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emitters import KERNELS
from emitters.kernel import Inputs, Kernel, ParameterValue, Problem
from emitters.target import Target
from search_spaces import space_for
from search_spaces.space import Space
from tuner.devices.simulation import launches
from tuner.simulator import Report, simulate

FLOAT_KERNELS = (
    "affine_f32",
    "rmsnorm",
    "q4k_gemv",
    "q4k_soa_wmma",
    "q6k_soa_gemv",
    "wmma_gemv",
    "sdpa_decode",
)


@cache
def space_of(kernel: str, arch: str) -> Space:
    return space_for(kernel, Target.of(arch))


def random_schedules(kernel: str, arch: str, count: int, seed: int) -> list[dict[str, ParameterValue]]:
    space = space_of(kernel, arch)
    chosen = np.random.default_rng(seed).choice(len(space), min(count, len(space)), replace=False)
    return [space.values(int(number)) for number in chosen]


def simulated(
    kernel: Kernel[Any], schedule: Any, problem: Problem, inputs: Inputs, ptx: str | None = None
) -> Report:
    """Run a schedule's plan (with other text, where given) on a problem."""
    emitted = kernel.emit(schedule, Target.of("sm_80"))
    prepared = kernel.prepare(schedule, problem, inputs)
    buffers: dict[str, NDArray[Any]] = dict(prepared.buffers)
    outputs = list(kernel.spec.outputs)
    for buffer in kernel.spec.buffers:
        if buffer.role == "out":
            buffers[buffer.name] = np.zeros(buffer.shape_for(problem.sizes), buffer.dtype)
    workspace = emitted.plan.workspace_for(problem.sizes)
    if workspace:
        buffers["workspace"] = np.zeros(workspace, np.uint8)
        outputs.append("workspace")
    steps = launches(emitted.plan, problem.sizes, Inputs(buffers, prepared.scalars))
    return simulate(ptx or emitted.ptx, steps, buffers, outputs=tuple(outputs))


def is_right(kernel: Kernel[Any], schedule: Any, problem: Problem, inputs: Inputs) -> bool:
    """No fault, nothing unwritten, no mismatch."""
    report = simulated(kernel, schedule, problem, inputs)
    expected = kernel.reference(problem, inputs, schedule)
    unwritten = [name for name in report.unwritten if name != "workspace"]
    bad = [name for name in kernel.spec.outputs if expected.mismatched(name, report.buffers[name]).any()]
    return report.clean and not unwritten and not bad


def kernel_of(name: str) -> Kernel[Any]:
    return KERNELS[name]
