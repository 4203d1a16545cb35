"""`q4k_gemv`: y = deq(W) @ x for rows of ggml Q4_K blocks, on FP32 lanes.

A unit is one block of 256 weights. `128 / load_bytes` lanes share it: each takes `load_bytes` of nibbles,
whose low halves are weights of one group of 32 and whose high halves are weights of the next. Weights come
straight from global memory, or through a ring in shared memory in which each lane reads only what it copied
itself, so that the pipeline needs no barrier.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from emitters.block_gemv import block_gemv_demand, block_gemv_problems, block_gemv_spec, emit_walk
from emitters.fragments.loads import chain, dot, load_floats, load_words
from emitters.fragments.nibbles import Converter, bytes_to_f32
from emitters.fragments.opening import f32
from emitters.fragments.strided import strided_in_registers, strided_through_ring
from emitters.gemv import RowWalk, readable_rows, row_pointers, stand, store_lane_sums
from emitters.kernel import EmitError, EmittedKernel, Expected, Inputs, Kernel, Problem, TensorOperand
from emitters.ptx import F32, R32, Entry, Pred, SharedLayout, at, vector
from emitters.quants import BLOCK, Q4_K_BYTES, finite_q4_k, pack_q4_k, q4_k_grouped
from emitters.rounding import chain_error, tree_depth
from emitters.target import Target

SPEC = block_gemv_spec("q4k_gemv", Q4_K_BYTES, "rows of ggml Q4_K blocks", "y[r] = sum_i deq(W[r], i) * x[i]")

HEADER_BYTES = 16  # d, dmin and the 6-bit scales and mins
GROUP = 32


@dataclass(frozen=True, slots=True)
class Q4KGemvSchedule:
    """How `q4k_gemv` shares its work.

    Attributes:
        rows_per_warp: Rows that a warp sums at once, sharing the loads of x.
        warps: Warps of a block.
        warps_per_row: Warps that share the same rows.
        splits: Blocks that share the same rows; more than 1 adds a combine launch.
        load_bytes: Nibble bytes that a lane loads from one block at once: 4, 8 or 16.
        unroll: Blocks that a lane has in registers at once; 1 where a ring of stages takes that part.
        stages: Blocks in flight: 1 loads straight into registers, 2..4 copy ahead with cp.async.
        dequant: ``weight`` scales every weight before it is multiplied; ``group`` sums codes first and
            scales the sum.
        convert: How codes become f32: ``cvt`` or ``prmt`` (exponent bytes merged in, then subtracted).
    """

    rows_per_warp: int
    warps: int
    warps_per_row: int
    splits: int
    load_bytes: int
    unroll: int
    stages: int
    dequant: str
    convert: str

    @property
    def lanes(self) -> int:
        """Lanes that share one block."""
        return 128 // self.load_bytes

    @property
    def walk(self) -> RowWalk:
        return RowWalk(
            self.rows_per_warp, self.warps, self.warps_per_row, self.splits, units_per_step=32 // self.lanes
        )

    @property
    def slot_bytes(self) -> int:
        """Shared memory of one stage: each thread's nibbles and header, for each of its rows."""
        return self.walk.threads * self.rows_per_warp * (self.load_bytes + HEADER_BYTES)

    @property
    def shared_bytes(self) -> int:
        ring = self.stages * self.slot_bytes if self.stages > 1 else 0
        return ring + self.walk.exchange_bytes

    @property
    def registers(self) -> int:
        """Registers a thread is likely to need: x, nibbles and header of what is in flight, sums,
        addresses."""
        x = 2 * self.load_bytes * self.unroll
        weights = self.rows_per_warp * (self.load_bytes // 4 + HEADER_BYTES // 4) * self.unroll
        return x + weights + 6 * self.rows_per_warp + 40


def reference(problem: Problem, inputs: Inputs, schedule: Q4KGemvSchedule) -> Expected:
    """float64 sums, and the rounding error of this schedule's chains.

    A weight's product passes through at most `load_bytes` additions in its block's partial sum, one that
    joins low and high nibbles, one a block that the lane walks, and the trees over lanes, warps and splits.
    Dequantising adds roundings of its own. Products d*scale and dmin*min are exact in f32: 11 + 6 bits.
    """
    walk = schedule.walk
    x = inputs.buffers["x"].astype(np.float64)
    blocks = walk.units_walked(problem["n_in"] // BLOCK)
    chain = schedule.load_bytes + 1 + blocks + tree_depth(32) + walk.late_additions
    values = np.empty(problem["n_out"])
    magnitude = np.empty(problem["n_out"])
    for start in range(0, problem["n_out"], 1024):
        rows = slice(start, start + 1024)
        grouped = q4_k_grouped(inputs.buffers["W"][rows])
        weights = grouped.weights
        values[rows] = weights @ x
        if schedule.dequant == "weight":
            magnitude[rows] = np.abs(weights) @ np.abs(x)
        else:
            scaled = np.abs(grouped.scale[..., None] * grouped.code) + np.abs(grouped.offset[..., None])
            magnitude[rows] = scaled.reshape(weights.shape) @ np.abs(x)
    # weight: the fma that makes a weight. group: four fma's join scaled sums, where the chain counts one.
    extra = 1 if schedule.dequant == "weight" else 4
    return Expected({"y": values}, {"y": chain_error(chain + extra, magnitude)})


def inputs(problem: Problem, rng: np.random.Generator) -> Inputs:
    """Blocks of every nibble, scale and min, with d and dmin of both signs, zero among them; x is
    Gaussian."""
    shape = (problem["n_out"], problem["n_in"] // BLOCK)
    d, dmin = (rng.uniform(0.25, 1.0, shape) * rng.choice([-1.0, 1.0], shape) / 64 for _ in range(2))
    d[rng.random(shape) < 0.01] = 0.0
    blocks = pack_q4_k(
        d,
        8.0 * dmin,
        rng.integers(0, 64, (*shape, 8), dtype=np.uint8),
        rng.integers(0, 64, (*shape, 8), dtype=np.uint8),
        rng.integers(0, 16, (*shape, BLOCK), dtype=np.uint8),
    )
    return Inputs({"W": blocks, "x": rng.standard_normal(problem["n_in"], dtype=np.float32)})


def edge_problems(schedule: Q4KGemvSchedule) -> tuple[Problem, ...]:
    return schedule.walk.edge_problems(SPEC, BLOCK, max(schedule.stages, schedule.unroll))


def emit(schedule: Q4KGemvSchedule, target: Target) -> EmittedKernel:
    """Text and plan of one schedule.

    Raises:
        EmitError: The text cannot express the schedule.
    """
    if schedule.stages > 1 and schedule.unroll > 1:
        raise EmitError(f"unroll must be 1 where stages copy ahead, got {schedule.unroll}")
    return emit_walk(
        SPEC, schedule, schedule.walk, schedule.shared_bytes, target, lambda ptx: _Body(ptx, schedule).write()
    )


@dataclass(frozen=True)
class _Unit:
    """What a lane holds of one block of each of its rows."""

    headers: list[list[R32]]
    nibbles: list[list[R32]]
    x: list[list[F32]]


class _Body:
    """The main entry."""

    def __init__(self, ptx: Entry, schedule: Q4KGemvSchedule) -> None:
        self.ptx = ptx
        self.schedule = schedule
        self.walk = schedule.walk
        self.convert = Converter(schedule.convert)
        layout = SharedLayout()
        self.ring = layout.take(schedule.stages * schedule.slot_bytes if schedule.stages > 1 else 0)
        self.exchange = layout.take(self.walk.exchange_bytes)

    def write(self) -> None:
        ptx, schedule = self.ptx, self.schedule
        ptx.phase("who am I", "a lane's share of a block: nibbles of two neighbouring groups of 32 weights")
        self.standing = stand(ptx, self.walk, ptx.size("n_out"))
        blocks = ptx.r("shr.u32", ptx.size("n_in"), 8)
        part = ptx.r("rem.u32", self.standing.lane, schedule.lanes)
        side = ptx.r("div.u32", self.standing.lane, schedule.lanes)
        first = ptx.r("mad.lo.u32", self.standing.walker, self.walk.units_per_step, side)
        byte = ptx.r("mul.lo.u32", part, schedule.load_bytes)
        chunk = ptx.r("shr.u32", byte, 5)  # which 64 weights
        self._lane_scales(chunk)
        row_bytes = ptx.r("mul.lo.u32", blocks, Q4_K_BYTES)
        rows = readable_rows(ptx, self.standing, range(schedule.rows_per_warp))
        self.rows = row_pointers(ptx, ptx.pointer("W"), rows, row_bytes)
        self.byte = ptx.rd("cvt.u64.u32", byte)
        within = ptx.r("and.b32", byte, GROUP - 1)
        weight = ptx.r("mad.lo.u32", chunk, 2 * GROUP, within)
        self.x = ptx.rd("mad.wide.u32", weight, 4, ptx.pointer("x"))
        self.sums = [ptx.f("mov.f32", f32(0.0)) for _ in self.rows]
        stride = self.walk.walkers
        if schedule.stages == 1:
            strided_in_registers(ptx, first, blocks, stride, schedule.unroll, self._load, self._accumulate)
        else:
            ring = ptx.r("add.u32", ptx.shared_base(), self.ring)
            headers = self.walk.threads * schedule.rows_per_warp * schedule.load_bytes
            self.my_nibbles = ptx.r("mad.lo.u32", self.standing.thread, schedule.load_bytes, ring)
            header = ptx.r("mad.lo.u32", self.standing.thread, HEADER_BYTES, ring)
            self.my_header = ptx.r("add.u32", header, headers)
            strided_through_ring(
                ptx, first, blocks, stride, schedule.stages, schedule.slot_bytes, self._copy, self._use_slot
            )
        store_lane_sums(ptx, self.walk, self.standing, self.sums, self.exchange)
        ptx.op("ret")

    def _lane_scales(self, chunk: R32) -> None:
        """Where this lane's two groups lie among the packed scales: a shift, and which half of the
        packing."""
        odd = self.ptx.r("and.b32", chunk, 1)
        self.scale_shift = self.ptx.r("shl.b32", odd, 4)
        self.late_groups = self.ptx.p("setp.ge.u32", chunk, 2)

    # --- straight from global memory ---

    def _load(self, unit: R32, exists: Pred | None) -> _Unit:
        """Load a block's share of every row. Where the block does not exist its d and dmin become 0."""
        ptx = self.ptx
        headers, nibbles = [], []
        for row in self.rows:
            block = ptx.rd("mad.wide.u32", unit, Q4_K_BYTES, row)
            header = load_words(ptx, "ld.global.nc", at(block), HEADER_BYTES)
            if exists is not None:
                header[0] = ptx.r("selp.b32", header[0], 0, exists)
            headers.append(header)
            mine = ptx.rd("add.u64", block, self.byte)
            nibbles.append(load_words(ptx, "ld.global.nc", at(mine, HEADER_BYTES), self.schedule.load_bytes))
        return _Unit(headers, nibbles, self._load_x(unit))

    def _load_x(self, unit: R32) -> list[list[F32]]:
        """This lane's x of a block: those of the low nibbles, those of the high ones."""
        address = self.ptx.rd("mad.wide.u32", unit, 4 * BLOCK, self.x)
        return [
            [
                value
                for start in range(0, self.schedule.load_bytes, 4)
                for value in load_floats(self.ptx, "ld.global.nc", at(address, 4 * (first + start)), 4)
            ]
            for first in (0, GROUP)
        ]

    # --- through a ring in shared memory: for each row, every thread's nibbles; then every thread's headers
    # ---

    def _slot(self, offset: R32, r: int) -> tuple[str, str]:
        """Addresses of this thread's nibbles and header of row r in the slot at an offset."""
        schedule, threads = self.schedule, self.walk.threads
        nibbles = self.ptx.r("add.u32", self.my_nibbles, offset)
        header = self.ptx.r("add.u32", self.my_header, offset)
        return at(nibbles, r * threads * schedule.load_bytes), at(header, r * threads * HEADER_BYTES)

    def _copy(self, unit: R32, offset: R32, exists: Pred) -> None:
        ptx, load_bytes = self.ptx, self.schedule.load_bytes
        cache = "cg" if load_bytes == 16 else "ca"
        for r, row in enumerate(self.rows):
            nibbles, header = self._slot(offset, r)
            block = ptx.rd("mad.wide.u32", unit, Q4_K_BYTES, row)
            mine = at(ptx.rd("add.u64", block, self.byte), HEADER_BYTES)
            ptx.op(f"cp.async.{cache}.shared.global", nibbles, mine, load_bytes, guard=exists)
            ptx.op("cp.async.ca.shared.global", header, at(block), HEADER_BYTES, guard=exists)

    def _use_slot(self, unit: R32, offset: R32, wait: Callable[[], None]) -> None:
        ptx, load_bytes = self.ptx, self.schedule.load_bytes
        x = self._load_x(unit)
        wait()
        headers, nibbles = [], []
        for r in range(len(self.rows)):
            nibbles_at, header_at = self._slot(offset, r)
            headers.append(load_words(ptx, "ld.shared", header_at, HEADER_BYTES))
            nibbles.append(load_words(ptx, "ld.shared", nibbles_at, load_bytes))
        self._accumulate(_Unit(headers, nibbles, x))

    # --- arithmetic ---

    def _accumulate(self, unit: _Unit) -> None:
        ptx = self.ptx
        x_sums = None
        if self.schedule.dequant == "group":
            x_sums = [chain(ptx, values) for values in unit.x]
        for r, (header, words) in enumerate(zip(unit.headers, unit.nibbles, strict=True)):
            scales, offsets = self._scales(header)
            low = [ptx.r("and.b32", word, "0x0F0F0F0F") for word in words]
            high = [ptx.r("and.b32", ptx.r("shr.u32", word, 4), "0x0F0F0F0F") for word in words]
            partial: list[F32] = []
            for half, (codes, x) in enumerate(zip((low, high), unit.x, strict=True)):
                values = [value for word in codes for value in bytes_to_f32(ptx, word, self.convert)]
                if self.schedule.dequant == "weight":
                    minus = ptx.f("neg.f32", offsets[half])
                    values = [ptx.f("fma.rn.f32", value, scales[half], minus) for value in values]
                partial.append(dot(ptx, values, x))
            if x_sums is None:
                joined = ptx.f("add.rn.f32", partial[0], partial[1])
            else:
                joined = ptx.f("mul.rn.f32", partial[0], scales[0])
                joined = ptx.f("fma.rn.f32", partial[1], scales[1], joined)
                for half in range(2):
                    minus = ptx.f("neg.f32", offsets[half])
                    joined = ptx.f("fma.rn.f32", x_sums[half], minus, joined)
            ptx.op("add.rn.f32", self.sums[r], self.sums[r], joined)

    def _scales(self, header: Sequence[R32]) -> tuple[list[F32], list[F32]]:
        """d*scale and dmin*min of this lane's two groups; both products are exact."""
        ptx = self.ptx
        a, b, c = (ptx.r("shr.u32", word, self.scale_shift) for word in header[1:4])
        early_scale = ptx.r("and.b32", a, "0x3F3F")
        early_min = ptx.r("and.b32", b, "0x3F3F")
        c_low = ptx.r("and.b32", c, "0x0F0F")
        c_high = ptx.r("and.b32", ptx.r("shr.u32", c, 4), "0x0F0F")
        a_top = ptx.r("and.b32", ptx.r("shr.u32", a, 2), "0x3030")
        b_top = ptx.r("and.b32", ptx.r("shr.u32", b, 2), "0x3030")
        late_scale = ptx.r("or.b32", c_low, a_top)
        late_min = ptx.r("or.b32", c_high, b_top)
        scale = ptx.r("selp.b32", late_scale, early_scale, self.late_groups)
        minimum = ptx.r("selp.b32", late_min, early_min, self.late_groups)
        halves = [ptx.new_h(), ptx.new_h()]
        ptx.op("mov.b32", vector(halves), header[0])
        d, dmin = (ptx.f("cvt.f32.f16", half) for half in halves)
        scales = bytes_to_f32(ptx, scale, self.convert, 2)
        mins = bytes_to_f32(ptx, minimum, self.convert, 2)
        return (
            [ptx.f("mul.rn.f32", d, value) for value in scales],
            [ptx.f("mul.rn.f32", dmin, value) for value in mins],
        )


Q4K_GEMV = Kernel(
    spec=SPEC,
    schedule_type=Q4KGemvSchedule,
    emit=emit,
    inputs=inputs,
    reference=reference,
    edge_problems=edge_problems,
    demand=block_gemv_demand(Q4_K_BYTES, "fp32"),
    usual_problems=block_gemv_problems(SPEC),
    baseline=Q4KGemvSchedule(
        rows_per_warp=1,
        warps=4,
        warps_per_row=1,
        splits=1,
        load_bytes=16,
        unroll=1,
        stages=1,
        dequant="weight",
        convert="cvt",
    ),
    tensor=TensorOperand("Q4_K", "W", finite_q4_k),
)
