"""The statistics of a measurement: when to stop, when to give up, when a candidate is faster than another.

Nothing here assumes a distribution: intervals and tests are those of order statistics and signs (Gibbons and
Chakraborti, Nonparametric Statistical Inference, chapter 5). Repeats that resemble their neighbours count for
fewer than they are (`effective_repeats`). That estimate falls short where they do so strongly: of medians
called precise at most the stated 5 % are off up to a correlation of one half between neighbours, and more
beyond, or under drift. Error rates under many kinds of noise: docs/timing.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from statistics import median

import numpy as np

FEWEST_REPEATS = 10


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of a median."""

    low: float
    high: float


@lru_cache(maxsize=4096)
def rank_below(repeats: int, error: float) -> int:
    """The highest rank r (from 1) whose order statistic exceeds the median with probability `error` at most.

    0 where even the smallest value does so more often: ``P(X_(r) > median) = P(Binomial(repeats, 1/2) < r)``.
    """
    allowed = math.floor(error * 2**repeats)
    total = 0
    for rank in range(repeats):
        total += math.comb(repeats, rank)
        if total > allowed:
            return rank
    return repeats


def effective_repeats(times: Sequence[float]) -> int:
    """How many independent repeats say as much about the median as these do.

    That is ``n / (1 + 2 (r_1 + r_2 + ...))``, with r_k the correlation at distance k of the signs of the
    times about their median, summed up to the first that is not positive (Geyer, Practical Markov Chain
    Monte Carlo, 1992, section 3.3, in a simpler form). Signs, so that disturbed repeats have no more weight
    than others; each r_k is raised by what taking the median from the same times lowers it.
    """
    count = len(times)
    values = np.asarray(times, np.float64)
    signs = np.sign(values - np.median(values))
    signs -= signs.mean()
    variance = float(signs @ signs) / count
    if variance == 0.0:
        return count
    inflation = 1.0
    for distance in range(1, count // 3 + 1):
        products = float(signs[:-distance] @ signs[distance:])
        correlation = products / ((count - distance) * variance) + inflation / count
        if correlation <= 0.0:
            break
        inflation += 2 * correlation
    return max(1, int(count / inflation))


def _rank(times: Sequence[float], error: float) -> int:
    """As `rank_below` for these times, which count as `effective_repeats`."""
    effective = effective_repeats(times)
    rank = rank_below(effective, error)
    return (rank - 1) * len(times) // effective + 1 if rank else 0


def median_interval(times: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """The interval that holds the true median with at least that probability; None for too few times.

    For independent times; less surely for strongly correlated ones, whose effective number is an estimate.
    """
    rank = _rank(times, (1 - confidence) / 2)
    if rank == 0:
        return None
    ordered = sorted(times)
    return Interval(ordered[rank - 1], ordered[-rank])


def precision_of(times: Sequence[float], confidence: float = 0.95) -> float:
    """How far the true median may lie from the sample's, as a part of it; infinity for too few times."""
    interval = median_interval(times, confidence)
    if interval is None:
        return math.inf
    middle = median(times)
    return max(interval.high - middle, middle - interval.low) / middle


class Decision(Enum):
    """What to do after a look at the times so far."""

    CONTINUE = "continue"
    PRECISE = "precise"
    SLOWER = "slower"
    EXHAUSTED = "exhausted"


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When to stop repeating. Times are looked at after 10, 20, 40, ... repeats, never in between.

    Attributes:
        precision: Stop when the median's confidence interval reaches no further than this part of the median.
        confidence: Of that interval, for one look. Several looks, and repeats that resemble their neighbours,
            cost some of it: docs/timing.md has how much.
        most_repeats: Give up on precision there.
        slower_error: Probability, over all looks together, of stopping a candidate early whose median is not
            above ``best * (1 + slower_margin)``: each look may err by an equal share (Bonferroni). The older
            and the newer half of the times have to say so, each by itself.
        slower_margin: What a candidate has to be slower by before it is stopped: it allows for clocks that
            drift between the best one's measurement and this one.
        hopeless_margin: A candidate that was never within this part of the best is stopped at any look.
    """

    precision: float = 0.005
    confidence: float = 0.95
    most_repeats: int = 640
    slower_error: float = 0.01
    slower_margin: float = 0.02
    hopeless_margin: float = 0.2

    def __post_init__(self) -> None:
        if self.most_repeats < FEWEST_REPEATS:
            raise ValueError(f"most_repeats must be at least {FEWEST_REPEATS}, got {self.most_repeats}")
        for name in ("precision", "slower_error"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")
        if rank_below(FEWEST_REPEATS, self.slower_error / len(self.looks)) == 0:
            raise ValueError(
                f"slower_error / looks must be at least 1/1024 for a half of ten repeats to be of use, got "
                f"{self.slower_error} / {len(self.looks)}; raise slower_error or lower most_repeats"
            )

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of repeats after which the times are looked at."""
        counts = [FEWEST_REPEATS]
        while counts[-1] * 2 <= self.most_repeats:
            counts.append(counts[-1] * 2)
        return tuple(counts)

    def decide(self, times: Sequence[float], best: float | None) -> Decision:
        """What to do after one of the `looks`.

        Args:
            times: So far.
            best: The time to beat, or None.
        """
        if best is not None and self.is_slower(times, best):
            return Decision.SLOWER
        if precision_of(times, self.confidence) <= self.precision:
            return Decision.PRECISE
        return Decision.EXHAUSTED if len(times) >= self.looks[-1] else Decision.CONTINUE

    def is_slower(self, times: Sequence[float], best: float) -> bool:
        """Whether the median clearly lies above ``best * (1 + slower_margin)``, or no time comes near."""
        if min(times) > best * (1 + self.hopeless_margin):
            return True
        half = len(times) // 2
        return all(
            self._is_above(part, best * (1 + self.slower_margin)) for part in (times[:half], times[half:])
        )

    def _is_above(self, times: Sequence[float], limit: float) -> bool:
        rank = _rank(times, self.slower_error / len(self.looks))
        return rank > 0 and sorted(times)[rank - 1] > limit


@dataclass(frozen=True, slots=True)
class Comparison:
    """What interleaved rounds say about finalists.

    Attributes:
        medians: Median time of each, in the order given.
        leader: Index of the one with the lowest median.
        tied: Indices, the leader's included, of those that are not shown to be slower than the leader.
        p_values: For each, the probability of the rounds' being so much in the leader's favour if it were not
            faster by more than the resolution; 1 for the leader itself. Before correction.
        threshold: What a p-value has to stay below, so that the error over all pairs is `error`.
    """

    medians: tuple[float, ...]
    leader: int
    tied: tuple[int, ...]
    p_values: tuple[float, ...]
    threshold: float

    @property
    def winner(self) -> int | None:
        """The leader, where it is shown to be faster than every other; None for a tie."""
        return self.leader if len(self.tied) == 1 else None


def compare(
    rounds: Sequence[Sequence[float]], *, error: float = 0.01, resolution: float = 0.005
) -> Comparison:
    """Judge finalists by paired times: a sign test of each against the leader.

    The leader is chosen from the same rounds, so the error is shared among all ordered pairs (Bonferroni).
    Rounds count as `effective_repeats`.

    Args:
        rounds: For every round the time of each finalist. Within a round they ran one after another, so what
            drifts (clocks, temperature) is in all of them.
        error: Probability of calling any finalist slower that is not.
        resolution: A difference below this part counts as none: a time is not known any better.

    Raises:
        ValueError: No round, no finalist, or rounds of different lengths.
    """
    if not rounds or not rounds[0] or len({len(times) for times in rounds}) != 1:
        raise ValueError("rounds must all time the same finalists, at least one")
    count = len(rounds[0])
    medians = tuple(median(times[i] for times in rounds) for i in range(count))
    leader = min(range(count), key=lambda i: medians[i])
    p_values = tuple(
        1.0 if i == leader else _sign_test([times[i] / times[leader] - 1 for times in rounds], resolution)
        for i in range(count)
    )
    threshold = error / max(1, count * (count - 1))
    tied = tuple(i for i in range(count) if i == leader or p_values[i] > threshold)
    return Comparison(medians, leader, tied, p_values, threshold)


def rounds_needed(finalists: int, error: float = 0.01) -> int:
    """The fewest rounds in which `compare` can tell any two apart: all in favour of one."""
    return max(1, math.ceil(-math.log2(error / max(1, finalists * (finalists - 1)))))


def _sign_test(excesses: Sequence[float], resolution: float) -> float:
    """``P(at least so many above)`` if the median is not above `resolution`."""
    effective = effective_repeats(excesses)
    above = sum(excess > resolution for excess in excesses) * effective // len(excesses)
    ways = sum(math.comb(effective, k) for k in range(above, effective + 1))
    return float(ways / (1 << effective))
