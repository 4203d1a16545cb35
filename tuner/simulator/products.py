"""Matrix products of many warps at once: accumulators that are multiplied when they are read.

Integer products are summed in float32, which is exact while |sum| stays below 2**24: that bounds how many
steps are put off. The sums go to int32, which wraps as the ISA has it. Float products are added step by step
(`tensor_sums`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.shapes import stretched
from tuner.simulator.tensor_sums import LARGEST, accumulate, add_integers, operand_values

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

Fragment = tuple[NDArray[np.uint32], ...]
Mask = NDArray[np.bool_]
WORKING_BYTES = 1 << 21
"""Operands of one product call: about what the second-level cache holds."""


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """An mma shape and its types; `depth` is k in bytes, `operation` "" or that of single-bit products."""

    shape: str
    a: str
    b: str
    accumulator: str
    depth: int
    clamp: bool = False
    operation: str = ""

    @property
    def is_float(self) -> bool:
        return self.accumulator != "s32"

    @property
    def longest(self) -> int:
        """Steps that can be put off; integer ones with exact float32 sums."""
        if self.clamp or self.operation:
            return 1
        if self.is_float:
            return 8
        elements = self.depth * (2 if self.a in ("s4", "u4") else 1)
        return min((1 << 24) // (LARGEST[self.a] * LARGEST[self.b] * elements), 256 // self.depth)


class Part:
    """Register `index` (0..3) of an accumulator; stands in a register slot in the place of lanes."""

    __slots__ = ("accumulator", "index")

    def __init__(self, accumulator: Accumulator, index: int) -> None:
        self.accumulator, self.index = accumulator, index


class Accumulator:
    """One 16x8 tile of every warp: start values and the steps to add.

    `start` is four registers, or (grid, row, column): a tile of a larger matrix that an earlier flush left.
    `warps` are the warps that take the steps (R, W), None for all.
    """

    __slots__ = ("kind", "slot", "start", "steps", "values", "warps")

    def __init__(self, kind: Kind, start: Any, slot: int) -> None:
        self.kind, self.start, self.slot = kind, start, slot
        self.steps: list[tuple[Fragment, Fragment]] = []
        self.values: Any = None
        self.warps: Mask | None = None

    def parts(self) -> tuple[Part, Part, Part, Part]:
        """Return what stands for its four registers; not kept, so that nothing refers to itself."""
        return Part(self, 0), Part(self, 1), Part(self, 2), Part(self, 3)

    def copy(self, slot: int) -> Accumulator:
        """Return an accumulator that goes on from here and leaves this one as it is."""
        other = Accumulator(self.kind, self.start, slot)
        other.steps, other.warps = list(self.steps), self.warps
        return other

    def lanes(self, s: Batch) -> Any:
        """Return the four registers."""
        if self.steps:
            multiply_grid(s, [[self]])
        if isinstance(self.start[0], Grid):
            grid, row, column = self.start
            self.start = grid.registers(row, column)
        return self.start


class Grid:
    """Accumulators of a warp's tiles side by side: int32 (B, W, 16 * rows, 8 * columns)."""

    __slots__ = ("data", "spread")

    def __init__(self, data: NDArray[np.int32]) -> None:
        self.data = data
        self.spread: Any = None

    def registers(self, row: int, column: int) -> tuple[NDArray[np.uint32], ...]:
        """Return c0..c3 of a tile, for all lanes; the whole grid is spread on the first call."""
        if self.spread is None:
            blocks, warps, height, width = self.data.shape
            tiles = self.data.reshape(blocks, warps, height // 16, 2, 8, width // 8, 4, 2)
            order = tiles.transpose(2, 5, 3, 7, 0, 1, 4, 6)
            self.spread = (
                np.ascontiguousarray(order)
                .view(np.uint32)
                .reshape(height // 16, width // 8, 4, blocks, warps * 32)
            )
        found = self.spread[row, column]
        return found[0], found[1], found[2], found[3]


def whole_warps(s: Batch) -> Mask | None:
    """Return the active warps (R, W); None where a warp is active in part."""
    mask = s.mask
    assert mask is not None
    known = s.state.get("warps")
    if known is None or known[0] is not mask:
        lanes = stretched(mask, (len(mask), s.threads)).reshape(len(mask), s.warps, 32)
        whole: Mask = np.asarray(lanes.all(axis=2))
        known = s.state["warps"] = (mask, whole if np.array_equal(whole, lanes.any(axis=2)) else None)
    found: Mask | None = known[1]
    return found


def same_warps(first: Mask | None, second: Mask | None) -> bool:
    if first is None or second is None:
        return first is second
    return first is second or np.array_equal(first, second)


def queue_of(s: Batch) -> list[Accumulator]:
    found: list[Accumulator] | None = s.state.get("accumulators")
    if found is None:
        found = s.state["accumulators"] = []
    return found


def flush(r: list[Any], s: Batch) -> None:
    """Multiply what has been put off, for every accumulator that a register still holds."""
    queue = queue_of(s)
    alive: dict[int, Accumulator] = {}
    for accumulator in queue:
        held = r[accumulator.slot]
        if accumulator.steps and held.__class__ is Part and held.accumulator is accumulator:
            alive[id(accumulator)] = accumulator
    queue.clear()
    for grid in _grids(list(alive.values())):
        multiply_grid(s, grid)


def _grids(accumulators: list[Accumulator]) -> list[list[list[Accumulator]]]:
    """Arrange accumulators as full grids: rows share their A operands, columns their B operands."""
    rows: dict[Any, dict[Any, Accumulator]] = {}
    for accumulator in accumulators:
        a_side, b_side = ([id(x) for step in accumulator.steps for x in step[side]] for side in (0, 1))
        row, column = (accumulator.kind, id(accumulator.warps), *a_side), tuple(b_side)
        rows.setdefault(row, {})[column] = accumulator
    grids: dict[Any, list[list[Accumulator]]] = {}
    seen = 0
    for row, columns in rows.items():
        seen += len(columns)
        grids.setdefault((row[:2], tuple(columns)), []).append(list(columns.values()))
    if seen != len(accumulators):  # two accumulators with the same operands: each on its own
        return [[[accumulator]] for accumulator in accumulators]
    return list(grids.values())


def multiply_grid(s: Batch, grid: list[list[Accumulator]]) -> None:
    """Add all steps of a full grid of accumulators to their start values."""
    kind, warps = grid[0][0].kind, grid[0][0].warps
    rows = [row[0].steps for row in grid]
    columns = [accumulator.steps for accumulator in grid[0]]
    steps = len(rows[0])
    if kind.clamp and steps > 1:
        raise AssertionError("clamped products are never put off")
    blocks = max(
        max(len(x) for step in accumulator.steps for fragment in step for x in fragment)
        for accumulator in (*(row[0] for row in grid), *grid[0])
    )
    blocks = max(blocks, len(warps) if warps is not None else 1)
    pieces = kind.depth // 16
    a_side = _pack([[step[0] for step in row] for row in rows], s, blocks, pieces, 2)
    b_side = _pack([[step[1] for step in column] for column in columns], s, blocks, pieces, 1)
    total = start_matrix(s, grid, blocks)
    blocks = len(total)
    before = total.copy() if warps is not None else None
    depth = steps * kind.depth
    height, width = 16 * len(rows), 8 * len(columns)
    a_bytes = a_side.view(np.uint8).reshape(-1, s.warps, height, depth)
    b_bytes = b_side.view(np.uint8).reshape(-1, s.warps, width, depth)
    chunk = max(1, WORKING_BYTES // (s.warps * depth * 4 * (height + width)))
    for first in range(0, blocks, chunk):
        part = slice(first, first + chunk)
        x = operand_values(a_bytes[part] if len(a_bytes) > 1 else a_bytes, kind.a)
        y = operand_values(b_bytes[part] if len(b_bytes) > 1 else b_bytes, kind.b)
        if kind.is_float:
            width_k = x.shape[-1] // steps
            reals = total[part].view(np.float32)
            if len(x) == len(y) == 1:  # factors equal in all blocks, which hold different sums
                x = np.repeat(x, len(reals), axis=0)
            for step in range(steps):
                piece = slice(step * width_k, (step + 1) * width_k)
                reals[...] = accumulate(reals, x[..., piece], y[..., piece].swapaxes(2, 3))
        else:
            add_integers(total[part], x, y.swapaxes(2, 3), kind.clamp, kind.operation)
    if warps is not None and before is not None:
        np.copyto(total, before, where=~warps[..., None, None])
    finished = Grid(total)
    for row_number, row in enumerate(grid):
        for column_number, accumulator in enumerate(row):
            accumulator.start = (finished, row_number, column_number)
            accumulator.steps = []


def _pack(
    sides: list[list[Fragment]], s: Batch, blocks: int, pieces: int, halves: int
) -> NDArray[np.complex128]:
    """Lay fragments out as (B, W, rows, k) bytes, 16 bytes at a time; fragments equal in all blocks stay (1,
    ...).
    """
    depth = max(len(x) for side in sides for fragment in side for x in fragment)
    steps = len(sides[0])
    packed = np.empty((depth, s.warps, len(sides), halves, 8, steps, pieces), np.complex128)
    for number, side in enumerate(sides):
        for step, fragment in enumerate(side):
            for index, register in enumerate(fragment):
                half, piece = (index & 1, index >> 1) if halves == 2 else (0, index)
                packed[:, :, number, half, :, step, piece] = words_of(register, s)
    return packed


def words_of(register: NDArray[np.uint32], s: Batch) -> NDArray[np.complex128]:
    """View a register as (B, W, 8) pieces of 16 bytes."""
    if register.shape[1] != s.threads:
        register = stretched(register, (len(register), s.threads))
    return np.ascontiguousarray(register).view(np.complex128).reshape(len(register), s.warps, 8)


def start_matrix(s: Batch, grid: list[list[Accumulator]], blocks: int) -> NDArray[np.int32]:
    """Return the start values of a grid as a new (or no longer needed) int32 matrix (blocks, W, rows,
    columns).
    """
    first = grid[0][0].start
    if isinstance(first[0], Grid):
        before = first[0]
        shape = (s.warps, 16 * len(grid), 8 * len(grid[0]))
        same = before.data.shape[1:] == shape and all(
            accumulator.start[0] is before and accumulator.start[1:] == (row_number, column_number)
            for row_number, row in enumerate(grid)
            for column_number, accumulator in enumerate(row)
        )
        if same and len(before.data) >= blocks:
            return before.data.copy()
    rows = max(
        blocks, *(len(x) for row in grid for accumulator in row for x in accumulator_lanes(s, accumulator))
    )
    total = np.empty((rows, s.warps, len(grid), 2, 8, len(grid[0]), 4, 2), np.int32)
    for row_number, row in enumerate(grid):
        for column_number, accumulator in enumerate(row):
            for index, register in enumerate(accumulator_lanes(s, accumulator)):
                lanes = stretched(register, (len(register), s.threads)).view(np.int32)
                total[:, :, row_number, index >> 1, :, column_number, :, index & 1] = lanes.reshape(
                    len(register), s.warps, 8, 4
                )
    return total.reshape(rows, s.warps, 16 * len(grid), 8 * len(grid[0]))


def accumulator_lanes(s: Batch, accumulator: Accumulator) -> Any:
    """Return the start values of an accumulator as four registers."""
    if isinstance(accumulator.start[0], Grid):
        grid, row, column = accumulator.start
        return grid.registers(row, column)
    return accumulator.start
