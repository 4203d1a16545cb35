"""Moves: registers, special registers, addresses, packing and unpacking (PTX ISA 9.7.9, `mov`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.simulator.instructions import Closure, Effect, Opcode, Recipe, Registers, Site, instruction
from tuner.simulator.scalar_types import SCALARS, Scalar
from tuner.simulator.syntax import SINK, Name, Vector

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

CLOCKS = ("%clock", "%clock64", "%globaltimer", "%globaltimer_lo")
"""Special registers that count on; here they count instructions of the batch, 256 a step."""


@instruction("mov")
def mov(opcode: Opcode) -> Recipe:
    """`mov.b64 {lo, hi}, d` unpacks, `mov.b64 d, {lo, hi}` packs, anything else copies."""
    scalar = opcode.type()

    def bind(site: Site) -> Closure:
        site.expect(2)
        target, source = site.operands
        if isinstance(source, Vector):
            return _pack(site, scalar, source)
        if isinstance(target, Vector):
            return _unpack(site, scalar, target)
        if isinstance(source, Name) and source.text in CLOCKS:
            site.polls = True
            site.result = site.target(target, scalar)
            return lambda r, s: np.array([[s.steps << 8]], scalar.storage)
        slot = site.source(source, scalar)
        site.result = site.target(target, scalar)
        return lambda r, s: r[slot]

    return Effect(bind, "integer")


def _part(site: Site, scalar: Scalar, count: int) -> Scalar:
    bits = scalar.bits // count
    if bits * count != scalar.bits or f"b{bits}" not in SCALARS:
        raise site.error(f".{scalar.name} does not split into {count}")
    return SCALARS[f"b{bits}"]


def _pack(site: Site, scalar: Scalar, source: Vector) -> Closure:
    part = _part(site, scalar, len(source.items))
    slots = [site.source(item, part) for item in source.items]
    site.result = site.target(site.operands[0], scalar)
    storage = scalar.storage
    if scalar.bits == 128:

        def halves(r: Registers, s: Batch) -> Any:
            low, high = np.broadcast_arrays(r[slots[0]], r[slots[1]])
            return np.stack([low, high], -1).view(storage)[..., 0]

        return halves

    def run(r: Registers, s: Batch) -> Any:
        value = r[slots[0]].astype(storage)
        for number, slot in enumerate(slots[1:], 1):
            value = value | (r[slot].astype(storage) << np.array(number * part.bits, storage))
        return value

    return run


def _unpack(site: Site, scalar: Scalar, target: Vector) -> Closure:
    part = _part(site, scalar, len(target.items))
    source = site.source(site.operands[1], scalar)
    slots = [(number, site.target(item, part)) for number, item in enumerate(target.items) if item != SINK]
    storage = part.storage

    def run(r: Registers, s: Batch) -> None:
        value = r[source]
        if value.dtype.itemsize == 16:
            parts = np.ascontiguousarray(value).view(storage).reshape(*value.shape, -1)
            for number, slot in slots:
                s.write(r, slot, parts[..., number])
            return
        for number, slot in slots:
            s.write(r, slot, (value >> np.array(number * part.bits, value.dtype)).astype(storage))

    return run


@instruction("isspacep")
def isspacep(opcode: Opcode) -> Recipe:
    """Whether a generic address lies in a state space."""
    from tuner.simulator.memory import space_window

    low, high = space_window(
        opcode.choice("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param")
    )
    from tuner.simulator.instructions import Compute
    from tuner.simulator.scalar_types import PREDICATE, U64

    return Compute(
        PREDICATE, (U64,), lambda a: lambda r, s: (r[a] >= np.uint64(low)) & (r[a] < np.uint64(high))
    )
