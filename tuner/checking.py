"""Checks schedules without timing them: ptxas takes each without a warning, the simulator finds it right."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from emitters.kernel import ParameterValue, Problem
from emitters.target import Target
from results.trial import Outcome, Resources
from search_spaces.space import Space
from tuner.pipeline import (
    BuildJob,
    Built,
    Failure,
    Halted,
    HaltedError,
    ProveJob,
    Proven,
    WholeJob,
    perform,
)
from tuner.pool import Died, Done, Late, Pool
from tuner.ptxas import Assembler

_LIMIT_S = 1800.0


@dataclass(frozen=True)
class Checked:
    """One schedule, checked.

    Attributes:
        arch: What it was emitted for.
        schedule: Every parameter by name.
        failure: None where all is well.
        resources: None where it was not assembled.
        problems: That it was simulated on.
        seconds: From emitting to the last problem.
    """

    arch: str
    schedule: Mapping[str, ParameterValue]
    failure: Failure | None
    resources: Resources | None
    problems: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Extent:
    """What a schedule is run on.

    Attributes:
        problem: A real one; None for the schedule's edge problems.
        blocks: How many of its blocks, evenly spread; None for all.
        seed: Of the data.
    """

    problem: Problem | None = None
    blocks: int | None = None
    seed: int = 0


def sample(space: Space, count: int, seed: int) -> list[dict[str, ParameterValue]]:
    """Valid schedules drawn at random, each once."""
    chosen = np.random.default_rng(seed).choice(len(space), size=min(count, len(space)), replace=False)
    return [space.values(int(number)) for number in chosen]


def absent_levels(space: Space, schedules: Sequence[Mapping[str, ParameterValue]]) -> list[str]:
    """Levels that some valid schedule has and none of these, as ``name=value``."""
    absent = []
    for column, parameter in enumerate(space.parameters):
        possible = {parameter.values[level] for level in np.unique(space.levels[:, column])}
        seen = {schedule[parameter.name] for schedule in schedules}
        absent += [f"{parameter.name}={value}" for value in parameter.values if value in possible - seen]
    return absent


def check_schedules(
    kernel: str,
    target: Target,
    schedules: Sequence[dict[str, ParameterValue]],
    extent: Extent,
    assembler: Assembler,
    workers: int,
) -> Iterator[Checked]:
    """Check schedules in worker processes; each is yielded when it is done.

    Args:
        kernel: Id.
        target: What to emit for.
        schedules: Of its space.
        extent: What each is run on.
        assembler: Assembles them.
        workers: Processes.

    Raises:
        HaltedError: Nothing can be assembled on this machine.
    """
    pool = Pool(perform, workers, ("tuner.pipeline",))
    built: dict[int, Built] = {}
    started = [0.0] * len(schedules)
    sizes = None if extent.problem is None else tuple(extent.problem.sizes.values())
    left = len(schedules)
    waiting = iter(range(len(schedules)))

    def feed() -> None:
        number = next(waiting, None)
        if number is not None:
            started[number] = time.monotonic()
            pool.submit(number, BuildJob(kernel, schedules[number], target, sizes, assembler), _LIMIT_S)

    try:
        for _ in range(2 * workers):
            feed()
        while left:
            for report in pool.wait(_LIMIT_S):
                number = report.tag
                match report:
                    case Done(result=Built(candidate=candidate) as result) if candidate is not None:
                        built[number] = result
                        job: ProveJob | WholeJob = ProveJob(candidate, (), extent.seed, None)
                        if extent.problem is not None and sizes is not None:
                            job = WholeJob(candidate, sizes, extent.seed, extent.blocks, extent.problem.data)
                        pool.submit(number, job, _LIMIT_S)
                        continue
                    case Done(result=Built(failure=failure)):
                        proven = Proven(failure=failure)
                    case Done(result=Proven() as proven):
                        pass
                    case Done(result=Halted(message)):
                        raise HaltedError(message)
                    case Died(reason=reason):
                        proven = Proven(failure=Failure(Outcome.CRASH, f"the worker ended: {reason}"))
                    case Late(limit_s=limit_s):
                        proven = Proven(failure=Failure(Outcome.TIMEOUT, f"took longer than {limit_s:g} s"))
                left -= 1
                feed()
                candidate = built[number].candidate if number in built else None
                yield Checked(
                    target.arch.name,
                    schedules[number],
                    proven.failure,
                    candidate.resources if candidate else None,
                    proven.verdict.problems if proven.verdict else (),
                    time.monotonic() - started[number],
                )
    finally:
        pool.close()
