"""`simulate`: runs a launch plan over buffers and reports what came of it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import tuner.simulator.coverage  # noqa: F401 - enters every instruction in the table
from tuner.simulator.clock_races import bytes_for_block
from tuner.simulator.context import Context
from tuner.simulator.counters import MOST_TRACKED, Counters, Touched
from tuner.simulator.global_races import GlobalRaces
from tuner.simulator.machine import WARP, Batch
from tuner.simulator.memory import REGION_BITS, Buffer, GlobalMemory
from tuner.simulator.parser import parse
from tuner.simulator.program import Program, program_of
from tuner.simulator.report import Findings, Report, Unwritten
from tuner.simulator.scalar_types import POISON, SCALARS
from tuner.simulator.syntax import Function, Module, PtxError
from tuner.simulator.tensor_maps import MAP_ALIGN, MAP_BYTES, TensorMap

Argument: TypeAlias = str | int | float | bytes | TensorMap
LANES_A_BATCH = 16384
SHARED_BYTES_A_BATCH = 32 << 20
CLOCK_BYTES_A_BATCH = 96 << 20
FRUITLESS_ROUNDS = 32
STEP_BUDGET = 4_000_000


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch.

    A str argument names a buffer, numbers are typed by the entry's parameters, bytes are a parameter as it
    lies in memory (a struct, a half), a `TensorMap` is one of 128 bytes.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[Argument, ...]

    def __post_init__(self) -> None:
        for name, sizes in (("grid", self.grid), ("block", self.block)):
            if len(sizes) != 3 or any(size < 1 for size in sizes):
                raise PtxError(f"{name} must be three sizes of at least 1, got {sizes}")
        threads = self.block[0] * self.block[1] * self.block[2]
        if threads > 1024:
            raise PtxError(f"a block has at most 1024 threads, got {threads}")
        if self.shared_bytes < 0:
            raise PtxError(f"shared_bytes must not be negative, got {self.shared_bytes}")


@dataclass(frozen=True, slots=True)
class Memset:
    """Fill the first `nbytes` of a buffer with a byte; None is the whole buffer."""

    buffer: str
    byte: int
    nbytes: int | None = None


Step: TypeAlias = Launch | Memset
Sample: TypeAlias = Sequence[int] | Mapping[int, Sequence[int]] | None


def simulate(
    module: Module | str,
    steps: Sequence[Step],
    buffers: Mapping[str, NDArray[Any]],
    *,
    outputs: Sequence[str] = ("c",),
    scratch: Sequence[str] = (),
    tensor_maps: Mapping[str, Sequence[TensorMap]] | None = None,
    blocks: Sample = None,
    races: bool = True,
    counters: bool = True,
    step_budget: int = STEP_BUDGET,
    seed: int = 0,
) -> Report:
    """Run a plan and report its results and faults. Faults of the kernel never raise.

    Args:
        module: a parsed module (parsed and lowered once, whatever is run of it), or PTX text.
        steps: launches and memsets, in order.
        buffers: arrays by name, C-contiguous, of any type; never modified, unless they are `scratch`.
        outputs: buffers whose contents are undefined before the plan (outputs and workspaces): they are
            filled with poison, and a read before a write is a fault.
        scratch: buffers that may be written in place: what a large one costs is not its copy.
        tensor_maps: tensor maps in global memory, side by side: buffers of their own that an argument can
            name, or what a variable of the module holds.
        blocks: linear indices of the blocks to run of every launch, or such by step number; None for all.
        races: look for races on shared and global memory.
        counters: count traffic (sectors and wavefronts); instructions are always counted.
        step_budget: instructions a batch of blocks may run before it is called endless.
        seed: changes choices that the ISA leaves open.

    Raises:
        PtxError: the PTX is malformed or not simulated, or a launch does not fit its entry.
    """
    if isinstance(module, str):
        module = parse(module)
    programs = {step.entry: program_of(module, step.entry) for step in steps if isinstance(step, Launch)}
    memory = _memory(module, programs, buffers, outputs, scratch)
    _place_maps(memory, tensor_maps or {})
    findings = Findings()
    counted = []
    with np.errstate(all="ignore"):
        for number, step in enumerate(steps):
            if isinstance(step, Memset):
                _memset(memory, step)
                counted.append(Counters())
                continue
            chosen = blocks.get(number) if isinstance(blocks, Mapping) else blocks
            context = _context(
                programs[step.entry], number, step, memory, findings, races, counters, step_budget, seed
            )
            _launch(context, chosen)
            counted.append(context.counters)
    return _report(memory, buffers, findings, counted)


def _memory(
    module: Module,
    programs: Mapping[str, Program],
    buffers: Mapping[str, NDArray[Any]],
    outputs: Sequence[str],
    scratch: Sequence[str],
) -> GlobalMemory:
    missing = [name for name in (*outputs, *scratch) if name not in buffers]
    if missing:
        raise PtxError(f"output {missing[0]!r} is no buffer; buffers: {', '.join(buffers) or 'none'}")
    cell = min((program.global_bytes for program in programs.values()), default=4)
    memory = GlobalMemory()
    for name, array in buffers.items():
        if not array.flags.c_contiguous:
            raise PtxError(f"buffer {name!r} must be C-contiguous")
        buffer = memory.add(name, array, name in outputs, cell)
        buffer.owned = buffer.owned or name in scratch
    for name, variable in module.variables.items():
        if variable.space in ("global", "const"):
            data = np.frombuffer(variable.initial or bytes(variable.nbytes), np.uint8)
            memory.add(f"module:{name}", data, False, cell)
    return memory


def _place_maps(memory: GlobalMemory, tensor_maps: Mapping[str, Sequence[TensorMap]]) -> None:
    """Put tensor maps in buffers whose bytes nobody may read."""
    for name, maps in tensor_maps.items():
        buffer = memory.buffers.get(f"module:{name}")
        if buffer is None:
            if name in memory.buffers:
                raise PtxError(f"tensor maps {name!r} need a name of their own; a buffer has it")
            buffer = memory.add(name, np.zeros(max(len(maps), 1) * MAP_BYTES, np.uint8), True, 4)
        if buffer.nbytes < len(maps) * MAP_BYTES:
            raise PtxError(f"{name!r} has {buffer.nbytes} bytes, which do not hold {len(maps)} tensor maps")
        for number, one in enumerate(maps):
            _check_map(one, memory)
            buffer.tensor_maps[number * MAP_BYTES] = one


def _check_map(one: TensorMap, memory: GlobalMemory) -> None:
    if one.buffer not in memory.buffers:
        names = ", ".join(memory.buffers)
        raise PtxError(f"a tensor map is of {one.buffer!r}, which is no buffer; buffers: {names}")


def _memset(memory: GlobalMemory, step: Memset) -> None:
    buffer = memory.buffers.get(step.buffer)
    if buffer is None:
        raise PtxError(f"memset of {step.buffer!r}, which is no buffer; buffers: {', '.join(memory.buffers)}")
    nbytes = buffer.nbytes if step.nbytes is None else step.nbytes
    if not 0 <= nbytes <= buffer.nbytes:
        raise PtxError(f"memset of {nbytes} bytes; buffer {step.buffer!r} has {buffer.nbytes}")
    buffer.writable(1)[:nbytes] = step.byte & 0xFF
    if buffer.written is not None:
        buffer.written[: -(-nbytes // buffer.cell_bytes)] = True


def _context(
    program: Program,
    number: int,
    step: Launch,
    memory: GlobalMemory,
    findings: Findings,
    races: bool,
    count: bool,
    step_budget: int,
    seed: int,
) -> Context:
    function = program.function
    threads = step.block[0] * step.block[1] * step.block[2]
    wanted = function.required_threads
    if wanted and tuple(step.block[: len(wanted)]) != wanted:
        raise PtxError(
            f"entry {function.name} requires blocks of {wanted} threads (.reqntid), got {step.block}"
        )
    if function.maximum_threads and threads > int(np.prod(function.maximum_threads)):
        raise PtxError(
            f"entry {function.name} takes at most {function.maximum_threads} threads (.maxntid), "
            f"got {step.block}"
        )
    if any(size > 1 for size in function.required_cluster):
        raise PtxError(
            f"entry {function.name} requires clusters of {function.required_cluster} blocks "
            "(.reqnctapercluster); clusters of more than one block are not simulated"
        )
    return Context(
        program,
        number,
        step.grid,
        step.block,
        step.shared_bytes,
        _parameters(program, step, memory),
        memory,
        findings,
        Counters(),
        races,
        count,
        step_budget,
        seed,
        {
            program.layout.addresses[variable.name][1]: argument
            for variable, argument in zip(function.parameters, step.arguments, strict=True)
            if isinstance(argument, TensorMap)
        },
    )


def _parameters(program: Program, step: Launch, memory: GlobalMemory) -> bytes:
    """Lay the arguments out as the entry declares its parameters."""
    function: Function = program.function
    if len(step.arguments) != len(function.parameters):
        names = ", ".join(f".{variable.type} {variable.name}" for variable in function.parameters)
        raise PtxError(
            f"entry {function.name} takes {len(function.parameters)} arguments ({names}), "
            f"got {len(step.arguments)}"
        )
    data = bytearray(program.layout.parameter_bytes)
    for variable, argument in zip(function.parameters, step.arguments, strict=True):
        _, start = program.layout.addresses[variable.name]
        data[start : start + variable.nbytes] = _argument_bytes(function, variable, argument, memory)
    return bytes(data)


def _argument_bytes(function: Function, variable: Any, argument: Argument, memory: GlobalMemory) -> bytes:
    where = f"argument {variable.name} of {function.name}"
    if isinstance(argument, bytes):
        if len(argument) != variable.nbytes:
            raise PtxError(
                f"{where} is {variable.nbytes} bytes of .{variable.type}, got {len(argument)} bytes"
            )
        return argument
    if isinstance(argument, TensorMap):
        if variable.nbytes != MAP_BYTES or variable.align % MAP_ALIGN:
            raise PtxError(
                f"{where} must be {MAP_BYTES} bytes aligned to {MAP_ALIGN} to take a tensor map, got "
                f"{variable.nbytes} bytes aligned to {variable.align}"
            )
        _check_map(argument, memory)
        return POISON.to_bytes(8, "little") * (MAP_BYTES // 8)
    scalar = SCALARS.get(variable.type)
    if scalar is None or variable.nbytes != scalar.nbytes:
        raise PtxError(f"{where} is {variable.nbytes} bytes of .{variable.type}; it takes bytes, no scalar")
    if isinstance(argument, str):
        buffer = memory.buffers.get(argument)
        if buffer is None:
            raise PtxError(
                f"{where} names {argument!r}, which is no buffer; buffers: {', '.join(memory.buffers)}"
            )
        if scalar.bits != 64:
            raise PtxError(f"{where} is a .{scalar.name}; buffer {argument!r} needs a 64-bit parameter")
        return struct.pack("<Q", buffer.base)
    if isinstance(argument, bool):
        raise PtxError(f"{where} must be a number or the name of a buffer, got {argument}")
    if isinstance(argument, float):
        if scalar.bits == 32 and scalar.kind in "fb":
            return struct.pack("<f", argument)
        if scalar.bits == 64 and scalar.kind in "fb":
            return struct.pack("<d", argument)
        raise PtxError(f"{where} is a .{scalar.name}, got the float {argument}")
    if scalar.kind == "f":
        return struct.pack({16: "<e", 32: "<f", 64: "<d"}[scalar.bits], float(argument))
    low = -(1 << (scalar.bits - 1))
    high = 1 << (scalar.bits - 1 if scalar.kind == "s" else scalar.bits)
    if not low <= argument < high:
        raise PtxError(f"{where} is a .{scalar.name}, which does not hold {argument}")
    return int(argument & ((1 << scalar.bits) - 1)).to_bytes(scalar.nbytes, "little")


def _launch(context: Context, chosen: Sequence[int] | None) -> None:
    total = context.grid[0] * context.grid[1] * context.grid[2]
    ids = np.arange(total, dtype=np.int64) if chosen is None else np.array(sorted(set(chosen)), np.int64)
    if len(ids) and (ids[0] < 0 or ids[-1] >= total):
        raise PtxError(f"blocks must be from 0 to {total - 1}, got {int(ids[0])} to {int(ids[-1])}")
    threads = -(-context.threads // WARP) * WARP
    shared = max(context.program.layout.dynamic_start + context.shared_bytes - 1024, 1)
    size = max(1, min(LANES_A_BATCH // threads, SHARED_BYTES_A_BATCH // shared))
    if context.clocks:
        each = bytes_for_block(threads, shared, context.program.granule_bytes)
        size = max(1, min(size, CLOCK_BYTES_A_BATCH // each))
    if context.races:
        for buffer in _stored_buffers(context):
            buffer.races = GlobalRaces(buffer, context.order)
    counters = context.counters
    if context.count and len(ids) <= MOST_TRACKED:
        counters.touched = Touched(ids)
    _run_together(context, _shuffled(context, [ids[i : i + size] for i in range(0, len(ids), size)]))
    for buffer in context.memory.buffers.values():
        buffer.races = None
    counters.blocks, counters.threads = len(ids), context.threads
    static = visited = 0
    for block, warps in zip(context.program.blocks, context.block_warps, strict=True):
        static += block.counts.total()
        if warps:
            visited += block.counts.total()
            if block.counts["ld.global"] and block.counts["st.global"]:
                counters.turns += warps
            for category, count in block.counts.items():
                counters.instructions[category] += count * warps
    counters.visited = visited / max(static, 1)


def _shuffled(context: Context, groups: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Put batches in the order they run: the last blocks first, then the others at random.

    The ISA promises no order of blocks, and a kernel that counts on one counts on them going up.
    """
    rng = np.random.default_rng((context.seed, context.step))
    others = rng.permutation(len(groups) - 1) if groups else ()
    return [*groups[-1:], *(groups[number] for number in others)]


def _run_together(context: Context, groups: list[NDArray[np.int64]]) -> None:
    """Run batches one after the other; one that only polls lets the others run, so spin-waits between blocks
    end.
    """
    waiting: list[Batch] = []
    for group in groups:
        batch = Batch(context, group)
        if not batch.run():
            waiting.append(batch)
    fruitless = 0
    while waiting:
        before = sum(batch.ahead for batch in waiting)
        waiting = [batch for batch in waiting if not batch.run()]
        fruitless = fruitless + 1 if waiting and sum(batch.ahead for batch in waiting) == before else 0
        for batch in waiting:
            batch.desperate = fruitless >= FRUITLESS_ROUNDS // 2
        if fruitless >= FRUITLESS_ROUNDS:
            waiting[0].starved()
            return


def _stored_buffers(context: Context) -> list[Buffer]:
    """Return the buffers that a launch may store to: by its parameters, and the module's own variables."""
    buffers = context.memory.buffers
    found = {name: buffer for name, buffer in buffers.items() if name.startswith("module:")}
    for start in context.program.stored_parameters:
        address = int.from_bytes(context.parameters[start : start + 8], "little")
        buffer = context.memory.by_region.get(address >> REGION_BITS)
        if buffer is not None:
            found[buffer.name] = buffer
    if context.program.tensor_stores:
        maps = [*context.tensor_maps.values()]
        maps += [one for buffer in buffers.values() for one in buffer.tensor_maps.values()]
        found |= {one.buffer: buffers[one.buffer] for one in maps}
    return list(found.values())


def _report(
    memory: GlobalMemory, buffers: Mapping[str, NDArray[Any]], findings: Findings, counted: list[Counters]
) -> Report:
    results: dict[str, NDArray[Any]] = {}
    unwritten = {}
    for name, array in buffers.items():
        buffer = memory.buffers[name]
        if buffer.stored or buffer.written is not None:
            results[name] = buffer.data[: buffer.nbytes].view(array.dtype).reshape(array.shape)
        else:
            results[name] = array
        if buffer.written is not None and not buffer.written[: -(-buffer.nbytes // buffer.cell_bytes)].all():
            cells = buffer.written[: -(-buffer.nbytes // buffer.cell_bytes)]
            item = max(array.itemsize // buffer.cell_bytes, 1)
            missing = np.flatnonzero(~cells) // item  # ascending: np.unique would hash millions of them
            missing = missing[np.diff(missing, prepend=-1) > 0]
            unwritten[name] = Unwritten(len(missing), tuple(int(index) for index in missing[:8]))
    return Report(results, tuple(findings.faults.values()), tuple(findings.notes), tuple(counted), unwritten)
