"""Where a prediction has its valleys: schedules that no change of a single parameter makes faster.

Another GPU's order of the valleys is seldom that of this one, but a fast schedule here mostly lies near the
floor of some valley there. So a search begins with floors, and not with the best few of one valley.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from tuner.samplers.coordinates import Indices, Singles
from tuner.samplers.neighbourhood import Neighbourhood

_SHARE = 0.1  # of the valid set: a valley whose floor is slower than the fastest tenth is of no use
_LOOKED_AT = 2000  # schedules, at most: bounds time


def floors(neighbourhood: Neighbourhood, values: Singles, most: int) -> list[int]:
    """The fastest floors among the fastest tenth.

    Of schedules that are equally fast and linked by single changes, one is a floor.

    Args:
        neighbourhood: Of the valid set.
        values: A prediction for every valid schedule, high for slow, shape (valid,).
        most: Floors, at most.

    Returns:
        Their numbers in the valid set, the fastest first; the fastest of all is always one.
    """
    order = np.argsort(values, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    found: list[int] = []
    for schedule in order[: min(_LOOKED_AT, int(np.ceil(_SHARE * len(order))))]:
        if np.all(place[neighbourhood.of(int(schedule))] > place[schedule]):
            found.append(int(schedule))
            if len(found) == most:
                break
    return found


def in_turn(lists: Sequence[Iterable[int]]) -> Indices:
    """The first of each list, then the second of each, and so on; what comes again is left out."""
    ranked = sorted((rank, turn, item) for turn, items in enumerate(lists) for rank, item in enumerate(items))
    return np.array(list(dict.fromkeys(item for _, _, item in ranked)), dtype=np.int64)
