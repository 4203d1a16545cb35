"""atom and red on global and shared memory (PTX ISA 9.7.13.3 and following).
Lanes of one instruction that meet at an address go one after the other, in an order drawn anew for every
instruction, since the ISA promises none.

"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.accesses import (
    check_written,
    count_global,
    count_shared,
    full_rows,
    global_segments,
    mark_written,
    shared_offsets,
)
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
from tuner.simulator.loads_stores import lane_addresses, take_hints, take_order, windows
from tuner.simulator.memory import LOCAL_WINDOW, SHARED_WINDOW, Buffer, Index
from tuner.simulator.parser import SINK
from tuner.simulator.rounding import read, write
from tuner.simulator.scalar_types import SCALARS, Scalar

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

Bits = NDArray[Any]
Update = Callable[[Bits, Bits, Any], Bits]
"""(old, operand, second operand) -> new, all as register bits."""


def _update(operation: str, scalar: Scalar) -> Update:
    view, storage = scalar.view, scalar.storage
    if operation in ("and", "or", "xor"):
        logic: Any = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[operation]
        return lambda old, value, _: logic(old, value)
    if operation == "exch":
        return lambda old, value, _: value
    if operation == "cas":
        return lambda old, value, other: np.where(old == value, other, old)
    if operation == "inc":
        return lambda old, value, _: np.where(old >= value, storage.type(0), old + storage.type(1))
    if operation == "dec":
        return lambda old, value, _: np.where((old == 0) | (old > value), value, old - storage.type(1))
    if scalar.kind == "f" or scalar.name in ("f16x2", "bf16x2"):
        return _float_update(operation, scalar)
    function: Any = {"add": np.add, "min": np.minimum, "max": np.maximum}[operation]
    return lambda old, value, _: function(old.view(view), value.view(view)).view(storage)


def _float_update(operation: str, scalar: Scalar) -> Update:
    """Float atomics round to nearest; f16 and bf16 keep subnormals, and so does f32 on global memory here."""
    if scalar.name in ("f16x2", "bf16x2"):
        half = _float_update(operation, SCALARS[scalar.name[:-2]])

        def packed(old: Bits, value: Bits, _: Any) -> Bits:
            low = half(old.astype(np.uint16), value.astype(np.uint16), None)
            high = half(
                (old >> np.uint32(16)).astype(np.uint16), (value >> np.uint32(16)).astype(np.uint16), None
            )
            return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))

        return packed
    if operation not in ("add", "min", "max"):
        raise UnknownModifierError(f"atom.{operation} takes no .{scalar.name}")

    def update(old: Bits, value: Bits, _: Any) -> Bits:
        x, y = read(old, scalar), read(value, scalar)
        if operation == "add":
            return write(x + y, scalar)
        return write(np.fmin(x, y) if operation == "min" else np.fmax(x, y), scalar)

    return update


@instruction("atom", "red")
def atom(opcode: Opcode) -> Recipe:
    """Read, change and write back, in one indivisible step; `red` gives no old value back."""
    if "async" in opcode.modifiers:
        raise UnknownModifierError(f"{opcode.text} is not simulated")
    opcode.flag("noftz")
    order, policy = take_order(opcode) or "relaxed", take_hints(opcode)
    space = opcode.choice("global", "shared", "shared::cta", default="generic").split("::")[0]
    operation = opcode.choice("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
    count = int(opcode.choice("v2", "v4", "v8", default="v1")[1:])
    scalar = opcode.type()
    returns = opcode.name == "atom"
    if scalar.bits > 64:
        raise UnknownModifierError(f"{opcode.text} is not simulated")
    update = _update(operation, scalar)

    def bind(site: Site) -> Closure:
        operands = list(site.operands[:-1] if policy else site.operands)
        expected = returns + 2 + (operation == "cas")
        if len(operands) != expected:
            raise site.error(f"{opcode.name}.{operation} takes {expected} operands, got {len(operands)}")
        targets = []
        if returns:
            items = site.items(operands.pop(0), count)
            targets = [0 if item == SINK else site.target(item, scalar) for item in items]
        base, offset = site.address(operands[0])
        values = [site.source(item, scalar) for item in site.items(operands[1], count)]
        other = site.source(operands[2], scalar) if operation == "cas" else None
        site.polls = returns
        if space != "global":
            site.widths.append(("shared", scalar.nbytes))
            site.shared_atomic = True
            site.finer_order |= order != "relaxed"
        if space != "shared":
            site.widths.append(("global", scalar.nbytes))
            site.stores_through.append(base)

        def run(r: Registers, s: Batch) -> None:
            address = lane_addresses(r, base, offset)
            for number, slot in enumerate(values):
                second = r[other] if other is not None else None
                old = _everywhere(
                    s, site, space, address + number * scalar.nbytes, r[slot], second, update, scalar, order
                )
                if returns and targets[number]:
                    s.write(r, targets[number], old)

        return run

    return Effect(bind, "atomic")


def _everywhere(
    s: Batch,
    site: Site,
    space: str,
    address: Index,
    value: Bits,
    other: Any,
    update: Update,
    scalar: Scalar,
    order: str,
) -> Bits:
    """Carry out an atomic in whatever state space the lanes address; return the old values (B, T)."""
    shape = (s.blocks, s.threads)
    old = np.zeros(shape, scalar.storage)
    places = (
        [(0, s.mask)] if space == "global" else [(1, s.mask)] if space == "shared" else windows(s, address)
    )
    for window, lanes in places:
        if window == 1:
            local = address - SHARED_WINDOW if space == "generic" else address
            _in_shared(s, site, local, value, other, update, scalar, lanes, old, order)
        elif window == 2:
            at = address - LOCAL_WINDOW
            s.fault(
                "out_of_bounds",
                "an atomic cannot reach local memory",
                site,
                s.active_lanes(),
                int(at.max()),
                "local",
            )
        else:
            _in_global(s, site, address, value, other, update, scalar, lanes, old, order)
    return old


def _in_global(
    s: Batch,
    site: Site,
    address: Index,
    value: Bits,
    other: Any,
    update: Update,
    scalar: Scalar,
    lanes: Any,
    old: Bits,
    order: str,
) -> None:
    nbytes = scalar.nbytes
    for buffer, offsets, here in global_segments(s, address, nbytes, site, lanes):
        if buffer.written is not None:
            check_written(s, buffer, offsets, nbytes, site, here)
        if s.count:
            count_global(s, s.counters.atomics, offsets, nbytes, here)
        chosen = s.active_lanes() if here is None else np.broadcast_to(here, old.shape)
        turns = s.random().permutation(int(np.count_nonzero(chosen)))
        if buffer.races is not None:
            buffer.races.atomic(s, offsets, nbytes, chosen, site, order, turns)
        index = np.broadcast_to(offsets, old.shape)[chosen] >> (nbytes.bit_length() - 1)
        old[chosen] = _serially(s, buffer.writable(nbytes), index, value, other, update, chosen, turns)
        _mark(buffer, index, nbytes)


def _mark(buffer: Buffer, index: Index, nbytes: int) -> None:
    if buffer.written is not None:
        mark_written(buffer, index, nbytes)


def _in_shared(
    s: Batch,
    site: Site,
    address: Index,
    value: Bits,
    other: Any,
    update: Update,
    scalar: Scalar,
    lanes: Any,
    old: Bits,
    order: str,
) -> None:
    nbytes = scalar.nbytes
    offsets, here = shared_offsets(s, address, nbytes, site, lanes)
    if s.count:
        count_shared(s, s.counters.shared_atomics, offsets, nbytes, here)
    offsets, here = full_rows(s, offsets, here)
    chosen = s.active_lanes() if here is None else np.broadcast_to(here, old.shape)
    turns = s.random().permutation(int(np.count_nonzero(chosen)))
    if s.races is not None:
        s.races.atomic(s, offsets, nbytes, here, site, order, turns)
    flat = s.shared.flat_view(nbytes)
    index = (np.broadcast_to(offsets, old.shape) + s.shared.rows)[chosen] >> (nbytes.bit_length() - 1)
    old[chosen] = _serially(s, flat, index, value, other, update, chosen, turns)


def _serially(
    s: Batch, view: Bits, index: Index, value: Bits, other: Any, update: Update, chosen: Any, order: Index
) -> Bits:
    """Apply an update lane after lane where addresses meet, in a given order; return what each lane found."""
    values = np.broadcast_to(value, chosen.shape)[chosen]
    others = np.broadcast_to(other, chosen.shape)[chosen] if other is not None else None
    found = np.empty(index.shape, view.dtype)
    sorted_order = order[np.argsort(index[order], kind="stable")]
    ordered = index[sorted_order]
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    starts = np.nonzero(first)[0]
    turn = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
    for number in range(int(turn.max()) + 1 if len(turn) else 0):
        lanes = sorted_order[turn == number]
        at = index[lanes]
        old = view[at]
        found[lanes] = old
        new = update(old, values[lanes], None if others is None else others[lanes])
        view[at] = new
        s.ahead += bool((new != old).any())
    return found
