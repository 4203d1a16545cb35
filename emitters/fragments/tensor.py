"""m16n8k16 products of f16 with f32 sums, one vector times 16 rows: every column of B is the vector.

Fragments as in the PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type": lane 4g + t holds
rows g and g + 8 of A at k = 2t, 2t + 1, 2t + 8, 2t + 9, the same four k of B's column g, and of the result
rows g and g + 8 at columns 2t and 2t + 1. A sum does not care which k is which, so A and B may take any k
as long as both take the same; with equal columns in B, every column of the result is the product.
"""

from collections.abc import Sequence

from emitters.fragments.opening import f32
from emitters.ptx import F32, R32, Entry, vector

TILE_ROWS = 16
SLICE = 16


def new_accumulator(ptx: Entry) -> list[F32]:
    """Four zeros."""
    return [ptx.f("mov.f32", f32(0.0)) for _ in range(4)]


def multiply_add(ptx: Entry, sums: Sequence[F32], a: Sequence[R32], b: Sequence[R32]) -> None:
    """sums += A @ B for one slice.

    Args:
        ptx: The entry.
        sums: Of `new_accumulator`; number 0 is row g, number 2 row g + 8.
        a: (row g, first k pair), (row g + 8, first), (row g, second), (row g + 8, second).
        b: First and second k pair of the vector.
    """
    ptx.op(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        vector(sums),
        vector(a),
        vector(b),
        vector(sums),
    )
