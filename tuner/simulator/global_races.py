"""Races on global memory, between the threads of one block and between blocks, within one launch.

A cell has the key of its last plain write, plain read and strong access (atomics, and relaxed, volatile,
acquire and release accesses): `block | time | thread | instruction`. Within a block, barriers order as they
do for shared memory. Between blocks only release and acquire patterns do (PTX ISA, "Memory Consistency
Model"): a fence of gpu scope, a strong write, a strong read that sees it, a fence; then what the writer's
block had done is known to the reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.clock_races import ClockRaces
from tuner.simulator.faults import global_race
from tuner.simulator.shapes import stretched

if TYPE_CHECKING:
    from tuner.simulator.instructions import Site
    from tuner.simulator.machine import Batch
    from tuner.simulator.memory import Buffer

Keys = NDArray[np.int64]
SITE_BITS, THREAD_BITS, TIME_BITS, BLOCK_BITS = 16, 11, 15, 20
THREAD_SHIFT = SITE_BITS
TIME_SHIFT = THREAD_SHIFT + THREAD_BITS
BLOCK_SHIFT = TIME_SHIFT + TIME_BITS
MANY_THREADS = (1 << THREAD_BITS) - 1
MANY_BLOCKS = (1 << BLOCK_BITS) - 1
PRESENT = 1 << 62
"""Set in every key, so that 0 means never accessed."""

Knowledge = dict[int, NDArray[np.int64]]
"""What an agent is ordered after: for a block, the time of each of its threads."""


def merged(first: Knowledge, second: Knowledge) -> Knowledge:
    """Return the union of what two agents know; neither is changed."""
    if not first or first is second:
        return second
    if not second:
        return first
    result = dict(first)
    for block, times in second.items():
        known = result.get(block)
        result[block] = times if known is None else np.maximum(known, times)
    return result


Agent = tuple[int, int]
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Release:
    """What a cell carries to who reads it; a chain is a release and the read-modify-writes that follow it."""

    chain: int
    knowledge: Knowledge


class GlobalOrder:
    """Order between the blocks of one launch: what blocks and threads know, and what cells carry."""

    def __init__(self) -> None:
        self.blocks: dict[int, Knowledge] = {}
        self.threads: dict[Agent, Knowledge] = {}
        self.pending: dict[Agent, dict[tuple[Place, int], Knowledge]] = {}
        self.fences: dict[Agent, tuple[Knowledge, ...]] = {}
        self.releases: dict[Place, Release] = {}
        self.chains = 0

    def own(self, batch: Batch, row: int, thread: int) -> tuple[Knowledge, ...]:
        """Return what a thread knows, its own block included, in parts still to be merged."""
        block = int(batch.block_ids[row])
        mine = {block: thread_times(batch, row, thread)}
        return self.blocks.get(block, {}), self.threads.get((block, thread), {}), mine

    def fence(self, batch: Batch, lanes: NDArray[np.bool_]) -> None:
        """A fence of gpu scope: earlier strong reads take effect, later strong writes carry what is known
        now.
        """
        for row, thread in zip(*(axis.tolist() for axis in np.nonzero(lanes)), strict=True):
            agent = (int(batch.block_ids[row]), thread)
            for knowledge in self.pending.pop(agent, {}).values():
                self.threads[agent] = merged(self.threads.get(agent, {}), knowledge)
            self.fences[agent] = self.own(batch, row, thread)

    def barrier(self, batch: Batch, released: NDArray[np.bool_] | None) -> None:
        """What one thread of a block knows, all its threads know after a barrier."""
        if not self.threads:
            return
        rows = range(batch.blocks) if released is None else np.nonzero(released)[0].tolist()
        numbers = {int(batch.block_ids[row]) for row in rows}
        for agent in [agent for agent in self.threads if agent[0] in numbers]:
            block = agent[0]
            self.blocks[block] = merged(self.blocks.get(block, {}), self.threads.pop(agent))

    def strong(
        self,
        batch: Batch,
        buffer: str,
        row: Any,
        thread: Any,
        cell: Any,
        reads: bool,
        writes: bool,
        order: str,
    ) -> None:
        """Strong accesses of some lanes, one after the other: acquire what a cell carries, and release."""
        for r, t, c in zip(row.tolist(), thread.tolist(), cell.tolist(), strict=True):
            agent, place = (int(batch.block_ids[r]), t), (buffer, c)
            carried = self.releases.get(place)
            if reads and carried is not None:
                if order in ("acquire", "acq_rel"):
                    self.threads[agent] = merged(self.threads.get(agent, {}), carried.knowledge)
                else:
                    self.pending.setdefault(agent, {})[place, carried.chain] = carried.knowledge
            if writes:
                self.carry(batch, agent, place, r, carried if reads else None, order)

    def carry(
        self, batch: Batch, agent: Agent, place: Place, row: int, carried: Release | None, order: str
    ) -> None:
        parts = (
            self.own(batch, row, agent[1]) if order in ("release", "acq_rel") else self.fences.get(agent, ())
        )
        if not parts:
            if carried is None:
                self.releases.pop(place, None)
            return
        knowledge = carried.knowledge if carried is not None else {}
        for part in parts:
            knowledge = merged(knowledge, part)
        if carried is None:
            self.chains += 1
        self.releases[place] = Release(carried.chain if carried is not None else self.chains, knowledge)


def thread_times(batch: Batch, row: int, thread: int) -> NDArray[np.int64]:
    """Return the time of every thread of a block up to which `thread` is ordered after it."""
    races = batch.races
    if isinstance(races, ClockRaces):
        known: NDArray[np.int64] = races.clocks[row, thread].astype(np.int64)
        return known
    times = np.full(batch.threads, epoch_of(batch, row) - 1, np.int64)
    times[thread] += 1
    return times


def epoch_of(batch: Batch, row: int) -> int:
    epochs = (
        batch.races.epochs if batch.races is not None and not isinstance(batch.races, ClockRaces) else None
    )
    if epochs is None:
        return 1
    return int(epochs[row if len(epochs) > 1 else 0, 0])


class GlobalRaces:
    """Last accesses of every cell of one buffer in one launch."""

    def __init__(self, buffer: Buffer, order: GlobalOrder) -> None:
        self.buffer, self.order = buffer, order
        self.shift = buffer.cell_bytes.bit_length() - 1
        self.cells = len(buffer.data) >> self.shift
        self.writes: Keys | None = None
        self.reads: Keys | None = None
        self.strongs: Keys | None = None

    def table(self) -> Keys:
        return np.zeros(self.cells, np.int64)

    def select(
        self, batch: Batch, offsets: NDArray[np.int64], nbytes: int, lanes: Any, site: Site, threads: Any
    ) -> tuple[Any, ...]:
        """Return flat (cells, keys) of an access by lanes (B, T); or (B, N) by `threads` (1, N)."""
        keys = batch.global_keys() + (site.number & ((1 << SITE_BITS) - 1))
        shape = (batch.blocks, batch.threads)
        if threads is not None:
            shape, keys = offsets.shape, stretched(keys, shape)[:, threads[0]]
        cells = stretched(offsets >> self.shift, shape)
        if lanes is None and batch.existing is None:
            cells, keys, chosen = cells.ravel(), keys.ravel(), None
        else:
            chosen = batch.active_lanes() if lanes is None else stretched(lanes, shape)
            cells, keys = cells[chosen], keys[chosen]
        count = max(nbytes >> self.shift, 1)
        if count > 1:
            cells = (cells[:, None] + np.arange(count)).ravel()
            keys = np.repeat(keys, count)
        return cells, keys

    def read(
        self, batch: Batch, offsets: Any, nbytes: int, lanes: Any, site: Site, order: str = "",
        threads: Any = None,
    ) -> None:  # fmt: skip
        cells, keys = self.select(batch, offsets, nbytes, lanes, site, threads)
        if order:
            self.strong(batch, cells, keys, True, False, order)
            return
        self.check(batch, self.writes, cells, keys, site, "read", "written")
        self.check(batch, self.strongs, cells, keys, site, "read", "changed atomically")
        if self.reads is None:
            self.reads = self.table()
        _note(self.reads, cells, keys)

    def write(
        self, batch: Batch, offsets: Any, nbytes: int, lanes: Any, site: Site, values: Any, order: str = "",
        threads: Any = None,
    ) -> None:  # fmt: skip
        cells, keys = self.select(batch, offsets, nbytes, lanes, site, threads)
        self.check(batch, self.reads, cells, keys, site, "written", "read")
        same = (offsets, nbytes, lanes, values)
        self.check(batch, self.writes, cells, keys, site, "written", "written", same)
        if order:
            self.strong(batch, cells, keys, False, True, order)
            return
        self.check(batch, self.strongs, cells, keys, site, "written", "changed atomically")
        if self.writes is None:
            self.writes = self.table()
        self.writes[cells] = keys
        other = self.writes.take(cells) != keys
        if other.any() and not self.equal_in_instruction(batch, offsets, nbytes, lanes, values, site):
            self.report(
                batch, cells[other], keys[other], self.writes[cells[other]], site, "written", "written"
            )

    def atomic(
        self,
        batch: Batch,
        offsets: Any,
        nbytes: int,
        lanes: Any,
        site: Site,
        order: str = "relaxed",
        turns: Any = None,
        threads: Any = None,
    ) -> None:
        """Check and note an atomic; `turns` is the order in which lanes take their turn."""
        cells, keys = self.select(batch, offsets, nbytes, lanes, site, threads)
        self.check(batch, self.writes, cells, keys, site, "changed atomically", "written")
        self.check(batch, self.reads, cells, keys, site, "changed atomically", "read")
        if turns is not None and len(turns) == len(cells):
            cells, keys = cells[turns], keys[turns]
        self.strong(batch, cells, keys, True, True, order)

    def strong(self, batch: Batch, cells: Keys, keys: Keys, reads: bool, writes: bool, order: str) -> None:
        if writes:
            if self.strongs is None:
                self.strongs = self.table()
            _note(self.strongs, cells, keys)
        if self.order.releases or self.order.fences or order != "relaxed":
            rows = batch.rows_of(keys >> BLOCK_SHIFT & MANY_BLOCKS)
            threads = keys >> THREAD_SHIFT & MANY_THREADS
            self.order.strong(batch, self.buffer.name, rows, threads, cells, reads, writes, order)

    def check(
        self,
        batch: Batch,
        table: Keys | None,
        cells: Keys,
        keys: Keys,
        site: Site,
        how: str,
        other: str,
        same: tuple[Any, Any, Any, Any] | None = None,
    ) -> None:
        """Compare an access with the last ones of a table."""
        if table is None:
            return
        before = table.take(cells)
        differ = (before != 0) & ((before ^ keys) >> THREAD_SHIFT != 0)
        if not differ.any():
            return
        index = np.nonzero(differ)[0]
        before, mine = before[index], keys[index]
        bad = ~self.ordered(batch, before, mine)
        if not bad.any():
            return
        if same is not None and self.equal_to_memory(batch, *same, site):
            return
        index = index[bad]
        self.report(batch, cells[index], keys[index], before[bad], site, how, other)

    def ordered(self, batch: Batch, before: Keys, mine: Keys) -> Any:
        """Return where the earlier access is ordered before this one."""
        block, my_block = (key >> BLOCK_SHIFT & MANY_BLOCKS for key in (before, mine))
        time, my_time = (key >> TIME_SHIFT & ((1 << TIME_BITS) - 1) for key in (before, mine))
        thread, my_thread = (key >> THREAD_SHIFT & MANY_THREADS for key in (before, mine))
        inside = block == my_block
        result = inside & ((thread == my_thread) | (time < my_time))
        if isinstance(batch.races, ClockRaces) and inside.any():
            rows = batch.rows_of(my_block)
            known = batch.races.clocks[rows, my_thread, np.minimum(thread, batch.threads - 1)]
            result = inside & ((thread == my_thread) | (time <= known) | (thread == MANY_THREADS))
        for position in np.nonzero(~inside)[0].tolist():
            result[position] = self.known_across(
                int(block[position]),
                int(time[position]),
                int(thread[position]),
                int(my_block[position]),
                int(my_thread[position]),
            )
        return result

    def known_across(self, block: int, time: int, thread: int, my_block: int, my_thread: int) -> bool:
        """Return whether a thread of another block is known to be past a time.

        Where several threads or blocks share the key, knowing some of them is taken for knowing all: no false
        alarm.
        """
        for known in (self.order.blocks.get(my_block), self.order.threads.get((my_block, my_thread))):
            if known and block == MANY_BLOCKS:
                return True
            times = known.get(block) if known else None
            if times is not None and (times.max() if thread == MANY_THREADS else times[thread]) >= time:
                return True
        return False

    def equal_to_memory(
        self, batch: Batch, offsets: Any, nbytes: int, lanes: Any, values: Any, site: Site
    ) -> bool:
        """Several threads store the same value to one place: a note."""
        shape = _lanes_shape(batch, offsets, lanes)
        chosen = batch.active_lanes() if lanes is None else stretched(lanes, shape)
        index = stretched(offsets, shape)[chosen] >> (nbytes.bit_length() - 1)
        present = self.buffer.view(nbytes)[index]
        stored = stretched(values, shape)[chosen]
        first = index << (nbytes.bit_length() - 1) >> self.shift
        touched = self.writes is not None and np.asarray(self.writes[first] != 0)
        equal = np.ascontiguousarray(present).view(np.uint8) == np.ascontiguousarray(stored).view(np.uint8)
        rows = equal.reshape(len(index), -1).all(axis=1)
        if not (rows | ~touched).all():
            return False
        batch.note(
            f"threads store equal values to one address of {self.buffer.name!r} (PTX line {site.line})"
        )
        return True

    def equal_in_instruction(
        self, batch: Batch, offsets: Any, nbytes: int, lanes: Any, values: Any, site: Site
    ) -> bool:
        shape = _lanes_shape(batch, offsets, lanes)
        chosen = batch.active_lanes() if lanes is None else stretched(lanes, shape)
        where = stretched(offsets, shape)[chosen]
        stored = np.ascontiguousarray(stretched(values, shape)[chosen]).view(np.uint8).reshape(len(where), -1)
        keyed = np.concatenate([where[:, None].view(np.uint8).reshape(len(where), 8), stored], axis=1)
        if len(np.unique(where)) != len(np.unique(keyed, axis=0)):
            return False
        batch.note(
            f"lanes of one instruction store equal values to one address of {self.buffer.name!r} "
            f"(PTX line {site.line})"
        )
        return True

    def report(
        self, batch: Batch, cells: Keys, keys: Keys, before: Keys, site: Site, how: str, other: str
    ) -> None:
        key, previous = int(keys[0]), int(before[0])
        row = int(batch.rows_of(np.array([key >> BLOCK_SHIFT & MANY_BLOCKS]))[0])
        block = previous >> BLOCK_SHIFT & MANY_BLOCKS
        thread = previous >> THREAD_SHIFT & MANY_THREADS
        same = block == (key >> BLOCK_SHIFT & MANY_BLOCKS)
        who = "another thread" if same else "a thread of another block"
        message = f"{how}, and {other} by {who} that nothing orders before"
        global_race(
            batch,
            message,
            site,
            row,
            key >> THREAD_SHIFT & MANY_THREADS,
            int(cells[0]) << self.shift,
            self.buffer.name,
            len(cells),
            previous & ((1 << SITE_BITS) - 1),
            None if block == MANY_BLOCKS else block,
            None if thread == MANY_THREADS else thread,
        )


def _lanes_shape(batch: Batch, offsets: Any, lanes: Any) -> tuple[int, int]:
    """Return (B, T), or (B, N) of an access that is not one for each thread."""
    columns = offsets.shape[1] if lanes is None or offsets.shape[1] > 1 else lanes.shape[1]
    return batch.blocks, batch.threads if columns == 1 else columns


def _note(table: Keys, cells: Keys, keys: Keys) -> None:
    """Enter the latest access of each cell; several threads or blocks become `MANY`."""
    before = table.take(cells)
    table[cells] = keys
    now = table.take(cells)
    other = now != keys
    if other.any():
        _spread(table, cells[other], keys[other], now[other])
    if not before.any():
        return
    mixed = (before != 0) & ((before ^ keys) >> BLOCK_SHIFT != 0)
    if mixed.any():
        table[cells[mixed]] |= MANY_BLOCKS << BLOCK_SHIFT
    alike = (
        (before != 0) & ~mixed & ((before ^ keys) >> TIME_SHIFT == 0) & ((before ^ keys) >> THREAD_SHIFT != 0)
    )
    if alike.any():
        table[cells[alike]] |= MANY_THREADS << THREAD_SHIFT


def _spread(table: Keys, cells: Keys, keys: Keys, now: Keys) -> None:
    apart = (now ^ keys) >> BLOCK_SHIFT != 0
    table[cells] |= MANY_THREADS << THREAD_SHIFT
    table[cells[apart]] |= MANY_BLOCKS << BLOCK_SHIFT
