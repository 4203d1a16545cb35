"""`tune results --importance`: which parameters mattered, for each kernel, problem and device."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from results.trial import OBJECTIVES, ParameterValue, Trial
from tuner.explored import Explored, explored
from tuner.samplers.importance import FEWEST_TRIALS, Explanation, explain
from tuner.schedules import level_text

_SHOWN = 0.01  # an interaction below this share is not worth a person's time


@dataclass(frozen=True)
class Level:
    """What became of the trials with one level of a parameter, or of several that go together.

    Attributes:
        values: The level of each.
        trials, failed: How many there are, and how many of them failed.
        best: The least figure among them, microseconds or joules; None where all failed.
    """

    values: tuple[ParameterValue, ...]
    trials: int
    failed: int
    best: float | None


@dataclass(frozen=True)
class Weight:
    """How much a parameter mattered, or several that rules let nobody change alone.

    Attributes:
        parameters: Its name, or their names.
        main, total: Shares as in `tuner.samplers.importance.Shares`.
        interactions: Share of the interaction with each other one that has at least a hundredth, largest
            first.
        levels: Those that were tried, in their order.
    """

    parameters: tuple[str, ...]
    main: float
    total: float
    interactions: dict[str, float]
    levels: tuple[Level, ...]


@dataclass(frozen=True)
class Importance:
    """Which parameters mattered in one group of comparable trials.

    Attributes:
        kernel, problem, arch, device, policy, objective: What it is of.
        trials, failed: Different schedules that were tried, and how many failed.
        schedules: Of the set over which shares are taken.
        over: ``valid set``, or for kernels that are not ours ``tried and one change away``.
        explained: As in `tuner.samplers.importance.Explanation`; None where there are too few trials.
        parameters: Most important first; empty where there are too few trials.
    """

    kernel: str
    problem: str
    arch: str
    device: str
    policy: str
    objective: str
    trials: int
    failed: int
    schedules: int
    over: str
    explained: float | None
    parameters: tuple[Weight, ...]

    @property
    def title(self) -> str:
        """What a person reads above the table."""
        what = f"{self.kernel} {self.problem} on {self.device} ({self.arch}), {self.objective}"
        count = f"{self.trials} schedules tried, {self.failed} failed"
        if self.explained is None:
            return f"{what}: {count}; shares need {FEWEST_TRIALS} with two different results"
        sure = f"the model explains {max(self.explained, 0):.0%} of what it was not shown"
        return f"{what}: {count}; shares over {self.schedules} schedules ({self.over}); {sure}"

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return asdict(self)


COLUMNS = ("parameter", "main", "total", "interacts with", "best with each level")


def importances(trials: Iterable[Trial]) -> list[Importance]:
    """One for each kernel, problem, arch, device, policy and objective.

    Raises:
        RequestError: Trials of one group have different parameters.
    """
    kept = list(trials)
    return [_of(one, objective) for objective in OBJECTIVES for one in explored(kept, objective)]


def table_rows(importance: Importance) -> list[tuple[object, ...]]:
    """Rows under `COLUMNS`."""
    return [
        (
            ", ".join(weight.parameters),
            f"{weight.main:.3f}",
            f"{weight.total:.3f}",
            ", ".join(f"{name} {share:.2f}" for name, share in list(weight.interactions.items())[:2]) or None,
            "  ".join(_level_text(level) for level in weight.levels),
        )
        for weight in importance.parameters
    ]


def _of(one: Explored, objective: str) -> Importance:
    key = one.recorded.trials[0].key
    figures = np.array([np.nan if t.figure is None else t.figure for _, t in one.inside], dtype=np.float64)
    enough = len(figures) >= FEWEST_TRIALS and len(np.unique(figures[~np.isnan(figures)])) > 1
    found = explain(one.space.parameters, one.space.levels, one.tried, figures) if enough else None
    weights = [] if found is None else _weights(one, found)
    return Importance(
        kernel=key.kernel,
        problem=key.problem,
        arch=key.arch,
        device=key.device,
        policy=key.policy,
        objective=objective,
        trials=len(figures),
        failed=int(np.isnan(figures).sum()),
        schedules=len(one.space),
        over="valid set" if one.is_whole else "tried and one change away",
        explained=None if found is None else found.explained,
        parameters=tuple(sorted(weights, key=lambda weight: -weight.total)),
    )


def _weights(one: Explored, found: Explanation) -> list[Weight]:
    names = [tuple(one.space.names[column] for column in factor) for factor in found.factors]
    shares, weights = found.shares, []
    for number, own in enumerate(names):
        partners = [
            n for n in np.argsort(-shares.pairs[number], kind="stable") if shares.pairs[number, n] >= _SHOWN
        ]
        interactions = {", ".join(names[n]): float(shares.pairs[number, n]) for n in partners}
        main, total = float(shares.main[number]), float(shares.total[number])
        weights.append(Weight(own, main, total, interactions, _levels(one, own)))
    return weights


def _levels(one: Explored, names: tuple[str, ...]) -> tuple[Level, ...]:
    figures: dict[tuple[ParameterValue, ...], list[float | None]] = {}
    for _, trial in one.inside:
        figures.setdefault(tuple(trial.schedule[name] for name in names), []).append(trial.figure)
    order = [one.space.parameters[one.space.names.index(name)].values for name in names]
    levels = []
    for values in sorted(figures, key=lambda v: [o.index(value) for o, value in zip(order, v, strict=True)]):
        timed = [figure for figure in figures[values] if figure is not None]
        tried = len(figures[values])
        levels.append(Level(values, tried, tried - len(timed), min(timed, default=None)))
    return tuple(levels)


def _level_text(level: Level) -> str:
    value = ",".join(map(level_text, level.values))
    return f"{value}: {'failed' if level.best is None else format(level.best, '.4g')}"
