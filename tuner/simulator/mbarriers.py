"""mbarrier objects in shared memory: phases, arrivals, transactions (PTX ISA 9.7.13.15).

The 64 bits of an object are opaque; its state is kept beside shared memory. A state token that `arrive`
returns is the number of its phase, scrambled, so that a program cannot make sense of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.simulator.accesses import shared_offsets
from tuner.simulator.async_copies import copies_of, land_all_of
from tuner.simulator.clock_races import ClockRaces
from tuner.simulator.instructions import (
    Closure,
    Effect,
    Opcode,
    Recipe,
    Registers,
    Site,
    UnknownModifierError,
    instruction,
)
from tuner.simulator.loads_stores import lane_addresses
from tuner.simulator.memory import SHARED_WINDOW
from tuner.simulator.scalar_types import B64, PREDICATE, U32
from tuner.simulator.syntax import SINK

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

SCRAMBLE = 0x5BD1E995A4D10000


@dataclass(slots=True)
class Landing:
    """Pieces (N,) of 16 bytes that a copy brings to shared memory of one block."""

    offsets: Any
    data: Any

    def part(self, pieces: slice) -> Landing:
        return Landing(self.offsets[pieces], self.data[pieces])


@dataclass(slots=True)
class Mbarrier:
    """One object: arrivals expected a phase and still pending, bytes to come, clocks of who arrived.

    `landing` are copies that this phase has counted, `landed` those of complete phases, which land for who
    waits. `asked` are the warps that have polled since the latest phase began.
    """

    expected: int
    pending: int
    transactions: int = 0
    phase: int = 0
    gathered: Any = None
    released: Any = None
    landing: list[Landing] = field(default_factory=list)
    landed: list[Landing] = field(default_factory=list)
    asked: set[int] = field(default_factory=set)


def objects(s: Batch) -> dict[tuple[int, int], Mbarrier]:
    found: dict[tuple[int, int], Mbarrier] | None = s.state.get("mbarriers")
    if found is None:
        found = s.state["mbarriers"] = {}
    return found


def arrive(s: Batch, barrier: Mbarrier, block: int, thread: int, count: int, transactions: int = 0) -> int:
    """Arrive `count` times for a thread; return the phase it arrived in."""
    phase = barrier.phase
    if isinstance(s.races, ClockRaces):
        clock = s.races.snapshot(block, np.array([thread]))
        barrier.gathered = clock if barrier.gathered is None else np.maximum(barrier.gathered, clock)
    barrier.transactions += transactions
    barrier.pending -= count
    finish_phase(barrier)
    return phase


def finish_phase(barrier: Mbarrier) -> None:
    """Begin the next phase where nothing is pending."""
    if barrier.pending <= 0 and barrier.transactions == 0:
        barrier.phase += 1
        barrier.pending = barrier.expected
        barrier.asked.clear()
        barrier.landed += barrier.landing
        barrier.landing = []
        barrier.released, barrier.gathered = barrier.gathered, None


def arrive_bytes(barrier: Mbarrier, landing: Landing, nbytes: int) -> None:
    """Bytes of a copy are complete; those that the phase does not expect come after its end."""
    expected = barrier.transactions
    if barrier.pending <= 0 and 0 < expected < nbytes and expected % 16 == 0:
        after = max(len(landing.offsets) - expected // 16, 0)
        barrier.landing.append(landing.part(slice(after, None)))
        barrier.transactions = 0
        finish_phase(barrier)
        landing, nbytes = landing.part(slice(after)), nbytes - expected
    barrier.landing.append(landing)
    barrier.transactions -= nbytes
    finish_phase(barrier)


def plain_shared(address: Any) -> Any:
    """Return shared addresses of generic or shared ones."""
    generic = (address >= SHARED_WINDOW) & (address < 2 * SHARED_WINDOW)
    return np.where(generic, address - SHARED_WINDOW, address)


def acquire(s: Batch, barrier: Mbarrier, block: int, thread: int) -> None:
    """A completed wait orders the thread after all that arrived in the phase, and lands its copies.

    They count as writes of the first thread that waits, of that moment; all that wait are ordered after it.
    """
    races = s.races if isinstance(s.races, ClockRaces) else None
    landed, barrier.landed = barrier.landed, []
    for landing in landed:
        s.shared.flat_view(16)[(landing.offsets + s.shared.rows[block]) >> 4] = landing.data
        if races is not None:
            races.land_at(block, thread, landing.offsets, 16)
    if races is None:
        return
    if landed:
        known = np.zeros(s.threads, np.int32)
        known[thread] = races.own(block, thread)
        barrier.released = known if barrier.released is None else np.maximum(barrier.released, known)
        races.advance(block, thread)
    if barrier.released is not None:
        races.clocks[block, thread] = np.maximum(races.clocks[block, thread], barrier.released)


def each(s: Batch, site: Site, address: Any) -> list[tuple[int, int, Mbarrier]]:
    """Return (block, thread, object) of the active lanes; an address with no object is a fault."""
    address = plain_shared(address)
    offsets, lanes = shared_offsets(s, address, 8, site, s.mask)
    shape = (s.blocks, s.threads)
    chosen = s.active_lanes() if lanes is None else np.broadcast_to(lanes, shape)
    where = np.broadcast_to(offsets, shape)
    if s.races is not None:  # the object has to be initialised before, in an order that others can rely on
        s.races.atomic(s, np.broadcast_to(offsets, (len(offsets), s.threads)), 8, chosen, site)
    known = objects(s)
    found, missing = [], np.zeros(shape, bool)
    for block, thread in zip(*(axis.tolist() for axis in np.nonzero(chosen)), strict=True):
        barrier = known.get((block, int(where[block, thread])))
        if barrier is None:
            missing[block, thread] = True
        else:
            found.append((block, thread, barrier))
    if missing.any():
        offset = int(where[missing][0]) + 1024
        s.fault("uninitialised", "no mbarrier has been initialised here", site, missing, offset, "shared")
    return found


@instruction("mbarrier")
def mbarrier(opcode: Opcode) -> Recipe:
    actions = (
        "init",
        "inval",
        "arrive",
        "arrive_drop",
        "test_wait",
        "try_wait",
        "expect_tx",
        "complete_tx",
        "pending_count",
    )
    action = opcode.choice(*actions)
    opcode.flag("release", "acquire", "relaxed", "cta", "cluster")
    expects = action == "arrive" and opcode.flag("expect_tx")
    opcode.flag("noComplete")
    parity = opcode.flag("parity")
    opcode.flag("shared", "shared::cta", "shared::cluster")
    opcode.choice("b64")
    if action == "pending_count":
        raise UnknownModifierError(f"{opcode.text} is not simulated")
    binders = {
        "init": _bind_init,
        "inval": _bind_inval,
        "expect_tx": _bind_transactions,
        "complete_tx": _bind_transactions,
    }
    if action in binders:
        return Effect(lambda site: binders[action](_prepared(site), action), "mbarrier")
    if action in ("test_wait", "try_wait"):
        return Effect(lambda site: _bind_wait(_prepared(site), parity), "mbarrier")
    return Effect(lambda site: _bind_arrive(_prepared(site), action == "arrive_drop", expects), "mbarrier")


def _prepared(site: Site) -> Site:
    site.finer_order = site.polls = True
    return site


def _bind_init(site: Site, action: str) -> Closure:
    site.expect(2)
    base, offset = site.address(site.operands[0])
    count = site.source(site.operands[1], U32)

    def run(r: Registers, s: Batch) -> None:
        address = lane_addresses(r, base, offset)
        offsets, lanes = shared_offsets(s, address, 8, site, s.mask)
        shape = (s.blocks, s.threads)
        chosen = s.active_lanes() if lanes is None else np.broadcast_to(lanes, shape)
        if s.races is not None:
            s.races.write(s, np.broadcast_to(offsets, (len(offsets), s.threads)), 8, chosen, site)
        counts, where = np.broadcast_to(r[count], shape), np.broadcast_to(offsets, shape)
        for block, thread in zip(*(axis.tolist() for axis in np.nonzero(chosen)), strict=True):
            number = int(counts[block, thread])
            objects(s)[block, int(where[block, thread])] = Mbarrier(number, number)

    return run


def _bind_inval(site: Site, action: str) -> Closure:
    site.expect(1)
    base, offset = site.address(site.operands[0])

    def run(r: Registers, s: Batch) -> None:
        gone = {id(barrier) for _, _, barrier in each(s, site, lane_addresses(r, base, offset))}
        known = objects(s)
        for key in [key for key, barrier in known.items() if id(barrier) in gone]:
            del known[key]

    return run


def _bind_transactions(site: Site, action: str) -> Closure:
    site.expect(2)
    base, offset = site.address(site.operands[0])
    amount = site.source(site.operands[1], U32)
    sign = 1 if action == "expect_tx" else -1

    def run(r: Registers, s: Batch) -> None:
        amounts = np.broadcast_to(r[amount], (s.blocks, s.threads))
        for block, thread, barrier in each(s, site, lane_addresses(r, base, offset)):
            barrier.transactions += sign * int(amounts[block, thread])
            finish_phase(barrier)

    return run


def _bind_arrive(site: Site, drop: bool, expects: bool) -> Closure:
    operands = list(site.operands)
    if len(operands) < 2:
        raise site.error("mbarrier.arrive takes a state, an address and an optional count")
    state = operands.pop(0)
    base, offset = site.address(operands[0])
    count = site.source(operands[1], U32) if len(operands) > 1 else None
    target = 0 if state == SINK else site.target(state, B64)

    def run(r: Registers, s: Batch) -> None:
        shape = (s.blocks, s.threads)
        amounts = np.broadcast_to(r[count], shape) if count is not None else None
        tokens = np.zeros(shape, np.uint64)
        for block, thread, barrier in each(s, site, lane_addresses(r, base, offset)):
            amount = int(amounts[block, thread]) if amounts is not None else 1
            arrivals, transactions = (1, amount) if expects else (amount, 0)
            if drop:
                barrier.expected -= arrivals
            phase = arrive(s, barrier, block, thread, arrivals, transactions)
            tokens[block, thread] = SCRAMBLE ^ phase
        if target:
            s.write(r, target, tokens)

    return run


def _bind_wait(site: Site, parity: bool) -> Closure:
    if len(site.operands) not in (3, 4):  # try_wait has an optional time limit
        raise site.error("mbarrier.test_wait takes a predicate, an address and a state or parity")
    base, offset = site.address(site.operands[1])
    token = site.source(site.operands[2], U32 if parity else B64)
    target = site.target(site.operands[0], PREDICATE)

    def run(r: Registers, s: Batch) -> None:
        shape = (s.blocks, s.threads)
        tokens = np.broadcast_to(r[token], shape)
        done = np.zeros(shape, bool)
        late: dict[tuple[int, int], bool] = {}
        for block, thread, barrier in each(s, site, lane_addresses(r, base, offset)):
            value = int(tokens[block, thread])
            over = (barrier.phase & 1) != (value & 1) if parity else barrier.phase > (value ^ SCRAMBLE)
            if over and not _too_early(s, barrier, block, thread, late):
                done[block, thread] = True
                acquire(s, barrier, block, thread)
        s.write(r, target, done)

    return run


def _too_early(
    s: Batch, barrier: Mbarrier, block: int, thread: int, late: dict[tuple[int, int], bool]
) -> bool:
    """Whether a warp that polls for the first time is told that a complete phase is not: by chance.

    Only where nothing orders the completion before the poll, so that no thread may count on it. `late` holds
    what each warp is told by this instruction.
    """
    if not isinstance(s.races, ClockRaces):
        return False
    known = barrier.released is None or bool((barrier.released <= s.races.clocks[block, thread]).all())
    if known and not barrier.landed:
        return False
    key = (id(barrier), thread // 32)
    if key not in late:
        late[key] = key[1] not in barrier.asked and bool(s.random().integers(2))
        barrier.asked.add(key[1])
        s.ahead += late[key]
    return late[key]


def bind_copy_arrive(site: Site, counted: bool) -> Closure:
    """cp.async.mbarrier.arrive: the object completes only when the thread's copies so far have landed.

    Without `.noinc` the arrival is extra: it adds one to the pending count first. Landing is put off until
    the phase would complete, which is as late as the ISA allows.
    """
    _prepared(site)
    site.expect(1)
    base, offset = site.address(site.operands[0])

    def run(r: Registers, s: Batch) -> None:
        lanes = s.active_lanes()
        land_all_of(s, copies_of(s), lanes)
        for block, thread, barrier in each(s, site, lane_addresses(r, base, offset)):
            arrive(s, barrier, block, thread, 0 if counted else 1)

    return run
