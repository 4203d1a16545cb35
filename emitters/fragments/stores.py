"""Guarded epilogue stores of s32 accumulators: vectors of neighbouring columns, or additions where blocks share C."""

from collections.abc import Sequence

from emitters.ptx import R32, R64, Entry, Pred, at, vector


def store_words(ptx: Entry, base: R64, offset: int, words: Sequence[R32], guard: Pred) -> None:
    """Neighbouring words, two or four in one store."""
    ptx.op(f"st.global.v{len(words)}.b32", at(base, offset), vector(words), guard=guard)


def add_words(ptx: Entry, base: R64, offset: int, words: Sequence[R32], guard: Pred) -> None:
    """Neighbouring words added to what is there: s32 addition is exact in any order."""
    for number, word in enumerate(words):
        ptx.op("red.global.add.s32", at(base, offset + 4 * number), word, guard=guard)
