"""Schedules that differ from a given one in a single parameter, among up to millions of valid ones."""

import numpy as np
from numpy.typing import NDArray

from tuner.samplers.coordinates import Indices


class Neighbourhood:
    """Finds neighbours by sorted mixed-radix keys, without looking at every schedule.

    Args:
        levels: The valid set, shape (valid, parameters).
        counts: Levels of each parameter.
    """

    def __init__(self, levels: NDArray[np.int16], counts: tuple[int, ...]) -> None:
        self._levels = levels
        self._counts = counts
        places = [1]
        for count in reversed(counts[1:]):
            places.append(places[-1] * count)
        if places[-1] * (counts[0] if counts else 1) >= 2**63:
            raise ValueError(f"a space must have fewer than 2^63 combinations, got levels {counts}")
        self._places = np.array(places[::-1], dtype=np.int64)
        keys = levels.astype(np.int64) @ self._places
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def of(self, schedule: int) -> Indices:
        """Valid schedules one parameter away from schedule number `schedule`, in no particular order."""
        row = self._levels[schedule].astype(np.int64)
        steps = [
            (np.arange(count) - level) * place
            for count, level, place in zip(self._counts, row, self._places, strict=True)
        ]
        wanted = row @ self._places + np.concatenate([step[step != 0] for step in steps])
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        found: Indices = self._order[at[self._keys[at] == wanted]]
        return found
