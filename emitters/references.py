"""Exact results of the integer kernels."""

import numpy as np
from numpy.typing import NDArray

_EXACT = 1 << 24
"""float32 holds every integer up to this, so that sums below it are exact in any order."""

_ROWS_AT_ONCE = 4096
"""Rows of the left operand that are widened to float32 together, which bounds the memory taken."""


def product_s8(a: NDArray[np.int8], b: NDArray[np.int8]) -> NDArray[np.int32]:
    """`a @ b`, exact, as s32 (which it fits: K <= 131071).

    float32 products of as many terms as stay below 2^24, added as integers. For ternary `b` that is one
    product: 128 * 131071 < 2^24.

    Args:
        a: Shape (M, K).
        b: Shape (K, N).
    """
    largest = 128 * max(1, int(np.abs(b, dtype=np.int16).max()))
    terms = _EXACT // largest
    right = b.astype(np.float32)
    result = np.zeros((a.shape[0], b.shape[1]), dtype=np.int32)
    for first in range(0, a.shape[0], _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        left = a[rows].astype(np.float32)
        for start in range(0, a.shape[1], terms):
            part = slice(start, start + terms)
            result[rows] += (left[:, part] @ right[part]).astype(np.int32)
    return result
