"""Host side of the int8 backward pass: scales and codes of float64 operands, and bounds on what that costs.

`gemm_dx` takes one scale a row of dY; `gemm_dw` one scale a column of X and one a column of dY, since its
reduction runs over rows. Bounds are real-number bounds with the float64 roundings of scaling added.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Int8 = NDArray[np.int8]

SMALLEST_SCALE = float(np.finfo(np.float64).tiny)
"""Scale of a row whose largest value over 127 would be subnormal: then every code is 0, or exact enough."""

_SLACK = 8.0 * 2.0**-53
"""Relative float64 roundings of a scale, a quotient and a product, with room for their second order."""


class QuantiserError(ValueError):
    """A row or column that has no scale. The message names it."""


@dataclass(frozen=True)
class Quantised:
    """`value = scale * code`, to within half a scale.

    Attributes:
        scale: One a row, (rows,), or one a column, (columns,); positive.
        code: int8 within -127..127, shaped as the values.
        axis: 0 where scales belong to rows, 1 where they belong to columns.
    """

    scale: Float64
    code: Int8
    axis: int

    @property
    def values(self) -> Float64:
        """What the codes stand for."""
        return self.code * (self.scale[:, None] if self.axis == 0 else self.scale[None, :])


def quantise_rows(values: Float64) -> Quantised:
    """Codes with one scale a row, `max|row| / 127`; an all-zero row has scale 1.

    Raises:
        QuantiserError: A row holds something not finite.
    """
    return _quantise(values, 0, "row")


def quantise_columns(values: Float64) -> Quantised:
    """Codes with one scale a column, as `quantise_rows`.

    Raises:
        QuantiserError: A column holds something not finite.
    """
    return _quantise(values, 1, "column")


def _quantise(values: Float64, axis: int, name: str) -> Quantised:
    if values.ndim != 2:
        raise QuantiserError(f"values must have two axes, got shape {values.shape}")
    lines = values if axis == 0 else values.T
    bad = np.flatnonzero(~np.isfinite(lines).all(axis=1))
    if len(bad):
        raise QuantiserError(f"{name} {bad[0]} must be finite; remove its NaN or infinity before quantising")
    largest = np.abs(lines).max(axis=1, initial=0.0)
    scale = np.where(largest == 0.0, 1.0, np.maximum(largest / 127.0, SMALLEST_SCALE))
    code = np.rint(lines / scale[:, None]).astype(np.int8)
    return Quantised(scale, np.ascontiguousarray(code if axis == 0 else code.T), axis)


def dx_error_bound(dy: Quantised, weights: NDArray[np.int8]) -> Float64:
    """How far `scale[m] * dX_s32[m, n]` may be from the real dX.

    Args:
        dy: dY (M, K) quantised by rows.
        weights: Ternary values (N, K).

    Returns:
        (M, N): `scale[m] / 2` for each non-zero weight of row n.
    """
    nonzero = np.count_nonzero(weights, axis=1).astype(np.float64)
    largest = np.abs(dy.values) @ (weights != 0).T.astype(np.float64)
    bound: Float64 = 0.5 * dy.scale[:, None] * nonzero * (1.0 + _SLACK) + _gamma64(weights.shape[1]) * largest
    return bound


def dw_error_bound(x: Float64, dy: Float64, x_codes: Quantised, dy_codes: Quantised) -> Float64:
    """How far `sx[m] * sy[n] * dW_s32[m, n]` may be from the real dW.

    Args:
        x, dy: The real operands, (R, M) and (R, N).
        x_codes, dy_codes: The same quantised by columns.

    Returns:
        (M, N): `|x|*sy/2 + |dy|*sx/2 + sx*sy/4` summed over rows.
    """
    sx, sy = x_codes.scale, dy_codes.scale
    columns_x, columns_y = np.abs(x).sum(axis=0), np.abs(dy).sum(axis=0)
    cross = columns_x[:, None] * sy * 0.5 + sx[:, None] * columns_y * 0.5 + len(x) * np.outer(sx, sy) * 0.25
    bound: Float64 = cross * (1.0 + _SLACK) + _gamma64(len(x)) * (np.abs(x).T @ np.abs(dy))
    return bound


def _gamma64(terms: int) -> float:
    """Relative rounding of a float64 sum of that many products, and of the scaling after it."""
    return (terms + 8) * 2.0**-53
