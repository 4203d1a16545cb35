"""How alike the times of two schedules are expected to be: a kernel with main effects and pair interactions.

With ``k_d = exp(-distance_d / length_d)`` for column d of D,

    k(x, y) = main * mean over d of k_d  +  pair * mean over d < e of k_d k_e  +  whole * product of all k_d

(the orders 1, 2 and D of Duvenaud et al., "Additive Gaussian Processes", NeurIPS 2011). Kernel times are
nearly products of what single parameters and pairs of them do, and targets are ranks on a Gaussian scale, so
sums: main effects are learned from a dozen trials, and the last term keeps isolated optima possible.
"""

from dataclasses import dataclass

import numpy as np

from tuner.samplers.coordinates import Floats, Singles, distance

QUIET = np.errstate(invalid="ignore")
"""For products in single precision: BLAS was seen to raise this flag where every argument was finite."""
VARIANCES = 4  # numbers of a covariance that are no lengths: main, pair, whole, noise


@dataclass(frozen=True)
class Covariance:
    """The kernel with its numbers.

    Attributes:
        lengths: Length scale of each column, shape (D,), in the unit of `distance`.
        main, pair, whole: Variance of each term.
        noise: Variance of what two looks at the same schedule differ by.
    """

    lengths: Floats
    main: float
    pair: float
    whole: float
    noise: float

    @classmethod
    def unpack(cls, logs: Floats) -> "Covariance":
        """From logs of lengths, main, pair, whole and noise, shape (D + 4,)."""
        values = np.exp(logs)
        main, pair, whole, noise = map(float, values[-VARIANCES:])
        return cls(values[:-VARIANCES], main, pair, whole, noise)

    def pack(self) -> Floats:
        """The inverse of `unpack`."""
        return np.log([*self.lengths, self.main, self.pair, self.whole, self.noise])

    @property
    def variance(self) -> float:
        """Of one value before anything is known, without noise."""
        columns = len(self.lengths)
        return self.whole + (self.main if columns else 0.0) + (self.pair if columns > 1 else 0.0)

    @QUIET
    def with_point(self, points: Singles, origin: Singles) -> Singles:
        """Covariance of each of `points` (n, D) with `origin` (D,), shape (n,), float32."""
        columns = len(self.lengths)
        ones = np.ones(columns, dtype=np.float32)
        alike = distance(points, origin)
        alike *= (-1 / self.lengths).astype(np.float32)
        whole = np.exp(alike @ ones)
        np.exp(alike, out=alike)
        total = alike @ ones
        squares = np.einsum("nd,nd->n", alike, alike)
        per_column, per_pair = self._shares()
        result: Singles = np.float32(per_column) * total
        result += np.float32(per_pair / 2) * (total * total - squares)
        result += np.float32(self.whole) * whole
        return result

    def of_pairs(self, apart: Floats) -> "PairTerms":
        """Covariances of pairs of points from their distances, shape (D, pairs)."""
        scaled = apart / self.lengths[:, None]
        alike = np.exp(-scaled)
        total = alike.sum(axis=0)
        per_column, per_pair = self._shares()
        second = (per_pair / 2) * (total * total - np.einsum("dp,dp->p", alike, alike))
        whole = self.whole * np.exp(-scaled.sum(axis=0))
        return PairTerms(scaled, alike, total, per_column * total, second, whole)

    def _shares(self) -> tuple[float, float]:
        """What each column and each pair of columns adds to the variance."""
        columns = len(self.lengths)
        pairs = columns * (columns - 1) / 2
        return (self.main / columns if columns else 0.0), (self.pair / pairs if pairs else 0.0)

    def slopes(self, pairs: "PairTerms", weights: Floats, diagonal: float) -> Floats:
        """Derivative of ``sum(weights * covariances) + diagonal * (variance + noise)`` by the packed logs.

        Args:
            pairs: From `of_pairs`.
            weights: One a pair, shape (pairs,).
            diagonal: Weight of what a point has with itself.

        Returns:
            Shape (D + 4,), in the order of `unpack`.
        """
        per_column, per_pair = self._shares()
        once = weights * (per_column + per_pair * pairs.total)
        inner = (once - per_pair * weights * pairs.alike) * pairs.alike + weights * pairs.whole
        by_length = np.einsum("dp,dp->d", pairs.scaled, inner)
        columns = len(self.lengths)
        return np.array(
            [
                *by_length,
                weights @ pairs.main + diagonal * (self.main if columns else 0.0),
                weights @ pairs.pair + diagonal * (self.pair if columns > 1 else 0.0),
                weights @ pairs.whole + diagonal * self.whole,
                diagonal * self.noise,
            ]
        )


@dataclass(frozen=True)
class PairTerms:
    """Covariances of pairs of points, in parts.

    Attributes:
        scaled: Distances in length scales, shape (D, pairs).
        alike: ``exp(-scaled)``.
        total: Its sum over columns, shape (pairs,).
        main, pair, whole: The terms of the covariance, shape (pairs,) each.
    """

    scaled: Floats
    alike: Floats
    total: Floats
    main: Floats
    pair: Floats
    whole: Floats

    @property
    def covariances(self) -> Floats:
        """Shape (pairs,)."""
        return self.main + self.pair + self.whole
