"""Exact floating-point values in float64 and their rounding to PTX formats in every mode.

An operation is carried out in float64 rounded to odd: 53 bits are more than two beyond f32, f16 and bf16, so
a second rounding from there, in any mode, is as good as one rounding of the exact value (Boldo and Melquiond,
"Emulation of FMA and Correctly Rounded Sums: Proved Algorithms Using Rounding to Odd", 2008).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.scalar_types import Lanes, Scalar

Reals: TypeAlias = NDArray[np.float64]
NAN_BITS = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FFFFFFFFFFFFFFF}
MODES = ("rn", "rz", "rm", "rp", "rna")


def two_sum(a: Reals, b: Reals) -> tuple[Reals, Reals]:
    """Return the rounded sum and its exact error (Knuth)."""
    total = a + b
    kept = total - a
    return total, (a - (total - kept)) + (b - kept)


def split(a: Reals) -> tuple[Reals, Reals]:
    scaled = a * 134217729.0
    high = scaled - (scaled - a)
    return high, a - high


def two_product(a: Reals, b: Reals) -> tuple[Reals, Reals]:
    """Return the rounded product and its exact error (Dekker), away from overflow and underflow."""
    product = a * b
    a1, a2 = split(a)
    b1, b2 = split(b)
    return product, a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)


def to_odd(value: Reals, error: Reals) -> Reals:
    """Round `value + error` to odd, where `value` is its nearest float64 and `error` the rest."""
    if not error.any():
        return value
    bits = np.ascontiguousarray(value).view(np.int64)
    inexact = (error != 0) & np.isfinite(value) & np.isfinite(error)
    even = (bits & 1) == 0
    away = np.signbit(error) == np.signbit(value)
    moved = np.where(value == 0, bits, bits + np.where(away, 1, -1))
    return np.where(inexact & even, moved, bits).view(np.float64)


def add_exact(a: Reals, b: Reals) -> Reals:
    """a + b rounded to odd."""
    return to_odd(*two_sum(a, b))


def read(bits: Lanes, scalar: Scalar, flush: bool = False) -> Reals:
    """Return the float64 value of a register; `flush` turns subnormals into zeros of their sign."""
    if scalar.name == "f16":
        halves: Reals = _HALVES.take(bits)
        return halves
    if scalar.name == "bf16":
        value = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        value = bits.view(scalar.view)
    if flush and scalar.name == "f32":
        value = flushed(value)
    return value.astype(np.float64)


def flushed(value: NDArray[Any]) -> NDArray[Any]:
    """Replace f32 subnormals by zeros of the same sign."""
    tiny = np.abs(value) < np.float32(2.0**-126)
    return np.where(tiny, np.copysign(np.float32(0), value), value)


def write(
    value: Reals, scalar: Scalar, mode: str = "rn", flush: bool = False, saturate: bool = False
) -> Lanes:
    """Round float64 values (exact, or rounded to odd) to register bits."""
    if saturate:
        value = np.where(np.isnan(value), 0.0, value).clip(0.0, 1.0) + 0.0
    if scalar.name == "f64":
        return np.where(
            np.isnan(value), np.uint64(NAN_BITS["f64"]), np.ascontiguousarray(value).view(np.uint64)
        )
    if scalar.name == "bf16":
        bits = _to_bf16(value, mode)
    elif scalar.name == "f16" and mode == "rn":
        return half_bits(value)
    else:
        rounded = value.astype(scalar.view)
        if mode != "rn":
            rounded = _directed(rounded, value, mode, scalar)
        if flush and scalar.name == "f32":
            rounded = flushed(rounded)
        bits = np.ascontiguousarray(rounded).view(scalar.storage)
    return np.where(np.isnan(value), np.array(NAN_BITS[scalar.name], scalar.storage), bits)


def _directed(rounded: NDArray[Any], value: Reals, mode: str, scalar: Scalar) -> NDArray[Any]:
    back = rounded.astype(np.float64)
    kind = scalar.view.type
    if mode == "rz":
        wrong, towards = np.abs(back) > np.abs(value), kind(0)
    elif mode == "rm":
        wrong, towards = back > value, kind(-np.inf)
    elif mode == "rp":
        wrong, towards = back < value, kind(np.inf)
    else:
        raise ValueError(f"rounding .{mode} to .{scalar.name} is not simulated")
    return np.where(wrong & np.isfinite(value), np.nextafter(rounded, towards), rounded)


def _single_odd(value: Reals) -> NDArray[np.uint32]:
    """Return the bits of f32 values, rounded to odd."""
    single = value.astype(np.float32)
    wide = single.astype(np.float64)
    bits: NDArray[np.uint32] = single.view(np.uint32)
    inexact = (wide != value) & np.isfinite(value)
    if not inexact.any():
        return bits
    too_far = inexact & (np.abs(wide) > np.abs(value))
    odd: NDArray[np.uint32] = (bits - too_far.astype(np.uint32)) | inexact.astype(np.uint32)
    return odd


def half_bits(value: Reals) -> NDArray[np.uint16]:
    """Return the bits of f16 values, rounded to nearest even."""
    bits = value.astype(np.float16).view(np.uint16)
    nan = value != value
    if nan.any():
        bits[nan] = NAN_BITS["f16"]
    return bits


_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
"""Every f16 value by its bits."""


def _to_bf16(value: Reals, mode: str) -> Any:
    """Cut f32, rounded to odd, at bit 16."""
    word = _single_odd(value)
    low, high = word & np.uint32(0xFFFF), word >> np.uint32(16)
    negative = (word >> np.uint32(31)).astype(bool)
    up = {
        "rn": (low > 0x8000) | ((low == 0x8000) & (high & np.uint32(1)).astype(bool)),
        "rna": low >= 0x8000,
        "rz": np.zeros_like(negative),
        "rm": negative & (low > 0),
        "rp": ~negative & (low > 0),
    }[mode]
    infinite = (high & np.uint32(0x7FFF)) == 0x7F80
    return (high + (up & ~infinite).astype(np.uint32)).astype(np.uint16)
