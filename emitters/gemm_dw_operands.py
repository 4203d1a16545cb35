"""Operands of `hslm_dw_s8`, both with the reduction as slow axis: transposed late, or early."""

from emitters.fragments.copies import Reach, Source, Split, TileCopy, store_shared
from emitters.fragments.decode import byte_columns
from emitters.fragments.loads import load_words
from emitters.fragments.matrix import RowFragments
from emitters.fragments.patches import Patches
from emitters.fragments.tile import Places, RowTile
from emitters.fragments.transposed import ColumnFragments, emit_position_of, position_of
from emitters.fragments.weave import Fill
from emitters.gemm_dw_schedule import DwGeometry
from emitters.gemm_operands import Block, Fragments, Ready
from emitters.ptx import R32, R64, at


class Side:
    """What is different for X and dY: which axis of C they span, and where the block and the warp are.

    Attributes:
        operand: ``a`` or ``b``, as of the mma.
        across: The block's share of that axis.
        size: All of it: bytes of a row in memory.
        first: The block's first row or column of C.
        warp_first: The warp's, from there.
    """

    def __init__(self, block: Block, operand: str) -> None:
        ptx, geometry, schedule = block.ptx, block.geometry, block.geometry.schedule
        is_a = operand == "a"
        self.operand = operand
        self.across = schedule.tile_m if is_a else schedule.tile_n
        self.size = block.m if is_a else block.n
        self.first = block.m0 if is_a else block.n0
        warp, share = (block.warp_m, geometry.warp_m) if is_a else (block.warp_n, geometry.warp_n)
        self.warp_first = ptx.r("mul.lo.u32", warp, share)

    def column(self, block: Block, byte: R32, width: int) -> R32:
        """Byte of a row in memory for `byte` of the block's rows, kept `width` before the end.

        What a column past the end contributes reaches only elements of C past the end, which are not stored.
        """
        ptx = block.ptx
        return ptx.r("min.u32", ptx.r("add.u32", self.first, byte), ptx.r("sub.u32", self.size, width))

    def base(self, block: Block, source: R64) -> R64:
        """Pointer of the block's first row."""
        return block.ptx.rd("mad.wide.u32", block.k0, self.size, source)


class LateTransposed:
    """Rows as they are in memory, one k each; fragments are transposed when a warp loads them."""

    def __init__(self, block: Block, side: Side, tile: RowTile, source: R64, reach: Reach | None) -> None:
        """
        Args:
            block: This block.
            side: X or dY.
            tile: Rows in a slot.
            source: Global pointer of the operand.
            reach: Of the other operand, where its rows are shared by the threads alike.
        """
        ptx, schedule = block.ptx, block.geometry.schedule
        self._copy = TileCopy(ptx, Split(tile, block.geometry.threads, schedule.copy_bytes), block.tid)
        step = self._copy.split.step
        self._owns_reach = reach is None
        self.reach = reach or Reach(ptx, ptx.r("sub.s32", block.left, self._copy.row), schedule.tile_k)
        column = side.column(block, self._copy.byte, schedule.copy_bytes)
        base = side.base(block, source)
        tile_bytes = ptx.rd("mul.wide.u32", side.size, schedule.tile_k)
        self._source = Source(
            base=base,
            offsets=[ptx.r("mad.lo.u32", row, side.size, column) for row in self._copy.rows()],
            reach=self.reach,
            ahead=lambda chunk: chunk * step,
            advance=lambda: ptx.op("add.s64", base, base, tile_bytes),
        )
        self._fragments = ColumnFragments(ptx, tile, block.lane.number, side.warp_first, operand=side.operand)

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


class EarlyTransposed:
    """Rows along k in shared memory, made in registers on the way there.

    A thread loads a patch, some bytes of up to sixteen rows, and stores a run of k for each of its columns.
    Lanes go along k first, which fills rows in shared memory, then along the rows in memory, where eight of
    them read whole sectors. Columns lie in the order of `emitters.fragments.transposed`: lanes that store the
    same k lie some rows apart.
    """

    def __init__(self, block: Block, geometry: DwGeometry, side: Side, tile: RowTile, source: R64) -> None:
        ptx, schedule = block.ptx, geometry.schedule
        self._ptx = ptx
        self._width = width = schedule.copy_bytes
        self._rows = rows = geometry.patch_rows(side.across)
        self._patches = patches = Patches(
            ptx, block.tid, geometry.threads, schedule.tile_k // rows, side.across // width
        )
        first_row = ptx.r("mul.lo.u32", patches.inner, rows)
        first_byte = ptx.r("mul.lo.u32", patches.outer, width)
        self._reach = Reach(ptx, ptx.r("sub.s32", block.left, first_row), schedule.tile_k)
        self._row_bytes = ptx.rd("mul.wide.u32", side.size, 1)
        self._tile_bytes = ptx.rd("mul.wide.u32", side.size, schedule.tile_k)
        self._base = side.base(block, source)
        self._offsets = []
        for turn in range(patches.turns):
            patch, columns = patches.moved(turn)
            byte = ptx.r("add.u32", first_byte, columns * width) if columns else first_byte
            row = ptx.r("add.u32", first_row, patch * rows) if patch else first_row
            self._offsets.append(ptx.r("mad.lo.u32", row, side.size, side.column(block, byte, width)))
        self._places = Places(ptx, tile, tile.place(ptx, emit_position_of(ptx, first_byte), first_row))
        self._fragments = RowFragments(
            ptx,
            tile,
            block.lane,
            side.warp_first,
            operand=side.operand,
            load=schedule.fragment_load,
        )

    def _target_of(self, turn: int, column: int) -> tuple[int, int]:
        """Row and byte where a column of a turn's patch goes, from where the thread's first goes."""
        patch, columns = self._patches.moved(turn)
        return position_of(columns * self._width + column), patch * self._rows

    def aim(self, slot: R32) -> None:
        turns, columns = range(self._patches.turns), range(self._width)
        self._places.aim(slot, [self._target_of(turn, column) for turn in turns for column in columns])

    def copies(self, slot_offset: int = 0) -> list[Fill]:
        raise AssertionError("cp.async moves bytes as they are: no schedule with stages transposes early")

    def copy_now(self) -> None:
        for turn in range(self._patches.turns):
            self._store(turn, self._load(turn))

    def _load(self, turn: int) -> list[list[R32]]:
        """The words of each row of a patch; zeros past the end of the reduction."""
        ptx, ahead = self._ptx, self._patches.moved(turn)[0] * self._rows
        address = ptx.rd("mad.wide.u32", self._offsets[turn], 1, self._base)
        words = []
        for row in range(self._rows):
            if row:
                address = ptx.rd("add.s64", address, self._row_bytes)
            inside = self._reach.inside(ahead + row)
            words.append(load_words(ptx, "ld.global.nc", at(address), self._width, guard=inside))
        return words

    def _store(self, turn: int, rows: list[list[R32]]) -> None:
        ptx = self._ptx
        for word in range(self._width // 4):
            quads = [
                byte_columns(ptx, [row[word] for row in rows[first : first + 4]], 4)
                for first in range(0, self._rows, 4)
            ]
            for number in range(4):
                target = self._places.at(*self._target_of(turn, 4 * word + number))
                store_shared(ptx, target, [quad[number] for quad in quads], self._patches.mine)

    def advance(self) -> None:
        self._ptx.op("add.s64", self._base, self._base, self._tile_bytes)
        self._reach.advance()

    def open(self, slot: R32) -> None:
        self._fragments.open(slot)

    def loads(self, slice_k: int, fragments: Fragments, ready: Ready) -> list[Fill]:
        return self._fragments.loads(slice_k, fragments, ready)
