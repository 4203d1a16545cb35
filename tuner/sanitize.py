"""Any PTX file on the simulator: arguments from a line of text each, and what came of the run as a value.

sanitized = sanitize(ptx_text, ["in:x.npy", "out:f32:1024", 1024], grid=(4, 1, 1), block=(256, 1, 1))
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tuner.arguments import MOST_BYTES, ArgumentError, Given, Prepared
from tuner.simulator import Counters, Fault, Launch, Module, PtxError, Report, Traffic, parse, simulate
from tuner.simulator.syntax import Function

MOST_SHARED_BYTES = 227 << 10
MOST_GRID = (2**31 - 1, 65535, 65535)
MOST_BLOCK = (1024, 1024, 64)
"""The most that any GPU takes: CUDA C++ Programming Guide, "Compute Capabilities"."""
SEED = 0

Triple: TypeAlias = tuple[int, int, int]
_IN_SECTORS = ("global_loads", "global_stores", "async_copies", "atomics")


@dataclass(frozen=True, slots=True)
class Sanitized:
    """One launch and what came of it.

    Attributes:
        launch: The entry, its sizes and arguments; a str among them names a buffer.
        target: Of the module, as sm_90a.
        report: Faults, notes, results, counters; see `tuner.simulator`.
    """

    launch: Launch
    target: str
    report: Report

    @property
    def counters(self) -> Counters:
        """What the launch counted."""
        return self.report.counters[0]

    @property
    def traffic(self) -> dict[str, dict[str, int]]:
        """By kind, only what there was: bytes, and sectors of global memory or wavefronts of
        shared memory beside the fewest that would do.
        """
        found = {}
        for name in Counters.__dataclass_fields__:
            value = getattr(self.counters, name)
            if isinstance(value, Traffic) and value.instructions:
                unit = "sectors" if name in _IN_SECTORS else "wavefronts"
                found[name] = {
                    "bytes": value.nbytes,
                    unit: getattr(value, unit),
                    f"ideal_{unit}": value.ideal,
                }
        return found

    def to_json(self) -> dict[str, Any]:
        """All of it but the contents of buffers, as JSON values."""
        report, launch = self.report, self.launch
        return {
            "entry": launch.entry,
            "target": self.target,
            "grid": launch.grid,
            "block": launch.block,
            "shared_bytes": launch.shared_bytes,
            "clean": report.clean,
            "faults": [asdict(fault) for fault in report.faults],
            "notes": list(report.notes),
            "unwritten": {name: asdict(value) for name, value in report.unwritten.items()},
            "blocks": self.counters.blocks,
            "instructions": dict(self.counters.instructions),
            "traffic": self.traffic,
            "buffers": {
                name: {"dtype": str(array.dtype), "shape": list(array.shape)}
                for name, array in report.buffers.items()
            },
        }


def sanitize(
    ptx: Module | str,
    arguments: Sequence[Given],
    *,
    grid: Triple,
    block: Triple,
    entry: str | None = None,
    shared_bytes: int = 0,
    blocks: Sequence[int] | None = None,
    seed: int = SEED,
) -> Sanitized:
    """Run one entry of a PTX module on the simulator and look for faults.

    Args:
        ptx: A module, or its text.
        arguments: One for each parameter, in order: an array gives a buffer its contents, a number is typed
            by the parameter, a str is read as `tuner.arguments` says.
        grid, block: Sizes x, y, z.
        entry: By name; may be None where the module has one entry.
        shared_bytes: Dynamic shared memory of a block.
        blocks: Linear indices of the blocks to run; None for all. Nothing is checked against the others.
        seed: Of the choices that the ISA leaves open.

    Raises:
        ArgumentError: An argument does not fit its parameter, a file cannot be read, or the seed is negative.
        PtxError: The PTX is malformed or not simulated, there is no such entry, or the launch does not fit.
    """
    if seed < 0:
        raise ArgumentError(f"a seed must be at least 0, got {seed}")
    module = parse(ptx) if isinstance(ptx, str) else ptx
    function = _entry(module, entry)
    _check_sizes("grid", grid, MOST_GRID)
    _check_sizes("block", block, MOST_BLOCK)
    _check_memory(module, function, shared_bytes)
    prepared = Prepared(function, arguments)
    launch = Launch(function.name, grid, block, shared_bytes, tuple(prepared.arguments))
    report = simulate(
        module, [launch], prepared.buffers, outputs=prepared.undefined, blocks=blocks, seed=seed
    )
    return Sanitized(launch, module.target, report)


def fault_lines(fault: Fault) -> list[str]:
    """A fault for people: what, how often, the PTX line and thread of each party, where, and why."""
    times = f" ({fault.count} times)" if fault.count > 1 else ""
    parties = [(fault.line, fault.text, fault.block, str(fault.thread))]
    if fault.other_line is not None:
        them = "several" if fault.other_thread is None else str(fault.other_thread)
        parties.append((fault.other_line, fault.other_text, fault.other_block or fault.block, them))
    width = max(len(text) for _, text, _, _ in parties)
    lines = [f"{fault.kind}: {fault.message}{times}"]
    lines += [
        f"  line {line:<5d} {text:<{width}}  block {where}, thread {who}"
        for line, text, where, who in parties
    ]
    if fault.address is not None:
        lines.append(f"  address {_address(fault)}")
    return lines


def read_ptx(path: Path) -> str:
    """The text of a PTX file; `/dev/stdin` reads a pipe.

    Raises:
        ArgumentError: It cannot be read, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ArgumentError(f"{path} must be PTX text, got bytes that are no UTF-8; a cubin?") from None


def saves_of(wanted: Sequence[str]) -> dict[str, Path]:
    """`NAME=FILE.npy` each, as a file for each name."""
    saves: dict[str, Path] = {}
    for one in wanted:
        name, equals, file = one.partition("=")
        if not (name and equals and file):
            raise ArgumentError(f"what to save is NAME=FILE.npy, got {one!r}")
        path = Path(file)
        if name in saves or path in saves.values():
            raise ArgumentError(f"a buffer is saved once, each to a file of its own, got {one!r} again")
        saves[name] = path
    return saves


def save(sanitized: Sanitized, files: Mapping[str, Path]) -> None:
    """Write buffers as the kernel left them, as .npy.

    Raises:
        ArgumentError: There is no such buffer, or its file cannot be written.
    """
    buffers = sanitized.report.buffers
    for name in files:
        if name not in buffers:
            raise ArgumentError(f"no buffer is named {name!r}; buffers: {', '.join(buffers) or 'none'}")
    for name, path in files.items():
        try:
            with path.open("wb") as file:
                np.save(file, buffers[name])
        except OSError as error:
            raise ArgumentError(f"cannot write {path}: {error.strerror}") from None


def sizes_of(text: str, name: str) -> Triple:
    """`X`, `X,Y` or `X,Y,Z` as three sizes."""
    parts = text.split(",")
    if len(parts) > 3 or not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise ArgumentError(f"{name} must be up to three whole numbers, as 8,4,1, got {text!r}")
    x, y, z = (*map(int, parts), *(1,) * (3 - len(parts)))
    return x, y, z


def _address(fault: Fault) -> str:
    assert fault.address is not None
    if fault.buffer:
        return f"{fault.buffer} {'-' if fault.address < 0 else '+'} {abs(fault.address)} bytes"
    begins = " (shared memory begins at 0x400)" if fault.space == "shared" else ""
    return f"{fault.space} {fault.address:#x}{begins}".lstrip()


def _entry(module: Module, name: str | None) -> Function:
    if name is not None:
        return module.entry(name)
    entries = [function for function in module.functions.values() if function.is_entry]
    if len(entries) == 1:
        return entries[0]
    if not entries:
        raise PtxError("the module has no entry to run; an .entry is missing")
    names = ", ".join(function.name for function in entries)
    raise PtxError(f"a module of several entries needs one by name; the module's entries: {names}")


def _check_sizes(name: str, sizes: Triple, most: Triple) -> None:
    if any(not 1 <= size <= limit for size, limit in zip(sizes, most, strict=True)):
        raise ArgumentError(f"{name} must be from 1,1,1 to {','.join(map(str, most))}, got {_joined(sizes)}")


def _check_memory(module: Module, function: Function, dynamic_bytes: int) -> None:
    if dynamic_bytes < 0:
        raise ArgumentError(f"dynamic shared memory must be at least 0 bytes, got {dynamic_bytes}")
    variables = [*module.variables.values(), *function.variables.values()]
    shared = dynamic_bytes + sum(one.nbytes for one in variables if one.space == "shared")
    if shared > MOST_SHARED_BYTES:
        raise ArgumentError(
            f"shared memory of a block must be 0 to {MOST_SHARED_BYTES} bytes, got {shared} with what the "
            "PTX declares"
        )
    for one in variables:
        if one.nbytes > MOST_BYTES:
            raise ArgumentError(f"variable {one.name} has at most {MOST_BYTES} bytes, got {one.nbytes}")


def _joined(sizes: Triple) -> str:
    return ",".join(map(str, sizes))
