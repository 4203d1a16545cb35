"""Matrix fragments of `mma.m16n8k32` for s8: from rows in shared memory to registers, and the product.

Lane maps are those of the PTX ISA, "Matrix Fragments for mma.m16n8k32": lane = 4 * group + member; a0..a3 are
rows group and group + 8 at bytes 4 * member and, for a2 and a3, 16 more; b0 and b1 are column `group` at the
same bytes of k; c0, c1 are row `group`, columns 2 * member and 2 * member + 1, and c2, c3 row group + 8.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from emitters.fragments.tile import RowTile
from emitters.fragments.weave import Fill
from emitters.ptx import R32, Entry, at, vector

MMA_M, MMA_N, MMA_K = 16, 8, 32
"""Shape of one s8 mma; k in bytes."""

A_REGISTERS, B_REGISTERS, C_REGISTERS = 4, 2, 4
"""Registers of one fragment in each lane."""

FRAGMENT_LOADS = ("ldmatrix", "ld.shared")


@dataclass(frozen=True, slots=True)
class Lane:
    """A thread's place in its warp, in the words of the ISA: `lane = 4 * group + member`."""

    number: R32
    group: R32
    member: R32

    @classmethod
    def of(cls, ptx: Entry, tid: R32) -> "Lane":
        number = ptx.r("and.b32", tid, 31)
        return cls(number, ptx.r("shr.u32", number, 2), ptx.r("and.b32", number, 3))


def mma_s8(ptx: Entry, c: Sequence[R32], a: Sequence[R32], b: Sequence[R32]) -> None:
    """`c += a * b`, exact in s32 (wrapping)."""
    accumulators = vector(c)
    ptx.op(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", accumulators, vector(a), vector(b), accumulators
    )


class RowFragments:
    """Reads fragments of an operand whose rows (m of A, n of B) lie in a `RowTile`, k along the row.

    `ldmatrix` gives each lane the four bytes of k that the s8 fragment wants without `.trans`. One `x4` is a
    fragment of A, or two neighbouring ones of B. `ld.shared` takes a load a register.
    """

    def __init__(
        self, ptx: Entry, tile: RowTile, lane: Lane, first_row: R32, *, operand: str, load: str
    ) -> None:
        """
        Args:
            tile: Where the rows lie.
            lane: This thread's.
            first_row: First row of the warp's share.
            operand: ``a`` or ``b``.
            load: One of `FRAGMENT_LOADS`.
        """
        self._ptx = ptx
        self._tile = tile
        self._is_a = operand == "a"
        self._matrices = load == "ldmatrix"
        if not self._matrices:
            row, byte = lane.group, ptx.r("shl.b32", lane.member, 2)
        elif self._is_a:
            # Matrices in order: rows 0-7, rows 8-15, then both 16 bytes further on.
            row = ptx.r("and.b32", lane.number, 15)
            byte = ptx.r("and.b32", lane.number, 16)
        else:
            # Matrices in order: k 0-15 and 16-31 of columns 0-7, then of columns 8-15.
            upper = ptx.r("shr.u32", lane.number, 4)
            row = ptx.r("and.b32", lane.number, 7)
            row = ptx.r("mad.lo.u32", upper, 8, row)
            byte = ptx.r("shl.b32", ptx.r("and.b32", lane.number, 8), 1)
        self._lane = tile.place(ptx, ptx.r("add.u32", row, first_row), byte)

        self._address = ptx.new_r()

    def open(self, slot: R32) -> None:
        """Go on to the tile at `slot`."""
        self._ptx.op("add.u32", self._address, slot, self._lane)

    def loads(
        self, slice_k: int, fragments: Sequence[Sequence[R32]], ready: Callable[[int], int]
    ) -> list[Fill]:
        """Loads of all fragments of one k-slice of 32 of the open tile.

        Args:
            slice_k: Number of the slice within the tile.
            fragments: Registers to fill, a fragment each.
            ready: Mma's that must come before fragment number `i` may be overwritten.
        """
        chunks: dict[int, tuple[R32, int]] = {}

        def half(number: int) -> tuple[R32, int]:
            """Register and offset of 16-byte chunk `2 * slice_k + number` of the lane's first row."""
            if number not in chunks:
                distance = MMA_K * slice_k + 16 * number
                base = self._address
                if distance and self._tile.swizzle:
                    # Rows start at multiples of their (power of two) length, so xor moves along the row.
                    chunks[number] = self._ptx.r("xor.b32", base, distance), 0
                else:
                    chunks[number] = base, distance
            return chunks[number]

        if self._matrices:
            return self._matrix_loads(half, fragments, ready)
        return self._word_loads(half, fragments, ready)

    def _matrix_loads(
        self,
        half: Callable[[int], tuple[R32, int]],
        fragments: Sequence[Sequence[R32]],
        ready: Callable[[int], int],
    ) -> list[Fill]:
        stride = self._tile.stride

        def load(first: int, registers: list[R32]) -> None:
            base, offset = half(0)
            rows = first * (MMA_M if self._is_a else MMA_N)
            self._ptx.op(
                f"ldmatrix.sync.aligned.m8n8.x{len(registers)}.shared.b16",
                vector(registers),
                at(base, offset + rows * stride),
            )

        each = 1 if self._is_a else 2
        fills = []
        for first in range(0, len(fragments), each):
            group = fragments[first : first + each]
            registers = [register for fragment in group for register in fragment]
            fills.append(Fill(partial(load, first, registers), ready(first + len(group) - 1)))
        return fills

    def _word_loads(
        self,
        half: Callable[[int], tuple[R32, int]],
        fragments: Sequence[Sequence[R32]],
        ready: Callable[[int], int],
    ) -> list[Fill]:
        stride = self._tile.stride

        def load(register: R32, number: int, row: int) -> None:
            base, offset = half(number)
            self._ptx.op("ld.shared.b32", register, at(base, offset + row * stride))

        fills = []
        for number, fragment in enumerate(fragments):
            row = number * (MMA_M if self._is_a else MMA_N)
            rows = (row, row + 8) if self._is_a else (row,)
            places = [(half_number, row) for half_number in (0, 1) for row in rows]
            for register, (half_number, row) in zip(fragment, places, strict=True):
                fills.append(Fill(partial(load, register, half_number, row), ready(number)))
        return fills
