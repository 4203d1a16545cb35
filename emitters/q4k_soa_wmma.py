"""`q4k_soa_wmma`: y = deq(W) @ x on tensor cores, for rows of 160-byte SoA blocks; weights and x rounded to
f16.

A unit is one block of 256 weights; a warp takes it for 16 rows a tile. Lane 4g + t holds, of rows g and g +
8, the
64 weights from 64t on: 32 bytes of nibbles that become fragments of A without leaving their lane. A word of
eight nibbles gives pairs (0,4) (1,5) (2,6) (3,7), and x is paired alike. x is rounded once a warp from global
memory, or once a block into shared memory, a chunk at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from emitters.block_gemv import block_gemv_demand, block_gemv_problems, emit_walk
from emitters.fragments.loads import load_floats, load_words
from emitters.fragments.strided import strided_in_registers, strided_through_ring
from emitters.fragments.tensor import multiply_add, new_accumulator
from emitters.gemv import RowSum, readable_rows, row_pointers, stand, store_warp_sums
from emitters.kernel import EmitError, EmittedKernel, Kernel, TensorOperand
from emitters.ptx import R32, R64, Entry, Pred, SharedLayout, at, vector
from emitters.q4k_soa_schedule import (
    LANE_BYTES,
    LANE_WEIGHTS,
    SPEC,
    X_BLOCK_BYTES,
    X_LANE_BYTES,
    Q4KSoaSchedule,
    edge_problems,
    inputs,
    reference,
)
from emitters.quants import BLOCK, SOA_BYTES, q4_k_to_soa
from emitters.target import Target

DSUB, MSUB = 128, 144  # byte offsets in a block; nibbles are at 0
ONES = "0x000F000F"
SIXTEENS = "0x00F000F0"
MAGIC = "0x64006400"  # 1024 twice, in whose f16 one unit is one bit


def emit(schedule: Q4KSoaSchedule, target: Target) -> EmittedKernel:
    """Text and plan of one schedule.

    Raises:
        EmitError: The text cannot express the schedule.
    """
    if schedule.stages > 1 and schedule.unroll > 1:
        raise EmitError(f"unroll must be 1 where stages copy ahead, got {schedule.unroll}")
    if schedule.x_chunk % BLOCK:
        raise EmitError(f"x_chunk must be a multiple of {BLOCK}, got {schedule.x_chunk}")
    return emit_walk(
        SPEC, schedule, schedule.walk, schedule.shared_bytes, target, lambda ptx: _Body(ptx, schedule).write()
    )


@dataclass(frozen=True)
class _Unit:
    """What a lane holds of one block: for each of its rows the nibbles, two dsub and two msub.

    `place` is the block's number, in the row or in the chunk of x.
    """

    place: R32
    nibbles: list[list[R32]]
    dsub: list[R32]
    msub: list[R32]


class _Body:
    """The main entry."""

    def __init__(self, ptx: Entry, schedule: Q4KSoaSchedule) -> None:
        self.ptx = ptx
        self.schedule = schedule
        self.walk = schedule.walk
        layout = SharedLayout()
        self.ring = layout.take(schedule.stages * schedule.slot_bytes if schedule.stages > 1 else 0)
        self.x_at = layout.take(schedule.x_bytes)
        self.exchange = layout.take(self.walk.exchange_bytes)

    def write(self) -> None:
        ptx, schedule = self.ptx, self.schedule
        ptx.phase("who am I", "lane 4g + t: rows g and g + 8 of each tile, weights 64t.. of each block")
        self.standing = stand(ptx, self.walk, ptx.size("n_out"))
        self.blocks = ptx.r("shr.u32", ptx.size("n_in"), 8)
        g = ptx.r("shr.u32", self.standing.lane, 2)
        t = ptx.r("and.b32", self.standing.lane, 3)
        self.t = t
        self.t_nibbles = ptx.rd("mul.wide.u32", t, LANE_BYTES)
        self.t_scales = ptx.rd("mul.wide.u32", t, 4)
        offsets = [ptx.r("add.u32", g, 8 * half) for half in range(2 * schedule.tiles)]
        rows = readable_rows(ptx, self.standing, offsets)
        row_bytes = ptx.r("mul.lo.u32", self.blocks, SOA_BYTES)
        self.rows = row_pointers(ptx, ptx.pointer("W"), rows, row_bytes)
        self.x = ptx.pointer("x")
        self.sums = [
            [new_accumulator(ptx) for _ in range(schedule.accumulators)] for _ in range(schedule.tiles)
        ]
        self.thousand = ptx.r("mov.b32", MAGIC)
        self.sixteenth = ptx.r("mov.b32", "0x2C002C00")
        self.minus_64 = ptx.r("mov.b32", "0xD400D400")
        if schedule.stages > 1:
            ring = ptx.r("add.u32", ptx.shared_base(), self.ring)
            self.my_nibbles = ptx.r("mad.lo.u32", self.standing.thread, 16, ring)
            small = ptx.r("mad.lo.u32", self.standing.thread, 4, ring)
            self.my_scales = ptx.r("add.u32", small, self.walk.threads * 2 * schedule.tiles * LANE_BYTES)
        if schedule.x_chunk:
            self._by_chunks()
        else:
            self.base_block = ptx.r("mov.u32", 0)
            self.lane_x = ptx.rd("mad.wide.u32", t, 4 * LANE_WEIGHTS, self.x)
            self._sum_blocks(self.standing.walker, self.blocks, self.walk.walkers)
        self._store(offsets)
        ptx.op("ret")

    def _sum_blocks(self, first: R32, count: R32, stride: int) -> None:
        """Sum the blocks first, first + stride, ... below count, counted from `base_block`."""
        ptx, schedule = self.ptx, self.schedule
        if schedule.stages == 1:
            strided_in_registers(ptx, first, count, stride, schedule.unroll, self._load, self._accumulate)
        else:
            strided_through_ring(
                ptx, first, count, stride, schedule.stages, schedule.slot_bytes, self._copy, self._use_slot
            )

    # --- x, rounded to f16 ---

    def _by_chunks(self) -> None:
        """Blocks chunk by chunk: round the chunk's x into shared memory, then sum its blocks."""
        ptx, schedule, walk = self.ptx, self.schedule, self.walk
        size = schedule.x_chunk // BLOCK
        self.x_shared = ptx.r("add.u32", ptx.shared_base(), self.x_at)
        self.lane_x_shared = ptx.r("mad.lo.u32", self.t, X_LANE_BYTES, self.x_shared)
        turn = ptx.r("rem.u32", self.standing.walker, walk.warps_per_row)
        split = ptx.r("mov.u32", "%ctaid.y")
        start = ptx.r("mul.lo.u32", split, size)
        self.base_block = start
        loop, done = ptx.new_label("chunk"), ptx.new_label("chunks_done")
        ptx.op("bra.uni", done, guard=ptx.p("setp.ge.u32", start, self.blocks))
        ptx.place(loop)
        count = ptx.r("min.u32", ptx.r("sub.u32", self.blocks, start), size)
        ptx.op("bar.sync", 0)
        self._round_chunk(start, count)
        ptx.op("bar.sync", 0)
        self._sum_blocks(turn, count, walk.warps_per_row)
        ptx.op("add.u32", start, start, size * walk.splits)
        ptx.op("bra.uni", loop, guard=ptx.p("setp.lt.u32", start, self.blocks))
        ptx.place(done)

    def _round_chunk(self, start: R32, count: R32) -> None:
        """Thread by thread an octet of x: (0,4) (1,5) (2,6) (3,7) as f16 pairs, 16 bytes."""
        ptx, walk = self.ptx, self.walk
        ptx.phase("round this chunk of x to f16")
        octets = ptx.r("shl.b32", count, 5)
        octet = ptx.r("mov.u32", self.standing.thread)
        source = ptx.rd("mad.wide.u32", start, 4 * BLOCK, self.x)
        loop, done = ptx.new_label("octet"), ptx.new_label("octets_done")
        ptx.branch(done, guard=ptx.p("setp.ge.u32", octet, octets))
        ptx.place(loop)
        pairs = self._octet(ptx.rd("mad.wide.u32", octet, 32, source), 0)
        lane = ptx.r("shr.u32", octet, 3)
        row = ptx.r("mad.lo.u32", lane, X_LANE_BYTES, self.x_shared)
        to = ptx.r("mad.lo.u32", ptx.r("and.b32", octet, 7), 16, row)
        ptx.op("st.shared.v4.u32", at(to), vector(pairs))
        ptx.op("add.u32", octet, octet, walk.threads)
        ptx.branch(loop, guard=ptx.p("setp.lt.u32", octet, octets))
        ptx.place(done)

    def _octet(self, address: R64, offset: int) -> list[R32]:
        """Eight x from global memory as four pairs."""
        ptx = self.ptx
        low = load_floats(ptx, "ld.global.nc", at(address, offset), 4)
        high = load_floats(ptx, "ld.global.nc", at(address, offset + 16), 4)
        return [ptx.r("cvt.rn.f16x2.f32", b, a) for a, b in zip(low, high, strict=True)]

    def _x_octets(self, place: R32) -> Iterator[list[R32]]:
        """This lane's eight octets of x of a block, one after the other."""
        ptx = self.ptx
        if self.schedule.x_chunk:
            base = ptx.r("mad.lo.u32", place, X_BLOCK_BYTES, self.lane_x_shared)
            for octet in range(LANE_WEIGHTS // 8):
                yield load_words(ptx, "ld.shared", at(base, 16 * octet), 16)
        else:
            address = ptx.rd("mad.wide.u32", place, 4 * BLOCK, self.lane_x)
            for octet in range(LANE_WEIGHTS // 8):
                yield self._octet(address, 32 * octet)

    # --- weights ---

    def _addresses(self, unit: R32, row: R64) -> tuple[R64, R64]:
        """Where this lane's nibbles and steps of a block of a row begin."""
        ptx = self.ptx
        block = ptx.rd("mad.wide.u32", ptx.r("add.u32", self.base_block, unit), SOA_BYTES, row)
        return ptx.rd("add.u64", block, self.t_nibbles), ptx.rd("add.u64", block, self.t_scales)

    def _load(self, unit: R32, exists: Pred | None) -> _Unit:
        """Load a block's share of every row. Where the block does not exist its steps and offsets become
        0."""
        ptx = self.ptx
        nibbles, dsub, msub = [], [], []
        for row in self.rows:
            mine, scales = self._addresses(unit, row)
            nibbles.append(
                [word for half in (0, 16) for word in load_words(ptx, "ld.global.nc", at(mine, half), 16)]
            )
            steps = [ptx.r("ld.global.nc.u32", at(scales, offset)) for offset in (DSUB, MSUB)]
            if exists is not None:
                steps = [ptx.r("selp.b32", step, 0, exists) for step in steps]
            dsub.append(steps[0])
            msub.append(steps[1])
        return _Unit(unit, nibbles, dsub, msub)

    def _slots(self, offset: R32, r: int) -> list[tuple[str, int]]:
        """Address and size of a row's pieces in the slot at an offset: nibbles twice, dsub, msub."""
        ptx, threads, rows = self.ptx, self.walk.threads, len(self.rows)
        nibbles = ptx.r("add.u32", self.my_nibbles, offset)
        scales = ptx.r("add.u32", self.my_scales, offset)
        return [
            (at(nibbles, 16 * threads * (2 * r)), 16),
            (at(nibbles, 16 * threads * (2 * r + 1)), 16),
            (at(scales, 4 * threads * r), 4),
            (at(scales, 4 * threads * (rows + r)), 4),
        ]

    def _copy(self, unit: R32, offset: R32, exists: Pred) -> None:
        ptx = self.ptx
        for r, row in enumerate(self.rows):
            mine, scales = self._addresses(unit, row)
            sources = (at(mine), at(mine, 16), at(scales, DSUB), at(scales, MSUB))
            for (to, nbytes), source in zip(self._slots(offset, r), sources, strict=True):
                cache = "cg" if nbytes == 16 else "ca"
                ptx.op(f"cp.async.{cache}.shared.global", to, source, nbytes, guard=exists)

    def _use_slot(self, unit: R32, offset: R32, wait: Callable[[], None]) -> None:
        ptx = self.ptx
        wait()
        nibbles, dsub, msub = [], [], []
        for r in range(len(self.rows)):
            pieces = [load_words(ptx, "ld.shared", *slot) for slot in self._slots(offset, r)]
            nibbles.append(pieces[0] + pieces[1])
            dsub += pieces[2]
            msub += pieces[3]
        self._accumulate(_Unit(unit, nibbles, dsub, msub))

    # --- arithmetic ---

    def _accumulate(self, unit: _Unit) -> None:
        ptx, schedule = self.ptx, self.schedule
        for octet, x in enumerate(self._x_octets(unit.place)):
            group = octet // 4
            if octet % 4 == 0:
                ptx.comment(f"weights {32 * group} to {32 * group + 31} of each lane's 64")
                steps = [self._both(word, group) for word in unit.dsub]
                offsets = [ptx.r("xor.b32", self._both(word, group), "0x80008000") for word in unit.msub]
            for tile in range(schedule.tiles):
                upper, lower = (
                    self._weights(unit.nibbles[row][octet], steps[row], offsets[row])
                    for row in (2 * tile, 2 * tile + 1)
                )
                for i in (0, 2):
                    number = 2 * octet + i // 2
                    sums = self.sums[tile][number % schedule.accumulators]
                    multiply_add(
                        ptx, sums, (upper[i], lower[i], upper[i + 1], lower[i + 1]), (x[i], x[i + 1])
                    )

    def _both(self, word: R32, group: int) -> R32:
        """One half of a word, twice."""
        return self.ptx.r("prmt.b32", word, 0, "0x3232" if group else "0x1010")

    def _weights(self, word: R32, step: R32, minus_offset: R32) -> list[R32]:
        """Eight nibbles as four f16 pairs (0,4) (1,5) (2,6) (3,7), scaled.

        A nibble among the low bits of 1024 is 1024 + q, and one four bits higher 1024 + 16q: both become q
        exactly.
        """
        ptx = self.ptx
        codes = []
        for shifted in (word, ptx.r("shr.u32", word, 8)):
            ones = ptx.lop3(0xEA, shifted, ONES, MAGIC)
            codes.append(ptx.r("sub.rn.f16x2", ones, self.thousand))
            sixteens = ptx.lop3(0xEA, shifted, SIXTEENS, MAGIC)
            codes.append(ptx.r("fma.rn.f16x2", sixteens, self.sixteenth, self.minus_64))
        return [ptx.r("fma.rn.f16x2", code, step, minus_offset) for code in codes]

    def _store(self, offsets: list[R32]) -> None:
        ptx = self.ptx
        ptx.phase("sum the accumulators; column 0 holds every row's sum")
        leader = ptx.p("setp.eq.u32", self.t, 0)
        rows = []
        for tile, accumulators in enumerate(self.sums):
            for half in range(2):
                total = accumulators[0][2 * half]
                for other in accumulators[1:]:
                    total = ptx.f("add.rn.f32", total, other[2 * half])
                rows.append(RowSum(offsets[2 * tile + half], total, leader))
        store_warp_sums(ptx, self.walk, self.standing, rows, self.exchange)


Q4K_SOA_WMMA = Kernel(
    spec=SPEC,
    schedule_type=Q4KSoaSchedule,
    emit=emit,
    inputs=inputs,
    reference=reference,
    edge_problems=edge_problems,
    demand=block_gemv_demand(SOA_BYTES, "mma_f16"),
    usual_problems=block_gemv_problems(SPEC),
    baseline=Q4KSoaSchedule(
        tiles=1, warps=4, warps_per_row=4, splits=1, x_chunk=0, unroll=1, stages=1, accumulators=1
    ),
    tensor=TensorOperand("Q4_K", "W", q4_k_to_soa),
)
