"""The Optuna side of a study: schedules are claimed in it, results told to it, and rows repair it.

The row store is the truth. What Optuna's storage has otherwise (a trial that was never told, one left RUNNING
by a process that is gone, a log that was cut or lost) is mended from the rows when a study is opened.
"""

import dataclasses
import operator
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from results.trial import Outcome, ParameterValue, StudyKey, Trial
from search_spaces.space import Space
from tuner.journal import NAME, open_journal
from tuner.locks import DIRECTORY, Presence, locked
from tuner.samplers.base import OUTCOME_ATTRIBUTE, ValidSetSampler, distributions

OWNER_ATTRIBUTE = "owner"
_LOST = "lost"


class StudyError(ValueError):
    """A study that cannot be run as asked. The message says why, and the way out."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A schedule that this process alone evaluates, and its trial number."""

    number: int
    schedule: dict[str, ParameterValue]


class Ledger:
    """One study in OUT's journal, shared with other processes that run it.

    Args:
        out: Directory of the journal, which exists.
        name: The study's name.
        key: What its trials have in common; a study of that name must have the same.
        space: Whose valid set is searched.
        presence: Of this process.
        attributes: Study attributes to set where it is new, such as the seed.
        notice: Called with one line about each thing that was repaired.
    """

    def __init__(
        self,
        out: Path,
        name: str,
        key: StudyKey,
        space: Space,
        presence: Presence,
        attributes: Mapping[str, str | int],
        notice: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._out = out
        self._name = name
        self._key = dataclasses.asdict(key)
        self._space = space
        self._distributions: dict[str, CategoricalDistribution] = distributions(space)
        self._presence = presence
        self._attributes = dict(attributes)
        self._notice = notice
        self._ended: list[FrozenTrial] = []  # the first trials, as far as all of them have ended
        self._ended_count = 0  # how many of these count
        with self._claims():
            self._storage = self._open_storage()
            self._study = self._open_study()

    @property
    def study(self) -> optuna.Study:
        """As any Optuna program would load it."""
        return self._study

    def attribute(self, name: str) -> Any:
        """A study attribute."""
        return self._study.user_attrs[name]

    def trials(self) -> list[FrozenTrial]:
        """All trials in the order of their numbers, other processes' included. Not to be changed."""
        return self._study.get_trials(deepcopy=False)

    def claim(self, sampler: ValidSetSampler, total: int, first: int | None) -> Claim | None:
        """A schedule for a new trial; None when finished and running trials make up the total.

        Args:
            sampler: Proposes it.
            total: Trials that count, wanted in all.
            first: The schedule of trial 0; None leaves it to the sampler.

        Raises:
            SpaceExhaustedError: Nothing is left to propose.
        """
        with self._claims():
            trials = self.trials()
            if self._counted(trials) >= total:
                return None
            number = len(trials)
            proposal = first if number == 0 and first is not None else sampler.propose(trials, number)
            schedule = self._space.values(proposal)
            # One record, so that a claim is there whole or not at all; Optuna's `ask` writes one a parameter.
            self._study.add_trial(
                self._frozen(schedule, TrialState.RUNNING, {OWNER_ATTRIBUTE: self._presence.token})
            )
            return Claim(number, schedule)

    def tell(self, row: Trial) -> None:
        """Tell the result of a claimed trial, which the row store has already."""
        trial_id = self._trial_id(row.number)
        for name, attribute in _attributes_of(row).items():
            self._storage.set_trial_user_attr(trial_id, name, attribute)
        state, figure = _told(row)
        self._study.tell(row.number, values=figure, state=state)

    def other_runs(self) -> frozenset[str]:
        """Owner tokens of the other processes that are alive in OUT."""
        return frozenset(self._presence.others())

    def orphans(self) -> list[int]:
        """Numbers of running trials whose process is gone."""
        running = [trial for trial in self.trials() if trial.state is TrialState.RUNNING]
        owners = {str(trial.user_attrs.get(OWNER_ATTRIBUTE, "")) for trial in running}
        gone = {owner for owner in owners if not self._presence.is_alive(owner)}
        return [trial.number for trial in running if str(trial.user_attrs.get(OWNER_ATTRIBUTE, "")) in gone]

    def take_over(
        self, read_rows: Callable[[], Sequence[Trial]], sampler: ValidSetSampler, limit: int
    ) -> list[Claim]:
        """Settle trials of processes that are gone: told where a row has the result, else claimed.

        Args:
            read_rows: Reads the finished rows of this study; called after the processes were found gone.
            sampler: Proposes again where even the schedule was lost.
            limit: Most claims.
        """
        claims: list[Claim] = []
        with self._claims():
            orphans = self.orphans()
            rows = {row.number: row for row in read_rows()} if orphans else {}
            for number in orphans:
                if number in rows:
                    self.tell(rows[number])
                elif len(claims) < limit:
                    schedule = self._schedule_again(number, sampler)
                    if schedule is not None:
                        owner = self._presence.token
                        self._storage.set_trial_user_attr(self._trial_id(number), OWNER_ATTRIBUTE, owner)
                        claims.append(Claim(number, schedule))
        return claims

    def mend(self, read_rows: Callable[[], Sequence[Trial]]) -> None:
        """Make Optuna's storage say what the finished rows of this study say.

        Args:
            read_rows: Reads them. Called after Optuna's trials have been read: since a row is written before
                its trial is told, every finished trial has its row then, whatever other processes do.

        Raises:
            StudyError: It has to be rebuilt, and another process is using it.
        """
        with self._claims():
            trials = self.trials()
            rows = {row.number: row for row in read_rows()}
            if self._differs(trials, rows):
                self._rebuild(trials, rows)
                return
            for number in sorted(rows.keys() - set(range(len(trials)))):
                self._study.add_trial(self._finished(rows[number]))
            for number in self.orphans():
                if number in rows:
                    self.tell(rows[number])

    def _counted(self, trials: Sequence[FrozenTrial]) -> int:
        """How many of the wanted number trials take. Those that have ended are looked at once: the storage
        hands out the same objects again."""
        ended = self._ended
        if len(ended) > len(trials) or not all(map(operator.is_, ended, trials)):
            ended.clear()
            self._ended_count = 0
        for trial in islice(trials, len(ended), None):
            if not trial.state.is_finished():
                break
            ended.append(trial)
            self._ended_count += counts(trial)
        return self._ended_count + sum(map(counts, islice(trials, len(ended), None)))

    def _claims(self) -> AbstractContextManager[None]:
        return locked(self._out / DIRECTORY / "claims.lock")

    def _open_storage(self) -> optuna.storages.JournalStorage:
        try:
            return open_journal(self._out)
        except (ValueError, KeyError, AssertionError, TypeError) as error:
            self._demand_alone(f"{self._out / NAME} cannot be read ({type(error).__name__}: {error})")
            aside = self._out / f"{NAME}.unreadable-{time.time_ns()}"
            os.replace(self._out / NAME, aside)
            self._notice(f"{self._out / NAME} could not be read; kept as {aside.name}, rebuilt from the rows")
            return open_journal(self._out)

    def _open_study(self) -> optuna.Study:
        try:
            study = optuna.load_study(study_name=self._name, storage=self._storage)
        except KeyError:
            study = optuna.create_study(study_name=self._name, storage=self._storage, direction="minimize")
            for name, value in {**self._key, **self._attributes}.items():
                study.set_user_attr(name, value)
        self._check_key(study)
        return study

    def _check_key(self, study: optuna.Study) -> None:
        attributes = study.user_attrs
        for name, value in {**self._key, **self._attributes}.items():
            if name not in attributes:  # its maker was killed while setting them
                study.set_user_attr(name, value)
            elif name in self._key and attributes[name] != value:
                raise StudyError(
                    f"study {self._name!r} has {name} {attributes[name]}, not {value}; give another --study"
                )

    def _demand_alone(self, why: str) -> None:
        others = self._presence.others()
        if others:
            raise StudyError(f"{why}, and another run is using it ({others[0]}); wait for it or stop it")

    def _differs(self, trials: Sequence[FrozenTrial], rows: Mapping[int, Trial]) -> bool:
        for trial in trials:
            row = rows.get(trial.number)
            if row is None:
                if trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
                    return True
            elif trial.params != dict(row.schedule):
                return True
            elif trial.state.is_finished():
                state, value = _told(row)
                if trial.state is not state or (value is not None and trial.value != value):
                    return True
        missing = [number for number in rows if number >= len(trials)]
        return sorted(missing) != list(range(len(trials), len(trials) + len(missing)))

    def _rebuild(self, trials: Sequence[FrozenTrial], rows: Mapping[int, Trial]) -> None:
        self._demand_alone(f"Optuna's log of study {self._name!r} is not what the rows say")
        running = {trial.number: trial for trial in trials if trial.state is TrialState.RUNNING}
        kept = {name: value for name, value in self._study.user_attrs.items() if name in self._attributes}
        self._attributes.update(kept)
        optuna.delete_study(study_name=self._name, storage=self._storage)
        self._study = self._open_study()
        for number in range(max([*rows, *running], default=-1) + 1):
            if number in rows:
                self._study.add_trial(self._finished(rows[number]))
            elif number in running:
                self._study.add_trial(running[number])
            else:
                # In flight when everything stopped, and its claim is lost: an orphan without a schedule.
                self._study.add_trial(self._frozen({}, TrialState.RUNNING, {OWNER_ATTRIBUTE: _LOST}))
        self._notice(f"{self._out / NAME} was not what the rows say; study rebuilt from {len(rows)} rows")

    def _schedule_again(self, number: int, sampler: ValidSetSampler) -> dict[str, ParameterValue] | None:
        """The schedule of an orphan; if lost, proposed again, and None where another trial has it now."""
        trials = self.trials()
        params: dict[str, ParameterValue] = dict(trials[number].params)
        if len(params) == len(self._distributions):
            return params
        schedule = self._space.values(sampler.propose(trials[:number], number))
        if any(trial.params == schedule for trial in trials) or params.items() - schedule.items():
            self._study.tell(number, state=TrialState.FAIL)
            return None
        for name, distribution in self._distributions.items():
            internal = distribution.to_internal_repr(schedule[name])
            self._storage.set_trial_param(self._trial_id(number), name, internal, distribution)
        return schedule

    def _trial_id(self, number: int) -> int:
        study_id = self._storage.get_study_id_from_name(self._name)
        return self._storage.get_trial_id_from_study_id_trial_number(study_id, number)

    def _finished(self, row: Trial) -> FrozenTrial:
        state, value = _told(row)
        started = datetime.fromtimestamp(row.started_at, UTC)
        ended = datetime.fromtimestamp(row.finished_at or row.started_at, UTC)
        return self._frozen(row.schedule, state, _attributes_of(row), value, started, ended)

    def _frozen(
        self,
        schedule: Mapping[str, ParameterValue],
        state: TrialState,
        attributes: Mapping[str, Any],
        value: float | None = None,
        started: datetime | None = None,
        ended: datetime | None = None,
    ) -> FrozenTrial:
        return FrozenTrial(
            number=-1,  # the storage gives both
            trial_id=-1,
            state=state,
            value=value,
            datetime_start=started or datetime.now(UTC),
            datetime_complete=ended,
            params=dict(schedule),
            distributions={name: self._distributions[name] for name in schedule},
            user_attrs=dict(attributes),
            system_attrs={},
            intermediate_values={},
        )


def counts(trial: FrozenTrial) -> bool:
    """Whether a trial takes one of the wanted number: unless known to be a duplicate, it may."""
    if trial.state is TrialState.FAIL:
        return False
    return bool(trial.user_attrs.get(OUTCOME_ATTRIBUTE) != Outcome.DUPLICATE)


def counting(trials: Iterable[FrozenTrial]) -> int:
    """Finished trials that count towards ``--trials``."""
    return sum(trial.state.is_finished() and counts(trial) for trial in trials)


def _told(row: Trial) -> tuple[TrialState, float | None]:
    figure = row.figure
    return (TrialState.PRUNED if figure is None else TrialState.COMPLETE), figure


def _attributes_of(row: Trial) -> dict[str, str | int]:
    """What Optuna's dashboard shows beside the parameters."""
    attributes: dict[str, str | int] = {OUTCOME_ATTRIBUTE: str(row.outcome)}
    if row.message:
        attributes["message"] = row.message
    if row.duplicate_of is not None:
        attributes["duplicate_of"] = row.duplicate_of
    return attributes
