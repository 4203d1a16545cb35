"""How promising a candidate is: the improvement expected of it, times the chance that it does not fail."""

import math

import numpy as np
from scipy.special import ndtr

from tuner.samplers.coordinates import Floats


def expected_improvement(means: Floats, spreads: Floats, best: float) -> Floats:
    """By how much a Gaussian value is expected to lie below `best`, where it does; shape as `means`."""
    ahead = (best - means) / spreads
    density = np.exp(-0.5 * ahead * ahead) / math.sqrt(2 * math.pi)
    gain: Floats = spreads * (ahead * ndtr(ahead) + density)
    return gain
