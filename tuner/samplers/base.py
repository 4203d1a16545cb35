"""The seam of a sampler: a pure core that proposes, and the one wrapper that makes it an Optuna sampler.

A core never sees Optuna: it is given what is known (`Past`) and a generator keyed by (seed, trial number),
and names a schedule of the valid set. What it remembers between calls may only save work.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from results.trial import Outcome
from search_spaces.space import Space, SpaceError
from tuner.samplers.transfer import Source

OUTCOME_ATTRIBUTE = "outcome"


class SpaceExhaustedError(Exception):
    """Every schedule of the valid set has been proposed."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a sampler is made for.

    Attributes:
        space: Whose valid set is searched.
        sizes: The problem's sizes by name.
        sources: Results of other studies, for a sampler that learns from them.
    """

    space: Space
    sizes: Mapping[str, int] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class Past:
    """What is known when a schedule is proposed. Schedules are numbers in the space's valid set.

    Attributes:
        schedules: Finished, in the order of their trial numbers; int64, shape (n,).
        times_us: Their times, microseconds; NaN where the candidate failed; float64, shape (n,).
        outcomes: What became of each, n of them.
        pending: Claimed and not finished, or too recent to be looked at; int64, shape (p,).
    """

    schedules: NDArray[np.int64]
    times_us: NDArray[np.float64]
    outcomes: tuple[Outcome, ...]
    pending: NDArray[np.int64]

    def free(self, space: Space) -> NDArray[np.int64]:
        """Schedules that are neither finished nor pending, ascending; int64."""
        mask = np.ones(len(space), dtype=np.bool_)
        mask[self.schedules] = False
        mask[self.pending] = False
        return np.flatnonzero(mask)


class Core(Protocol):
    """The thinking part of a sampler."""

    def propose(self, past: Past, space: Space, rng: np.random.Generator) -> int:
        """A schedule that is neither finished nor pending; the wrapper has made sure that there is one.

        The answer depends on the arguments alone.
        """
        ...


@runtime_checkable
class Assuring(Protocol):
    """A core that can tell how sure it is."""

    def assurance(self, past: Past) -> float:
        """The estimated probability, 0..1, that the best trial's time is within 1 % of the optimum's."""
        ...


class ValidSetSampler(BaseSampler):
    """An Optuna sampler over the enumerated valid set, which never proposes a schedule twice.

    Ask number n is answered from the results of trials 0..n-`look_ahead` and nothing later, with randomness
    keyed by (seed, n). So the same seed gives the same schedules, whatever finishes first.

    Args:
        name: For messages.
        core: Does the thinking.
        space: Whose valid set is searched.
        seed: Of all randomness.
        look_ahead: How many trials may be in flight; 1 for a sequential search.
    """

    def __init__(self, name: str, core: Core, space: Space, seed: int, look_ahead: int = 1) -> None:
        if look_ahead < 1:
            raise ValueError(f"look_ahead must be at least 1, got {look_ahead}")
        self._name = name
        self._core = core
        self._space = space
        self._seed = seed
        self._look_ahead = look_ahead
        self._distributions = distributions(space)
        self._numbers: dict[int, int | None] = {}
        self._finished = _Finished()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return dict(self._distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        earlier = [other for other in study.get_trials(deepcopy=False) if other.number < trial.number]
        return dict(self._space.values(self.propose(earlier, trial.number)))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        known = ", ".join(self._space.names)
        raise ValueError(f"{self._name} proposes whole schedules; {param_name!r} is none of {known}")

    def propose(self, earlier: Sequence[FrozenTrial], number: int) -> int:
        """The schedule for trial `number`, as its number in the valid set.

        Args:
            earlier: All trials with a lower number, in order.
            number: Of the trial that asks.

        Raises:
            SpaceExhaustedError: Nothing is left to propose.
        """
        past = self._past(earlier, number)
        taken = set(past.schedules.tolist()) | set(past.pending.tolist())
        if len(taken) >= len(self._space):
            raise SpaceExhaustedError(
                f"all {len(self._space)} schedules of {self._space.kernel} have been tried"
            )
        proposal = int(self._core.propose(past, self._space, np.random.default_rng([self._seed, number])))
        if proposal in taken or not 0 <= proposal < len(self._space):
            raise AssertionError(
                f"{self._name} must propose a free schedule below {len(self._space)}, got {proposal}"
            )
        return proposal

    def assurance(self, trials: Sequence[FrozenTrial]) -> float:
        """The core's estimate that the best of the finished trials is within a hundredth of the optimum.

        Raises:
            TypeError: The core makes none; the table of samplers tells.
        """
        if not isinstance(self._core, Assuring):
            raise TypeError(f"{self._name} does not estimate how sure it is")
        return self._core.assurance(self._past(trials, len(trials) + self._look_ahead))

    def _past(self, earlier: Sequence[FrozenTrial], number: int) -> Past:
        known = self._finished_of(earlier, number - self._look_ahead)
        schedules, times_us, outcomes = known.schedules[:], known.times_us[:], known.outcomes[:]
        pending: list[int] = []
        for trial in islice(earlier, len(known.trials), None):
            schedule = None if trial.state is TrialState.FAIL else self._schedule(trial)
            if schedule is None:
                continue
            if trial.number > number - self._look_ahead or not trial.state.is_finished():
                pending.append(schedule)
                continue
            schedules.append(schedule)
            times_us.append(_time_of(trial))
            outcomes.append(_outcome_of(trial))
        return Past(
            np.array(schedules, dtype=np.int64),
            np.array(times_us, dtype=np.float64),
            tuple(outcomes),
            np.array(pending, dtype=np.int64),
        )

    def _finished_of(self, earlier: Sequence[FrozenTrial], last: int) -> "_Finished":
        """What the first trials say, as far as all of them have ended and no number is above `last`.

        Storages that hand out the same object for a trial that has ended (memory, journal) are asked about it
        once; of others, everything is read anew.
        """
        known = self._finished
        shared = len(known.trials)
        if shared > len(earlier) or not all(map(operator.is_, known.trials, earlier)):
            known = _Finished()
        elif shared and known.trials[-1].number > last:
            return _Finished()
        for trial in islice(earlier, len(known.trials), None):
            if trial.number > last or not trial.state.is_finished():
                break
            known.trials.append(trial)
            schedule = None if trial.state is TrialState.FAIL else self._schedule(trial)
            if schedule is not None:
                known.schedules.append(schedule)
                known.times_us.append(_time_of(trial))
                known.outcomes.append(_outcome_of(trial))
        self._finished = known
        return known

    def _schedule(self, trial: FrozenTrial) -> int | None:
        """Number of a trial's schedule in the valid set; None where it has none, or not all of one yet."""
        if trial.number in self._numbers:
            return self._numbers[trial.number]
        if len(trial.params) < len(self._space.names) and not trial.state.is_finished():
            return None
        try:
            schedule = self._space.index(trial.params)
        except SpaceError:
            schedule = None
        self._numbers[trial.number] = schedule
        return schedule


@dataclass
class _Finished:
    """Trials that have ended, in order from the first, and what those with a schedule say.

    Attributes:
        trials: The objects.
        schedules, times_us, outcomes: As in `Past`; fewer, where a trial has no schedule of the space.
    """

    trials: list[FrozenTrial] = field(default_factory=list)
    schedules: list[int] = field(default_factory=list)
    times_us: list[float] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)


def _time_of(trial: FrozenTrial) -> float:
    is_timed = trial.state is TrialState.COMPLETE and trial.values
    return float(trial.values[0]) if is_timed else float("nan")


def _outcome_of(trial: FrozenTrial) -> Outcome:
    usual = Outcome.OK if trial.state is TrialState.COMPLETE else Outcome.CRASH
    return Outcome(trial.user_attrs.get(OUTCOME_ATTRIBUTE, usual))


def distributions(space: Space) -> dict[str, CategoricalDistribution]:
    """Optuna's distribution of every parameter: its levels as they are."""
    return {parameter.name: CategoricalDistribution(parameter.values) for parameter in space.parameters}
