"""Stretching arrays of lanes to a common shape, at no cost where there is nothing to do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def stretched(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return `np.broadcast_to(array, shape)`; an array of that shape is returned as it is."""
    return array if array.shape == shape else np.broadcast_to(array, shape)
