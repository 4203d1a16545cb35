"""The last word on a measured study: its fastest are verified on other data and timed again, interleaved."""

from collections.abc import Sequence
from typing import Protocol

from emitters.kernel import Problem
from emitters.target import Target
from results.finals import Final
from results.trial import Outcome, Trial, Verdict
from tuner.devices.device import Candidate
from tuner.devices.jobs import Finalists
from tuner.pipeline import BuildJob, HaltedError, build
from tuner.ptxas import Assembler

FINALISTS = 4
SEED = 20_232  # of the second data set: neither a run's nor promotion's, unless one was given this very seed


class Arena(Protocol):
    """A device that compares candidates side by side: those of `tuner.devices.cuda`."""

    @property
    def target(self) -> Target: ...
    def verify(self, candidate: Candidate, problem: Problem, seed: int) -> Verdict: ...
    def compare(self, candidates: Sequence[Candidate], problem: Problem, seed: int) -> Finalists: ...


def final_of(
    rows: Sequence[Trial],
    arena: Arena,
    problem: Problem,
    assembler: Assembler,
    count: int = FINALISTS,
    seed: int = 0,
) -> Final | None:
    """Verify the fastest trials of a study on a second data set, and time them again, interleaved.

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
        HaltedError: A trial that was timed does not build again, or is wrong on the second data set.
        CandidateError: A finalist failed on the device.
    """
    timed = sorted(
        (row for row in rows if row.outcome is Outcome.OK and row.measurement is not None), key=_time_of
    )[:count]
    if not timed:
        return None
    candidates = [_rebuilt(row, arena.target, problem, assembler) for row in timed]
    for row, candidate in zip(timed, candidates, strict=True):
        verdict = arena.verify(candidate, problem, SEED)
        if not verdict.is_right:
            why = verdict.fault_message or f"{verdict.mismatches} mismatches: {verdict.first_bad}"
            raise HaltedError(
                f"trial {row.number} passed on the data of the run and fails on other data: {why}"
            )
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
