"""Mutates the kernels of several schedules and counts what became of the mutants."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from emitters.kernel import ParameterValue
from emitters.target import Target
from tuner.mutation.judging import Fate, Judge, Judged
from tuner.mutation.mutant import Mutant
from tuner.mutation.sampling import every_mutant, sample
from tuner.pipeline import BuildJob, build
from tuner.pool import Died, Done, Late, Pool, Report
from tuner.ptxas import Assembler
from tuner.task import RequestError

LIMIT_S = 120.0
_KERNEL = -1
"""Tag of the job that proves the kernel itself."""


class MutationError(RequestError):
    """A schedule that cannot be mutated: it does not build, or is not right to begin with."""


@dataclass(frozen=True)
class Mutated:
    """One schedule's mutants.

    Attributes:
        schedule: Every parameter by name.
        possible: How many mutants there are.
        judged: Those that were tried.
    """

    schedule: Mapping[str, ParameterValue]
    possible: int
    judged: tuple[Judged, ...] = field(default=())

    def count(self, fate: Fate) -> int:
        return sum(judged.fate is fate for judged in self.judged)

    def reasons(self, fate: Fate) -> Counter[str]:
        """How many of a fate, by detector or reason."""
        return Counter(judged.why for judged in self.judged if judged.fate is fate)

    def of(self, fate: Fate) -> tuple[Judged, ...]:
        return tuple(judged for judged in self.judged if judged.fate is fate)


def mutate(
    kernel: str,
    schedule: dict[str, ParameterValue],
    target: Target,
    count: int,
    seed: int,
    assembler: Assembler,
    workers: int,
    told: Callable[[int], None] = lambda _: None,
) -> Mutated:
    """Try mutants of one schedule.

    Args:
        kernel: Id.
        schedule: Every parameter by name.
        target: What to emit for.
        count: How many mutants.
        seed: Chooses them.
        assembler: For the kernel, and for mutants that live.
        workers: Processes.
        told: Called with the number of judged mutants, now and then.

    Raises:
        MutationError: The schedule itself does not build or is not right.
    """
    built = build(BuildJob(kernel, schedule, target, None, assembler))
    if built.candidate is None:
        assert built.failure is not None
        raise MutationError(f"a schedule must build before it is mutated: {built.failure.message}")
    judge = Judge(built.candidate, assembler)
    mutants = sample(built.candidate.emitted, count, np.random.default_rng(seed))
    possible = sum(map(len, every_mutant(built.candidate.emitted).values()))
    judged = dict(_judged(judge, mutants, workers, told))
    return Mutated(schedule, possible, tuple(judged[number] for number in range(len(mutants))))


def _judged(
    judge: Judge, mutants: Sequence[Mutant], workers: int, told: Callable[[int], None]
) -> Iterator[tuple[int, Judged]]:
    pool = Pool(judge, workers, ("tuner.mutation.judging",))
    try:
        pool.submit(_KERNEL, None, LIMIT_S)
        for number, mutant in enumerate(mutants):
            pool.submit(number, mutant, LIMIT_S)
        left = len(mutants) + 1
        while left:
            for report in pool.wait(LIMIT_S):
                left -= 1
                if report.tag == _KERNEL:
                    _assert_right(report)
                    continue
                told(len(mutants) - left)
                match report:
                    case Done(tag, result):
                        yield tag, result
                    case Late(tag, limit_s):
                        yield tag, Judged(mutants[tag], Fate.KILLED, "timeout", f"over {limit_s:g} s")
                    case Died(tag, reason):
                        yield tag, Judged(mutants[tag], Fate.ALIVE, "crash of the simulator", reason)
    finally:
        pool.close()


def _assert_right(report: Report) -> None:
    """Raise unless the kernel itself was found right."""
    match report:
        case Done(result=""):
            return
        case Done(result=wrong):
            raise MutationError(f"a schedule must be right before it is mutated: {wrong}")
        case Late(limit_s=limit_s):
            raise MutationError(f"a schedule must be proven in {limit_s:g} s before it is mutated")
        case Died(reason=reason):
            raise MutationError(f"a schedule must be proven before it is mutated: {reason}")
