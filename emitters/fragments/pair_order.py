"""The order of sixteen columns that gives each lane four neighbours of a row of C.

Two neighbouring n8 fragments share sixteen columns: column 2 * t + e of the first holds 4 * t + e, of the
second 4 * t + 2 + e. The accumulators of lane t then are columns 4 * t .. 4 * t + 3, one 16-byte store.
"""

from emitters.ptx import R32, Entry


def column_at(position: int) -> int:
    """Column, in each sixteen, that is held at a position."""
    low = position & 15
    return position - low + 4 * (low >> 1 & 3) + 2 * (low >> 3) + (low & 1)


def position_of(column: int) -> int:
    """The inverse of `column_at`."""
    low = column & 15
    return column - low + 8 * (low >> 1 & 1) + 2 * (low >> 2) + (low & 1)


def emit_column_at(ptx: Entry, position: R32) -> R32:
    """`column_at` of a register."""
    kept = ptx.r("and.b32", position, "0xFFFFFFF1")
    middle = ptx.r("bfe.u32", position, 1, 2)
    upper = ptx.r("bfe.u32", position, 3, 1)
    return ptx.r("bfi.b32", upper, ptx.r("bfi.b32", middle, kept, 2, 2), 1, 1)


def emit_position_of(ptx: Entry, column: R32) -> R32:
    """`position_of` of a register."""
    kept = ptx.r("and.b32", column, "0xFFFFFFF1")
    second = ptx.r("bfe.u32", column, 1, 1)
    upper = ptx.r("bfe.u32", column, 2, 2)
    return ptx.r("bfi.b32", second, ptx.r("bfi.b32", upper, kept, 1, 2), 3, 1)
