"""Races on shared memory by vector clocks: for kernels whose threads are ordered by more than whole-block
barriers.

Every thread has a clock of all threads of its block (what of each it is ordered after). Barriers of any kind,
and release and acquire through atomics and fences, join clocks; an access has to be ordered after the last
write of its granule, a write also after all reads since. Same interface as `SharedRaces`, exact, and slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.faults import shared_race

if TYPE_CHECKING:
    from tuner.simulator.instructions import Site
    from tuner.simulator.machine import Batch
    from tuner.simulator.races import SharedRaces

Clocks = NDArray[np.int32]
UNWRITTEN, FLYING = -1, -2
"""Values of `write_time` beside times: nothing was written; a cp.async is on its way."""


def bytes_for_block(threads: int, nbytes: int, granule_bytes: int) -> int:
    """Return the memory that one block's clocks take."""
    return 4 * threads * (3 * threads + -(-nbytes // granule_bytes))


class ClockRaces:
    """Clocks of a batch: (B, T, T), and for each granule its last write and the reads since."""

    def __init__(self, blocks: int, threads: int, nbytes: int, granule_bytes: int) -> None:
        self.blocks, self.threads = blocks, threads
        self.shift = granule_bytes.bit_length() - 1
        self.cells = -(-max(nbytes, 1) // granule_bytes)
        self.clocks: Clocks = np.zeros((blocks, threads, threads), np.int32)
        lanes = np.arange(threads)
        self.clocks[:, lanes, lanes] = 1
        shape = (blocks, self.cells)
        self.write_time = np.full(shape, UNWRITTEN, np.int32)
        self.write_thread = np.zeros(shape, np.int16)
        self.write_site = np.zeros(shape, np.int32)
        self.read_time = np.zeros((blocks, self.cells, threads), np.int32)
        self.read_site = np.zeros(shape, np.int32)
        self.atomic_time: Clocks | None = None
        self.atomic_site = np.zeros(shape, np.int32)
        self.fenced: Clocks | None = None
        self.acquired: Clocks | None = None
        self.releases: dict[tuple[int, int], Clocks] = {}

    # -- order --

    def own(self, block: Any, thread: Any) -> Any:
        return self.clocks[block, thread, thread]

    def advance(self, block: Any, thread: Any) -> None:
        self.clocks[block, thread, thread] += 1

    def barrier(self, released: NDArray[np.bool_] | None) -> None:
        """Join all threads of the released blocks (B,), or of all blocks."""
        chosen = np.arange(self.blocks) if released is None else np.nonzero(released)[0]
        joined = self.clocks[chosen].max(axis=1)
        self.clocks[chosen] = joined[:, None, :]
        lanes = np.arange(self.threads)
        self.clocks[chosen[:, None], lanes, lanes] += 1

    def join(
        self, block: int, arriving: NDArray[np.int64], leaving: NDArray[np.int64], extra: Any = None
    ) -> None:
        """Threads that leave a barrier are ordered after all that arrived; `extra` is a clock that arrived
        earlier.
        """
        joined = (
            self.clocks[block, arriving].max(axis=0) if len(arriving) else np.zeros(self.threads, np.int32)
        )
        if extra is not None:
            joined = np.maximum(joined, extra)
        self.clocks[block, leaving] = np.maximum(self.clocks[block, leaving], joined)
        everyone = np.union1d(arriving, leaving)
        self.advance(block, everyone)

    def snapshot(self, block: int, threads: NDArray[np.int64]) -> Clocks:
        """Return what threads that arrive without waiting bring; their own time goes on."""
        joined: Clocks = self.clocks[block, threads].max(axis=0)
        self.advance(block, threads)
        return joined

    def join_warps(self, members: NDArray[np.bool_]) -> None:
        """Join the lanes (B, W, 32) of each warp that are members of a warp barrier."""
        shape = (self.blocks, -1, 32, self.threads)
        clocks = self.clocks.reshape(shape)
        joined = np.where(members[..., None], clocks, 0).max(axis=2, keepdims=True)
        self.clocks = np.where(members[..., None], joined, clocks).reshape(self.clocks.shape)
        block, thread = np.nonzero(members.reshape(self.blocks, self.threads))
        self.advance(block, thread)

    def fence(self, lanes: NDArray[np.bool_]) -> None:
        """A fence: later releases carry what is known now, and earlier acquires take effect (PTX ISA, memory
        model).
        """
        if self.fenced is None or self.acquired is None:
            self.fenced = np.zeros_like(self.clocks)
            self.acquired = np.zeros_like(self.clocks)
        self.clocks[lanes] = np.maximum(self.clocks[lanes], self.acquired[lanes])
        self.fenced[lanes] = self.clocks[lanes]
        block, thread = np.nonzero(lanes)
        self.advance(block, thread)

    def strong(self, block: Any, thread: Any, cell: Any, reads: bool, writes: bool, order: str) -> None:
        """Release and acquire through strong accesses (flat arrays); fences make relaxed ones synchronise."""
        for b, t, c in zip(block.tolist(), thread.tolist(), cell.tolist(), strict=True):
            known = self.releases.get((b, c))
            if reads and known is not None:
                if order in ("acquire", "acq_rel"):
                    self.clocks[b, t] = np.maximum(self.clocks[b, t], known)
                elif self.acquired is not None:
                    self.acquired[b, t] = np.maximum(self.acquired[b, t], known)
                else:
                    self.fenced = np.zeros_like(self.clocks)
                    self.acquired = np.zeros_like(self.clocks)
                    self.acquired[b, t] = known
            if writes:
                carried = None
                if order in ("release", "acq_rel"):
                    carried = self.clocks[b, t].copy()
                    self.advance(b, t)
                elif self.fenced is not None:
                    carried = self.fenced[b, t].copy()
                if reads and known is not None:  # a read-modify-write goes on with the release sequence
                    carried = known if carried is None else np.maximum(carried, known)
                if carried is None:
                    self.releases.pop((b, c), None)
                else:
                    self.releases[b, c] = carried

    # -- accesses --

    def select(
        self, offsets: NDArray[np.int64], nbytes: int, mask: Any, threads: Any
    ) -> tuple[Any, Any, Any]:
        """Return flat (block, thread, cell) of an access by lanes (R, N)."""
        return flat_cells(self, offsets, nbytes, mask, threads)

    def check_write(self, batch: Batch, block: Any, thread: Any, cell: Any, site: Site, how: str) -> None:
        time, writer = self.write_time[block, cell], self.write_thread[block, cell]
        flying = time == FLYING
        if flying.any():
            message = f"{how} while a cp.async to these bytes has not been waited for"
            self.report(
                batch, "race", message, site, block, thread, cell, flying, self.write_site, self.write_thread
            )
        known = self.clocks[block, thread, writer]
        bad = (time > known) & (writer != thread)
        if bad.any():
            message = f"{how}, and written by another thread that nothing orders before"
            self.report(
                batch, "race", message, site, block, thread, cell, bad, self.write_site, self.write_thread
            )

    def check_atomics(self, batch: Batch, block: Any, thread: Any, cell: Any, site: Site, how: str) -> None:
        if self.atomic_time is not None:
            bad = (self.atomic_time[block, cell] > self.clocks[block, thread]).any(axis=1)
            if bad.any():
                message = f"{how}, and changed by another thread's atomic that nothing orders before"
                self.report(batch, "race", message, site, block, thread, cell, bad, self.atomic_site, None)

    def check_reads(self, batch: Batch, block: Any, thread: Any, cell: Any, site: Site) -> None:
        bad = (self.read_time[block, cell] > self.clocks[block, thread]).any(axis=1)
        if bad.any():
            message = "written, and read by another thread that nothing orders before"
            self.report(batch, "race", message, site, block, thread, cell, bad, self.read_site, None)

    def read(
        self,
        batch: Batch,
        offsets: Any,
        nbytes: int,
        mask: Any,
        site: Site,
        threads: Any = None,
        order: str = "",
    ) -> None:
        """Check and note a read; `order` says that it is a strong one."""
        block, thread, cell = self.select(offsets, nbytes, mask, threads)
        unwritten = self.write_time[block, cell] == UNWRITTEN
        if unwritten.any():
            self.report(
                batch,
                "uninitialised",
                "shared memory is read that nothing has written",
                site,
                block,
                thread,
                cell,
                unwritten,
                None,
                None,
            )
        if order:
            self.strong(block, thread, cell, True, False, order)
            self.note_strong(block, thread, cell, site)
            return
        self.check_write(batch, block, thread, cell, site, "read")
        self.check_atomics(batch, block, thread, cell, site, "read")
        self.read_time[block, cell, thread] = self.own(block, thread)
        self.read_site[block, cell] = site.number

    def write(
        self,
        batch: Batch,
        offsets: Any,
        nbytes: int,
        mask: Any,
        site: Site,
        values: Any = None,
        in_flight: bool = False,
        order: str = "",
        threads: Any = None,
    ) -> None:
        """Check and note a write; strong writes race with plain accesses only."""
        block, thread, cell = self.select(offsets, nbytes, mask, threads)
        self.check_reads(batch, block, thread, cell, site)
        self.check_write(batch, block, thread, cell, site, "written")
        if order:
            self.strong(block, thread, cell, False, True, order)
            self.note_strong(block, thread, cell, site)
            self.write_time[block, cell] = np.maximum(self.write_time[block, cell], 0)
            return
        self.check_atomics(batch, block, thread, cell, site, "written")
        for b, c in set(zip(block.tolist(), cell.tolist(), strict=True)) if self.releases else ():
            self.releases.pop((b, c), None)
        self.write_thread[block, cell] = thread
        self.write_time[block, cell] = FLYING if in_flight else self.own(block, thread)
        self.write_site[block, cell] = site.number
        self.read_time[block, cell] = 0
        other = self.write_thread[block, cell] != thread
        if other.any():
            if values is not None and equal_stores(
                block, cell, values, mask, (self.blocks, self.threads), nbytes, self.shift
            ):
                batch.note(
                    f"lanes of one instruction store equal values to a shared address (PTX line {site.line})"
                )
                return
            message = "written, and written by another thread in the same instruction"
            self.report(
                batch, "race", message, site, block, thread, cell, other, self.write_site, self.write_thread
            )

    def hold(self, offsets: Any, nbytes: int, mask: Any, site: Site, threads: Any) -> None:
        """Something goes on reading these bytes until `unhold`: no clock is past it."""
        block, thread, cell = self.select(offsets, nbytes, mask, threads)
        self.read_time[block, cell, thread] = np.iinfo(np.int32).max
        self.read_site[block, cell] = site.number

    def unhold(self, offsets: Any, nbytes: int, mask: Any, site: Site, threads: Any) -> None:
        """The reads are over; they count as the thread's reads of now."""
        block, thread, cell = self.select(offsets, nbytes, mask, threads)
        self.read_time[block, cell, thread] = self.own(block, thread)

    def land(self, offsets: Any, nbytes: int, mask: Any, site: Site) -> None:
        block, thread, cell = self.select(offsets, nbytes, mask, None)
        self.write_thread[block, cell] = thread
        self.write_time[block, cell] = self.own(block, thread)

    def land_at(self, block: int, thread: int, offsets: Any, nbytes: int) -> None:
        """A copy to offsets (N,) of one block has landed: it is a thread's write of now."""
        cells = (offsets[:, None] >> self.shift) + np.arange(max(nbytes >> self.shift, 1))
        self.write_thread[block, cells] = thread
        self.write_time[block, cells] = self.own(block, thread)

    def atomic(
        self,
        batch: Batch,
        offsets: Any,
        nbytes: int,
        mask: Any,
        site: Site,
        order: str = "relaxed",
        turns: Any = None,
    ) -> None:
        """Check and note an atomic; `turns` is the order in which lanes take their turn."""
        block, thread, cell = self.select(offsets, nbytes, mask, None)
        unwritten = self.write_time[block, cell] == UNWRITTEN
        if unwritten.any():
            self.report(
                batch,
                "uninitialised",
                "shared memory is read that nothing has written",
                site,
                block,
                thread,
                cell,
                unwritten,
                None,
                None,
            )
        self.check_write(batch, block, thread, cell, site, "changed by an atomic")
        self.check_reads(batch, block, thread, cell, site)
        if turns is not None and len(turns) == len(block):
            block, thread, cell = block[turns], thread[turns], cell[turns]
        self.strong(block, thread, cell, True, True, order)
        self.note_strong(block, thread, cell, site)

    def note_strong(self, block: Any, thread: Any, cell: Any, site: Site) -> None:
        if self.atomic_time is None:
            self.atomic_time = np.zeros_like(self.read_time)
        self.atomic_time[block, cell, thread] = self.own(block, thread)
        self.atomic_site[block, cell] = site.number

    def report(
        self,
        batch: Batch,
        kind: str,
        message: str,
        site: Site,
        block: Any,
        thread: Any,
        cell: Any,
        bad: NDArray[np.bool_],
        sites: Any,
        threads: Any,
    ) -> None:
        first = int(bad.argmax())
        b, t, c = int(block[first]), int(thread[first]), int(cell[first])
        other = None if sites is None else int(sites[b, c])
        who = None if threads is None else int(threads[b, c])
        shared_race(batch, kind, message, site, b, t, c << self.shift, int(np.count_nonzero(bad)), other, who)


def equal_stores(
    block: Any, cell: Any, values: Any, mask: Any, shape: tuple[int, int], nbytes: int, shift: int
) -> bool:
    """Return whether stores of one instruction to one granule bring the same bytes."""
    stored = np.broadcast_to(values, shape)
    stored = stored[np.broadcast_to(True if mask is None else mask, shape)]
    count = max(nbytes >> shift, 1)
    raw = np.ascontiguousarray(stored).view(np.uint8).reshape(len(stored) * count, -1)
    where = np.stack([block, cell], 1)
    keyed = np.concatenate([where.astype(np.int64).view(np.uint8).reshape(len(where), -1), raw], axis=1)
    return len(np.unique(where, axis=0)) == len(np.unique(keyed, axis=0))


def flat_cells(
    races: ClockRaces | SharedRaces, offsets: NDArray[np.int64], nbytes: int, mask: Any, threads: Any
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return flat (block, thread, cell) of an access by lanes (R, T), or by `threads` (1, N)."""
    count = max(nbytes >> races.shift, 1)
    columns = np.arange(races.threads, dtype=np.int64)[None, :] if threads is None else threads
    shape = (races.blocks, columns.shape[1])
    cells = np.broadcast_to(offsets >> races.shift, shape)
    lanes = np.broadcast_to(True if mask is None else mask, shape)
    block, column = np.nonzero(lanes)
    cell = cells[lanes]
    thread = columns[0, column]
    if count > 1:
        cell = (cell[:, None] + np.arange(count)).ravel()
        block, thread = np.repeat(block, count), np.repeat(thread, count)
    return block, thread, cell
