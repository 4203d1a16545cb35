"""The operands of the forward GEMM family: from global memory to fragments, one class a way of getting there.

Every class copies k-tiles into slots of shared memory and loads the fragments of a k-slice from the open tile; the
main loop knows no more than that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from emitters.fragments.copies import Reach, Source, Split, TileCopy, load_or_zero
from emitters.fragments.decode import byte_columns, extract, to_twos_complement
from emitters.fragments.matrix import MMA_K, MMA_N, Lane, RowFragments
from emitters.fragments.tile import RowTile
from emitters.fragments.weave import Fill
from emitters.gemm_schedule import Geometry
from emitters.ptx import R32, R64, Entry, Pred, at, vector
from emitters.ternary import column_in_pair_order

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
            rows = [pair_order(ptx, row) for row in rows]
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


def pair_order(ptx: Entry, row: R32) -> R32:
    """`emitters.ternary.column_in_pair_order` of the low four bits; the others stay."""
    low = ptx.r("and.b32", row, 0xFFFFFFF1)
    middle = ptx.r("bfe.u32", row, 1, 2)
    upper = ptx.r("bfe.u32", row, 3, 1)
    low = ptx.r("bfi.b32", middle, low, 2, 2)
    return ptx.r("bfi.b32", upper, low, 1, 1)


class CodeRows:
    """Copies of plain codes: rows of k, packed along n, four rows of one lane far apart.

    Row k of a tile lies at position (k % 4) * (tile_k / 4) + k / 4: a fragment wants four successive k in one
    register, so that lanes read rows k, k + 4, k + 8 .. at once, and those are neighbours here.
    """

    def __init__(self, block: Block, tile: RowTile, source: R64) -> None:
        ptx, schedule = block.ptx, block.geometry.schedule
        self._ptx = ptx
        quads = schedule.tile_k // 4
        self.copy = TileCopy(ptx, Split(tile, block.geometry.threads, schedule.copy_bytes), block.tid)
        step = self.copy.split.step
        row_bytes = ptx.r("shr.u32", block.n, 2)
        column = code_column(ptx, block, row_bytes, self.copy.byte, schedule.copy_bytes)
        offsets = []
        for position in self.copy.rows():
            row = ptx.r("shl.b32", ptx.r("and.b32", position, quads - 1), 2)
            row = ptx.r("add.u32", row, ptx.r("shr.u32", position, quads.bit_length() - 1))
            offsets.append(ptx.r("mad.lo.u32", row, row_bytes, column))
        first_quad = ptx.r("and.b32", self.copy.row, quads - 1)
        base = code_base(ptx, block, row_bytes, source)
        tile_bytes = ptx.rd("mul.wide.u32", row_bytes, schedule.tile_k)
        self.source = Source(
            base=base,
            offsets=offsets,
            # K is a multiple of 16, so that four rows of a quad are inside or outside together.
            reach=Reach(ptx, ptx.r("mad.lo.s32", first_quad, -4, block.left), schedule.tile_k),
            ahead=lambda chunk: 4 * (chunk * step % quads),
            advance=lambda: ptx.op("add.s64", base, base, tile_bytes),
        )

    def advance(self) -> None:
        self.source.advance()
        self.source.reach.advance()


def code_column(ptx: Entry, block: Block, row_bytes: R32, byte: R32, width: int) -> R32:
    """Byte of a row of codes in global memory for `byte` of the block's rows, kept `width` before the end."""
    column = ptx.r("add.u32", ptx.r("shr.u32", block.n0, 2), byte)
    return ptx.r("min.u32", column, ptx.r("sub.u32", row_bytes, width))


def code_base(ptx: Entry, block: Block, row_bytes: R32, source: R64) -> R64:
    """Pointer of the row of codes at the block's first k."""
    return ptx.rd("add.s64", ptx.rd("mul.wide.u32", block.k0, row_bytes), source)


class Packed:
    """Plain codes that stay packed in shared memory and become s8 in registers.

    Group g of lanes holds the warp's columns J * g .. J * g + J - 1, J fragments: one load takes a lane's codes of
    one k. So column g of fragment j is J * g + j, which the epilogue undoes.
    """

    def __init__(self, block: Block, tile: RowTile, source: R64) -> None:
        ptx, geometry = block.ptx, block.geometry
        self._ptx = ptx
        self._tile = tile
        self._quads = geometry.schedule.tile_k // 4
        self._lane_bytes = geometry.fragments_n // 4
        self._codes = CodeRows(block, tile, source)
        lane = ptx.r("mul.lo.u32", block.warp_n, geometry.warp_n // 4)
        lane = ptx.r("mad.lo.u32", block.lane.group, self._lane_bytes, lane)
        lane = ptx.r("mad.lo.u32", block.lane.member, tile.stride, lane)
        self._lane = ptx.r("add.u32", lane, tile.offset)
        self._address = ptx.new_r()

    def aim(self, slot: R32) -> None:
        self._codes.copy.aim(slot)

    def copies(self, slot_offset: int = 0) -> list[Fill]:
        return self._codes.copy.asynchronous(self._codes.source, slot_offset)

    def copy_now(self) -> None:
        self._codes.copy.synchronous(self._codes.source)

    def advance(self) -> None:
        self._codes.advance()

    def open(self, slot: R32) -> None:
        self._ptx.op("add.u32", self._address, slot, self._lane)

    def loads(self, slice_k: int, fragments: Fragments, ready: Ready) -> list[Fill]:
        ptx = self._ptx
        kind = {1: "u8", 2: "u16", 4: "u32"}[self._lane_bytes]
        raw: dict[int, list[R32]] = {0: [], 1: []}
        numbers: dict[int, list[R32]] = {0: [], 1: []}

        def load(half: int, row: int) -> None:
            place = (row * self._quads + 8 * slice_k + 4 * half) * self._tile.stride
            raw[half].append(ptx.r(f"ld.shared.{kind}", at(self._address, place)))

        def transpose(half: int) -> None:
            numbers[half] = byte_columns(ptx, raw[half], self._lane_bytes)

        def convert(half: int, word: int) -> None:
            numbers[half][word] = to_twos_complement(ptx, numbers[half][word])

        def decode(half: int, fragment: int) -> None:
            extract(ptx, fragments[fragment][half], numbers[half][fragment // 4], fragment % 4)

        halves = (0, 1)
        fills = [Fill(partial(load, half, row)) for half in halves for row in range(4)]
        for half in halves:
            fills.append(Fill(partial(transpose, half)))
            fills += [Fill(partial(convert, half, word)) for word in range(self._lane_bytes)]
        for fragment in range(len(fragments)):
            fills += [Fill(partial(decode, half, fragment), ready(fragment)) for half in halves]
        return fills


class Records:
    """Weights prepacked in the order in which lanes load them (`emitters.ternary.prepack`)."""

    def __init__(self, block: Block, tile: RowTile, source: R64) -> None:
        ptx, geometry = block.ptx, block.geometry
        self._ptx = ptx
        self._tile = tile
        self._slices = slices = geometry.slices
        self._columns = columns = geometry.record_columns
        self._groups = geometry.warp_n // columns
        self._copy = TileCopy(ptx, Split(tile, geometry.threads, geometry.schedule.copy_bytes), block.tid)
        step = self._copy.split.step
        shift = columns.bit_length() - 1
        all_slices = ptx.r("shr.u32", ptx.r("add.u32", block.k, MMA_K - 1), 5)
        group_bytes = ptx.r("mul.lo.u32", all_slices, tile.row_bytes)
        first_group = ptx.r("shr.u32", block.n0, shift)
        last = ptx.r("shr.u32", ptx.r("sub.u32", block.n, 1), shift)
        last = ptx.r("sub.u32", last, first_group)
        base = ptx.rd("mad.wide.u32", first_group, group_bytes, source)
        base = ptx.rd("mad.wide.u32", ptx.r("shr.u32", block.k0, 5), tile.row_bytes, base)
        offsets = []
        for row in self._copy.rows():
            group = ptx.r("shr.u32", row, slices.bit_length() - 1)
            within = ptx.r("and.b32", row, slices - 1)
            byte = ptx.r("mad.lo.u32", within, tile.row_bytes, self._copy.byte)
            offsets.append(clamped_offset(ptx, group, last, group_bytes, byte))
        first_slice = ptx.r("and.b32", self._copy.row, slices - 1)
        self._source = Source(
            base=base,
            offsets=offsets,
            reach=Reach(ptx, ptx.r("mad.lo.s32", first_slice, -MMA_K, block.left), geometry.schedule.tile_k),
            ahead=lambda chunk: MMA_K * (chunk * step % slices),
            advance=lambda: ptx.op("add.s64", base, base, slices * tile.row_bytes),
        )
        lane = ptx.r("mul.lo.u32", block.lane.number, columns // 4)
        share = self._groups * slices * tile.row_bytes
        lane = ptx.r("mad.lo.u32", block.warp_n, share, lane)
        self._lane = ptx.r("add.u32", lane, tile.offset)
        self._address = ptx.new_r()

    def aim(self, slot: R32) -> None:
        self._copy.aim(slot)

    def copies(self, slot_offset: int = 0) -> list[Fill]:
        return self._copy.asynchronous(self._source, slot_offset)

    def copy_now(self) -> None:
        self._copy.synchronous(self._source)

    def advance(self) -> None:
        self._source.advance()
        self._source.reach.advance()

    def open(self, slot: R32) -> None:
        self._ptx.op("add.u32", self._address, slot, self._lane)

    def loads(self, slice_k: int, fragments: Fragments, ready: Ready) -> list[Fill]:
        ptx, words = self._ptx, self._columns // 16
        shape = {1: "", 2: ".v2", 4: ".v4"}[words]
        numbers: dict[int, list[R32]] = {}

        def load(group: int) -> None:
            numbers[group] = ptx.new_rs(words)
            place = (group * self._slices + slice_k) * self._tile.row_bytes
            operand = numbers[group][0] if words == 1 else vector(numbers[group])
            ptx.op(f"ld.shared{shape}.b32", operand, at(self._address, place))

        def decode(fragment: int, half: int) -> None:
            group, within = divmod(fragment, self._columns // MMA_N)
            word = numbers[group][within // 2]
            extract(ptx, fragments[fragment][half], word, 2 * (within % 2) + half)

        fills = [Fill(partial(load, group)) for group in range(self._groups)]
        for fragment in range(len(fragments)):
            fills += [Fill(partial(decode, fragment, half), ready(fragment)) for half in (0, 1)]
        return fills


class Decoded:
    """Plain codes that become s8 rows in shared memory, once a tile for the whole block.

    A thread decodes patches of four k by some columns, so that a row gets one word from it. Lanes go along k.
    """

    def __init__(self, block: Block, rows: RowTile, codes: RowTile | None, source: R64) -> None:
        """
        Args:
            block: This block.
            rows: Decoded rows.
            codes: Rows of codes in a slot of the code ring; None where copies are synchronous.
            source: Global pointer of the codes.
        """
        ptx, geometry = block.ptx, block.geometry
        schedule = geometry.schedule
        self._ptx = ptx
        self._rows = rows
        self._codes = codes
        self._paired = geometry.paired
        self._quads = quads = schedule.tile_k // 4
        # As wide as leaves no thread idle, where the copy does not dictate it.
        wanted = geometry.threads
        widths = [16, 8, 4] if codes is not None else [4 * schedule.copy_bytes]
        self._columns = next((c for c in widths if quads * schedule.tile_n // c >= wanted), widths[-1])
        patches = quads * schedule.tile_n // self._columns
        self._turns = max(1, patches // geometry.threads)
        self._turn_columns = geometry.threads // quads * self._columns
        self._mine: Pred | None = None
        patch = block.tid
        if patches < geometry.threads:
            self._mine = ptx.p("setp.lt.u32", patch, patches)
            patch = ptx.r("and.b32", patch, patches - 1)
        quad = ptx.r("and.b32", patch, quads - 1)
        column = ptx.r("mul.lo.u32", ptx.r("shr.u32", patch, quads.bit_length() - 1), self._columns)
        row = row_in_pair_order(ptx, column) if self._paired else column
        self._place = rows.place(ptx, row, ptx.r("shl.b32", quad, 2))
        self._fragments = RowFragments(
            ptx,
            rows,
            block.lane,
            ptx.r("mul.lo.u32", block.warp_n, geometry.warp_n),
            operand="b",
            load=schedule.fragment_load,
        )
        if codes is not None:
            self.ring = CodeRows(block, codes, source)
            lane = ptx.r("mul.lo.u32", quad, codes.stride)
            self._patch = ptx.r("add.u32", lane, ptx.r("shr.u32", column, 2))
        else:
            self._aim_at_global(block, quad, column, source)

    def _aim_at_global(self, block: Block, quad: R32, column: R32, source: R64) -> None:
        ptx, schedule = self._ptx, block.geometry.schedule
        row_bytes = ptx.r("shr.u32", block.n, 2)
        byte = ptx.r("shr.u32", column, 2)
        row = ptx.r("shl.b32", quad, 2)
        self._offsets: list[list[R32]] = []
        for turn in range(self._turns):
            moved = ptx.r("add.u32", byte, turn * self._turn_columns // 4) if turn else byte
            place = code_column(ptx, block, row_bytes, moved, schedule.copy_bytes)
            offset = ptx.r("mad.lo.u32", row, row_bytes, place)
            offsets = [offset]
            for _ in range(3):
                offset = ptx.r("add.u32", offset, row_bytes)
                offsets.append(offset)
            self._offsets.append(offsets)
        base = code_base(ptx, block, row_bytes, source)
        tile_bytes = ptx.rd("mul.wide.u32", row_bytes, schedule.tile_k)
        self._direct = Source(
            base=base,
            offsets=[],
            reach=Reach(ptx, ptx.r("mad.lo.s32", quad, -4, block.left), schedule.tile_k),
            ahead=lambda _chunk: 0,
            advance=lambda: ptx.op("add.s64", base, base, tile_bytes),
        )

    def aim(self, slot: R32) -> None:
        """Following copies of codes go to `slot` of the code ring or, synchronous, to the rows at `slot`."""
        if self._codes is not None:
            self.ring.copy.aim(slot)
        else:
            self._target = slot

    def copies(self, slot_offset: int = 0) -> list[Fill]:
        return self.ring.copy.asynchronous(self.ring.source, slot_offset)

    def copy_now(self) -> None:
        ptx = self._ptx
        width = self._columns // 4
        addresses = self._addresses(self._target)
        for turn in range(self._turns):
            loaded = [
                load_or_zero(ptx, width, self._direct.base, offset, self._direct.reach.inside())
                for offset in self._offsets[turn]
            ]
            for word in range(width // 4):
                numbers = byte_columns(ptx, [row[word] for row in loaded], 4)
                for byte, codes in enumerate(numbers):
                    number = to_twos_complement(ptx, codes)
                    for column in range(4):
                        self._store(addresses, turn, 16 * word + 4 * byte + column, number, column)

    def advance(self) -> None:
        if self._codes is not None:
            self.ring.advance()
        else:
            self._direct.advance()
            self._direct.reach.advance()

    def decode(self, codes: R32, rows: R32) -> list[Fill]:
        """Decoding of the tile in slot `codes` of the code ring to `rows`."""
        ptx, tile = self._ptx, self._codes
        assert tile is not None
        width = self._columns // 4
        kind = {1: "u8", 2: "u16", 4: "u32"}[width]
        addresses: dict[int, R32] = {}
        raw: dict[int, list[R32]] = {}
        numbers: dict[int, list[R32]] = {}
        source: list[R32] = []

        def start() -> None:
            source.append(ptx.r("add.u32", codes, self._patch))
            addresses.update(self._addresses(rows))

        def load(turn: int) -> None:
            byte = turn * self._turn_columns // 4
            raw[turn] = [
                ptx.r(f"ld.shared.{kind}", at(source[0], row * self._quads * tile.stride + byte))
                for row in range(4)
            ]

        def transpose(turn: int) -> None:
            columns = byte_columns(ptx, raw[turn], width)
            numbers[turn] = [to_twos_complement(ptx, column) for column in columns]

        def store(turn: int, column: int) -> None:
            self._store(addresses, turn, column, numbers[turn][column // 4], column % 4)

        fills = [Fill(start)]
        fills += [Fill(partial(load, turn)) for turn in range(self._turns)]
        for turn in range(self._turns):
            fills.append(Fill(partial(transpose, turn)))
            fills += [Fill(partial(store, turn, column)) for column in range(self._columns)]
        return fills

    def _row(self, turn: int, column: int) -> int:
        """Row of a column of a patch, relative to the thread's first: bits that the thread's own do not use."""
        distance = turn * self._turn_columns + column
        return _position_in_pair_order(distance) if self._paired else distance

    def _addresses(self, rows: R32) -> dict[int, R32]:
        """The thread's address in the rows at `rows`, one for every way in which the swizzle turns it."""
        ptx, turns = self._ptx, {}
        for turn in range(self._turns):
            for column in range(self._columns):
                flip = self._rows.flip(self._row(turn, column))
                if flip not in turns:
                    place = ptx.r("xor.b32", self._place, flip) if flip else self._place
                    turns[flip] = ptx.r("add.u32", rows, place)
        return turns

    def _store(self, addresses: dict[int, R32], turn: int, column: int, numbers: R32, number: int) -> None:
        ptx, row = self._ptx, self._row(turn, column)
        decoded = ptx.new_r()
        extract(ptx, decoded, numbers, number)
        target = at(addresses[self._rows.flip(row)], row * self._rows.stride)
        ptx.op("st.shared.b32", target, decoded, guard=self._mine)

    def open(self, slot: R32) -> None:
        self._fragments.open(slot)

    def loads(self, slice_k: int, fragments: Fragments, ready: Ready) -> list[Fill]:
        return self._fragments.loads(slice_k, fragments, ready)


_POSITIONS = {column_in_pair_order(position): position for position in range(16)}


def _position_in_pair_order(column: int) -> int:
    return column & ~15 | _POSITIONS[column & 15]


def row_in_pair_order(ptx: Entry, column: R32) -> R32:
    """The row in which a column lies: the inverse of `pair_order`."""
    low = ptx.r("and.b32", column, 0xFFFFFFF1)
    upper = ptx.r("bfe.u32", column, 1, 1)
    middle = ptx.r("bfe.u32", column, 2, 2)
    low = ptx.r("bfi.b32", middle, low, 1, 2)
    return ptx.r("bfi.b32", upper, low, 3, 1)
