"""cp.async and its groups, taken at their worst (PTX ISA 9.7.9.25).

From issue until the issuing thread waits, the destination holds poison and is in flight: a read or write of
it is a race. At the wait it becomes that thread's write of that moment; other threads still need a barrier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.accesses import count_global, count_shared, full_rows, global_segments, shared_offsets
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
from tuner.simulator.loads_stores import lane_addresses, take_hints
from tuner.simulator.memory import ELEMENTS, Index
from tuner.simulator.scalar_types import PREDICATE, U32
from tuner.simulator.shapes import stretched

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch


@dataclass(slots=True)
class Flight:
    """A copy under way: where it goes, what it brings, and the commit count of its threads when it was
    issued.
    """

    offsets: Index
    nbytes: int
    data: NDArray[Any]
    lanes: Any
    group: Any
    site: Site


@dataclass(slots=True)
class Copies:
    """Copies in flight of a batch, and how many groups each thread has committed (one number while all
    agree).
    """

    flights: list[Flight]
    commits: Any = 0


def copies_of(batch: Batch) -> Copies:
    found: Copies | None = batch.state.get("copies")
    if found is None:
        found = batch.state["copies"] = Copies([])
    return found


@instruction("cp")
def cp(opcode: Opcode) -> Recipe:
    if not opcode.flag("async"):
        raise UnknownModifierError(f"{opcode.text} is not simulated")
    if opcode.flag("bulk"):
        from tuner.simulator.bulk_copies import bulk

        return bulk(opcode)
    if opcode.flag("mbarrier"):
        from tuner.simulator.mbarriers import bind_copy_arrive

        opcode.choice("arrive")
        counted = not opcode.flag("noinc")
        opcode.flag("shared", "shared::cta")
        opcode.choice("b64")
        return Effect(lambda site: bind_copy_arrive(site, counted), "mbarrier")
    if opcode.flag("commit_group"):
        return Effect(_bind_commit, "cp.async.commit")
    if opcode.flag("wait_group"):
        return Effect(_bind_wait_group, "cp.async.wait")
    if opcode.flag("wait_all"):
        return Effect(lambda site: _bind_wait(site, -1), "cp.async.wait")
    cache = opcode.choice("ca", "cg")
    policy = take_hints(opcode)
    opcode.choice("shared", "shared::cta")
    opcode.choice("global")
    return Effect(lambda site: _bind_copy(site, cache, policy), "cp.async")


def _bind_wait_group(site: Site) -> Closure:
    site.expect(1)
    return _bind_wait(site, site.whole(site.operands[0]))


def _bind_copy(site: Site, cache: str, policy: bool) -> Closure:
    operands = site.operands[:-1] if policy else site.operands
    if len(operands) not in (3, 4):
        raise site.error("cp.async takes [dst], [src], cp-size and an optional src-size or ignore-src")
    nbytes = site.whole(operands[2])
    if nbytes not in (4, 8, 16) or (cache == "cg" and nbytes != 16):
        raise site.error(
            f"cp-size of cp.async.{cache} must be {'16' if cache == 'cg' else '4, 8 or 16'}, got {nbytes}"
        )
    target, target_offset = site.address(operands[0])
    source, source_offset = site.address(operands[1])
    site.widths.append(("shared", nbytes))
    size_slot = ignore = None
    negated = False
    if len(operands) == 4:
        name = getattr(operands[3], "text", None)
        slot = site.layout.register(name) if name else None
        if (slot is not None and site.layout.dtypes[slot] == PREDICATE.storage) or hasattr(
            operands[3], "operand"
        ):
            ignore, negated = site.predicate(operands[3])
        else:
            size_slot = site.source(operands[3], U32)

    def run(r: Registers, s: Batch) -> None:
        size = None
        if size_slot is not None:
            size = r[size_slot]
        elif ignore is not None:
            size = np.where(~r[ignore] if negated else r[ignore], np.uint32(0), np.uint32(nbytes))
        issue(
            s,
            site,
            lane_addresses(r, target, target_offset),
            lane_addresses(r, source, source_offset),
            nbytes,
            size,
        )

    return run


def issue(s: Batch, site: Site, target: Index, source: Index, nbytes: int, size: Any) -> None:
    """Read the source now, poison the destination, and keep the data until the wait."""
    offsets, lanes = shared_offsets(s, target, nbytes, site, s.mask)
    offsets, full = full_rows(s, offsets, lanes)
    data = _source_bytes(s, site, source, nbytes, size, lanes)
    if s.count:
        count_shared(s, s.counters.async_writes, offsets, nbytes, lanes)
    if s.races is not None:
        s.races.write(s, offsets, nbytes, full, site, None, in_flight=True)
    s.shared.store(offsets, nbytes, _poison(nbytes), full)
    copies = copies_of(s)
    copies.flights.append(Flight(offsets, nbytes, data, full, copies.commits, site))


def _poison(nbytes: int) -> NDArray[Any]:
    return np.full((1, nbytes), 0xA5, np.uint8).view(ELEMENTS[nbytes])


def _source_bytes(s: Batch, site: Site, source: Index, nbytes: int, size: Any, lanes: Any) -> NDArray[Any]:
    """Return what each lane copies; bytes beyond `size` are zero and are not read."""
    reading = lanes
    partial = False
    if size is not None:
        over = size > nbytes
        bad = over & s.active_lanes() if lanes is None else over & lanes
        if bad.any():
            message = f"src-size must be at most cp-size {nbytes}, got {int(size.max())}"
            s.fault("out_of_bounds", message, site, bad)
            size = np.minimum(size, np.uint32(nbytes))
        whole = size == nbytes
        if not whole.all():
            partial = bool(((size > 0) & ~whole).any())
            reading = whole if lanes is None else whole & lanes
    dtype = ELEMENTS[nbytes]
    result: NDArray[Any] = np.zeros((1, 1), dtype)
    if reading is None or reading.any():
        for buffer, offsets, here in global_segments(s, source, nbytes, site, reading):
            if buffer.written is not None:
                from tuner.simulator.accesses import check_written

                check_written(s, buffer, offsets, nbytes, site, here)
            if s.count:
                count_global(s, s.counters.async_copies, offsets, nbytes, here)
            if buffer.races is not None:
                buffer.races.read(s, offsets, nbytes, here, site)
            loaded = buffer.view(nbytes).take(offsets >> (nbytes.bit_length() - 1))
            result = loaded if here is None else np.where(here, loaded, result)
    if partial:
        result = _partial_bytes(s, site, source, nbytes, size, lanes, result)
    return result


def _partial_bytes(
    s: Batch, site: Site, source: Index, nbytes: int, size: Any, lanes: Any, result: Any
) -> Any:
    shape = (s.blocks, s.threads)
    filled = np.ascontiguousarray(stretched(result, shape)).view(np.uint8).reshape(*shape, nbytes).copy()
    active = np.broadcast_to(True if lanes is None else lanes, shape)
    some = active & (size > 0) & (size < nbytes)
    for byte in range(nbytes - 1):
        here = some & (size > byte)
        if not here.any():
            break
        for buffer, offsets, at in global_segments(s, source + byte, 1, site, here):
            filled[at, byte] = buffer.view(1)[offsets[at]]
            if s.count and byte == 0:
                count_global(s, s.counters.async_copies, offsets, 1, at)
    return filled.view(ELEMENTS[nbytes])[..., 0]


def _bind_commit(site: Site) -> Closure:
    site.expect(0)

    def run(r: Registers, s: Batch) -> None:
        copies = copies_of(s)
        if s.mask is None:
            copies.commits = copies.commits + 1
        else:
            copies.commits = copies.commits + np.where(s.active_lanes(), 1, 0)

    return run


def _bind_wait(site: Site, newest: int) -> Closure:
    """Wait until at most `newest` of the latest groups are under way; -1 waits for uncommitted copies too."""
    site.expect(0 if newest < 0 else 1)

    def run(r: Registers, s: Batch) -> None:
        copies = copies_of(s)
        limit = copies.commits + 1 if newest < 0 else copies.commits - newest
        staying = []
        for flight in copies.flights:
            done = flight.group < limit
            if s.mask is None and done is True:
                land(s, flight, flight.lanes)
            elif done is False:
                staying.append(flight)
            else:
                staying.extend(_land_some(s, flight, done))
        copies.flights = staying

    return run


def _land_some(s: Batch, flight: Flight, done: Any) -> list[Flight]:
    """Land the lanes that waited for their group; return the rest of the flight."""
    flying = np.broadcast_to(True if flight.lanes is None else flight.lanes, (s.blocks, s.threads))
    landing = flying & done & s.active_lanes()
    if landing.any():
        land(s, flight, landing)
    left = flying & ~landing
    if not left.any():
        return []
    return [Flight(flight.offsets, flight.nbytes, flight.data, left, flight.group, flight.site)]


def land(s: Batch, flight: Flight, lanes: Any) -> None:
    s.shared.store(flight.offsets, flight.nbytes, flight.data, lanes)
    if s.races is not None:
        s.races.land(flight.offsets, flight.nbytes, lanes, flight.site)
    if s.proxy is not None:
        s.proxy.wrote(flight.offsets, flight.nbytes, lanes, flight.site)


def land_all_of(s: Batch, copies: Copies, lanes: Any) -> None:
    """Land every copy that some lanes (B, T) have issued."""
    staying = []
    outer = s.mask
    s.mask = lanes
    for flight in copies.flights:
        staying.extend(_land_some(s, flight, True))
    s.mask = outer
    copies.flights = staying
