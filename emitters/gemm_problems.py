"""Problems and data of the GEMM family: limits, edges, what any implementation has to do."""

from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from emitters.gemm_schedule import DenseSchedule, Geometry
from emitters.kernel import Demand, KernelSpec, Limit, Problem
from results.expression import ceil_div, evaluate

LIMITS = (
    Limit("m", "m >= 1", "must be at least 1"),
    Limit("m", "m <= 1024 * 1024 * 1024", "must be at most 2^30, so that rows are counted in 31 bits"),
    Limit("n", "n >= 16 and n % 16 == 0", "must be a multiple of 16"),
    Limit("n", "n <= 128 * 1024 * 1024", "must be at most 2^27, so that offsets within a tile fit 32 bits"),
    Limit("k", "k >= 16 and k % 16 == 0", "must be a multiple of 16"),
    Limit("k", "k <= 131071", "must be at most 131071, so that sums fit s32"),
)
"""Of products whose reduction is the fast axis of the left operand."""


def random_bytes(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.int8]:
    """Uniform over -128..127, with both ends at known places of every row."""
    values = rng.integers(-128, 128, (rows, columns), dtype=np.int8)
    values[:, 0], values[:, -1] = -128, 127
    return values


def depth(schedule: DenseSchedule, whole: int, tail: int) -> int:
    """A k of which every block has `whole` k-steps and one more, of which the last block has `tail` units."""
    return schedule.tile_k * (schedule.split_k * (whole + 1) - 1) + tail


def edge_problems(spec: KernelSpec, geometry: Geometry) -> tuple[Problem, ...]:
    """Small problems that reach every guard, at the very values where it turns.

    Mutation of emitted text (`docs/detection.md`) says what they have to be. One row; what only a grid shows:
    a second tile row that lacks seven rows, a second and third tile column, a second group of the raster;
    once round the ring with a whole tile. The rest have a whole tile row and one that ends in each group of
    eight rows of a warp; they end in each sixteen columns of it, and half way through each tile copied
    ahead. With a split, the first leaves blocks with less than no work, the third with just none; and what
    makes all of them work a while is one tile small.
    """
    s = geometry.schedule
    whole = s.split_k == 1
    above = s.raster - 1 if s.raster > 1 else 1  # fills the groups of the raster, and no more
    shapes = [
        (1, 16, 16),
        (2 * s.tile_m - 7, s.tile_n + 16, depth(s, 1, 16) if whole else s.tile_k + 16),
        (9 + (s.raster * s.tile_m if s.raster > 1 else 0), 2 * s.tile_n + 16, s.tile_k),
        (s.tile_m, s.tile_n, depth(s, s.stages + 2, 16)),
        (above * s.tile_m + 16, s.tile_n, 16),
    ]
    rows, columns = range(17, geometry.warp_m - 8, 8), range(32, geometry.warp_n, 16)
    depths = _edge_depths(geometry)
    for m, n, k in zip_longest(rows, columns, depths if whole else ()):
        shapes.append((s.tile_m + (m or 16), n or s.tile_n + 16, k or 16))
    shapes += [] if whole else [(16, s.tile_n, k) for k in depths]
    n_step, k_step = _steps(geometry.valid)
    return tuple(
        spec.problem(m, ceil_div(n, n_step) * n_step, ceil_div(k, k_step) * k_step) for m, n, k in shapes
    )


def _edge_depths(geometry: Geometry) -> list[int]:
    """Lengths of the reduction that end in the middle of each tile that is copied ahead, after the first.

    Records hold the k of one mma, and each has a guard of its own: those also end with each tile, where the
    next one's first guard turns, and between records.
    """
    s = geometry.schedule
    ahead = s.stages + 1 if geometry.b_kind == "decoded" else s.stages
    depths = [depth(s, whole, 16) for whole in range(2 if s.split_k == 1 else 1, ahead)]
    if geometry.b_kind == "records":
        depths += [depth(s, whole, s.tile_k) for whole in range(1, s.stages)]
        for tail in range(32, s.tile_k, 32):
            depths += [depth(s, whole, tail) for whole in range(s.stages + 1)]
    return depths


def _steps(valid: str) -> tuple[int, int]:
    """Smallest n and k that a validity formula allows; their multiples are allowed too."""
    sizes = (16, 32, 64)
    return next((n, k) for n in sizes for k in sizes if evaluate(valid, {"m": 1, "n": n, "k": k}))


def demand(problem: Problem, b_bits: int) -> Demand:
    """Both operands read and C written once.

    Args:
        problem: With the sizes m, n, and the length of the reduction.
        b_bits: Of an element of the right operand.
    """
    m, n, k = problem.sizes.values()
    return Demand(2 * m * n * k, "mma_s8", m * k + n * k * b_bits // 8, 4 * m * n)
