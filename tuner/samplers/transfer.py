"""What other studies of the same kernel teach: on another GPU, for another problem, or an earlier version.

Each becomes a hint, a prediction for every schedule of the new space. How much it is worth is for the new
study's own results to say, so a source that misleads costs a few trials and no more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from search_spaces.space import Space, SpaceError
from tuner.samplers.coordinates import Coordinates, Floats, Indices, Singles
from tuner.samplers.gaussian_process import Beliefs, Hints, Points, Prior, fit
from tuner.samplers.hints import Hint
from tuner.samplers.target import ranked

_MOST_LEARNED = 400
_AT_ONCE = 20_000  # schedules that are predicted in one go: bounds memory
_FEWEST = 5
_WEIGHT, _SPREAD = 0.8, 0.5


@dataclass(frozen=True)
class Source:
    """Results of another study, as schedules of the space that is to be searched.

    Attributes:
        name: Where they are from.
        schedules: Numbers in the valid set, shape (n,), each once.
        times_us: Microseconds, NaN for a failure, shape (n,). Only their order matters.
    """

    name: str
    schedules: Indices
    times_us: Floats

    @classmethod
    def of(
        cls, name: str, space: Space, rows: Sequence[tuple[dict[str, int | str | bool], float]]
    ) -> "Source":
        """From (schedule, time) of each trial; schedules that are not in the space are left out."""
        kept: dict[int, float] = {}
        for values, time_us in rows:
            try:
                kept.setdefault(space.index(values), time_us)
            except SpaceError:
                continue
        return cls(name, np.array(list(kept), dtype=np.int64), np.array(list(kept.values())))


def hints_from(space: Space, sources: Sequence[Source]) -> list[Hint]:
    """One hint for each source that has enough results; together they weigh what one alone would."""
    told = [source for source in sources if np.isfinite(source.times_us).sum() >= _FEWEST]
    return [Hint(source.name, _predicted(space, source), _WEIGHT / len(told), _SPREAD) for source in told]


def _predicted(space: Space, source: Source) -> Singles:
    """Target of every schedule by a model of the source, standardised over the valid set, shape (valid,).

    Where the source has a result itself, that is taken.
    """
    targets = ranked(source.times_us)
    predicted = np.empty(len(space))
    if len(source.schedules) < len(space):
        coordinates = Coordinates.of(space.parameters)
        learned = _learned(targets)
        seen = _points(coordinates, space, source.schedules[learned])
        none = Hints(np.zeros(0), np.zeros(0))
        covariance = fit(seen, targets[learned], none, Prior())
        for first in range(0, len(space), _AT_ONCE):
            part = np.arange(first, min(first + _AT_ONCE, len(space)))
            beliefs = Beliefs(covariance, none, _points(coordinates, space, part))
            beliefs.observe(seen)
            predicted[part] = beliefs.means(targets[learned])
    predicted[source.schedules] = targets
    scale = predicted.std()
    standardised: Singles = ((predicted - predicted.mean()) / (scale if scale > 0 else 1)).astype(np.float32)
    return standardised


def _learned(targets: Floats) -> Indices:
    """Positions to learn from: all, or as many as there is room for, half the best and half spread evenly."""
    if len(targets) <= _MOST_LEARNED:
        return np.arange(len(targets))
    order = np.argsort(targets, kind="stable")
    best, rest = order[: _MOST_LEARNED // 2], order[_MOST_LEARNED // 2 :]
    even = rest[np.linspace(0, len(rest) - 1, _MOST_LEARNED // 2).astype(np.int64)]
    return np.sort(np.concatenate([best, even]))


def _points(coordinates: Coordinates, space: Space, schedules: Indices) -> Points:
    return Points(coordinates.at(space.levels[schedules]), np.zeros((len(schedules), 0), dtype=np.float32))
