"""`q4k_soa_wmma`: what it computes, how a schedule shares the rows, and the error bound that earns."""

from dataclasses import dataclass

import numpy as np

from emitters.block_gemv import block_gemv_spec
from emitters.fragments.tensor import TILE_ROWS
from emitters.gemv import RowWalk
from emitters.kernel import Expected, Inputs, Problem
from emitters.mma_error import mma_walk_error
from emitters.quants import BLOCK, SOA_BYTES, decode_soa, pack_soa

SPEC = block_gemv_spec(
    "q4k_soa_wmma",
    SOA_BYTES,
    "rows of 160-byte SoA blocks",
    "y[r] = sum_i f16(deq(W[r], i)) * f16(x[i])",
)

LANE_WEIGHTS = 64  # of a row, that one lane holds
LANE_BYTES = LANE_WEIGHTS // 2
X_LANE_BYTES = (
    2 * LANE_WEIGHTS + 16
)  # a lane's x in shared memory; 16 bytes keep the four lanes off the same banks
X_BLOCK_BYTES = 4 * X_LANE_BYTES


@dataclass(frozen=True, slots=True)
class Q4KSoaSchedule:
    """How `q4k_soa_wmma` shares its work.

    Attributes:
        tiles: Tiles of 16 rows that a warp sums at once, sharing the fragments of x.
        warps: Warps of a block.
        warps_per_row: Warps that share the same rows.
        splits: Blocks that share the same rows; more than 1 adds a combine launch.
        x_chunk: Weights of x that a block rounds into shared memory at once; 0 rounds them once a warp
            instead.
        unroll: Blocks that a lane has in registers at once.
        stages: Blocks in flight: 1 loads straight into registers, 2..4 copy ahead with cp.async.
        accumulators: Independent sums that mma's take in turn.
    """

    tiles: int
    warps: int
    warps_per_row: int
    splits: int
    x_chunk: int
    unroll: int
    stages: int
    accumulators: int

    @property
    def walk(self) -> RowWalk:
        return RowWalk(TILE_ROWS * self.tiles, self.warps, self.warps_per_row, self.splits)

    @property
    def slot_bytes(self) -> int:
        """Shared memory of one stage: each thread's nibbles, steps and offsets, for each of its rows."""
        return self.walk.threads * 2 * self.tiles * (LANE_BYTES + 8)

    @property
    def x_bytes(self) -> int:
        return self.x_chunk // BLOCK * X_BLOCK_BYTES

    @property
    def shared_bytes(self) -> int:
        ring = self.stages * self.slot_bytes if self.stages > 1 else 0
        return ring + self.x_bytes + self.walk.exchange_bytes

    @property
    def registers(self) -> int:
        """Registers a thread is likely to need: weights in flight, one group's x and A, sums, addresses."""
        weights = 2 * self.tiles * (LANE_BYTES // 4 + 2) * self.unroll
        return weights + 4 * self.tiles * (self.accumulators + 2) + 16 + 48


def slice_order() -> list[list[int]]:
    """Weights of a block that each of its 16 mma's multiplies, in the order of the mma's."""
    order = []
    for octet in range(LANE_WEIGHTS // 8):
        for first in (0, 2):
            within = [8 * octet + first + offset for offset in (0, 4, 1, 5)]
            order.append([LANE_WEIGHTS * lane + weight for lane in range(4) for weight in within])
    return order


def reference(problem: Problem, inputs: Inputs, schedule: Q4KSoaSchedule) -> Expected:
    """float64 sums of the operands rounded to f16, and the error of this schedule's mma chains.

    A weight is `fma.rn.f16x2` of exact operands, so it is f16(dsub*q - msub) with one rounding, as here.
    """
    x = inputs.buffers["x"].astype(np.float16).astype(np.float64)
    walks = schedule.walk.units_of(problem["n_in"] // BLOCK, schedule.x_chunk // BLOCK)
    order = np.array(slice_order())
    values = np.empty(problem["n_out"])
    bounds = np.empty(problem["n_out"])
    for start in range(0, problem["n_out"], 256):
        rows = slice(start, start + 256)
        weights = decode_soa(inputs.buffers["W"][rows]).astype(np.float16).astype(np.float64)
        products = (weights * x).reshape(len(weights), -1, BLOCK)[..., order]
        values[rows] = products.sum(axis=(1, 2, 3))
        bounds[rows] = mma_walk_error(products, walks, schedule.accumulators, schedule.walk.late_additions)
    return Expected({"y": values}, {"y": bounds})


def inputs(problem: Problem, rng: np.random.Generator) -> Inputs:
    """Blocks of every nibble, with steps and offsets of both signs, zero among them; x is Gaussian."""
    shape = (problem["n_out"], problem["n_in"] // BLOCK)
    dsub = rng.uniform(0.25, 1.0, (*shape, 8)) * rng.choice([-1.0, 1.0], (*shape, 8)) / 8
    msub = 8.0 * rng.uniform(0.5, 1.0, (*shape, 8)) * dsub
    dsub[rng.random(dsub.shape) < 0.01] = 0.0
    blocks = pack_soa(dsub, msub, rng.integers(0, 16, (*shape, BLOCK), dtype=np.uint8))
    return Inputs({"W": blocks, "x": rng.standard_normal(problem["n_in"], dtype=np.float32)})


def edge_problems(schedule: Q4KSoaSchedule) -> tuple[Problem, ...]:
    """As for every walk; and with chunks of x, one whole chunk a split and a ragged one."""
    in_flight = max(schedule.stages, schedule.unroll)
    problems = schedule.walk.edge_problems(SPEC, BLOCK, in_flight, chunked=schedule.x_chunk > 0)
    if schedule.x_chunk == 0:
        return problems
    chunk, chunks = schedule.x_chunk, schedule.x_chunk * schedule.splits
    return (*problems, SPEC.problem(1, chunk), SPEC.problem(3, chunks + BLOCK))
