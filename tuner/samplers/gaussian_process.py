"""A Gaussian process over the valid set: numbers fitted to what was measured, and beliefs about candidates.

Exact, no library behind it. Fitting maximises the posterior of the covariance's numbers; beliefs are kept as
rows ``L^-1 k(observed, candidates)``, to which one more observation appends one more row.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize

from tuner.samplers.coordinates import Floats, Singles, distance
from tuner.samplers.covariance import QUIET, VARIANCES, Covariance

JITTER = 1e-6
_ROWS_AT_ONCE = 24


@dataclass(frozen=True, slots=True)
class Prior:
    """What the covariance's numbers are expected to be, before data: medians, and spreads of their logs.

    Measured on recorded spaces (docs/search.md): pairs weigh most, and a length of 1.4 times a parameter's
    whole range says that most parameters matter little or gently.

    Attributes:
        length, main, pair, whole, noise: Medians, by their names in `Covariance`.
        log_spread: Standard deviation of the log of each number.
        learned: Logs of all medians as `Covariance.unpack` takes them, where something better is known than
            the above; `transfer` learns them from other studies.
    """

    length: float = 1.4
    main: float = 0.3
    pair: float = 0.6
    whole: float = 0.1
    noise: float = 0.01
    log_spread: float = 1.0
    learned: tuple[float, ...] | None = None

    def logs(self, columns: int) -> Floats:
        """Logs of the medians as `Covariance.unpack` takes them, shape (columns + 4,)."""
        if self.learned is not None:
            if len(self.learned) != columns + VARIANCES:
                raise ValueError(
                    f"a learned prior must have {columns + VARIANCES} numbers, got {len(self.learned)}"
                )
            return np.array(self.learned)
        return np.log([*[self.length] * columns, self.main, self.pair, self.whole, self.noise])


@dataclass(frozen=True)
class Hints:
    """What is believed of schedules from elsewhere: linear features whose weights the data corrects.

    A hint's weight is Gaussian; with few observations it is `weights`, with many whatever fits them. So a
    wrong hint fades by evidence.

    Attributes:
        weights, spreads: Mean and standard deviation of each weight, shape (H,).
    """

    weights: Floats
    spreads: Floats

    @classmethod
    def none(cls) -> "Hints":
        return cls(np.zeros(0), np.zeros(0))

    @QUIET
    def mean(self, features: Singles) -> Floats:
        """Prior mean of points with these features (n, H), shape (n,)."""
        return features @ self.weights

    def scaled(self, features: Singles) -> Singles:
        """Features times spreads: their products are what hints add to covariances."""
        return (features * self.spreads).astype(np.float32)


@dataclass(frozen=True)
class Points:
    """Schedules as the process sees them.

    Attributes:
        coordinates: Shape (n, D), float32.
        features: Of hints, shape (n, H), float32.
    """

    coordinates: Singles
    features: Singles

    def __len__(self) -> int:
        return len(self.coordinates)

    def __getitem__(self, rows: NDArray[np.int64] | slice) -> "Points":
        return Points(self.coordinates[rows], self.features[rows])


@dataclass(frozen=True)
class Fitted:
    """A covariance, and how well it and what it was fitted with explain the targets.

    Attributes:
        covariance: The most probable one.
        loss: Minus the log of its posterior, up to a constant that only the number of targets decides.
    """

    covariance: Covariance
    loss: float


def fit(points: Points, targets: Floats, hints: Hints, prior: Prior) -> Fitted:
    """The covariance that is most probable given the targets.

    Always begun at the prior's median, so that the answer depends on the arguments alone.

    Args:
        points: Observed, n of them.
        targets: About standard normal, shape (n,).
        hints: Their prior mean is taken off the targets, their variance is added.
        prior: Of the covariance's numbers.
    """
    count, columns = points.coordinates.shape
    rows, others = np.tril_indices(count, -1)
    apart = distance(points.coordinates[rows], points.coordinates[others]).T.astype(np.float64, order="C")
    scaled = hints.scaled(points.features).astype(np.float64)
    known = scaled @ scaled.T
    residual = targets - hints.mean(points.features)
    centre = prior.logs(columns)

    def loss(logs: Floats) -> tuple[float, Floats]:
        covariance = Covariance.unpack(logs)
        pairs = covariance.of_pairs(apart)
        matrix = known.copy()
        matrix[rows, others] += pairs.covariances
        matrix[np.diag_indices(count)] += covariance.variance + covariance.noise + JITTER
        lower = cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
        inverse, _ = dpotri(lower, lower=1)
        solved = cho_solve((lower, True), residual, check_finite=False)
        weights = inverse[rows, others] - solved[rows] * solved[others]
        diagonal = 0.5 * float(np.trace(inverse) - solved @ solved)
        off = (logs - centre) / prior.log_spread
        value = 0.5 * residual @ solved + np.log(np.diag(lower)).sum() + 0.5 * off @ off
        return float(value), covariance.slopes(pairs, weights, diagonal) + off / prior.log_spread

    reach = 4 * prior.log_spread
    bounds = [(middle - reach, middle + reach) for middle in centre]
    found = minimize(
        loss,
        centre,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 30, "ftol": 1e-5, "gtol": 1e-2},
    )
    assert len(found.x) == columns + VARIANCES
    return Fitted(Covariance.unpack(found.x), float(found.fun))


class Beliefs:
    """Mean and spread of the target at every candidate, given observations that are appended.

    Spreads need only where one has looked, not what was seen: pending trials are observations without a
    target. Targets may change from one question to the next, as ranks do.

    Args:
        covariance: Of the process.
        hints: Its prior mean and linear part.
        candidates: Where beliefs are wanted, C of them.
    """

    def __init__(self, covariance: Covariance, hints: Hints, candidates: Points) -> None:
        self._covariance = covariance
        self._hints = hints
        self._candidates = candidates
        self._prior_mean = hints.mean(candidates.features)
        self._variances = self._prior_variances(candidates)
        self._observed = candidates[:0]
        self._rows = np.zeros((0, len(candidates)), dtype=np.float32)
        self._lower = np.zeros((0, 0))

    def __len__(self) -> int:
        """How many observations there are."""
        return len(self._observed)

    @QUIET
    def observe(self, points: Points) -> None:
        """Append observations, in order."""
        old, new = len(self), len(self) + len(points)
        self._reserve(new)
        lower = self._lower
        across = self._among(points, self._observed)
        left = solve_triangular(lower[:old, :old], across.T, lower=True, check_finite=False).T
        corner = self._among(points, points) - left @ left.T
        corner[np.diag_indices_from(corner)] += self._covariance.noise + JITTER
        right = np.linalg.cholesky(corner)
        lower[old:new, :old], lower[old:new, old:new] = left, right
        rows = self._among(points, self._candidates) - left.astype(np.float32) @ self._rows[:old]
        if len(points) == 1:
            rows /= np.float32(right[0, 0])
        else:
            rows = solve_triangular(right.astype(np.float32), rows, lower=True, check_finite=False)
        self._rows[old:new] = rows
        self._variances -= np.einsum("nc,nc->c", rows, rows)
        both = (self._observed, points)
        self._observed = Points(
            np.concatenate([part.coordinates for part in both]),
            np.concatenate([part.features for part in both]),
        )

    def forget(self, count: int) -> None:
        """Take the last `count` observations back."""
        keep = len(self) - count
        gone = self._rows[keep : len(self)]
        self._variances += np.einsum("nc,nc->c", gone, gone)
        self._observed = self._observed[:keep]

    def means(self, targets: Floats) -> Floats:
        """Mean at every candidate, shape (C,), given targets of the first observations, shape (up to n,)."""
        seen = self._observed[: len(targets)]
        return self._prior_mean + self.smooth(targets - self._hints.mean(seen.features))

    def spreads(self) -> Floats:
        """Standard deviation at every candidate, shape (C,)."""
        return np.sqrt(np.maximum(self._variances, JITTER).astype(np.float64))

    @QUIET
    def smooth(self, values: Floats) -> Floats:
        """Values of the first observations carried to the candidates, zero where nothing is known; (C,)."""
        count = len(values)
        solved = solve_triangular(self._lower[:count, :count], values, lower=True, check_finite=False)
        carried: Floats = (solved.astype(np.float32) @ self._rows[:count]).astype(np.float64)
        return carried

    def _among(self, points: Points, others: Points) -> Singles:
        rows = [self._covariance.with_point(others.coordinates, point) for point in points.coordinates]
        linear = self._hints.scaled(points.features) @ self._hints.scaled(others.features).T
        return np.array(rows, dtype=np.float32).reshape(len(points), len(others)) + linear

    def _prior_variances(self, points: Points) -> Singles:
        scaled = self._hints.scaled(points.features)
        linear: Singles = np.einsum("nh,nh->n", scaled, scaled)
        return linear + np.float32(self._covariance.variance)

    def _reserve(self, rows: int) -> None:
        have = len(self._rows)
        if rows <= have:
            return
        room = max(rows, have + _ROWS_AT_ONCE)
        grown = np.zeros((room, self._rows.shape[1]), dtype=np.float32)
        grown[:have] = self._rows
        lower = np.zeros((room, room))
        lower[:have, :have] = self._lower
        self._rows, self._lower = grown, lower
