"""ld, st and their vectors in every state space (PTX ISA 9.7.9.8 and following)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.accesses import load_global, load_shared, store_global, store_shared
from tuner.simulator.instructions import Closure, Effect, Opcode, Recipe, Registers, Site, instruction
from tuner.simulator.local_memory import load_local, store_local
from tuner.simulator.memory import ELEMENTS, LOCAL_WINDOW, SHARED_WINDOW, Index
from tuner.simulator.scalar_types import Scalar
from tuner.simulator.syntax import SINK, Address
from tuner.simulator.tensor_maps import MAP_BYTES

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "param", "const")
_ORDER = ("weak", "relaxed", "acquire", "release", "volatile", "mmio")
_SCOPE = ("cta", "cluster", "gpu", "sys")
_CACHE = ("nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt")


def take_order(opcode: Opcode) -> str:
    """Take the memory order: "" for weak accesses; volatile ones are relaxed."""
    order = opcode.choice(*_ORDER, "acq_rel", default="weak")
    return {"weak": "", "volatile": "relaxed", "mmio": "relaxed"}.get(order, order)


def take_hints(opcode: Opcode) -> bool:
    """Take the modifiers that change no value; return whether a cache-policy operand follows."""
    policy = False
    for name in list(opcode.modifiers):
        if name in _SCOPE or name in _CACHE or name.startswith(("L1::", "L2::")):
            opcode.modifiers.remove(name)
            policy |= name == "L2::cache_hint"
    return policy


def lane_addresses(r: Registers, slot: int, offset: int) -> Index:
    """Return addresses as int64."""
    value = r[slot]
    address: Index = value.view(np.int64) if value.dtype.itemsize == 8 else value.astype(np.int64)
    return address + offset if offset else address


def parts_of(loaded: NDArray[Any], scalar: Scalar, count: int) -> list[NDArray[Any]]:
    """Split vector elements into their registers."""
    if count == 1:
        return [loaded]
    split = np.ascontiguousarray(loaded).view(scalar.storage).reshape(*loaded.shape, count)
    return [split[..., number] for number in range(count)]


def extended(value: NDArray[Any], scalar: Scalar, stored: np.dtype[Any]) -> NDArray[Any]:
    """Sign- or zero-extend a loaded value to its register."""
    if value.dtype == stored:
        return value
    view = scalar.view if scalar.kind == "s" else scalar.storage
    wide = np.dtype(f"{'i' if scalar.kind == 's' else 'u'}{stored.itemsize}")
    return value.view(view).astype(wide).view(stored)


@instruction("ld", "ldu")
def ld(opcode: Opcode) -> Recipe:
    order, policy = take_order(opcode), take_hints(opcode)
    space = opcode.choice(*SPACES, "param::entry", "param::func", default="generic").split("::")[0]
    count = int(opcode.choice("v2", "v4", "v8", default="v1")[1:])
    scalar = opcode.type()

    def bind(site: Site) -> Closure:
        site.expect(3 if policy else 2)
        targets = [
            (number, site.target(item, scalar, wide=True), site)
            for number, item in enumerate(site.items(site.operands[0], count))
            if item != SINK
        ]
        slots = [(number, slot, site.layout.dtypes[slot]) for number, slot, _ in targets]
        if space == "param":
            found = _parameter(site)
            if found is not None:
                site.parameter = found
                return _load_parameter(site, scalar, slots)
        base, offset = site.address(site.operands[1])
        load = _loader(space, scalar.nbytes * count, site, order)

        def run(r: Registers, s: Batch) -> None:
            loaded = load(s, lane_addresses(r, base, offset))
            parts = parts_of(loaded, scalar, count)
            for number, slot, stored in slots:
                s.write(r, slot, extended(parts[number], scalar, stored))

        return run

    return Effect(bind, f"ld.{space}")


def _parameter(site: Site) -> int | None:
    """Return the byte offset into the kernel's parameters that an address names; None for other addresses."""
    operand = site.operands[1]
    if isinstance(operand, Address) and operand.base is not None:
        space, start = site.layout.addresses.get(operand.base.text, ("", 0))
        if space == "kernel_param":
            return start + operand.offset
    return None


def _load_parameter(site: Site, scalar: Scalar, slots: list[tuple[int, int, np.dtype[Any]]]) -> Closure:
    start = site.parameter

    def run(r: Registers, s: Batch) -> None:
        if any(0 <= start - place < MAP_BYTES for place in s.context.tensor_maps):
            message = "the bytes of a tensor map are opaque: only tensor copies read them"
            s.fault("uninitialised", message, site, s.active_lanes(), start, "param")
        for number, slot, stored in slots:
            value = np.frombuffer(s.context.parameters, scalar.storage, 1, start + number * scalar.nbytes)
            s.write(r, slot, extended(value.reshape(1, 1), scalar, stored))

    return run


def _loader(space: str, nbytes: int, site: Site, order: str) -> Any:
    site.polls = bool(order)
    site.finer_order |= bool(order) and space in ("shared", "generic")
    if space == "shared":
        site.widths.append(("shared", nbytes))
        return lambda s, address: load_shared(s, address, nbytes, site, s.mask, order)
    if space in ("global", "const"):
        return lambda s, address: load_global(
            s, address, nbytes, site, s.mask, s.counters.global_loads, order
        )
    if space in ("local", "param"):
        return lambda s, address: load_local(s, address, nbytes, site, s.mask)
    site.widths.append(("shared", nbytes))
    return lambda s, address: _load_generic(s, address, nbytes, site, order)


def _load_generic(s: Batch, address: Index, nbytes: int, site: Site, order: str) -> NDArray[Any]:
    result = None
    for window, lanes in windows(s, address):
        if window == 1:
            found = load_shared(s, address - SHARED_WINDOW, nbytes, site, lanes, order)
        elif window == 2:
            found = load_local(s, address - LOCAL_WINDOW, nbytes, site, lanes)
        else:
            found = load_global(s, address, nbytes, site, lanes, s.counters.global_loads, order)
        result = found if result is None else np.where(lanes, found, result)
    assert result is not None
    return result


def windows(s: Batch, address: Index) -> list[tuple[int, Any]]:
    """Sort the active lanes by the state space that their generic address lies in."""
    space = (address >> 60).clip(0, 3)
    space[space == 3] = 0
    if (space == space[0, 0]).all():
        return [(int(space[0, 0]), s.mask)]
    lanes = s.active_lanes()
    return [(window, lanes & (space == window)) for window in (0, 1, 2) if (lanes & (space == window)).any()]


@instruction("st")
def st(opcode: Opcode) -> Recipe:
    order, policy = take_order(opcode), take_hints(opcode)
    space = opcode.choice(*SPACES, "param::func", default="generic").split("::")[0]
    count = int(opcode.choice("v2", "v4", "v8", default="v1")[1:])
    scalar = opcode.type()

    def bind(site: Site) -> Closure:
        site.expect(3 if policy else 2)
        base, offset = site.address(site.operands[0])
        slots = [site.source(item, scalar, wide=True) for item in site.items(site.operands[1], count)]
        store = _storer(space, scalar.nbytes * count, site, order)
        if space in ("global", "generic"):
            site.stores_through.append(base)
        storage, packed = scalar.storage, ELEMENTS[scalar.nbytes * count]

        def run(r: Registers, s: Batch) -> None:
            if count == 1:
                values = r[slots[0]]
                if values.dtype != storage:
                    values = values.astype(storage)
            else:
                values = _joined([r[slot] for slot in slots], storage, packed)
            store(s, lane_addresses(r, base, offset), values)

        return run

    return Effect(bind, f"st.{space}")


def _joined(parts: list[NDArray[Any]], storage: np.dtype[Any], packed: np.dtype[Any]) -> NDArray[Any]:
    """Lay registers side by side as one vector element a lane."""
    shape = np.broadcast_shapes(*(part.shape for part in parts))
    joined = np.empty((*shape, len(parts)), storage)
    for number, part in enumerate(parts):
        joined[..., number] = part
    return joined.view(packed)[..., 0]


def _storer(space: str, nbytes: int, site: Site, order: str) -> Any:
    site.finer_order |= bool(order) and space in ("shared", "generic")
    if space == "shared":
        site.widths.append(("shared", nbytes))
        return lambda s, address, values: store_shared(s, address, values, site, s.mask, order)
    if space == "global":
        site.widths.append(("global", nbytes))
        return lambda s, address, values: store_global(s, address, values, site, s.mask, order)
    if space in ("local", "param"):
        return lambda s, address, values: store_local(s, address, values, site, s.mask)
    if space == "const":
        raise site.error("constant memory cannot be written")
    site.widths.extend((("shared", nbytes), ("global", nbytes)))

    def generic(s: Batch, address: Index, values: NDArray[Any]) -> None:
        for window, lanes in windows(s, address):
            if window == 1:
                store_shared(s, address - SHARED_WINDOW, values, site, lanes, order)
            elif window == 2:
                store_local(s, address - LOCAL_WINDOW, values, site, lanes)
            else:
                store_global(s, address, values, site, lanes, order)

    return generic
