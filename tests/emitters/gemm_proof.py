"""Runs a schedule's whole plan in the simulator and says everything that is wrong with it."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from emitters.kernel import EmittedKernel, Kernel, Problem
from emitters.target import Target
from results.expression import evaluate
from results.plan import MemsetStep
from tuner.simulator import Launch, Memset, Report, parse, simulate


def run(
    kernel: Kernel[Any], schedule: Any, emitted: EmittedKernel, problem: Problem, seed: int = 0
) -> Report:
    """One call of the plan on fresh data."""
    return _run(kernel, schedule, emitted, problem, np.random.default_rng(seed))[0]


def findings(
    kernel: Kernel[Any],
    schedule: Any,
    target: Target,
    problems: Iterable[Problem] | None = None,
    blocks: Sequence[int] | None = None,
) -> list[str]:
    """Mismatches and faults on the edge problems, or on those given; empty where the schedule is right.

    With `blocks`, only those blocks of the kernel run, and only what they wrote is compared.
    """
    emitted = kernel.emit(schedule, target)
    found = []
    for problem in kernel.edge_problems(schedule) if problems is None else problems:
        assert emitted.plan.is_valid(problem.sizes), f"{problem} is not valid for its own schedule"
        rng = np.random.default_rng(len(found))
        report, wrong = _run(kernel, schedule, emitted, problem, rng, blocks)
        if wrong:
            found.append(f"{problem}: {wrong} mismatches")
        found += [f"{problem}: {fault}" for fault in report.faults]
    return found


def _run(
    kernel: Kernel[Any],
    schedule: Any,
    emitted: EmittedKernel,
    problem: Problem,
    rng: np.random.Generator,
    blocks: Sequence[int] | None = None,
) -> tuple[Report, int]:
    inputs = kernel.inputs(problem, rng)
    expected = kernel.reference(problem, inputs, schedule)
    buffers = dict(kernel.prepare(schedule, problem, inputs).buffers)
    for spec in kernel.spec.buffers:
        if spec.role == "out":  # the simulator poisons it
            buffers[spec.name] = np.zeros(spec.shape_for(problem.sizes), spec.dtype)
    steps: list[Launch | Memset] = []
    for step in emitted.plan.steps:
        if isinstance(step, MemsetStep):
            steps.append(Memset(step.buffer, step.byte, evaluate(step.nbytes, problem.sizes)))
        else:
            arguments = tuple(name if name in buffers else problem[name] for name in step.arguments)
            grid = step.grid_for(problem.sizes)
            steps.append(Launch(step.entry, grid, step.block, step.shared_bytes, arguments))
    report = simulate(parse(emitted.ptx), steps, buffers, outputs=kernel.spec.outputs, blocks=blocks)
    wrong = 0
    for name in kernel.spec.outputs:
        mismatched = int(expected.mismatched(name, report.buffers[name]).sum())
        unwritten = report.unwritten.get(name)
        skipped = unwritten.count if unwritten and blocks is not None else 0
        assert skipped < expected.values[name].size, "the sampled blocks wrote nothing"
        wrong += mismatched - skipped
    return report, wrong
