"""Predicted time of a launch plan on a GPU, and the physical bound. Analytic, deterministic, knows no kernel.

Where each constant is from, what was fitted to what, and how far off it is: `docs/cost-model.md`.

The busiest SM runs its blocks in rounds of as many as fit. All blocks of a round run in lock-step, since they
start together and share every pipe fairly; so a round takes each resource for all of its blocks at once:

* a pipelined kernel: steps x the busiest of tensor, issue, shared memory and L2, but no less than a step of a
  lone block, nor than what the latencies of its loads and of its chains of mma's allow;
* a phased kernel (barriers between filling shared memory and computing on it): steps x (load latency + the
  busiest resource of filling + the busiest resource of computing + barriers);
* then the epilogue, at the rate at which L2 takes stores;
* a kernel without barriers in its main loop does not run in lock-step: `tuner.streaming`.

What must come from DRAM (all that is read where L2 is cold; everything where it does not fit L2) moves at its
speed, behind everything else. Every step of the plan pays for its launch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emitters.kernel import Demand
from emitters.target import SHARED_RESERVED, WARP, Figure, Gpu, Target
from tuner.occupancy import SUB_PARTITIONS, FloatArray, Number, resident_blocks
from tuner.streaming import Stream
from tuner.work import Fill, PlanWork, Work

LAUNCH_US = 4.0
L2_LATENCY = 280.0
DRAM_LATENCY = 631.0
SHARED_LATENCY = 30.0
MMA_LATENCY = 33.0
BARRIER_LATENCY = 30.0
ALU_CYCLES = 2.0
SM_READ_BYTES = 64.0
SM_WRITE_BYTES = 32.0
L2_WRITES_PER_READ = 8.0 / 15.2
ATOMIC_COST = 2.0
DRAM_EFFICIENCY = 0.9
L2_SPILL_RANGE = 1.15

OPERATIONS = {"mma_s8": 8192.0, "mma_f16": 4096.0}


class NoGpuError(ValueError):
    """A target without the figures of a GPU."""


@dataclass(frozen=True)
class Prediction:
    """A predicted time, and what it is made of. Fields have the common shape of the work's fields.

    Attributes:
        time_us: Of the whole plan.
        breakdown_us: By name: what each part would take alone. Parts overlap, so they do not add up.
        blocks: Blocks of the slowest launch.
        resident: Of them on an SM at once.
        rounds: In which the busiest SM runs its blocks.
        phased: Whether that launch's phases are kept apart by barriers.
    """

    time_us: FloatArray
    breakdown_us: dict[str, FloatArray]
    blocks: FloatArray
    resident: FloatArray
    rounds: FloatArray
    phased: FloatArray

    @cached_property
    def limiter(self) -> str:
        """The pipe, or DRAM, that takes longest; for a prediction of one plan."""
        return max((*PIPES, "dram"), key=lambda name: float(self.breakdown_us[name]))

    def explain(self) -> list[str]:
        """Lines for a person; for a prediction of one plan."""
        kind = "filling and computing take turns" if self.phased else "filling and computing overlap"
        lines = [
            f"predicted {float(self.time_us):.1f} us, limited by {self.limiter}; {kind}",
            f"{int(self.blocks)} blocks, {int(self.resident)} at once on an SM, {int(self.rounds)} rounds "
            "on the busiest one",
        ]
        lines += [
            f"{name:>9} {float(self.breakdown_us[name]):9.1f} us  {meaning}"
            for name, meaning in PARTS.items()
            if float(self.breakdown_us[name]) > 0
        ]
        return lines


PIPES = {
    "tensor": "mma's",
    "issue": "instructions issued, integer ones at half rate",
    "shared": "shared-memory wavefronts, bank conflicts included",
    "l2": "global loads at the bandwidth of L2",
}
PARTS = {
    "launch": "launches, one a step of the plan",
    **PIPES,
    "latency": "waiting for loads, barriers and mma's that nothing hides",
    "epilogue": "what is outside the main loop: set-up and stores of the result",
    "dram": "bytes that come from DRAM: what is read where L2 is cold, all where it does not fit",
    "memset": "zeroing",
    "tail": "of all this: SMs that have no block in the last round",
}


@dataclass(frozen=True)
class Bound:
    """Least time that physics allows, and what sets it.

    Attributes:
        time_us: Microseconds.
        amount: Operations or bytes that take so long.
        of: Which: "operations", "bytes from DRAM" or "bytes from L2".
    """

    time_us: float
    amount: float
    of: str

    def rate(self, time_us: float) -> str:
        """How fast that amount is dealt with in a time, with its unit."""
        if self.of == "operations":
            return f"{self.amount / time_us / 1e6:.1f} T ops/s"
        return f"{self.amount / time_us / 1e3:.0f} GB/s"


def predict(plan: PlanWork, target: Target, cold: bool = False) -> Prediction:
    """Time of a plan on the target's GPU.

    Args:
        plan: What it asks; fields may be arrays over many schedules.
        target: With a GPU.
        cold: Whether what the plan reads comes from DRAM; else everything that fits L2 is there already.

    Raises:
        NoGpuError: The target has no GPU.
    """
    gpu = _gpu_of(target)
    dram_bytes = _dram_bytes(plan, gpu, cold)
    works = [work for work in plan.steps if isinstance(work, Work)]
    asked = sum((_asked_bytes(work) for work in works), np.float64(0))
    launches = [
        _Launch(work, target, gpu, dram_bytes * _asked_bytes(work) / np.maximum(asked, 1)) for work in works
    ]
    per_us = gpu.clock_mhz.value
    memset = sum((_memset_us(fill, gpu) for fill in plan.steps if isinstance(fill, Fill)), np.float64(0))
    dram = dram_bytes / (gpu.dram_gb_s.value * DRAM_EFFICIENCY * 1e3)
    launch = np.float64(LAUNCH_US * len(plan.steps))
    busy = sum((one.cycles / per_us for one in launches), np.float64(0)) + memset
    parts = {name: sum((one.parts[name] / per_us for one in launches), np.float64(0)) for name in _PER_LAUNCH}
    breakdown = {"launch": launch, **parts, "dram": dram, "memset": memset}
    time, *values = np.broadcast_arrays(np.maximum(busy, dram) + launch, *breakdown.values())
    slowest = max(launches, key=lambda one: float(np.max(one.cycles)))
    return Prediction(
        time_us=time,
        breakdown_us=dict(zip(breakdown, values, strict=True)),
        blocks=slowest.blocks,
        resident=slowest.resident,
        rounds=np.ceil(slowest.busiest / np.maximum(slowest.resident, 1)),
        phased=slowest.phased,
    )


def bound(demand: Demand, gpu: Gpu, cold: bool = False) -> Bound:
    """Least time that physics allows for a problem on a GPU.

    The largest of operations at the unit's peak rate and highest clock, bytes at the peak of DRAM, and bytes
    at the width of the ports between SMs and L2. Where L2 is cold all that is read comes from DRAM, and in
    any case what exceeds L2; everything passes the ports.
    """
    compute = demand.operations / (_peak_operations_a_clock(demand.unit, gpu) * gpu.max_clock_mhz.value)
    nbytes = float(demand.read_bytes + demand.write_bytes)
    beyond = max(0.0, nbytes - gpu.l2_bytes.value)
    from_dram = max(beyond, demand.read_bytes) if cold else beyond
    ports = SM_READ_BYTES * gpu.sms.value * gpu.max_clock_mhz.value
    one_way = max(demand.read_bytes, demand.write_bytes)
    return max(
        Bound(compute, demand.operations, "operations"),
        Bound(from_dram / (gpu.dram_gb_s.value * 1e3), from_dram, "bytes from DRAM"),
        Bound(one_way / ports, one_way, "bytes from L2"),
        key=lambda bound: bound.time_us,
    )


class _Launch:
    """Cycles of one launch on the busiest SM."""

    def __init__(self, work: Work, target: Target, gpu: Gpu, dram_bytes: FloatArray) -> None:
        self._work = work
        self.blocks = np.asarray(work.blocks, np.float64)
        self.phased = np.asarray(work.phased, np.float64)
        self.resident = resident_blocks(target.arch, work.threads, work.registers, work.shared_bytes)
        self._warps = np.ceil(np.asarray(work.threads, np.float64) / WARP)
        self.busiest = np.ceil(self.blocks / gpu.sms.value)
        self._mma_cycles = work.mma_s8 * gpu.mma_s8_cycles.value + work.mma_f16 * gpu.mma_f16_cycles.value
        self._mma_count = np.asarray(work.mma_s8, np.float64) + work.mma_f16
        alu = ALU_CYCLES * np.asarray(work.alu_instructions, np.float64)
        phased = self.phased > 0
        self._slots = np.maximum(work.instructions, np.where(phased, 0.0, alu))
        self._fill_slots = np.maximum(work.fill_instructions, np.where(phased, alu, 0.0))
        # Fewer SMs than all of them share the bandwidth of L2, up to what one SM can take.
        spread = gpu.sms.value / np.clip(self.blocks, 1, gpu.sms.value)
        read = gpu.l2_bytes_per_clock_per_sm.value
        self._read_rate = np.minimum(read * spread, SM_READ_BYTES)
        self._write_rate = np.minimum(read * L2_WRITES_PER_READ * spread, SM_WRITE_BYTES)
        # A load whose lanes share no sector takes the same pipe a cycle for each of them.
        self._loads_and_stores = work.shared_writes + np.asarray(work.scattered_sectors, np.float64)
        pipes = {name: self._rounds(self._pipe(name)) for name in PIPES}
        main, epilogue = self._rounds(self._main), self._rounds(self._outside)
        pure = self._rounds(self._unhindered)
        free = np.asarray(work.free, np.float64) > 0
        if np.any(free):
            streamed = _Streamed(self, work, target, gpu, dram_bytes)
            pipes = {name: np.where(free, streamed.pipes[name], cycles) for name, cycles in pipes.items()}
            epilogue = np.where(free, streamed.ends, epilogue)
            pure = np.where(free, streamed.unhindered, pure)
            main = np.where(free, streamed.main, main)
        self.cycles = np.where(self.resident > 0, main + epilogue, np.inf)
        share = self.blocks / gpu.sms.value / np.maximum(self.busiest, 1)
        self.parts = {
            **pipes,
            "latency": main - pure,
            "epilogue": epilogue,
            "tail": (main + epilogue) * (1 - share),
        }

    def issue_cycles(self, blocks: FloatArray) -> FloatArray:
        """What issuing takes for some blocks, set-up and epilogue included."""
        return self._by_warps(self._slots + self._fill_slots + self._work.other_instructions, blocks)

    def tensor_cycles(self, blocks: FloatArray) -> FloatArray:
        """What their mma's take."""
        return self._by_warps(self._mma_cycles, blocks)

    def chained_cycles(self) -> FloatArray:
        """What the mma's of one warp take that wait for each other."""
        chained: FloatArray = self._mma_count / self._warps * MMA_LATENCY / np.maximum(self._work.chains, 1)
        return chained

    def _rounds(self, cycles: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """Cycles of all rounds: full ones, and what is left over."""
        resident = np.maximum(self.resident, 1)
        full, left = np.divmod(self.busiest, resident)
        return full * cycles(resident) + np.where(left > 0, cycles(np.maximum(left, 1)), 0.0)

    def _by_warps(self, total: Number, blocks: FloatArray) -> FloatArray:
        """Cycles on the sub-partition with the most warps, of a block's total spread over its warps."""
        cycles: FloatArray = total / self._warps * np.ceil(blocks * self._warps / SUB_PARTITIONS)
        return cycles

    def _pipe(self, name: str) -> Callable[[FloatArray], FloatArray]:
        """What that pipe needs for the main loop of some blocks."""
        work = self._work
        return {
            "tensor": self.tensor_cycles,
            "issue": lambda blocks: self._by_warps(self._slots + self._fill_slots, blocks),
            "shared": lambda blocks: blocks * (work.shared_reads + self._loads_and_stores),
            "l2": lambda blocks: blocks * work.read_bytes / self._read_rate,
        }[name]

    def _filling(self, blocks: FloatArray) -> FloatArray:
        issue = self._by_warps(self._fill_slots, blocks)
        return _largest(issue, blocks * self._loads_and_stores, self._pipe("l2")(blocks))

    def _computing(self, blocks: FloatArray) -> FloatArray:
        issue = self._by_warps(self._slots, blocks)
        return _largest(self._pipe("tensor")(blocks), issue, blocks * self._work.shared_reads)

    def _unhindered(self, blocks: FloatArray) -> FloatArray:
        """The main loop, were there no latencies."""
        overlapped = _largest(*(self._pipe(name)(blocks) for name in PIPES))
        return np.where(self.phased > 0, self._filling(blocks) + self._computing(blocks), overlapped)

    def _main(self, blocks: FloatArray) -> FloatArray:
        """The main loop of that many blocks in lock-step."""
        steps = np.asarray(self._work.steps, np.float64)
        lookahead = np.maximum(self._work.lookahead, 1)
        turn = L2_LATENCY + SHARED_LATENCY + MMA_LATENCY + 2 * BARRIER_LATENCY
        lone = self._unhindered(np.ones_like(blocks)) + steps * BARRIER_LATENCY
        chained = self.chained_cycles()
        waiting = steps * L2_LATENCY / lookahead
        pipelined = _largest(self._unhindered(blocks), lone, waiting, chained)
        phased = self._filling(blocks) + np.maximum(self._computing(blocks), chained) + steps * turn
        return np.where(self.phased > 0, phased, pipelined)

    def _outside(self, blocks: FloatArray) -> FloatArray:
        """Set-up and epilogue."""
        work = self._work
        issue = self._by_warps(work.other_instructions, blocks)
        stores = blocks * (work.write_bytes + ATOMIC_COST * np.asarray(work.atomic_bytes)) / self._write_rate
        return L2_LATENCY + np.maximum(issue, stores)


class _Streamed:
    """Cycles of one launch on the busiest SM where warps run freely; names as in `_Launch`."""

    def __init__(self, launch: _Launch, work: Work, target: Target, gpu: Gpu, dram_bytes: FloatArray) -> None:
        resident = np.clip(np.minimum(launch.resident, launch.busiest), 1, None)
        read = np.asarray(work.read_bytes, np.float64)
        # What all blocks read, those of an SM find in L1 once one has read it, if it stays there.
        shared = resident * (np.asarray(work.shared_bytes, np.float64) + SHARED_RESERVED)
        stays = np.asarray(work.common_bytes) <= target.arch.unified_bytes - shared
        read = read - np.where(stays, work.common_bytes * (1 - 1 / resident), 0.0)
        written = work.write_bytes + ATOMIC_COST * np.asarray(work.atomic_bytes)
        rate = gpu.l2_bytes_per_clock_per_sm.value
        l2 = read / rate + written / (rate * L2_WRITES_PER_READ)
        dram_rate = gpu.dram_gb_s.value * DRAM_EFFICIENCY * 1e3 / gpu.clock_mhz.value / gpu.sms.value
        dram = dram_bytes / np.maximum(launch.blocks, 1) / dram_rate
        missed = np.clip(dram_bytes / np.maximum(_asked_bytes(work), 1), 0, 1)
        latency = L2_LATENCY + missed * (DRAM_LATENCY - L2_LATENCY)
        steps = np.maximum(np.asarray(work.steps, np.float64), 1)
        own = np.maximum(np.asarray(work.own_cycles) - work.outside_cycles, launch.chained_cycles())
        stream = Stream(
            warps=np.ceil(np.asarray(work.threads, np.float64) / WARP),
            steps=steps,
            lookahead=np.maximum(work.lookahead, 1),
            own=own / steps,
            outside=work.outside_cycles,
            latency=latency,
            drain=L2_LATENCY,
        )
        # All SMs share L2 and DRAM, so what counts is the average SM; but none takes more than its port, and
        # the busiest has whole blocks.
        average = launch.blocks / gpu.sms.value
        alone = read / SM_READ_BYTES + written / SM_WRITE_BYTES
        memory = np.maximum(
            stream.cycles(average, resident, np.maximum(l2, dram)),
            stream.cycles(launch.busiest, resident, alone),
        )
        l1 = (
            work.shared_reads + work.shared_writes + np.asarray(work.load_wavefronts) + work.scattered_sectors
        )
        self.pipes = {
            "tensor": launch.tensor_cycles(launch.busiest),
            "issue": launch.issue_cycles(launch.busiest),
            "shared": launch.busiest * l1,
            "l2": average * l2,
        }
        self.unhindered = _largest(*self.pipes.values(), average * dram)
        self.main = np.maximum(memory, latency + _largest(*self.pipes.values()))
        self.ends = np.asarray(work.outside_cycles, np.float64) + L2_LATENCY


def _largest(*cycles: Number) -> FloatArray:
    largest: FloatArray = np.maximum.reduce(np.broadcast_arrays(*cycles))
    return largest


_PER_LAUNCH = (*PIPES, "latency", "epilogue", "tail")


def _gpu_of(target: Target) -> Gpu:
    if target.gpu is None:
        raise NoGpuError(f"a prediction needs the figures of a GPU, and target {target.arch.name} names none")
    return target.gpu


def _memset_us(fill: Fill, gpu: Gpu) -> FloatArray:
    rate = gpu.l2_bytes_per_clock_per_sm.value * L2_WRITES_PER_READ * gpu.sms.value
    return np.asarray(fill.nbytes, np.float64) / rate / gpu.clock_mhz.value


def _dram_bytes(plan: PlanWork, gpu: Gpu, cold: bool) -> FloatArray:
    """What moves to and from DRAM.

    When a call is repeated: nothing while everything stays in L2, everything once it is clearly too large,
    since a walk in circles through too small a cache finds nothing it left. With a cold L2 at least inputs.
    """
    footprint = np.asarray(plan.footprint_bytes, np.float64)
    share = np.clip((footprint / gpu.l2_bytes.value - 1) / (L2_SPILL_RANGE - 1), 0, 1)
    return np.maximum(share * footprint, np.asarray(plan.input_bytes, np.float64) if cold else 0.0)


def _asked_bytes(work: Work) -> FloatArray:
    """What all blocks of a launch ask of L2."""
    return np.asarray(work.blocks, np.float64) * np.asarray(work.read_bytes, np.float64)


def _peak_operations_a_clock(unit: str, gpu: Gpu) -> float:
    """Operations of the whole GPU in a clock, as specified."""
    peaks: dict[str, Figure] = {
        "mma_s8": gpu.mma_s8_peak_cycles or gpu.mma_s8_cycles,
        "mma_f16": gpu.mma_f16_peak_cycles or gpu.mma_f16_cycles,
    }
    if unit in peaks:
        return gpu.sms.value * SUB_PARTITIONS * OPERATIONS[unit] / peaks[unit].value
    if unit == "fp32":
        return gpu.sms.value * gpu.fp32_lanes.value * 2
    raise ValueError(f"unit must be fp32 or one of {', '.join(peaks)}, got {unit!r}")
