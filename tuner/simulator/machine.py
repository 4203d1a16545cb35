"""Runs a batch of blocks in lockstep: groups of lanes, reconvergence, barriers, exits.

A group is a basic block and the mask of lanes that are to run it. The group of the lowest basic block runs
first, and groups that meet at a basic block become one. A mask of None stands for every lane, so uniform code
pays for no masks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.barriers import Barriers
from tuner.simulator.clock_races import ClockRaces
from tuner.simulator.context import Context
from tuner.simulator.faults import lane_fault
from tuner.simulator.global_races import (
    BLOCK_SHIFT,
    MANY_BLOCKS,
    PRESENT,
    THREAD_SHIFT,
    TIME_BITS,
    TIME_SHIFT,
)
from tuner.simulator.instructions import Site
from tuner.simulator.memory import SharedMemory
from tuner.simulator.program import Block
from tuner.simulator.proxy_writes import ProxyWrites
from tuner.simulator.races import SharedRaces
from tuner.simulator.shapes import stretched
from tuner.simulator.specials import special_value
from tuner.simulator.transfers import end_sendings

Mask = NDArray[np.bool_]
WARP = 32
PATIENCE = 4
"""How often the polling loops of a batch go round before other batches run."""


class Stopped(Exception):  # noqa: N818 - not an error of the simulator; the kernel cannot go on
    """The batch cannot go on: a deadlock, or the step budget is spent."""


class Batch:
    """Blocks that run together, and the state that closures read and write.

    Attributes:
        mask: active lanes, broadcastable to (B, T), or None for all.
        live: lanes that have not exited, or None for all.
        ahead: grows when a lane leaves a polling loop or memory changes.
        blocks, threads, warps: B, T (a multiple of 32; missing threads are never live) and T / 32.
    """

    def __init__(self, context: Context, block_ids: NDArray[np.int64]) -> None:
        program, layout = context.program, context.program.layout
        self.context, self.program = context, program
        self.memory, self.counters, self.count = context.memory, context.counters, context.count
        self.block_ids = block_ids
        self.blocks = len(block_ids)
        self.threads = -(-context.threads // WARP) * WARP
        self.warps = self.threads // WARP
        nbytes = layout.dynamic_start + context.shared_bytes - 1024
        self.shared = SharedMemory(self.blocks, nbytes)
        self.races: SharedRaces | ClockRaces | None = None
        if context.races:
            detector = ClockRaces if context.clocks else SharedRaces
            self.races = detector(self.blocks, self.threads, nbytes, program.granule_bytes)
        self.proxy = ProxyWrites(self.races) if self.races is not None and program.async_reads else None
        self.mask: Mask | None = None
        self.existing: Mask | None = None
        if self.threads != context.threads:
            self.existing = np.arange(self.threads)[None, :] < context.threads
        self.live = self.existing
        everyone = np.ones((1, 1), bool) if self.existing is None else self.existing
        self.everyone: Mask = stretched(everyone, (self.blocks, self.threads))
        self.whole: Any = None
        self.steps = 0
        self.keys: Any = None
        self.idle = self.ahead = self.ahead_at_poll = 0
        self.polled = -1
        self.desperate = False
        self.pending: dict[int, Mask | None] = {0: self.existing}
        self.barriers = Barriers(self)
        self.narrowings: dict[tuple[int, bool, int], tuple[Any, Any, Any]] = {}
        self.state: dict[str, Any] = {}
        self.registers: list[Any] = list(layout.initial)
        for name, slot in layout.specials.items():
            self.registers[slot] = special_value(name, self)
        for (name, offset, dtype), slot in layout.symbols.items():
            address = self.memory.buffers[f"module:{name}"].base + offset
            self.registers[slot] = np.array([[address]], np.uint64).astype(dtype)

    # -- running --

    def run(self) -> bool:
        """Run until every block has ended, or until all that is left polls; return whether it has ended.

        A batch that has ended is not to be used again. Faults are recorded, never raised.
        """
        self.idle = 0
        try:
            while self.pending:
                index, mask = self.next_group()
                self.run_block(self.program.blocks[index], mask)
                if not self.pending and self.barriers.waiting:
                    self.deadlock()
                if self.idle > PATIENCE * max(len(self.pending), 1):
                    return False
        except Stopped:
            self.pending = {}
        end_sendings(self)
        del self.barriers  # which refers back: without the cycle, all this memory is free at once
        return True

    def next_group(self) -> tuple[int, Mask | None]:
        """Take the group of the lowest basic block; but let others go before one that has just polled in
        vain.

        Lanes of the polling warps (or warpgroups) wait to come together again, unless nothing else is left to
        try.
        """
        lowest = min(self.pending)
        if self.polled in self.pending and len(self.pending) > 1:
            together = self.program.together if self.threads % self.program.together == 0 else WARP
            polling = self.barriers.full(self.pending[self.polled]).reshape(self.blocks, -1, together)
            other_warps = np.repeat(~polling.any(axis=2), together, axis=1)
            for index in sorted(self.pending):
                if index == self.polled:
                    continue
                lanes = self.barriers.full(self.pending[index])
                going = lanes if self.desperate else lanes & other_warps
                if going.any():
                    rest = lanes & ~going
                    del self.pending[index]
                    if rest.any():
                        self.pending[index] = rest
                    return index, going
            lowest = self.polled
        return lowest, self.pending.pop(lowest)

    def run_block(self, block: Block, mask: Mask | None) -> None:
        registers = self.registers
        self.mask = mask
        if mask is None:
            self.context.block_warps[block.index] += self.blocks * self.warps
            for slot, closure, _ in block.steps:
                registers[slot] = closure(registers, self)
        else:
            self.context.block_warps[block.index] += self.active_warps(mask)
            for slot, closure, keeps in block.steps:
                value = closure(registers, self)
                registers[slot] = np.where(mask, value, registers[slot]) if keeps else value
        self.steps += block.length
        if self.steps > self.context.step_budget:
            self.endless(block)
        getattr(self, f"end_{block.kind}")(block)

    def active_warps(self, mask: Mask) -> int:
        times: int = self.blocks // mask.shape[0]
        if mask.shape[1] == 1:
            return int(np.count_nonzero(mask)) * times * self.warps
        warps = mask.reshape(-1, WARP).any(axis=1)
        return int(np.count_nonzero(warps)) * times

    def add_pending(self, index: int, mask: Mask | None) -> None:
        """Let lanes go on at a basic block, together with those that wait there already."""
        if index in self.pending:
            other = self.pending[index]
            if mask is None or other is None:
                self.pending[index] = None
                return
            mask = mask | other
            if mask.all():
                mask = None
        self.pending[index] = mask

    # -- ends of basic blocks --

    def end_fall(self, block: Block) -> None:
        self.add_pending(block.index + 1, self.mask)

    def split(self, block: Block) -> tuple[Any, Any]:
        """Return the masks of lanes whose guard lets them take the block's end, and of the others; False for
        none.
        """
        if not block.guard:
            return self.mask, False
        taken = self.narrowed(self.registers[block.guard], block.negated)
        if taken is None:
            return None, False
        if taken is False:
            return False, self.mask
        rest = ~taken if self.mask is None else self.mask & ~taken
        return taken, (rest if rest.any() else False)

    def end_branch(self, block: Block) -> None:
        taken, rest = self.split(block)
        if block.polls:
            self.note_poll(block, taken is not False, rest is not False)
        if taken is not False:
            self.add_pending(block.target, taken)
        if rest is not False:
            self.add_pending(block.index + 1, rest)

    def note_poll(self, block: Block, again: bool, some_left: bool) -> None:
        """Keep count of how long nothing but polling has happened: no lane left its loop and no memory
        changed.
        """
        self.ahead += some_left
        self.idle = self.idle + 1 if again and self.ahead == self.ahead_at_poll else 0
        self.ahead_at_poll = self.ahead
        self.polled = block.target if again else -1

    def end_exit(self, block: Block) -> None:
        leaving, rest = self.split(block)
        if leaving is None:
            self.live = np.zeros((1, 1), bool)
        elif leaving is not False:
            self.live = ~leaving if self.live is None else self.live & ~leaving
            self.barriers.thread_left()
        if rest is not False:
            self.add_pending(block.index + 1, rest)

    def end_trap(self, block: Block) -> None:
        reaching, _ = self.split(block)
        if reaching is not False and block.site is not None:
            lanes = self.active_lanes() if reaching is None else reaching
            self.fault("trap", "this thread runs into a trap", block.site, lanes)
        self.end_exit(block)

    def end_barrier(self, block: Block) -> None:
        arriving, rest = self.split(block)
        if rest is not False:
            self.add_pending(block.index + 1, rest)
        if arriving is not False:
            self.barriers.arrive(block, arriving)

    def end_warp_barrier(self, block: Block) -> None:
        arriving, rest = self.split(block)
        if rest is not False:
            self.add_pending(block.index + 1, rest)
        if arriving is not False:
            self.barriers.arrive_warp(block, arriving)

    def end_cluster_wait(self, block: Block) -> None:
        arriving, rest = self.split(block)
        if rest is not False:
            self.add_pending(block.index + 1, rest)
        if arriving is not False:
            self.barriers.cluster.wait(block, self.barriers.full(arriving))

    def new_epoch(self, released: Mask | None) -> None:
        """A whole-block barrier is complete in the released blocks, or in all."""
        if self.races is not None:
            self.context.order.barrier(self, released)
            self.races.barrier(released)
            self.keys = None

    def global_keys(self) -> Any:
        """Return the keys (B, T) of accesses to global memory at this moment, without the instruction."""
        races = self.races
        if isinstance(races, ClockRaces):
            lanes = np.arange(self.threads)
            times = races.clocks[:, lanes, lanes].astype(np.int64)
        elif self.keys is not None:
            return self.keys
        else:
            times = races.epochs if races is not None else np.ones((1, 1), np.int64)
        block = (self.block_ids % MANY_BLOCKS)[:, None] << BLOCK_SHIFT
        thread = np.arange(self.threads, dtype=np.int64) << THREAD_SHIFT
        self.keys = PRESENT + block + ((times & ((1 << TIME_BITS) - 1)) << TIME_SHIFT) + thread
        return self.keys

    def rows_of(self, numbers: Any) -> Any:
        """Return the rows of this batch that hold blocks of the given numbers."""
        return np.searchsorted(self.block_ids % MANY_BLOCKS, numbers)

    def starved(self) -> None:
        """No thread of any block can go on: all of them poll for what none of them will do."""
        index = min(self.pending)
        site = next((block.site for block in self.program.blocks[index:] if block.polls and block.site), None)
        mask = self.pending[index]
        lanes = self.barriers.full(mask)
        if site is not None:
            self.fault("endless", "threads poll for something that no thread does", site, lanes)

    def deadlock(self) -> None:
        found = self.barriers.first_waiting()
        if found is not None and found[0].site is not None:
            message = "threads wait at this barrier for others that never come to it"
            self.fault("divergence", message, found[0].site, found[1])
        raise Stopped

    def endless(self, block: Block) -> None:
        sites = [site for site in (block.site, *self.program.sites) if site is not None]
        self.fault(
            "endless",
            f"{self.context.step_budget} instructions have run and the block has not ended",
            sites[0],
            self.active_lanes(),
        )
        raise Stopped

    # -- what closures use --

    def write(self, registers: list[Any], slot: int, value: Any) -> None:
        """Set a register in the active lanes."""
        mask = self.mask
        registers[slot] = value if mask is None else np.where(mask, value, registers[slot])

    def narrowed(self, predicate: Any, negated: bool) -> Any:
        """Return the active lanes where a predicate holds: a mask, None for every lane of the batch, False
        for none.
        """
        mask = self.mask
        key = (id(predicate), negated, id(mask))
        known = self.narrowings.get(key)
        if known is not None:
            return known[0]
        chosen = ~predicate if negated else predicate
        if mask is not None:
            chosen = chosen & mask
        result: Any = chosen
        if not chosen.any():
            result = False
        elif mask is None and chosen.all():
            result = None
        if len(self.narrowings) > 64:
            self.narrowings.clear()
        self.narrowings[key] = (result, predicate, mask)  # the references keep the ids theirs
        return result

    def random(self) -> np.random.Generator:
        """Return the generator of choices that the ISA leaves open; the same for the same seed, step and
        blocks.
        """
        found: np.random.Generator | None = self.state.get("random")
        if found is None:
            key = (self.context.seed, self.context.step, int(self.block_ids[0]))
            found = self.state["random"] = np.random.default_rng(key)
        return found

    def active_lanes(self) -> Mask:
        """Return the active lanes as (B, T)."""
        if self.mask is None:
            return self.everyone
        lanes = stretched(self.mask, (self.blocks, self.threads))
        return lanes if self.existing is None else lanes & self.existing

    def check_whole_warps(self, site: Site, lanes: Mask | None = None, wanted: Mask | None = None) -> None:
        """Record a fault where a warp runs an `.aligned` instruction with some of the wanted threads only."""
        if lanes is None and wanted is None and self.mask is self.whole:
            return
        shape = (self.blocks, self.threads)
        active = (self.active_lanes() if lanes is None else lanes).reshape(-1, WARP)
        whole = np.broadcast_to(True if wanted is None else wanted, shape).reshape(-1, WARP)
        torn = active.any(axis=1) & (active != (whole | active)).any(axis=1)
        if torn.any():
            bad = (active & torn[:, None]).reshape(shape)
            self.fault("divergence", "not all threads of the warp run this instruction together", site, bad)
        elif lanes is None and wanted is None:
            self.whole = self.mask  # known to be of whole warps, for the instructions that follow

    # -- findings --

    def note(self, text: str) -> None:
        self.context.findings.note(text)

    def fault(
        self,
        kind: str,
        message: str,
        site: Site,
        lanes: Mask,
        address: int | None = None,
        space: str = "",
        buffer: str = "",
    ) -> None:
        """Record a fault of some lanes; the first of them is named."""
        lane_fault(self, kind, message, site, lanes, address, space, buffer)
