"""`q6k_soa_gemv`: what it computes, how a schedule shares the rows, and the error bound that earns."""

from dataclasses import dataclass

import numpy as np

from emitters.block_gemv import block_gemv_spec
from emitters.fragments.windows import window_words
from emitters.gemv import RowWalk
from emitters.kernel import Expected, Inputs, Problem
from emitters.quants import BLOCK, Q6_K_BYTES, pack_q6_k, q6_k_grouped
from emitters.rounding import chain_error, tree_depth

SPEC = block_gemv_spec(
    "q6k_soa_gemv", Q6_K_BYTES, "rows of ggml Q6_K blocks", "y[r] = sum_i deq(W[r], i) * x[i]"
)


@dataclass(frozen=True, slots=True)
class Q6KGemvSchedule:
    """How `q6k_soa_gemv` shares its work.

    Attributes:
        rows_per_warp: Rows that a warp sums at once, sharing the loads of x.
        warps: Warps of a block.
        warps_per_row: Warps that share the same rows.
        splits: Blocks that share the same rows; more than 1 adds a combine launch.
        quad: Bytes of ql (and of its second half, and of qh) that a lane takes of a block: 2, 4, 8 or 16.
        load: ``halfword`` (2 bytes a load) or ``window`` (aligned words, shifted); 2 bytes have no window.
        unroll: Blocks that a lane has in registers at once.
        stages: Blocks in flight: 1 loads straight into registers, 2..4 copy windows ahead with cp.async.
        dequant: ``weight`` scales every weight; ``group`` scales the sum of a group of 16.
        convert: How codes become f32: ``cvt`` or ``prmt``.
    """

    rows_per_warp: int
    warps: int
    warps_per_row: int
    splits: int
    quad: int
    load: str
    unroll: int
    stages: int
    dequant: str
    convert: str

    @property
    def lanes(self) -> int:
        """Lanes that share one block."""
        return 64 // self.quad

    @property
    def walk(self) -> RowWalk:
        return RowWalk(
            self.rows_per_warp, self.warps, self.warps_per_row, self.splits, units_per_step=32 // self.lanes
        )

    @property
    def window_words(self) -> int:
        """Words that a lane keeps of a block: three windows of quad bytes, one of 8 scales, one with d."""
        return 3 * window_words(self.quad) + window_words(8) + 1

    @property
    def slot_bytes(self) -> int:
        """Shared memory of one stage."""
        return 4 * self.window_words * self.walk.threads * self.rows_per_warp

    @property
    def shared_bytes(self) -> int:
        ring = self.stages * self.slot_bytes if self.stages > 1 else 0
        return ring + self.walk.exchange_bytes

    @property
    def registers(self) -> int:
        """Registers a thread is likely to need: x, bytes and scales of what is in flight, sums, addresses."""
        in_flight = (4 * self.quad + self.rows_per_warp * self.window_words) * self.unroll
        return in_flight + 6 * self.rows_per_warp + 48


def reference(problem: Problem, inputs: Inputs, schedule: Q6KGemvSchedule) -> Expected:
    """float64 sums, and the rounding error of this schedule's chains.

    d*scale is exact in f32 (11 + 7 bits), and so is its product with a code (6 bits). A product passes
    through at most `quad` additions in its group, those that join four groups, one a block that the lane
    walks, and the trees over lanes, warps and splits.
    """
    walk = schedule.walk
    x = inputs.buffers["x"].astype(np.float64)
    blocks = walk.units_walked(problem["n_in"] // BLOCK)
    joins = 2 if schedule.dequant == "weight" else 4
    chain = schedule.quad + joins + blocks + tree_depth(32) + walk.late_additions
    values = np.empty(problem["n_out"])
    magnitude = np.empty(problem["n_out"])
    for start in range(0, problem["n_out"], 1024):
        rows = slice(start, start + 1024)
        weights = q6_k_grouped(inputs.buffers["W"][rows]).weights
        values[rows] = weights @ x
        magnitude[rows] = np.abs(weights) @ np.abs(x)
    return Expected({"y": values}, {"y": chain_error(chain, magnitude)})


def inputs(problem: Problem, rng: np.random.Generator) -> Inputs:
    """Blocks of every code and scale, with d of both signs, zero among them; x is Gaussian."""
    shape = (problem["n_out"], problem["n_in"] // BLOCK)
    d = rng.uniform(0.25, 1.0, shape) * rng.choice([-1.0, 1.0], shape) / 1024
    d[rng.random(shape) < 0.01] = 0.0
    blocks = pack_q6_k(
        d,
        rng.integers(-128, 128, (*shape, 16)).astype(np.int8),
        rng.integers(0, 64, (*shape, BLOCK), dtype=np.uint8),
    )
    return Inputs({"W": blocks, "x": rng.standard_normal(problem["n_in"], dtype=np.float32)})


def edge_problems(schedule: Q6KGemvSchedule) -> tuple[Problem, ...]:
    return schedule.walk.edge_problems(SPEC, BLOCK, max(schedule.stages, schedule.unroll))
