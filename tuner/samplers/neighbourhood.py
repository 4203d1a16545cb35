"""Schedules that differ from a given one in a single parameter, among up to millions of valid ones."""

import numpy as np
from numpy.typing import NDArray

from tuner.samplers.coordinates import Indices


class Neighbourhood:
    """Finds neighbours by sorted keys, without looking at every schedule.

    A key is the sum, modulo 2^64, of a random number for each level. That two of a million schedules share
    one has a chance of 3e-8; then a neighbour may be missed, and never is a schedule found that is none.

    Args:
        levels: The valid set, shape (valid, parameters), at least one.
    """

    def __init__(self, levels: NDArray[np.int16]) -> None:
        counts = levels.max(axis=0).astype(np.int64) + 1
        self._levels = levels
        self._numbers = np.random.default_rng(0).integers(2**64, size=counts.sum(), dtype=np.uint64)
        self._first = np.cumsum(counts) - counts  # of each parameter's numbers
        self._parameter = np.repeat(np.arange(len(counts)), counts)
        keys = np.zeros(len(levels), dtype=np.uint64)
        for column, first in zip(levels.T, self._first, strict=True):
            keys += self._numbers[first + column]
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def of(self, schedule: int) -> Indices:
        """Valid schedules one parameter away from schedule number `schedule`, in no particular order."""
        row = self._levels[schedule]
        own = self._numbers[self._first + row]
        wanted = np.sum(own) + self._numbers - own[self._parameter]
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        found = self._order[at[self._keys[at] == wanted]]
        neighbours: Indices = found[np.count_nonzero(self._levels[found] != row, axis=1) == 1]
        return neighbours
