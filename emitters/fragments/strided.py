"""Loops in which a thread takes every n-th unit of a long axis, with several units on their way.

Threads of a warp may leave at different turns, so the bodies hold nothing that needs the whole warp.
"""

from collections.abc import Callable
from typing import TypeVar

from emitters.ptx import R32, Entry, Pred

T = TypeVar("T")


def strided_in_registers(
    ptx: Entry,
    first: R32,
    count: R32,
    stride: int,
    unroll: int,
    load: Callable[[R32, Pred | None], T],
    use: Callable[[T], None],
) -> None:
    """Units first, first + stride, ... below `count`; the loads of `unroll` of them before the first use.

    Args:
        ptx: The entry.
        first, count: First unit of this thread; units in all.
        stride: Units from one turn to the next.
        unroll: Units a turn.
        load: Emits the loads of a unit that exists. Its second argument is None, or a predicate: where that
            is false the unit is a stand-in for one past the end and must count for nothing.
        use: Emits the arithmetic on what `load` returned.
    """
    ptx.phase("main loop", f"{unroll} units a turn; the thread's units lie {stride} apart")
    unit = ptx.r("mov.u32", first)
    loop, done = ptx.new_label("main_loop"), ptx.new_label("main_done")
    ptx.branch(done, guard=ptx.p("setp.ge.u32", unit, count))
    last = ptx.r("sub.u32", count, 1) if unroll > 1 else unit
    ptx.place(loop)
    held = [load(unit, None)]
    for i in range(1, unroll):
        ahead = ptx.r("add.u32", unit, i * stride)
        exists = ptx.p("setp.lt.u32", ahead, count)
        held.append(load(ptx.r("min.u32", ahead, last), exists))
    for one in held:
        use(one)
    ptx.op("add.u32", unit, unit, unroll * stride)
    ptx.branch(loop, guard=ptx.p("setp.lt.u32", unit, count))
    ptx.place(done)


def strided_through_ring(
    ptx: Entry,
    first: R32,
    count: R32,
    stride: int,
    stages: int,
    slot_bytes: int,
    copy: Callable[[R32, R32, Pred], None],
    use: Callable[[R32, R32, Callable[[], None]], None],
) -> None:
    """The same units through a ring of `stages` slots in shared memory that cp.async fills ahead of use.

    Each thread reads only bytes that it copied itself: its own wait is all the order that takes.

    Args:
        ptx: The entry.
        first, count, stride: As above.
        stages: Slots, 2 or more.
        slot_bytes: From one slot to the next.
        copy: Emits the copies of a unit into the slot at a byte offset (a register), under a predicate.
        use: Emits loads of a unit that do not go through the ring, then calls its third argument, which
            emits the wait, then reads the slot at the offset in its second.
    """
    ptx.phase("prologue", f"fill {stages - 1} of {stages} stages; a thread reads only what it copied itself")
    unit = ptx.r("mov.u32", first)
    for stage in range(stages - 1):
        ahead = ptx.r("add.u32", unit, stage * stride)
        copy(ahead, ptx.r("mov.u32", stage * slot_bytes), ptx.p("setp.lt.u32", ahead, count))
        ptx.op("cp.async.commit_group")
    ptx.phase("main loop", f"copy ahead, wait for the oldest stage, use it; units lie {stride} apart")
    fill = ptx.r("mov.u32", (stages - 1) * slot_bytes)
    drain = ptx.r("mov.u32", 0)
    loop, done = ptx.new_label("main_loop"), ptx.new_label("main_done")
    ptx.branch(done, guard=ptx.p("setp.ge.u32", unit, count))
    ptx.place(loop)
    ahead = ptx.r("add.u32", unit, (stages - 1) * stride)
    copy(ahead, fill, ptx.p("setp.lt.u32", ahead, count))
    ptx.op("cp.async.commit_group")
    use(unit, drain, lambda: ptx.op("cp.async.wait_group", stages - 1))
    for ring in (fill, drain):
        ptx.op("add.u32", ring, ring, slot_bytes)
        ptx.op("selp.b32", ring, 0, ring, ptx.p("setp.eq.u32", ring, stages * slot_bytes))
    ptx.op("add.u32", unit, unit, stride)
    ptx.branch(loop, guard=ptx.p("setp.lt.u32", unit, count))
    ptx.place(done)
