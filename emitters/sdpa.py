"""`sdpa_decode`: attention of one token over a long cache, split over blocks (flash decoding).

`lanes` lanes share a key: each holds some of its elements, and of the queries of `heads` heads that share
the KV head. A group of lanes keeps a running softmax: the largest score so far, the sum of weights and the
weighted sum of values, both relative to it. Groups merge over the warp, then over the block, then over
splits. Exponents are base
2: queries are scaled by scale * log2(e) once.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emitters.fragments.loads import dot, load_floats, store_floats
from emitters.fragments.opening import f32, open_module, parameters
from emitters.fragments.reduction import lane_maxima, lane_sums
from emitters.fragments.strided import strided_in_registers, strided_through_ring
from emitters.kernel import EmitError, EmittedKernel, Kernel, schedule_values
from emitters.ptx import F32, R32, R64, Entry, Pred, SharedLayout, at
from emitters.sdpa_combine import COMBINE, COMBINE_THREADS, emit_combine, merged
from emitters.sdpa_schedule import (
    MOST_D,
    SPEC,
    VECTOR,
    SdpaSchedule,
    demand,
    edge_problems,
    inputs,
    reference,
)
from emitters.target import WARP, Target
from results.plan import KernelStep, LaunchPlan, Step

LOG2_E = math.log2(math.e)
LOWEST = -3.0e38  # the running maximum before the first key; finite, so that no difference is NaN


def emit(schedule: SdpaSchedule, target: Target) -> EmittedKernel:
    """Text and plan of one schedule.

    Raises:
        EmitError: The ring and the merge do not fit the shared memory of a block.
    """
    if schedule.shared_bytes > target.arch.shared_per_block:
        raise EmitError(
            f"shared memory must fit {target.arch.shared_per_block} bytes on {target.arch.name}, "
            f"got {schedule.shared_bytes}; take fewer stages, keys or warps"
        )
    module = open_module(SPEC, schedule, target)
    split = schedule.splits > 1
    operands = tuple(buffer.name for buffer in SPEC.buffers)
    arguments = (*operands, *(("workspace",) if split else ()), *SPEC.sizes, *SPEC.scalars)
    blocks = f"n_kv_head * ceil_div(n_head // n_kv_head, {schedule.heads})"
    grid = (str(schedule.splits), blocks, "1")
    block = (schedule.threads, 1, 1)
    steps: list[Step] = [KernelStep(SPEC.id, grid, block, schedule.shared_bytes, arguments)]
    _Body(module.entry(SPEC.id, parameters(SPEC, arguments), schedule.threads), schedule).write()
    if split:
        combined = ("out", "workspace", "n_head", "d")
        steps.append(KernelStep(COMBINE, ("n_head", "1", "1"), (COMBINE_THREADS, 1, 1), 0, combined))
        emit_combine(module, schedule.splits, combined)
    workspace = f"{4 * schedule.splits} * n_head * (d + 2)" if split else "0"
    plan = LaunchPlan(tuple(steps), workspace)
    return EmittedKernel(SPEC.id, target.arch.name, schedule_values(schedule), module.text(), plan)


@dataclass(frozen=True)
class _Turn:
    """What a lane holds of one turn: for each key whether it exists, and its elements of key and value."""

    exists: list[Pred]
    keys: list[list[F32]]
    values: list[list[F32]]


class _Body:
    """The main entry."""

    def __init__(self, ptx: Entry, schedule: SdpaSchedule) -> None:
        self.ptx = ptx
        self.schedule = schedule
        layout = SharedLayout()
        self.ring = layout.take(schedule.stages * schedule.slot_bytes if schedule.stages > 1 else 0)
        self.merge = layout.take(schedule.merge_bytes)

    def write(self) -> None:
        ptx, schedule = self.ptx, self.schedule
        ptx.phase("who am I", "block: a share of the cache, a KV head, some of its query heads; lanes: a key")
        self.d, self.n_head = ptx.size("d"), ptx.size("n_head")
        n_kv = ptx.size("n_kv_head")
        self.thread = ptx.r("mov.u32", "%tid.x")
        lane = ptx.r("and.b32", self.thread, WARP - 1)
        self.warp = ptx.r("shr.u32", self.thread, 5)
        self.in_group = ptx.r("and.b32", lane, schedule.lanes - 1)
        self.side = ptx.r("div.u32", lane, schedule.lanes)
        per_kv = ptx.r("div.u32", self.n_head, n_kv)
        shares = ptx.r("div.u32", ptx.r("add.u32", per_kv, schedule.heads - 1), schedule.heads)
        block = ptx.r("mov.u32", "%ctaid.y")
        kv_head = ptx.r("div.u32", block, shares)
        share = ptx.r("rem.u32", block, shares)
        first = ptx.r("mul.lo.u32", share, schedule.heads)
        self.first_head = ptx.r("mad.lo.u32", kv_head, per_kv, first)
        self.end_head = ptx.r("mad.lo.u32", kv_head, per_kv, per_kv)
        self.split = ptx.r("mov.u32", "%ctaid.x")
        self._share_of_cache()
        elements = [ptx.r("shl.b32", self.in_group, 2)]
        for i in range(1, schedule.vectors):
            elements.append(ptx.r("add.u32", elements[0], i * VECTOR * schedule.lanes))
        self.has_element = [ptx.p("setp.lt.u32", element, self.d) for element in elements]
        self.row_bytes = ptx.r("shl.b32", ptx.r("mul.lo.u32", n_kv, self.d), 2)
        head_start = ptx.r("mad.lo.u32", kv_head, self.d, elements[0])
        self.k, self.v = (ptx.rd("mad.wide.u32", head_start, 4, ptx.pointer(name)) for name in ("K", "V"))
        self._load_queries(elements)
        self.maximum = [ptx.f("mov.f32", f32(LOWEST)) for _ in range(schedule.heads)]
        self.weight = [ptx.f("mov.f32", f32(0.0)) for _ in range(schedule.heads)]
        width = schedule.vectors * VECTOR
        self.sums = [[ptx.f("mov.f32", f32(0.0)) for _ in range(width)] for _ in range(schedule.heads)]
        self._walk()
        self._merge_warp()
        self._merge_block(elements)
        ptx.op("ret")

    def _share_of_cache(self) -> None:
        """Keys first_key <= t < end_key of this split, in turns of `keys` a group."""
        ptx, schedule = self.ptx, self.schedule
        pos = ptx.size("pos")
        length = ptx.r("div.u32", ptx.r("add.u32", pos, schedule.splits - 1), schedule.splits)
        start = ptx.r("mul.lo.u32", self.split, length)
        self.first_key = ptx.r("min.u32", start, pos)
        self.end_key = ptx.r("min.u32", ptx.r("add.u32", start, length), pos)
        here = ptx.r("sub.u32", self.end_key, self.first_key)
        self.turns = ptx.r("div.u32", ptx.r("add.u32", here, schedule.keys - 1), schedule.keys)

    def _load_queries(self, elements: Sequence[R32]) -> None:
        """This lane's elements of each head's query, times scale * log2(e); heads past the group repeat its
        last."""
        ptx, schedule = self.ptx, self.schedule
        ptx.phase("queries, scaled to exponents of 2")
        factor = ptx.f("mul.rn.f32", ptx.scalar("scale"), f32(LOG2_E))
        base = ptx.pointer("q")
        last = ptx.r("sub.u32", self.end_head, 1)
        self.queries = []
        for head in range(schedule.heads):
            number = ptx.r("min.u32", ptx.r("add.u32", self.first_head, head), last)
            start = ptx.r("mad.lo.u32", number, self.d, elements[0])
            values = self._elements("ld.global.nc", ptx.rd("mad.wide.u32", start, 4, base), self.has_element)
            self.queries.append([ptx.f("mul.rn.f32", value, factor) for value in values])

    def _elements(self, opcode: str, address: str, guards: Sequence[Pred]) -> list[F32]:
        """This lane's elements of a row from its first one on, zeros where there are none."""
        ptx, values = self.ptx, []
        for i, guard in enumerate(guards):
            four = [ptx.f("mov.f32", f32(0.0)) for _ in range(VECTOR)]
            offset = 4 * VECTOR * self.schedule.lanes * i
            load_floats(ptx, opcode, at(address, offset), VECTOR, guard=guard, into=four)
            values += four
        return values

    # --- the walk over keys; the whole warp takes every turn, since it shuffles ---

    def _walk(self) -> None:
        ptx, schedule = self.ptx, self.schedule
        first = ptx.r("mul.lo.u32", self.warp, WARP // schedule.lanes)
        if schedule.stages == 1:
            strided_in_registers(
                ptx, first, self.turns, schedule.groups, 1, lambda turn, _exists: self._load(turn), self._use
            )
            return
        ring = ptx.r("add.u32", ptx.shared_base(), self.ring)
        self.mine = ptx.r("mad.lo.u32", self.thread, 4 * VECTOR, ring)
        strided_through_ring(
            ptx,
            first,
            self.turns,
            schedule.groups,
            schedule.stages,
            schedule.slot_bytes,
            self._copy,
            self._use_slot,
        )

    def _keys_of(self, turn: R32) -> tuple[list[R32], list[Pred]]:
        """The keys of this group's turn, and which of them exist."""
        ptx, schedule = self.ptx, self.schedule
        mine = ptx.r("add.u32", turn, self.side)
        first = ptx.r("mad.lo.u32", mine, schedule.keys, self.first_key)
        keys = [first, *(ptx.r("add.u32", first, i) for i in range(1, schedule.keys))]
        return keys, [ptx.p("setp.lt.u32", key, self.end_key) for key in keys]

    def _guards(self, exists: Pred) -> list[Pred]:
        return [self.ptx.p("and.pred", has, exists) for has in self.has_element]

    def _load(self, turn: R32) -> _Turn:
        ptx = self.ptx
        keys, exists = self._keys_of(turn)
        loaded: list[list[list[F32]]] = []
        for base in (self.k, self.v):
            rows = [ptx.rd("mad.wide.u32", key, self.row_bytes, base) for key in keys]
            loaded.append(
                [
                    self._elements("ld.global.nc", row, self._guards(one))
                    for row, one in zip(rows, exists, strict=True)
                ]
            )
        return _Turn(exists, loaded[0], loaded[1])

    def _slot(self, base: R32, which: int, key: int, vector: int) -> str:
        schedule = self.schedule
        number = (which * schedule.keys + key) * schedule.vectors + vector
        return at(base, number * schedule.threads * 4 * VECTOR)

    def _copy(self, turn: R32, offset: R32, _exists: Pred) -> None:
        """Copy a turn's keys and values ahead; those that do not exist are left out."""
        ptx, schedule = self.ptx, self.schedule
        base = ptx.r("add.u32", self.mine, offset)
        keys, exists = self._keys_of(turn)
        for which, pointer in enumerate((self.k, self.v)):
            for i, (key, one) in enumerate(zip(keys, exists, strict=True)):
                row = ptx.rd("mad.wide.u32", key, self.row_bytes, pointer)
                for j, guard in enumerate(self._guards(one)):
                    source = at(row, 4 * VECTOR * schedule.lanes * j)
                    to = self._slot(base, which, i, j)
                    ptx.op("cp.async.cg.shared.global", to, source, 4 * VECTOR, guard=guard)

    def _use_slot(self, turn: R32, offset: R32, wait: Callable[[], None]) -> None:
        ptx = self.ptx
        _, exists = self._keys_of(turn)
        wait()
        base = ptx.r("add.u32", self.mine, offset)
        read: list[list[list[F32]]] = []
        for which in range(2):
            rows = []
            for i, one in enumerate(exists):
                values: list[F32] = []
                for j, guard in enumerate(self._guards(one)):
                    four = [ptx.f("mov.f32", f32(0.0)) for _ in range(VECTOR)]
                    where = self._slot(base, which, i, j)
                    values += load_floats(ptx, "ld.shared", where, VECTOR, guard=guard, into=four)
                rows.append(values)
            read.append(rows)
        self._use(_Turn(exists, read[0], read[1]))

    def _use(self, turn: _Turn) -> None:
        """Scores, the new maximum, weights; then correct what was summed and add."""
        ptx, schedule = self.ptx, self.schedule
        partial = [dot(ptx, key, query) for query in self.queries for key in turn.keys]
        scores = lane_sums(ptx, partial, schedule.lanes)
        for head in range(schedule.heads):
            mine = scores[head * schedule.keys : (head + 1) * schedule.keys]
            mine = [
                ptx.f("selp.f32", score, f32(LOWEST), one)
                for score, one in zip(mine, turn.exists, strict=True)
            ]
            largest = self.maximum[head]
            for score in mine:
                largest = ptx.f("max.f32", largest, score)
            correction = self._power(self.maximum[head], largest)
            weights = [
                ptx.f("selp.f32", self._power(score, largest), f32(0.0), exists)
                for score, exists in zip(mine, turn.exists, strict=True)
            ]
            ptx.op("mov.f32", self.maximum[head], largest)
            total = self.weight[head]
            ptx.op("mul.rn.f32", total, total, correction)
            for weight in weights:
                ptx.op("add.rn.f32", total, total, weight)
            for i, one in enumerate(self.sums[head]):
                ptx.op("mul.rn.f32", one, one, correction)
                for weight, value in zip(weights, turn.values, strict=True):
                    ptx.op("fma.rn.f32", one, weight, value[i], one)

    def _power(self, exponent: F32, largest: F32) -> F32:
        """2^(exponent - largest)."""
        return self.ptx.f("ex2.approx.f32", self.ptx.f("sub.rn.f32", exponent, largest))

    # --- merging ---

    def _merge_warp(self) -> None:
        """Every lane ends with the warp's maximum, sum of weights and sums of its own elements."""
        ptx, schedule = self.ptx, self.schedule
        apart, count = schedule.lanes, WARP // schedule.lanes
        if count == 1:
            return
        ptx.phase("merge the groups of a warp")
        largest = lane_maxima(ptx, self.maximum, count, apart)
        for head in range(schedule.heads):
            correction = self._power(self.maximum[head], largest[head])
            scaled = [ptx.f("mul.rn.f32", one, correction) for one in (self.weight[head], *self.sums[head])]
            self.weight[head], *self.sums[head] = lane_sums(ptx, scaled, count, apart)
        self.maximum = largest

    def _merge_block(self, elements: Sequence[R32]) -> None:
        """Warps leave their results in shared memory; then each thread makes some elements of the block's."""
        ptx, schedule = self.ptx, self.schedule
        ptx.phase("merge the warps of the block")
        width = MOST_D + 2
        base = ptx.r("add.u32", ptx.shared_base(), self.merge)
        mine = ptx.r("mad.lo.u32", self.warp, 4 * schedule.heads * width, base)
        first_group = ptx.p("setp.eq.u32", self.side, 0)
        writers = [ptx.p("and.pred", has, first_group) for has in self.has_element]
        leader = ptx.p("setp.eq.and.u32", self.in_group, 0, first_group)
        to = ptx.r("mad.lo.u32", elements[0], 4, mine)
        for head in range(schedule.heads):
            row = 4 * head * width
            for j, guard in enumerate(writers):
                four = self.sums[head][VECTOR * j : VECTOR * (j + 1)]
                # A row is MOST_D + 2 words, so a vector of four is only sure to be 8-byte aligned.
                for pair in range(0, VECTOR, 2):
                    where = at(to, row + 4 * (VECTOR * schedule.lanes * j + pair))
                    store_floats(ptx, "st.shared", where, four[pair : pair + 2], guard=guard)
            ptx.op("st.shared.f32", at(mine, row + 4 * MOST_D), self.maximum[head], guard=leader)
            ptx.op("st.shared.f32", at(mine, row + 4 * MOST_D + 4), self.weight[head], guard=leader)
        ptx.op("bar.sync", 0)
        self._write_block(base)

    def _write_block(self, base: R32) -> None:
        ptx, schedule = self.ptx, self.schedule
        width = MOST_D + 2
        out = ptx.pointer("out" if schedule.splits == 1 else "workspace")
        for first in range(0, schedule.heads * MOST_D, schedule.threads):
            number = ptx.r("add.u32", self.thread, first)
            local_head = ptx.r("div.u32", number, MOST_D)
            element = ptx.r("rem.u32", number, MOST_D)
            head = ptx.r("add.u32", self.first_head, local_head)
            mapped = ptx.p("setp.lt.u32", number, schedule.heads * MOST_D)
            exists = ptx.p("setp.lt.and.u32", head, self.end_head, mapped)
            inside = ptx.p("setp.lt.and.u32", element, self.d, exists)
            done = ptx.new_label("next_elements")
            ptx.branch(done, guard=ptx.p("not.pred", inside))
            row = ptx.r("mad.lo.u32", local_head, 4 * width, base)
            stride = 4 * schedule.heads * width
            maxima = [
                ptx.f("ld.shared.f32", at(row, warp * stride + 4 * MOST_D)) for warp in range(schedule.warps)
            ]
            column = ptx.r("mad.lo.u32", element, 4, row)
            shares = [
                (
                    ptx.f("ld.shared.f32", at(row, warp * stride + 4 * MOST_D + 4)),
                    ptx.f("ld.shared.f32", at(column, warp * stride)),
                )
                for warp in range(schedule.warps)
            ]
            largest, weight, total = merged(ptx, maxima, shares)
            if schedule.splits == 1:
                self._store_output(out, head, element, weight, total)
            else:
                self._store_partial(out, head, element, largest, weight, total)
            ptx.place(done)

    def _store_output(self, out: R64, head: R32, element: R32, weight: F32, total: F32) -> None:
        ptx = self.ptx
        index = ptx.r("mad.lo.u32", head, self.d, element)
        result = ptx.f("mul.rn.f32", total, ptx.f("rcp.approx.f32", weight))
        ptx.op("st.global.f32", at(ptx.rd("mad.wide.u32", index, 4, out)), result)

    def _store_partial(
        self, out: R64, head: R32, element: R32, largest: F32, weight: F32, total: F32
    ) -> None:
        """Row (head, split) of the workspace: d sums; behind all rows, maximum and weight of each."""
        ptx, splits = self.ptx, self.schedule.splits
        row = ptx.r("mad.lo.u32", head, splits, self.split)
        index = ptx.r("mad.lo.u32", row, self.d, element)
        ptx.op("st.global.f32", at(ptx.rd("mad.wide.u32", index, 4, out)), total)
        rows = ptx.r("mul.lo.u32", self.n_head, splits)
        tail = ptx.rd("mad.wide.u32", ptx.r("mul.lo.u32", rows, self.d), 4, out)
        first = ptx.p("setp.eq.u32", element, 0)
        pair = ptx.rd("mad.wide.u32", row, 8, tail)
        store_floats(ptx, "st.global", at(pair), (largest, weight), guard=first)


SDPA_DECODE = Kernel(
    spec=SPEC,
    schedule_type=SdpaSchedule,
    emit=emit,
    inputs=inputs,
    reference=reference,
    edge_problems=edge_problems,
    demand=demand,
    usual_problems=tuple(
        SPEC.problem(*shape)
        for shape in (
            (32, 8, 128, 4096, 4096),
            (32, 8, 128, 16384, 14336),
            (32, 32, 128, 4096, 4096),
            (64, 8, 128, 8192, 8192),
        )
    ),
    baseline=SdpaSchedule(lanes=32, heads=1, warps=4, keys=1, stages=1, splits=16),
    aliases=("sdpa",),
)
