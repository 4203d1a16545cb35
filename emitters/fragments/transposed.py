"""Bytes transposed on their way to the mma: operands whose reduction is the slow axis in memory.

`ldmatrix .trans` moves units of two bytes, so a lane gets two neighbours of the fast axis where it wants one
byte of each of four k. Of two such registers, two `prmt` make the two that the mma wants. Rows of sixteen
then alternate between the halves of an A fragment, columns between two B fragments: column 2 * c + f of
sixteen is column c of fragment f. (`.b8` exists on sm_100a and sm_120a only.)
"""

from collections.abc import Callable, Sequence
from functools import partial

from emitters.fragments.tile import BANK_BYTES, RowTile
from emitters.fragments.weave import Fill
from emitters.ptx import R32, Entry, at, vector

SIXTEEN = 16
"""Neighbours along the fast axis that one load brings, in 32 of k."""

_EVEN_BYTES, _ODD_BYTES = "0x6420", "0x7531"


def position_of(column: int) -> int:
    """Where a row or column lies in rows along k, in each sixteen: even ones first, then odd ones."""
    return column & ~15 | (column & 1) << 3 | column >> 1 & 7


def emit_position_of(ptx: Entry, column: R32) -> R32:
    """`position_of` of a register."""
    kept = ptx.r("and.b32", column, "0xFFFFFFF0")
    half = ptx.r("bfe.u32", column, 1, 3)
    return ptx.r("bfi.b32", column, ptx.r("or.b32", kept, half), 3, 1)


class ColumnFragments:
    """Reads fragments of an operand of which a `RowTile` holds one k a row."""

    def __init__(self, ptx: Entry, tile: RowTile, lane: R32, first: R32, *, operand: str) -> None:
        """
        Args:
            ptx: The entry.
            tile: Where the rows lie.
            lane: Number of the lane.
            first: First row (of A) or column (of B) of the warp's share, a multiple of it.
            operand: ``a`` or ``b``.
        """
        self._ptx = ptx
        self._tile = tile
        self._is_a = operand == "a"
        # The four matrices of a load are 8 k each.
        self._lane = tile.place(ptx, lane, first)
        self._address = ptx.new_r()

    def open(self, slot: R32) -> None:
        """Go on to the tile at `slot`."""
        self._ptx.op("add.u32", self._address, slot, self._lane)

    def loads(
        self, slice_k: int, fragments: Sequence[Sequence[R32]], ready: Callable[[int], int]
    ) -> list[Fill]:
        """Loads of all fragments of one k-slice of 32 of the open tile; as `RowFragments.loads`."""
        each = 1 if self._is_a else 2
        sixteens = [fragments[first : first + each] for first in range(0, len(fragments), each)]
        raw = [self._ptx.new_rs(4) for _ in sixteens]
        loads, merges = [], []
        for number, registers in enumerate(raw):
            last = each * number + each - 1
            before = ready(max(0, last - each))
            loads.append(Fill(partial(self._load, slice_k, number, registers), before))
            merges.append(
                [
                    Fill(partial(self._merge, target, registers[pair : pair + 2], select), ready(last))
                    for target, pair, select in self._targets(sixteens[number])
                ]
            )
        # A load two ahead of its use hides its latency and holds few registers.
        fills = loads[:2]
        for number, merged in enumerate(merges):
            fills += [*merged, *loads[number + 2 : number + 3]]
        return fills

    def _targets(self, fragments: Sequence[Sequence[R32]]) -> list[tuple[R32, int, str]]:
        """Register to write, the pair of loaded registers that it comes from, and which bytes of them."""
        if self._is_a:
            (registers,) = fragments
            halves = [(registers[0], registers[2]), (registers[1], registers[3])]
        else:
            halves = [(fragment[0], fragment[1]) for fragment in fragments]
        return [
            (half[pair // 2], pair, select)
            for pair in (0, 2)
            for half, select in zip(halves, (_EVEN_BYTES, _ODD_BYTES), strict=True)
        ]

    def _load(self, slice_k: int, number: int, registers: Sequence[R32]) -> None:
        ptx, tile = self._ptx, self._tile
        across = SIXTEEN * number
        base, offset = self._address, 32 * slice_k * tile.stride + across
        if tile.swizzle:
            # A slot starts at a multiple of the banks, within which the swizzle turns chunks.
            turned = across % BANK_BYTES
            base = ptx.r("xor.b32", base, turned) if turned else base
            offset -= turned
        ptx.op("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", vector(registers), at(base, offset))

    def _merge(self, target: R32, pair: Sequence[R32], select: str) -> None:
        self._ptx.op("prmt.b32", target, pair[0], pair[1], select)
