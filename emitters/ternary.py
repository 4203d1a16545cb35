"""Ternary weights as 2-bit codes: packing, values, and the prepacked order in which lanes load them.

A code c stands for (c & 1) - ((c >> 1) & 1). Code number i of an array is at bits 2 * (i % 16) of
little-endian u32 word i // 16.
"""

import numpy as np
from numpy.typing import NDArray

from emitters.fragments.matrix import MMA_K, MMA_N
from emitters.fragments.pair_order import column_at

CODES_PER_WORD = 16
PREPACK_COLUMNS = (16, 32, 64)
"""Columns of one record of prepacked weights: one, two or four words a lane."""

_SHIFTS = np.array([0, 2, 4, 6], dtype=np.uint8)
_VALUES = np.array([0, 1, -1, 0], dtype=np.int8)
_TO_TWOS_COMPLEMENT = np.array([0, 1, 3, 0], dtype=np.uint8)
_FROM_TWOS_COMPLEMENT = np.array([0, 1, 0, 2], dtype=np.uint8)


def pack(codes: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Codes 0..3, any shape with a multiple of 16 elements, C order, as u32 words."""
    if codes.size % CODES_PER_WORD:
        raise ValueError(f"the number of codes must be a multiple of 16, got {codes.size}")
    four = np.ascontiguousarray(codes, dtype=np.uint8).reshape(-1, 4)
    packed: NDArray[np.uint8] = np.bitwise_or.reduce(four << _SHIFTS, axis=1)
    return packed.view(np.uint32)


def unpack(words: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """The codes of u32 words, one a byte, flat."""
    packed = np.ascontiguousarray(words, dtype=np.uint32).view(np.uint8)
    codes: NDArray[np.uint8] = np.bitwise_and(packed[:, None] >> _SHIFTS, np.uint8(3))
    return codes.reshape(-1)


def decode(words: NDArray[np.uint32]) -> NDArray[np.int8]:
    """The values -1, 0, +1 of u32 words of codes, flat."""
    return _VALUES[unpack(words)]


def transpose_codes(words: NDArray[np.uint32], rows: int, columns: int) -> NDArray[np.uint32]:
    """The codes of a (rows, columns) matrix, row after row, as those of its transpose. Its own inverse with
    the sizes exchanged; rows * columns must be a multiple of 16."""
    return pack(np.ascontiguousarray(unpack(words)[: rows * columns].reshape(rows, columns).T))


def prepacked_words(k: int, n: int, columns: int) -> int:
    """Words of prepacked weights; k and n are padded to whole records with weight 0."""
    return -(-n // columns) * -(-k // MMA_K) * columns * MMA_K // CODES_PER_WORD


def prepack(words: NDArray[np.uint32], k: int, n: int, columns: int) -> NDArray[np.uint32]:
    """Reorder plain codes (index k * N + n) into fragment order, once, on the host.

    A record covers `columns` columns and 32 of k; records go along k first, then along n. It holds, for each
    lane (= 4 * group + member) in turn, columns / 16 words. Byte i of word w has at bits 2 * (2 * f + h), as
    two's complement (-1 is 3; code 3 becomes 0), the weight of k = 16 * h + 4 * member + i and of the column
    that `emitters.fragments.pair_order.column_at` gives for position 8 * f + group of sixteen number w.

    Args:
        words: Plain codes, `k * n / 16` words.
        k, n: Sizes of the weight matrix.
        columns: One of `PREPACK_COLUMNS`.
    """
    codes = unpack(words)[: k * n].reshape(k, n)
    padded = np.zeros((-(-k // MMA_K) * MMA_K, -(-n // columns) * columns), dtype=np.uint8)
    padded[:k, :n] = _TO_TWOS_COMPLEMENT[codes]
    slices, groups = padded.shape[0] // MMA_K, padded.shape[1] // columns
    ordered = padded[:, _pair_order(padded.shape[1])]
    # slice, half h, member, byte i | record, word w, fragment f, group
    axes = ordered.reshape(slices, 2, 4, 4, groups, columns // 16, 2, MMA_N)
    # -> record, slice, group, member, word, byte i, fragment, half: the last two make the four codes of a
    # byte
    return pack(np.ascontiguousarray(axes.transpose(4, 0, 7, 2, 5, 3, 6, 1)))


def unprepack(words: NDArray[np.uint32], k: int, n: int, columns: int) -> NDArray[np.uint32]:
    """The exact inverse of `prepack`, but that code 3 comes back as 0."""
    slices, groups = -(-k // MMA_K), -(-n // columns)
    numbers = unpack(words).reshape(groups, slices, MMA_N, 4, columns // 16, 4, 2, 2)
    ordered = numbers.transpose(1, 7, 3, 5, 0, 4, 6, 2).reshape(slices * MMA_K, groups * columns)
    codes = np.empty_like(ordered)
    codes[:, _pair_order(groups * columns)] = _FROM_TWOS_COMPLEMENT[ordered]
    return pack(codes[:k, :n])


def _pair_order(n: int) -> NDArray[np.intp]:
    """Column at each position of `n` columns."""
    return np.array([column_at(position) for position in range(n)], dtype=np.intp)
