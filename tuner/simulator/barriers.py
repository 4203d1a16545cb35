"""Barriers of a block and of a warp: who has arrived, who waits, and when they go on (PTX ISA 9.7.13.1 and
.2).

A thread that has exited is not waited for. A barrier with a thread count completes at that many arrivals; one
without at the arrival of every live thread of the block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.clock_races import ClockRaces
from tuner.simulator.clusters import ClusterBarrier

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch
    from tuner.simulator.program import Block

Mask = NDArray[np.bool_]
WARP = 32


@dataclass(frozen=True, slots=True)
class BarrierOperands:
    """Operands of a block barrier; slots of registers, `count` 0 where there is none.

    `action` is sync, arrive or red; `operation` popc, and, or.
    """

    action: str
    number: int
    count: int
    aligned: bool
    operation: str = ""
    target: int = 0
    predicate: int = 0
    negated: bool = False


@dataclass(slots=True)
class Arrival:
    """Lanes (B, T) that came to a barrier at one basic block, and what they brought."""

    block: Block
    lanes: Mask
    waits: bool
    expected: int
    values: Mask | None = None
    clocks: dict[int, Any] = field(default_factory=dict)


class Barriers:
    """Barriers of a batch: arrivals by barrier number, and lanes that wait for their warp."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.arrivals: dict[int, list[Arrival]] = {}
        self.warps: list[tuple[Block, Mask, Mask]] = []
        self.cluster = ClusterBarrier(batch)

    @property
    def waiting(self) -> bool:
        if self.warps or self.cluster.waiting:
            return True
        return any(arrival.waits for found in self.arrivals.values() for arrival in found)

    def full(self, mask: Any) -> Mask:
        lanes: Mask = np.broadcast_to(True if mask is None else mask, (self.batch.blocks, self.batch.threads))
        return lanes

    def live(self) -> Mask:
        return self.full(self.batch.live)

    def arrive(self, block: Block, mask: Any) -> None:
        """Lanes come to a block barrier."""
        batch, operands = self.batch, block.details[0]
        registers = batch.registers
        everyone = int(registers[operands.count].flat[0]) == batch.context.threads if operands.count else True
        uniform = registers[operands.number].size == 1
        if mask is None and uniform and not self.arrivals and everyone and operands.action == "sync":
            batch.new_epoch(None)
            batch.add_pending(block.index + 1, None)
            return
        lanes = self.full(mask)
        numbers = np.broadcast_to(registers[operands.number], lanes.shape)
        for number in np.unique(numbers[lanes]).tolist():
            chosen = lanes & (numbers == number)
            for part in self.turns(operands, number, chosen):
                self.enter(block, operands, number, part)
        if operands.action == "arrive":
            batch.add_pending(block.index + 1, mask)

    def turns(self, operands: BarrierOperands, number: int, lanes: Mask) -> list[Mask]:
        """Let warps arrive one by one where a barrier would complete before all of them are counted."""
        if not operands.count:
            return [lanes]
        expected = int(np.broadcast_to(self.batch.registers[operands.count], lanes.shape)[lanes].min())
        arrived = lanes.sum(axis=1)
        for arrival in self.arrivals.get(number, ()):
            arrived = arrived + arrival.lanes.sum(axis=1)
        if int(arrived.max()) <= expected:
            return [lanes]
        warp = np.arange(self.batch.threads) // WARP
        return [lanes & (warp == w) for w in range(self.batch.warps) if (lanes & (warp == w)).any()]

    def enter(self, block: Block, operands: BarrierOperands, number: int, lanes: Mask) -> None:
        batch = self.batch
        expected = 0
        if operands.count:
            counts = np.broadcast_to(batch.registers[operands.count], lanes.shape)[lanes]
            expected = int(counts[0])
            if block.site is not None and (expected % WARP or (counts != expected).any()):
                message = f"a barrier count must be a multiple of 32, the same for all, got {expected}"
                batch.fault("divergence", message, block.site, lanes)
        arrival = Arrival(block, lanes, operands.action != "arrive", expected)
        if operands.action == "red":
            values = np.broadcast_to(batch.registers[operands.predicate], lanes.shape)
            arrival.values = ~values if operands.negated else values.copy()
        if operands.action == "arrive" and isinstance(batch.races, ClockRaces):
            for b in np.nonzero(lanes.any(axis=1))[0].tolist():
                arrival.clocks[b] = batch.races.snapshot(b, np.nonzero(lanes[b])[0])
        self.arrivals.setdefault(number, []).append(arrival)
        self.release(number)

    def thread_left(self) -> None:
        """Threads have exited: barriers may be complete without them."""
        for number in list(self.arrivals):
            self.release(number)
        self.release_warps()
        self.cluster.release()

    def release(self, number: int) -> None:
        """Let the blocks go on for which a barrier is complete."""
        batch, arrivals = self.batch, self.arrivals[number]
        arrived = np.zeros((batch.blocks, batch.threads), np.int64)
        expected = np.zeros(batch.blocks, np.int64)
        for arrival in arrivals:
            arrived += arrival.lanes
            here = arrival.lanes.any(axis=1)
            expected[here] = np.maximum(expected[here], arrival.expected)
        present, live = arrived > 0, self.live()
        everyone: Mask = np.asarray((present | ~live).all(axis=1) & present.any(axis=1))
        complete: Mask = np.where(expected > 0, arrived.sum(axis=1) >= expected, everyone)
        if not complete.any():
            return
        self.check_aligned(arrivals, complete, live)
        self.order(arrivals, complete, everyone)
        self.reduce(arrivals, complete)
        staying = []
        for arrival in arrivals:
            going = arrival.lanes & complete[:, None]
            if arrival.waits and going.any():
                batch.add_pending(arrival.block.index + 1, None if going.all() else going)
            left = arrival.lanes & ~complete[:, None]
            if left.any():
                arrival.lanes = left
                staying.append(arrival)
        if staying:
            self.arrivals[number] = staying
        else:
            del self.arrivals[number]

    def check_aligned(self, arrivals: list[Arrival], complete: Mask, live: Mask) -> None:
        """Threads of a warp have to come to one `.aligned` barrier instruction together."""
        together: dict[int, tuple[Block, Mask]] = {}
        for arrival in arrivals:
            block = arrival.block
            if block.details[0].aligned:
                lanes = arrival.lanes & complete[:, None]
                before = together.get(block.index)
                together[block.index] = (block, lanes if before is None else before[1] | lanes)
        for block, lanes in together.values():
            if block.site is not None:
                self.batch.check_whole_warps(block.site, lanes, live)

    def order(self, arrivals: list[Arrival], complete: Mask, everyone: Mask) -> None:
        """Tell the race detector who is now ordered before whom."""
        batch = self.batch
        if batch.races is None:
            return
        whole = complete & everyone & ~np.any([a.lanes.any(axis=1) & (not a.waits) for a in arrivals], axis=0)
        if whole.any():
            batch.new_epoch(whole)
        if not isinstance(batch.races, ClockRaces):
            return
        for b in np.nonzero(complete & ~whole)[0].tolist():
            waiting = np.zeros(batch.threads, bool)
            extra = None
            for arrival in arrivals:
                if arrival.waits:
                    waiting |= arrival.lanes[b]
                elif b in arrival.clocks:
                    clock = arrival.clocks[b]
                    extra = clock if extra is None else np.maximum(extra, clock)
            threads = np.nonzero(waiting)[0]
            batch.races.join(b, threads, threads, extra)

    def reduce(self, arrivals: list[Arrival], complete: Mask) -> None:
        """Give `bar.red` its result: over all arrivals of a block."""
        reducing = [arrival for arrival in arrivals if arrival.values is not None]
        if not reducing:
            return
        batch = self.batch
        true = np.zeros(batch.blocks, np.int64)
        total = np.zeros(batch.blocks, np.int64)
        for arrival in reducing:
            assert arrival.values is not None
            true += (arrival.lanes & arrival.values).sum(axis=1)
            total += arrival.lanes.sum(axis=1)
        for arrival in reducing:
            operands = arrival.block.details[0]
            results: dict[str, Any] = {"popc": true.astype(np.uint32), "and": true == total, "or": true > 0}
            lanes = arrival.lanes & complete[:, None]
            old = batch.registers[operands.target]
            batch.registers[operands.target] = np.where(lanes, results[operands.operation][:, None], old)

    # -- warps --

    def arrive_warp(self, block: Block, mask: Any) -> None:
        """Lanes come to `bar.warp.sync`; each waits for the live lanes that it names."""
        batch = self.batch
        members = batch.registers[block.details[0]]
        if mask is None and members.size == 1 and int(members.item()) == 0xFFFFFFFF:
            if isinstance(batch.races, ClockRaces):
                batch.races.join_warps(np.ones((batch.blocks, batch.warps, WARP), bool))
            batch.add_pending(block.index + 1, None)
            return
        lanes = self.full(mask)
        columns = np.arange(batch.threads, dtype=np.uint32) & np.uint32(31)
        words = np.broadcast_to(members, lanes.shape)
        outside = lanes & ((words >> columns) & np.uint32(1) == 0)
        if outside.any() and block.site is not None:
            batch.fault("divergence", "this thread is not in the member mask", block.site, outside)
        self.warps.append((block, lanes.copy(), words.copy()))
        self.release_warps()

    def release_warps(self) -> None:
        """Let the warps go on whose named live lanes have all arrived."""
        if not self.warps:
            return
        batch = self.batch
        shape = (batch.blocks, batch.warps, WARP)
        arrived = np.zeros((batch.blocks, batch.threads), bool)
        words = np.zeros((batch.blocks, batch.threads), np.uint32)
        for _, lanes, members in self.warps:
            arrived |= lanes
            words = np.where(lanes, members, words)
        bits = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
        there = np.where(arrived.reshape(shape), bits, np.uint32(0)).sum(axis=2, dtype=np.uint32)
        alive = np.where(self.live().reshape(shape), bits, np.uint32(0)).sum(axis=2, dtype=np.uint32)
        missing = words.reshape(shape) & alive[..., None] & ~there[..., None]
        free = (arrived.reshape(shape) & (missing == 0)).reshape(arrived.shape)
        if not free.any():
            return
        if isinstance(batch.races, ClockRaces):
            for value in np.unique(words[free]):
                batch.races.join_warps((free & (words == value)).reshape(shape))
        staying = []
        for block, lanes, members in self.warps:
            going = lanes & free
            if going.any():
                batch.add_pending(block.index + 1, None if going.all() else going)
            left = lanes & ~free
            if left.any():
                staying.append((block, left, members))
        self.warps = staying

    def first_waiting(self) -> tuple[Block, Mask] | None:
        """Return a basic block and lanes that wait, for a report of a deadlock."""
        for found in self.arrivals.values():
            for arrival in found:
                if arrival.waits:
                    return arrival.block, arrival.lanes
        if self.cluster.waiting:
            return self.cluster.waiting[0]
        return (self.warps[0][0], self.warps[0][1]) if self.warps else None
