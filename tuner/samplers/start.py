"""The first schedules: far from each other and from everything tried, since nothing is known yet."""

import numpy as np
from numpy.typing import NDArray

from tuner.samplers.coordinates import Coordinates, Floats, Indices, distance

_POOL = 500


def most_different(
    levels: NDArray[np.int16],
    coordinates: Coordinates,
    taken: Indices,
    expected: Floats | None,
    rng: np.random.Generator,
) -> int:
    """Of a random pool of free schedules, the one whose nearest taken schedule is farthest (maximin).

    Args:
        levels: The valid set, shape (valid, parameters).
        coordinates: Of its levels; distances are sums over columns.
        taken: Schedules to keep away from.
        expected: What is believed of every valid schedule, high for slow, or None; the worse half of the pool
            is left out.
        rng: Draws the pool.

    Returns:
        Its number in the valid set.
    """
    pool = free_sample(len(levels), taken, _POOL, rng)
    if expected is not None:
        order = np.argsort(expected[pool], kind="stable")
        pool = pool[order[: max(1, len(pool) // 2)]]
    places = coordinates.at(levels[pool])
    nearest = np.full(len(pool), np.inf)
    for other in coordinates.at(levels[taken]):
        nearest = np.minimum(nearest, distance(places, other).sum(axis=1))
    return int(pool[np.argmax(nearest)])


def free_sample(valid: int, taken: Indices, size: int, rng: np.random.Generator) -> Indices:
    """At most `size` different free schedules in random order; all of them if there are fewer."""
    if valid <= 4 * (size + len(taken)):
        mask = np.ones(valid, dtype=np.bool_)
        mask[taken] = False
        return rng.permutation(np.flatnonzero(mask))[:size]
    drawn = rng.integers(valid, size=2 * (size + len(taken)))
    _, first = np.unique(drawn, return_index=True)
    fresh = drawn[np.sort(first)]
    return fresh[~np.isin(fresh, taken)][:size].astype(np.int64)
