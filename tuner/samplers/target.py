"""What the model is asked to predict: times as ranks on a Gaussian scale, failures as the worst."""

import numpy as np
from scipy.special import ndtri

from tuner.samplers.coordinates import Floats


def ranked(times_us: Floats) -> Floats:
    """Times as standard normal quantiles of their ranks, lower is better.

    Equal times share the mean of their ranks; so do all failures (NaN), which rank last. Ranks, because a
    kernel's times span decades and only the order near the best matters.

    Args:
        times_us: Microseconds, NaN for a failure, shape (n,).
    """
    count = len(times_us)
    values = np.where(np.isnan(times_us), np.inf, times_us)
    _, places, multiplicity = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(multiplicity)
    middle = last - (multiplicity + 1) / 2
    quantiles: Floats = ndtri((middle[places] + 0.5) / count)
    return quantiles
