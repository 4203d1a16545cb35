"""What the cost model says of schedules that nobody has emitted: where a search begins.

It takes the closed forms that a space brings along, where it does, and the figures of the GPU. Neither is
exact, so it is asked many times, each time with every rate and count off by a random factor. What these
scenarios have in common is one hint; what they disagree about are others, which the first results settle. And
the first schedules are a portfolio: for every scenario one of them should be good.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from emitters.target import Target
from search_spaces.outline import Floats, Outline
from search_spaces.space import Space
from tuner.cost_model import predict
from tuner.samplers.coordinates import Indices
from tuner.samplers.hints import Hint, predicted
from tuner.samplers.target import ranked
from tuner.work import Fill, PlanWork, Work

WEIGHT, SPREAD = 0.8, 0.5
SCENARIOS = 32
_DOUBT = 0.4  # standard deviation of the log of a factor; a factor of 0.5 to 2 at random has the same
_DISAGREEMENTS = 4
_PORTFOLIO = 7
_NEAR_BEST = 200  # schedules of each scenario that may come into the portfolio
_MOST_LOSS = 0.5
_LOOKED_AT = 50_000  # different schedules for which all scenarios are asked: bounds time and memory
# Fields that are off together.
_GROUPS = (
    ("mma_s8", "mma_f16"),
    ("instructions", "fill_instructions"),
    ("alu_instructions",),
    ("other_instructions",),
    ("shared_reads",),
    ("shared_writes",),
    ("read_bytes",),
    ("write_bytes", "atomic_bytes"),
    ("steps",),
    ("chains",),
)


@dataclass(frozen=True)
class Seed:
    """What a search begins with.

    Attributes:
        hints: What the scenarios have in common, and what they disagree about.
        first: Schedules to try first, in this order.
    """

    hints: tuple[Hint, ...]
    first: Indices


def seed(space: Space, sizes: Mapping[str, int]) -> Seed | None:
    """The cost model's seed; None where the space has no closed forms, or its target no GPU.

    Args:
        space: Whose valid set is to be ordered.
        sizes: The problem's, by name.
    """
    if space.outliner is None or space.target.gpu is None or len(space) < 2:
        return None
    return seed_from(space.outliner(space.columns, sizes), space.target, len(space))


def seed_from(outline: Outline, target: Target, count: int) -> Seed:
    """The seed of `count` schedules with an outline.

    Raises:
        NoGpuError: The target has no GPU.
    """
    kept, same_as = _different(outline, count)
    few = _at(outline, kept, count)
    plain = _failures_last(outlined_us(few, target), len(kept))
    looked_at = np.argsort(plain, kind="stable")[:_LOOKED_AT]
    some = _at(few, looked_at, len(kept))
    times_us = np.stack([_failures_last(outlined_us(s, target), len(looked_at)) for s in _scenarios(some)])
    hints = _hints(times_us, plain, looked_at, same_as)
    return Seed(hints, kept[looked_at[portfolio(times_us, _PORTFOLIO)]])


def portfolio(times_us: Floats, size: int) -> Indices:
    """Schedules of which, in every scenario, one is fast: each the one that lowers the mean loss the most.

    Args:
        times_us: Microseconds, infinite for a failure, shape (scenarios, schedules).
        size: Of the portfolio, at most.

    Returns:
        Positions, the first being the best single one.
    """
    best = times_us.min(axis=1, keepdims=True)
    near = np.argsort(times_us, axis=1, kind="stable")[:, :_NEAR_BEST]
    pool = np.unique(near)
    loss = np.minimum(np.log(times_us[:, pool] / best), _MOST_LOSS)
    left = np.full((len(times_us), 1), _MOST_LOSS)
    chosen: list[int] = []
    for _ in range(min(size, len(pool))):
        after = np.minimum(loss, left).mean(axis=0)
        after[chosen] = np.inf
        chosen.append(int(np.argmin(after)))
        left = np.minimum(left, loss[:, chosen[-1:]])
    return pool[chosen].astype(np.int64)


def outlined_us(outline: Outline, target: Target) -> Floats:
    """A rough time of every schedule, microseconds, NaN where a block does not fit an SM; (schedules,).

    Raises:
        NoGpuError: The target has no GPU.
    """
    work = Work(**outline.launch)
    zeroed = np.asarray(outline.zeroed_bytes, dtype=np.float64)
    alone = predict(PlanWork((work,), outline.footprint_bytes), target).time_us
    after = predict(PlanWork((Fill(zeroed), work), outline.footprint_bytes), target).time_us
    times_us = np.where(zeroed > 0, after, alone)
    return np.where(np.isfinite(times_us), times_us, np.nan)


def _hints(times_us: Floats, plain: Floats, looked_at: Indices, same_as: Indices) -> tuple[Hint, ...]:
    """Of the schedules that scenarios were not asked for, only the plain prediction is known."""
    scores = np.stack([ranked(times) for times in times_us])
    mean = scores.mean(axis=0)
    order = np.array(plain)
    order[looked_at] = -1 / (1 + np.exp(mean))  # before all others, as those had the best plain predictions
    _, strengths, components = np.linalg.svd(scores - mean, full_matrices=False)
    hints = [predicted("cost model", order[same_as], WEIGHT, SPREAD)]
    for strength, component in zip(strengths[:_DISAGREEMENTS], components, strict=False):
        values = np.zeros(len(plain))
        values[looked_at] = component
        values = values[same_as] - values[same_as].mean()
        scale = values.std()
        if scale > 0:
            # A component has length 1; scenarios spread along it by strength / sqrt(scenarios).
            spread = WEIGHT * strength * scale / np.sqrt(len(scores))
            hints.append(Hint("cost model, in doubt", (values / scale).astype(np.float32), 0.0, spread))
    return tuple(hints)


def _scenarios(outline: Outline) -> Iterator[Outline]:
    """The outline as it is, and with fields off by random factors: always the same ones."""
    yield outline
    rng = np.random.default_rng(0)
    for _ in range(SCENARIOS - 1):
        factors = {name: f for names, f in zip(_GROUPS, _factors(rng), strict=True) for name in names}
        yield replace(
            outline,
            launch={name: value * factors.get(name, 1.0) for name, value in outline.launch.items()},
            footprint_bytes=outline.footprint_bytes * float(np.exp(_DOUBT * rng.normal())),
        )


def _factors(rng: np.random.Generator) -> Floats:
    factors: Floats = np.exp(_DOUBT * rng.normal(size=len(_GROUPS)))
    return factors


def _different(outline: Outline, count: int) -> tuple[Indices, Indices]:
    """The first of all schedules that are alike to the model, and for each schedule the position of its."""
    fields = [*outline.launch.values(), outline.footprint_bytes, outline.zeroed_bytes]
    columns = [np.broadcast_to(np.asarray(field, dtype=np.float64), count) for field in fields]
    # Equal rows have an equal sum of random multiples, and others almost surely not.
    keys = np.stack(columns, axis=1) @ np.random.default_rng(0).uniform(1, 2, size=len(columns))
    _, kept, same_as = np.unique(keys, return_index=True, return_inverse=True)
    return kept, same_as


def _at(outline: Outline, kept: Indices, count: int) -> Outline:
    """The outline of some of its schedules."""

    def some(field: float | Floats) -> float | Floats:
        return field[kept] if isinstance(field, np.ndarray) and len(field) == count else field

    return Outline(
        {name: some(field) for name, field in outline.launch.items()},
        some(outline.footprint_bytes),
        some(outline.zeroed_bytes),
    )


def _failures_last(times_us: Floats, count: int) -> Floats:
    times: Floats = np.broadcast_to(np.where(np.isnan(times_us), np.inf, times_us), count)
    return times
