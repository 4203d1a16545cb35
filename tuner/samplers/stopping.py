"""Whether more trials are worth it: the model's own estimate that the best has been found."""

import math

from scipy.special import ndtr

from tuner.samplers.coordinates import Floats

FEWEST_TRIALS = 20
"""Below this many finished trials the estimate is no more than what the prior says, and is not given."""

_CAUTION = 3.0  # how many times likelier a better schedule is than the model believes
_DOUBT = 50.0  # trials after which the variance of beliefs is trusted up to a factor of 2


def assurance(means: Floats, spreads: Floats, targets: Floats, share: float = 1.0) -> float:
    """The estimated probability that the best trial's time is within a hundredth of the optimum's.

    From beliefs about free candidates comes the expected number of them that are better than the best trial;
    the chance that there is none is read off a Poisson distribution. A model of few trials is too sure of
    itself, so spreads are widened, less as trials come, and the number is raised; by how much was calibrated
    on recorded and made-up spaces (docs/search.md).

    Args:
        means, spreads: Beliefs about free candidates, shape (c,).
        targets: Of the finished trials, shape (n,).
        share: Part of the free schedules that the candidates are.

    Returns:
        0..1; 0 for fewer than `FEWEST_TRIALS` trials.
    """
    if len(targets) < FEWEST_TRIALS:
        return 0.0
    wide = spreads * math.sqrt(1 + _DOUBT / len(targets))
    better = float(ndtr((targets.min() - means) / wide).sum()) / share
    return math.exp(-_CAUTION * better)
