"""Trials as a recorded space: of each group of comparable ones, the first of every schedule.

Comparable are trials of one kernel (and meaning of it), problem, arch, device and policy, whatever study
they are in. What replays our trials and what exports them both take them from here.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from results.trial import Outcome, ParameterValue, Trial


@dataclass(frozen=True)
class RecordedSpace:
    """Comparable trials, one a schedule; never empty.

    Attributes:
        trials: By study and number; all have the same parameters.
        originals: For each, the position here of the trial whose result it was told; its own where it was
            evaluated itself, or where the other is not known.
    """

    trials: tuple[Trial, ...]
    originals: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters, in the order in which the first trial has them."""
        return tuple(self.trials[0].schedule)

    @property
    def values(self) -> tuple[tuple[ParameterValue, ...], ...]:
        """Levels of each parameter that were tried, ascending, texts last."""
        columns = [{trial.schedule[name] for trial in self.trials} for name in self.names]
        return tuple(tuple(sorted(column, key=lambda v: (isinstance(v, str), v))) for column in columns)

    @property
    def label(self) -> str:
        """Kernel, problem, arch, device and policy, for a person who has to choose."""
        key = self.trials[0].key
        return " ".join((key.kernel, key.problem, key.arch, key.device, key.policy))

    @property
    def source(self) -> str:
        """How the times were obtained, as in `results.trial.Source`; what an answer of a recording had is
        that of the recording. Several are joined by commas; empty where no trial has a time."""
        return ", ".join(sorted({source_recorded(trial) for trial in self.trials} - {""}))

    @property
    def is_predicted(self) -> bool:
        """Whether a time of it was predicted."""
        return "model" in self.source.split(", ")

    def message(self, position: int) -> str:
        """The message of a trial; of one that was told another's result, that other's."""
        return self.trials[self.originals[position]].message


class MixedParametersError(ValueError):
    """Trials that should be of one space have different parameters."""


def recorded_spaces(trials: Iterable[Trial]) -> list[RecordedSpace]:
    """A recorded space of each group of comparable trials; running ones are left out.

    Raises:
        MixedParametersError: Trials of a group differ in their parameters.
    """
    groups: dict[tuple[str, ...], list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.outcome is not Outcome.STARTED:
            key = trial.key
            group = (key.kernel, key.problem, key.arch, key.device, key.policy, key.semantic_hash)
            groups[group].append(trial)
    return [_space_of(groups[group]) for group in sorted(groups)]


def source_recorded(trial: Trial) -> str:
    """How the time of a trial was first obtained; empty for one that has none."""
    if trial.measurement is None or not trial.outcome.has_time:
        return ""
    return str(trial.measurement.details.get("recorded", trial.measurement.source))


def _space_of(trials: list[Trial]) -> RecordedSpace:
    ordered = sorted(trials, key=lambda trial: (trial.study, trial.number))
    names = tuple(ordered[0].schedule)
    place: dict[tuple[ParameterValue, ...], int] = {}
    kept: list[Trial] = []
    by_number: dict[tuple[str, int], int] = {}
    for trial in ordered:
        if set(trial.schedule) != set(names):
            raise MixedParametersError(
                f"all trials must have the parameters {', '.join(names)}; trial {trial.number} of "
                f"{trial.study} has {', '.join(trial.schedule)}"
            )
        schedule = tuple(trial.schedule[name] for name in names)
        if schedule not in place:
            place[schedule] = len(kept)
            kept.append(trial)
        by_number[trial.study, trial.number] = place[schedule]
    originals: list[int] = []
    for position, trial in enumerate(kept):
        told = trial.duplicate_of
        original = position if told is None else by_number.get((trial.study, told), position)
        # What a trial was told is of an earlier one, which stands before it and has its own original already.
        originals.append(originals[original] if original < position else position)
    return RecordedSpace(tuple(kept), tuple(originals))
