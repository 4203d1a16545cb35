"""Approximate functions, each perturbed within the error that the PTX ISA states for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tuner.simulator.rounding import read, write
from tuner.simulator.scalar_types import SCALARS, Lanes

F32 = SCALARS["f32"]


def perturbation(bits: Lanes) -> np.ndarray:
    """Return a value in [-1, 1] for each register, a fixed scramble of its bits: the same input errs the same way."""
    mixed = bits.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**52 - 1.0


def approximate_division(accuracy: str, flush: bool) -> Callable[[Lanes, Lanes], Lanes]:
    """div.approx and div.full: at most 2 ulp (div.approx for |b| in [2^-126, 2^126])."""

    def function(x: Lanes, y: Lanes) -> Lanes:
        a, b = read(x, F32, flush), read(y, F32, flush)
        exact = a / b
        erred = exact * (1.0 + perturbation(x ^ (y << np.uint32(1))) * 1.4 * 2.0**-24)
        return write(erred, F32, "rn", flush)

    return function
