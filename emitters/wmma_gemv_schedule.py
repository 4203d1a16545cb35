"""`wmma_gemv`: what it computes, how a schedule shares it, and the error bound that earns."""

from dataclasses import dataclass

import numpy as np

from emitters.fragments import wmma
from emitters.fragments.tensor import TILE_ROWS
from emitters.gemv import RowWalk
from emitters.kernel import BufferSpec, Demand, Expected, Inputs, KernelSpec, Limit, Problem
from emitters.mma_error import mma_walk_error

SPEC = KernelSpec(
    id="wmma_gemv",
    version=1,
    computes="y[r] = sum_i A[r,i] * x[i]",
    buffers=(
        BufferSpec("A", "in", "float16", ("n_out", "n_in")),
        BufferSpec("x", "in", "float16", ("n_in",)),
        BufferSpec("y", "out", "float32", ("n_out",)),
    ),
    sizes=("n_out", "n_in"),
    limits=(
        Limit("n_out", "n_out >= 1", "must be at least 1"),
        Limit(
            "n_in",
            "n_in >= 8 and n_in % 8 == 0",
            "must be a positive multiple of 8, so that rows are 16-byte aligned",
        ),
    ),
)

UNIT = 64
SLICE = 16
MMA = "mma"


@dataclass(frozen=True, slots=True)
class WmmaGemvSchedule:
    """How `wmma_gemv` shares its work.

    Attributes:
        instruction: ``mma``, ``wmma_m16n16k16`` or ``wmma_m32n8k16``.
        tiles: Tiles of rows (16, or the instruction's 32) that a warp sums at once, sharing the fragments
            of x.
        warps: Warps of a block.
        warps_per_row: Warps that share the same rows.
        splits: Blocks that share the same rows; more than 1 adds a combine launch.
        load_bytes: Bytes of a row that a lane loads at once, 4, 8 or 16; wmma loads as it likes, and says 4.
        x_chunk: Elements of x that a block copies into shared memory at once; 0 loads them from global
            memory.
        unroll: Units that a warp has in registers at once.
        stages: Units in flight: 1 loads straight into registers, 2..4 copy ahead with cp.async.
        accumulators: Independent sums that slices take in turn.
    """

    instruction: str
    tiles: int
    warps: int
    warps_per_row: int
    splits: int
    load_bytes: int
    x_chunk: int
    unroll: int
    stages: int
    accumulators: int

    @property
    def tile_rows(self) -> int:
        return TILE_ROWS if self.instruction == MMA else wmma.SHAPES[self.instruction].rows

    @property
    def walk(self) -> RowWalk:
        return RowWalk(self.tile_rows * self.tiles, self.warps, self.warps_per_row, self.splits)

    @property
    def slot_bytes(self) -> int:
        """Shared memory of one stage: each thread's elements of one unit, for each of its rows."""
        return self.walk.threads * 2 * self.tiles * UNIT // 4 * 2

    @property
    def x_bytes(self) -> int:
        """The chunk of x, and zeros that other columns of wmma read behind it."""
        if self.x_chunk == 0:
            return 0
        behind = 0 if self.instruction == MMA else wmma.SHAPES[self.instruction].overread
        return 2 * (self.x_chunk + behind)

    @property
    def result_bytes(self) -> int:
        """Where wmma leaves its results: one fragment a warp and tile."""
        if self.instruction == MMA:
            return 0
        return self.warps * self.tiles * wmma.SHAPES[self.instruction].result_bytes

    @property
    def shared_bytes(self) -> int:
        ring = self.stages * self.slot_bytes if self.stages > 1 else 0
        return ring + self.x_bytes + self.result_bytes + self.walk.exchange_bytes

    @property
    def registers(self) -> int:
        """Registers a thread is likely to need: fragments of A and x in flight, sums, addresses."""
        if self.instruction == MMA:
            a, x, sums = 2 * self.tiles * UNIT // 8, UNIT // 8, 4
        else:
            a, x, sums = self.tiles * 8 * UNIT // SLICE, 8, 8
        return (a + x) * self.unroll + sums * self.tiles * self.accumulators + 6 * self.tiles + 40

    @property
    def valid(self) -> str:
        """wmma reads whole tiles of rows and whole slices."""
        return "1" if self.instruction == MMA else f"n_in % {SLICE} == 0 and n_out >= {self.tile_rows}"


def slice_order(schedule: WmmaGemvSchedule) -> list[list[int]]:
    """Elements of a unit that each of its four slices multiplies."""
    if schedule.load_bytes < 16:
        return [list(range(first, first + SLICE)) for first in range(0, UNIT, SLICE)]
    return [
        [half + 8 * lane + first + i for lane in range(4) for i in range(4)]
        for half in (0, 32)
        for first in (0, 4)
    ]


def reference(problem: Problem, inputs: Inputs, schedule: WmmaGemvSchedule) -> Expected:
    """float64 sums of exact products, and the error of this schedule's mma chains."""
    n_in = problem["n_in"]
    x = inputs.buffers["x"].astype(np.float64)
    walks = schedule.walk.units_of(-(-n_in // UNIT), schedule.x_chunk // UNIT)
    order = np.array(slice_order(schedule))
    values = np.empty(problem["n_out"])
    bounds = np.empty(problem["n_out"])
    for start in range(0, problem["n_out"], 256):
        rows = slice(start, start + 256)
        products = inputs.buffers["A"][rows].astype(np.float64) * x
        values[rows] = products.sum(axis=1)
        whole = np.pad(products, ((0, 0), (0, -n_in % UNIT))).reshape(len(products), -1, UNIT)
        bounds[rows] = mma_walk_error(
            whole[..., order], walks, schedule.accumulators, schedule.walk.late_additions
        )
    return Expected({"y": values}, {"y": bounds})


def inputs(problem: Problem, rng: np.random.Generator) -> Inputs:
    """Gaussian A and x, with zeros and subnormals among them."""
    a = rng.standard_normal((problem["n_out"], problem["n_in"]), dtype=np.float32).astype(np.float16)
    x = rng.standard_normal(problem["n_in"], dtype=np.float32).astype(np.float16)
    rare = rng.random(a.shape) < 0.01
    a[rare] = rng.choice(np.array([0.0, -0.0, 2.0**-24, -(2.0**-15)], np.float16), int(rare.sum()))
    return Inputs({"A": a, "x": x})


def edge_problems(schedule: WmmaGemvSchedule) -> tuple[Problem, ...]:
    """As for every walk, with a ragged unit; with mma, ends at each copy of a unit in each stage; with
    chunks of x, one whole chunk a split and a ragged one.
    """
    is_mma = schedule.instruction == MMA
    least = 8 if is_mma else SLICE
    fewest = 1 if is_mma else schedule.tile_rows
    in_flight = max(schedule.stages, schedule.unroll)
    chunked = schedule.x_chunk > 0
    problems = schedule.walk.edge_problems(SPEC, UNIT, in_flight, least, fewest, chunked)
    problems = (*problems, *(SPEC.problem(fewest, end) for end in range(least, UNIT, least)))
    if is_mma:
        stride = schedule.walk.stride(chunked)
        copied = 4 * schedule.load_bytes // 2  # elements of a row, by the four lanes that share it
        ends = [
            (turn * stride * UNIT, end)
            for turn in range(1, in_flight + 1)
            for end in range(copied, UNIT, copied)
        ]
        problems = (*problems, *(SPEC.problem(1, start + end) for start, end in ends))
    if not chunked:
        return problems
    return (*problems, SPEC.problem(fewest + 2, schedule.x_chunk * schedule.splits + UNIT + least))


def demand(problem: Problem) -> Demand:
    """A multiplication and an addition an element of A; A, x and y once."""
    elements = problem["n_out"] * problem["n_in"]
    return Demand(
        operations=2 * elements,
        unit="mma_f16",
        read_bytes=2 * (elements + problem["n_in"]),
        write_bytes=4 * problem["n_out"],
    )
