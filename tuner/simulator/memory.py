"""State spaces as arrays: global buffers with guard zones around them, and the shared memory of a batch of
blocks.

Every global buffer has a 2**40-byte region of addresses to itself, so an access that leaves its buffer by any
distance is seen, and an address cut to 32 bits points nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.layout import PARAMETER_BASE, SHARED_BASE
from tuner.simulator.scalar_types import POISON
from tuner.simulator.shapes import stretched
from tuner.simulator.tensor_maps import TensorMap

REGION_BITS = 40
REGION_BASE = (1 << 32) + 256
"""Offset of a buffer in its region: what lies below it is as much a guard zone as what lies above. It is
aligned to 256 bytes, which is all that `cudaMalloc` promises.
"""
SHARED_WINDOW, LOCAL_WINDOW = 1 << 60, 2 << 60
ELEMENTS: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"),
    2: np.dtype("u2"),
    4: np.dtype("u4"),
    8: np.dtype("u8"),
    16: np.dtype("c16"),
}
ELEMENTS[32] = np.dtype([("low", "c16"), ("high", "c16")])

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


def space_window(space: str) -> tuple[int, int]:
    """Return the generic addresses [low, high) of a state space."""
    if space.startswith("shared"):
        return SHARED_WINDOW, LOCAL_WINDOW
    if space == "local":
        return LOCAL_WINDOW, PARAMETER_BASE
    return (0, SHARED_WINDOW) if space == "global" else (PARAMETER_BASE, 4 << 60)


@dataclass(slots=True, eq=False)
class Buffer:
    """Global memory of one name.

    `data` holds the bytes, padded to 32; it is the caller's own memory until the first write. `written` has a
    flag for each `cell_bytes` where reads before a write are findings; None where the caller gave the
    contents. `tensor_maps` are the tensor maps that lie in it, by offset.
    """

    name: str
    base: int
    nbytes: int
    data: NDArray[np.uint8]
    owned: bool
    cell_bytes: int = 4
    written: Mask | None = None
    views: dict[int, NDArray[Any]] = field(default_factory=dict)
    stored: bool = False
    races: Any = None
    tensor_maps: dict[int, TensorMap] = field(default_factory=dict)

    def view(self, width: int) -> NDArray[Any]:
        """Return the bytes as elements of 1, 2, 4, 8, 16 or 32 bytes."""
        found = self.views.get(width)
        if found is None:
            found = self.views[width] = self.data.view(ELEMENTS[width])
        return found

    def writable(self, width: int) -> NDArray[Any]:
        """Return a view that may be written; the caller's array is copied first."""
        if not self.owned:
            self.data = self.data.copy()
            self.owned = True
            self.views.clear()
        self.stored = True
        return self.view(width)


def _padded(array: NDArray[Any]) -> tuple[NDArray[np.uint8], bool]:
    flat = array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)
    if flat.nbytes % 32 == 0 and flat.nbytes and flat.ctypes.data % 16 == 0:
        return flat, False
    data = np.empty(-(-max(flat.nbytes, 1) // 32) * 32, np.uint8)
    data[: flat.nbytes] = flat
    data[flat.nbytes :] = POISON & 0xFF
    return data, True


class GlobalMemory:
    """The buffers of a plan, found by address."""

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.by_region: dict[int, Buffer] = {}

    def add(self, name: str, array: NDArray[Any], undefined: bool, cell_bytes: int) -> Buffer:
        """Place an array; an `undefined` one is filled with poison and every read before a write is a
        finding.
        """
        region = len(self.buffers) + 1
        base = (region << REGION_BITS) + REGION_BASE
        if undefined:
            padded = -(-max(array.nbytes, 1) // 32) * 32
            data = np.full(padded // 8, POISON, np.uint64).view(np.uint8)
            buffer = Buffer(
                name, base, array.nbytes, data, True, cell_bytes, np.zeros(padded // cell_bytes, bool)
            )
        else:
            data, owned = _padded(array)
            buffer = Buffer(name, base, array.nbytes, data, owned, cell_bytes)
        self.buffers[name] = self.by_region[region] = buffer
        return buffer

    def describe(self, address: int, nbytes: int) -> tuple[str, str, int]:
        """Return (buffer name, what is wrong with the address, its offset into that buffer)."""
        buffer = self.by_region.get(address >> REGION_BITS)
        if buffer is None:
            return "", f"address {address:#x} belongs to no buffer", address
        offset = address - buffer.base
        if offset < 0:
            return buffer.name, f"{nbytes} bytes begin {-offset} bytes before {buffer.name!r}", offset
        past = offset + nbytes - buffer.nbytes
        return (
            buffer.name,
            f"{nbytes} bytes at offset {offset} end {past} bytes past the end of {buffer.name!r} "
            f"({buffer.nbytes} bytes)",
            offset,
        )


class SharedMemory:
    """Shared memory of a batch: (B, S) bytes; addresses begin at `SHARED_BASE`."""

    def __init__(self, blocks: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self.stride = -(-max(nbytes, 1) // 32) * 32
        self.data = np.full((blocks, self.stride // 8), POISON, np.uint64).view(np.uint8)
        self.views: dict[int, NDArray[Any]] = {}
        self.flat: dict[int, NDArray[Any]] = {}
        self.rows = np.arange(blocks, dtype=np.int64)[:, None] * self.stride
        self.limit = SHARED_BASE + nbytes

    def flat_view(self, width: int) -> NDArray[Any]:
        found = self.flat.get(width)
        if found is None:
            found = self.flat[width] = self.data.reshape(-1).view(ELEMENTS[width])
            self.views[width] = self.data.view(ELEMENTS[width])
        return found

    def load(self, offsets: Index, width: int) -> NDArray[Any]:
        """Return elements of `width` bytes at byte offsets (1, ...) or (B, ...) as (B, ...)."""
        flat = self.flat_view(width)
        index = offsets // width if width & (width - 1) else offsets >> (width.bit_length() - 1)
        if offsets.shape[0] == 1:
            found: NDArray[Any] = self.views[width].take(index[0], axis=1)
            return found
        return flat.take(index + (self.rows // width).reshape(-1, *(1,) * (offsets.ndim - 1)))

    def store(self, offsets: Index, width: int, values: NDArray[Any], mask: Mask | None) -> None:
        """Store elements (broadcastable to (B, T)) at byte offsets (1, T) or (B, T) under a mask."""
        flat = self.flat_view(width)
        index = (offsets + self.rows) >> (width.bit_length() - 1)
        if mask is None:
            flat[index] = values
            return
        mask = stretched(mask, index.shape)
        flat[index[mask]] = stretched(values, index.shape)[mask]
