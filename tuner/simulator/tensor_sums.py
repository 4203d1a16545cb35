"""How tensor cores add, where the ISA leaves it open (PTX ISA 9.7.14.5, "Matrix multiply-accumulate").

Products of f16, bf16 and tf32 are exact; order, rounding and alignment of their sum are not specified beyond
"at least single precision". Measured hardware aligns the addends to the largest, truncates each, and
truncates the sum (Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS
7:e330, 2021). So here: the exact sum loses up to 2**-24 of the addends' magnitudes towards zero, and is
truncated to f32; a sum is exact where it is so in every order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.rounding import read
from tuner.simulator.scalar_types import F16

LARGEST = {"s8": 128, "u8": 255, "s4": 8, "u4": 15, "b1": 1}


def operand_values(data: NDArray[np.uint8], name: str) -> NDArray[Any]:
    """Return packed operand bytes (..., k bytes) as float32 (integers) or float64 (floats), k elements."""
    if name == "s8":
        return data.view(np.int8).astype(np.float32)
    if name == "u8":
        return data.astype(np.float32)
    if name == "f16":
        return read(data.view(np.uint16), F16)
    if name == "bf16":
        return (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if name in ("tf32", "f32"):
        return (data.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if name == "b1":
        return np.unpackbits(data, axis=-1, bitorder="little").astype(np.float32)
    nibbles = np.stack([data & 15, data >> 4], -1).reshape(*data.shape[:-1], -1)
    if name == "s4":
        nibbles = (nibbles ^ 8).astype(np.int8) - 8
    return nibbles.astype(np.float32)


def add_integers(
    total: NDArray[np.int32], a: NDArray[Any], b: NDArray[Any], clamp: bool, operation: str
) -> None:
    """total += a @ b, wrapping or clamped; `operation` is and / xor for single bits."""
    product = np.matmul(a, b)
    if operation == "xor":
        product = a.sum(-1, keepdims=True) + b.sum(-2, keepdims=True) - 2 * product
    if clamp:
        exact = total.astype(np.int64) + product.astype(np.int64)
        total[...] = exact.clip(-(2**31), 2**31 - 1)
    else:
        total += product.astype(np.int32)


def accumulate(
    start: NDArray[np.float32], a: NDArray[np.float64], b: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Return start + a @ b as a tensor core might: truncated, with less than all bits of every addend."""
    before = start.astype(np.float64)
    exact = np.matmul(a, b)
    exact += before
    size = np.matmul(np.abs(a), np.abs(b))
    size += np.abs(before)
    nearest = exact.astype(np.float32)
    inexact = nearest != exact
    _add_order_dependent(inexact, before, a, b, exact, size)
    share = (exact.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    lost = share.astype(np.float64)
    lost *= 2.0**-48
    lost *= size
    special = not np.isfinite(size).all()
    if special:
        inexact &= np.isfinite(exact)
        lost[~inexact] = 0
    else:
        lost *= inexact
    kept = np.abs(exact)
    kept -= lost
    np.maximum(kept, 0.0, out=kept)
    result: NDArray[np.float32] = kept.astype(np.float32)
    result.view(np.int32)[...] -= result > kept  # truncated: one step down, as these are not negative
    np.copysign(result, nearest, out=result)
    if special:
        result[np.isnan(exact)] = np.nan
    return result


UNIT_BITS = 32
"""Operands that are multiples of 2**-32 below 2**31, as all f16 are, are looked at as integers."""


def _add_order_dependent(
    inexact: NDArray[np.bool_],
    start: NDArray[np.float64],
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    exact: NDArray[np.float64],
    size: NDArray[np.float64],
) -> None:
    """Mark sums that f32 holds but that some order of adding does not reach.

    Addends are multiples of a unit; only while their magnitudes stay below 2**24 of it is every order exact.
    """
    by_row, by_column = _units(a, -1), _units(b, -2)
    least = by_row.min() * by_column.min()
    if size.max() <= 2.0**24 * least and not np.mod(start, least).any():
        return
    places = np.flatnonzero(~inexact & (exact != 0))
    rows, columns = np.divmod(places, exact.shape[-1])
    unit = np.broadcast_to(by_row, exact.shape[:-1]).reshape(-1)[rows]
    outer = rows // exact.shape[-2] * exact.shape[-1]
    by_column = np.broadcast_to(by_column, (*exact.shape[:-2], exact.shape[-1]))
    unit = unit * by_column.reshape(-1)[outer + columns]
    unit = np.minimum(unit, _lowest_bits(start.reshape(-1)[places]))
    inexact.reshape(-1)[places] = size.reshape(-1)[places] > 2.0**24 * unit


def _units(x: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Return the largest power of two that all numbers along an axis are multiples of, infinity for zeros."""
    scaled = x * 2.0**UNIT_BITS
    whole = scaled.astype(np.int64)
    if not np.array_equal(whole, scaled):
        least: NDArray[np.float64] = _lowest_bits(x).min(axis)
        return least
    together = np.bitwise_or.reduce(whole, axis=axis)
    units = (together & -together) * 2.0**-UNIT_BITS
    return np.where(units == 0, np.inf, units)


def _lowest_bits(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the value of the lowest bit set of every number, all of which f32 holds; infinity for zero."""
    single = x.astype(np.float32)
    bits = single.view(np.int32)
    fraction = bits | (1 << 23)
    lowest = (bits & (0xFF << 23)).view(np.float32).astype(np.float64) * (fraction & -fraction)
    return np.where(single == 0, np.inf, np.maximum(lowest, 2.0**-126) * 2.0**-23)
