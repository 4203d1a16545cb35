"""Rows of bytes in shared memory, padded or swizzled so that the lanes of a warp meet few bank conflicts."""

from collections.abc import Iterable
from dataclasses import dataclass

from emitters.ptx import R32, Entry, at

BANK_BYTES = 128
"""Bytes of all banks of shared memory, 32 of 4."""

CHUNK = 16
"""Bytes that one lane's address stands for in `ldmatrix`; the unit of padding and swizzle."""

SWIZZLED_ROWS = (32, 64, 128, 256)
"""Lengths of rows that can be swizzled, bytes."""


@dataclass(frozen=True, slots=True)
class RowTile:
    """`rows` rows of `row_bytes` bytes.

    A swizzled tile has no padding; the 16-byte chunk `c` of row `r` lies at chunk `c ^ f(r)`, where `f` is
    chosen so that the eight rows that one `ldmatrix` phase reads fall into eight different groups of four
    banks.

    Attributes:
        rows: Rows.
        row_bytes: Bytes of data in a row. Swizzled: 32, 64, 128 or 256.
        stride_pad: Bytes between the end of a row and the next one.
        swizzle: Whether chunks are exchanged.
        offset: Of the tile from the address that a caller adds, bytes. Swizzled: a multiple of 128.
    """

    rows: int
    row_bytes: int
    stride_pad: int = 0
    swizzle: bool = False
    offset: int = 0

    def __post_init__(self) -> None:
        if self.swizzle and (self.stride_pad or self.row_bytes not in SWIZZLED_ROWS or self.offset % 128):
            raise ValueError(
                "a swizzled tile has rows of 32, 64, 128 or 256 bytes, no pad and an offset that is a "
                f"multiple of 128, got {self.row_bytes}, {self.stride_pad} and {self.offset}"
            )

    @property
    def stride(self) -> int:
        """Bytes from one row to the next."""
        return self.row_bytes + self.stride_pad

    @property
    def nbytes(self) -> int:
        return self.rows * self.stride

    @property
    def period(self) -> int:
        """Rows after which the placement of chunks repeats."""
        return 8 if self.swizzle else 1

    @property
    def _line_bits(self) -> tuple[int, int]:
        """First bit and number of bits of the row that f takes.

        Rows of 32 bytes share a 128-byte line by four, of 64 by two: f counts lines, not rows.
        """
        return {32: (2, 1), 64: (1, 2), 128: (0, 3), 256: (0, 3)}[self.row_bytes]

    def flip(self, row: int) -> int:
        """What a byte's offset is xored with when the row changes by bits that were zero before."""
        if not self.swizzle:
            return 0
        first, count = self._line_bits
        return CHUNK * (row >> first & (1 << count) - 1)

    def moved(self, row: int, byte: int) -> tuple[int, int]:
        """What a place is xored with, and what is added to it, when its row and byte change by bits that were
        zero before."""
        if self.swizzle:
            return self.flip(row) ^ byte, row * self.stride
        return 0, row * self.stride + byte

    def place(self, ptx: Entry, row: R32, byte: R32) -> R32:
        """Offset of `byte` of `row`, the tile's own offset included. `row` may be any register value."""
        if self.swizzle:
            line = ptx.r("bfe.u32", row, *self._line_bits)
            byte = ptx.r("xor.b32", byte, ptx.r("shl.b32", line, 4))
        place = ptx.r("mad.lo.u32", row, self.stride, byte)
        return ptx.r("add.u32", place, self.offset) if self.offset else place


class Places:
    """Addresses of a thread in a tile, all of them some rows and bytes from one place (`RowTile.moved`)."""

    def __init__(self, ptx: Entry, tile: RowTile, place: R32) -> None:
        self._ptx = ptx
        self._tile = tile
        self._place = place
        self._addresses: dict[int, R32] = {}

    def aim(self, slot: R32, moves: Iterable[tuple[int, int]]) -> None:
        """Compute the addresses of the tile at `slot` for these rows and bytes: a register for every way in
        which the swizzle turns them."""
        self._addresses = {}
        for row, byte in moves:
            flip, _ = self._tile.moved(row, byte)
            if flip not in self._addresses:
                place = self._ptx.r("xor.b32", self._place, flip) if flip else self._place
                self._addresses[flip] = self._ptx.r("add.u32", slot, place)

    def at(self, row: int, byte: int) -> str:
        """Where that is, in the tile aimed at."""
        flip, distance = self._tile.moved(row, byte)
        return at(self._addresses[flip], distance)
