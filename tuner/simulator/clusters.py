"""Clusters of one block: mapa, getctarank, barrier.cluster (PTX ISA 9.7.9.23, 9.7.13.4). Larger ones raise.

Every block is block 0 of its own cluster, so its shared memory is all that `.shared::cluster` names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.clock_races import ClockRaces
from tuner.simulator.instructions import (
    Closure,
    Control,
    Effect,
    Opcode,
    Recipe,
    Registers,
    Site,
    instruction,
)
from tuner.simulator.scalar_types import SCALARS, U32

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch
    from tuner.simulator.program import Block

Mask = NDArray[np.bool_]


@instruction("mapa")
def mapa(opcode: Opcode) -> Recipe:
    """The address, in another block of the cluster, of a variable of this one."""
    opcode.flag("shared::cluster")
    scalar = opcode.type("u32", "u64")

    def bind(site: Site) -> Closure:
        site.expect(3)
        a, rank = site.source(site.operands[1], scalar), site.source(site.operands[2], U32)
        site.result = site.target(site.operands[0], scalar)

        def run(r: Registers, s: Batch) -> Any:
            others = np.broadcast_to(r[rank] != 0, (s.blocks, s.threads)) & s.active_lanes()
            if others.any():
                message = "mapa names another block than 0, the only one of its cluster"
                s.fault("out_of_bounds", message, site, others)
            return r[a]

        return run

    return Effect(bind, "integer")


@instruction("getctarank")
def getctarank(opcode: Opcode) -> Recipe:
    """The block of the cluster that an address lies in: block 0."""
    opcode.flag("shared::cluster")
    scalar = opcode.type("u32", "u64")

    def bind(site: Site) -> Closure:
        site.expect(2)
        site.source(site.operands[1], scalar)
        site.result = site.target(site.operands[0], SCALARS["u32"])
        return lambda r, s: np.zeros((1, 1), np.uint32)

    return Effect(bind, "integer")


def cluster_barrier(opcode: Opcode) -> Recipe:
    """Decode what follows `barrier.cluster`: arrive does not wait, wait waits for all that are to arrive."""
    action = opcode.choice("arrive", "wait")
    relaxed = opcode.flag("relaxed")
    opcode.flag("release", "acquire")
    aligned = opcode.flag("aligned")
    if action == "wait":

        def bind(site: Site) -> tuple[Any, ...]:
            site.expect(0)
            site.finer_order = True
            return (aligned,)

        return Control("cluster_wait", bind, "barrier")

    def bind_arrive(site: Site) -> Closure:
        site.expect(0)
        site.finer_order = True
        return lambda r, s: s.barriers.cluster.arrive(site, s.active_lanes(), relaxed)

    return Effect(bind_arrive, "barrier", aligned=aligned)


class ClusterBarrier:
    """The barrier of a cluster, for each block of a batch: how often each thread came and went."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.arrived = np.zeros((batch.blocks, batch.threads), np.int64)
        self.left = np.zeros_like(self.arrived)
        self.waiting: list[tuple[Block, Mask]] = []
        self.brought: dict[tuple[int, int], Any] = {}

    def arrive(self, site: Site, lanes: Mask, relaxed: bool) -> None:
        twice = lanes & (self.arrived > self.left)
        if twice.any():
            message = "this thread arrives at the cluster barrier twice without waiting between"
            self.batch.fault("divergence", message, site, twice)
        races = self.batch.races
        if isinstance(races, ClockRaces) and not relaxed:
            for row in np.flatnonzero(lanes.any(axis=1)).tolist():
                threads = np.flatnonzero(lanes[row])
                for phase in np.unique(self.arrived[row, threads]).tolist():
                    clock = races.snapshot(row, threads[self.arrived[row, threads] == phase])
                    known = self.brought.get((row, phase))
                    self.brought[row, phase] = clock if known is None else np.maximum(known, clock)
        self.arrived += lanes
        self.release()

    def wait(self, block: Block, lanes: Mask) -> None:
        self.waiting.append((block, lanes.copy()))
        self.release()

    def release(self) -> None:
        """Let those go on that every live thread of their block has arrived for."""
        if not self.waiting:
            return
        batch = self.batch
        live = np.broadcast_to(True if batch.live is None else batch.live, self.arrived.shape)
        complete = np.where(live, self.arrived, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
        staying = []
        for block, lanes in self.waiting:
            going = lanes & (complete > self.left)
            if going.any():
                if block.site is not None and block.details[0]:
                    batch.check_whole_warps(block.site, going, live)
                self.join(going)
                self.left += going
                batch.add_pending(block.index + 1, None if going.all() else going)
            if (lanes & ~going).any():
                staying.append((block, lanes & ~going))
        self.waiting = staying

    def join(self, going: Mask) -> None:
        races = self.batch.races
        if not isinstance(races, ClockRaces):
            return
        for row, thread in zip(*(axis.tolist() for axis in np.nonzero(going)), strict=True):
            clock = self.brought.get((row, int(self.left[row, thread])))
            if clock is not None:
                races.clocks[row, thread] = np.maximum(races.clocks[row, thread], clock)
