"""What a sampler is told of the past: the same whether it was read trial by trial or all at once."""

import copy

import numpy as np
import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from emitters.target import Target
from search_spaces.space import Parameter, Space
from tuner.samplers.base import OUTCOME_ATTRIBUTE, Past, ValidSetSampler

SPACE = Space(
    "made_up",
    tuple(Parameter(name, (1, 2, 4, 8), "power", "made up") for name in "abc"),
    (),
    Target.of("sm_80"),
)


class Listener:
    """A core that keeps what it is told, and proposes the first free schedule."""

    def __init__(self) -> None:
        self.told: list[Past] = []

    def propose(self, past: Past, space: Space, rng: np.random.Generator) -> int:
        self.told.append(past)
        return int(past.free(space)[0])


def same(one: Past, other: Past) -> None:
    np.testing.assert_array_equal(one.schedules, other.schedules)
    np.testing.assert_array_equal(one.times_us, other.times_us)
    np.testing.assert_array_equal(one.pending, other.pending)
    assert one.outcomes == other.outcomes


def told(trials: list[FrozenTrial], number: int, look_ahead: int) -> Past:
    """By a sampler that sees these trials for the first time."""
    core = Listener()
    ValidSetSampler("listener", core, SPACE, 1, look_ahead).propose(trials, number)
    return core.told[-1]


@pytest.mark.parametrize("look_ahead", [1, 3])
def test_the_past_grows_as_if_it_were_read_anew(look_ahead: int) -> None:
    """Trials end out of order, as complete, pruned or failed."""
    core = Listener()
    sampler = ValidSetSampler("listener", core, SPACE, 1, look_ahead)
    study = optuna.create_study(sampler=sampler)
    rng = np.random.default_rng(0)
    flights: list[optuna.Trial] = []
    for number in range(40):
        flights.append(study.ask(sampler._distributions))  # type: ignore[arg-type]
        trials = [t for t in study.get_trials(deepcopy=False) if t.number < number]
        same(core.told[-1], told(trials, number, look_ahead))
        if len(flights) == look_ahead:
            ended = flights.pop(int(rng.integers(look_ahead)))
            kind = number % 5
            if kind == 3:
                ended.set_user_attr(OUTCOME_ATTRIBUTE, "wrong")
            state = {3: TrialState.PRUNED, 4: TrialState.FAIL}.get(kind, TrialState.COMPLETE)
            study.tell(ended, None if kind > 2 else float(number + 1), state=state)
    last = core.told[-1]
    assert {str(outcome) for outcome in last.outcomes} == {"ok", "wrong"}
    assert len(last.schedules) > 25
    assert np.isnan(last.times_us).sum() == list(map(str, last.outcomes)).count("wrong")


def test_other_trials_under_the_same_numbers_are_read_anew() -> None:
    """As after a study was rebuilt, and with storages that copy what they hand out."""
    core = Listener()
    sampler = ValidSetSampler("listener", core, SPACE, 1)
    study = optuna.create_study(sampler=sampler)
    for number in range(6):
        study.tell(study.ask(sampler._distributions), float(number))  # type: ignore[arg-type]
    trials = study.get_trials(deepcopy=False)
    sampler.propose(trials, 6)
    changed = copy.deepcopy(trials)
    changed[2].values = [99.0]
    sampler.propose(changed, 6)
    assert core.told[-1].times_us[2] == 99.0
    sampler.propose(trials[:4], 4)
    same(core.told[-1], told(trials[:4], 4, 1))
    sampler.propose(trials, 6)
    same(core.told[-1], told(trials, 6, 1))
