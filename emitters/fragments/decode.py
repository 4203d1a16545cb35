"""From 2-bit ternary codes to s8, sixteen at a time, in registers.

Codes next to each other along n: a word holds, in its byte i, the codes of four columns at one k + i. Once
the codes are two's complement (0, +1, -1 -> 00, 01, 11), a shift and a mask leave the four bytes of one
column, each 64 times its weight. Sums stay exact: 64 * 128 * 131071 < 2^30; the epilogue shifts by
`SCALE_SHIFT`.

Codes next to each other along k: a word is sixteen k of one column. They are spread to nibbles, and a table
of four values is looked up; that is exact, without a scale.
"""

from collections.abc import Sequence

from emitters.ptx import R32, Entry, hexadecimal

SCALE_SHIFT = 6
"""Decoded weights are 2^6 times the real ones, so that a 2-bit two's complement number sits in the top of a
byte."""

_TOP_BITS = hexadecimal(0xC0C0C0C0)
_ODD_BITS = hexadecimal(0xAAAAAAAA)
_EVEN_BITS = hexadecimal(0x55555555)
_NIBBLES = hexadecimal(0x33333333)

_VALUES = 0x00FF0100  # of codes 0..3, a byte each


def byte_columns(ptx: Entry, rows: Sequence[R32], nbytes: int) -> list[R32]:
    """Transpose the low `nbytes` bytes of four rows: word b of the result holds byte b of row i in its byte
    i."""
    first, second, third, fourth = rows
    low = [
        ptx.r("prmt.b32", first, second, "0x5140"),
        ptx.r("prmt.b32", third, fourth, "0x5140"),
    ]
    columns = [ptx.r("prmt.b32", *low, "0x5410")]
    if nbytes > 1:
        columns.append(ptx.r("prmt.b32", *low, "0x7632"))
    if nbytes > 2:
        high = [
            ptx.r("prmt.b32", first, second, "0x7362"),
            ptx.r("prmt.b32", third, fourth, "0x7362"),
        ]
        columns.append(ptx.r("prmt.b32", *high, "0x5410"))
        columns.append(ptx.r("prmt.b32", *high, "0x7632"))
    return columns


def to_twos_complement(ptx: Entry, codes: R32) -> R32:
    """Sixteen codes, 3 among them, as sixteen 2-bit two's complement numbers.

    High bit: c1 & ~c0. Low bit: c1 ^ c0. Both at once, with the word whose pairs are swapped.
    """
    down = ptx.r("shr.u32", codes, 1)
    up = ptx.r("shl.b32", codes, 1)
    # (down & EVEN) | (up & ~EVEN)
    swapped = ptx.lop3((0xF0 & 0xAA) | (0xCC & 0x55), down, up, _EVEN_BITS)
    # ODD ? codes & ~swapped : codes ^ swapped
    table = (0xAA & (0xF0 & ~0xCC)) | (0x55 & (0xF0 ^ 0xCC))
    return ptx.lop3(table & 0xFF, codes, swapped, _ODD_BITS)


def extract(ptx: Entry, destination: R32, numbers: R32, column: int) -> None:
    """Write column 0..3 of a word of two's complement numbers as four s8, each times 2^`SCALE_SHIFT`."""
    shift = SCALE_SHIFT - 2 * column
    top = ptx.r("shl.b32", numbers, shift) if shift else numbers
    ptx.op("and.b32", destination, top, _TOP_BITS)


def value_table(ptx: Entry, lane: R32) -> R32:
    """The values of the four codes, a byte each, in a register of every thread.

    ptxas would hold a constant in a uniform register, which `prmt` does not take as its first operand, and
    copy it for one look-up after the other. A lane and its neighbour differ by 1; ptxas cannot tell.

    Args:
        ptx: The entry.
        lane: Number of the lane in its warp.
    """
    neighbour = ptx.r("shfl.sync.bfly.b32", lane, 1, 31, "0xFFFFFFFF")
    return ptx.r("add.u32", ptx.r("xor.b32", neighbour, lane), hexadecimal(_VALUES - 1))


def even_and_odd(ptx: Entry, codes: R32) -> tuple[R32, R32]:
    """Sixteen codes in a row, as nibbles: those with even numbers in one word, the others in another."""
    even = ptx.r("and.b32", codes, _NIBBLES)
    return even, ptx.r("and.b32", ptx.r("shr.u32", codes, 2), _NIBBLES)


def look_up_eight(ptx: Entry, table: R32, even: R32, odd: R32, first: R32, second: R32) -> None:
    """Write the eight lower codes of `even_and_odd` as two words of s8, in order.

    `prmt` takes each byte of its result by a nibble of the word, out of the four values of a code.
    """
    evens = ptx.r("prmt.b32", table, 0, even)
    odds = ptx.r("prmt.b32", table, 0, odd)
    ptx.op("prmt.b32", first, evens, odds, "0x5140")
    ptx.op("prmt.b32", second, evens, odds, "0x7362")
