"""The right operand of `hslm_dx_s8`: ternary codes along k, a row of them for each column of dX."""

from collections.abc import Sequence
from functools import partial

from emitters.fragments.copies import Reach, Source, Split, TileCopy, load_or_zero, store_shared
from emitters.fragments.decode import even_and_odd, look_up_eight, value_table
from emitters.fragments.matrix import RowFragments
from emitters.fragments.pair_order import emit_column_at
from emitters.fragments.patches import Patches
from emitters.fragments.tile import Places, RowTile
from emitters.fragments.weave import Fill
from emitters.gemm_operands import Block, Fragments, Ready, clamped_offset
from emitters.ptx import R32, R64, at, vector

_PIECE = 16
"""Bytes of codes in one load: 64 of k, two slices."""


class CodeRows:
    """Copies of rows of codes. They lie in pair order where the fragments do."""

    def __init__(self, block: Block, tile: RowTile, source: R64) -> None:
        ptx, schedule = block.ptx, block.geometry.schedule
        self.copy = TileCopy(ptx, Split(tile, block.geometry.threads, schedule.copy_bytes), block.tid)
        self.source = _source(block, source, self.copy.byte)
        self.source.offsets.extend(_offsets(block, self.copy.rows(), self.copy.byte))

    def advance(self) -> None:
        self.source.advance()
        self.source.reach.advance()


def _source(block: Block, source: R64, byte: R32) -> Source:
    """Codes of the block's tile for a thread whose first chunk is at `byte` of a row; offsets are to come."""
    ptx, tile_k = block.ptx, block.geometry.schedule.tile_k
    base = ptx.rd("mad.wide.u32", block.n0, ptx.r("shr.u32", block.k, 2), source)
    base = ptx.rd("mad.wide.u32", ptx.r("shr.u32", block.k0, 2), 1, base)
    return Source(
        base=base,
        offsets=[],
        reach=Reach(ptx, ptx.r("mad.lo.s32", byte, -4, block.left), tile_k),
        ahead=lambda _chunk: 0,
        advance=lambda: ptx.op("add.s64", base, base, tile_k // 4),
    )


def _offsets(block: Block, positions: Sequence[R32], byte: R32) -> list[R32]:
    """Offset from the tile's first code of a byte of each row, which is given by its position."""
    ptx = block.ptx
    row_bytes = ptx.r("shr.u32", block.k, 2)
    last = ptx.r("sub.u32", ptx.r("sub.u32", block.n, block.n0), 1)
    rows = [emit_column_at(ptx, position) if block.geometry.paired else position for position in positions]
    return [clamped_offset(ptx, row, last, row_bytes, byte) for row in rows]


class DecodedAlongK:
    """Plain codes that become s8 rows in shared memory, once a tile for the whole block.

    A word of codes becomes sixteen neighbouring bytes of a row, one store. Lanes go from row to row.
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
        # As wide as leaves no thread idle, where the copy does not dictate it.
        row_bytes = schedule.tile_k // 4
        widths = [w for w in (16, 8, 4) if w <= row_bytes] if codes is not None else [schedule.copy_bytes]
        all_bytes = schedule.tile_n * row_bytes
        width = next((w for w in widths if all_bytes // w >= geometry.threads), widths[-1])
        self._width = width
        self._patches = patches = Patches(
            ptx, block.tid, geometry.threads, schedule.tile_n, row_bytes // width
        )
        byte = ptx.r("mul.lo.u32", patches.outer, width)
        self._table = value_table(ptx, block.lane.number)
        self._places = Places(ptx, rows, rows.place(ptx, patches.inner, ptx.r("shl.b32", byte, 2)))
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
            self._patch = ptx.r("mad.lo.u32", patches.inner, codes.stride, byte)
        else:
            self._direct = _source(block, source, byte)
            for turn in range(patches.turns):
                rows_on, bytes_on = self._moved(turn)
                position = ptx.r("add.u32", patches.inner, rows_on) if rows_on else patches.inner
                column = ptx.r("add.u32", byte, bytes_on) if bytes_on else byte
                self._direct.offsets.extend(_offsets(block, [position], column))

    def _moved(self, turn: int) -> tuple[int, int]:
        """Rows and bytes of codes from the thread's first patch to that of a turn."""
        row, piece = self._patches.moved(turn)
        return row, piece * self._width

    def aim(self, slot: R32) -> None:
        """Following copies of codes go to `slot` of the code ring or, synchronous, to the rows at `slot`."""
        if self._codes is not None:
            self.ring.copy.aim(slot)
        else:
            self._target = slot

    def copies(self, slot_offset: int = 0) -> list[Fill]:
        return self.ring.copy.asynchronous(self.ring.source, slot_offset)

    def copy_now(self) -> None:
        ptx, source = self._ptx, self._direct
        self._aim_at_rows(self._target)
        loaded = []
        for turn in range(self._patches.turns):
            inside = source.reach.inside(4 * self._moved(turn)[1])
            loaded.append(load_or_zero(ptx, self._width, source.base, source.offsets[turn], inside))
        for turn, words in enumerate(loaded):
            for number, word in enumerate(words):
                self._store(turn, number, word)

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
        words, turns = self._width // 4, range(self._patches.turns)
        shape = {1: "", 2: ".v2", 4: ".v4"}[words]
        raw = [ptx.new_rs(words) for _ in turns]
        source = ptx.new_r()

        def start() -> None:
            ptx.op("add.u32", source, codes, self._patch)
            self._aim_at_rows(rows)

        def load(turn: int) -> None:
            row, byte = self._moved(turn)
            operand = raw[turn][0] if words == 1 else vector(raw[turn])
            ptx.op(f"ld.shared{shape}.b32", operand, at(source, row * tile.stride + byte))

        def store(turn: int, number: int) -> None:
            self._store(turn, number, raw[turn][number])

        return [
            Fill(start),
            *(Fill(partial(load, turn)) for turn in turns),
            *(Fill(partial(store, turn, number)) for turn in turns for number in range(words)),
        ]

    def _target_of(self, turn: int, number: int) -> tuple[int, int]:
        """Row and byte where word `number` of a turn's patch goes, from where the thread's first goes."""
        row, byte = self._moved(turn)
        return row, 4 * byte + 16 * number

    def _aim_at_rows(self, rows: R32) -> None:
        turns, numbers = range(self._patches.turns), range(self._width // 4)
        self._places.aim(rows, [self._target_of(turn, number) for turn in turns for number in numbers])

    def _store(self, turn: int, number: int, codes: R32) -> None:
        ptx = self._ptx
        values = ptx.new_rs(4)
        even, odd = even_and_odd(ptx, codes)
        look_up_eight(ptx, self._table, even, odd, values[0], values[1])
        even, odd = ptx.r("shr.u32", even, 16), ptx.r("shr.u32", odd, 16)
        look_up_eight(ptx, self._table, even, odd, values[2], values[3])
        store_shared(ptx, self._places.at(*self._target_of(turn, number)), values, self._patches.mine)

    def open(self, slot: R32) -> None:
        self._fragments.open(slot)

    def loads(self, slice_k: int, fragments: Fragments, ready: Ready) -> list[Fill]:
        return self._fragments.loads(slice_k, fragments, ready)


class WordsAlongK:
    """Plain codes that stay packed in shared memory and become s8 in registers.

    A lane wants, of each sixteen k of its column, the byte of codes that its place in the group names. It
    loads a piece of 64 k, as its three neighbours do, and picks its four bytes: registers of two slices.
    """

    def __init__(self, block: Block, tile: RowTile, source: R64) -> None:
        ptx, geometry = block.ptx, block.geometry
        self._ptx = ptx
        self._tile = tile
        self._codes = CodeRows(block, tile, source)
        self._words = min(_PIECE, tile.row_bytes) // 4
        row = ptx.r("mad.lo.u32", block.warp_n, geometry.warp_n, block.lane.group)
        place = ptx.r("mul.lo.u32", row, tile.stride)
        self._lane = ptx.r("add.u32", place, tile.offset)
        # Byte `member` of either word, to bytes 0 and 1.
        self._pick = ptx.r("mad.lo.u32", block.lane.member, 0x11, 0x40)
        self._address = ptx.new_r()
        self._table = value_table(ptx, block.lane.number)
        # Of a piece, what the first slice leaves for the second.
        self._held = ptx.new_rs(geometry.fragments_n) if self._words == 4 else []

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
        piece, second = divmod(slice_k, 2)
        numbers = range(len(fragments))
        if second:
            return [
                Fill(partial(self._look_up, fragments[number], self._held[number]), ready(number))
                for number in numbers
            ]
        raw = [self._ptx.new_rs(self._words) for _ in numbers]
        loads = [Fill(partial(self._load, piece, number, raw[number])) for number in numbers]
        # A load two fragments ahead of its use hides its latency and holds few registers.
        fills = loads[:2]
        for number in numbers:
            fills.append(Fill(partial(self._use, number, fragments[number], raw[number]), ready(number)))
            fills += loads[number + 2 : number + 3]
        return fills

    def _load(self, piece: int, fragment: int, words: list[R32]) -> None:
        place = 8 * fragment * self._tile.stride + piece * _PIECE
        shape = {2: ".v2", 4: ".v4"}[len(words)]
        self._ptx.op(f"ld.shared{shape}.b32", vector(words), at(self._address, place))

    def _use(self, fragment: int, registers: Sequence[R32], words: list[R32]) -> None:
        """The lane's bytes of the first two words become registers; those of the others are held."""
        if len(words) == 4:
            self._ptx.op("prmt.b32", self._held[fragment], words[2], words[3], self._pick)
        self._look_up(registers, self._ptx.r("prmt.b32", words[0], words[1], self._pick))

    def _look_up(self, registers: Sequence[R32], codes: R32) -> None:
        even, odd = even_and_odd(self._ptx, codes)
        look_up_eight(self._ptx, self._table, even, odd, registers[0], registers[1])
