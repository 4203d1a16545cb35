"""Block formats of quantised weights: decoders, encoders and the Q4_K to SoA converter. 256 weights a block.

Blocks are uint8 arrays of shape (rows, blocks * bytes a block); weights are float64 of shape (rows, blocks
* 256).
Decoding is exact: every product and difference of the formats fits float64.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Float64 = NDArray[np.float64]

BLOCK = 256
Q4_K_BYTES = 144
Q6_K_BYTES = 210
SOA_BYTES = 160
F16_MAX = 65504.0


class QuantError(ValueError):
    """Weights or blocks that a format cannot hold. The message names row and block."""


@dataclass(frozen=True)
class Grouped:
    """Blocks taken apart: `weight = scale * code - offset`, one scale and offset a group.

    Attributes:
        code: Small integers, float64 (rows, blocks, groups, weights a group); for Q6_K less 32, so signed.
        scale: float64 (rows, blocks, groups): d*scale or dsub.
        offset: float64 (rows, blocks, groups): dmin*min or msub; zeros for Q6_K.
    """

    code: Float64
    scale: Float64
    offset: Float64

    @property
    def weights(self) -> Float64:
        """The exact weights, (rows, n)."""
        values = self.scale[..., None] * self.code - self.offset[..., None]
        return values.reshape(values.shape[0], -1)


def _blocks(data: Bytes, nbytes: int) -> Bytes:
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] % nbytes:
        raise QuantError(
            f"blocks must be uint8 (rows, blocks * {nbytes}), got {data.dtype.name} {data.shape}"
        )
    return np.ascontiguousarray(data).reshape(data.shape[0], -1, nbytes)


def _f16_at(blocks: Bytes, byte: int, count: int) -> Float64:
    """`count` little-endian halves from a byte offset of every block, as float64 (rows, blocks, count)."""
    halves = np.ascontiguousarray(blocks[..., byte : byte + 2 * count]).view("<f2")
    return halves.astype(np.float64)


def finite_q4_k(data: NDArray[Any]) -> Bytes:
    """Q4_K blocks as a file holds them.

    Raises:
        QuantError: A d or dmin is not finite.
    """
    return _finite(data, Q4_K_BYTES, {"d": 0, "dmin": 2})


def finite_q6_k(data: NDArray[Any]) -> Bytes:
    """Q6_K blocks as a file holds them.

    Raises:
        QuantError: A d is not finite.
    """
    return _finite(data, Q6_K_BYTES, {"d": 208})


def finite_halves(data: NDArray[Any]) -> NDArray[np.float16]:
    """A matrix of halves as a file holds it.

    Raises:
        QuantError: An element is not finite.
    """
    held = np.array(data, order="C").view("<f2")
    bad = np.argwhere(~np.isfinite(held))
    if len(bad):
        raise QuantError(
            f"weights must be finite, got {held[tuple(bad[0])]} at {bad[0][1]} of row {bad[0][0]}"
        )
    return held


def _finite(data: NDArray[Any], nbytes: int, halves: Mapping[str, int]) -> Bytes:
    held = np.array(data, order="C").view(np.uint8)
    for name, byte in halves.items():
        bad = np.argwhere(~np.isfinite(_f16_at(_blocks(held, nbytes), byte, 1)[..., 0]))
        if len(bad):
            raise QuantError(f"{name} must be finite, is not in block {bad[0][1]} of row {bad[0][0]}")
    return held


# Q4_K: f16 d, f16 dmin, 12 bytes of 6-bit scales and mins, 128 bytes of nibbles.


def q4_k_grouped(data: Bytes) -> Grouped:
    """Q4_K blocks taken apart: 8 groups of 32 weights."""
    blocks = _blocks(data, Q4_K_BYTES)
    d, dmin = _f16_at(blocks, 0, 1), _f16_at(blocks, 2, 1)
    s = blocks[..., 4:16]
    low, mid, high = s[..., 0:4], s[..., 4:8], s[..., 8:12]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], axis=-1)
    mins = np.concatenate([mid & 63, (high >> 4) | (mid >> 6) << 4], axis=-1)
    nibbles = blocks[..., 16:].reshape(*blocks.shape[:2], 4, 1, 32)
    code = np.concatenate([nibbles & 15, nibbles >> 4], axis=3).reshape(*blocks.shape[:2], 8, 32)
    return Grouped(code.astype(np.float64), d * scales, dmin * mins)


def decode_q4_k(data: Bytes) -> Float64:
    """Exact weights of Q4_K blocks."""
    return q4_k_grouped(data).weights


def pack_q4_k(d: Any, dmin: Any, scales: Bytes, mins: Bytes, code: Bytes) -> Bytes:
    """Q4_K blocks from their fields.

    Args:
        d, dmin: Halves, (rows, blocks).
        scales, mins: 0..63, (rows, blocks, 8).
        code: 0..15, (rows, blocks, 256).
    """
    rows, count = np.shape(d)
    out = np.empty((rows, count, Q4_K_BYTES), np.uint8)
    out[..., 0:2] = np.asarray(d, "<f2")[..., None].view(np.uint8)
    out[..., 2:4] = np.asarray(dmin, "<f2")[..., None].view(np.uint8)
    out[..., 4:8] = scales[..., :4] | (scales[..., 4:] >> 4) << 6
    out[..., 8:12] = mins[..., :4] | (mins[..., 4:] >> 4) << 6
    out[..., 12:16] = (scales[..., 4:] & 15) | (mins[..., 4:] & 15) << 4
    halves = code.reshape(rows, count, 4, 2, 32)
    out[..., 16:] = (halves[..., 0, :] | halves[..., 1, :] << 4).reshape(rows, count, 128)
    return out.reshape(rows, -1)


def encode_q4_k(weights: Float64) -> Bytes:
    """Q4_K blocks of weights; every weight is within half a step, `scale / 2` of its group, of its code.

    Steps are rounded up, so no weight is clipped: that is what makes the bound hold without exception. A
        search for the least squared error would save a little more and bound less.

    Raises:
        QuantError: A weight is not finite, or a block's d or dmin is beyond f16.
    """
    groups = _groups(weights, 32)
    lowest = np.maximum(-groups.min(axis=-1), 0.0)
    dmin = _f16_up(lowest.max(axis=-1) / 63.0, "dmin")
    mins = _steps_up(lowest, dmin)
    reach = np.maximum(groups.max(axis=-1) + dmin[..., None] * mins, 0.0) / 15.0
    d = _f16_up(reach.max(axis=-1) / 63.0, "d")
    scales = _steps_up(reach, d)
    step = (d[..., None] * scales)[..., None]
    shifted = groups + (dmin[..., None] * mins)[..., None]
    code = np.clip(_ratio(shifted, step), 0, 15).astype(np.uint8)
    return pack_q4_k(
        d, dmin, scales.astype(np.uint8), mins.astype(np.uint8), code.reshape(*code.shape[:2], BLOCK)
    )


# Q6_K: ql[128], qh[64], s8 scales[16], f16 d.


def q6_k_grouped(data: Bytes) -> Grouped:
    """Q6_K blocks taken apart: 16 groups of 16 weights, codes less 32, no offset."""
    blocks = _blocks(data, Q6_K_BYTES)
    rows, count = blocks.shape[:2]
    ql = blocks[..., :128].reshape(rows, count, 2, 2, 32)
    qh = blocks[..., 128:192].reshape(rows, count, 2, 1, 32)
    nibble = np.concatenate([ql & 15, ql >> 4], axis=3)
    upper = (qh >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    code = (nibble | upper << 4).astype(np.float64).reshape(rows, count, 16, 16) - 32.0
    scales = blocks[..., 192:208].view(np.int8).astype(np.float64)
    scale = _f16_at(blocks, 208, 1) * scales
    return Grouped(code, scale, np.zeros_like(scale))


def decode_q6_k(data: Bytes) -> Float64:
    """Exact weights of Q6_K blocks."""
    return q6_k_grouped(data).weights


def pack_q6_k(d: Any, scales: NDArray[np.int8], code: Bytes) -> Bytes:
    """Q6_K blocks from their fields.

    Args:
        d: Halves, (rows, blocks).
        scales: int8, (rows, blocks, 16).
        code: 0..63, (rows, blocks, 256).
    """
    rows, count = np.shape(d)
    out = np.empty((rows, count, Q6_K_BYTES), np.uint8)
    quarters = code.reshape(rows, count, 2, 4, 32)
    low = quarters & 15
    out[..., :128] = (low[..., :2, :] | low[..., 2:, :] << 4).reshape(rows, count, 128)
    upper = (quarters >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    out[..., 128:192] = np.bitwise_or.reduce(upper, axis=3).reshape(rows, count, 64)
    out[..., 192:208] = scales.view(np.uint8)
    out[..., 208:] = np.asarray(d, "<f2")[..., None].view(np.uint8)
    return out.reshape(rows, -1)


def encode_q6_k(weights: Float64) -> Bytes:
    """Q6_K blocks of weights; every weight is within half a step, `|scale| / 2` of its group, of its code.

    Raises:
        QuantError: A weight is not finite, or a block's d is beyond f16.
    """
    groups = _groups(weights, 16)
    reach = np.abs(groups).max(axis=-1) / 31.0
    d = _f16_up(reach.max(axis=-1) / 127.0, "d")
    scales = _steps_up(reach, d)
    step = (d[..., None] * scales)[..., None]
    code = (np.clip(_ratio(groups, step), -32, 31) + 32).astype(np.uint8)
    return pack_q6_k(d, scales.astype(np.int8), code.reshape(*code.shape[:2], BLOCK))


# SoA: 128 bytes of nibbles in the order of the weights, 8 f16 dsub, 8 f16 msub.


def soa_grouped(data: Bytes) -> Grouped:
    """SoA blocks taken apart: 8 groups of 32 weights."""
    blocks = _blocks(data, SOA_BYTES)
    nibbles = blocks[..., :128, None] >> np.array([0, 4], np.uint8) & 15
    code = nibbles.astype(np.float64).reshape(*blocks.shape[:2], 8, 32)
    return Grouped(code, _f16_at(blocks, 128, 8), _f16_at(blocks, 144, 8))


def decode_soa(data: Bytes) -> Float64:
    """Exact weights of SoA blocks."""
    return soa_grouped(data).weights


def pack_soa(dsub: Any, msub: Any, code: Bytes) -> Bytes:
    """SoA blocks from their fields.

    Args:
        dsub, msub: Halves, (rows, blocks, 8).
        code: 0..15, (rows, blocks, 256).
    """
    rows, count = np.shape(dsub)[:2]
    out = np.empty((rows, count, SOA_BYTES), np.uint8)
    out[..., :128] = code[..., 0::2] | code[..., 1::2] << 4
    out[..., 128:144] = np.ascontiguousarray(np.asarray(dsub, "<f2")).view(np.uint8)
    out[..., 144:] = np.ascontiguousarray(np.asarray(msub, "<f2")).view(np.uint8)
    return out.reshape(rows, -1)


def encode_soa(weights: Float64) -> Bytes:
    """SoA blocks of weights; every weight is within half a step, `dsub / 2` of its group, of its code.

    Raises:
        QuantError: A weight is not finite, or a group's step or offset is beyond f16.
    """
    groups = _groups(weights, 32)
    msub = _f16_up(np.maximum(-groups.min(axis=-1), 0.0), "msub")
    shifted = groups + msub[..., None]
    dsub = _f16_up(np.maximum(shifted.max(axis=-1), 0.0) / 15.0, "dsub")
    code = np.clip(_ratio(shifted, dsub[..., None]), 0, 15).astype(np.uint8)
    return pack_soa(dsub, msub, code.reshape(*code.shape[:2], BLOCK))


def q4_k_to_soa(data: Bytes) -> Bytes:
    """SoA blocks with the codes of Q4_K blocks, `dsub = f16(d*scale)` and `msub = f16(dmin*min)`, to
    nearest even.

    Raises:
        QuantError: A product is beyond f16, or d or dmin is not finite; the message names row and block.
    """
    grouped = q4_k_grouped(data)
    with np.errstate(over="ignore"):
        dsub, msub = grouped.scale.astype("<f2"), grouped.offset.astype("<f2")
    for name, halves, exact in (
        ("d*scale", dsub, grouped.scale),
        ("dmin*min", msub, grouped.offset),
    ):
        bad = np.argwhere(~np.isfinite(halves))
        if len(bad):
            row, block, group = bad[0]
            raise QuantError(
                f"{name} must stay within f16 ({F16_MAX:g}), got {exact[row, block, group]:g} in group "
                f"{group} of block {block} of row {row}; such a block has no SoA form"
            )
    return pack_soa(dsub, msub, grouped.code.astype(np.uint8).reshape(*dsub.shape[:2], BLOCK))


def soa_conversion_bound(data: Bytes) -> Float64:
    """How far `q4_k_to_soa` may move each weight of Q4_K blocks, (rows, n).

    Rounding to f16 moves a value by 2^-11 of itself, or by 2^-25 where it is subnormal; the step's error
    counts once for each unit of the code.
    """
    grouped = q4_k_grouped(data)
    step = np.maximum(np.abs(grouped.scale) * 2.0**-11, 2.0**-25)[..., None]
    offset = np.maximum(np.abs(grouped.offset) * 2.0**-11, 2.0**-25)[..., None]
    bound: Float64 = (grouped.code * step + offset).reshape(len(data), -1)
    return bound


def _groups(weights: Float64, size: int) -> Float64:
    """Weights as float64 (rows, blocks, groups, size), checked."""
    if weights.ndim != 2 or weights.shape[1] % BLOCK:
        raise QuantError(f"weights must be (rows, a multiple of {BLOCK}), got {weights.shape}")
    groups = weights.astype(np.float64).reshape(len(weights), -1, BLOCK // size, size)
    bad = np.argwhere(~np.isfinite(groups))
    if len(bad):
        raise QuantError(
            f"weights must be finite, got {groups[tuple(bad[0])]} in block {bad[0][1]} of row {bad[0][0]}"
        )
    return groups


def _f16_up(values: Float64, name: str) -> Float64:
    """The smallest f16 that is not below each non-negative value, as float64."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
        short = halves.astype(np.float64) < values
        halves = np.where(short, np.nextafter(halves, np.float16(np.inf)), halves)
    bad = np.argwhere(~np.isfinite(halves))
    if len(bad):
        row, block = bad[0][:2]
        raise QuantError(
            f"{name} must stay within f16 ({F16_MAX:g}), got {values[tuple(bad[0])]:g} in block {block} "
            f"of row {row}; scale the weights down"
        )
    return halves.astype(np.float64)


def _steps_up(values: Float64, step: Float64) -> Float64:
    """How many steps reach each value of a group; 0 where the step is 0."""
    return np.ceil(np.divide(values, step[..., None], out=np.zeros_like(values), where=step[..., None] > 0))


def _ratio(values: Float64, step: Float64) -> Float64:
    """Values over their step, rounded to nearest even; 0 where the step is 0."""
    return np.rint(np.divide(values, step, out=np.zeros_like(values), where=step > 0))
