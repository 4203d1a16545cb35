"""Bytes that lie 2 off a word in every second block: by halfwords, or by the aligned words around them.

A window of n bytes is n/4 + 1 words; the last one is needed only where the bytes are off, and shifting
pairs of words right by 0 or 16 bits puts the bytes into place.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from emitters.ptx import R16, R32, R64, Entry, Pred, at, negated, vector


@dataclass(frozen=True)
class Alignment:
    """Of one block.

    Attributes:
        shift: 0, or 16 where the block starts 2 bytes off a word.
        odd: Whether it does.
    """

    shift: R32
    odd: Pred


def alignment_of(ptx: Entry, block: R64) -> Alignment:
    """How a block at a 2-byte aligned address lies."""
    shift = ptx.r("shl.b32", ptx.r("and.b32", ptx.r("cvt.u32.u64", block), 2), 3)
    return Alignment(shift, ptx.p("setp.ne.u32", shift, 0))


def window_words(nbytes: int) -> int:
    """Words of the window of so many bytes."""
    return nbytes // 4 + 1


def load_halfword(ptx: Entry, address: R64, offset: int) -> R16:
    return ptx.h("ld.global.nc.u16", at(address, offset))


def load_by_halfwords(ptx: Entry, address: R64, offset: int, nbytes: int) -> list[R32]:
    """Bytes, as words, two bytes a load; 2 bytes come in the low half of a word."""
    halves = [load_halfword(ptx, address, offset + byte) for byte in range(0, nbytes, 2)]
    if nbytes == 2:
        return [ptx.r("cvt.u32.u16", halves[0])]
    return [ptx.r("mov.b32", vector(halves[i : i + 2])) for i in range(0, len(halves), 2)]


def load_by_window(
    ptx: Entry, address: R64, offset: int, nbytes: int, lies: Alignment, sharp: Pred | None = None
) -> list[R32]:
    """Bytes, as words, by aligned loads.

    Args:
        ptx: The entry.
        address, offset: Where the bytes begin; 2-byte aligned.
        nbytes: A multiple of 4.
        lies: How the block lies.
        sharp: Where this holds the window must not begin before the bytes: their first two come by a
            halfword.
    """
    start = ptx.rd("and.b64", address, -4)
    words = ptx.new_rs(window_words(nbytes))
    for i, word in enumerate(words):
        where = at(start, offset + 4 * i)
        if i == nbytes // 4:
            ptx.op("mov.b32", word, 0)
            ptx.op("ld.global.nc.u32", word, where, guard=lies.odd)
        elif i == 0 and sharp is not None:
            ptx.op("ld.global.nc.u32", word, where, guard=negated(sharp))
            half = ptx.new_h()
            ptx.op("ld.global.nc.u16", half, at(address, offset), guard=sharp)
            ptx.op("mov.b32", word, vector((half, half)), guard=sharp)
        else:
            ptx.op("ld.global.nc.u32", word, where)
    return shifted(ptx, words, lies)


def shifted(ptx: Entry, words: Sequence[R32], lies: Alignment) -> list[R32]:
    """The bytes of a window, in place: one word fewer."""
    return [ptx.r("shf.r.wrap.b32", low, high, lies.shift) for low, high in itertools.pairwise(words)]


def copy_halfword(ptx: Entry, to: str, source: str, guard: Pred) -> None:
    """Copy two bytes to shared memory at once: what cp.async, 4 bytes at least, cannot do."""
    half = ptx.new_h()
    ptx.op("ld.global.nc.u16", half, source, guard=guard)
    ptx.op("st.shared.u16", to, half, guard=guard)
