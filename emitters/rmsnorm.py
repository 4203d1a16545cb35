"""`rmsnorm`: y[r,i] = x[r,i] * w[i] / sqrt(mean_i x[r,i]^2 + eps).

A row belongs to `warps_per_row` warps. The first `hold` vectors of each thread stay in registers between
the sum of squares and the scaling; what does not fit is read again. With `splits` the sum is a launch of
its own, whose blocks share a row, and a second launch scales.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from emitters.fragments.loads import load_floats, store_floats
from emitters.fragments.opening import f32, open_module, parameters
from emitters.fragments.reduction import lane_sums
from emitters.kernel import (
    BufferSpec,
    Demand,
    EmitError,
    EmittedKernel,
    Expected,
    Inputs,
    Kernel,
    KernelSpec,
    Limit,
    Problem,
    schedule_values,
)
from emitters.ptx import F32, R32, R64, Entry, Pred, at
from emitters.rounding import RSQRT_ERROR, TINY, UNIT, gamma, tree_depth
from emitters.target import WARP, Target
from results.expression import ceil_div
from results.plan import KernelStep, LaunchPlan, Step

SPEC = KernelSpec(
    id="rmsnorm",
    version=1,
    computes="y[r,i] = x[r,i] * w[i] / sqrt(mean_i x[r,i]^2 + eps)",
    buffers=(
        BufferSpec("x", "in", "float32", ("rows", "n")),
        BufferSpec("w", "in", "float32", ("n",)),
        BufferSpec("y", "out", "float32", ("rows", "n")),
    ),
    sizes=("rows", "n"),
    scalars=("eps",),
    limits=(
        Limit("rows", "rows >= 1", "must be at least 1"),
        Limit("n", "n >= 1", "must be at least 1"),
        Limit("n", f"n <= {2**24}", f"must be at most {2**24}, so that f32 holds it exactly"),
    ),
)

SQUARES = f"{SPEC.id}_squares"
EPS = 1e-5


@dataclass(frozen=True, slots=True)
class RmsNormSchedule:
    """How `rmsnorm` shares its work.

    Attributes:
        warps: Warps of a block.
        warps_per_row: Warps that share a row.
        vector: Elements of one load or store: 1, 2 or 4; rows must be whole vectors.
        unroll: Vectors in flight, and independent sums of each element of a vector.
        hold: Vectors of a thread that stay in registers from the sum to the scaling.
        splits: Blocks that share a row; more than 1 makes the sum a launch of its own.
    """

    warps: int
    warps_per_row: int
    vector: int
    unroll: int
    hold: int
    splits: int

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def rows_per_block(self) -> int:
        return self.warps // self.warps_per_row

    @property
    def stride(self) -> int:
        """Elements from one vector of a thread to its next."""
        return self.warps_per_row * WARP * self.splits * self.vector

    @property
    def shared_bytes(self) -> int:
        return 4 * self.warps if self.warps_per_row > 1 else 0

    @property
    def valid(self) -> str:
        return f"n % {self.vector} == 0" if self.vector > 1 else "1"

    @property
    def registers(self) -> int:
        """Registers a thread is likely to need: what it holds and what is in flight, twice for w, and
        addresses."""
        return self.vector * (self.hold + 3 * self.unroll) + 40

    def chain(self, n: int) -> int:
        """Longest chain of additions from a square to the sum of its row."""
        vectors = ceil_div(n, self.stride)
        held = min(vectors, self.hold)
        in_thread = ceil_div(held, self.unroll) + ceil_div(vectors - held, self.unroll)
        joins = tree_depth(self.vector * self.unroll) + tree_depth(WARP)
        return in_thread + joins + (self.warps_per_row - 1) + (self.splits - 1)


def reference(problem: Problem, inputs: Inputs, schedule: RmsNormSchedule) -> Expected:
    """float64 values, and the rounding error of this schedule's sum, rsqrt and two products.

    The sum has no cancellation, so its error is relative; with the division by n and the addition of eps it
    passes two roundings more. 1/sqrt halves a relative error (and a little more: (1 - e)^-1/2 <= 1 + e/2 +
    e^2 for e <= 1/2). A square that underflows is lost against n * eps.
    """
    x, w = (inputs.buffers[name].astype(np.float64) for name in ("x", "w"))
    n, eps = problem["n"], float(np.float32(inputs.scalars["eps"]))
    mean = (x * x).mean(axis=1, keepdims=True)
    values = x * w / np.sqrt(mean + eps)
    error = gamma(schedule.chain(n) + 2) + TINY / (mean + eps)
    relative = (1.0 + error / 2.0 + error**2) * (1.0 + RSQRT_ERROR) * (1.0 + UNIT) ** 2 - 1.0
    bounds = relative * np.abs(values) + TINY * (1.0 + np.abs(w))
    return Expected({"y": values}, {"y": bounds})


def inputs(problem: Problem, rng: np.random.Generator) -> Inputs:
    """Gaussian rows of different size, one of them tiny and one zero where there are enough; w around 1."""
    x = rng.standard_normal((problem["rows"], problem["n"]), dtype=np.float32)
    x *= np.exp2(rng.integers(-6, 7, (problem["rows"], 1))).astype(np.float32)
    x[3::7] *= np.float32(1e-25)
    x[5::7] = 0.0
    w = (1.0 + 0.5 * rng.standard_normal(problem["n"])).astype(np.float32)
    return Inputs({"x": x, "w": w}, {"eps": EPS})


def edge_problems(schedule: RmsNormSchedule) -> tuple[Problem, ...]:
    """One vector; rows that leave a block part empty; idle threads; a tail past what is held, with ragged
    turns."""
    rows, vector, stride = schedule.rows_per_block, schedule.vector, schedule.stride
    deep = stride * (schedule.hold + schedule.unroll + 1) + vector
    ends = [(1, stride * turn + vector) for turn in range(1, schedule.hold + schedule.unroll + 1)]
    shapes = (
        (1, vector),
        (rows + 1, max(vector, stride - vector)),
        (max(1, 2 * rows - 1), stride + vector),
        (2, deep),
        *ends,
    )
    return tuple(SPEC.problem(*shape) for shape in dict.fromkeys(shapes))


def demand(problem: Problem) -> Demand:
    """A square, an addition and two products an element; x and w read once, y written once."""
    elements = problem["rows"] * problem["n"]
    return Demand(
        operations=4 * elements,
        unit="fp32",
        read_bytes=4 * (elements + problem["n"]),
        write_bytes=4 * elements,
    )


def emit(schedule: RmsNormSchedule, target: Target) -> EmittedKernel:
    """Text and plan of one schedule.

    Raises:
        EmitError: Warps that belong to no row, or values held across a launch.
    """
    if schedule.warps % schedule.warps_per_row:
        raise EmitError(
            f"warps must be a multiple of warps_per_row ({schedule.warps_per_row}), got {schedule.warps}"
        )
    if schedule.splits > 1 and schedule.hold:
        raise EmitError(f"hold must be 0 where a row is split over blocks, got {schedule.hold}")
    module = open_module(SPEC, schedule, target)
    grid = (f"ceil_div(rows, {schedule.rows_per_block})", str(schedule.splits), "1")
    block = (schedule.threads, 1, 1)
    steps: list[Step] = []
    scaling = SPEC.arguments
    if schedule.splits > 1:
        summing = ("x", "workspace", "rows", "n")
        steps.append(KernelStep(SQUARES, grid, block, schedule.shared_bytes, summing))
        _Row(module.entry(SQUARES, parameters(SPEC, summing), schedule.threads), schedule).write_squares()
        scaling = ("x", "w", "y", "workspace", "rows", "n", "eps")
    shared = schedule.shared_bytes if schedule.splits == 1 else 0
    steps.append(KernelStep(SPEC.id, grid, block, shared, scaling))
    _Row(module.entry(SPEC.id, parameters(SPEC, scaling), schedule.threads), schedule).write_scaling()
    workspace = f"{4 * schedule.splits} * rows" if schedule.splits > 1 else "0"
    plan = LaunchPlan(tuple(steps), workspace, schedule.valid)
    return EmittedKernel(SPEC.id, target.arch.name, schedule_values(schedule), module.text(), plan)


class _Row:
    """An entry that works on rows: which row and which vectors this thread has, and loops over them."""

    def __init__(self, ptx: Entry, schedule: RmsNormSchedule) -> None:
        self.ptx = ptx
        self.schedule = schedule
        ptx.phase("who am I", f"a thread's vectors lie {schedule.stride} elements apart")
        self.thread = ptx.r("mov.u32", "%tid.x")
        self.warp = ptx.r("shr.u32", self.thread, 5)
        self.group = ptx.r("div.u32", self.warp, schedule.warps_per_row)
        in_row = ptx.r("rem.u32", self.thread, schedule.warps_per_row * WARP)
        self.split = ptx.r("mov.u32", "%ctaid.y")
        turn = ptx.r("mad.lo.u32", self.split, schedule.warps_per_row * WARP, in_row)
        self.in_row = in_row
        self.row = ptx.r("mad.lo.u32", ptx.r("mov.u32", "%ctaid.x"), schedule.rows_per_block, self.group)
        self.rows, self.n = ptx.size("rows"), ptx.size("n")
        self.row_exists = ptx.p("setp.lt.u32", self.row, self.rows)
        self.read_row = ptx.r("min.u32", self.row, ptx.r("sub.u32", self.rows, 1))
        self.first = ptx.r("mul.lo.u32", turn, schedule.vector)
        self.x = self._at_row(ptx.pointer("x"), self.read_row)

    def _at_row(self, base: R64, row: R32) -> R64:
        ptx = self.ptx
        row_bytes = ptx.rd("mul.wide.u32", self.n, 4)
        return ptx.rd("mad.lo.u64", ptx.rd("cvt.u64.u32", row), row_bytes, base)

    def write_squares(self) -> None:
        """The first launch of a split row: this block's share of the sum into the workspace."""
        ptx = self.ptx
        _, total = self._sum_squares()
        ptx.phase("leave the sum of this block's share")
        store = ptx.p("setp.eq.and.u32", self.in_row, 0, self.row_exists)
        index = ptx.r("mad.lo.u32", self.split, self.rows, self.row)
        ptx.op(
            "st.global.f32",
            at(ptx.rd("mad.wide.u32", index, 4, ptx.pointer("workspace"))),
            total,
            guard=store,
        )
        ptx.op("ret")

    def write_scaling(self) -> None:
        """Sum (or collect) the squares, then scale."""
        ptx, schedule = self.ptx, self.schedule
        if schedule.splits == 1:
            held, total = self._sum_squares()
        else:
            held, total = [], self._collect()
        ptx.phase("1 / sqrt(mean + eps)")
        mean = ptx.f("div.rn.f32", total, ptx.f("cvt.rn.f32.u32", self.n))
        inverse = ptx.f("rsqrt.approx.f32", ptx.f("add.rn.f32", mean, ptx.scalar("eps")))
        w, y = ptx.pointer("w"), self._at_row(ptx.pointer("y"), self.row)
        ptx.phase("scale")
        for i, values in enumerate(held):
            index = ptx.r("add.u32", self.first, i * schedule.stride)
            inside = ptx.p("setp.lt.and.u32", index, self.n, self.row_exists)
            self._scale([values], [index], [inside], inverse, w, y)

        def body(indices: list[R32], insides: list[Pred | None]) -> None:
            exists = self.row_exists
            stored = [exists if inside is None else ptx.p("and.pred", inside, exists) for inside in insides]
            vectors = self._load(indices, insides)
            self._scale(vectors, indices, stored, inverse, w, y)

        self._over_rest(len(held), body)
        ptx.op("ret")

    def _sum_squares(self) -> tuple[list[list[F32]], F32]:
        """The vectors that stay in registers, and the sum of squares of this block's share of the row."""
        ptx, schedule = self.ptx, self.schedule
        ptx.phase("sum of squares")
        sums = [[ptx.f("mov.f32", f32(0.0)) for _ in range(schedule.vector)] for _ in range(schedule.unroll)]

        def add(vectors: list[list[F32]]) -> None:
            for i, values in enumerate(vectors):
                for j, value in enumerate(values):
                    total = sums[i % schedule.unroll][j]
                    ptx.op("fma.rn.f32", total, value, value, total)

        held: list[list[F32]] = []
        if schedule.hold:
            indices = [ptx.r("add.u32", self.first, i * schedule.stride) for i in range(schedule.hold)]
            held = self._load(indices, [ptx.p("setp.lt.u32", index, self.n) for index in indices])
            add(held)
        self._over_rest(schedule.hold, lambda indices, insides: add(self._load(indices, insides)))
        flat = [value for values in sums for value in values]
        while len(flat) > 1:
            flat = [ptx.f("add.rn.f32", a, b) for a, b in zip(flat[::2], flat[1::2], strict=True)]
        (total,) = lane_sums(ptx, flat)
        return held, self._over_warps(total)

    def _over_warps(self, total: F32) -> F32:
        """The sum over the warps of a row, in every thread of it."""
        ptx, warps = self.ptx, self.schedule.warps_per_row
        if warps == 1:
            return total
        ptx.phase("sum over the warps of a row")
        base = ptx.shared_base()
        first_lane = ptx.p("setp.eq.u32", ptx.r("and.b32", self.thread, WARP - 1), 0)
        ptx.op("st.shared.f32", at(ptx.r("mad.lo.u32", self.warp, 4, base)), total, guard=first_lane)
        ptx.op("bar.sync", 0)
        theirs = ptx.r("mad.lo.u32", self.group, 4 * warps, base)
        parts = [ptx.f("ld.shared.f32", at(theirs, 4 * i)) for i in range(warps)]
        result = parts[0]
        for part in parts[1:]:
            result = ptx.f("add.rn.f32", result, part)
        return result

    def _collect(self) -> F32:
        """The sum over the splits, from the workspace."""
        ptx = self.ptx
        ptx.phase("sum of squares over the splits")
        address = ptx.rd("mad.wide.u32", self.read_row, 4, ptx.pointer("workspace"))
        stride = ptx.rd("mul.wide.u32", self.rows, 4)
        total = ptx.f("ld.global.f32", at(address))
        for _ in range(1, self.schedule.splits):
            address = ptx.rd("add.u64", address, stride)
            total = ptx.f("add.rn.f32", total, ptx.f("ld.global.f32", at(address)))
        return total

    def _over_rest(self, done: int, body: Callable[[list[R32], list[Pred | None]], None]) -> None:
        """A loop over this thread's vectors from number `done` on, `unroll` at a time; the first of them
        exists."""
        ptx, schedule = self.ptx, self.schedule
        index = ptx.r("add.u32", self.first, done * schedule.stride)
        loop, end = ptx.new_label("rest"), ptx.new_label("rest_done")
        ptx.branch(end, guard=ptx.p("setp.ge.u32", index, self.n))
        ptx.place(loop)
        indices = [index, *(ptx.r("add.u32", index, i * schedule.stride) for i in range(1, schedule.unroll))]
        body(indices, [None, *(ptx.p("setp.lt.u32", one, self.n) for one in indices[1:])])
        ptx.op("add.u32", index, index, schedule.unroll * schedule.stride)
        ptx.branch(loop, guard=ptx.p("setp.lt.u32", index, self.n))
        ptx.place(end)

    def _load(self, indices: Sequence[R32], insides: Sequence[Pred | None]) -> list[list[F32]]:
        """Vectors of x at element numbers; zeros past the end of the row."""
        ptx = self.ptx
        vectors = []
        for index, inside in zip(indices, insides, strict=True):
            values = [ptx.f("mov.f32", f32(0.0)) for _ in range(self.schedule.vector)]
            address = ptx.rd("mad.wide.u32", index, 4, self.x)
            load_floats(ptx, "ld.global.nc", at(address), self.schedule.vector, guard=inside, into=values)
            vectors.append(values)
        return vectors

    def _scale(
        self, vectors: list[list[F32]], indices: list[R32], stored: list[Pred], inverse: F32, w: R64, y: R64
    ) -> None:
        ptx = self.ptx
        for values, index, inside in zip(vectors, indices, stored, strict=True):
            weights = [ptx.f("mov.f32", f32(0.0)) for _ in values]
            address = ptx.rd("mad.wide.u32", index, 4, w)
            load_floats(ptx, "ld.global.nc", at(address), len(values), guard=inside, into=weights)
            scaled = [ptx.f("mul.rn.f32", value, inverse) for value in values]
            results = [ptx.f("mul.rn.f32", a, b) for a, b in zip(scaled, weights, strict=True)]
            store_floats(ptx, "st.global", at(ptx.rd("mad.wide.u32", index, 4, y)), results, guard=inside)


RMSNORM = Kernel(
    spec=SPEC,
    schedule_type=RmsNormSchedule,
    emit=emit,
    inputs=inputs,
    reference=reference,
    edge_problems=edge_problems,
    demand=demand,
    usual_problems=tuple(
        SPEC.problem(*shape) for shape in ((2048, 4096), (1, 4096), (1, 14336), (512, 14336))
    ),
    baseline=RmsNormSchedule(warps=8, warps_per_row=8, vector=1, unroll=1, hold=0, splits=1),
)
