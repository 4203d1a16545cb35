"""Which parameters matter, by the model that searches: how much of the predicted spread each accounts for.

The model is fitted to the trials, and its posterior mean is looked at over the valid set. All shares are of
the variance of that mean, in the model's own scale: ranks of times as normal quantiles, failures the worst.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from search_spaces.space import Parameter
from tuner.samplers.coordinates import Coordinates, Floats, Indices
from tuner.samplers.covariance import Covariance
from tuner.samplers.gaussian_process import JITTER, Hints, Points, Prior, fit
from tuner.samplers.neighbourhood import Neighbourhood
from tuner.samplers.target import ranked

Levels = NDArray[np.int16]

FEWEST_TRIALS = 20
"""Below this many schedules a share is little more than the prior, and is not given."""

_MOST_FITTED = 250  # a fit costs the cube of it
_MOST_LEARNED = 600
_MOST_LOOKED_AT = 20_000
_BASES = 400  # schedules around which one parameter at a time is changed


@dataclass(frozen=True)
class Shares:
    """How much of a function's variance over a set of schedules comes from what, everything else being equal.

    Schedules that differ in one factor alone are a line. Rules tie factors together, so nothing is inferred
    from what levels happen to go with: only from lines.

    Attributes:
        main: Of each factor, the variance along its mean line; shape (factors,).
        total: The mean of the variances along its lines: with all its interactions; at least `main`.
        pairs: [f, g]: by how much the mean line of f bends with the level of g; main[f] + pairs[f, g] is at
            most total[f]. Shape (factors, factors), 0 on the diagonal.
    """

    main: Floats
    total: Floats
    pairs: Floats


@dataclass(frozen=True)
class Explanation:
    """What the model says of a set of trials.

    Attributes:
        factors: Parameters by position, each alone but for those that can only be changed together.
        shares: Of the variance of its posterior mean, by factor.
        explained: Share of the trials' own variance that it predicts when each is left out in turn; below 0
            where a constant would do better.
    """

    factors: tuple[tuple[int, ...], ...]
    shares: Shares
    explained: float


def explain(parameters: Sequence[Parameter], levels: Levels, tried: Indices, times_us: Floats) -> Explanation:
    """Fit the model to trials, and take the variance of what it predicts apart.

    Args:
        parameters: Of the space.
        levels: The valid set, shape (valid, parameters).
        tried: Numbers of different schedules in it, n of at least `FEWEST_TRIALS`.
        times_us: Of each, in any unit, NaN for a failure; shape (n,). At least two must differ.
    """
    rng = np.random.default_rng(0)
    coordinates = Coordinates.of(parameters)
    learned = np.sort(rng.permutation(len(tried))[:_MOST_LEARNED])
    targets = ranked(times_us[learned])
    points = _points(coordinates, levels[tried[learned]])
    fitted = np.sort(rng.permutation(len(learned))[:_MOST_FITTED])
    covariance = fit(points[fitted], targets[fitted], Hints.none(), Prior()).covariance
    inverse = _inverse(covariance, points)
    weights = inverse @ targets
    factors = tied(levels, [len(p.values) for p in parameters])
    by_factor = factor_levels(levels, factors)
    looked_at = np.sort(rng.permutation(len(levels))[:_MOST_LOOKED_AT])
    bases = np.sort(rng.permutation(len(levels))[:_BASES])
    crossing = lines(by_factor, bases)
    everything, where = np.unique(np.concatenate([looked_at, crossing.members]), return_inverse=True)
    there = coordinates.at(levels[everything])
    means = np.zeros(len(everything))
    for weight, point in zip(weights, points.coordinates, strict=True):
        means += weight * covariance.with_point(there, point)
    at_looked, at_lines = np.split(means[where], [len(looked_at)])
    shares = variance_shares(by_factor, crossing, at_lines, float(at_looked.var()))
    return Explanation(factors, shares, left_out(inverse, targets))


def tied(levels: Levels, counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Columns of the valid set, those that rules let nobody change alone joined with what goes with them.

    Args:
        levels: The valid set, shape (valid, parameters).
        counts: Levels of each parameter.
    """
    places = np.cumprod([1, *counts[:-1]])
    keys = levels.astype(np.int64) * places
    whole = keys.sum(axis=1)

    def freedom(columns: Sequence[int]) -> float:
        """Schedules a line on the average, when these columns may change."""
        return len(levels) / len(np.unique(whole - keys[:, list(columns)].sum(axis=1)))

    factors: list[tuple[int, ...]] = [(column,) for column in range(levels.shape[1])]
    for column in range(levels.shape[1]):
        if np.ptp(levels[:, column]) == 0 or (column,) not in factors or freedom((column,)) > 1:
            continue
        others = [factor for factor in factors if factor != (column,)]
        gains = [freedom((*factor, column)) / freedom(factor) for factor in others]
        if max(gains, default=1.0) > 1:
            partner = others[int(np.argmax(gains))]
            at = factors.index(partner)
            factors[at] = tuple(sorted((*partner, column)))
            factors.remove((column,))
    return tuple(factors)


def factor_levels(levels: Levels, factors: Sequence[Sequence[int]]) -> Levels:
    """The valid set with one column a factor: which of its combinations a schedule has."""
    columns = []
    for factor in factors:
        _, found = np.unique(levels[:, list(factor)], axis=0, return_inverse=True)
        columns.append(found.reshape(-1).astype(np.int16))
    return np.stack(columns, axis=1)


@dataclass(frozen=True)
class Lines:
    """Lines through some schedules, one for each of these and each factor.

    Attributes:
        members: Numbers of the schedules on the lines, shape (m,); on its own lines a schedule is too.
        line: Which line each is on, shape (m,); line l is of factor ``l % factors``.
        count: How many lines there are.
    """

    members: Indices
    line: Indices
    count: int


def lines(levels: Levels, bases: Indices) -> Lines:
    """All lines through schedules, which are named by their numbers."""
    factors = levels.shape[1]
    neighbourhood = Neighbourhood(levels)
    members, line = [], []
    for position, base in enumerate(bases.tolist()):
        around = neighbourhood.of(base)
        changed = np.argmax(levels[around] != levels[base], axis=1)
        members += [np.full(factors, base), around]
        line += [position * factors + np.arange(factors), position * factors + changed]
    return Lines(np.concatenate(members), np.concatenate(line), len(bases) * factors)


def variance_shares(levels: Levels, crossing: Lines, values: Floats, whole: float) -> Shares:
    """Shares of the variance of a function that is known along lines.

    Args:
        levels: By factor, shape (valid, factors).
        crossing: The lines.
        values: What it is at their members, shape (m,).
        whole: Its variance over all schedules.
    """
    factors = levels.shape[1]
    main, total, pairs = np.zeros(factors), np.zeros(factors), np.zeros((factors, factors))
    if whole <= JITTER:
        return Shares(main, total, pairs)
    weights = 1 / np.bincount(crossing.line, minlength=crossing.count)[crossing.line]
    centre = np.bincount(crossing.line, weights * values, crossing.count)
    off = values - centre[crossing.line]
    bases = crossing.count / factors
    for one in range(factors):
        on = crossing.line % factors == one
        weight, along, at = weights[on] / bases, off[on], levels[crossing.members[on]].astype(np.int64)
        scale = weight / whole
        total[one] = scale @ along**2
        mean = _means(at[:, one], weight, along)
        main[one] = scale @ mean**2
        for other in range(factors):
            if other != one:
                both = at[:, one] * (int(levels[:, other].max()) + 1) + at[:, other]
                pairs[one, other] = scale @ (_means(both, weight, along) - mean) ** 2
    return Shares(main, total, pairs)


def left_out(inverse: Floats, targets: Floats) -> float:
    """Share of the targets' variance that is predicted for each from all the others.

    In closed form (Rasmussen and Williams, Gaussian Processes for Machine Learning, equation 5.12).

    Args:
        inverse: Of the covariance of the trials, noise included, shape (n, n).
        targets: Shape (n,).
    """
    missed = (inverse @ targets) / np.diag(inverse)
    return 1 - float(missed @ missed) / float(np.sum((targets - targets.mean()) ** 2))


def _inverse(covariance: Covariance, points: Points) -> Floats:
    rows = [covariance.with_point(points.coordinates, point) for point in points.coordinates]
    matrix = np.array(rows, dtype=np.float64)
    matrix[np.diag_indices_from(matrix)] += covariance.noise + JITTER
    inverse: Floats = cho_solve(cho_factor(matrix), np.eye(len(matrix)))
    return inverse


def _means(groups: NDArray[np.int64], weights: Floats, values: Floats) -> Floats:
    """The weighted mean of its group for each value."""
    sums, sizes = np.bincount(groups, weights * values), np.bincount(groups, weights)
    return (sums / np.where(sizes > 0, sizes, 1))[groups]


def _points(coordinates: Coordinates, levels: Levels) -> Points:
    return Points(coordinates.at(levels), np.zeros((len(levels), 0), dtype=np.float32))
