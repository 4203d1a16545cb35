"""Shares of variance: against what arithmetic gives, and what a fitted model makes of trials."""

import itertools

import numpy as np
import pytest

from search_spaces.space import Parameter
from tuner.samplers.importance import (
    explain,
    factor_levels,
    left_out,
    lines,
    tied,
    variance_shares,
)


def grid(*counts: int) -> np.ndarray:
    return np.array(list(itertools.product(*map(range, counts))), dtype=np.int16)


def shares_of(levels: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    crossing = lines(levels, np.arange(len(levels)))
    shares = variance_shares(levels, crossing, values[crossing.members], float(values.var()))
    return shares.main, shares.total, shares.pairs


def test_a_sum_is_all_main_effects() -> None:
    """Over -1 and 1, a + 2 b has variances 1 and 4 of 5."""
    levels = grid(2, 2, 3)
    a, b = 2.0 * levels[:, 0] - 1, 2.0 * levels[:, 1] - 1
    main, total, pairs = shares_of(levels, a + 2 * b)
    np.testing.assert_allclose(main, [0.2, 0.8, 0], atol=1e-12)
    np.testing.assert_allclose(total, [0.2, 0.8, 0], atol=1e-12)
    np.testing.assert_allclose(pairs, 0, atol=1e-12)


def test_a_product_of_signs_is_all_interaction() -> None:
    levels = grid(2, 2, 3)
    values = (2.0 * levels[:, 0] - 1) * (2.0 * levels[:, 1] - 1)
    main, total, pairs = shares_of(levels, values)
    np.testing.assert_allclose(main, 0, atol=1e-12)
    np.testing.assert_allclose(total, [1, 1, 0], atol=1e-12)
    np.testing.assert_allclose(pairs, [[0, 1, 0], [1, 0, 0], [0, 0, 0]], atol=1e-12)


def test_a_sum_and_a_product_share_as_sobol_has_it() -> None:
    """a + b + 2ab over signs: variances 1, 1 and 4 of 6."""
    levels = grid(2, 2)
    a, b = 2.0 * levels[:, 0] - 1, 2.0 * levels[:, 1] - 1
    main, total, pairs = shares_of(levels, a + b + 2 * a * b)
    np.testing.assert_allclose(main, [1 / 6, 1 / 6], atol=1e-12)
    np.testing.assert_allclose(total, [5 / 6, 5 / 6], atol=1e-12)
    np.testing.assert_allclose(pairs[0, 1], 4 / 6, atol=1e-12)


def test_what_only_goes_with_another_takes_no_credit() -> None:
    """b can differ alone, is mostly equal to a, and does nothing: means by its levels would say otherwise."""
    levels = np.array([[0, 0], [1, 1], [2, 2], [3, 3], [0, 1]], dtype=np.int16)
    levels = np.concatenate([np.column_stack([levels, np.full(len(levels), c)]) for c in range(2)])
    main, total, _ = shares_of(levels.astype(np.int16), levels[:, 0].astype(float))
    assert total[1] == main[1] == 0


def test_nothing_is_shared_of_a_constant() -> None:
    levels = grid(2, 3)
    main, total, pairs = shares_of(levels, np.full(len(levels), 7.0))
    assert not main.any()
    assert not total.any()
    assert not pairs.any()


def test_parameters_that_rules_tie_are_one_factor() -> None:
    """Of padding and swizzle a schedule has exactly one; the rest is free, and one parameter is fixed."""
    levels = np.array([row for row in grid(3, 2, 2, 1).tolist() if row[1] != row[2]], dtype=np.int16)
    factors = tied(levels, [3, 2, 2, 1])
    assert factors == ((0,), (1, 2), (3,))
    by_factor = factor_levels(levels, factors)
    assert by_factor.shape == (6, 3)
    main, total, _ = shares_of(by_factor, 10.0 * levels[:, 1] + levels[:, 0])
    assert total[1] > 0.9
    assert main[1] == pytest.approx(total[1])
    assert total[2] == 0


def test_left_out_is_what_leaving_out_gives() -> None:
    """The closed form, against predicting each of ten values from the nine others."""
    rng = np.random.default_rng(0)
    x = rng.random(10)
    covariance = np.exp(-np.abs(x[:, None] - x[None, :])) + 0.1 * np.eye(10)
    y = np.sin(5 * x) + 0.1 * rng.normal(size=10)
    missed = []
    for one in range(10):
        rest = np.arange(10) != one
        solved = np.linalg.solve(covariance[np.ix_(rest, rest)], y[rest])
        missed.append(y[one] - covariance[one, rest] @ solved)
    expected = 1 - np.sum(np.square(missed)) / np.sum((y - y.mean()) ** 2)
    assert left_out(np.linalg.inv(covariance), y) == pytest.approx(expected)


PARAMETERS = tuple(Parameter(name, (1, 2, 4, 8, 16), "power", "made up") for name in "abcd")


def test_the_model_finds_what_made_the_times() -> None:
    """a matters most, then b, c only with d; of 625 schedules 150 are seen, a tenth of which failed."""
    levels = grid(5, 5, 5, 5)
    a, b, c, d = (levels.T - 2.0) / 2
    times_us = np.exp(2 * a + b + 0.8 * c * d)
    tried = np.random.default_rng(1).permutation(625)[:150]
    seen = times_us[tried]
    seen[levels[tried, 0] == 4] = np.where(np.arange(np.sum(levels[tried, 0] == 4)) % 2 == 0, np.nan, 50)
    found = explain(PARAMETERS, levels, tried, seen)
    assert found.factors == ((0,), (1,), (2,), (3,))
    total, main, pairs = found.shares.total, found.shares.main, found.shares.pairs
    assert total[0] > total[1] > max(total[2], total[3]) > 0.02
    assert main[0] > 0.4
    assert main[2] < total[2] / 2
    assert np.argmax(pairs[2]) == 3
    assert found.explained > 0.7


def test_a_model_of_noise_says_that_it_explains_nothing() -> None:
    levels = grid(5, 5, 5, 5)
    rng = np.random.default_rng(2)
    tried = rng.permutation(625)[:100]
    assert explain(PARAMETERS, levels, tried, np.exp(rng.normal(size=100))).explained < 0.15
