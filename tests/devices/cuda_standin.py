# ruff: noqa: N802, N803 - the names are CuPy's and NVML's
"""Stands in for CuPy and NVML: a GPU whose kernels the simulator computes, with a driver's strictness.

Cubins carry their PTX behind the ELF (`tagged`), which a real driver ignores. Arguments are read through
their pointers, faults lose the context, endless kernels hang, graphs and events are queued and replayed.
"""

import ctypes
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from standin_machine import (
    KIB,
    MARK,
    DeviceFunction,
    Machine,
    StandInError,
    StandInGpu,
    dereferenced,
    execute,
    static_bytes,
    tagged,
)

from tuner.devices.clocks import Clocks
from tuner.devices.cupy_api import Apis
from tuner.devices.driver import Driver, index_of
from tuner.devices.jobs import Bench
from tuner.devices.serving import Report

opened_machines: list[Machine] = []
"""Those of this process; a worker has one."""

__all__ = ["AskCalls", "OpenStandIn", "StandInGpu", "opened_machines", "stand_in", "tagged"]


class StandInDriver:
    """`cupy.cuda.driver`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def moduleLoadData(self, image: bytes) -> int:
        self._machine.note("moduleLoadData", len(image))
        cubin, mark, ptx = image.partition(MARK)
        if not cubin.startswith(b"\x7fELF") or not mark:
            self._machine.fail(200, "CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid")
        text = ptx.decode()
        (arch,) = re.findall(r"^\.target sm_(\d+)", text, re.M)
        major, minor = self._machine.gpu.capability
        if int(arch) // 10 != major or int(arch) % 10 > minor:
            self._machine.fail(
                209, "CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available for execution"
            )
        return self._machine.handle(text)

    def moduleUnload(self, module: int) -> None:
        self._machine.note("moduleUnload", module)
        del self._machine.handles[module]

    def moduleGetFunction(self, module: int, funcname: str) -> int:
        self._machine.note("moduleGetFunction", module, funcname)
        ptx = self._machine.handles[module]
        if f".entry {funcname}" not in ptx:
            self._machine.fail(500, "CUDA_ERROR_NOT_FOUND: named symbol not found")
        return self._machine.handle(DeviceFunction(funcname, ptx))

    def funcSetAttribute(self, f: int, attribute: int, value: int) -> None:
        self._machine.note("funcSetAttribute", attribute, value)
        function = self._machine.handles[f]
        if attribute == 8 and not 0 <= value <= 227 * KIB - static_bytes(function):
            self._machine.fail(1, "CUDA_ERROR_INVALID_VALUE: invalid argument")
        if attribute == 9 and not -1 <= value <= 100:
            self._machine.fail(1, "CUDA_ERROR_INVALID_VALUE: invalid argument")
        function.attributes[attribute] = value

    def funcGetAttribute(self, attribute: int, f: int) -> int:
        self._machine.note("funcGetAttribute", attribute)
        function = self._machine.handles[f]
        return {1: static_bytes(function), 3: 0, 4: 64}[attribute]

    def occupancyMaxActiveBlocksPerMultiprocessor(
        self, func: int, blockSize: int, dynamicSMemSize: int
    ) -> int:
        self._machine.note("occupancyMaxActiveBlocksPerMultiprocessor", blockSize, dynamicSMemSize)
        taken = static_bytes(self._machine.handles[func]) + dynamicSMemSize + KIB
        return min(
            228 * KIB // taken, 2048 // blockSize if blockSize <= 1024 else 0, 65536 // (64 * blockSize), 32
        )

    def launchKernel(
        self,
        f: int,
        grid_dim_x: int,
        grid_dim_y: int,
        grid_dim_z: int,
        block_dim_x: int,
        block_dim_y: int,
        block_dim_z: int,
        shared_mem_bytes: int,
        stream: int,
        kernel_params: int,
        extra: int,
    ) -> None:
        machine = self._machine
        function: DeviceFunction = machine.handles[f]
        grid, block = (grid_dim_x, grid_dim_y, grid_dim_z), (block_dim_x, block_dim_y, block_dim_z)
        machine.note("launchKernel", function.entry, grid, block, shared_mem_bytes)
        allowed = function.attributes.get(8, 48 * KIB - static_bytes(function))
        if min(grid) < 1 or shared_mem_bytes > allowed:
            machine.fail(1, "CUDA_ERROR_INVALID_VALUE: invalid argument")
        if block_dim_x * block_dim_y * block_dim_z > 1024:
            machine.fail(701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch")
        values = dereferenced(
            function, kernel_params
        )  # now, as the driver does: the caller may free them afterwards
        machine.queue(lambda: execute(machine, function, grid, block, shared_mem_bytes, values))


class StandInRuntime:
    """`cupy.cuda.runtime`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def getDeviceCount(self) -> int:
        return self._machine.gpu.count

    def setDevice(self, device: int) -> None:
        self._machine.note("setDevice", device)

    def deviceGetAttribute(self, attrib: int, device: int) -> int:
        major, minor = self._machine.gpu.capability
        return {
            13: 1_980_000,
            16: 4,
            36: 3_201_000,
            37: 6144,
            38: self._machine.gpu.l2_bytes,
            75: major,
            76: minor,
            81: 228 * KIB,
            97: 227 * KIB,
            111: KIB,
        }[attrib]

    def getDeviceProperties(self, device: int) -> dict[str, Any]:
        return {"name": self._machine.gpu.name.encode(), "totalGlobalMem": self._machine.gpu.memory_bytes}

    def driverGetVersion(self) -> int:
        return 13000

    def deviceGetPCIBusId(self, device: int) -> str:
        return f"0000:{device:02X}:00.0"

    def memGetInfo(self) -> tuple[int, int]:
        used = sum(data.nbytes for data in self._machine.memory.values())
        return self._machine.gpu.memory_bytes - used, self._machine.gpu.memory_bytes

    def malloc(self, size: int) -> int:
        machine = self._machine
        machine.note("malloc", size)
        if size > self.memGetInfo()[0]:
            machine.fail(2, "cudaErrorMemoryAllocation: out of memory")
        base = machine.next_address
        machine.next_address += -(-size // 512) * 512 + 4096
        machine.memory[base] = (
            machine.rng.integers(0, 256, size, np.uint8) if size < 1 << 16 else np.full(size, 7, np.uint8)
        )
        machine.changed(base)
        return base

    def free(self, ptr: int) -> None:
        self._machine.note("free", ptr)
        if ptr:
            del self._machine.memory[ptr]
            self._machine.l2.pop(ptr, None)

    def memcpy(self, dst: int, src: int, size: int, kind: int) -> None:
        machine = self._machine
        machine.note("memcpy", size, kind)
        if kind == 1:
            base, offset = machine.at(dst, size)
            ctypes.memmove(machine.memory[base].ctypes.data + offset, src, size)
            machine.changed(base)
        else:
            base, offset = machine.at(src, size)
            ctypes.memmove(dst, machine.memory[base].ctypes.data + offset, size)

    def memcpyAsync(self, dst: int, src: int, size: int, kind: int, stream: int) -> None:
        self._machine.note("memcpyAsync", size, kind)

        def copy() -> None:
            to, to_offset = self._machine.at(dst, size)
            base, offset = self._machine.at(src, size)
            self._machine.memory[to][to_offset : to_offset + size] = self._machine.memory[base][
                offset : offset + size
            ]
            self._machine.changed(to)

        self._machine.queue(copy)

    def memsetAsync(self, ptr: int, value: int, size: int, stream: int) -> None:
        machine = self._machine
        machine.note("memsetAsync", value, size)

        def fill() -> None:
            base, offset = machine.at(ptr, size)
            target = machine.memory[base][offset : offset + size]
            if (target != value).any():
                target[:] = value
                machine.changed(base)
            machine.touch(base, size)
            machine.spend(1.0 + size / 1e6)

        machine.queue(fill)

    def deviceSynchronize(self) -> None:
        self._machine.note("deviceSynchronize")

    def streamCreateWithFlags(self, flags: int) -> int:
        self._machine.note("streamCreateWithFlags", flags)
        return self._machine.handle("stream")

    def streamSynchronize(self, stream: int) -> None:
        self._machine.note("streamSynchronize")

    def eventCreate(self) -> int:
        self._machine.note("eventCreate")
        return self._machine.handle([None])

    def eventDestroy(self, event: int) -> None:
        self._machine.note("eventDestroy", event)
        del self._machine.handles[event]

    def eventRecord(self, event: int, stream: int) -> None:
        self._machine.note("eventRecord")

        def record() -> None:
            self._machine.handles[event][0] = self._machine.now_us

        self._machine.queue(record)

    def eventElapsedTime(self, start: int, end: int) -> float:
        self._machine.note("eventElapsedTime")
        first, last = self._machine.handles[start][0], self._machine.handles[end][0]
        return float((last - first) / 1e3)

    def streamBeginCapture(self, stream: int, mode: int) -> None:
        self._machine.note("streamBeginCapture", mode)
        if not self._machine.gpu.has_graphs:
            self._machine.fail(801, "cudaErrorNotSupported: operation not supported")
        self._machine.captured = []

    def streamEndCapture(self, stream: int) -> int:
        self._machine.note("streamEndCapture")
        captured, self._machine.captured = self._machine.captured, None
        if self._machine.capture_broken:
            self._machine.capture_broken = False
            self._machine.fail(
                901, "cudaErrorStreamCaptureInvalidated: operation failed due to a previous error"
            )
        return self._machine.handle(captured)

    def graphInstantiate(self, graph: int) -> int:
        self._machine.note("graphInstantiate")
        return self._machine.handle(list(self._machine.handles[graph]))

    def graphUpload(self, graphExec: int, stream: int) -> None:
        self._machine.note("graphUpload")

    def graphLaunch(self, graphExec: int, stream: int) -> None:
        self._machine.note("graphLaunch")
        for action in self._machine.handles[graphExec]:
            action()

    def graphExecDestroy(self, graphExec: int) -> None:
        self._machine.note("graphExecDestroy")
        del self._machine.handles[graphExec]

    def graphDestroy(self, graph: int) -> None:
        self._machine.note("graphDestroy")
        del self._machine.handles[graph]


class StandInNvml:
    """`pynvml`, for one GPU of 300 W."""

    class NVMLError(Exception):
        pass

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def nvmlDeviceGetHandleByPciBusId(self, pciBusId: str) -> str:
        return pciBusId

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlDeviceGetClockInfo(self, handle: str, type: int) -> int:
        return {1: 1755, 2: 3201}[type]

    def nvmlDeviceGetMaxClockInfo(self, handle: str, type: int) -> int:
        return {1: 1980, 2: 3201}[type]

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 54

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return self._machine.gpu.throttling

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return int(self._machine.now_us // 20_000) * 6000  # 300 W, in steps of 20 ms


def stand_in(gpu: StandInGpu) -> tuple[Apis, Any, Machine]:
    """CuPy's namespaces, NVML, and the machine behind them."""
    machine = Machine(gpu)
    opened_machines.append(machine)
    apis = Apis(StandInDriver(machine), StandInRuntime(machine), (StandInError,))
    return apis, StandInNvml(machine) if gpu.has_nvml else None, machine


@dataclass(frozen=True)
class OpenStandIn:
    """Opens a stand-in GPU in the worker, where a real one is opened by `OpenCuda`."""

    gpu: StandInGpu = field(default_factory=StandInGpu)
    which: int | str = 0

    def __call__(self, report: Report) -> Bench:
        apis, nvml, machine = stand_in(self.gpu)
        driver = Driver(apis, self.which if isinstance(self.which, int) else index_of(apis, self.which))
        bench = Bench(driver, Clocks(nvml, driver.facts().pci_bus_id), report)
        bench.stand_in = machine  # type: ignore[attr-defined] # for `AskCalls`
        return bench


@dataclass(frozen=True)
class AskCalls:
    """Which calls of one name were made, with their arguments."""

    name: str

    def run(self, bench: Any) -> list[tuple[Any, ...]]:
        return [arguments for name, arguments in bench.stand_in.calls if name == self.name]
