"""cp.async.bulk between global and shared memory, without tensor maps (PTX ISA 9.7.9.25.4 and following).

A copy to shared memory is poison and in flight until an mbarrier has counted its bytes: it lands when a wait
on that mbarrier succeeds, for those that wait. A copy to global memory goes on reading shared memory until
`wait_group`, and what it writes is there at once, as the write of its thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.simulator.accesses import load_global, shared_offsets, store_global
from tuner.simulator.instructions import (
    Closure,
    Effect,
    Opcode,
    Recipe,
    Registers,
    Site,
    UnknownModifierError,
)
from tuner.simulator.loads_stores import lane_addresses
from tuner.simulator.mbarriers import arrive_bytes, objects, plain_shared
from tuner.simulator.memory import Index
from tuner.simulator.scalar_types import U32

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

CHUNK = 16
"""Sizes and addresses of bulk copies are multiples of 16 bytes."""


@dataclass(slots=True)
class BulkRead:
    """A copy out of shared memory that a thread has not waited for."""

    block: int
    thread: int
    offsets: Index
    group: int
    site: Site


@dataclass(slots=True)
class BulkReads:
    """Reads under way of a batch, and how many bulk groups each thread has committed."""

    reads: list[BulkRead]
    commits: dict[tuple[int, int], int]


def reads_of(s: Batch) -> BulkReads:
    found: BulkReads | None = s.state.get("bulk")
    if found is None:
        found = s.state["bulk"] = BulkReads([], {})
    return found


def bulk(opcode: Opcode) -> Recipe:
    """Decode what follows `cp.async.bulk`."""
    if opcode.flag("commit_group"):
        return Effect(_bind_commit, "cp.async.bulk")
    if opcode.flag("wait_group"):
        opcode.flag("read")
        return Effect(lambda site: _bind_wait(site, site.whole(site.operands[0])), "cp.async.bulk")
    if "tensor" in opcode.modifiers or "prefetch" in opcode.modifiers:
        raise UnknownModifierError(f"{opcode.text} is not simulated")
    spaces = [name for name in opcode.modifiers if name in ("global", "shared::cta", "shared::cluster")]
    opcode.modifiers = [name for name in opcode.modifiers if name not in spaces]
    policy = opcode.flag("L2::cache_hint")
    if spaces == ["shared::cluster", "global"] or spaces == ["shared::cta", "global"]:
        opcode.choice("mbarrier::complete_tx::bytes")
        return Effect(lambda site: _bind_load(site, policy), "cp.async.bulk")
    if spaces == ["global", "shared::cta"]:
        opcode.choice("bulk_group")
        return Effect(lambda site: _bind_store(site, policy), "cp.async.bulk")
    raise UnknownModifierError(f"{opcode.text} is not simulated")


def _lanes(s: Batch) -> list[tuple[int, int]]:
    return list(zip(*(axis.tolist() for axis in np.nonzero(s.active_lanes())), strict=True))


def _sizes(s: Batch, site: Site, size: Any, addresses: tuple[Any, ...]) -> Any:
    """Return the sizes (B, T); sizes and addresses that are no multiples of 16 are a fault."""
    shape = (s.blocks, s.threads)
    wrong = np.broadcast_to((size & (CHUNK - 1)) != 0, shape)
    for address in addresses:
        wrong = wrong | np.broadcast_to((address & (CHUNK - 1)) != 0, shape)
    wrong = wrong & s.active_lanes()
    if wrong.any():
        s.fault("misaligned", "addresses and size of a bulk copy must be multiples of 16", site, wrong)
    return np.where(wrong, 0, np.broadcast_to(size, shape)).astype(np.int64)


def _bind_load(site: Site, policy: bool) -> Closure:
    """[dst], [src], size, [mbarrier]."""
    site.expect(5 if policy else 4)
    target, target_offset = site.address(site.operands[0])
    source, source_offset = site.address(site.operands[1])
    size = site.source(site.operands[2], U32)
    barrier, barrier_offset = site.address(site.operands[3])
    site.widths.append(("shared", CHUNK))
    site.finer_order = True

    def run(r: Registers, s: Batch) -> None:
        shape = (s.blocks, s.threads)
        to = plain_shared(lane_addresses(r, target, target_offset))
        origin = lane_addresses(r, source, source_offset)
        sizes = _sizes(s, site, r[size], (to, origin))
        to, origin = np.broadcast_to(to, shape), np.broadcast_to(origin, shape)
        where = np.broadcast_to(plain_shared(lane_addresses(r, barrier, barrier_offset)), shape)
        outer = s.mask
        for block, thread in _lanes(s):
            only = np.zeros(shape, bool)
            only[block, thread] = True
            s.mask = only
            for start in range(0, int(sizes[block, thread]), CHUNK):
                data = load_global(s, origin + start, CHUNK, site, only, s.counters.async_copies)
                _begin(s, site, to + start, data, only, (block, int(where[block, thread]) - 1024))
        s.mask = outer

    return run


def _begin(s: Batch, site: Site, address: Index, data: Any, only: Any, key: tuple[int, int]) -> None:
    offsets, lanes = shared_offsets(s, address, CHUNK, site, only)
    if s.races is not None:
        s.races.write(s, offsets, CHUNK, lanes, site, None, in_flight=True)
    s.shared.store(offsets, CHUNK, np.full((1, CHUNK), 0xA5, np.uint8).view(data.dtype), lanes)
    found = objects(s).get(key)
    if found is None:
        s.fault("uninitialised", "no mbarrier has been initialised here", site, only, key[1] + 1024, "shared")
        return
    found.landing.append((offsets, data, lanes, site))
    arrive_bytes(found, CHUNK)


def _bind_store(site: Site, policy: bool) -> Closure:
    """[dst], [src], size."""
    site.expect(4 if policy else 3)
    target, target_offset = site.address(site.operands[0])
    source, source_offset = site.address(site.operands[1])
    size = site.source(site.operands[2], U32)
    site.widths.extend((("shared", CHUNK), ("global", CHUNK)))
    site.stores_through.append(target)

    def run(r: Registers, s: Batch) -> None:
        shape = (s.blocks, s.threads)
        to = lane_addresses(r, target, target_offset)
        origin = plain_shared(lane_addresses(r, source, source_offset))
        sizes = _sizes(s, site, r[size], (to, origin))
        to, origin = np.broadcast_to(to, shape), np.broadcast_to(origin, shape)
        state, outer = reads_of(s), s.mask
        for block, thread in _lanes(s):
            only = np.zeros(shape, bool)
            only[block, thread] = True
            s.mask = only
            for start in range(0, int(sizes[block, thread]), CHUNK):
                offsets, lanes = shared_offsets(s, origin + start, CHUNK, site, only)
                if s.races is not None:
                    threads = np.arange(s.threads, dtype=np.int64)[None, :]
                    s.races.read(s, offsets, CHUNK, lanes, site, threads)
                    s.races.hold(offsets, CHUNK, lanes, site, threads)
                store_global(s, to + start, s.shared.load(offsets, CHUNK), site, only)
                group = state.commits.get((block, thread), 0)
                state.reads.append(BulkRead(block, thread, offsets, group, site))
        s.mask = outer

    return run


def _bind_commit(site: Site) -> Closure:
    def run(r: Registers, s: Batch) -> None:
        commits = reads_of(s).commits
        for lane in _lanes(s):
            commits[lane] = commits.get(lane, 0) + 1

    return run


def _bind_wait(site: Site, newest: int) -> Closure:
    def run(r: Registers, s: Batch) -> None:
        state, active = reads_of(s), s.active_lanes()
        staying = []
        for read in state.reads:
            limit = state.commits.get((read.block, read.thread), 0) - newest
            if not active[read.block, read.thread] or read.group >= limit:
                staying.append(read)
            elif s.races is not None:
                only = np.zeros(active.shape, bool)
                only[read.block, read.thread] = True
                threads = np.arange(s.threads, dtype=np.int64)[None, :]
                s.races.unhold(read.offsets, CHUNK, only, read.site, threads)
        state.reads = staying

    return run
