"""Asynchronous copies of many bytes by one thread, in 16-byte pieces: what bulk and tensor copies share.

A copy to shared memory is poison and in flight until an mbarrier has counted its bytes: it lands when a wait
on that mbarrier succeeds, for those that wait. A copy to global memory goes on reading shared memory until
`wait_group.read`, and its destination is poison until `wait_group`, or the end of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.accesses import mark_written, unwritten, unwritten_fault
from tuner.simulator.atomics import COMMUTING, update_of
from tuner.simulator.mbarriers import Landing, arrive_bytes, objects
from tuner.simulator.memory import Buffer, Index
from tuner.simulator.scalar_types import POISON, SCALARS, Scalar

if TYPE_CHECKING:
    from tuner.simulator.counters import Traffic
    from tuner.simulator.instructions import Opcode, Site
    from tuner.simulator.machine import Batch

PIECE = 16
U16 = SCALARS["u16"]
REDUCTIONS = (*COMMUTING, "inc", "dec")
Mask = NDArray[np.bool_]
Change = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
"""(old, new) -> what a reduction leaves."""


def spaces_of(opcode: Opcode) -> list[str]:
    """Take the state spaces: destination and source."""
    spaces = [name for name in opcode.modifiers if name in ("global", "shared::cta", "shared::cluster")]
    opcode.modifiers = [name for name in opcode.modifiers if name not in spaces]
    return spaces


def change_of(operation: str, scalar: Scalar | None) -> Change | None:
    """Return how a reduction changes elements; None for a plain copy."""
    if not operation or scalar is None:
        return None
    update = update_of(operation, scalar)
    return lambda old, new: update(old, new, None)


@dataclass(frozen=True, slots=True)
class Issue:
    """One thread, in the rows (n,) of the batch whose blocks it issues a copy in."""

    thread: int
    rows: NDArray[np.int64]

    def lanes(self, s: Batch, some: Any = True) -> Mask:
        """Return the lanes (B, T) that issue, or `some` (n,) of them."""
        found = np.zeros((s.blocks, s.threads), bool)
        found[self.rows, self.thread] = some
        return found

    def full(self, s: Batch, values: NDArray[Any]) -> NDArray[Any]:
        """Give (n, N) values a row for each block, as the race detectors want them."""
        result = np.zeros((s.blocks, values.shape[1]), values.dtype)
        result[self.rows] = values
        return result

    def threads(self, count: int) -> Index:
        return np.full((1, count), self.thread, np.int64)


def issues(s: Batch) -> list[Issue]:
    """Return the copies that the active lanes issue, lane by lane."""
    lanes = s.active_lanes()
    return [Issue(int(t), np.flatnonzero(lanes[:, t])) for t in np.flatnonzero(lanes.any(axis=0))]


def column(values: NDArray[Any], s: Batch, issue: Issue) -> Index:
    """Return what the issuing thread holds in a register, (n,)."""
    full = np.broadcast_to(values, (s.blocks, s.threads))
    found: Index = full[issue.rows, issue.thread].astype(np.int64)
    return found


def check_multicast(s: Batch, site: Site, issue: Issue, blocks: NDArray[Any]) -> None:
    """Record masks that name other blocks than the one of a cluster of one."""
    others = column(blocks, s, issue) != 1
    if others.any():
        message = "the mask must name block 0, the only one of its cluster: larger clusters are not simulated"
        s.fault("out_of_bounds", message, site, issue.lanes(s, others))


# -- global memory --


def checked(
    s: Batch, site: Site, issue: Issue, buffer: Buffer, offsets: Index, nbytes: int, there: Mask
) -> Mask:
    """Return which of the elements (n, N) lie in their buffer; record those that do not."""
    stray = there & ((offsets < 0) | (offsets + nbytes > buffer.nbytes))
    if not stray.any():
        return there
    name, message, offset = s.memory.describe(int(offsets[stray][0]) + buffer.base, nbytes)
    s.fault("out_of_bounds", message, site, issue.lanes(s, stray.any(axis=1)), offset, "global", name)
    return there & ~stray


def read_global(
    s: Batch, site: Site, issue: Issue, buffer: Buffer, offsets: Index, nbytes: int, there: Mask
) -> NDArray[Any]:
    """Return elements (n, N) of a buffer; those not `there` hold anything."""
    there = checked(s, site, issue, buffer, offsets, nbytes, there)
    offsets = np.where(there, offsets, 0)
    if buffer.written is not None:
        missing = there & unwritten(buffer, offsets, nbytes)
        if missing.any():
            lanes = issue.lanes(s, missing.any(axis=1))
            unwritten_fault(s, site, lanes, buffer, int(offsets[missing][0]))
    _count(s, s.counters.async_copies, offsets, nbytes, there)
    if buffer.races is not None:
        threads = issue.threads(offsets.shape[1])
        buffer.races.read(s, issue.full(s, offsets), nbytes, issue.full(s, there), site, threads=threads)
    return buffer.view(nbytes).take(offsets // nbytes)


def _count(s: Batch, traffic: Traffic, offsets: Index, nbytes: int, there: Mask) -> None:
    if not s.count:
        return
    sectors = np.sort(np.where(there, offsets >> 5, -1), axis=1)
    new = np.diff(sectors, axis=1, prepend=-1) > 0
    active = int(np.count_nonzero(there))
    traffic.instructions += len(offsets)
    traffic.nbytes += active * nbytes
    traffic.sectors += int(np.count_nonzero(new))
    traffic.ideal += -(-active * nbytes // 32)


@dataclass(frozen=True, slots=True)
class Write:
    """What a copy is to leave in a buffer: elements by index, or how they are to change."""

    buffer: Buffer
    index: Index
    values: NDArray[Any]
    change: Change | None = None

    def land(self) -> None:
        nbytes = self.values.dtype.itemsize
        view = self.buffer.writable(nbytes)
        view[self.index] = self.values if self.change is None else self.change(view[self.index], self.values)
        if self.buffer.written is not None:
            mark_written(self.buffer, self.index, nbytes)


def begin_writes(
    s: Batch, site: Site, issue: Issue, buffer: Buffer, offsets: Index, values: NDArray[Any], there: Mask,
    change: Change | None = None,
) -> list[Write]:  # fmt: skip
    """Begin to write elements (n, N), which are poison from now on; return a write for each row."""
    nbytes = values.dtype.itemsize
    there = checked(s, site, issue, buffer, offsets, nbytes, there)
    offsets = np.where(there, offsets, 0)
    _count(s, s.counters.global_stores, offsets, nbytes, there)
    s.ahead += 1
    full, lanes, threads = issue.full(s, offsets), issue.full(s, there), issue.threads(offsets.shape[1])
    if buffer.races is not None and change is None:
        buffer.races.write(s, full, nbytes, lanes, site, issue.full(s, values), threads=threads)
    elif buffer.races is not None:
        buffer.races.atomic(s, full, nbytes, lanes, site, threads=threads)
    writes, view = [], buffer.writable(nbytes)
    for row, chosen in enumerate(there):
        index = offsets[row][chosen] // nbytes
        if change is None:
            view[index] = np.frombuffer(POISON.to_bytes(8, "little") * 2, view.dtype, 1)
        writes.append(Write(buffer, index, values[row][chosen], change))
    return writes


# -- shared memory --


def _in_shared(s: Batch, site: Site, issue: Issue, addresses: Index, there: Mask) -> tuple[Index, Mask]:
    """Return offsets (n, N) of pieces of shared memory, and which of them lie in it."""
    offsets = np.where(there, addresses - 1024, 0)
    stray = there & ((offsets < 0) | (offsets + PIECE > s.shared.nbytes))
    if stray.any():
        at = int(addresses[stray][0])
        message = (
            f"shared memory is {s.shared.nbytes} bytes from address 1024 on; {PIECE} bytes at {at} leave it"
        )
        s.fault("out_of_bounds", message, site, issue.lanes(s, stray.any(axis=1)), at, "shared")
        there = there & ~stray
        offsets = np.where(there, offsets, 0)
    return offsets, there


def begin_load(
    s: Batch, site: Site, issue: Issue, addresses: Index, data: NDArray[Any], there: Mask, barriers: Index
) -> None:
    """Begin to copy pieces (n, N) to shared addresses; mbarriers (n,) count their bytes."""
    counted = there.sum(axis=1) * PIECE
    offsets, there = _in_shared(s, site, issue, addresses, there)
    count = offsets.shape[1]
    if s.races is not None:
        full, lanes = issue.full(s, offsets), issue.full(s, there)
        threads = issue.threads(count)
        s.races.write(s, full, PIECE, lanes, site, None, in_flight=True, threads=threads)
        if s.proxy is not None:
            s.proxy.overwritten(full, PIECE, lanes, threads)
    flat, starts = s.shared.flat_view(PIECE), s.shared.rows[issue.rows]
    flat[((offsets + starts) >> 4)[there]] = np.full(PIECE, 0xA5, np.uint8).view(flat.dtype)
    if s.count:
        traffic, active = s.counters.async_writes, int(np.count_nonzero(there))
        traffic.instructions += len(offsets)
        traffic.nbytes += active * PIECE
        traffic.wavefronts += -(-active // 8)
        traffic.ideal += -(-active // 8)
    known, missing = objects(s), np.zeros(len(issue.rows), bool)
    for number, row in enumerate(issue.rows.tolist()):
        barrier = known.get((row, int(barriers[number]) - 1024))
        if barrier is None:
            missing[number] = True
            continue
        chosen = there[number]
        landing = Landing(offsets[number][chosen], data[number][chosen])
        arrive_bytes(barrier, landing, int(counted[number]))
    if missing.any():
        at = int(barriers[missing][0])
        message = "no mbarrier has been initialised here"
        s.fault("uninitialised", message, site, issue.lanes(s, missing), at, "shared")


@dataclass(slots=True)
class Sending:
    """A copy out of shared memory under way: the pieces (N,) it reads until `held` ends, and its write."""

    block: int
    thread: int
    offsets: Index
    group: int
    site: Site
    write: Write | None
    held: bool = True


@dataclass(slots=True)
class Sendings:
    """Copies out of shared memory of a batch, and how many bulk groups each thread has committed."""

    under_way: list[Sending]
    commits: dict[tuple[int, int], int]


def sendings_of(s: Batch) -> Sendings:
    found: Sendings | None = s.state.get("sendings")
    if found is None:
        found = s.state["sendings"] = Sendings([], {})
    return found


def read_shared(
    s: Batch, site: Site, issue: Issue, addresses: Index, there: Mask
) -> tuple[Index, NDArray[Any]]:
    """Begin to read pieces (n, N); return their offsets and contents now."""
    offsets, there = _in_shared(s, site, issue, addresses, there)
    if s.races is not None:
        full, lanes, threads = issue.full(s, offsets), issue.full(s, there), issue.threads(offsets.shape[1])
        s.races.read(s, full, PIECE, lanes, site, threads)
        s.races.hold(full, PIECE, lanes, site, threads)
        if s.proxy is not None:
            s.proxy.read(s, full, PIECE, lanes, site, threads)
    return offsets, s.shared.flat_view(PIECE).take((offsets + s.shared.rows[issue.rows]) >> 4)


def begin_sending(
    s: Batch, site: Site, issue: Issue, offsets: Index, there: Mask, writes: list[Write]
) -> None:
    """Keep copies (n, N) out of shared memory until they are waited for."""
    state = sendings_of(s)
    for number, row in enumerate(issue.rows.tolist()):
        group = state.commits.get((row, issue.thread), 0)
        chosen = offsets[number][there[number]]
        state.under_way.append(Sending(row, issue.thread, chosen, group, site, writes[number]))


def commit(s: Batch) -> None:
    """The active lanes close a bulk group."""
    commits = sendings_of(s).commits
    for row, thread in zip(*(axis.tolist() for axis in np.nonzero(s.active_lanes())), strict=True):
        commits[row, thread] = commits.get((row, thread), 0) + 1


def wait(s: Batch, newest: int, reads_only: bool) -> None:
    """The active lanes wait until at most `newest` of their groups are under way, or still read."""
    state, active = sendings_of(s), s.active_lanes()
    staying = []
    for sending in state.under_way:
        limit = state.commits.get((sending.block, sending.thread), 0) - newest
        if not active[sending.block, sending.thread] or sending.group >= limit:
            staying.append(sending)
            continue
        if sending.held and s.races is not None:
            _let_go(s, sending)
        sending.held = False
        if reads_only:
            staying.append(sending)
        elif sending.write is not None:
            sending.write.land()
    state.under_way = staying


def _let_go(s: Batch, sending: Sending) -> None:
    count = len(sending.offsets)
    if not count or s.races is None:
        return
    lanes = np.zeros((s.blocks, count), bool)
    lanes[sending.block] = True
    threads = np.full((1, count), sending.thread, np.int64)
    s.races.unhold(sending.offsets[None, :], PIECE, lanes, sending.site, threads)


def end_sendings(s: Batch) -> None:
    """The blocks have ended: what they copy to global memory is there for the next launch."""
    state: Sendings | None = s.state.get("sendings")
    for sending in state.under_way if state is not None else ():
        if sending.held:
            where = f"PTX line {sending.site.line}"
            s.note(f"a thread ends, and nothing has waited until its copy has read shared memory ({where})")
        if sending.write is not None:
            sending.write.land()
