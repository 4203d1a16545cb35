"""Guarded epilogue stores of s32 accumulators: vectors of neighbouring columns, or additions where blocks
share C."""

from collections.abc import Sequence

from emitters.ptx import R32, R64, Entry, Pred, at, vector


def store_words(ptx: Entry, base: R64, offset: int, words: Sequence[R32], guard: Pred) -> None:
    """Neighbouring words, two or four in one store."""
    ptx.op(f"st.global.v{len(words)}.b32", at(base, offset), vector(words), guard=guard)


def add_words(ptx: Entry, base: R64, offset: int, words: Sequence[R32], guard: Pred) -> None:
    """Neighbouring words added to what is there: s32 addition is exact in any order."""
    for number, word in enumerate(words):
        ptx.op("red.global.add.s32", at(base, offset + 4 * number), word, guard=guard)


def exchange_with_neighbour(
    ptx: Entry, odd: Pred, first: Sequence[R32], second: Sequence[R32]
) -> tuple[list[R32], list[R32]]:
    """Give lanes t and t ^ 1 the two vectors of one, then of the other.

    Every lane holds two neighbouring vectors, 32 bytes of C. Stored as they are, each instruction would fill
    half of 32 sectors; afterwards lanes t and t ^ 1 hold the first and second vector of the even lane in one
    register set and of the odd lane in the other, and every sector is filled at once.

    Args:
        odd: Whether this lane is the odd one.
        first, second: The lane's own vectors.

    Returns:
        This lane's part of the even lane's, and of the odd lane's pair.
    """
    of_even, of_odd = [], []
    for own_first, own_second in zip(first, second, strict=True):
        sent = ptx.r("selp.b32", own_first, own_second, odd)
        received = ptx.r("shfl.sync.bfly.b32", sent, 1, 31, "0xFFFFFFFF")
        of_even.append(ptx.r("selp.b32", received, own_first, odd))
        of_odd.append(ptx.r("selp.b32", own_second, received, odd))
    return of_even, of_odd
