"""Operands of the GEMM family, and the one that is s8 rows from the start.

Every operand class copies k-tiles into slots of shared memory and loads the fragments of a k-slice from the
open tile; the main loop knows no more than that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from emitters.fragments.copies import Reach, Source, Split, TileCopy
from emitters.fragments.matrix import Lane, RowFragments
from emitters.fragments.pair_order import emit_column_at
from emitters.fragments.tile import RowTile
from emitters.fragments.weave import Fill
from emitters.gemm_schedule import Geometry
from emitters.ptx import R32, R64, Entry

Fragments = Sequence[Sequence[R32]]
Ready = Callable[[int], int]


@dataclass(frozen=True)
class Block:
    """What every part of the kernel knows about this block and thread.

    Attributes:
        ptx: The text so far.
        geometry: Of the schedule.
        shared: Start of shared memory.
        tid: Thread in the block.
        lane: Place in the warp.
        warp_m, warp_n: Place of the warp in the block.
        m, n, k: Sizes.
        m0, n0, k0: First row and column of the block's tile, and its first k.
        left: Units of the reduction from `k0` on that are this block's.
    """

    ptx: Entry
    geometry: Geometry
    shared: R32
    tid: R32
    lane: Lane
    warp_m: R32
    warp_n: R32
    m: R32
    n: R32
    k: R32
    m0: R32
    n0: R32
    k0: R32
    left: R32


class Operand(Protocol):
    """One operand of the product."""

    def aim(self, slot: R32) -> None:
        """Following copies go to `slot`."""
        ...

    def copies(self, slot_offset: int = 0) -> list[Fill]:
        """Asynchronous copies of the next tile to the slot aimed at, `slot_offset` bytes further on."""
        ...

    def copy_now(self) -> None:
        """Copy the next tile synchronously to the slot aimed at."""
        ...

    def advance(self) -> None:
        """The next copies are of the tile after."""
        ...

    def open(self, slot: R32) -> None:
        """Following loads read the tile in `slot`."""
        ...

    def loads(self, slice_k: int, fragments: Fragments, ready: Ready) -> list[Fill]:
        """Loads of the fragments of a k-slice of the open tile, each held back until `ready`."""
        ...


@runtime_checkable
class DecodedOperand(Operand, Protocol):
    """An operand that comes as codes and becomes s8 rows, a tile at a time, once for the whole block."""

    def decode(self, codes: R32, rows: R32) -> list[Fill]:
        """Decoding of the tile in slot `codes` of the code ring to `rows`."""
        ...


def clamped_offset(ptx: Entry, row: R32, last: R32, stride: R32, byte: R32) -> R32:
    """Byte offset of `byte` in `row`, or in the last row where there is no such row.

    What a row past the end contributes reaches only elements of C past the end, which are not stored.
    """
    return ptx.r("mad.lo.u32", ptx.r("min.u32", row, last), stride, byte)


class Rows:
    """s8 rows, k along the row: A, and B of `gemm_s8`."""

    def __init__(
        self,
        block: Block,
        tile: RowTile,
        width: int,
        *,
        operand: str,
        source: R64,
        reach: Reach | None = None,
    ) -> None:
        """
        Args:
            block: This block.
            tile: Rows in a slot.
            width: Bytes of a copy.
            operand: ``a`` or ``b``.
            source: Global pointer of the operand.
            reach: Of another operand with the same columns, to share its comparisons.
        """
        ptx, geometry = block.ptx, block.geometry
        is_a = operand == "a"
        self._copy = TileCopy(ptx, Split(tile, geometry.threads, width), block.tid)
        self._owns_reach = reach is None
        self.reach = reach or Reach(
            ptx, ptx.r("sub.s32", block.left, self._copy.byte), geometry.schedule.tile_k
        )
        first = block.m0 if is_a else block.n0
        last = ptx.r("sub.u32", ptx.r("sub.u32", block.m if is_a else block.n, first), 1)
        base = ptx.rd("mul.wide.u32", first, block.k)
        base = ptx.rd("add.s64", base, source)
        base = ptx.rd("mad.wide.u32", block.k0, 1, base)
        rows = self._copy.rows()
        if not is_a and geometry.paired:
            rows = [emit_column_at(ptx, row) for row in rows]
        self._source = Source(
            base=base,
            offsets=[clamped_offset(ptx, row, last, block.k, self._copy.byte) for row in rows],
            reach=self.reach,
            ahead=lambda _chunk: 0,
            advance=lambda: ptx.op("add.s64", base, base, geometry.schedule.tile_k),
        )
        warp, share = (block.warp_m, geometry.warp_m) if is_a else (block.warp_n, geometry.warp_n)
        self._fragments = RowFragments(
            ptx,
            tile,
            block.lane,
            ptx.r("mul.lo.u32", warp, share),
            operand=operand,
            load=geometry.schedule.fragment_load,
        )

    def aim(self, slot: R32) -> None:
        self._copy.aim(slot)

    def copies(self, slot_offset: int = 0) -> list[Fill]:
        return self._copy.asynchronous(self._source, slot_offset)

    def copy_now(self) -> None:
        self._copy.synchronous(self._source)

    def advance(self) -> None:
        self._source.advance()
        if self._owns_reach:
            self.reach.advance()

    def open(self, slot: R32) -> None:
        self._fragments.open(slot)

    def loads(self, slice_k: int, fragments: Fragments, ready: Ready) -> list[Fill]:
        return self._fragments.loads(slice_k, fragments, ready)
