"""Branches, exits and barriers (PTX ISA 9.7.12 and 9.7.13)."""

from __future__ import annotations

from typing import Any

from tuner.simulator.instructions import Control, Effect, Opcode, Recipe, Site, UnknownModifierError, instruction
from tuner.simulator.parser import Integer, Name


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
    """`bar` is `barrier.aligned`."""
    opcode.flag("cta")
    action = opcode.choice("sync", "arrive", "red", "warp")
    aligned = opcode.flag("aligned") or opcode.name == "bar"
    if action != "sync":
        raise UnknownModifierError(f"{opcode.name}.{action} is not simulated")

    def bind(site: Site) -> tuple[Any, ...]:
        site.expect(1)
        (number,) = site.operands
        if not isinstance(number, Integer) or not 0 <= number.value < 16:
            raise site.error("a barrier number from 0 to 15 was expected")
        return number.value, aligned

    return Control("barrier", bind, "barrier")


def nothing(site: Site) -> Any:
    """Bind an instruction that changes no state."""
    return lambda r, s: None


@instruction("membar", "fence")
def fence(opcode: Opcode) -> Recipe:
    """Orders memory; what it orders between blocks is followed where global races are."""
    opcode.flag("proxy", "alias", "async", "async::global", "tensormap::generic")
    opcode.flag("sc", "acq_rel", "acquire", "release")
    opcode.flag("cta", "gl", "gpu", "sys", "cluster", "level")
    opcode.flag("async::shared::cta", "async::shared::cluster", "mbarrier_init")
    return Effect(nothing, "fence")


@instruction("nanosleep", "pragma", "prefetch", "prefetchu", "discard", "applypriority")
def hint(opcode: Opcode) -> Recipe:
    """Changes nothing that a program can see."""
    opcode.modifiers.clear()
    return Effect(nothing, "hint")
