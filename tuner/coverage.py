"""`tune space --coverage`: what was not looked at, of the valid set of a kernel."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from results.trial import ParameterValue, Trial
from tuner.explored import Explored, explored
from tuner.schedules import level_text, schedule_text

_MOST_COMPARED = 40_000_000  # schedules times trials: of larger products, a sample of the valid set is taken
_ROWS_AT_ONCE = 4_096
_SHOWN_PAIRS = 8


@dataclass(frozen=True)
class LevelCount:
    """A level of a parameter: schedules of the valid set that have it, and trials."""

    value: ParameterValue
    valid: int
    tried: int


@dataclass(frozen=True)
class ParameterCoverage:
    """The levels of one parameter that the valid set has."""

    parameter: str
    levels: tuple[LevelCount, ...]

    @property
    def untried(self) -> list[ParameterValue]:
        """Levels without a trial."""
        return [level.value for level in self.levels if not level.tried]


@dataclass(frozen=True)
class Pair:
    """Two levels that are together in `valid` schedules of the valid set."""

    parameters: tuple[str, str]
    values: tuple[ParameterValue, ParameterValue]
    valid: int


@dataclass(frozen=True)
class Coverage:
    """What was looked at in one group of comparable trials.

    Attributes:
        kernel, problem, arch, device, policy: What it is of.
        valid: Schedules of the valid set.
        tried: How many of them were.
        outside: Trials whose schedule is not in the set: of another version of the space.
        parameters: Level by level, in the order of the space.
        pairs: Pairs of levels of different parameters that the valid set has.
        untried_pairs: Those that no trial has, those with the most schedules first.
        distances: Share of the valid set by the number of parameters in which it differs from the nearest
            trial: [0] was tried, [1] is one change away.
        sampled: How many schedules the shares are of, drawn by chance where that is not all.
        farthest: A schedule that is the most changes away from any trial.
    """

    kernel: str
    problem: str
    arch: str
    device: str
    policy: str
    valid: int
    tried: int
    outside: int
    parameters: tuple[ParameterCoverage, ...]
    pairs: int
    untried_pairs: tuple[Pair, ...]
    distances: tuple[float, ...]
    sampled: int
    farthest: dict[str, ParameterValue]

    def within(self, changes: int) -> float:
        """Share of the valid set that is at most so many changes from a trial."""
        return sum(self.distances[: changes + 1])

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return asdict(self)


def coverages(trials: Iterable[Trial]) -> list[Coverage]:
    """One for each kernel, problem, arch, device and policy whose valid set is known.

    Raises:
        RequestError: Trials of one group have different parameters.
    """
    return [_of(one) for one in explored(trials) if one.is_whole]


def text_lines(coverage: Coverage) -> list[str]:
    """What a person reads above the table of levels."""
    of = "" if coverage.sampled == coverage.valid else f", by a sample of {coverage.sampled:,}"
    lines = [
        f"{coverage.kernel} {coverage.problem} on {coverage.device} ({coverage.arch}): "
        f"{coverage.tried:,} of {coverage.valid:,} valid schedules tried",
        f"one change from a trial, or none: {coverage.within(1):.1%}; two: {coverage.within(2):.1%}; "
        f"three: {coverage.within(3):.1%}{of}",
        f"farthest, {len(coverage.distances) - 1} changes: {schedule_text(coverage.farthest)}",
    ]
    if coverage.outside:
        lines.append(f"{coverage.outside} trials are of schedules that the space does not have, and left out")
    return lines


def level_rows(coverage: Coverage) -> list[tuple[object, ...]]:
    """Rows: parameter, trials with each level, levels without one."""
    return [
        (
            one.parameter,
            "  ".join(f"{level_text(level.value)}: {level.tried}" for level in one.levels if level.tried),
            " ".join(map(level_text, one.untried)) or None,
        )
        for one in coverage.parameters
    ]


def pair_rows(coverage: Coverage) -> list[tuple[object, ...]]:
    """Rows: the largest pairs that no trial has, and how many valid schedules have them."""
    rows: list[tuple[object, ...]] = []
    for pair in coverage.untried_pairs[:_SHOWN_PAIRS]:
        settings = zip(pair.parameters, pair.values, strict=True)
        rows.append((" ".join(f"{name}={level_text(value)}" for name, value in settings), pair.valid))
    return rows


def _of(one: Explored) -> Coverage:
    key, space = one.recorded.trials[0].key, one.space
    levels, tried = space.levels, one.tried
    distances, sampled, farthest = _distances(levels, tried)
    pairs, untried = _pairs(one)
    return Coverage(
        kernel=key.kernel,
        problem=key.problem,
        arch=key.arch,
        device=key.device,
        policy=key.policy,
        valid=len(space),
        tried=len(tried),
        outside=len(one.recorded.trials) - len(tried),
        parameters=tuple(
            ParameterCoverage(
                parameter.name, _levels(parameter.values, levels[:, column], levels[tried, column])
            )
            for column, parameter in enumerate(space.parameters)
        ),
        pairs=pairs,
        untried_pairs=tuple(untried),
        distances=tuple(distances),
        sampled=sampled,
        farthest=space.values(farthest),
    )


def _levels(
    values: Sequence[ParameterValue], valid: NDArray[np.int16], tried: NDArray[np.int16]
) -> tuple[LevelCount, ...]:
    counts = (np.bincount(column, minlength=len(values)).tolist() for column in (valid, tried))
    return tuple(LevelCount(value, *both) for value, *both in zip(values, *counts, strict=True) if both[0])


def _pairs(one: Explored) -> tuple[int, list[Pair]]:
    """How many pairs of levels the valid set has, and those that no trial has."""
    parameters, levels = one.space.parameters, one.space.levels
    count, untried = 0, []
    for left, right in combinations(range(len(parameters)), 2):
        values = parameters[left].values, parameters[right].values
        keys = levels[:, left].astype(np.int64) * len(values[1]) + levels[:, right]
        valid = np.bincount(keys, minlength=len(values[0]) * len(values[1]))
        tried = np.bincount(keys[one.tried], minlength=len(valid))
        count += int(np.count_nonzero(valid))
        for key in np.flatnonzero((valid > 0) & (tried == 0)).tolist():
            first, second = divmod(key, len(values[1]))
            names = parameters[left].name, parameters[right].name
            untried.append(Pair(names, (values[0][first], values[1][second]), int(valid[key])))
    return count, sorted(untried, key=lambda pair: -pair.valid)


def _distances(levels: NDArray[np.int16], tried: NDArray[np.int64]) -> tuple[list[float], int, int]:
    """Share of schedules by changes to the nearest trial, of how many, and a schedule that is farthest."""
    room = max(_ROWS_AT_ONCE, _MOST_COMPARED // max(1, len(tried)))
    asked = np.arange(len(levels))
    if len(levels) > room:
        asked = np.sort(np.random.default_rng(0).permutation(len(levels))[:room])
    nearest = np.empty(len(asked), dtype=np.int64)
    for start in range(0, len(asked), _ROWS_AT_ONCE):
        part = levels[asked[start : start + _ROWS_AT_ONCE]]
        least = np.full(len(part), levels.shape[1], dtype=np.int64)
        for trial in levels[tried]:
            np.minimum(least, np.count_nonzero(part != trial, axis=1), out=least)
        nearest[start : start + _ROWS_AT_ONCE] = least
    shares = np.bincount(nearest) / len(asked)
    return shares.tolist(), len(asked), int(asked[np.argmax(nearest)])
