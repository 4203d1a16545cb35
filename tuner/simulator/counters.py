"""Counters of a launch: instructions by class, global sectors, shared wavefronts.

Everything is counted by warp: an instruction counts for every warp with a lane in its basic block, whether
its predicate lets a lane through or not, as hardware issues it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SECTOR_BYTES = 32
BANKS = 32
MOST_TRACKED = 8


@dataclass(slots=True)
class Traffic:
    """Accesses of one kind. `ideal` is how many wavefronts (sectors) the same lanes need at least."""

    instructions: int = 0
    nbytes: int = 0
    wavefronts: int = 0
    sectors: int = 0
    ideal: int = 0


class Touched:
    """Which 32-byte sectors of global memory each of a few blocks loads, however often.

    Args:
        blocks: Linear numbers of the blocks.
    """

    def __init__(self, blocks: NDArray[np.int64]) -> None:
        self._row = {int(block): row for row, block in enumerate(blocks)}
        self._marks: dict[str, NDArray[np.bool_]] = {}

    def mark(
        self,
        buffer: str,
        nbytes: int,
        blocks: NDArray[np.int64],
        offsets: NDArray[np.int64],
        lanes: NDArray[np.bool_] | None,
    ) -> None:
        """Note an access of some blocks.

        Args:
            buffer: Name of the buffer.
            nbytes: Its size.
            blocks: The blocks, (B,).
            offsets: (1 or B, T) byte offsets of aligned accesses of at most 32 bytes.
            lanes: Active lanes, of the shape of `offsets`, or None for all.
        """
        if buffer not in self._marks:
            self._marks[buffer] = np.zeros((len(self._row), -(-nbytes // SECTOR_BYTES)), bool)
        marks = self._marks[buffer]
        sectors = offsets // SECTOR_BYTES
        for number, block in enumerate(blocks):
            row = number if len(sectors) > 1 else 0
            touched = sectors[row] if lanes is None else sectors[row][lanes[row]]
            marks[self._row[int(block)], touched] = True

    @property
    def sectors(self) -> int:
        """Different sectors of a block, summed over blocks."""
        return sum(int(np.count_nonzero(marks)) for marks in self._marks.values())

    @property
    def blocks(self) -> list[int]:
        """Linear numbers of the blocks."""
        return list(self._row)

    def common(self, blocks: Sequence[int]) -> int:
        """Sectors that all of these blocks load."""
        rows = [self._row[block] for block in blocks]
        return sum(int(np.count_nonzero(marks[rows].all(axis=0))) for marks in self._marks.values())


@dataclass(slots=True)
class Counters:
    """Counts for the blocks that ran of one launch.

    Attributes:
        blocks: how many blocks ran; threads: threads of each.
        instructions: warp instructions by class (integer, float, special, move, mma names, ldmatrix,
            ld.shared, st.shared, ld.global, st.global, cp.async, atomic, barrier, branch, ...).
        global_loads, global_stores, async_copies, atomics: bytes and 32-byte sectors of global memory;
            `ideal` is the bytes in whole sectors.
        shared_loads, shared_stores, matrix_loads, async_writes, shared_atomics: bytes and wavefronts of
            shared memory; `ideal` is the wavefronts without bank conflicts.
        turns: visits by warps of basic blocks that both load and store global memory.
        visited: share of the entry's instructions that are in basic blocks which some warp came to.
        touched: what plain loads touch, where no more than `MOST_TRACKED` blocks ran; else None.
    """

    blocks: int = 0
    threads: int = 0
    instructions: Counter[str] = field(default_factory=Counter)
    global_loads: Traffic = field(default_factory=Traffic)
    global_stores: Traffic = field(default_factory=Traffic)
    async_copies: Traffic = field(default_factory=Traffic)
    atomics: Traffic = field(default_factory=Traffic)
    shared_loads: Traffic = field(default_factory=Traffic)
    shared_stores: Traffic = field(default_factory=Traffic)
    matrix_loads: Traffic = field(default_factory=Traffic)
    async_writes: Traffic = field(default_factory=Traffic)
    shared_atomics: Traffic = field(default_factory=Traffic)
    turns: int = 0
    visited: float = 1.0
    touched: Touched | None = None

    @property
    def total_instructions(self) -> int:
        return sum(self.instructions.values())


_PATTERNS: dict[tuple[int, bytes], tuple[int, int]] = {}
MOST_PATTERN_BYTES = 1 << 23
"""Of one entry in the table times their number: what it may take of memory."""


def shared_wavefronts(
    offsets: NDArray[np.int64], nbytes: int, mask: NDArray[np.bool_] | None, lanes_a_phase: int
) -> tuple[int, int]:
    """Return (wavefronts, wavefronts without conflicts) of one access.

    Args:
        offsets: (R, T) byte addresses, T a multiple of 32.
        nbytes: bytes each lane accesses.
        mask: active lanes (R, T) or None for all.
        lanes_a_phase: lanes served together: 32 for up to 4 bytes, 16 for 8, 8 for 16 bytes.

    A wavefront serves each of 32 banks of 4 bytes once; lanes that want the same word share it.
    """
    key = None
    if offsets.shape[0] == 1:
        relative = offsets - (offsets[0, 0] & -4)
        key = (nbytes, relative.tobytes() + (mask.tobytes() if mask is not None else b""))
        known = _PATTERNS.get(key)
        if known is not None:
            return known
    result = _wavefronts(offsets, nbytes, mask, lanes_a_phase)
    if key is not None:
        if len(_PATTERNS) * len(key[1]) > MOST_PATTERN_BYTES:
            _PATTERNS.clear()
        _PATTERNS[key] = result
    return result


def _wavefronts(
    offsets: NDArray[np.int64], nbytes: int, mask: NDArray[np.bool_] | None, lanes: int
) -> tuple[int, int]:
    words = max(nbytes // 4, 1)
    rows = (offsets >> 2).reshape(-1, lanes)
    cells = (rows[..., None] + np.arange(words)).reshape(len(rows), -1)
    if mask is not None:
        active = np.broadcast_to(mask, offsets.shape).reshape(-1, lanes)
        cells = np.where(np.repeat(active, words, axis=1), cells, -1)
        phases = int(active.any(axis=1).sum())
    else:
        phases = len(rows)
    cells = np.sort(cells, axis=1)
    first = np.ones(cells.shape, bool)
    first[:, 1:] = cells[:, 1:] != cells[:, :-1]
    first &= cells >= 0
    slots = (np.arange(len(rows))[:, None] * BANKS + cells % BANKS)[first]
    load = np.bincount(slots, minlength=len(rows) * BANKS).reshape(-1, BANKS)
    return int(load.max(axis=1).sum()), phases


def global_sectors(offsets: NDArray[np.int64], mask: NDArray[np.bool_] | None) -> int:
    """Return the number of distinct 32-byte sectors, summed over warps.

    Args:
        offsets: (R, T) byte addresses of aligned accesses of at most 32 bytes, T a multiple of 32.
        mask: active lanes, broadcastable to (R, T), or None for all.
    """
    sectors = offsets >> 5
    if mask is not None:
        sectors = np.where(mask, sectors, -1)
    rows = sectors.reshape(-1, 32)
    step = rows[:, 1:] - rows[:, :-1]
    if int(step.min()) < 0:
        rows = np.sort(rows, axis=1)
        step = rows[:, 1:] - rows[:, :-1]
    if mask is None:
        return int(np.count_nonzero(step)) + len(rows)
    return int(np.count_nonzero((step != 0) & (rows[:, 1:] >= 0))) + int(np.count_nonzero(rows[:, 0] >= 0))
