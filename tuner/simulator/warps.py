"""Warp-wide instructions: shuffles, votes, matches, reductions, election (PTX ISA 9.7.9.6, 9.7.13).

They exchange registers and order no memory. A lane that a member mask names has to be there; a value taken
from a lane that is not is poison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.instructions import (
    Closure,
    Effect,
    Opcode,
    Recipe,
    Registers,
    Site,
    UnknownModifierError,
    instruction,
)
from tuner.simulator.rounding import read, write
from tuner.simulator.scalar_types import B32, POISON, PREDICATE, U32, Lanes, Scalar

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

WARP = 32
_POISON = np.uint32(POISON & 0xFFFFFFFF)


def by_warp(value: Lanes, s: Batch) -> NDArray[Any]:
    """Return a register as (B or 1, W, 32)."""
    return np.broadcast_to(value, (len(value), s.threads)).reshape(len(value), s.warps, WARP)


def back(value: NDArray[Any], s: Batch) -> Lanes:
    """Return (R, W, 32) or (R, W, 1) as a register (R, T)."""
    return np.broadcast_to(value, (*value.shape[:2], WARP)).reshape(len(value), s.threads)


def whole_mask(members: Lanes) -> bool:
    return members.size == 1 and int(members.item()) == 0xFFFFFFFF


def participants(r: Registers, s: Batch, members: int, site: Site) -> Any:
    """Check a member mask; return the lanes that take part and are there, (B, W, 32), None for all."""
    if s.mask is None and s.existing is None and whole_mask(r[members]):
        return None
    active = s.active_lanes().reshape(s.blocks, s.warps, WARP)
    named = (by_warp(r[members], s) >> np.arange(WARP, dtype=np.uint32)) & np.uint32(1) != 0
    named = np.broadcast_to(named, active.shape)
    shape = (s.blocks, s.threads)
    outside = active & ~named
    if outside.any():
        s.fault("divergence", "this thread is not in the member mask", site, outside.reshape(shape))
    live = np.broadcast_to(True if s.live is None else s.live, shape).reshape(active.shape)
    absent = (named & live & ~active).any(axis=2, keepdims=True) & active
    if absent.any():
        message = "threads that the member mask names do not run this instruction together with this thread"
        s.fault("divergence", message, site, absent.reshape(shape))
    return active & named


def groups(r: Registers, s: Batch, members: int, there: Any) -> Any:
    """Return for each lane (B, W, 32, 32) which lanes it acts with, where lanes name different members; else
    None.
    """
    words = by_warp(r[members], s)
    if words.size == 1 or (words == words[:, :, :1]).all():
        return None
    named = (words[..., None] >> np.arange(WARP, dtype=np.uint32)) & np.uint32(1) != 0
    return named if there is None else named & there[..., None, :]


@instruction("shfl")
def shfl(opcode: Opcode) -> Recipe:
    """d|p from the lane that mode, b and the clamp in c choose; p says whether it was in range."""
    if not opcode.flag("sync"):
        raise UnknownModifierError("shfl without .sync is not in the ISA for the targets simulated")
    mode = opcode.choice("up", "down", "bfly", "idx")
    opcode.choice("b32")

    def bind(site: Site) -> Closure:
        site.expect(5)
        first, second = site.pair(site.operands[0])
        a, b, c, members = (site.source(operand, B32) for operand in site.operands[1:])
        d = site.target(first, B32)
        p = site.target(second, PREDICATE) if second is not None else 0
        name = f"shfl {site.number}"

        def run(r: Registers, s: Batch) -> None:
            amount, clamp = r[b], r[c]
            known = s.state.get(name)
            if known is not None and known[0] is amount and known[1] is clamp:
                source, fits = known[2]
            else:
                source, fits = _source_lane(mode, amount, clamp, s)
                s.state[name] = (amount, clamp, (source, fits))
            there = participants(r, s, members, site)
            s.write(r, d, _exchange(r[a], source, there, s))
            if p:
                s.write(r, p, fits)

        return run

    return Effect(bind, "shuffle")


def _source_lane(mode: str, b: Lanes, c: Lanes, s: Batch) -> tuple[NDArray[np.int64], Lanes]:
    """Return (thread each lane takes its value from, whether it was in range): shapes (R, T)."""
    thread = np.arange(s.threads, dtype=np.int64)[None, :]
    lane = thread & 31
    amount = b.astype(np.int64) & 31
    clamp, segment = c.astype(np.int64) & 31, (c.astype(np.int64) >> 8) & 31
    low = lane & segment
    high = low | (clamp & ~segment)
    if mode == "up":
        source = lane - amount
        fits = source >= high
    elif mode == "down":
        source = lane + amount
        fits = source <= high
    elif mode == "bfly":
        source = lane ^ amount
        fits = source <= high
    else:
        source = low | (amount & ~segment)
        fits = source <= high
    return np.where(fits, source, lane) + (thread - lane), fits


def _exchange(value: Lanes, source: NDArray[np.int64], there: Any, s: Batch) -> Lanes:
    if value.shape[1] != s.threads:
        value = np.broadcast_to(value, (len(value), s.threads))
    taken = (
        value.take(source[0], axis=1)
        if len(source) == 1
        else np.take_along_axis(np.broadcast_to(value, (s.blocks, s.threads)), source, 1)
    )
    if there is None:
        return taken
    flat = there.reshape(s.blocks, s.threads)
    valid = np.take_along_axis(flat, np.broadcast_to(source, flat.shape), 1)
    return np.where(valid, taken, _POISON)


@instruction("vote")
def vote(opcode: Opcode) -> Recipe:
    opcode.choice("sync")
    mode = opcode.choice("all", "any", "uni", "ballot")
    result = opcode.type("pred", "b32")

    def bind(site: Site) -> Closure:
        site.expect(3)
        p, negated = site.predicate(site.operands[1])
        members = site.source(site.operands[2], U32)
        d = site.target(site.operands[0], result)

        def run(r: Registers, s: Batch) -> None:
            truth = by_warp(~r[p] if negated else r[p], s)
            there = participants(r, s, members, site)
            together = groups(r, s, members, there)
            if together is None:
                s.write(r, d, back(_vote(mode, truth, there), s))
            else:
                s.write(r, d, back(_vote(mode, truth[..., None, :], together)[..., 0], s))

        return run

    return Effect(bind, "vote")


def _vote(mode: str, truth: NDArray[np.bool_], there: Any) -> Any:
    yes = truth if there is None else truth & there
    no = ~truth if there is None else ~truth & there
    if mode == "ballot":
        bits = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
        return np.where(yes, bits, np.uint32(0)).sum(axis=-1, keepdims=True, dtype=np.uint32)
    if mode == "any":
        return yes.any(axis=-1, keepdims=True)
    if mode == "all":
        return ~no.any(axis=-1, keepdims=True)
    return ~(yes.any(axis=-1, keepdims=True) & no.any(axis=-1, keepdims=True))


@instruction("activemask")
def activemask(opcode: Opcode) -> Recipe:
    opcode.choice("b32")

    def bind(site: Site) -> Closure:
        site.expect(1)
        d = site.target(site.operands[0], B32)

        def run(r: Registers, s: Batch) -> None:
            active = s.active_lanes().reshape(s.blocks, s.warps, WARP)
            s.write(r, d, back(_vote("ballot", active, None), s))

        return run

    return Effect(bind, "vote")


@instruction("match")
def match(opcode: Opcode) -> Recipe:
    """any: the lanes with this lane's value; all: every lane if they agree, else none."""
    mode = opcode.choice("any", "all")
    opcode.choice("sync")
    scalar = opcode.type("b32", "b64")

    def bind(site: Site) -> Closure:
        site.expect(3)
        first, second = site.pair(site.operands[0])
        a = site.source(site.operands[1], scalar)
        members = site.source(site.operands[2], U32)
        d = site.target(first, B32)
        p = site.target(second, PREDICATE) if second is not None else 0

        def run(r: Registers, s: Batch) -> None:
            value = by_warp(r[a], s)
            there = participants(r, s, members, site)
            same = value[..., :, None] == value[..., None, :]
            together = groups(r, s, members, there)
            if together is None:
                together = np.ones((1, 1, 1, WARP), bool) if there is None else there[..., None, :]
            same = same & together
            count = together.sum(axis=3)
            bits = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
            found = np.where(same, bits, np.uint32(0)).sum(axis=3, dtype=np.uint32)
            if mode == "all":
                agree = same.sum(axis=3) == count
                s.write(r, d, back(np.where(agree, found, np.uint32(0)), s))
                if p:
                    s.write(r, p, back(agree, s))
            else:
                s.write(r, d, back(found, s))

        return run

    return Effect(bind, "vote")


@instruction("redux")
def redux(opcode: Opcode) -> Recipe:
    opcode.choice("sync")
    operation = opcode.choice("add", "min", "max", "and", "or", "xor")
    absolute, keep_nan = opcode.flag("abs"), opcode.flag("NaN")
    scalar = opcode.type("u32", "s32", "b32", "f32")

    def bind(site: Site) -> Closure:
        site.expect(3)
        a = site.source(site.operands[1], scalar)
        members = site.source(site.operands[2], U32)
        d = site.target(site.operands[0], scalar)

        def run(r: Registers, s: Batch) -> None:
            there = participants(r, s, members, site)
            value = by_warp(r[a], s)
            together = groups(r, s, members, there)
            if together is None:
                result = _reduce(operation, value, there, scalar, absolute, keep_nan)
            else:
                wide = np.broadcast_to(value[..., None, :], together.shape)
                result = _reduce(operation, wide, together, scalar, absolute, keep_nan)[..., 0]
            s.write(r, d, back(result, s))

        return run

    return Effect(bind, "vote")


def _reduce(
    operation: str, value: Any, there: Any, scalar: Scalar, absolute: bool, keep_nan: bool
) -> NDArray[Any]:
    if scalar.kind == "f":
        real = read(np.ascontiguousarray(value), scalar)
        real = np.abs(real) if absolute else real
        function = {"min": np.minimum if keep_nan else np.fmin, "max": np.maximum if keep_nan else np.fmax}[
            operation
        ]
        neutral = np.inf if operation == "min" else -np.inf
        return write(
            function.reduce(
                real if there is None else np.where(there, real, neutral), axis=-1, keepdims=True
            ),
            scalar,
        )
    view = np.ascontiguousarray(value).view(scalar.view)
    limits = np.iinfo(scalar.view)
    functions: dict[str, tuple[Any, int]] = {
        "add": (np.add, 0),
        "min": (np.minimum, limits.max),
        "max": (np.maximum, limits.min),
        "and": (np.bitwise_and, -1 if scalar.kind == "s" else limits.max),
        "or": (np.bitwise_or, 0),
        "xor": (np.bitwise_xor, 0),
    }
    function, neutral = functions[operation]
    if there is not None:
        view = np.where(there, view, np.array(neutral, scalar.view))
    return function.reduce(view, axis=-1, keepdims=True, dtype=scalar.view).view(np.uint32)  # type: ignore[no-any-return]


@instruction("elect")
def elect(opcode: Opcode) -> Recipe:
    """One lane of the members is chosen, the same for the same members; which is left open, so here it is the
    last.
    """
    opcode.choice("sync")

    def bind(site: Site) -> Closure:
        site.expect(2)
        first, second = site.pair(site.operands[0])
        members = site.source(site.operands[1], U32)
        d = site.target(first, B32)
        p = site.target(second, PREDICATE) if second is not None else 0

        def run(r: Registers, s: Batch) -> None:
            there = participants(r, s, members, site)
            if there is None:
                there = np.ones((s.blocks, s.warps, WARP), bool)
            chosen = (31 - there[..., ::-1].argmax(axis=2))[..., None]
            s.write(r, d, back(chosen.astype(np.uint32), s))
            if p:
                s.write(r, p, back(np.arange(WARP) == chosen, s))

        return run

    return Effect(bind, "vote")
