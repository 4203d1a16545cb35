"""`wmma_gemv`: y = A @ x on tensor cores, f16 in, f32 sums.

A unit is 64 elements of the long axis, four slices of 16. With ``mma`` a warp takes it for 16 rows a tile:
lane 4g + t loads elements of rows g and g + 8 that become fragments of A without leaving the lane; loads of
16 bytes take the slices' elements in another order than loads of 4, and x is loaded alike. With ``wmma``
fragments of 16 or 32 rows come straight from global memory and x from a chunk in shared memory. Ragged ends
of A count as zero.
"""

from collections.abc import Callable
from dataclasses import dataclass

from emitters.block_gemv import block_gemv_problems, emit_walk
from emitters.fragments import wmma
from emitters.fragments.loads import load_words
from emitters.fragments.strided import strided_in_registers, strided_through_ring
from emitters.fragments.tensor import multiply_add, new_accumulator
from emitters.gemv import RowSum, readable_rows, row_pointers, stand, store_warp_sums
from emitters.kernel import EmitError, EmittedKernel, Kernel, TensorOperand
from emitters.ptx import R32, Entry, Pred, SharedLayout, at, vector
from emitters.quants import finite_halves
from emitters.target import Target
from emitters.wmma_gemv_schedule import (
    MMA,
    SLICE,
    SPEC,
    UNIT,
    WmmaGemvSchedule,
    demand,
    edge_problems,
    inputs,
    reference,
)


def emit(schedule: WmmaGemvSchedule, target: Target) -> EmittedKernel:
    """Text and plan of one schedule.

    Raises:
        EmitError: The text cannot express the schedule.
    """
    if schedule.stages > 1 and schedule.unroll > 1:
        raise EmitError(f"unroll must be 1 where stages copy ahead, got {schedule.unroll}")
    if schedule.x_chunk % UNIT:
        raise EmitError(f"x_chunk must be a multiple of {UNIT}, got {schedule.x_chunk}")
    if schedule.instruction != MMA and (
        schedule.stages > 1 or schedule.load_bytes != 4 or schedule.x_chunk == 0
    ):
        raise EmitError(
            f"wmma takes stages 1, load_bytes 4 and a chunk of x, got {schedule.stages}, "
            f"{schedule.load_bytes} and {schedule.x_chunk}"
        )
    body: type[_MmaBody] | type[_WmmaBody] = _MmaBody if schedule.instruction == MMA else _WmmaBody
    return emit_walk(
        SPEC,
        schedule,
        schedule.walk,
        schedule.shared_bytes,
        target,
        lambda ptx: body(ptx, schedule).write(),
        schedule.valid,
    )


class _Body:
    """What both instructions share: the walk over units and chunks, and x in shared memory."""

    def __init__(self, ptx: Entry, schedule: WmmaGemvSchedule) -> None:
        self.ptx = ptx
        self.schedule = schedule
        self.walk = schedule.walk
        layout = SharedLayout()
        self.ring = layout.take(schedule.stages * schedule.slot_bytes if schedule.stages > 1 else 0)
        self.x_at = layout.take(schedule.x_bytes)
        self.result = layout.take(schedule.result_bytes)
        self.exchange = layout.take(self.walk.exchange_bytes)
        ptx.phase("who am I")
        self.standing = stand(ptx, self.walk, ptx.size("n_out"))
        self.n_in = ptx.size("n_in")
        self.units = ptx.r("shr.u32", ptx.r("add.u32", self.n_in, UNIT - 1), 6)
        self.x = ptx.pointer("x")
        self.base = ptx.r("mov.u32", 0)  # first element of the chunk

    def sum_units(self, first: R32, count: R32, stride: int) -> None:
        raise NotImplementedError

    def walk_all(self) -> None:
        """Sum this warp's units, chunk by chunk where x comes in chunks."""
        ptx, schedule, walk = self.ptx, self.schedule, self.walk
        if schedule.x_chunk == 0:
            self.sum_units(self.standing.walker, self.units, walk.walkers)
            return
        size = schedule.x_chunk // UNIT
        self.x_shared = ptx.r("add.u32", ptx.shared_base(), self.x_at)
        turn = ptx.r("rem.u32", self.standing.walker, walk.warps_per_row)
        start = ptx.r("mul.lo.u32", ptx.r("mov.u32", "%ctaid.y"), size)
        loop, done = ptx.new_label("chunk"), ptx.new_label("chunks_done")
        ptx.op("bra.uni", done, guard=ptx.p("setp.ge.u32", start, self.units))
        ptx.place(loop)
        count = ptx.r("min.u32", ptx.r("sub.u32", self.units, start), size)
        ptx.op("shl.b32", self.base, start, 6)
        ptx.op("bar.sync", 0)
        self._copy_chunk()
        ptx.op("bar.sync", 0)
        self.sum_units(turn, count, walk.warps_per_row)
        ptx.op("add.u32", start, start, size * walk.splits)
        ptx.op("bra.uni", loop, guard=ptx.p("setp.lt.u32", start, self.units))
        ptx.place(done)

    def _copy_chunk(self) -> None:
        """Thread by thread eight elements of x, zeros past its end."""
        ptx = self.ptx
        ptx.phase("copy this chunk of x")
        element = ptx.r("shl.b32", self.standing.thread, 3)
        loop, done = ptx.new_label("octet"), ptx.new_label("octets_done")
        total = self.schedule.x_bytes // 2
        ptx.branch(done, guard=ptx.p("setp.ge.u32", element, total))
        ptx.place(loop)
        k = ptx.r("add.u32", element, self.base)
        words = [ptx.r("mov.b32", 0) for _ in range(4)]
        inside = ptx.p("setp.lt.u32", k, self.n_in)
        ptx.op("ld.global.nc.v4.u32", vector(words), at(ptx.rd("mad.wide.u32", k, 2, self.x)), guard=inside)
        ptx.op("st.shared.v4.u32", at(ptx.r("mad.lo.u32", element, 2, self.x_shared)), vector(words))
        ptx.op("add.u32", element, element, 8 * self.walk.threads)
        ptx.branch(loop, guard=ptx.p("setp.lt.u32", element, total))
        ptx.place(done)


@dataclass(frozen=True)
class _Unit:
    """A lane's words of one unit: of each of its rows, and of x; in the order of `_MmaBody.pieces`."""

    a: list[list[R32]]
    x: list[R32]


class _MmaBody(_Body):
    """mma.m16n8k16: lane 4g + t loads its own fragments."""

    def write(self) -> None:
        ptx, schedule = self.ptx, self.schedule
        g = ptx.r("shr.u32", self.standing.lane, 2)
        self.t = ptx.r("and.b32", self.standing.lane, 3)
        self.first_k = ptx.r("mul.lo.u32", self.t, schedule.load_bytes // 2)
        offsets = [ptx.r("add.u32", g, 8 * half) for half in range(2 * schedule.tiles)]
        rows = readable_rows(ptx, self.standing, offsets)
        self.rows = row_pointers(ptx, ptx.pointer("A"), rows, ptx.r("shl.b32", self.n_in, 1))
        self.sums = [
            [new_accumulator(ptx) for _ in range(schedule.accumulators)] for _ in range(schedule.tiles)
        ]
        if schedule.stages > 1:
            ring = ptx.r("add.u32", ptx.shared_base(), self.ring)
            self.mine = ptx.r("mad.lo.u32", self.standing.thread, schedule.load_bytes, ring)
        self.walk_all()
        ptx.phase("sum the accumulators; column 0 holds every row's sum")
        leader = ptx.p("setp.eq.u32", self.t, 0)
        sums = []
        for tile, accumulators in enumerate(self.sums):
            for half in range(2):
                total = accumulators[0][2 * half]
                for other in accumulators[1:]:
                    total = ptx.f("add.rn.f32", total, other[2 * half])
                sums.append(RowSum(offsets[2 * tile + half], total, leader))
        store_warp_sums(ptx, self.walk, self.standing, sums, self.exchange)
        ptx.op("ret")

    @property
    def pieces(self) -> range:
        """Elements of a unit at which lane t = 0 loads; lane t loads `load_bytes` * t further on."""
        return range(0, UNIT, 2 * self.schedule.load_bytes)

    def sum_units(self, first: R32, count: R32, stride: int) -> None:
        ptx, schedule = self.ptx, self.schedule
        if schedule.stages == 1:
            strided_in_registers(ptx, first, count, stride, schedule.unroll, self._load, self._accumulate)
        else:
            strided_through_ring(
                ptx, first, count, stride, schedule.stages, schedule.slot_bytes, self._copy, self._use_slot
            )

    def _first(self, unit: R32) -> R32:
        """This lane's first element of a unit, in the whole row."""
        start = self.ptx.r("mad.lo.u32", unit, UNIT, self.base)
        return self.ptx.r("add.u32", start, self.first_k)

    def _inside(self, k: R32, exists: Pred | None) -> list[Pred]:
        """For each piece, whether it lies in the row."""
        ptx = self.ptx
        insides = []
        for piece in self.pieces:
            here = ptx.r("add.u32", k, piece)
            if exists is None:
                insides.append(ptx.p("setp.lt.u32", here, self.n_in))
            else:
                insides.append(ptx.p("setp.lt.and.u32", here, self.n_in, exists))
        return insides

    def _pieces_of(self, opcode: str, base: str, insides: list[Pred] | None) -> list[R32]:
        """The words of a unit, zeros where a piece is not inside."""
        ptx, nbytes = self.ptx, self.schedule.load_bytes
        words: list[R32] = []
        for i, piece in enumerate(self.pieces):
            guard = insides[i] if insides is not None else None
            words += load_words(ptx, opcode, at(base, 2 * piece), nbytes, guard)
        return words

    def _load(self, unit: R32, exists: Pred | None) -> _Unit:
        ptx = self.ptx
        k = self._first(unit)
        insides = self._inside(k, exists)
        a = [self._pieces_of("ld.global.nc", ptx.rd("mad.wide.u32", k, 2, row), insides) for row in self.rows]
        return _Unit(a, self._load_x(unit, k, insides))

    def _load_x(self, unit: R32, k: R32, insides: list[Pred]) -> list[R32]:
        ptx = self.ptx
        if self.schedule.x_chunk:
            within = ptx.r("mad.lo.u32", unit, UNIT, self.first_k)
            return self._pieces_of("ld.shared", ptx.r("mad.lo.u32", within, 2, self.x_shared), None)
        return self._pieces_of("ld.global.nc", ptx.rd("mad.wide.u32", k, 2, self.x), insides)

    # --- the ring: for each row, piece i of every thread, then piece i + 1 of every thread ---

    def _slot(self, base: R32, row: int, piece: int) -> str:
        number = row * len(self.pieces) + piece
        return at(base, number * self.walk.threads * self.schedule.load_bytes)

    def _copy(self, unit: R32, offset: R32, exists: Pred) -> None:
        """Copy a unit ahead; pieces past the end of the row become zeros.

        A unit that does not exist is left out: nobody waits for it before the next chunk fills its slot.
        """
        ptx, nbytes = self.ptx, self.schedule.load_bytes
        base = ptx.r("add.u32", self.mine, offset)
        k = self._first(unit)
        insides = self._inside(k, None)
        sizes = [ptx.r("selp.b32", nbytes, 0, inside) for inside in insides]
        opcode = f"cp.async.{'cg' if nbytes == 16 else 'ca'}.shared.global"
        for r, row in enumerate(self.rows):
            source = ptx.rd("mad.wide.u32", k, 2, row)
            for i, piece in enumerate(self.pieces):
                to = self._slot(base, r, i)
                ptx.op(opcode, to, at(source, 2 * piece), nbytes, sizes[i], guard=exists)

    def _use_slot(self, unit: R32, offset: R32, wait: Callable[[], None]) -> None:
        ptx, nbytes = self.ptx, self.schedule.load_bytes
        k = self._first(unit)
        x = self._load_x(unit, k, self._inside(k, None))
        wait()
        base = ptx.r("add.u32", self.mine, offset)
        a = []
        for r in range(len(self.rows)):
            words = [
                load_words(ptx, "ld.shared", self._slot(base, r, i), nbytes) for i in range(len(self.pieces))
            ]
            a.append([word for piece in words for word in piece])
        self._accumulate(_Unit(a, x))

    def _accumulate(self, unit: _Unit) -> None:
        """Words 2i and 2i + 1 are the two k pairs of slice i."""
        ptx, schedule = self.ptx, self.schedule
        for i in range(UNIT // SLICE):
            pair = (2 * i, 2 * i + 1)
            for tile in range(schedule.tiles):
                upper, lower = unit.a[2 * tile], unit.a[2 * tile + 1]
                fragment = [row[word] for word in pair for row in (upper, lower)]
                sums = self.sums[tile][i % schedule.accumulators]
                multiply_add(ptx, sums, fragment, [unit.x[word] for word in pair])


class _WmmaBody(_Body):
    """wmma: fragments of A from global memory, of x from shared memory."""

    def write(self) -> None:
        ptx, schedule = self.ptx, self.schedule
        self.shape = wmma.SHAPES[schedule.instruction]
        last = ptx.r("sub.u32", self.standing.n_out, self.shape.rows)
        ptx.comment(
            "a tile that reaches past the last row moves up; its first rows are another's and not stored"
        )
        firsts = [
            ptx.r("add.u32", self.standing.first_row, self.shape.rows * tile)
            for tile in range(schedule.tiles)
        ]
        starts = [ptx.r("min.u32", first, last) for first in firsts]
        row_bytes = ptx.r("shl.b32", self.n_in, 1)
        self.rows = row_pointers(ptx, ptx.pointer("A"), starts, row_bytes)
        self.sums = [
            [wmma.new_sums(ptx) for _ in range(schedule.accumulators)] for _ in range(schedule.tiles)
        ]
        self.walk_all()
        self._store(firsts, starts)
        ptx.op("ret")

    def sum_units(self, first: R32, count: R32, stride: int) -> None:
        unroll = self.schedule.unroll
        strided_in_registers(self.ptx, first, count, stride, unroll, self._load, self._accumulate)

    def _load(self, unit: R32, exists: Pred | None) -> tuple[R32, Pred | None, list[list[list[R32]]]]:
        """Fragments of the unit's slices that lie in the row. The last slice stands in for one that does
        not."""
        ptx = self.ptx
        start = ptx.r("mad.lo.u32", unit, UNIT, self.base)
        last = ptx.r("sub.u32", self.n_in, SLICE)
        slices = []
        for i in range(UNIT // SLICE):
            k = ptx.r("min.u32", ptx.r("add.u32", start, SLICE * i), last)
            slices.append(
                [
                    wmma.load_rows(ptx, self.shape, at(ptx.rd("mad.wide.u32", k, 2, row)), self.n_in)
                    for row in self.rows
                ]
            )
        return unit, exists, slices

    def _accumulate(self, held: tuple[R32, Pred | None, list[list[list[R32]]]]) -> None:
        ptx, schedule = self.ptx, self.schedule
        unit, exists, slices = held
        start = ptx.r("mad.lo.u32", unit, UNIT, self.base)
        address = ptx.r("mad.lo.u32", unit, 2 * UNIT, self.x_shared)
        skip = ptx.new_label("slices_done")
        for i, rows in enumerate(slices):
            k = ptx.r("add.u32", start, SLICE * i)
            inside = ptx.p("setp.ge.u32", k, self.n_in)
            if exists is not None:
                inside = ptx.p("setp.ge.or.u32", k, self.n_in, ptx.p("not.pred", exists))
            ptx.op("bra.uni", skip, guard=inside)
            x = wmma.load_vector(ptx, self.shape, at(address, 2 * SLICE * i))
            for tile, fragment in enumerate(rows):
                sums = self.sums[tile][i % schedule.accumulators]
                wmma.multiply_add(ptx, self.shape, sums, fragment, x)
        ptx.place(skip)

    def _store(self, firsts: list[R32], starts: list[R32]) -> None:
        """Results through shared memory; lane i takes row i of a tile."""
        ptx, schedule = self.ptx, self.schedule
        ptx.phase("sum the accumulators; column 0 holds every row's sum")
        nbytes = self.shape.result_bytes
        base = ptx.r("add.u32", ptx.shared_base(), self.result)
        warp = ptx.r("shr.u32", self.standing.thread, 5)
        mine = ptx.r("mad.lo.u32", warp, schedule.tiles * nbytes, base)
        for tile, accumulators in enumerate(self.sums):
            total = accumulators[0]
            for other in accumulators[1:]:
                total = [ptx.f("add.rn.f32", a, b) for a, b in zip(total, other, strict=True)]
            wmma.store_sums(ptx, self.shape, at(mine, tile * nbytes), total)
        ptx.op("bar.sync", 0)
        row = ptx.r("min.u32", self.standing.lane, self.shape.rows - 1)
        column = ptx.r("mad.lo.u32", row, 4 * self.shape.columns, mine)
        sums = []
        for tile, (first, start) in enumerate(zip(firsts, starts, strict=True)):
            value = ptx.f("ld.shared.f32", at(column, tile * nbytes))
            found = ptx.r("add.u32", start, row)
            mapped = ptx.p("setp.lt.u32", self.standing.lane, self.shape.rows)
            own = ptx.p("setp.ge.and.u32", found, first, mapped)
            offset = ptx.r("sub.u32", found, self.standing.first_row)
            sums.append(RowSum(offset, value, own))
        store_warp_sums(ptx, self.walk, self.standing, sums, self.exchange)


WMMA_GEMV = Kernel(
    spec=SPEC,
    schedule_type=WmmaGemvSchedule,
    emit=emit,
    inputs=inputs,
    reference=reference,
    edge_problems=edge_problems,
    demand=demand,
    usual_problems=block_gemv_problems(SPEC),
    baseline=WmmaGemvSchedule(
        instruction="wmma_m16n16k16",
        tiles=1,
        warps=4,
        warps_per_row=4,
        splits=1,
        load_bytes=4,
        x_chunk=1024,
        unroll=1,
        stages=1,
        accumulators=1,
    ),
    tensor=TensorOperand("F16", "A", finite_halves),
)
