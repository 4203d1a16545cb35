"""atom and red on global and shared memory (PTX ISA 9.7.13.3 and following).

Lanes of one instruction that meet at an address go one after the other, in an order drawn anew for every
instruction, since the ISA promises none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from tuner.simulator.memory import LOCAL_WINDOW, SHARED_WINDOW, Index
from tuner.simulator.rounding import read, write
from tuner.simulator.scalar_types import SCALARS, Scalar
from tuner.simulator.shapes import stretched
from tuner.simulator.syntax import SINK

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

Bits = NDArray[Any]
Update = Callable[[Bits, Bits, Any], Bits]
"""(old, operand, second operand) -> new, all as register bits."""
COMMUTING: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def update_of(operation: str, scalar: Scalar) -> Update:
    """Return what an atomic, or a reduction by a bulk copy, does to a value in memory."""
    view, storage = scalar.view, scalar.storage
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
    function = COMMUTING[operation]
    return lambda old, value, _: function(old.view(view), value.view(view)).view(storage)


def _float_update(operation: str, scalar: Scalar, flush: bool = False) -> Update:
    """Float atomics round to nearest and keep subnormals, unless told to flush them."""
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
        x, y = read(old, scalar, flush), read(value, scalar, flush)
        if operation == "add":
            return write(x + y, scalar, "rn", flush)
        return write(np.fmin(x, y) if operation == "min" else np.fmax(x, y), scalar)

    return update


@dataclass(frozen=True, slots=True)
class Operation:
    """What an atomic does.

    `update` is what it does in shared memory, `update_global` in global memory. `at_once` is the ufunc and
    type of one that lanes may do in any order unseen.
    """

    scalar: Scalar
    order: str
    update: Update
    update_global: Update
    at_once: tuple[Any, np.dtype[Any]] | None


@instruction("atom", "red")
def atom(opcode: Opcode) -> Recipe:
    """Read, change and write back, in one indivisible step; `red` gives no old value back."""
    if "async" in opcode.modifiers:
        raise UnknownModifierError(f"{opcode.text} is not simulated")
    opcode.flag("noftz")
    order, policy = take_order(opcode) or "relaxed", take_hints(opcode)
    space = opcode.choice("global", "shared", "shared::cta", "shared::cluster", default="generic")
    space = space.split("::")[0]
    name = opcode.choice("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
    count = int(opcode.choice("v2", "v4", "v8", default="v1")[1:])
    scalar = opcode.type()
    returns = opcode.name == "atom"
    if scalar.bits > 64:
        raise UnknownModifierError(f"{opcode.text} is not simulated")
    whole = scalar.kind in "usb" and scalar.name not in ("f16x2", "bf16x2")
    at_once = (COMMUTING[name], scalar.view) if name in COMMUTING and whole and not returns else None
    update = update_global = update_of(name, scalar)
    if (name, scalar.name) == ("add", "f32"):  # flushes subnormals in global memory (PTX ISA, `atom`)
        update_global = _float_update(name, scalar, flush=True)
    operation = Operation(scalar, order, update, update_global, at_once)

    def bind(site: Site) -> Closure:
        operands = list(site.operands[:-1] if policy else site.operands)
        expected = returns + 2 + (name == "cas")
        if len(operands) != expected:
            raise site.error(f"{opcode.name}.{name} takes {expected} operands, got {len(operands)}")
        targets = []
        if returns:
            items = site.items(operands.pop(0), count)
            targets = [0 if item == SINK else site.target(item, scalar) for item in items]
        base, offset = site.address(operands[0])
        values = [site.source(item, scalar) for item in site.items(operands[1], count)]
        other = site.source(operands[2], scalar) if name == "cas" else None
        _note_site(site, space, operation, returns, base)

        def run(r: Registers, s: Batch) -> None:
            address = lane_addresses(r, base, offset)
            for number, slot in enumerate(values):
                second = r[other] if other is not None else None
                where = address + number * scalar.nbytes
                old = _everywhere(s, site, space, where, (r[slot], second), operation)
                if returns and targets[number]:
                    s.write(r, targets[number], old)

        return run

    return Effect(bind, "atomic")


def _note_site(site: Site, space: str, operation: Operation, returns: bool, base: int) -> None:
    site.polls = returns
    if space != "global":
        site.widths.append(("shared", operation.scalar.nbytes))
        site.shared_atomic = True
        site.finer_order |= operation.order != "relaxed"
    if space != "shared":
        site.widths.append(("global", operation.scalar.nbytes))
        site.stores_through.append(base)


def _everywhere(
    s: Batch, site: Site, space: str, address: Index, values: tuple[Bits, Any], operation: Operation
) -> Bits:
    """Carry out an atomic in whatever state space the lanes address; return the old values (B, T)."""
    old = np.zeros((s.blocks, s.threads), operation.scalar.storage)
    places = (
        [(0, s.mask)] if space == "global" else [(1, s.mask)] if space == "shared" else windows(s, address)
    )
    for window, lanes in places:
        if window == 1:
            local = address - SHARED_WINDOW if space == "generic" else address
            _in_shared(s, site, local, values, operation, lanes, old)
        elif window == 2:
            at = int((address - LOCAL_WINDOW).max())
            s.fault(
                "out_of_bounds", "an atomic cannot reach local memory", site, s.active_lanes(), at, "local"
            )
        else:
            _in_global(s, site, address, values, operation, lanes, old)
    return old


def _in_global(
    s: Batch,
    site: Site,
    address: Index,
    values: tuple[Bits, Any],
    operation: Operation,
    lanes: Any,
    old: Bits,
) -> None:
    nbytes = operation.scalar.nbytes
    for buffer, offsets, here in global_segments(s, address, nbytes, site, lanes):
        if buffer.written is not None:
            check_written(s, buffer, offsets, nbytes, site, here)
        if s.count:
            count_global(s, s.counters.atomics, offsets, nbytes, here)
        chosen = s.active_lanes() if here is None else stretched(here, old.shape)
        turns = turns_of(s, chosen, operation)
        if buffer.races is not None:
            buffer.races.atomic(s, offsets, nbytes, chosen, site, operation.order, turns)
        index = stretched(offsets, old.shape)[chosen] >> (nbytes.bit_length() - 1)
        _apply(s, buffer.writable(nbytes), index, values, operation, chosen, old, turns, True)
        if buffer.written is not None:
            mark_written(buffer, index, nbytes)


def _in_shared(
    s: Batch,
    site: Site,
    address: Index,
    values: tuple[Bits, Any],
    operation: Operation,
    lanes: Any,
    old: Bits,
) -> None:
    nbytes = operation.scalar.nbytes
    offsets, here = shared_offsets(s, address, nbytes, site, lanes)
    if s.count:
        count_shared(s, s.counters.shared_atomics, offsets, nbytes, here)
    offsets, here = full_rows(s, offsets, here)
    chosen = s.active_lanes() if here is None else stretched(here, old.shape)
    turns = turns_of(s, chosen, operation)
    if s.races is not None:
        s.races.atomic(s, offsets, nbytes, here, site, operation.order, turns)
    if s.proxy is not None:
        s.proxy.wrote(offsets, nbytes, here, site)
    index = (stretched(offsets, old.shape) + s.shared.rows)[chosen] >> (nbytes.bit_length() - 1)
    _apply(s, s.shared.flat_view(nbytes), index, values, operation, chosen, old, turns)


def turns_of(s: Batch, chosen: NDArray[np.bool_], operation: Operation) -> Any:
    """Return the order in which lanes take their turn; None where nobody can tell it from another."""
    if operation.at_once is not None and not s.program.fences:
        return None
    return s.random().permutation(int(np.count_nonzero(chosen)))


def _apply(
    s: Batch,
    view: Bits,
    index: Index,
    values: tuple[Bits, Any],
    operation: Operation,
    chosen: Any,
    old: Bits,
    turns: Any,
    in_global: bool = False,
) -> None:
    """Update memory; `old` receives what each lane found, where lanes take turns."""
    first = stretched(values[0], chosen.shape)[chosen]
    second = stretched(values[1], chosen.shape)[chosen] if values[1] is not None else None
    if operation.at_once is not None:
        function, dtype = operation.at_once
        function.at(view.view(dtype), index, first.view(dtype))
        s.ahead += 1
    else:
        update = operation.update_global if in_global else operation.update
        old[chosen] = _serially(s, view, index, first, second, update, turns)


def _serially(
    s: Batch, view: Bits, index: Index, first: Bits, second: Any, update: Update, turns: Index
) -> Bits:
    """Apply an update lane after lane where addresses meet, in a given order; return what each lane found."""
    found = np.empty(index.shape, view.dtype)
    by_address = turns[np.argsort(index[turns], kind="stable")]
    ordered = index[by_address]
    starts = np.nonzero(np.r_[True, ordered[1:] != ordered[:-1]])[0]
    turn = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
    for number in range(int(turn.max()) + 1 if len(turn) else 0):
        lanes = by_address[turn == number]
        at = index[lanes]
        old = view[at]
        found[lanes] = old
        new = update(old, first[lanes], None if second is None else second[lanes])
        view[at] = new
        s.ahead += bool((new != old).any())
    return found
