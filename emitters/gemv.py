"""How blocks and warps share a matrix-vector product: geometry, launch plan and edge problems of every GEMV.

A block holds `row_groups` groups of `warps_per_row` warps; a group owns `rows_per_warp` rows, and its warps
take turns along the long axis. `splits` blocks share the same rows; each leaves a partial sum in the
workspace, and a second launch adds them. The long axis is cut into units (a quantised block, or a slice of
f16), which lanes,
warps and splits take in turn: walker w of `walkers` takes units w, w + walkers, w + 2*walkers, ...
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from emitters.fragments.opening import parameters
from emitters.fragments.reduction import lane_sums
from emitters.kernel import KernelSpec, Problem
from emitters.ptx import F32, R32, R64, Entry, Module, Pred, at, negated
from emitters.target import WARP
from results.expression import ceil_div
from results.plan import KernelStep, LaunchPlan, Step

COMBINE_THREADS = 128
MANY_ROWS = 16


@dataclass(frozen=True, slots=True)
class RowWalk:
    """The shares of one schedule.

    Attributes:
        rows_per_warp: Rows that a warp sums at once.
        warps: Warps of a block.
        warps_per_row: Warps that share the same rows; it divides `warps`.
        splits: Blocks that share the same rows.
        units_per_step: Units that one warp takes side by side.
    """

    rows_per_warp: int
    warps: int
    warps_per_row: int
    splits: int
    units_per_step: int = 1

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def row_groups(self) -> int:
        return self.warps // self.warps_per_row

    @property
    def rows_per_block(self) -> int:
        return self.row_groups * self.rows_per_warp

    @property
    def walkers(self) -> int:
        """Partial sums of a row that run side by side: the stride of one of them, in units."""
        return self.units_per_step * self.warps_per_row * self.splits

    def stride(self, chunked: bool) -> int:
        """Units from one of a walker's to its next; in chunks, the warps of a block take turns alone."""
        return self.warps_per_row if chunked else self.walkers

    def units_walked(self, units: int) -> int:
        """Units of the busiest walker."""
        return ceil_div(units, self.walkers)

    @property
    def exchange_bytes(self) -> int:
        """Shared memory in which warps leave their sums, one f32 a warp and row: where several share a row,
        and where a
        warp has so many rows that its lanes can store them side by side."""
        shared = self.warps_per_row > 1 or self.rows_per_warp >= MANY_ROWS
        return 4 * self.warps * self.rows_per_warp if shared else 0

    @property
    def late_additions(self) -> int:
        """Additions of a partial sum after its warp is done: over the warps of the row, then over the
        splits."""
        return (self.warps_per_row - 1) + (self.splits if self.splits > 1 else 0)

    def plan(self, spec: KernelSpec, shared_bytes: int, valid: str = "1") -> LaunchPlan:
        """One launch, and one that adds the splits' partial sums where there are any.

        The main entry takes the workspace after the operands, where the plan has one.
        """
        rows = spec.sizes[0]
        operands = tuple(buffer.name for buffer in spec.buffers)
        workspace = ("workspace",) if self.splits > 1 else ()
        main = KernelStep(
            entry=spec.id,
            grid=(f"ceil_div({rows}, {self.rows_per_block})", str(self.splits), "1"),
            block=(self.threads, 1, 1),
            shared_bytes=shared_bytes,
            arguments=(*operands, *workspace, *spec.sizes, *spec.scalars),
        )
        steps: tuple[Step, ...] = (main,)
        if self.splits > 1:
            combine = KernelStep(
                entry=f"{spec.id}_combine",
                grid=(f"ceil_div({rows}, {COMBINE_THREADS})", "1", "1"),
                block=(COMBINE_THREADS, 1, 1),
                shared_bytes=0,
                arguments=(*spec.outputs, "workspace", rows),
            )
            steps = (main, combine)
        return LaunchPlan(
            steps=steps,
            workspace_bytes=f"{4 * self.splits} * {rows}" if self.splits > 1 else "0",
            valid=valid,
        )

    def units_of(self, units: int, chunk: int = 0) -> list[list[int]]:
        """For each warp that shares a row, split by split, the units that it sums, in order.

        Args:
            units: Units of the long axis.
            chunk: Units that a block takes before its next chunk, with its warps taking turns inside; 0 for
                turns over the whole axis.
        """
        warps = [(split, turn) for split in range(self.splits) for turn in range(self.warps_per_row)]
        if chunk == 0:
            stride = self.warps_per_row * self.splits
            return [list(range(split * self.warps_per_row + turn, units, stride)) for split, turn in warps]
        return [
            [
                unit
                for start in range(split * chunk, units, self.splits * chunk)
                for unit in range(start + turn, min(start + chunk, units), self.warps_per_row)
            ]
            for split, turn in warps
        ]

    def edge_problems(
        self,
        spec: KernelSpec,
        unit: int,
        stages: int,
        least: int = 0,
        fewest_rows: int = 1,
        chunked: bool = False,
    ) -> tuple[Problem, ...]:
        """Small problems that reach every guard: rows that end at each of a warp's, idle walkers, an end at
        every stage of the first turns, a wrapped ring for all rows of a warp, and a second block of the
        combine launch.

        Args:
            spec: The kernel.
            unit: Elements of the long axis in one unit.
            stages: Units that a walker has in flight.
            least: Elements by which the long axis may exceed whole units, 0 where it never does.
            fewest_rows: That the schedule can serve.
            chunked: Whether a block takes one chunk after another, its warps taking turns inside.
        """
        rows = self.rows_per_block
        stride = self.stride(chunked)
        deep = (stages + 2) * stride + 1
        shapes = [
            (1, unit),
            (rows + 1, unit + least),
            (2 * rows - 3, 2 * unit),
            (max(3, self.rows_per_warp), unit * max(1, stride - 1) + least),
            (max(2, self.rows_per_warp), unit * deep - (unit - least if least else 0)),
            *((1, unit * turn * stride + (least or unit)) for turn in range(1, stages + 1)),
        ]
        if self.rows_per_warp < MANY_ROWS:
            ends = {n_out % self.rows_per_warp for n_out, _ in shapes}
            shapes += [(n_out, unit) for n_out in range(2, self.rows_per_warp) if n_out not in ends]
        if self.splits > 1:
            shapes.append((COMBINE_THREADS + 1, unit))
        checked = dict.fromkeys((max(fewest_rows, n_out), n_in) for n_out, n_in in shapes)
        return tuple(spec.problem(*shape) for shape in checked)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a thread stands in a walk, in registers.

    Attributes:
        thread, lane: In the block; in the warp.
        walker: Number of this warp among the warps of all splits that share its rows.
        block_row: First row of the block.
        first_row: First row of the warp.
        n_out: Rows of the matrix.
    """

    thread: R32
    lane: R32
    walker: R32
    block_row: R32
    first_row: R32
    n_out: R32


def stand(ptx: Entry, walk: RowWalk, n_out: R32) -> Standing:
    """Which rows and which turn along the long axis this thread has."""
    thread = ptx.r("mov.u32", "%tid.x")
    lane = ptx.r("and.b32", thread, WARP - 1)
    warp = ptx.r("shr.u32", thread, 5)
    group = ptx.r("div.u32", warp, walk.warps_per_row)
    turn = ptx.r("rem.u32", warp, walk.warps_per_row)
    split = ptx.r("mov.u32", "%ctaid.y")
    walker = ptx.r("mad.lo.u32", split, walk.warps_per_row, turn)
    block_row = ptx.r("mul.lo.u32", ptx.r("mov.u32", "%ctaid.x"), walk.rows_per_block)
    first_row = ptx.r("mad.lo.u32", group, walk.rows_per_warp, block_row)
    return Standing(thread, lane, walker, block_row, first_row, n_out)


def readable_rows(ptx: Entry, standing: Standing, offsets: Iterable[R32 | int]) -> tuple[R32, ...]:
    """Rows at these offsets from the warp's first; a row past the last is read as the last, and never
    stored."""
    last = ptx.r("sub.u32", standing.n_out, 1)
    return tuple(ptx.r("min.u32", ptx.r("add.u32", standing.first_row, offset), last) for offset in offsets)


def row_pointers(ptx: Entry, base: R64, rows: Sequence[R32], row_bytes: R32) -> tuple[R64, ...]:
    """Address of each row of a matrix whose rows lie `row_bytes` apart."""
    return tuple(ptx.rd("mad.wide.u32", row, row_bytes, base) for row in rows)


def store_lane_sums(
    ptx: Entry, walk: RowWalk, standing: Standing, sums: Sequence[F32], exchange: int
) -> None:
    """Add each row's sums over lanes, then over warps, and store the rows that exist.

    Args:
        ptx: The entry, which has the parameter `y`, and `workspace` where there are splits.
        walk: The shares.
        standing: Of this thread.
        sums: One partial sum a row of the warp.
        exchange: Offset in shared memory of `walk.exchange_bytes`.
    """
    ptx.phase("sum over lanes")
    totals = lane_sums(ptx, sums)
    leader = ptx.p("setp.eq.u32", standing.lane, 0)
    rows = [RowSum(row, total, leader) for row, total in enumerate(totals)]
    store_warp_sums(ptx, walk, standing, rows, exchange)


@dataclass(frozen=True, slots=True)
class RowSum:
    """A warp's whole sum of one of its rows.

    Attributes:
        offset: The row, counted from the warp's first.
        value: The sum, in the lanes where `held` holds.
        held: In one lane of the warp, or in none where the row is not this warp's to store.
    """

    offset: R32 | int
    value: F32
    held: Pred


def store_warp_sums(
    ptx: Entry, walk: RowWalk, standing: Standing, sums: Sequence[RowSum], exchange: int
) -> None:
    """As `store_lane_sums`, for sums that are whole in some lane of the warp."""
    if walk.exchange_bytes == 0:
        ptx.phase("store")
        out = _output(ptx, walk, standing)
        for one in sums:
            row = ptx.r("add.u32", standing.first_row, one.offset)
            inside = ptx.p("setp.lt.and.u32", row, standing.n_out, one.held)
            ptx.op("st.global.f32", at(ptx.rd("mad.wide.u32", row, 4, out)), one.value, guard=inside)
        return
    ptx.phase("sum over the warps of a row, and store")
    warp = ptx.r("shr.u32", standing.thread, 5)
    base = ptx.r("add.u32", ptx.shared_base(), exchange)
    mine = ptx.r("mad.lo.u32", warp, 4 * walk.rows_per_warp, base)
    for one in sums:
        if isinstance(one.offset, int):
            where = at(mine, 4 * one.offset)
        else:
            where = at(ptx.r("mad.lo.u32", one.offset, 4, mine))
        ptx.op("st.shared.f32", where, one.value, guard=one.held)
    ptx.op("bar.sync", 0)
    _store_row_sums(ptx, walk, standing, base)


def _store_row_sums(ptx: Entry, walk: RowWalk, standing: Standing, base: R32) -> None:
    """Thread i adds up row i of the block over its warps, in their order. A block may have more rows than
    threads."""
    for first in range(0, walk.rows_per_block, walk.threads):
        member = ptx.r("add.u32", standing.thread, first)
        row = ptx.r("add.u32", standing.block_row, member)
        mapped = ptx.p("setp.lt.u32", member, walk.rows_per_block)
        inside = ptx.p("setp.lt.and.u32", row, standing.n_out, mapped)
        done = ptx.new_label("done")
        ptx.branch(done, guard=negated(inside))
        group = ptx.r("div.u32", member, walk.rows_per_warp)
        within = ptx.r("rem.u32", member, walk.rows_per_warp)
        stride = 4 * walk.rows_per_warp
        start = ptx.r("mad.lo.u32", group, stride * walk.warps_per_row, base)
        theirs = ptx.r("mad.lo.u32", within, 4, start)
        total = ptx.f("ld.shared.f32", at(theirs))
        for turn in range(1, walk.warps_per_row):
            total = ptx.f("add.rn.f32", total, ptx.f("ld.shared.f32", at(theirs, turn * stride)))
        out = _output(ptx, walk, standing)
        ptx.op("st.global.f32", at(ptx.rd("mad.wide.u32", row, 4, out)), total)
        ptx.place(done)


def _output(ptx: Entry, walk: RowWalk, standing: Standing) -> R64:
    """Where this block's rows begin: y, or its split's share of the workspace."""
    if walk.splits == 1:
        return ptx.pointer("y")
    split = ptx.r("mov.u32", "%ctaid.y")
    share = ptx.rd("mul.wide.u32", split, standing.n_out)
    return ptx.rd("mad.lo.u64", share, 4, ptx.pointer("workspace"))


def emit_combine(module: Module, spec: KernelSpec, walk: RowWalk) -> None:
    """The second launch of a plan with splits: y is the sum of the splits' rows, in their order."""
    names = (*spec.outputs, "workspace", spec.sizes[0])
    ptx = module.entry(f"{spec.id}_combine", parameters(spec, names), COMBINE_THREADS)
    ptx.phase("add the partial sums of the splits")
    n_out = ptx.size(spec.sizes[0])
    block = ptx.r("mov.u32", "%ctaid.x")
    row = ptx.r("mad.lo.u32", block, COMBINE_THREADS, ptx.r("mov.u32", "%tid.x"))
    done = ptx.new_label("done")
    ptx.branch(done, guard=ptx.p("setp.ge.u32", row, n_out))
    address = ptx.rd("mad.wide.u32", row, 4, ptx.pointer("workspace"))
    row_bytes = ptx.rd("mul.wide.u32", n_out, 4)
    total = ptx.f("ld.global.f32", at(address))
    for _ in range(1, walk.splits):
        address = ptx.rd("add.u64", address, row_bytes)
        total = ptx.f("add.rn.f32", total, ptx.f("ld.global.f32", at(address)))
    ptx.op("st.global.f32", at(ptx.rd("mad.wide.u32", row, 4, ptx.pointer(spec.outputs[0]))), total)
    ptx.place(done)
    ptx.op("ret")
