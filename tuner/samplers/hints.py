"""What is believed of schedules before any was timed: by a model of the GPU, by its rules, by other studies.

A hint is a number for every valid schedule, high for slow. It enters the Gaussian process as a linear term
with a Gaussian weight, so evidence makes it fade, or grow, or turn round.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.samplers.coordinates import Floats, Singles
from tuner.samplers.target import ranked

WARP = 32
_FEW_THREADS, _MANY_THREADS = 64, 512


@dataclass(frozen=True)
class Hint:
    """One belief.

    Attributes:
        name: For a person.
        values: High for slow, of mean 0 and variance 1 over the valid set, shape (valid,).
        weight, spread: Mean and standard deviation of what one unit adds to the target, which is standard
            normal.
    """

    name: str
    values: Singles
    weight: float
    spread: float


def predicted(name: str, times_us: Floats, weight: float, spread: float) -> Hint:
    """From a time predicted for every valid schedule, in any unit; NaN where a failure is predicted."""
    return Hint(name, ranked(times_us).astype(np.float32), weight, spread)


def block_shape(threads: NDArray[np.int64], weight: float = 0.3, spread: float = 0.3) -> Hint:
    """From the threads of a block: too few, too many, or no whole warps are rarely best.

    Args:
        threads: Of every valid schedule, shape (valid,).
        weight, spread: Of the hint.
    """
    below = np.log2(np.maximum(_FEW_THREADS / threads, 1))
    above = np.log2(np.maximum(threads / _MANY_THREADS, 1))
    odd = below + above + 0.5 * (threads % WARP != 0)
    scale = odd.std()
    values = (odd - odd.mean()) / scale if scale > 0 else odd * 0
    return Hint("block shape", values.astype(np.float32), weight, spread)


def stacked(hints: Sequence[Hint], valid: int) -> Singles:
    """Values of all hints, shape (valid, hints)."""
    if not hints:
        return np.zeros((valid, 0), dtype=np.float32)
    return np.stack([hint.values for hint in hints], axis=1)
