"""What other studies of the same kernel teach: on another GPU, for another problem, or an earlier version.

From each source comes a hint, a prediction for every schedule, whose worth the new study's own results
decide; the floors of its valleys, to begin with; and from all of them how strongly each parameter matters, as
the prior of the numbers. A source that misleads costs a few trials: few schedules are taken from it, and its
hint fades.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from results.trial import ParameterValue
from search_spaces.space import Space, SpaceError
from tuner.samplers.coordinates import Coordinates, Floats, Indices, Singles
from tuner.samplers.covariance import Covariance
from tuner.samplers.floors import floors, in_turn
from tuner.samplers.gaussian_process import Beliefs, Hints, Points, Prior, fit
from tuner.samplers.hints import Hint
from tuner.samplers.neighbourhood import Neighbourhood
from tuner.samplers.target import ranked

_MOST_LEARNED = 400
_MOST_FITTED = 200
_AT_ONCE = 10_000  # schedules that are predicted in one go: bounds memory
FEWEST = 20
"""Results with a time below which a source teaches nothing."""
_WEIGHT, _SPREAD = 0.8, 0.5
_LOG_SPREAD = 0.6
_NOISE = 0.05  # at least: however smooth a source is, this kernel may be rough here
_FLOORS = 8  # of a source, at most
_NO_HINTS = Hints.none()


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

    @property
    def timed(self) -> int:
        """Results that are no failures."""
        return int(np.isfinite(self.times_us).sum())

    @property
    def text(self) -> str:
        """For a person, as ``gemm_A100.json, recorded (212 results)``."""
        return f"{self.name} ({self.timed} results)"

    @classmethod
    def of(
        cls, name: str, space: Space, trials: Sequence[tuple[Mapping[str, ParameterValue], float]]
    ) -> "Source":
        """From schedule and time of each trial; what is not in the space, or comes again, is left out."""
        kept: dict[int, float] = {}
        for values, time_us in trials:
            try:
                kept.setdefault(space.index(values), time_us)
            except SpaceError:
                continue
        return cls(name, np.array(list(kept), dtype=np.int64), np.array(list(kept.values())))


@dataclass(frozen=True)
class Experience:
    """What a search begins with.

    Attributes:
        hints: One for each source with enough results.
        prior: Of the model's numbers.
        first: Schedules to begin with: the floors of each source in turn.
    """

    hints: tuple[Hint, ...]
    prior: Prior
    first: Indices


def learn(space: Space, sources: Sequence[Source]) -> Experience:
    """What sources teach about a space; those with fewer than 20 results in it are left out.

    Together the hints weigh what one alone would.
    """
    told = [source for source in sources if source.timed >= FEWEST]
    if not told:
        return Experience((), Prior(), np.zeros(0, dtype=np.int64))
    coordinates = Coordinates.of(space.parameters)
    covariances = [_covariance(space, coordinates, source) for source in told]
    hints = [
        Hint(
            source.name,
            _predicted(space, coordinates, source, covariance),
            _WEIGHT / len(told),
            _SPREAD,
            is_taught=True,
        )
        for source, covariance in zip(told, covariances, strict=True)
    ]
    logs = np.mean([covariance.pack() for covariance in covariances], axis=0)
    logs[-1] = max(logs[-1], np.log(_NOISE))
    neighbourhood = Neighbourhood(space.levels)
    first = in_turn([floors(neighbourhood, hint.values, _FLOORS) for hint in hints])
    return Experience(tuple(hints), Prior(log_spread=_LOG_SPREAD, learned=tuple(map(float, logs))), first)


def _covariance(space: Space, coordinates: Coordinates, source: Source) -> Covariance:
    """Fitted to an even sample of the source's results."""
    order = np.argsort(ranked(source.times_us), kind="stable")
    chosen = np.sort(order[np.linspace(0, len(order) - 1, min(len(order), _MOST_FITTED)).astype(np.int64)])
    points = _points(coordinates, space, source.schedules[chosen])
    return fit(points, ranked(source.times_us[chosen]), _NO_HINTS, Prior()).covariance


def _predicted(space: Space, coordinates: Coordinates, source: Source, covariance: Covariance) -> Singles:
    """Target of every schedule by a model of the source, standardised over the valid set, shape (valid,).

    Where the source has a result itself, that is taken.
    """
    targets = ranked(source.times_us)
    predicted = np.empty(len(space))
    if len(source.schedules) < len(space):
        learned = _learned(targets)
        seen = _points(coordinates, space, source.schedules[learned])
        for first in range(0, len(space), _AT_ONCE):
            part = np.arange(first, min(first + _AT_ONCE, len(space)))
            beliefs = Beliefs(covariance, _NO_HINTS, _points(coordinates, space, part))
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
