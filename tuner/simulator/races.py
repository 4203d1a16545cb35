"""Races on shared memory, for kernels that order their threads with whole-block barriers only: the fast path.

A granule, the narrowest access of the kernel, has the key of its last write and of its last read: `epoch <<
31 | thread << 20 | instruction`. A barrier begins a new epoch, and what carries an older epoch is ordered
before everything after it. Keys are held once for all blocks for as long as all blocks do the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.faults import shared_race
from tuner.simulator.shapes import stretched

if TYPE_CHECKING:
    from tuner.simulator.instructions import Site
    from tuner.simulator.machine import Batch

Keys = NDArray[np.int64]
SITE_BITS, THREAD_BITS = 20, 11
EPOCH_SHIFT = SITE_BITS + THREAD_BITS
MANY = 2047
"""Thread number that stands for several readers; a block has at most 1024 threads."""
UNWRITTEN, IN_FLIGHT = 1 << 62, 1 << 61


class SharedRaces:
    """Last writers and readers of every granule of shared memory of a batch of blocks."""

    def __init__(self, blocks: int, threads: int, nbytes: int, granule_bytes: int) -> None:
        self.blocks, self.threads = blocks, threads
        self.shift = granule_bytes.bit_length() - 1
        self.granule_bytes = granule_bytes
        self.cells = -(-max(nbytes, 1) // granule_bytes)
        self.rows = 1
        self.writes: Keys = np.full((1, self.cells), UNWRITTEN, np.int64)
        self.reads: Keys = np.zeros((1, self.cells), np.int64)
        self.atomics: Keys | None = None
        self.lanes = np.arange(threads, dtype=np.int64)[None, :] << SITE_BITS
        self.row_starts = np.arange(blocks, dtype=np.int64)[:, None] * self.cells
        self.steps = np.arange(32, dtype=np.int64)
        self.epochs: Keys = np.ones((1, 1), np.int64)
        self.renew()

    def renew(self) -> None:
        """Compute what depends on the epochs."""
        if self.epochs.shape[0] > 1 and (self.epochs == self.epochs[0, 0]).all():
            self.epochs = self.epochs[:1].copy()
        self.start = self.epochs << EPOCH_SHIFT
        self.base = self.start + self.lanes
        self.first = int(self.start[0, 0]) if len(self.start) == 1 else -1

    def barrier(self, released: NDArray[np.bool_] | None) -> None:
        """Begin a new epoch in the released blocks (B,), or in all."""
        if released is None or bool(released.all()):
            self.epochs = self.epochs + 1
        else:
            self.epochs = stretched(self.epochs, (self.blocks, 1)) + released[:, None]
        self.renew()

    def select(
        self,
        offsets: NDArray[np.int64],
        nbytes: int,
        mask: NDArray[np.bool_] | None,
        site: Site,
        threads: NDArray[np.int64] | None = None,
    ) -> tuple[Keys, Keys, Any]:
        """Return flat (cells, keys, epoch starts) of an access by lanes (R, N) to `nbytes` at each offset."""
        keys = self.base if threads is None else self.start + (threads << SITE_BITS)
        keys = keys + site.number
        cells = offsets >> self.shift
        rows = max(len(cells), len(keys), len(mask) if mask is not None else 1)
        if rows > 1 and self.rows == 1:
            self.expand()
        if self.rows > 1:
            cells = cells + self.row_starts
        shape = cells.shape
        cells, keys = cells.ravel(), stretched(keys, shape).ravel()
        start: Any = self.first
        if len(self.start) > 1:
            start = np.repeat(self.start, shape[1])
        if mask is not None:
            chosen = stretched(mask, shape).ravel().nonzero()[0]
            cells, keys = cells.take(chosen), keys.take(chosen)
            start = start.take(chosen) if len(self.start) > 1 else start
        count = nbytes >> self.shift
        if count > 1:
            cells = (cells[:, None] + self.steps[:count]).ravel()
            keys = keys.repeat(count)
            start = start.repeat(count) if len(self.start) > 1 else start
        return cells, keys, start

    def expand(self) -> None:
        """Give every block keys of its own."""
        self.writes = np.repeat(self.writes, self.blocks, axis=0)
        self.reads = np.repeat(self.reads, self.blocks, axis=0)
        if self.atomics is not None:
            self.atomics = np.repeat(self.atomics, self.blocks, axis=0)
        self.rows = self.blocks

    def read(
        self,
        batch: Batch,
        offsets: NDArray[np.int64],
        nbytes: int,
        mask: Any,
        site: Site,
        threads: NDArray[np.int64] | None = None,
        order: str = "",
    ) -> None:
        """Check and note a read of shared memory; strong ones (`order`) are left to `ClockRaces`."""
        assert not order
        cells, keys, start = self.select(offsets, nbytes, mask, site, threads)
        if not cells.size:
            return
        written = self.writes.reshape(-1).take(cells)
        if written.max() >= self.first:
            bad = (written >= start) & ((written ^ keys) >> SITE_BITS != 0)
            if bad.any():
                self.report_read(batch, cells[bad], keys[bad], written[bad], site)
        self.check_atomics(batch, cells, keys, start, site, "read")
        _note(self.reads, cells, keys, start, self.first)

    def check_atomics(self, batch: Batch, cells: Keys, keys: Keys, start: Any, site: Site, how: str) -> None:
        """Record plain accesses to what another thread changed by an atomic in this epoch."""
        if self.atomics is None:
            return
        changed = self.atomics.reshape(-1).take(cells)
        bad = (changed >= start) & ((changed ^ keys) >> SITE_BITS != 0)
        if bad.any():
            message = f"{how}, and changed by another thread's atomic with no barrier between"
            shared_fault(
                batch, "race", message, site, *self.party(cells[bad], keys[bad]), other=int(changed[bad][0])
            )

    def atomic(
        self,
        batch: Batch,
        offsets: NDArray[np.int64],
        nbytes: int,
        mask: Any,
        site: Site,
        order: str = "relaxed",
        turns: Any = None,
    ) -> None:
        """Check and note an atomic: it races with plain accesses of other threads, not with other atomics."""
        cells, keys, start = self.select(offsets, nbytes, mask, site)
        if not cells.size:
            return
        if self.atomics is None:
            self.atomics = np.zeros((self.rows, self.cells), np.int64)
        written = self.writes.reshape(-1).take(cells)
        bad = (written >= start) & ((written ^ keys) >> SITE_BITS != 0)
        if bad.any():
            self.report_read(batch, cells[bad], keys[bad], written[bad], site)
        known = self.reads.reshape(-1).take(cells)
        bad = (known >= start) & ((known ^ keys) >> SITE_BITS != 0)
        if bad.any():
            self.report_write(batch, cells[bad], keys[bad], known[bad], site, "read")
        _note(self.atomics, cells, keys, start, self.first)

    def write(
        self,
        batch: Batch,
        offsets: NDArray[np.int64],
        nbytes: int,
        mask: Any,
        site: Site,
        values: Any = None,
        in_flight: bool = False,
        order: str = "",
        threads: NDArray[np.int64] | None = None,
    ) -> None:
        """Check and note a write; `values` (same shape as the lanes) tells equal stores of one instruction
        apart.
        """
        cells, keys, start = self.select(offsets, nbytes, mask, site, threads)
        if not cells.size:
            return
        writes, reads = self.writes.reshape(-1), self.reads.reshape(-1)
        written = writes.take(cells)
        if written.max() >= self.first:
            bad = (written >= start) & (written < UNWRITTEN) & ((written ^ keys) >> SITE_BITS != 0)
            if bad.any():
                self.report_write(batch, cells[bad], keys[bad], written[bad], site, "written")
        known = reads.take(cells)
        if known.max() >= self.first:
            bad = (known >= start) & ((known ^ keys) >> SITE_BITS != 0)
            if bad.any():
                self.report_write(batch, cells[bad], keys[bad], known[bad], site, "read")
        self.check_atomics(batch, cells, keys, start, site, "written")
        if in_flight:
            keys = (keys & ((1 << EPOCH_SHIFT) - 1)) | IN_FLIGHT
        writes[cells] = keys
        other = writes.take(cells) != keys
        if other.any():
            self.same_instruction(batch, offsets, nbytes, mask, site, values, cells, keys, other)

    def hold(
        self, offsets: NDArray[np.int64], nbytes: int, mask: Any, site: Site, threads: NDArray[np.int64]
    ) -> None:
        """Something goes on reading these bytes until `unhold`: whatever the epoch, a write is a race."""
        cells, keys, _ = self.select(offsets, nbytes, mask, site, threads)
        self.reads.reshape(-1)[cells] = (keys & ((1 << EPOCH_SHIFT) - 1)) | IN_FLIGHT

    def unhold(
        self, offsets: NDArray[np.int64], nbytes: int, mask: Any, site: Site, threads: NDArray[np.int64]
    ) -> None:
        """The reads are over; they count as the thread's reads of now."""
        cells, keys, _ = self.select(offsets, nbytes, mask, site, threads)
        self.reads.reshape(-1)[cells] = keys

    def land(self, offsets: NDArray[np.int64], nbytes: int, mask: Any, site: Site) -> None:
        """An asynchronous copy has been waited for by its thread: it is that thread's write of now."""
        cells, keys, _ = self.select(offsets, nbytes, mask, site)
        self.writes.reshape(-1)[cells] = keys

    def same_instruction(
        self,
        batch: Batch,
        offsets: Any,
        nbytes: int,
        mask: Any,
        site: Site,
        values: Any,
        cells: Keys,
        keys: Keys,
        other: NDArray[np.bool_],
    ) -> None:
        """Several lanes of one instruction store to one granule: a race, unless they store the same bytes."""
        writes = self.writes.reshape(-1)
        if values is not None and self.equal_values(offsets, nbytes, mask, values):
            batch.note(
                f"lanes of one instruction store equal values to a shared address (PTX line {site.line})"
            )
            return
        self.report_write(batch, cells[other], keys[other], writes.take(cells[other]), site, "written")

    def equal_values(self, offsets: Any, nbytes: int, mask: Any, values: Any) -> bool:
        shape = (self.blocks, self.threads)
        where = stretched(offsets, shape) + np.arange(self.blocks)[:, None] * (1 << 32)
        stored = stretched(values, shape)
        if mask is not None:
            chosen = stretched(mask, shape)
            where, stored = where[chosen], stored[chosen]
        where, stored = where.ravel(), np.ascontiguousarray(stored.ravel())
        table = np.stack([where.view(np.uint64), *_words(stored)], 1)
        return len(np.unique(where)) == len(np.unique(table, axis=0))

    def report_read(self, batch: Batch, cells: Keys, keys: Keys, written: Keys, site: Site) -> None:
        unwritten = written >= UNWRITTEN
        if unwritten.any():
            shared_fault(
                batch,
                "uninitialised",
                "shared memory is read that nothing has written",
                site,
                *self.party(cells[unwritten], keys[unwritten]),
            )
        rest = ~unwritten
        flying = rest & (written >= IN_FLIGHT)
        if flying.any():
            shared_fault(
                batch,
                "race",
                "a cp.async to these bytes has not been waited for",
                site,
                *self.party(cells[flying], keys[flying]),
                other=int(written[flying][0]),
            )
        rest &= ~flying
        if rest.any():
            shared_fault(
                batch,
                "race",
                "read, and written by another thread with no barrier between",
                site,
                *self.party(cells[rest], keys[rest]),
                other=int(written[rest][0]),
            )

    def report_write(
        self, batch: Batch, cells: Keys, keys: Keys, previous: Keys, site: Site, how: str
    ) -> None:
        flying = previous >= IN_FLIGHT
        message = f"written, and {how} by another thread with no barrier between"
        if flying.any():
            message = "written while a cp.async to these bytes is in flight"
        shared_fault(batch, "race", message, site, *self.party(cells, keys), other=int(previous[0]))

    def party(self, cells: Keys, keys: Keys) -> tuple[int, int, int, int]:
        """Return (block of the batch, thread, byte offset, how many) of the first of some accesses."""
        cell, key = int(cells[0]), int(keys[0])
        block, cell = divmod(cell, self.cells)
        return block, (key >> SITE_BITS) & ((1 << THREAD_BITS) - 1), cell << self.shift, len(cells)


def shared_fault(
    batch: Batch,
    kind: str,
    message: str,
    site: Site,
    block: int,
    thread: int,
    offset: int,
    count: int,
    other: int | None = None,
) -> None:
    """Record a fault at a shared address; `other` is the key of the second party of a race."""
    number = who = None
    if other is not None:
        number = other & ((1 << SITE_BITS) - 1)
        who = ((other & ~IN_FLIGHT) >> SITE_BITS) & ((1 << (EPOCH_SHIFT - SITE_BITS)) - 1)
    shared_race(
        batch, kind, message, site, block, thread, offset, count, number, None if who == MANY else who
    )


def _note(table: Keys, cells: Keys, keys: Keys, start: Any, first: int) -> None:
    """Enter the last thread that accessed each cell in this epoch; `MANY` where there are several."""
    flat = table.reshape(-1)
    known = flat.take(cells)
    flat[cells] = keys
    other = flat.take(cells) != keys
    if known.max() >= first:
        other |= (known >= start) & ((known ^ keys) >> SITE_BITS != 0)
    if other.any():
        held = known >= IN_FLIGHT
        flat[cells[other]] = keys[other] | (MANY << SITE_BITS)
        flat[cells[held]] = known[held]


def _words(values: NDArray[Any]) -> list[NDArray[np.uint64]]:
    size = values.dtype.itemsize
    if size <= 8:
        return [values.astype(np.uint64)]
    words = values.view(np.uint64).reshape(len(values), -1)
    return [words[:, column] for column in range(words.shape[1])]
