"""An emitted kernel as the simulator takes it: parsed once, and its plan as steps for one problem."""

from collections.abc import Mapping
from functools import lru_cache

from emitters.kernel import Inputs
from results.expression import evaluate
from results.plan import KernelStep, LaunchPlan, MemsetStep
from tuner.simulator import Launch, Memset, parse

# The gate and the sampling of one candidate run one after the other in one process and share the parsed text.
parsed = lru_cache(maxsize=2)(parse)


def launches(plan: LaunchPlan, sizes: Mapping[str, int], inputs: Inputs) -> list[Launch | Memset]:
    """The plan for one problem, as the simulator takes it.

    Args:
        plan: With formulas.
        sizes: Of the problem.
        inputs: As the schedule wants them: every buffer of the call, and every scalar.
    """
    return [
        Memset(step.buffer, step.byte, evaluate(step.nbytes, sizes))
        if isinstance(step, MemsetStep)
        else _launch(step, sizes, inputs)
        for step in plan.steps
    ]


def _launch(step: KernelStep, sizes: Mapping[str, int], inputs: Inputs) -> Launch:
    arguments: list[str | int | float] = []
    for argument in step.arguments:
        if argument in inputs.scalars:
            arguments.append(float(inputs.scalars[argument]))
        elif argument in inputs.buffers:
            arguments.append(argument)
        else:
            arguments.append(evaluate(argument, sizes))
    return Launch(step.entry, step.grid_for(sizes), step.block, step.shared_bytes, tuple(arguments))
