"""What every sampler of the table keeps to. A new sampler adds one class at the end of this page."""

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from emitters.target import Target
from results.trial import Outcome
from search_spaces.space import Constraint, Parameter, Space
from tuner.samplers import SAMPLERS, Subject, UnknownSamplerError, sampler_named
from tuner.samplers.base import Assuring, Past, SpaceExhaustedError, ValidSetSampler, distributions


def small_space() -> Space:
    """55 of 72 schedules, every kind of parameter, str and bool levels among them."""
    return Space(
        kernel="toy",
        parameters=(
            Parameter("tile", (16, 32, 64, 128), "power", "tile edge"),
            Parameter("stages", (1, 2, 3), "ordinal", "buffers"),
            Parameter("load", ("wide", "narrow", "split"), "nominal", "way of loading"),
            Parameter("swizzle", (False, True), "nominal", "whether rows are permuted"),
        ),
        constraints=(
            Constraint("shared-memory", ("tile", "stages"), lambda t, s, _: t * s <= 256, "too large"),
            Constraint("swizzle-wide", ("load", "swizzle"), lambda w, z, _: not (w == "split" and z), "no"),
        ),
        target=Target.of("sm_89"),
    )


def large_space() -> Space:
    """4,608 schedules of six parameters; `time_of` has its optimum at one of them."""
    levels = (16, 32, 64, 128)
    parameters = tuple(Parameter(name, levels, "power", "size") for name in "abcde")
    last = Parameter("f", (1, 2, 3, 4, 5, 6), "ordinal", "depth")
    rule = Constraint("not-all", ("a", "b"), lambda a, b, _: a * b != 2048 and a * b != 256 * 32, "ruled out")
    return Space("toy", (*parameters, last), (rule,), Target.of("sm_89"))


def time_of(space: Space, schedule: int) -> float:
    """A smooth, additive time with pair interactions, microseconds."""
    levels = space.levels[schedule].astype(float)
    best = np.arange(len(levels)) % 3 + 1.0
    away = np.abs(levels - best)
    return float(10 + away.sum() + 0.5 * away[0] * away[1])


def past_of(space: Space, schedules: list[int], failed: set[int], pending: list[int]) -> Past:
    times = [float("nan") if s in failed else time_of(space, s) for s in schedules]
    outcomes = tuple(Outcome.WRONG if s in failed else Outcome.OK for s in schedules)
    return Past(np.array(schedules, np.int64), np.array(times), outcomes, np.array(pending, np.int64))


class SamplerConformance:
    """Inherited by one class a sampler."""

    name: str

    def sampler(self, space: Space, seed: int = 7, look_ahead: int = 1) -> ValidSetSampler:
        return sampler_named(self.name, Subject(space), seed, look_ahead)

    def search(
        self, space: Space, trials: int, seed: int = 7, look_ahead: int = 1, failing: bool = False
    ) -> list[int]:
        """Schedules that a study asks for, one at a time."""
        study = optuna.create_study(sampler=self.sampler(space, seed, look_ahead))
        asked = []
        for _ in range(trials):
            trial = study.ask(distributions(space))
            asked.append(space.index(trial.params))
            if failing or asked[-1] % 5 == 0:
                study.tell(trial, state=TrialState.PRUNED)
            else:
                study.tell(trial, time_of(space, asked[-1]))
        return asked

    def test_proposes_every_valid_schedule_once_and_then_says_that_none_is_left(self) -> None:
        space = small_space()
        sampler = self.sampler(space)
        study = optuna.create_study(sampler=sampler)
        asked = set()
        for _ in range(len(space)):
            trial = study.ask(distributions(space))
            asked.add(space.index(trial.params))
            study.tell(trial, time_of(space, space.index(trial.params)))
        assert asked == set(range(len(space)))
        with pytest.raises(SpaceExhaustedError, match=f"all {len(space)} schedules of toy"):
            study.ask(distributions(space))

    def test_same_seed_proposes_the_same_and_another_seed_does_not(self) -> None:
        space = large_space()
        first = self.search(space, 30, seed=3)
        assert self.search(space, 30, seed=3) == first
        assert self.search(space, 30, seed=4) != first

    def test_works_when_everything_fails(self) -> None:
        asked = self.search(large_space(), 40, failing=True)
        assert len(set(asked)) == 40

    def test_pending_schedules_are_not_proposed(self) -> None:
        space = small_space()
        study = optuna.create_study(sampler=self.sampler(space, look_ahead=12))
        running = [study.ask(distributions(space)) for _ in range(12)]
        schedules = [space.index(trial.params) for trial in running]
        for trial, schedule in zip(running[:11], schedules, strict=False):
            study.tell(trial, time_of(space, schedule))
        more = [space.index(study.ask(distributions(space)).params) for _ in range(len(space) - 12)]
        assert sorted(schedules + more) == list(range(len(space)))

    def test_results_within_the_look_ahead_change_nothing(self) -> None:
        """Ask n sees the results of trials 0..n-d only, so it matters not which of the others are in."""
        space = large_space()
        asks = []
        for late_factor in (1.0, 0.001):
            study = optuna.create_study(sampler=self.sampler(space, look_ahead=4))
            for schedule in self.search(space, 20, seed=1):
                value = time_of(space, schedule) * (late_factor if len(study.trials) > 16 else 1.0)
                study.add_trial(
                    optuna.trial.create_trial(
                        params=space.values(schedule), distributions=distributions(space), value=value
                    )
                )
            asks.append(study.ask(distributions(space)).params)
        assert asks[0] == asks[1]

    def test_the_table_says_whether_it_can_tell_how_sure_it_is(self) -> None:
        space = small_space()
        entry = SAMPLERS[self.name]
        core = entry.make(Subject(space))
        assert isinstance(core, Assuring) is entry.is_assuring
        if isinstance(core, Assuring):
            few, all_of_them = ([*range(count)] for count in (5, len(space)))
            assert core.assurance(past_of(space, few, set(), [])) < 0.5
            assert core.assurance(past_of(space, all_of_them, set(), [])) == 1.0

    def test_the_core_is_pure(self) -> None:
        """The same arguments give the same proposal, whatever it was asked in between."""
        space = large_space()
        core = SAMPLERS[self.name].make(Subject(space))
        rng = np.random.default_rng(0)
        schedules = [int(s) for s in rng.permutation(len(space))[:60]]
        long = past_of(space, schedules[:50], set(schedules[:5]), schedules[50:])
        short = past_of(space, schedules[:12], set(), [])
        first = core.propose(long, space, np.random.default_rng(1))
        core.propose(short, space, np.random.default_rng(2))
        assert core.propose(long, space, np.random.default_rng(1)) == first
        assert (
            SAMPLERS[self.name].make(Subject(space)).propose(long, space, np.random.default_rng(1)) == first
        )
        assert long.schedules.tolist() == schedules[:50]
        assert long.pending.tolist() == schedules[50:]

    def test_a_space_of_one_schedule(self) -> None:
        only = Space("toy", (Parameter("tile", (64,), "power", "tile edge"),), (), Target.of("sm_89"))
        assert self.search(only, 1) == [0]

    def test_serves_plain_optuna(self) -> None:
        """`study.optimize` of a user who never heard of the tuner's loop."""
        space = small_space()

        def objective(trial: optuna.Trial) -> float:
            values = {p.name: trial.suggest_categorical(p.name, p.values) for p in space.parameters}
            return time_of(space, space.index(values))

        study = optuna.create_study(sampler=self.sampler(space))
        study.optimize(objective, n_trials=25)
        assert len({tuple(trial.params.values()) for trial in study.trials}) == 25

    def test_failed_trials_are_free_to_be_proposed_again(self) -> None:
        """FAIL is Optuna's word for a trial that was given up, not for a candidate that failed."""
        space = Space("toy", (Parameter("tile", (32, 64), "power", "tile edge"),), (), Target.of("sm_89"))
        study = optuna.create_study(sampler=self.sampler(space))
        study.tell(study.ask(distributions(space)), state=TrialState.FAIL)
        asked = [study.ask(distributions(space)).params["tile"] for _ in range(2)]
        assert sorted(asked) == [32, 64]

    def test_refuses_to_sample_an_unknown_parameter(self) -> None:
        study = optuna.create_study(sampler=self.sampler(small_space()))
        trial = study.ask()
        with pytest.raises(ValueError, match="'depth' is none of tile, stages, load, swizzle"):
            trial.suggest_int("depth", 1, 3)


class GuidedConformance(SamplerConformance):
    """For samplers that learn."""

    def test_finds_better_schedules_than_random_ones(self) -> None:
        space = large_space()

        def best(schedules: list[int]) -> float:
            return min(time_of(space, s) for s in schedules if s % 5)

        ours = [best(self.search(space, 60, seed)) for seed in range(6)]
        others = [best(np.random.default_rng(s).permutation(len(space))[:60].tolist()) for s in range(6)]
        assert np.mean(ours) < np.mean(others)


class TestRandom(SamplerConformance):
    name = "random"


class TestTpe(GuidedConformance):
    name = "tpe"


class TestAuto(GuidedConformance):
    name = "auto"


def test_every_sampler_of_the_table_is_tested() -> None:
    suites = (*SamplerConformance.__subclasses__(), *GuidedConformance.__subclasses__())
    assert {suite.name for suite in suites if hasattr(suite, "name")} == set(SAMPLERS)


def test_unknown_sampler_names_the_near_ones() -> None:
    with pytest.raises(UnknownSamplerError, match="unknown sampler 'tpee'; did you mean tpe"):
        sampler_named("tpee", Subject(small_space()), 0)


def test_a_core_that_repeats_itself_is_caught() -> None:
    class Stubborn:
        def propose(self, past: Past, space: Space, rng: np.random.Generator) -> int:
            return 0

    space = small_space()
    study = optuna.create_study(sampler=ValidSetSampler("stubborn", Stubborn(), space, 0))
    study.tell(study.ask(distributions(space)), 1.0)
    with pytest.raises(AssertionError, match="stubborn must propose a free schedule below 55, got 0"):
        study.ask(distributions(space))
