"""What is believed of schedules before any was timed: by a model of the GPU, by sizes, by other studies.

A hint is a number for every valid schedule, high for slow. It enters the Gaussian process as a linear term
with a Gaussian weight, so evidence makes it fade, or grow, or turn round.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.samplers.coordinates import Floats, Singles
from tuner.samplers.target import ranked


@dataclass(frozen=True)
class Hint:
    """One belief.

    Attributes:
        name: For a person.
        values: High for slow, of mean 0 and variance 1 over the valid set, shape (valid,).
        weight, spread: Mean and standard deviation of what one unit adds to the target, which is standard
            normal.
        is_taught: By another study: given up where results speak clearly against such.
    """

    name: str
    values: Singles
    weight: float
    spread: float
    is_taught: bool = False


def predicted(name: str, times_us: Floats, weight: float, spread: float) -> Hint:
    """From a time predicted for every valid schedule, in any unit; NaN where a failure is predicted."""
    return Hint(name, ranked(times_us).astype(np.float32), weight, spread)


def stacked(hints: Sequence[Hint], valid: int) -> Singles:
    """Values of all hints, shape (valid, hints)."""
    if not hints:
        return np.zeros((valid, 0), dtype=np.float32)
    return np.stack([hint.values for hint in hints], axis=1)
