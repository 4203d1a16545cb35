"""Exact results of the integer kernels, by float64 matrix products: sums stay far below 2^53."""

import numpy as np
from numpy.typing import NDArray

_CHUNK_ROWS = 2048


def product_s8(a: NDArray[np.int8], b: NDArray[np.int8]) -> NDArray[np.int32]:
    """`a @ b` of int8 matrices, exact, as s32 (which it fits: K <= 131071).

    Args:
        a: Shape (M, K).
        b: Shape (K, N).
    """
    right = b.astype(np.float64)
    result = np.empty((a.shape[0], b.shape[1]), dtype=np.int32)
    for first in range(0, a.shape[0], _CHUNK_ROWS):
        rows = slice(first, first + _CHUNK_ROWS)
        result[rows] = a[rows].astype(np.float64) @ right
    return result
