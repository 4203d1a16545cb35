"""wmma.* of f16 with f32 sums: fragments whose layout the ISA leaves open, so they are only loaded, used,
stored.

PTX ISA, "Warp-level matrix instructions: wmma". A is rows of the matrix, straight from global memory; B is
a vector in shared memory, column-major with 16 elements from column to column, so that column 0 is the
slice of the vector and the others are what follows it, summed and never looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from emitters.fragments.opening import f32
from emitters.ptx import F32, R32, Entry, vector

SLICE = 16


@dataclass(frozen=True, slots=True)
class WmmaShape:
    """A shape m x n x 16.

    Attributes:
        rows: m.
        columns: n.
    """

    rows: int
    columns: int

    @property
    def name(self) -> str:
        return f"m{self.rows}n{self.columns}k{SLICE}"

    @property
    def overread(self) -> int:
        """Elements behind a slice of the vector that the other columns read."""
        return (self.columns - 1) * SLICE

    @property
    def result_bytes(self) -> int:
        return 4 * self.rows * self.columns


SHAPES = {"wmma_m16n16k16": WmmaShape(16, 16), "wmma_m32n8k16": WmmaShape(32, 8)}


def new_sums(ptx: Entry) -> list[F32]:
    """A result fragment of zeros."""
    return [ptx.f("mov.f32", f32(0.0)) for _ in range(8)]


def load_rows(ptx: Entry, shape: WmmaShape, address: str, stride: R32) -> list[R32]:
    """A fragment of A: `rows` rows, `stride` elements apart, 16 elements of each."""
    registers = ptx.new_rs(8)
    ptx.op(f"wmma.load.a.sync.aligned.row.{shape.name}.global.f16", vector(registers), address, stride)
    return registers


def load_vector(ptx: Entry, shape: WmmaShape, address: str) -> list[R32]:
    """A fragment of B whose column 0 is 16 elements of a vector in shared memory."""
    registers = ptx.new_rs(8)
    ptx.op(f"wmma.load.b.sync.aligned.col.{shape.name}.shared.f16", vector(registers), address, SLICE)
    return registers


def multiply_add(
    ptx: Entry, shape: WmmaShape, sums: Sequence[F32], a: Sequence[R32], b: Sequence[R32]
) -> None:
    """sums += A @ B."""
    ptx.op(
        f"wmma.mma.sync.aligned.row.col.{shape.name}.f32.f32",
        vector(sums),
        vector(a),
        vector(b),
        vector(sums),
    )


def store_sums(ptx: Entry, shape: WmmaShape, address: str, sums: Sequence[F32]) -> None:
    """The result to shared memory, row-major, rows next to each other."""
    ptx.op(f"wmma.store.d.sync.aligned.row.{shape.name}.shared.f32", address, vector(sums), shape.columns)
