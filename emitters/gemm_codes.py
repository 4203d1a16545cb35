"""Ternary weights that stay 2-bit codes until a warp needs the fragment: plain, or in lane order."""

from functools import partial

from emitters.fragments.copies import Reach, Source, Split, TileCopy
from emitters.fragments.decode import byte_columns, extract, to_twos_complement
from emitters.fragments.matrix import MMA_K, MMA_N
from emitters.fragments.tile import RowTile
from emitters.fragments.weave import Fill
from emitters.gemm_operands import Block, Fragments, Ready, clamped_offset
from emitters.ptx import R32, R64, Entry, at, vector


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

    Group g of lanes holds the warp's columns J * g .. J * g + J - 1, J fragments: one load takes a lane's
    codes of one k. So column g of fragment j is J * g + j, which the epilogue undoes.
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
