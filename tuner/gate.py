"""The gate: a candidate runs in the simulator on its edge problems, and must be right, without any fault."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emitters import kernel_named
from emitters.kernel import Expected, Inputs, Kernel, Problem, RealData
from results.plan import LaunchPlan
from results.trial import Verdict
from tuner.devices.device import Candidate
from tuner.devices.simulation import launches, parsed
from tuner.simulator import Report, simulate

WORKSPACE = "workspace"
STEP_BUDGET = 1_000_000  # of a batch of blocks; the longest edge problem takes some tens of thousands
REAL_ROWS = 67  # of real data: more than a few blocks of most schedules, and ragged
_SHOWN = 3
_KEPT_SIZE = 1 << 24


def prove(candidate: Candidate, seed: int, step_budget: int = STEP_BUDGET) -> Verdict:
    """Run a candidate on the edge problems of its schedule.

    Args:
        candidate: As built.
        seed: Of the data.
        step_budget: Instructions a batch of blocks may run before it is called endless.

    Raises:
        PtxError: An instruction is not simulated, or the plan does not fit its entry: a gap of ours.
    """
    kernel = kernel_named(candidate.kernel)
    problems = kernel.edge_problems(kernel.schedule(candidate.schedule))
    return prove_on(candidate, problems, seed, step_budget=step_budget)


def prove_on_data(candidate: Candidate, problem: Problem, data: RealData, seed: int) -> Verdict:
    """Run a candidate on the first rows of a problem's real data, or on all if it does not serve so few.

    Raises:
        DataError: They cannot be had any more.
    """
    kernel = kernel_named(candidate.kernel)
    rows = data.beginning(kernel, problem, REAL_ROWS)
    serves = candidate.emitted.plan.is_valid(rows.sizes)
    return prove_on(candidate, (rows if serves else replace(problem, data=data),), seed)


def prove_on(
    candidate: Candidate,
    problems: Sequence[Problem],
    seed: int,
    blocks: int | None = None,
    step_budget: int = STEP_BUDGET,
) -> Verdict:
    """Run a candidate on problems, and stop at the first one that it gets wrong.

    Args:
        candidate: As built.
        problems: At least one.
        seed: Of the data.
        blocks: How many blocks to run of each, evenly spread from the first to the last; None for all.
        step_budget: Instructions a batch of blocks may run before it is called endless.
    """
    tried: list[str] = []
    for problem in problems:
        tried.append(str(problem))
        posed = Posed(candidate, problem, seed)
        verdict = posed.verdict(posed.run(candidate, blocks, step_budget), sampled=blocks is not None)
        if not verdict.is_right:
            return replace(verdict, problems=tuple(tried))
    return Verdict(0, tuple(tried))


class Posed:
    """A problem with its data as a schedule wants them, and what must come out: posed once, run by many.

    Args:
        candidate: Of the kernel and the schedule.
        problem: To be solved.
        seed: Of the data, and of the choices that the simulator has.
    """

    def __init__(self, candidate: Candidate, problem: Problem, seed: int) -> None:
        self.problem = problem
        self._kernel = kernel_named(candidate.kernel)
        self._schedule = self._kernel.schedule(candidate.schedule)
        self._seed = seed
        self._given = _inputs(self._kernel.id, problem, seed)
        self._prepared = self._kernel.prepare(self._schedule, problem, self._given)

    @cached_property
    def expected(self) -> Expected:
        """What the outputs must be."""
        return self._kernel.reference(self.problem, self._given, self._schedule)

    def run(self, candidate: Candidate, blocks: int | None = None, step_budget: int = STEP_BUDGET) -> Report:
        """Simulate a candidate of the kernel and the schedule; as `prove_on`."""
        plan, sizes = candidate.emitted.plan, self.problem.sizes
        buffers: dict[str, NDArray[Any]] = dict(self._prepared.buffers)
        outputs = list(self._kernel.spec.outputs)
        for buffer in self._kernel.spec.buffers:
            if buffer.role == "out":
                buffers[buffer.name] = np.zeros(buffer.shape_for(sizes), buffer.dtype)
        workspace_bytes = plan.workspace_for(sizes)
        if workspace_bytes:
            buffers[WORKSPACE] = np.zeros(workspace_bytes, np.uint8)
            outputs.append(WORKSPACE)
        return simulate(
            parsed(candidate.emitted.ptx),
            launches(plan, sizes, Inputs(buffers, self._prepared.scalars)),
            buffers,
            outputs=outputs,
            blocks=None if blocks is None else _spread(plan, sizes, blocks),
            counters=False,
            step_budget=step_budget,
            seed=self._seed,
        )

    def verdict(self, report: Report, sampled: bool = False) -> Verdict:
        """What a run says; with `sampled`, only some of the blocks ran."""
        tried = (str(self.problem),)
        if report.faults:
            fault = report.faults[0]
            return Verdict(0, tried, "", fault.kind, f"{fault} on {self.problem}")
        mismatches, first_bad = _compare(self._kernel, self.expected, report, sampled)
        return Verdict(mismatches, tried, f"{first_bad} on {self.problem}" if mismatches else "")


def _spread(plan: LaunchPlan, sizes: Mapping[str, int], wanted: int) -> list[int]:
    """Linear indices of the first, the last, and evenly spread blocks between them."""
    if len(plan.steps) != 1:
        raise ValueError(
            "a plan of several steps must be simulated with all blocks: none owns its outputs alone"
        )
    x, y, z = plan.kernel_steps[0].grid_for(sizes)
    evenly = np.linspace(0, x * y * z - 1, num=wanted).round()
    return [int(block) for block in np.unique(evenly)]


def _compare(kernel: Kernel[Any], expected: Expected, report: Report, sampled: bool) -> tuple[int, str]:
    """Wrong elements over all outputs, and the first of them for a person."""
    mismatches = 0
    shown: list[str] = []
    for name in kernel.spec.outputs:
        actual = report.buffers[name]
        bad = expected.mismatched(name, actual)
        wrong = int(np.count_nonzero(bad))
        unwritten = report.unwritten.get(name)
        missing = 0 if unwritten is None else unwritten.count
        # Unwritten elements hold poison, which is no expected value; a sample of blocks leaves many.
        wrong = wrong - missing if sampled else max(wrong, missing)
        if wrong > 0:
            mismatches += wrong
            shown += _first(name, actual, expected.values[name], bad, missing)
    return mismatches, "; ".join(shown[:_SHOWN])


def _first(
    name: str, actual: NDArray[Any], expected: NDArray[Any], bad: NDArray[np.bool_], missing: int
) -> list[str]:
    shown = []
    for index in np.argwhere(bad)[:_SHOWN]:
        at = tuple(int(i) for i in index)
        shown.append(f"{name}[{', '.join(map(str, at))}] is {actual[at]}, expected {expected[at]}")
    if missing:
        shown.insert(0, f"{missing} elements of {name} were never written")
    return shown


def _inputs(kernel: str, problem: Problem, seed: int) -> Inputs:
    """Data of a problem. That of small problems is kept: they come back for many schedules."""
    small = prod(problem.sizes.values()) < _KEPT_SIZE
    return _kept_inputs(kernel, problem, seed) if small else _fresh_inputs(kernel, problem, seed)


def _fresh_inputs(kernel: str, problem: Problem, seed: int) -> Inputs:
    return kernel_named(kernel).data(problem, np.random.default_rng([seed, *problem.sizes.values()]))


_kept_inputs = lru_cache(maxsize=64)(_fresh_inputs)
