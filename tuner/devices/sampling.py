"""Work of a launch plan on a real problem, counted on a few simulated blocks of it.

Traffic (wavefronts, sectors, mma's) is from the simulator's counters. Issue slots are from the cubin, because
ptxas rewrites address arithmetic: the main loop times its iterations, and what is outside it once. Blocks are
taken from the middle of the grid, so that edges do not stand for the rest.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from emitters import kernel_named
from emitters.kernel import EmittedKernel, Inputs, Kernel, Problem
from emitters.target import WARP
from tuner.cubin import Binary
from tuner.devices.errors import CandidateFaultError
from tuner.devices.simulation import launches, parsed
from tuner.sass import MMA, NEVER, Code, Loop
from tuner.simulator import Counters, Launch, Memset, simulate
from tuner.simulator.counters import Touched
from tuner.work import Fill, PlanWork, Work

SECTOR_BYTES = 32

_MMA_NAME = re.compile(r"(w?)mma\.m(\d+)n(\d+)k(\d+)\.(\w+)")
_WAIT = re.compile(r"cp\.async\.wait_group\s+(\d+)")
_UNIT_OF = {"s8": "mma_s8", "u8": "mma_s8", "f16": "mma_f16", "bf16": "mma_f16"}
_UNIT_SIZE = {"mma_s8": 16 * 8 * 32, "mma_f16": 16 * 8 * 16}
_MEMORY = ("LDSM", "LDS", "STS", "LDGSTS", "LDG", "STG", "LDL", "STL", "RED", "ATOMG", "LDC", "ULDC")
_CONTROL = ("BAR", "BRA", "EXIT", "NOP", "DEPBAR", "LDGDEPBAR", "MEMBAR", "S2R", NEVER)
_FLOAT = ("FADD", "FMUL", "FFMA", "MUFU", "SHFL")
_NOT_INTEGER = frozenset((*MMA, *_MEMORY, *_CONTROL, *_FLOAT))


class UnknownMmaError(ValueError):
    """An mma that no rate is known for."""


def plan_work(emitted: EmittedKernel, binary: Binary, problem: Problem, operands: Inputs) -> PlanWork:
    """What one call of an emitted kernel asks of a GPU, for a problem.

    Args:
        emitted: Text and plan.
        binary: What ptxas made of the text.
        problem: The sizes.
        operands: Every buffer of the call, outputs too, and the scalars.

    Raises:
        CandidateFaultError: A sampled block faulted.
        UnknownMmaError: It uses an mma that no rate is known for.
    """
    sizes = problem.sizes
    buffers = dict(operands.buffers)
    workspace = emitted.plan.workspace_for(sizes)
    if workspace:
        buffers["workspace"] = np.zeros(workspace, np.uint8)
    plan = launches(emitted.plan, sizes, Inputs(buffers, operands.scalars))
    runs = [step for step in plan if isinstance(step, Launch)]
    sampled = {number: _middle(launch.grid) for number, launch in enumerate(runs)}
    # Values are judged by the gate. Here memsets are left out, outputs are overwritten in place, and races
    # are not looked for.
    scratch = [name for name in (*kernel_named(emitted.kernel).spec.outputs, "workspace") if name in buffers]
    module = parsed(emitted.ptx)
    report = simulate(module, runs, buffers, outputs=(), scratch=scratch, blocks=sampled, races=False)
    if report.faults:
        raise CandidateFaultError(report.faults[0].kind, f"{report.faults[0]} on {problem}")
    counted = iter(report.counters)
    depth = _groups_in_flight(emitted.ptx)
    steps: list[Work | Fill] = []
    for step in plan:
        if isinstance(step, Memset):
            steps.append(Fill(float(step.nbytes or 0)))
        else:
            function = binary.function(step.entry)
            shared = function.shared_bytes + step.shared_bytes
            steps.append(work_of(step, next(counted), function.registers, shared, function.code, depth))
    footprint = sum(buffer.nbytes for buffer in buffers.values())
    read = sum(buffer.nbytes for name, buffer in buffers.items() if name not in scratch)
    return PlanWork(tuple(steps), float(footprint), float(read))


def operands_for(kernel: Kernel[Any], emitted: EmittedKernel, problem: Problem) -> Inputs:
    """Every buffer of a call, inputs laid out as the schedule wants them. Data is made once a process."""
    given, outputs = _data(kernel.id, problem)
    prepared = kernel.prepare(kernel.schedule(emitted.schedule), problem, given)
    return Inputs({**prepared.buffers, **outputs}, prepared.scalars)


@lru_cache(maxsize=4)
def _data(kernel_id: str, problem: Problem) -> tuple[Inputs, dict[str, Any]]:
    kernel = kernel_named(kernel_id)
    inputs = kernel.data(problem, np.random.default_rng(0))
    outputs = [buffer for buffer in kernel.spec.buffers if buffer.role == "out"]
    return inputs, {o.name: np.zeros(o.shape_for(problem.sizes), o.dtype) for o in outputs}


def work_of(
    launch: Launch, counters: Counters, registers: int, shared_bytes: int, code: Code, depth: int = 1
) -> Work:
    """Work of one launch from the counters of some of its blocks and the code of its entry.

    Args:
        launch: The launch.
        counters: Of the blocks that ran.
        registers: Of a thread.
        shared_bytes: Static and dynamic, of a block.
        code: Of the entry.
        depth: Groups of asynchronous copies that a thread has in flight.
    """
    a_block = 1.0 / counters.blocks
    threads = int(np.prod(launch.block))
    warps = -(-threads // WARP)
    mma = _mma_counts(counters.instructions)
    steps = iterations = _steps(code, counters, mma.instructions, warps)
    inside = {name: count * steps * warps for name, count in (code.loop.mix if code.loop else {}).items()}
    issued = float(sum(inside.values()))
    asynchronous = counters.instructions["cp.async"] > 0
    phased = not asynchronous and counters.shared_stores.wavefronts > 0 and code.loop is not None
    phased = phased and code.loop is not None and code.loop.mix.get("BAR", 0) > 0
    computing = sum(inside.get(name, 0.0) for name in (*MMA, "LDSM", "LDS"))
    commits = counters.instructions["cp.async.commit"] * a_block / warps
    # Loads go through L1, which serves again what the block has fetched; cp.async of 16 bytes does not.
    loads, touched = counters.global_loads, counters.touched
    loaded = min(loads.ideal, loads.sectors) if touched is None else min(touched.sectors, loads.sectors)
    read = counters.async_copies.sectors + loaded
    free = not phased and not (code.loop and code.loop.mix.get("BAR", 0))
    other = float(warps * _outside(code))
    if free:  # What no warp comes to, as the ragged end of an array, is no part of its life.
        other *= counters.visited
        steps = max(steps, counters.turns * a_block / warps)
    lookahead = max(commits - steps - 1, 1.0) if asynchronous else 1.0
    if free and asynchronous:  # a group is what a warp waits for; the last ones are empty
        steps, lookahead = max(commits - depth + 1, 1.0), float(depth)
    own, outside = _own_cycles(code, steps, iterations, counters.visited)
    return Work(
        blocks=float(np.prod(launch.grid)),
        threads=float(threads),
        registers=float(registers),
        shared_bytes=float(shared_bytes),
        steps=steps,
        mma_s8=mma.units.get("mma_s8", 0.0) * a_block,
        mma_f16=mma.units.get("mma_f16", 0.0) * a_block,
        chains=float(code.loop.chains) if code.loop and code.loop.chains else 1.0,
        instructions=computing if phased else issued,
        fill_instructions=issued - computing if phased else 0.0,
        alu_instructions=sum(count for name, count in inside.items() if name not in _NOT_INTEGER),
        other_instructions=other,
        shared_reads=(counters.shared_loads.wavefronts + counters.matrix_loads.wavefronts) * a_block,
        shared_writes=(counters.shared_stores.wavefronts + counters.async_writes.wavefronts) * a_block,
        scattered_sectors=max(loads.sectors - loads.ideal, 0) * a_block,
        read_bytes=read * SECTOR_BYTES * a_block,
        write_bytes=counters.global_stores.sectors * SECTOR_BYTES * a_block,
        atomic_bytes=counters.atomics.sectors * SECTOR_BYTES * a_block,
        phased=float(phased),
        lookahead=lookahead,
        free=float(free),
        common_bytes=0.0 if touched is None else float(_common_sectors(touched, launch) * SECTOR_BYTES),
        load_wavefronts=loads.ideal / 4 * a_block,
        own_cycles=own,
        outside_cycles=outside,
    )


def _steps(code: Code, counters: Counters, mma: float, warps: int) -> float:
    """Iterations of the main loop: what was executed of its mma's, or else of its loads, by what one has."""
    if code.loop is None:
        return 1.0
    executed, inside = mma, code.loop.mma
    if not (executed and inside):
        executed = float(counters.instructions["ld.global"] + counters.instructions["cp.async"])
        inside = code.loop.mix.get("LDG", 0) + code.loop.mix.get("LDGSTS", 0)
    return max(executed / counters.blocks / warps / inside, 1.0) if inside else 1.0


def _own_cycles(code: Code, steps: float, iterations: float, visited: float) -> tuple[float, float]:
    """Cycles of a warp's own instructions: in its whole life, and before and after its loop.

    Where ptxas has unrolled all turns there is no loop, and a turn's share stands before the first loads.
    """
    if code.loop is None or not _has_loads(code.loop):
        return code.stall_cycles * visited, code.stall_cycles * visited / steps
    outside = (code.stall_cycles - code.loop.stall_cycles) * visited
    return outside + code.loop.stall_cycles * iterations, outside


def _common_sectors(touched: Touched, launch: Launch) -> int:
    """What two blocks of the grid's first row both read by plain loads."""
    row = [block for block in touched.blocks if block < launch.grid[0]]
    return touched.common(row[:2]) if len(row) > 1 else 0


def _groups_in_flight(ptx: str) -> int:
    """The most groups of asynchronous copies that a thread has in flight: what waits leave, and the next."""
    return max((int(left) for left in _WAIT.findall(ptx)), default=0) + 1


def _has_loads(loop: Loop) -> bool:
    return any(loop.mix.get(name, 0) for name in ("LDG", "LDGSTS"))


def _outside(code: Code) -> int:
    """Instructions of a warp outside the main loop, padding not counted."""
    inside = code.loop.mix if code.loop else {}
    skipped = code.mix.get("NOP", 0) - inside.get("NOP", 0)
    return code.instructions - (code.loop.instructions if code.loop else 0) - skipped


@dataclass(frozen=True, slots=True)
class _MmaCounts:
    """Executed mma's.

    Attributes:
        units: By the units of `Work`.
        instructions: As machine instructions: ptxas makes several of a wmma.
    """

    units: dict[str, float]
    instructions: float


def _mma_counts(executed: Mapping[str, int]) -> _MmaCounts:
    units: dict[str, float] = {}
    instructions = 0.0
    for name, count in executed.items():
        found = _MMA_NAME.match(name)
        if found is None:
            continue
        wmma, m, n, k, element = found.groups()
        # The simulator names a wmma by its accumulator where its operands can only be f16.
        unit = _UNIT_OF.get("f16" if wmma and element == "f32" else element)
        if unit is None:
            raise UnknownMmaError(f"no rate is known for {name}; known are mma's of {', '.join(_UNIT_OF)}")
        share = int(m) * int(n) * int(k) / _UNIT_SIZE[unit]
        units[unit] = units.get(unit, 0.0) + count * share
        instructions += count * (share if wmma else 1)
    return _MmaCounts(units, instructions)


def _middle(grid: tuple[int, int, int]) -> Sequence[int]:
    """Linear numbers of the blocks to run: the middle of the first, the middle and the last layer of z.

    In a grid of one layer blocks far from each other are run, two of a row: what those two read, all do.
    """
    x, y, z = grid
    if z == 1:
        return sorted({x * row + column for row in (0, y // 2) for column in (x // 4, x // 2)})
    layer = x * y
    return sorted({layer * number + layer // 2 for number in (0, z // 2, z - 1)})
