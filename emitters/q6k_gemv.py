"""`q6k_soa_gemv`: y = deq(W) @ x for rows of ggml Q6_K blocks, on FP32 lanes.

A unit is one block of 256 weights, 210 bytes, so every second block starts 2 bytes off a word. `64 / quad`
lanes share
it: each takes `quad` bytes of ql, the `quad` bytes 32 further on and `quad` bytes of qh, which are `quad`
    weights in each of four groups of 16. Bytes come as halfwords, or as the aligned words around them,
    shifted into place; words stay inside the row. Words can also come through a ring in shared memory,
    where a lane reads what it copied itself.
"""

from collections.abc import Callable
from dataclasses import dataclass

from emitters.block_gemv import block_gemv_demand, block_gemv_problems, emit_walk
from emitters.fragments.loads import dot, load_floats
from emitters.fragments.nibbles import Converter, bytes_to_f32
from emitters.fragments.opening import f32
from emitters.fragments.strided import strided_in_registers, strided_through_ring
from emitters.fragments.windows import (
    Alignment,
    alignment_of,
    copy_halfword,
    load_by_halfwords,
    load_by_window,
    load_halfword,
    shifted,
    window_words,
)
from emitters.gemv import readable_rows, row_pointers, stand, store_lane_sums
from emitters.kernel import EmitError, EmittedKernel, Kernel, TensorOperand
from emitters.ptx import F32, R32, R64, Entry, Pred, SharedLayout, at, negated, vector
from emitters.q6k_gemv_schedule import SPEC, Q6KGemvSchedule, edge_problems, inputs, reference
from emitters.quants import BLOCK, Q6_K_BYTES, finite_q6_k
from emitters.target import Target

QH, SCALES, D = 128, 192, 208  # byte offsets in a block; ql is at 0


def emit(schedule: Q6KGemvSchedule, target: Target) -> EmittedKernel:
    """Text and plan of one schedule.

    Raises:
        EmitError: The text cannot express the schedule.
    """
    if schedule.load == "window" and schedule.quad < 4:
        raise EmitError(f"quad must be at least 4 for loads by window, got {schedule.quad}")
    if schedule.stages > 1 and (schedule.unroll > 1 or schedule.load != "window"):
        raise EmitError(
            f"stages must be 1 unless unroll is 1 and load is window, got {schedule.stages} with unroll "
            f"{schedule.unroll} and load {schedule.load}"
        )
    return emit_walk(
        SPEC, schedule, schedule.walk, schedule.shared_bytes, target, lambda ptx: _Body(ptx, schedule).write()
    )


@dataclass(frozen=True)
class _Share:
    """A lane's bytes of one block of one row, in place.

    Attributes:
        low, high, upper: quad bytes of ql, of ql 32 further on, and of qh.
        scales: 8 scales of this half of the block, two words.
        d: The half, in the low bits of a word.
    """

    low: list[R32]
    high: list[R32]
    upper: list[R32]
    scales: list[R32]
    d: R32


class _Body:
    """The main entry."""

    def __init__(self, ptx: Entry, schedule: Q6KGemvSchedule) -> None:
        self.ptx = ptx
        self.schedule = schedule
        self.walk = schedule.walk
        self.convert = Converter(schedule.convert)
        layout = SharedLayout()
        self.ring = layout.take(schedule.stages * schedule.slot_bytes if schedule.stages > 1 else 0)
        self.exchange = layout.take(self.walk.exchange_bytes)

    def write(self) -> None:
        ptx, schedule = self.ptx, self.schedule
        ptx.phase("who am I", "a lane's share of a block: one half, and some of its 32 byte columns")
        self.standing = stand(ptx, self.walk, ptx.size("n_out"))
        self.blocks = ptx.r("shr.u32", ptx.size("n_in"), 8)
        part = ptx.r("rem.u32", self.standing.lane, schedule.lanes)
        side = ptx.r("div.u32", self.standing.lane, schedule.lanes)
        first = ptx.r("mad.lo.u32", self.standing.walker, self.walk.units_per_step, side)
        self.half = ptx.r("div.u32", part, schedule.lanes // 2)
        column = ptx.r("mul.lo.u32", ptx.r("rem.u32", part, schedule.lanes // 2), schedule.quad)
        self.ql = ptx.rd("cvt.u64.u32", ptx.r("mad.lo.u32", self.half, 64, column))
        self.qh = ptx.rd("cvt.u64.u32", ptx.r("mad.lo.u32", self.half, 32, column))
        self.scale = ptx.rd("mul.wide.u32", self.half, 8)
        self.scale_bit = ptx.r("shl.b32", ptx.r("shr.u32", column, 4), 3)
        self.is_first = ptx.p("setp.eq.u32", part, 0)
        row_bytes = ptx.r("mul.lo.u32", self.blocks, Q6_K_BYTES)
        rows = readable_rows(ptx, self.standing, range(schedule.rows_per_warp))
        self.rows = row_pointers(ptx, ptx.pointer("W"), rows, row_bytes)
        weight = ptx.r("mad.lo.u32", self.half, 128, column)
        self.x = ptx.rd("mad.wide.u32", weight, 4, ptx.pointer("x"))
        self.sums = [ptx.f("mov.f32", f32(0.0)) for _ in self.rows]
        stride = self.walk.walkers
        if schedule.stages == 1:
            strided_in_registers(
                ptx, first, self.blocks, stride, schedule.unroll, self._load, self._accumulate
            )
        else:
            ring = ptx.r("add.u32", ptx.shared_base(), self.ring)
            self.mine = ptx.r("mad.lo.u32", self.standing.thread, 4, ring)
            strided_through_ring(
                ptx,
                first,
                self.blocks,
                stride,
                schedule.stages,
                schedule.slot_bytes,
                self._copy,
                self._use_slot,
            )
        store_lane_sums(ptx, self.walk, self.standing, self.sums, self.exchange)
        ptx.op("ret")

    # --- loads ---

    def _load(self, unit: R32, exists: Pred | None) -> tuple[list[_Share], list[list[F32]]]:
        """Load a block's share of every row. Where the block does not exist its d becomes 0."""
        ptx, quad = self.ptx, self.schedule.quad
        shares = []
        for row in self.rows:
            block = ptx.rd("mad.wide.u32", unit, Q6_K_BYTES, row)
            ql, qh, scale = self._places(block)
            d = ptx.r("cvt.u32.u16", load_halfword(ptx, block, D))
            if exists is not None:
                d = ptx.r("selp.b32", d, 0, exists)
            places = ((ql, 0, quad), (ql, 32, quad), (qh, QH, quad), (scale, SCALES, 8))
            if self.schedule.load == "halfword":
                parts = [load_by_halfwords(ptx, *place) for place in places]
            else:
                lies = alignment_of(ptx, block)
                sharp = self._at_row_start(unit, lies)
                parts = [
                    load_by_window(ptx, *place, lies, sharp if i == 0 else None)
                    for i, place in enumerate(places)
                ]
            low, high, upper, scales = parts
            share = _Share(low, high, upper, scales, d)
            shares.append(share)
        return shares, self._load_x(unit)

    def _places(self, block: R64) -> tuple[R64, R64, R64]:
        """Where this lane's ql, qh and scales begin, before their constant offsets."""
        ql, qh, scale = (self.ptx.rd("add.u64", block, offset) for offset in (self.ql, self.qh, self.scale))
        return ql, qh, scale

    def _at_row_start(self, unit: R32, lies: Alignment) -> Pred:
        """Whether the word around this lane's first bytes of ql would begin before the row."""
        ptx = self.ptx
        in_first = ptx.p("setp.eq.and.u32", unit, 0, self.is_first)
        return ptx.p("and.pred", in_first, lies.odd)

    def _load_x(self, unit: R32) -> list[list[F32]]:
        """This lane's x of a block, one list a group."""
        ptx, quad = self.ptx, self.schedule.quad
        address = ptx.rd("mad.wide.u32", unit, 4 * BLOCK, self.x)
        wide = min(quad, 4)
        return [
            [
                value
                for start in range(0, quad, wide)
                for value in load_floats(ptx, "ld.global.nc", at(address, 4 * (32 * group + start)), wide)
            ]
            for group in range(4)
        ]

    # --- the ring: for each row, word i of every thread, then word i + 1 of every thread ---

    def _copy(self, unit: R32, offset: R32, exists: Pred) -> None:
        ptx, quad = self.ptx, self.schedule.quad
        base = ptx.r("add.u32", self.mine, offset)
        last = ptx.r("sub.u32", self.blocks, 1)
        for r, row in enumerate(self.rows):
            block = ptx.rd("mad.wide.u32", unit, Q6_K_BYTES, row)
            lies = alignment_of(ptx, block)
            ql, qh, scale = self._places(block)
            reaches = ptx.p("and.pred", lies.odd, exists)
            at_row = ptx.p("and.pred", self._at_row_start(unit, lies), exists)
            before = ptx.p("and.pred", exists, ptx.p("not.pred", at_row))
            word = 0
            for address, byte, nbytes in ((ql, 0, quad), (ql, 32, quad), (qh, QH, quad), (scale, SCALES, 8)):
                start = ptx.rd("and.b64", address, -4)
                for i in range(nbytes // 4 + 1):
                    guard = reaches if i == nbytes // 4 else before if word == 0 else exists
                    to = self._slot_word(base, r, word)
                    ptx.op("cp.async.ca.shared.global", to, at(start, byte + 4 * i), 4, guard=guard)
                    word += 1
            copy_halfword(ptx, self._slot_word(base, r, 0, 2), at(ql), at_row)
            # The word with d: it ends at the block's end where the block is odd, and 2 bytes past it
            # otherwise.
            inside = ptx.p("setp.lt.or.u32", unit, last, lies.odd)
            whole = ptx.p("and.pred", exists, inside)
            alone = ptx.p("and.pred", exists, ptx.p("not.pred", inside))
            d = ptx.rd("and.b64", ptx.rd("add.u64", block, D), -4)
            ptx.op("cp.async.ca.shared.global", self._slot_word(base, r, word), at(d), 4, guard=whole)
            copy_halfword(ptx, self._slot_word(base, r, word), at(block, D), alone)

    def _slot_word(self, base: R32, r: int, word: int, byte: int = 0) -> str:
        index = r * self.schedule.window_words + word
        return at(base, 4 * index * self.walk.threads + byte)

    def _use_slot(self, unit: R32, offset: R32, wait: Callable[[], None]) -> None:
        ptx, quad = self.ptx, self.schedule.quad
        x = self._load_x(unit)
        wait()
        base = ptx.r("add.u32", self.mine, offset)
        shares = []
        for r, row in enumerate(self.rows):
            lies = alignment_of(ptx, ptx.rd("mad.wide.u32", unit, Q6_K_BYTES, row))
            windows, word = [], 0
            for nbytes in (quad, quad, quad, 8):
                words = ptx.new_rs(window_words(nbytes))
                for i, register in enumerate(words):
                    place = self._slot_word(base, r, word)
                    if word == 0:
                        self._read_first(register, place, self._slot_word(base, r, 0, 2), unit, lies)
                    elif i < nbytes // 4:
                        ptx.op("ld.shared.u32", register, place)
                    else:
                        ptx.op("mov.b32", register, 0)
                        ptx.op("ld.shared.u32", register, place, guard=lies.odd)
                    word += 1
                windows.append(shifted(ptx, words, lies))
            d_base = ptx.r("add.u32", base, ptx.r("shr.u32", lies.shift, 3))
            d = ptx.r("cvt.u32.u16", ptx.h("ld.shared.u16", self._slot_word(d_base, r, word)))
            low, high, upper, scales = windows
            shares.append(_Share(low, high, upper, scales, d))
        self._accumulate((shares, x))

    def _read_first(self, word: R32, lower: str, upper: str, unit: R32, lies: Alignment) -> None:
        """The first word of a window; at the start of an odd row only its upper half was copied."""
        ptx = self.ptx
        whole = negated(self._at_row_start(unit, lies))
        low = ptx.h("mov.b16", 0)
        ptx.op("ld.shared.u16", low, lower, guard=whole)
        high = ptx.h("ld.shared.u16", upper)
        ptx.op("mov.b32", word, vector((low, high)))

    # --- arithmetic ---

    def _accumulate(self, held: tuple[list[_Share], list[list[F32]]]) -> None:
        ptx = self.ptx
        shares, x = held
        for r, share in enumerate(shares):
            scales = self._scales(share)
            partial = []
            for group in range(4):
                values = [
                    value
                    for word in range(len(share.low))
                    for value in bytes_to_f32(
                        ptx,
                        self._codes(share, group, word),
                        self.convert,
                        min(4, self.schedule.quad),
                        less=32,
                    )
                ]
                if self.schedule.dequant == "weight":
                    values = [ptx.f("mul.rn.f32", value, scales[group]) for value in values]
                partial.append(dot(ptx, values, x[group]))
            if self.schedule.dequant == "weight":
                early = ptx.f("add.rn.f32", partial[0], partial[1])
                late = ptx.f("add.rn.f32", partial[2], partial[3])
                joined = ptx.f("add.rn.f32", early, late)
            else:
                joined = dot(ptx, partial, scales)
            ptx.op("add.rn.f32", self.sums[r], self.sums[r], joined)

    def _codes(self, share: _Share, group: int, word: int) -> R32:
        """Four 6-bit codes of a group, a byte each: a nibble of ql, and two bits of qh above it."""
        ptx = self.ptx
        nibbles = (share.low, share.high)[group % 2][word]
        if group >= 2:
            nibbles = ptx.r("shr.u32", nibbles, 4)
        upper = share.upper[word]
        moved = ptx.r("shl.b32", upper, 4 - 2 * group) if group < 2 else upper
        if group == 3:
            moved = ptx.r("shr.u32", upper, 2)
        low = ptx.r("and.b32", nibbles, "0x0F0F0F0F")
        return ptx.lop3(0xEA, moved, "0x30303030", low)

    def _scales(self, share: _Share) -> list[F32]:
        """d*scale of this lane's four groups; the products are exact."""
        ptx = self.ptx
        halves = [ptx.new_h(), ptx.new_h()]
        ptx.op("mov.b32", vector(halves), share.d)
        d = ptx.f("cvt.f32.f16", halves[0])
        scales = []
        for group in range(4):
            bit = ptx.r("add.u32", self.scale_bit, 16 * (group % 2))
            scale = ptx.r("bfe.s32", share.scales[group // 2], bit, 8)
            scales.append(ptx.f("mul.rn.f32", d, ptx.f("cvt.rn.f32.s32", scale)))
        return scales


Q6K_SOA_GEMV = Kernel(
    spec=SPEC,
    schedule_type=Q6KGemvSchedule,
    emit=emit,
    inputs=inputs,
    reference=reference,
    edge_problems=edge_problems,
    demand=block_gemv_demand(Q6_K_BYTES, "fp32"),
    usual_problems=block_gemv_problems(SPEC),
    baseline=Q6KGemvSchedule(
        rows_per_warp=1,
        warps=4,
        warps_per_row=1,
        splits=1,
        quad=4,
        load="halfword",
        unroll=1,
        stages=1,
        dequant="weight",
        convert="cvt",
    ),
    aliases=("q6k_gemv",),
    tensor=TensorOperand("Q6_K", "W", finite_q6_k),
)
