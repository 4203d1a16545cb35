"""cp.async.bulk.tensor: boxes of tensors that a tensor map describes, in .tile mode (PTX ISA 9.7.9.25.5)."""

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
)
from tuner.simulator.layout import PARAMETER_BASE
from tuner.simulator.loads_stores import lane_addresses
from tuner.simulator.mbarriers import plain_shared
from tuner.simulator.memory import REGION_BITS, Index
from tuner.simulator.scalar_types import S32, SCALARS
from tuner.simulator.syntax import Address, Operand
from tuner.simulator.tensor_maps import TensorMap
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
    issues,
    read_global,
    read_shared,
    spaces_of,
)

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

SHARED_ALIGN = 128
"""Bytes: what shared memory has to be aligned to for a tensor copy."""


def tensor(opcode: Opcode) -> Recipe:
    """Decode what has `.tensor` behind `cp.async.bulk`, or behind `cp.reduce.async.bulk`."""
    opcode.choice("tensor")
    rank = int(opcode.choice("1d", "2d", "3d", "4d", "5d")[0])
    if any(name.startswith(("im2col", "tile::")) for name in opcode.modifiers):
        raise UnknownModifierError(f"{opcode.text} is not simulated; of tensor copies, .tile is")
    opcode.flag("tile")
    reduces = opcode.flag("reduce")
    policy = opcode.flag("L2::cache_hint")
    if opcode.flag("prefetch"):
        opcode.flag("L2", "global")
        return Effect(lambda site: _bind_prefetch(site, rank, policy), "cp.async.bulk.tensor")
    spaces = spaces_of(opcode)
    if spaces in (["shared::cluster", "global"], ["shared::cta", "global"]) and not reduces:
        opcode.choice("mbarrier::complete_tx::bytes")
        multicast = opcode.flag("multicast::cluster")
        return Effect(lambda site: _bind_load(site, rank, policy, multicast), "cp.async.bulk.tensor")
    if spaces == ["global", "shared::cta"]:
        operation = opcode.choice(*REDUCTIONS) if reduces else ""
        opcode.choice("bulk_group")
        return Effect(lambda site: _bind_store(site, rank, policy, operation), "cp.async.bulk.tensor")
    raise UnknownModifierError(f"{opcode.text} is not simulated")


class _Source:
    """The operand `[map, {coordinates}]`: slots of both."""

    def __init__(self, site: Site, operand: Operand, rank: int) -> None:
        if not isinstance(operand, Address) or operand.coordinates is None:
            raise site.error("a tensor map and its coordinates, as [map, {0, 0}], were expected")
        self.site, self.rank = site, rank
        self.base, self.offset = site.address(operand)
        self.slots = [site.source(item, S32) for item in site.items(operand.coordinates, rank)]

    def parts(self, r: Registers, s: Batch) -> list[tuple[TensorMap, Issue, Index]]:
        """Return the copies that active lanes issue: map, thread and blocks, coordinates (n, dimensions)."""
        found = []
        addresses = lane_addresses(r, self.base, self.offset)
        for issue in issues(s):
            at = column(addresses, s, issue)
            corner = np.stack([column(r[slot].view(np.int32), s, issue) for slot in self.slots], 1)
            for address in np.unique(at).tolist():
                chosen = at == address
                described = self.map_at(s, address, issue.lanes(s, chosen))
                if described is not None:
                    found.append((described, Issue(issue.thread, issue.rows[chosen]), corner[chosen]))
        return found

    def map_at(self, s: Batch, address: int, lanes: NDArray[np.bool_]) -> TensorMap | None:
        """Return the tensor map at a generic address; record where there is none, or one of another rank."""
        if address >= PARAMETER_BASE:
            found = s.context.tensor_maps.get(address - PARAMETER_BASE)
        else:
            buffer = s.memory.by_region.get(address >> REGION_BITS)
            found = buffer.tensor_maps.get(address - buffer.base) if buffer is not None else None
        if found is None:
            message = (
                f"nobody has described a tensor map at address {address:#x}: pass a TensorMap to the launch"
            )
            s.fault("uninitialised", message, self.site, lanes)
        elif len(found.sizes) != self.rank:
            message = f"the tensor map of {found.buffer!r} has {len(found.sizes)} dimensions, not {self.rank}"
            s.fault("out_of_bounds", message, self.site, lanes)
            found = None
        return found


def _aligned(s: Batch, site: Site, issue: Issue, address: Index) -> NDArray[np.bool_]:
    """Return which shared addresses (n,) are fit for a tensor copy; record the others."""
    good: NDArray[np.bool_] = np.asarray((address & (SHARED_ALIGN - 1)) == 0)
    if not good.all():
        at = int(address[~good][0])
        message = f"shared address {at} of a tensor copy is no multiple of {SHARED_ALIGN}"
        s.fault("misaligned", message, site, issue.lanes(s, ~good), at, "shared")
    return good


def _addresses(described: TensorMap, start: Index) -> Index:
    """Return where the pieces of boxes at shared addresses (n,) lie, (n, N)."""
    pieces = np.arange(0, described.box_bytes, PIECE, dtype=np.int64)
    return described.swizzled(start[:, None] + pieces)


def _bind_load(site: Site, rank: int, policy: bool, multicast: bool) -> Closure:
    """[dst], [map, {coordinates}], [mbarrier] {, mask} {, policy}."""
    site.expect(3 + multicast + policy)
    target, target_offset = site.address(site.operands[0])
    source = _Source(site, site.operands[1], rank)
    barrier, barrier_offset = site.address(site.operands[2])
    mask = site.source(site.operands[3], U16) if multicast else 0
    site.widths.append(("shared", PIECE))
    site.finer_order = True

    def run(r: Registers, s: Batch) -> None:
        for described, issue, corner in source.parts(r, s):
            if multicast:
                check_multicast(s, site, issue, r[mask])
            to = column(plain_shared(lane_addresses(r, target, target_offset)), s, issue)
            where = column(plain_shared(lane_addresses(r, barrier, barrier_offset)), s, issue)
            good = _aligned(s, site, issue, to)
            offsets, inside = described.places(corner)
            nbytes, buffer = described.element_bytes, s.memory.buffers[described.buffer]
            values = read_global(s, site, issue, buffer, offsets, nbytes, inside & good[:, None])
            values = np.where(inside, values, values.dtype.type(described.fill_bits))
            data = np.ascontiguousarray(values).view(np.complex128)
            there = np.broadcast_to(good[:, None], data.shape)
            begin_load(s, site, issue, _addresses(described, to), data, there, where)

    return run


def _bind_store(site: Site, rank: int, policy: bool, operation: str) -> Closure:
    """[map, {coordinates}], [src] {, policy}."""
    site.expect(2 + policy)
    target = _Source(site, site.operands[0], rank)
    source, source_offset = site.address(site.operands[1])
    site.widths.append(("shared", PIECE))
    site.stores_tensors = site.async_reads = True

    def run(r: Registers, s: Batch) -> None:
        for described, issue, corner in target.parts(r, s):
            origin = column(plain_shared(lane_addresses(r, source, source_offset)), s, issue)
            good = _aligned(s, site, issue, origin)
            addresses = _addresses(described, origin)
            there = np.broadcast_to(good[:, None], addresses.shape)
            pieces, data = read_shared(s, site, issue, addresses, there)
            offsets, inside = described.places(corner)
            values: NDArray[Any] = np.ascontiguousarray(data).view(f"u{described.element_bytes}")
            change = change_of(operation, SCALARS[described.dtype])
            buffer = s.memory.buffers[described.buffer]
            goes = inside & good[:, None]
            writes = begin_writes(s, site, issue, buffer, offsets, values, goes, change)
            begin_sending(s, site, issue, pieces, there, writes)

    return run


def _bind_prefetch(site: Site, rank: int, policy: bool) -> Closure:
    """[map, {coordinates}] {, policy}: nothing that a program can see, but the map has to be one."""
    site.expect(1 + policy)
    source = _Source(site, site.operands[0], rank)

    def run(r: Registers, s: Batch) -> None:
        source.parts(r, s)

    return run
