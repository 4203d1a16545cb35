"""The Parzen estimator against exact arithmetic, and the search against Optuna's own TPE."""

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import optuna
import pytest

from emitters.target import Target
from search_spaces.space import Parameter, Space
from tuner.samplers import Subject, sampler_named
from tuner.samplers.base import distributions
from tuner.samplers.tpe import Parzen, TpeCore

COUNTS = (3, 2, 4)
GRID = np.array(list(product(*(range(count) for count in COUNTS))), dtype=np.int16)
OBSERVED = np.array([[0, 1, 2], [0, 0, 2], [2, 1, 3]], dtype=np.int16)


def exact_density(row: tuple[int, ...]) -> Fraction:
    """Mixture of product kernels and a uniform component, written from the paper's formula in rationals."""
    components = len(OBSERVED) + 1
    prior = Fraction(1, components)
    total = Fraction(0)
    for observed in OBSERVED.tolist():
        kernel = Fraction(1)
        for value, seen, count in zip(row, observed, COUNTS, strict=True):
            kernel *= ((value == seen) + prior) / (1 + count * prior)
        total += kernel
    return (total + Fraction(1, np.prod(COUNTS).item())) / components


def test_density_is_the_mixture_in_exact_arithmetic_and_sums_to_one() -> None:
    density = np.exp(Parzen(OBSERVED, np.array(COUNTS)).log_density(GRID))
    expected = [float(exact_density(tuple(row))) for row in GRID.tolist()]
    np.testing.assert_allclose(density, expected, rtol=1e-12)
    assert density.sum() == pytest.approx(1.0, rel=1e-12)


def test_draws_follow_the_mixture_restricted_to_the_given_rows() -> None:
    """On the whole grid the restriction is none: frequencies are the density."""
    parzen = Parzen(OBSERVED, np.array(COUNTS))
    drawn = parzen.draw(GRID, 40_000, np.random.default_rng(5))
    frequency = np.bincount(drawn, minlength=len(GRID)) / 40_000
    expected = np.array([float(exact_density(tuple(row))) for row in GRID.tolist()])
    deviation = np.abs(frequency - expected) / np.sqrt(expected * (1 - expected) / 40_000)
    assert deviation.max() < 4.5


def test_draws_stay_within_the_given_rows() -> None:
    few = GRID[[0, 5, 17]]
    assert set(Parzen(OBSERVED, np.array(COUNTS)).draw(few, 200, np.random.default_rng(0)).tolist()) <= {
        0,
        1,
        2,
    }


def test_is_at_least_as_good_as_optunas_tpe_where_every_schedule_is_valid() -> None:
    """Optuna's own multivariate TPE over the same categoricals, 8 seeds, 60 trials."""
    space = Space(
        "toy",
        tuple(Parameter(name, (1, 2, 4, 8, 16), "power", "size") for name in "abcde"),
        (),
        Target.of("sm_89"),
    )

    def time_of(trial: optuna.Trial) -> float:
        values = [trial.suggest_categorical(p.name, p.values) for p in space.parameters]
        away = [abs(np.log2(float(value)) - 1 - index % 3) for index, value in enumerate(values)]
        return float(10 + sum(away) + away[0] * away[1])

    def mean_best(sampler: Callable[[int], optuna.samplers.BaseSampler]) -> float:
        best = []
        for seed in range(8):
            study = optuna.create_study(sampler=sampler(seed))
            study.optimize(time_of, n_trials=60)
            best.append(study.best_value)
        return float(np.mean(best))

    theirs = mean_best(lambda seed: optuna.samplers.TPESampler(seed=seed))
    assert mean_best(lambda seed: sampler_named("tpe", Subject(space), seed)) <= theirs + 0.25


def test_random_schedules_come_first() -> None:
    """Before `startup` trials are finished the estimator has nothing to go by."""
    space = Space("toy", (Parameter("a", tuple(range(64)), "ordinal", "x"),), (), Target.of("sm_89"))
    asked = []
    study = optuna.create_study(sampler=sampler_named("tpe", Subject(space), 2))
    for _ in range(TpeCore().startup):
        trial = study.ask(distributions(space))
        asked.append(trial.params["a"])
        study.tell(trial, float(trial.params["a"]))
    rng_draws = []
    study = optuna.create_study(sampler=sampler_named("random", Subject(space), 2))
    for _ in range(TpeCore().startup):
        trial = study.ask(distributions(space))
        rng_draws.append(trial.params["a"])
        study.tell(trial, 1.0)
    assert asked == rng_draws
