"""The GPU behind the stand-in for CuPy: memory, an L2, a clock, and launches that the simulator computes."""

import ctypes
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tuner.devices.device import Candidate
from tuner.simulator import Launch, Module, parse, simulate

MARK = b"\0tune-standin-ptx\0"
KIB = 1024
Bytes = NDArray[np.uint8]


def with_ptx(cubin: bytes, ptx: str) -> bytes:
    """The PTX behind the cubin. A driver is told no length and reads what the ELF header describes."""
    return cubin + MARK + ptx.encode()


def tagged(candidate: Candidate) -> Candidate:
    """The candidate with its PTX behind its cubin."""
    cubin = with_ptx(candidate.binary.cubin, candidate.emitted.ptx)
    return replace(candidate, binary=replace(candidate.binary, cubin=cubin))


@dataclass(frozen=True)
class StandInGpu:
    """The GPU that is played.

    Attributes:
        name: Of the GPU.
        capability: Compute capability.
        count: GPUs of the machine.
        l2_bytes: L2 cache.
        launch_us, miss_us_per_mib: Time of a launch: a constant, and more for what is not in L2.
        noise: Relative spread of a launch.
        throttling: Bits that NVML shows.
        has_nvml: Whether NVML answers.
        has_graphs: Whether capturing works.
        memory_bytes: DRAM.
    """

    name: str = "NVIDIA Stand-in 9000"
    capability: tuple[int, int] = (9, 0)
    count: int = 1
    l2_bytes: int = 4 << 20
    launch_us: float = 20.0
    miss_us_per_mib: float = 100.0
    noise: float = 0.0
    throttling: int = 0
    has_nvml: bool = True
    has_graphs: bool = True
    memory_bytes: int = 8 << 30


class StandInError(RuntimeError):
    """As CuPy's errors: a text and the number."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class DeviceFunction:
    entry: str
    ptx: str
    attributes: dict[int, int] = field(default_factory=dict)


class Machine:
    """State behind both namespaces."""

    def __init__(self, gpu: StandInGpu) -> None:
        self.gpu = gpu
        self.now_us = 0.0
        self.lost: StandInError | None = None
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.memory: dict[int, Bytes] = {}
        self.versions: dict[int, int] = {}
        self.next_address = 0x7F00_0000_0000
        self.handles: dict[int, Any] = {}
        self.next_handle = 0x1000
        self.captured: list[Callable[[], None]] | None = None
        self.capture_broken = False
        self.l2: OrderedDict[int, int] = OrderedDict()
        self.rng = np.random.default_rng(0)
        self.unchanged: set[tuple[Any, ...]] = set()

    def note(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, arguments))
        if self.lost is not None:
            raise self.lost

    def handle(self, value: Any) -> int:
        self.next_handle += 1
        self.handles[self.next_handle] = value
        return self.next_handle

    def fail(self, status: int, text: str) -> NoReturn:
        raise StandInError(status, text)

    def lose(self, status: int, text: str) -> NoReturn:
        self.lost = StandInError(status, text)
        raise self.lost

    def at(self, address: int, nbytes: int) -> tuple[int, int]:
        """Base of the allocation and offset in it."""
        for base, data in self.memory.items():
            if base <= address and address + nbytes <= base + data.nbytes:
                return base, address - base
        self.lose(700, "cudaErrorIllegalAddress: an illegal memory access was encountered")

    def changed(self, base: int) -> None:
        self.versions[base] = self.versions.get(base, 0) + 1

    def touch(self, base: int, nbytes: int) -> float:
        """MiB that are not in L2, which they are from now on; the oldest make room."""
        missing = max(0, nbytes - self.l2.pop(base, 0))
        self.l2[base] = nbytes
        while sum(self.l2.values()) > self.gpu.l2_bytes and len(self.l2) > 1:
            self.l2.popitem(last=False)
        return missing / (1 << 20)

    def queue(self, action: Callable[[], None]) -> None:
        if self.captured is not None:
            self.captured.append(action)
        else:
            action()

    def spend(self, time_us: float) -> None:
        self.now_us += time_us * (1 + self.gpu.noise * float(self.rng.standard_normal()))


@lru_cache(maxsize=64)
def _parsed(ptx: str) -> Module:
    return parse(ptx)


def static_bytes(function: DeviceFunction) -> int:
    entry = _parsed(function.ptx).entry(function.entry)
    return sum(variable.nbytes for variable in entry.variables.values() if variable.space == "shared")


def dereferenced(function: DeviceFunction, kernel_params: int) -> list[int | float]:
    """The arguments, read through the array of pointers as the driver reads them."""
    parameters = _parsed(function.ptx).entry(function.entry).parameters
    pointers = (ctypes.c_void_p * len(parameters)).from_address(kernel_params)
    types = {"u64": ctypes.c_uint64, "u32": ctypes.c_uint32, "f32": ctypes.c_float}
    return [
        types[parameter.type].from_address(pointer).value  # type: ignore[attr-defined]
        for parameter, pointer in zip(parameters, pointers, strict=True)
    ]


def execute(
    machine: Machine,
    function: DeviceFunction,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    values: list[int | float],
) -> None:
    """Run a launch, unless it is known to change nothing; then spend its time."""
    parameters = _parsed(function.ptx).entry(function.entry).parameters
    buffers: dict[str, Bytes] = {}
    bases: dict[str, tuple[int, int]] = {}
    arguments: list[str | int | float] = []
    misses = 0.0
    for parameter, value in zip(parameters, values, strict=True):
        if parameter.type != "u64":
            arguments.append(value)
            continue
        base, offset = machine.at(int(value), 0)
        bases[parameter.name] = base, offset
        buffers[parameter.name] = machine.memory[base][offset:]
        arguments.append(parameter.name)
        misses += machine.touch(base, machine.memory[base].nbytes)
    key = (
        function.entry,
        function.ptx,
        grid,
        block,
        tuple(values),
        *(machine.versions[b] for b, _ in bases.values()),
    )
    if key not in machine.unchanged:
        launch = Launch(function.entry, grid, block, shared_bytes, tuple(arguments))
        report = simulate(
            _parsed(function.ptx),
            [launch],
            buffers,
            outputs=(),
            races=False,
            counters=False,
            step_budget=50_000,
        )
        for fault in report.faults:
            if fault.kind == "endless":
                time.sleep(3600)
            if fault.kind == "out_of_bounds":
                machine.lose(
                    700, f"CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered ({fault})"
                )
            if fault.kind == "trap":
                machine.lose(719, f"CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure ({fault})")
            if fault.kind == "misaligned":
                machine.lose(716, f"CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address ({fault})")
        same = True
        for name, (base, offset) in bases.items():
            result = report.buffers[name]
            if not np.array_equal(result, machine.memory[base][offset:]):
                machine.memory[base][offset:] = result
                machine.changed(base)
                same = False
        if same:
            machine.unchanged.add(key)
    machine.spend(machine.gpu.launch_us + misses * machine.gpu.miss_us_per_mib)
