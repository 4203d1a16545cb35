"""cp.async.bulk between global and shared memory: runs of bytes (PTX ISA 9.7.9.25.4); see `transfers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    nothing,
)
from tuner.simulator.loads_stores import lane_addresses
from tuner.simulator.mbarriers import plain_shared
from tuner.simulator.memory import REGION_BITS, Buffer, Index
from tuner.simulator.scalar_types import U32, Scalar
from tuner.simulator.tensor_copies import tensor
from tuner.simulator.transfers import (
    PIECE,
    REDUCTIONS,
    U16,
    Issue,
    begin_load,
    begin_sending,
    begin_writes,
    change_of,
    check_multicast,
    column,
    commit,
    issues,
    read_global,
    read_shared,
    spaces_of,
    wait,
)

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch


def bulk(opcode: Opcode) -> Recipe:
    """Decode what follows `cp.async.bulk`, or `cp.reduce.async.bulk`."""
    if opcode.flag("commit_group"):
        return Effect(lambda site: lambda r, s: commit(s), "cp.async.bulk")
    if opcode.flag("wait_group"):
        reads_only = opcode.flag("read")
        return Effect(lambda site: _bind_wait(site, reads_only), "cp.async.bulk")
    if "tensor" in opcode.modifiers:
        return tensor(opcode)
    reduces = opcode.flag("reduce")
    policy = opcode.flag("L2::cache_hint")
    if opcode.flag("prefetch"):
        opcode.flag("L2", "global")
        return Effect(nothing, "cp.async.bulk")
    spaces = spaces_of(opcode)
    if spaces in (["shared::cluster", "global"], ["shared::cta", "global"]) and not reduces:
        opcode.choice("mbarrier::complete_tx::bytes")
        multicast = opcode.flag("multicast::cluster")
        return Effect(lambda site: _bind_load(site, policy, multicast), "cp.async.bulk")
    if spaces == ["global", "shared::cta"]:
        opcode.choice("bulk_group")
        operation = opcode.choice(*REDUCTIONS) if reduces else ""
        opcode.flag("noftz")
        scalar = opcode.type() if reduces else None
        return Effect(lambda site: _bind_store(site, policy, operation, scalar), "cp.async.bulk")
    raise UnknownModifierError(f"{opcode.text} is not simulated")


def _pieces(
    s: Batch, site: Site, issue: Issue, size: Index, *addresses: Index
) -> tuple[Index, NDArray[np.bool_]]:
    """Return the offsets (1, N) of pieces, and which of them each copy (n,) has."""
    wrong = (size & (PIECE - 1)) != 0
    for address in addresses:
        wrong = wrong | ((address & (PIECE - 1)) != 0)
    if wrong.any():
        message = "addresses and size of a bulk copy must be multiples of 16"
        s.fault("misaligned", message, site, issue.lanes(s, wrong))
    size = np.where(wrong, 0, size)
    steps = np.arange(0, max(int(size.max()), PIECE), PIECE, dtype=np.int64)[None, :]
    return steps, steps < size[:, None]


def _buffers(s: Batch, site: Site, issue: Issue, address: Index) -> list[tuple[Buffer, NDArray[np.int64]]]:
    """Return the buffers that addresses (n,) lie in, each with the copies that go there."""
    found = []
    for region in np.unique(address >> REGION_BITS).tolist():
        chosen = np.flatnonzero(address >> REGION_BITS == region)
        buffer = s.memory.by_region.get(region)
        if buffer is not None:
            found.append((buffer, chosen))
            continue
        name, message, offset = s.memory.describe(int(address[chosen[0]]), PIECE)
        lanes = np.isin(np.arange(len(address)), chosen)
        s.fault("out_of_bounds", message, site, issue.lanes(s, lanes), offset, "global", name)
    return found


def _bind_load(site: Site, policy: bool, multicast: bool) -> Closure:
    """[dst], [src], size, [mbarrier] {, mask} {, policy}."""
    site.expect(4 + multicast + policy)
    target, target_offset = site.address(site.operands[0])
    source, source_offset = site.address(site.operands[1])
    size = site.source(site.operands[2], U32)
    barrier, barrier_offset = site.address(site.operands[3])
    mask = site.source(site.operands[4], U16) if multicast else 0
    site.widths.append(("shared", PIECE))
    site.finer_order = True

    def run(r: Registers, s: Batch) -> None:
        for issue in issues(s):
            if multicast:
                check_multicast(s, site, issue, r[mask])
            to = column(plain_shared(lane_addresses(r, target, target_offset)), s, issue)
            origin = column(lane_addresses(r, source, source_offset), s, issue)
            steps, there = _pieces(s, site, issue, column(r[size], s, issue), to, origin)
            where = column(plain_shared(lane_addresses(r, barrier, barrier_offset)), s, issue)
            data = np.zeros(there.shape, np.complex128)
            for buffer, chosen in _buffers(s, site, issue, origin):
                part = Issue(issue.thread, issue.rows[chosen])
                offsets = origin[chosen, None] - buffer.base + steps
                data[chosen] = read_global(s, site, part, buffer, offsets, PIECE, there[chosen])
            begin_load(s, site, issue, to[:, None] + steps, data, there, where)

    return run


def _bind_store(site: Site, policy: bool, operation: str, scalar: Scalar | None) -> Closure:
    """[dst], [src], size {, policy}."""
    site.expect(4 if policy else 3)
    target, target_offset = site.address(site.operands[0])
    source, source_offset = site.address(site.operands[1])
    size = site.source(site.operands[2], U32)
    width = scalar.nbytes if scalar is not None else PIECE
    change = change_of(operation, scalar)
    site.widths.extend((("shared", PIECE), ("global", width)))
    site.stores_through.append(target)
    site.async_reads = True

    def run(r: Registers, s: Batch) -> None:
        for issue in issues(s):
            to = column(lane_addresses(r, target, target_offset), s, issue)
            origin = column(plain_shared(lane_addresses(r, source, source_offset)), s, issue)
            steps, there = _pieces(s, site, issue, column(r[size], s, issue), to, origin)
            offsets, data = read_shared(s, site, issue, origin[:, None] + steps, there)
            values = np.ascontiguousarray(data).view(f"u{width}" if width < PIECE else data.dtype)
            inner = np.arange(0, PIECE, width, dtype=np.int64)
            places = (steps[..., None] + inner).reshape(1, -1)
            for buffer, chosen in _buffers(s, site, issue, to):
                part = Issue(issue.thread, issue.rows[chosen])
                goes = np.repeat(there[chosen], len(inner), axis=1)
                at = to[chosen, None] - buffer.base + places
                writes = begin_writes(s, site, part, buffer, at, values[chosen], goes, change)
                begin_sending(s, site, part, offsets[chosen], there[chosen], writes)

    return run


def _bind_wait(site: Site, reads_only: bool) -> Closure:
    newest = site.whole(site.operands[0])
    return lambda r, s: wait(s, newest, reads_only)
