"""Rounding errors of f32 arithmetic on a GPU: the algebra from which every float kernel derives its bound.

A bound is for the way a schedule sums: `chain_error` takes the longest chain of roundings that any term
passes through (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2), never the
length of the whole sum. Figures of approximate instructions are those the PTX ISA states.
"""

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

UNIT = 2.0**-24
"""Unit roundoff of f32, round to nearest even: `add.rn`, `mul.rn`, `fma.rn`, `div.rn`."""

ULP = 2.0**-23
"""Spacing of f32 just above 1."""

TINY = 2.0**-149
"""Smallest positive f32. A product that underflows is wrong by at most half of it."""

EX2_ERROR = 2.5 * ULP
"""Relative error of `ex2.approx.f32`: "2 ulp from correctly rounded result across the full range of inputs"
(PTX ISA 9.7.3.21), and half an ulp for that rounding. A subnormal result is wrong by 2.5 `TINY` at most."""

RCP_ERROR = 1.5 * ULP
"""Relative error of `rcp.approx.f32`: "maximum ulp error is 1 across the full range of inputs" (PTX ISA
9.7.3.13), and half an ulp, as for `EX2_ERROR`."""

RSQRT_ERROR = 2.0**-22.9
"""Relative error of `rsqrt.approx.f32`: the maximum over the entire positive finite range, which the PTX ISA
gives in the section "Floating Point Instructions: rsqrt" below its table of special values."""

MMA_K = 16
"""Products that one m16n8k16 (or wmma k16) adds to its accumulator."""

MMA_ROUNDINGS = MMA_K + 4
"""Errors of one `ULP` of the largest addend that one k16 mma of f16 with f32 accumulation makes.

The PTX ISA promises "at least single precision" and leaves order and rounding open. Measured hardware
multiplies exactly, aligns a few products and the accumulator to the largest exponent, truncates each, adds,
and truncates the sum (Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ
CS 7:e330: 4 products a step on V100, 8 on A100; Khattak and Mikaitis, arXiv 2512.07004: up to 16 on H100
and B200, with extra bits). A truncation an addend and one a step, 4 steps at most, cover all of these, and
16 additions one after the other as well.
"""


def gamma(roundings: int, unit: float = UNIT) -> float:
    """Bound on |(1+d1)...(1+dn) - 1| for |d| <= unit: n*unit / (1 - n*unit)."""
    assert roundings * unit < 1.0, "the bound holds for fewer roundings than 1/unit"
    return roundings * unit / (1.0 - roundings * unit)


def chain_error(roundings: int, magnitude: Float64) -> Float64:
    """Error of a sum whose terms each pass through at most so many f32 roundings.

    Args:
        roundings: Longest chain, the rounding of a term's own product counted.
        magnitude: Sum of the terms' absolute values.

    Returns:
        The bound, with half a `TINY` a rounding for products that underflow.
    """
    return gamma(roundings) * magnitude + roundings * TINY


def mma_chain_error(products: Float64) -> Float64:
    """Error of a chain of mma's that add k16 slices one after the other to one accumulator, from zero.

    A running bound: each mma is charged for what its accumulator really holds, so a sum with cancellation
    gets a bound near its partial sums and not near the sum of all absolute values.

    Args:
        products: The exact products, shape (..., mma's, `MMA_K`), in the order in which the chain takes
            slices.

    Returns:
        The bound, shape (...).
    """
    slices = products.sum(axis=-1)
    held = np.cumsum(slices, axis=-1) - slices
    addends = np.abs(held) + np.abs(products).sum(axis=-1)
    charge = MMA_ROUNDINGS * ULP
    growth = (1.0 + charge) ** products.shape[-2]
    bound: Float64 = growth * charge * addends.sum(axis=-1) + products.shape[-2] * TINY
    return bound


def fma_f32(a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32]) -> NDArray[np.float32]:
    """The correctly rounded f32 of a*b + c, one rounding, as `fma.rn.f32`.

    The product of two f32 is exact in float64. The sum is rounded to odd there (Boldo and Melquiond,
    "Emulation of a FMA and correctly rounded sums", 2008), so that rounding it again to f32 is as good as
    rounding once.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        addend = c.astype(np.float64)
        total = np.asarray(product + addend)
        part = total - product
        lost = (product - (total - part)) + (addend - part)
        bits = total.view(np.int64)
        even = (bits & 1) == 0
        # One step in magnitude towards the lost part makes an even significand odd.
        step = np.where((lost > 0.0) == (total > 0.0), 1, -1)
        bits = bits + step * (np.isfinite(total) & (lost != 0.0) & even)
        rounded: NDArray[np.float32] = bits.view(np.float64).astype(np.float32)
        return rounded


def tree_depth(leaves: int) -> int:
    """Additions between a leaf and the root of a balanced tree: log2, rounded up."""
    return (leaves - 1).bit_length()
