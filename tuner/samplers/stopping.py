"""Whether more trials are worth it: the model's own estimate that the best has been found."""

import math

import numpy as np
from scipy.special import ndtr

from tuner.samplers.coordinates import Floats

FEWEST_TRIALS = 20
"""Below this many finished trials the estimate is no more than what the prior says, and is not given."""

ENOUGH = 0.01
"""A trial counts as the best when nothing is faster by more than this share of its time."""

CAUTION = 30.0
"""How many times likelier a better schedule is taken to be than the model believes."""

DOUBT = 100.0
"""Trials after which the variance of beliefs is trusted up to a factor of 2."""

_NEAR = 0.05  # share of the best time within which the slope from times to targets is read off


def assurance(means: Floats, spreads: Floats, targets: Floats, times_us: Floats, share: float = 1.0) -> float:
    """The estimated probability that the best trial's time is within a hundredth of the optimum's.

    From beliefs about free candidates comes the expected number of them that are better than that; the chance
    that there is none is read off a Poisson distribution. A model of few trials is too sure of itself, so
    spreads are widened, less as trials come, and the number is raised; by how much was calibrated
    on recorded spaces (docs/search.md).

    Args:
        means, spreads: Beliefs about free candidates, shape (c,).
        targets, times_us: Of the finished trials, shape (n,); NaN for the time of a failure.
        share: Part of the free schedules that the candidates are.

    Returns:
        0..1; 0 for fewer than `FEWEST_TRIALS` trials.
    """
    if len(targets) < FEWEST_TRIALS:
        return 0.0
    better = expected_better(means, spreads, targets.min() - margin(targets, times_us), len(targets), DOUBT)
    return math.exp(-CAUTION * better / share)


def expected_better(means: Floats, spreads: Floats, best: float, trials: int, doubt: float) -> float:
    """How many candidates are expected to have a target below `best`, with spreads widened by doubt."""
    wide = spreads * math.sqrt(1 + doubt / trials)
    return float(ndtr((best - means) / wide).sum())


def margin(targets: Floats, times_us: Floats) -> float:
    """By how much a target falls when the best time falls by `ENOUGH`.

    Read off the trials near the best: where many are, a hundredth of its time is much in ranks; where the
    best stands alone, little.

    Args:
        targets, times_us: Of the finished trials, shape (n,); NaN for the time of a failure.
    """
    timed = ~np.isnan(times_us)
    order = np.argsort(times_us[timed], kind="stable")
    logs, ranks = np.log(times_us[timed][order]), targets[timed][order]
    rise = float(np.interp(logs[0] + math.log1p(_NEAR), logs, ranks)) - float(ranks[0])
    return max(0.0, rise) * math.log1p(ENOUGH) / math.log1p(_NEAR)
