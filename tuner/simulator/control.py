"""Branches, exits and barriers (PTX ISA 9.7.12 and 9.7.13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuner.simulator.barriers import BarrierOperands
from tuner.simulator.clock_races import ClockRaces
from tuner.simulator.clusters import cluster_barrier
from tuner.simulator.instructions import (
    Control,
    Effect,
    Opcode,
    Recipe,
    Registers,
    Site,
    instruction,
    nothing,
)
from tuner.simulator.scalar_types import PREDICATE, U32
from tuner.simulator.syntax import Integer, Name

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch


@instruction("bra")
def bra(opcode: Opcode) -> Recipe:
    opcode.flag("uni")

    def bind(site: Site) -> tuple[Any, ...]:
        site.expect(1)
        (label,) = site.operands
        if not isinstance(label, Name):
            raise site.error("a label was expected")
        return (label.text,)

    return Control("branch", bind)


@instruction("exit", "ret")
def exit_(opcode: Opcode) -> Recipe:
    """`ret` of an entry is its end; that of a device function is a branch once it is inlined."""
    opcode.flag("uni")

    def bind(site: Site) -> tuple[Any, ...]:
        site.expect(0)
        return ()

    return Control("exit", bind)


@instruction("bar", "barrier")
def bar(opcode: Opcode) -> Recipe:
    """`bar` is `barrier.aligned`; arrive does not wait, red reduces a predicate over all that arrive."""
    if opcode.name == "barrier" and opcode.flag("cluster"):
        return cluster_barrier(opcode)
    opcode.flag("cta")
    action = opcode.choice("warp", "sync", "arrive", "red")
    if action == "warp":
        opcode.choice("sync")
        return Control("warp_barrier", _bind_warp_barrier, "barrier")
    aligned = opcode.flag("aligned") or opcode.name == "bar"
    operation = ""
    if action == "red":
        operation = opcode.choice("popc", "and", "or")
        opcode.type("u32", "pred")

    def bind(site: Site) -> tuple[Any, ...]:
        operands = list(site.operands)
        target = predicate = 0
        negated = False
        if action == "red":
            if len(operands) not in (3, 4):
                raise site.error("bar.red takes d, a barrier, an optional count and a predicate")
            predicate, negated = site.predicate(operands.pop())
            target = site.target(operands.pop(0), U32 if operation == "popc" else PREDICATE)
        if len(operands) not in ((2,) if action == "arrive" else (1, 2)):
            raise site.error(f"{opcode.name}.{action} takes a barrier and a thread count")
        if isinstance(operands[0], Integer) and not 0 <= operands[0].value < 16:
            raise site.error(f"a barrier number must be from 0 to 15, got {operands[0].value}")
        number = site.source(operands[0], U32)
        count = 0
        if len(operands) == 2:
            count = site.source(operands[1], U32)
            if isinstance(operands[1], Integer):
                site.barrier_count = operands[1].value
            else:
                site.finer_order = True
        if action == "arrive" or not isinstance(operands[0], Integer):
            site.finer_order = True
        return (BarrierOperands(action, number, count, aligned, operation, target, predicate, negated),)

    return Control("barrier", bind, "barrier")


def _bind_warp_barrier(site: Site) -> tuple[Any, ...]:
    site.expect(1)
    site.finer_order = True
    return (site.source(site.operands[0], U32),)


@instruction("membar", "fence")
def fence(opcode: Opcode) -> Recipe:
    """Makes strong accesses around it release and acquire; one of cta scope does so within the block only.

    A proxy fence orders nothing; one of `.proxy.async` makes writes known to the async proxy.
    """
    proxy = opcode.flag("proxy")
    tells = False
    if proxy:
        tells = opcode.flag("async") and "global" not in opcode.modifiers
        opcode.flag("alias", "async::global", "async::shared::cta", "tensormap::generic")
        opcode.flag("generic", "global", "shared::cta", "shared::cluster")
    opcode.flag("sc", "acq_rel", "acquire", "release", "mbarrier_init", "level")
    wide = not opcode.flag("cta") or proxy
    opcode.flag("gl", "gpu", "sys", "cluster")

    def bind(site: Site) -> Any:
        site.fences = True

        def run(r: Registers, s: Batch) -> None:
            if tells and s.proxy is not None:
                s.proxy.fence(s.active_lanes())
            if s.races is None or proxy:
                return
            lanes = s.active_lanes()
            if isinstance(s.races, ClockRaces):
                s.races.fence(lanes)
            if wide:
                s.context.order.fence(s, lanes)

        return run

    return Effect(bind, "fence")


@instruction("trap", "brkpt")
def trap(opcode: Opcode) -> Recipe:
    """The thread ends with a fault."""

    def bind(site: Site) -> tuple[Any, ...]:
        site.expect(0)
        return ()

    return Control("trap", bind)


@instruction("setmaxnreg", "griddepcontrol")
def resource(opcode: Opcode) -> Recipe:
    """Moves registers between warps, or lets launches overlap; neither changes a result here."""
    opcode.modifiers.clear()
    return Effect(nothing, "hint")


@instruction("nanosleep", "prefetch", "prefetchu", "applypriority")
def hint(opcode: Opcode) -> Recipe:
    """Changes nothing that a program can see, but a loop around a sleep waits for somebody."""
    opcode.modifiers.clear()

    def bind(site: Site) -> Any:
        site.polls = opcode.name == "nanosleep"
        return nothing(site)

    return Effect(bind, "hint")
