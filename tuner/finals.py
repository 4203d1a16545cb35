"""The last word on a measured study: its fastest are timed again, interleaved, and one is chosen."""

from collections.abc import Sequence
from typing import Protocol

from emitters.kernel import Problem
from emitters.target import Target
from results.finals import Final
from results.trial import Outcome, Trial
from tuner.devices.device import Candidate
from tuner.devices.jobs import Finalists
from tuner.pipeline import BuildJob, HaltedError, build
from tuner.ptxas import Assembler

FINALISTS = 4


class Arena(Protocol):
    """A device that compares candidates side by side: those of `tuner.devices.cuda`."""

    @property
    def target(self) -> Target: ...
    def compare(self, candidates: Sequence[Candidate], problem: Problem, seed: int) -> Finalists: ...


def final_of(
    rows: Sequence[Trial],
    arena: Arena,
    problem: Problem,
    assembler: Assembler,
    count: int = FINALISTS,
    seed: int = 0,
) -> Final | None:
    """Time the fastest trials of a study again, interleaved.

    Args:
        rows: Of one study.
        arena: Where they were measured.
        problem: What they were measured on.
        assembler: Assembles them again.
        count: Finalists at most.
        seed: Of the order within rounds.

    Returns:
        None where no trial has a time.

    Raises:
        HaltedError: A trial that was timed does not build again.
        CandidateError: A finalist failed on the device.
    """
    timed = sorted(
        (row for row in rows if row.outcome is Outcome.OK and row.measurement is not None), key=_time_of
    )[:count]
    if not timed:
        return None
    candidates = [_rebuilt(row, arena.target, problem, assembler) for row in timed]
    finalists = arena.compare(candidates, problem, seed)
    numbers = tuple(row.number for row in timed)
    return Final(
        numbers=numbers,
        medians_us=finalists.comparison.medians,
        tied=tuple(numbers[index] for index in finalists.comparison.tied),
        chosen=numbers[finalists.chosen(candidates)],
    )


def _time_of(row: Trial) -> float:
    assert row.measurement is not None
    return row.measurement.time_us


def _rebuilt(row: Trial, target: Target, problem: Problem, assembler: Assembler) -> Candidate:
    sizes = tuple(problem.sizes.values())
    built = build(BuildJob(row.key.kernel, dict(row.schedule), target, sizes, assembler))
    if built.candidate is None:
        why = built.failure.message if built.failure else "it says nothing"
        raise HaltedError(f"trial {row.number} was timed, but does not build again: {why}")
    return built.candidate
