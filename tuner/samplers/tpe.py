"""A tree-structured Parzen estimator over the enumerated valid set.

Bergstra et al., "Algorithms for Hyper-Parameter Optimization" (NeurIPS 2011), multivariate and with the
categorical kernels of Watanabe, "Tree-Structured Parzen Estimator" (arXiv:2304.11127), section 3.3. What
differs: candidates are drawn from the estimator *restricted to free schedules*, so that none is invalid and
none is repeated.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_spaces.space import Space
from tuner.samplers.base import Past, Subject
from tuner.samplers.random import RandomCore

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TpeCore:
    """Proposes the candidate that is likelier under the good trials than under the others.

    Failed trials rank last, pending ones count among the others (a "constant liar"), so that workers spread.

    Attributes:
        startup: Finished trials before the estimator is used; random ones until then.
        good_share, good_most: How many of the finished trials count as good.
        candidates: Schedules drawn from the estimator of the good ones for each proposal.
    """

    startup: int = 10
    good_share: float = 0.1
    good_most: int = 25
    candidates: int = 24

    def propose(self, past: Past, space: Space, rng: np.random.Generator) -> int:
        finished = len(past.schedules)
        if finished < self.startup:
            return RandomCore().propose(past, space, rng)
        times_us = np.where(np.isnan(past.times_us), np.inf, past.times_us)
        ranked = past.schedules[np.argsort(times_us, kind="stable")]
        good_count = min(math.ceil(self.good_share * finished), self.good_most)
        level_counts = np.array([len(parameter.values) for parameter in space.parameters])
        good = Parzen(space.levels[ranked[:good_count]], level_counts)
        bad = Parzen(space.levels[np.concatenate([ranked[good_count:], past.pending])], level_counts)
        free = past.free(space)
        drawn = free[good.draw(space.levels[free], self.candidates, rng)]
        gain = good.log_density(space.levels[drawn]) - bad.log_density(space.levels[drawn])
        return int(drawn[np.argmax(gain)])


class Parzen:
    """A mixture of one product kernel an observation and a uniform one, over categorical parameters.

    A kernel puts ``1 + 1/c`` on the observed level and ``1/c`` on each other one before normalising, c being
    the number of components: the more observations, the sharper.

    Args:
        observed: Level indices, shape (observations, parameters).
        level_counts: Levels of each parameter, shape (parameters,).
    """

    def __init__(self, observed: NDArray[np.int16], level_counts: NDArray[np.int_]) -> None:
        self._observed = observed
        components = len(observed) + 1
        total = 1 + level_counts / components
        self._log_miss = float(np.log((1 / components) / total).sum())
        self._log_match = math.log1p(components)  # what each parameter that agrees adds
        self._log_uniform = -float(np.log(level_counts).sum())

    def log_density(self, levels: NDArray[np.int16]) -> Floats:
        """Log of the mixture's density at each row of `levels`, shape (rows,)."""
        components = [self._component(number, levels) for number in range(len(self._observed) + 1)]
        stacked = np.stack(components)
        highest = stacked.max(axis=0)
        total: Floats = highest + np.log(np.exp(stacked - highest).sum(axis=0))
        return total - math.log(len(stacked))

    def draw(self, levels: NDArray[np.int16], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Rows of `levels` drawn from the mixture restricted to them, `count` of them, with repetition."""
        chosen = np.sort(rng.integers(len(self._observed) + 1, size=count))
        rows: list[int] = []
        for number, times in zip(*np.unique(chosen, return_counts=True), strict=True):
            log_weights = self._component(int(number), levels)
            cumulative = np.cumsum(np.exp(log_weights - log_weights.max()))
            at = np.searchsorted(cumulative, rng.random(int(times)) * cumulative[-1], side="right")
            rows.extend(np.minimum(at, len(levels) - 1).tolist())
        return np.array(rows, dtype=np.int64)

    def _component(self, number: int, levels: NDArray[np.int16]) -> Floats:
        if number == len(self._observed):
            return np.full(len(levels), self._log_uniform)
        matches = np.count_nonzero(levels == self._observed[number], axis=1)
        return np.asarray(self._log_miss + self._log_match * matches, dtype=np.float64)


def make_tpe(subject: Subject) -> TpeCore:
    """The core, which needs to know nothing about its subject."""
    return TpeCore()
