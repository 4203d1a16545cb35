"""One schedule, proven and timed on its own."""

from dataclasses import asdict, dataclass
from typing import Any

from emitters.kernel import ParameterValue
from results.trial import Measurement, Resources
from tuner.cost_model import Bound
from tuner.pipeline import BuildJob, Failure, ProveJob, build, gate, time_on
from tuner.ptxas import Assembler
from tuner.task import Task


class CandidateFailedError(Exception):
    """A schedule that is not right or cannot be timed. The message says what became of it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.outcome}: {failure.message}")


@dataclass(frozen=True)
class Timed:
    """A time and what belongs to it.

    Attributes:
        schedule: Every parameter by name.
        measurement: The time and its parts.
        resources: Of the candidate.
        bound: No time can lie below it.
    """

    schedule: dict[str, ParameterValue]
    measurement: Measurement
    resources: Resources
    bound: Bound

    @property
    def figures(self) -> dict[str, float | str]:
        """Resources, and what the device adds, by name."""
        return {**asdict(self.resources), **self.measurement.details}

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "source": str(self.measurement.source)}


def time_schedule(task: Task, schedule: dict[str, ParameterValue], assembler: Assembler) -> Timed:
    """Emit, assemble, prove and time a schedule in this process.

    Raises:
        CandidateFailedError: It failed on the way.
        HaltedError: The device or the assembler is not to be had.
    """
    sizes = tuple(task.problem.sizes.values())
    built = build(BuildJob(task.kernel.id, schedule, task.device.target, sizes, assembler))
    if built.failure is not None or built.candidate is None:
        raise CandidateFailedError(_certain(built.failure))
    proven = gate(ProveJob(built.candidate, sizes, 0, None, task.problem.data))
    if proven.failure is None:
        proven = time_on(task.device, built.candidate, task.problem, 0, None)
    if proven.failure is not None or proven.measurement is None:
        raise CandidateFailedError(_certain(proven.failure))
    bound = task.device.bound(task.kernel, task.problem)
    return Timed(schedule, proven.measurement, built.candidate.resources, bound)


def _certain(failure: Failure | None) -> Failure:
    assert failure is not None
    return failure
