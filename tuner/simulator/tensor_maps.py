"""Tensor maps: what `cuTensorMapEncodeTiled` of the CUDA driver API makes of a tensor in global memory.

The 128 bytes of a tensor map are opaque, so whoever launches a kernel describes it, by a `TensorMap` in the
place of the argument. Its rules are those of the driver API ("Tensor Map Object Management").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.syntax import PtxError

MAP_BYTES, MAP_ALIGN = 128, 64
MOST_DIMENSIONS, MOST_BOX, MOST_STEP = 5, 256, 8
SWIZZLES = (0, 32, 64, 128)
FILLS = ("zero", "nan")
ELEMENT_BYTES = {
    **{"u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8},
    **{"f16": 2, "bf16": 2, "f32": 4, "f64": 8},
}
_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FFFFFFFFFFFFFFF}


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor map without interleaving; dimension 0 is the one whose elements lie side by side.

    Attributes:
        buffer: name of the buffer that the tensor lies in.
        dtype: u8 u16 u32 s32 u64 s64 f16 bf16 f32 f64.
        sizes: elements along each of 1 to 5 dimensions.
        strides: bytes from one element to the next along dimensions 1 and up; one fewer than sizes.
        box: elements that a copy covers along each dimension.
        element_strides: steps of a copy along each dimension; () is 1 each. That of dimension 0 is ignored.
        swizzle: bytes of the pattern that 16-byte pieces are swapped within in shared memory; 0 for none.
        fill: what elements outside the tensor are loaded as: zero, or nan (floats only).
        offset: byte of the buffer at which the tensor begins.

    Raises:
        PtxError: a rule of the driver API is broken.
    """

    buffer: str
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: int = 0
    fill: str = "zero"
    offset: int = 0

    def __post_init__(self) -> None:
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * len(self.sizes))
        for broken in self._broken_rules():
            raise PtxError(f"a tensor map of {self.buffer!r}: {broken}")

    def _broken_rules(self) -> list[str]:
        rank, steps = len(self.sizes), self.element_strides
        if self.dtype not in ELEMENT_BYTES:
            return [f"its type must be one of {', '.join(ELEMENT_BYTES)}, got {self.dtype}"]
        if not 1 <= rank <= MOST_DIMENSIONS:
            return [f"it must have 1 to {MOST_DIMENSIONS} dimensions, got {rank}"]
        if not len(self.strides) + 1 == len(self.box) == len(steps) == rank:
            counts = f"{len(self.strides)}, {len(self.box)} and {len(steps)} of {rank} sizes"
            return [
                f"it takes a stride fewer than sizes, and as many box sizes and element strides, got {counts}"
            ]
        inner, found = self.box[0] * self.element_bytes, []
        if any(not 1 <= size <= 1 << 32 for size in self.sizes):
            found.append(f"sizes must be 1 to 2^32, got {self.sizes}")
        if any(stride % 16 or not 0 < stride < 1 << 40 for stride in self.strides):
            found.append(f"strides must be multiples of 16 bytes below 2^40, got {self.strides}")
        if any(not 1 <= size <= MOST_BOX for size in self.box):
            found.append(f"box sizes must be 1 to {MOST_BOX}, got {self.box}")
        if inner % 16:
            found.append(f"box rows must be multiples of 16 bytes, got {inner}")
        if any(not 1 <= step <= MOST_STEP for step in steps):
            found.append(f"element strides must be 1 to {MOST_STEP}, got {steps}")
        if self.swizzle not in SWIZZLES:
            found.append(f"the swizzle must be one of {SWIZZLES} bytes, got {self.swizzle}")
        elif self.swizzle and inner > self.swizzle:
            found.append(f"box rows must fit the swizzle of {self.swizzle} bytes, got {inner}")
        elif self.swizzle and inner < self.swizzle:
            found.append(
                f"box rows narrower than the swizzle of {self.swizzle} bytes are not simulated, got {inner}"
            )
        if self.fill not in FILLS or (self.fill == "nan" and self.dtype not in _NAN):
            found.append(f"the fill must be zero, or nan for floats, got {self.fill} for {self.dtype}")
        if self.offset % 16 or self.offset < 0:
            found.append(f"it must begin at a multiple of 16 bytes, got {self.offset}")
        return found

    @staticmethod
    def of(buffer: str, array: NDArray[Any], box: tuple[int, ...], dtype: str = "", **more: Any) -> TensorMap:
        """Describe a whole C-contiguous array, whose last axis is dimension 0; `box` goes by dimension."""
        name = dtype or f"{ {'i': 's'}.get(array.dtype.kind, array.dtype.kind) }{8 * array.dtype.itemsize}"
        return TensorMap(buffer, name, array.shape[::-1], array.strides[-2::-1], box, **more)

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Elements that a copy moves along each dimension."""
        return (
            self.box[0],
            *(-(-size // step) for size, step in zip(self.box[1:], self.element_strides[1:], strict=True)),
        )

    @property
    def box_bytes(self) -> int:
        """Bytes in shared memory, and what a copy to it counts at its mbarrier, elements outside included."""
        return prod(self.counts) * self.element_bytes

    @property
    def fill_bits(self) -> int:
        return _NAN[self.dtype] if self.fill == "nan" else 0

    def places(self, coordinates: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return where boxes at coordinates (n, dimensions) lie: byte offsets (n, elements) into the buffer,
        in the order of shared memory, and which of the elements are inside the tensor.
        """
        offsets = np.full((len(coordinates), 1), self.offset, np.int64)
        inside = np.ones((1, 1), bool)
        for number, size in enumerate(self.sizes):
            stride = self.element_bytes if number == 0 else self.strides[number - 1]
            along = coordinates[:, number, None] + _steps(self, number)
            offsets = offsets + along * stride
            inside = inside & (along >= 0) & (along < size)
        return offsets, np.broadcast_to(inside, offsets.shape)

    def swizzled(self, address: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the swizzle puts 16-byte pieces: address bits 4.. are xored with bits 7.. ."""
        if not self.swizzle:
            return address
        return address ^ (((address >> 7) & (self.swizzle // 16 - 1)) << 4)


@lru_cache(maxsize=256)
def _steps(of: TensorMap, number: int) -> NDArray[np.int64]:
    """Return how far each element of a box lies from its first along one dimension (1, elements)."""
    step = of.element_strides[number] if number else 1
    inner, outer = prod(of.counts[:number]), prod(of.counts[number + 1 :])
    along = np.arange(of.counts[number], dtype=np.int64) * step
    return np.tile(np.repeat(along, inner), outer)[None, :]
