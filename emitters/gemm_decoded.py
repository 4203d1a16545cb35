"""Ternary weights that become s8 rows in shared memory, once a tile for the whole block."""

from functools import partial

from emitters.fragments.copies import Reach, Source, load_or_zero
from emitters.fragments.decode import byte_columns, extract, to_twos_complement
from emitters.fragments.matrix import RowFragments
from emitters.fragments.pair_order import emit_position_of, position_of
from emitters.fragments.tile import RowTile
from emitters.fragments.weave import Fill
from emitters.gemm_codes import CodeRows, code_base, code_column
from emitters.gemm_operands import Block, Fragments, Ready
from emitters.ptx import R32, R64, Pred, at


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
        row = emit_position_of(ptx, column) if self._paired else column
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
        """Row of a column of a patch, from the thread's first: bits that the thread's own do not use."""
        distance = turn * self._turn_columns + column
        return position_of(distance) if self._paired else distance

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
