"""The statistics of a measurement, held to their stated error rates on simulated and on recorded noise.

Recorded: the 32 repeats of every schedule of three brute-forced spaces (FAIR Benchmark Hub for Auto-Tuning,
DOI 10.5281/zenodo.15364124), with all the drift and throttling of the boards they were taken on.
"""

import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from tuner.devices.cuda import ROUNDS
from tuner.devices.recorded import read_recording
from tuner.devices.timing import (
    Decision,
    StoppingRule,
    compare,
    effective_repeats,
    median_interval,
    precision_of,
    rank_below,
    rounds_needed,
)

RECORDED = Path(os.environ.get("REPLAY_SPACES", Path(__file__).parents[3] / "shared" / "replay"))
Source = Callable[[int], NDArray[np.float64]]
TRUE_US = 100.0


def steady(rng: np.random.Generator, spread: float = 0.01) -> Source:
    return lambda count: TRUE_US * (1 + spread * rng.standard_normal(count))


def spiked(rng: np.random.Generator) -> Source:
    """One repeat in twenty is disturbed and takes half as long again."""
    return lambda count: (
        TRUE_US * (1 + 0.01 * rng.standard_normal(count)) * np.where(rng.random(count) < 0.05, 1.5, 1.0)
    )


def heavy_tailed(rng: np.random.Generator) -> Source:
    """Student's t of 2 degrees of freedom: the variance is infinite."""
    return lambda count: TRUE_US * (1 + 0.01 * rng.standard_t(2, count))


def correlated(rng: np.random.Generator, memory: float = 0.5) -> Source:
    """Each repeat's error carries half of the one before: clocks that wander."""
    state = [float(rng.standard_normal())]

    def draw(count: int) -> NDArray[np.float64]:
        values = np.empty(count)
        for i in range(count):
            state[0] = memory * state[0] + math.sqrt(1 - memory**2) * float(rng.standard_normal())
            values[i] = TRUE_US * (1 + 0.01 * state[0])
        return values

    return draw


def stopped(rule: StoppingRule, source: Source, best: float | None) -> tuple[Decision, list[float]]:
    """Follow the rule as the stopwatch does."""
    times: list[float] = []
    decision = Decision.CONTINUE
    for look in rule.looks:
        times += source(look - len(times)).tolist()
        decision = rule.decide(times, best)
        if decision is not Decision.CONTINUE:
            break
    return decision, times


@pytest.mark.parametrize("repeats", [1, 5, 10, 11, 40, 160, 640])
@pytest.mark.parametrize("error", [0.2, 0.025, 0.001, 0.01 / 7])
def test_rank_below_is_the_binomial_quantile(repeats: int, error: float) -> None:
    rank = rank_below(repeats, error)
    if rank > 0:
        assert stats.binom.cdf(rank - 1, repeats, 0.5) <= error
    assert stats.binom.cdf(rank, repeats, 0.5) > error


def test_median_interval_of_ten_is_second_to_ninth() -> None:
    """Gibbons and Chakraborti, table of confidence intervals for the median: n = 10, 2nd to 9th, 97.9 %."""
    interval = median_interval([5.0, 1.0, 9.0, 3.0, 7.0, 2.0, 8.0, 4.0, 10.0, 6.0])
    assert interval is not None
    assert (interval.low, interval.high) == (2.0, 9.0)


def test_too_few_repeats_have_no_interval() -> None:
    assert median_interval([1.0] * 5) is None
    assert precision_of([1.0] * 5) == math.inf


def test_precision_takes_the_longer_arm() -> None:
    times = [103.0, 100.0, 100.0, 100.0, 104.0, 100.0, 100.0, 100.0, 100.0, 100.0]
    assert precision_of(times) == pytest.approx(0.03)


def test_the_interval_covers_the_median_as_often_as_stated() -> None:
    rng = np.random.default_rng(1)
    intervals = [median_interval(rng.lognormal(0.0, 0.5, 20).tolist()) for _ in range(2000)]
    known = [interval for interval in intervals if interval is not None]
    assert len(known) / 2000 >= 0.95
    assert sum(interval.low <= 1.0 <= interval.high for interval in known) / len(known) >= 0.95


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8])
def test_correlated_repeats_count_for_fewer(memory: float) -> None:
    """Signs of AR(1) noise are correlated by 2/pi asin(memory^k): of 400, 173 count at 0.5, 63 at 0.8."""
    sums = sum(2 / math.pi * math.asin(memory**k) for k in range(1, 200))
    counts = 400 / (1 + 2 * sums)
    rng = np.random.default_rng(12)
    found = [effective_repeats(correlated(rng, memory)(400).tolist()) for _ in range(100)]
    assert 0.75 * counts <= float(np.median(found)) <= 1.1 * counts


def test_a_trend_counts_for_next_to_nothing() -> None:
    assert effective_repeats([float(i) for i in range(100)]) < 5
    assert effective_repeats([1.0, 2.0] * 50) == 100
    assert effective_repeats([7.0] * 100) == 100


def test_looks_double() -> None:
    assert StoppingRule().looks == (10, 20, 40, 80, 160, 320, 640)
    assert StoppingRule(most_repeats=50).looks == (10, 20, 40)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"most_repeats": 9}, "most_repeats must be at least 10, got 9"),
        ({"precision": 0.0}, "precision must lie between 0 and 1"),
        ({"slower_error": 0.001}, "must be at least 1/1024 for a half of ten repeats"),
    ],
)
def test_impossible_rules_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StoppingRule(**change)  # type: ignore[arg-type]


def test_constant_times_are_precise_at_once() -> None:
    assert StoppingRule().decide([42.0] * 10, None) is Decision.PRECISE


def test_noise_is_repeated_until_the_limit() -> None:
    rule = StoppingRule(most_repeats=20)
    times = [90.0, 110.0] * 5
    assert rule.decide(times, None) is Decision.CONTINUE
    assert rule.decide(times * 2, None) is Decision.EXHAUSTED


def test_hopeless_is_stopped_at_the_first_look() -> None:
    """The fastest of ten repeats is what counts, and the limit is a fifth."""
    rng = np.random.default_rng(2)
    decision, times = stopped(StoppingRule(), steady(rng), best=80.0)
    assert (decision, len(times)) == (Decision.SLOWER, 10)
    assert not StoppingRule().is_slower([100.0] + [200.0] * 9, 100 / 1.2)
    assert StoppingRule().is_slower([100.0] + [200.0] * 9, 100 / 1.21)


def test_slower_by_a_little_is_stopped_soon() -> None:
    rng = np.random.default_rng(2)
    ends = [stopped(StoppingRule(precision=0.001), steady(rng), best=95.0) for _ in range(50)]
    assert all(decision is Decision.SLOWER for decision, _ in ends)
    assert np.median([len(times) for _, times in ends]) <= 40


def test_being_as_fast_as_the_best_is_not_slower() -> None:
    assert not StoppingRule().is_slower([102.0] * 640, 100.0)
    assert StoppingRule().is_slower([102.1] * 640, 100.0)


def test_both_halves_have_to_be_slower() -> None:
    """Clocks that fell in the midst of a measurement, or that had not risen yet, stop nobody."""
    slow, fast = [104.0, 105.0] * 20, [100.0, 101.0] * 20
    for times in (slow + fast, fast + slow):
        assert not StoppingRule().is_slower(times, 100.0)
    assert StoppingRule().is_slower(slow + slow, 100.0)


def wandering(rng: np.random.Generator) -> Source:
    """Each repeat's error carries 0.9 of the one before."""
    return correlated(rng, 0.9)


NOISES = [steady, spiked, heavy_tailed, correlated, wandering]


@pytest.mark.parametrize("make", NOISES)
def test_early_stop_errs_as_rarely_as_stated(make: Callable[[np.random.Generator], Source]) -> None:
    """The worst case: a candidate exactly as slow as the margin still allows. Stated is 1 %."""
    rng, rule = np.random.default_rng(3), StoppingRule()
    best = TRUE_US / (1 + rule.slower_margin)
    wrong = sum(stopped(rule, make(rng), best)[0] is Decision.SLOWER for _ in range(500))
    assert wrong / 500 <= 0.01


@pytest.mark.parametrize("make", NOISES)
def test_a_candidate_as_fast_as_the_best_is_all_but_never_stopped(
    make: Callable[[np.random.Generator], Source],
) -> None:
    rng, rule = np.random.default_rng(4), StoppingRule()
    assert sum(stopped(rule, make(rng), TRUE_US)[0] is Decision.SLOWER for _ in range(500)) == 0


@pytest.mark.parametrize(
    ("make", "most"),
    [
        pytest.param(steady, 0.05, id="independent: stated 5 %"),
        pytest.param(correlated, 0.05, id="correlated by half: stated 5 %"),
        pytest.param(spiked, 0.05, id="one in twenty disturbed: stated 5 %"),
    ],
)
def test_a_precise_median_is_within_half_a_percent(
    make: Callable[[np.random.Generator], Source], most: float
) -> None:
    rng, rule = np.random.default_rng(5), StoppingRule()
    off = 0
    for _ in range(300):
        decision, times = stopped(rule, make(rng), None)
        assert decision is Decision.PRECISE
        off += abs(float(np.median(times)) / TRUE_US - 1) > rule.precision
    assert off / 300 <= most


def test_noisier_times_take_more_repeats() -> None:
    rng, rule = np.random.default_rng(6), StoppingRule()
    quiet = np.mean([len(stopped(rule, steady(rng, 0.002), None)[1]) for _ in range(50)])
    noisy = np.mean([len(stopped(rule, steady(rng, 0.02), None)[1]) for _ in range(50)])
    assert quiet < 15
    assert noisy > 100


def rounds_of(rng: np.random.Generator, relative: list[float], rounds: int = ROUNDS) -> list[list[float]]:
    """Finalists with these true times under a common drift of 5 % and noise of 0.7 %."""
    drift = 1 + 0.05 * np.linspace(0, 1, rounds)[:, None]
    noise = 1 + 0.007 * rng.standard_normal((rounds, len(relative)))
    rows: list[list[float]] = (TRUE_US * np.array(relative) * drift * noise).tolist()
    return rows


def test_equals_are_a_tie_as_often_as_stated() -> None:
    rng = np.random.default_rng(7)
    wins = sum(compare(rounds_of(rng, [1.0] * 4)).winner is not None for _ in range(1000))
    assert wins / 1000 <= 0.01


def test_less_than_the_resolution_apart_is_a_tie() -> None:
    rng = np.random.default_rng(8)
    wins = sum(compare(rounds_of(rng, [1.0, 1.005])).winner is not None for _ in range(1000))
    assert wins / 1000 <= 0.01


def test_one_and_a_half_percent_faster_wins_in_spite_of_drift() -> None:
    rng = np.random.default_rng(9)
    comparisons = [compare(rounds_of(rng, [1.015, 1.0, 1.03, 1.025])) for _ in range(200)]
    assert sum(comparison.winner == 1 for comparison in comparisons) / 200 >= 0.95


@pytest.mark.parametrize("relative", [[1.0] * 4, [1.0, 1.005]])
def test_correlated_rounds_name_no_winner_by_mistake(relative: list[float]) -> None:
    """Each finalist's noise wanders by itself: what pairing cannot take out. Stated is 1 %."""
    rng, wins = np.random.default_rng(13), 0
    for _ in range(400):
        columns = [scale * correlated(rng, 0.8)(ROUNDS) for scale in relative]
        wins += compare(np.array(columns).T.tolist()).winner is not None
    assert wins / 400 <= 0.015


def test_ties_name_who_is_tied() -> None:
    rng = np.random.default_rng(10)
    comparison = compare(rounds_of(rng, [1.0, 1.1, 1.0, 1.2]))
    assert comparison.winner is None
    assert comparison.tied == (0, 2)
    assert comparison.leader in comparison.tied
    assert comparison.p_values[1] < comparison.threshold < comparison.p_values[2]


def test_a_lone_finalist_wins() -> None:
    assert compare([[3.0]]).winner == 0


def test_sign_test_by_hand() -> None:
    """Nine of ten above the resolution: (C(10,9) + 1) / 2^10. They alternate, so all ten count."""
    comparison = compare([[100.0, 102.0], [100.0, 103.0]] * 4 + [[100.0, 100.2], [100.0, 103.0]])
    assert comparison.p_values == (1.0, 11 / 1024)


@pytest.mark.parametrize("rounds", [[], [[]], [[1.0, 2.0], [1.0]]])
def test_rounds_must_be_whole(rounds: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="rounds must all time the same finalists"):
        compare(rounds)


@pytest.mark.parametrize("finalists", [2, 3, 5, 8])
def test_rounds_needed_are_enough_and_not_too_many(finalists: int) -> None:
    needed = rounds_needed(finalists)
    clear = [[100.0] + [120.0] * (finalists - 1)]
    assert compare(clear * needed).winner == 0
    assert compare(clear * (needed - 1)).winner is None


def recorded(name: str) -> list[list[float]]:
    """All repeats of 2,000 schedules that have a time, microseconds."""
    path = RECORDED / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"the recorded space {path.name} is not here")
    recording = read_recording(path)
    timed = np.flatnonzero(~np.isnan(recording.times_us))
    rows = recording.raw_us[np.random.default_rng(11).permutation(timed)[:2000]]
    return [row[~np.isnan(row)].tolist() for row in rows]


def _replayed(times: Iterator[float], count: int) -> NDArray[np.float64]:
    return np.array(list(islice(times, count)))


@pytest.mark.parametrize("name", ["convolution_A100", "convolution_A4000", "convolution_W7800"])
def test_recorded_noise_keeps_the_error_rates(name: str) -> None:
    """As fast as the best, yet stopped: at most the stated 1 %. One schedule against itself: a tie."""
    rule = StoppingRule(most_repeats=20)
    spaces = recorded(name)
    wrong = wins = 0
    for times in spaces:
        best = float(np.median(times))
        decision, _ = stopped(rule, partial(_replayed, iter(times)), best)
        wrong += decision is Decision.SLOWER
        wins += compare(list(zip(times[0::2], times[1::2], strict=True))).winner is not None
    assert wrong / len(spaces) <= rule.slower_error
    assert wins / len(spaces) <= 0.01
