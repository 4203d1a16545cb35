"""The few CUDA calls the tuner needs, on one device and one stream, through CuPy's wrappers of them.

CuPy comes in as a value (`tuner.devices.cupy_api`), so that a stand-in can take its place without a GPU.
Nothing here changes a setting of the GPU.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.devices.cupy_api import Apis
from tuner.devices.device import DeviceError
from tuner.devices.errors import CandidateFaultError, StickyFaultError

Array = NDArray[Any]

# cuda.h, enum CUfunction_attribute
STATIC_SHARED_BYTES = 1
LOCAL_BYTES = 3
REGISTERS = 4
MAX_DYNAMIC_SHARED_BYTES = 8
SHARED_CARVEOUT = 9

# driver_types.h, enum cudaDeviceAttr
ATTRIBUTES = {
    "clock_khz": 13,
    "sms": 16,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "major": 75,
    "minor": 76,
    "shared_bytes_per_sm": 81,
    "shared_bytes_per_block_optin": 97,
    "shared_bytes_reserved": 111,
}

SHARED_WITHOUT_OPTIN = 48 * 1024
"""Static and dynamic shared memory of a block that needs no opt-in (CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability")."""

_HOST_TO_DEVICE, _DEVICE_TO_HOST, _DEVICE_TO_DEVICE = 1, 2, 3
_NON_BLOCKING = 1
_CAPTURE_RELAXED = 2  # a library may allocate while it is captured; plans do nothing but launch and fill

# Status numbers are the same in both APIs (cuda.h, enum CUresult). After these the context is lost.
_STICKY = {
    700: "out_of_bounds",  # illegal address
    709: "launch_failure",  # context is destroyed
    710: "launch_failure",  # assert, trap
    714: "launch_failure",  # hardware stack error
    715: "illegal_instruction",
    716: "misaligned",
    717: "out_of_bounds",  # invalid address space
    718: "out_of_bounds",  # invalid program counter
    719: "launch_failure",
    721: "launch_failure",  # tensor memory was not freed
    702: "launch_failure",  # stopped by the display's watchdog
    4: "launch_failure",  # the driver shuts down
    201: "launch_failure",  # invalid context
    214: "launch_failure",  # uncorrectable ECC error
    220: "launch_failure",  # uncorrectable NVLink error
    226: "launch_failure",  # contained error: the process is lost
    810: "launch_failure",  # MPS has ended the client
    999: "launch_failure",  # unknown
}
_OUT_OF_MEMORY = 2


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What the driver says about a GPU.

    Attributes:
        index: Number of the device as CUDA counts.
        name: ``NVIDIA H200``.
        major, minor: Compute capability.
        sms: Streaming multiprocessors.
        clock_khz, memory_clock_khz: The highest they run at.
        memory_bus_bits: Width of the DRAM interface.
        memory_bytes: DRAM.
        l2_bytes: L2 cache.
        shared_bytes_per_sm: Shared memory of one SM.
        shared_bytes_per_block_optin: Most of one block, static and dynamic, after opting in.
        shared_bytes_reserved: What the system takes for every resident block.
        pci_bus_id: ``0000:3B:00.0``.
        cuda_version: Of the driver: 13000 for 13.0.
    """

    index: int
    name: str
    major: int
    minor: int
    sms: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    memory_bytes: int
    l2_bytes: int
    shared_bytes_per_sm: int
    shared_bytes_per_block_optin: int
    shared_bytes_reserved: int
    pci_bus_id: str
    cuda_version: int


@dataclass(frozen=True)
class Arguments:
    """Values of one launch as the driver takes them: an array of pointers, one a parameter."""

    values: tuple[Any, ...]
    pointers: Any

    @classmethod
    def of(cls, values: Sequence[Any]) -> "Arguments":
        """Pack ctypes values; they live as long as this object does."""
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        return cls(tuple(values), pointers)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.pointers)


def index_of(apis: Apis, name: str) -> int:
    """Number of the first GPU of that name.

    Raises:
        DeviceError: There is none; with the names there are.
    """
    names = [apis.runtime.getDeviceProperties(index)["name"].decode() for index in range(_count(apis))]
    if name not in names:
        raise DeviceError(
            f"a GPU is cuda, cuda:N, cuda:all or cuda:NAME, got cuda:{name}; "
            f"here are: {', '.join(names) or 'none'}"
        )
    return names.index(name)


def _count(apis: Apis) -> int:
    try:
        return apis.runtime.getDeviceCount()
    except apis.errors as error:
        raise DeviceError(f"there is no usable GPU: {error}; see `tune doctor`") from error


class Driver:
    """One GPU and one stream on it.

    Args:
        apis: CuPy, or a stand-in.
        index: Number of the device as CUDA counts.

    Raises:
        DeviceError: There is no such device.
    """

    def __init__(self, apis: Apis, index: int) -> None:
        self._apis = apis
        self.index = index
        self.count = count = _count(apis)
        if not 0 <= index < count:
            raise DeviceError(f"cuda:{index} must be one of the {count} GPUs, cuda:0 to cuda:{count - 1}")
        with self._faults():
            apis.runtime.setDevice(index)
            apis.runtime.free(0)  # makes the primary context current where setDevice alone does not
            self.stream = apis.runtime.streamCreateWithFlags(_NON_BLOCKING)

    def facts(self) -> GpuFacts:
        """What the driver says about the GPU."""
        runtime = self._apis.runtime
        with self._faults():
            properties = runtime.getDeviceProperties(self.index)
            values = {
                name: runtime.deviceGetAttribute(number, self.index) for name, number in ATTRIBUTES.items()
            }
            return GpuFacts(
                index=self.index,
                name=properties["name"].decode(),
                memory_bytes=properties["totalGlobalMem"],
                pci_bus_id=runtime.deviceGetPCIBusId(self.index),
                cuda_version=runtime.driverGetVersion(),
                **values,
            )

    def free_bytes(self) -> int:
        """Device memory that is free now."""
        with self._faults():
            free, _total = self._apis.runtime.memGetInfo()
        return int(free)

    # Memory

    def allocate(self, nbytes: int) -> int:
        """Address of fresh device memory; it holds anything."""
        with self._faults():
            return self._apis.runtime.malloc(nbytes)

    def free(self, address: int) -> None:
        with self._faults():
            self._apis.runtime.free(address)

    def upload(self, address: int, values: Array) -> None:
        """Copy a C-contiguous array to the device; it has arrived when this returns."""
        values = np.ascontiguousarray(values)
        with self._faults():
            self._apis.runtime.memcpy(address, values.ctypes.data, values.nbytes, _HOST_TO_DEVICE)
            # A copy from pageable memory returns once staged; our stream does not wait for the default one.
            self._apis.runtime.deviceSynchronize()

    def download(self, address: int, values: Array) -> None:
        """Fill a C-contiguous array from the device, after all that is queued."""
        with self._faults():
            self._apis.runtime.streamSynchronize(self.stream)
            self._apis.runtime.memcpy(values.ctypes.data, address, values.nbytes, _DEVICE_TO_HOST)

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Queue a memset."""
        with self._faults():
            self._apis.runtime.memsetAsync(address, byte, nbytes, self.stream)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy within the device."""
        with self._faults():
            self._apis.runtime.memcpyAsync(target, source, nbytes, _DEVICE_TO_DEVICE, self.stream)

    # Code

    def load(self, cubin: bytes) -> int:
        """Handle of a module."""
        try:
            with self._faults():
                return self._apis.driver.moduleLoadData(cubin)
        except StickyFaultError:
            raise
        except CandidateFaultError as fault:
            hint = "`tune doctor` says whether ptxas, driver and GPU fit together"
            raise CandidateFaultError(fault.kind, f"{fault}; {hint}") from fault

    def unload(self, module: int) -> None:
        with self._faults():
            self._apis.driver.moduleUnload(module)

    def function(self, module: int, entry: str) -> int:
        with self._faults():
            return self._apis.driver.moduleGetFunction(module, entry)

    def attribute(self, function: int, attribute: int) -> int:
        with self._faults():
            return self._apis.driver.funcGetAttribute(attribute, function)

    def set_attribute(self, function: int, attribute: int, value: int) -> None:
        with self._faults():
            self._apis.driver.funcSetAttribute(function, attribute, value)

    def resident_blocks(self, function: int, threads: int, shared_bytes: int) -> int:
        """Blocks of that many threads and dynamic shared bytes that one SM holds at once."""
        with self._faults():
            return self._apis.driver.occupancyMaxActiveBlocksPerMultiprocessor(
                function, threads, shared_bytes
            )

    def launch(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arguments: Arguments,
    ) -> None:
        """Queue a launch."""
        with self._faults():
            self._apis.driver.launchKernel(
                function, *grid, *block, shared_bytes, self.stream, arguments.address, 0
            )

    # Time

    def synchronize(self) -> None:
        """Wait for all that is queued."""
        with self._faults():
            self._apis.runtime.streamSynchronize(self.stream)

    def event(self) -> int:
        with self._faults():
            return self._apis.runtime.eventCreate()

    def record(self, event: int) -> None:
        """Queue an event."""
        with self._faults():
            self._apis.runtime.eventRecord(event, self.stream)

    def free_event(self, event: int) -> None:
        with self._faults():
            self._apis.runtime.eventDestroy(event)

    def elapsed_us(self, start: int, end: int) -> float:
        """Device time between two events that have happened, microseconds (resolution about half of one)."""
        with self._faults():
            return self._apis.runtime.eventElapsedTime(start, end) * 1e3

    def capture(self, queue: Callable[[], None]) -> int:
        """Executable graph of what `queue` puts on the stream, uploaded and ready."""
        runtime = self._apis.runtime
        with self._faults():
            runtime.streamBeginCapture(self.stream, _CAPTURE_RELAXED)
        try:
            queue()
        except BaseException:
            with suppress(*self._apis.errors):  # that the capture is invalid by now is no news
                runtime.graphDestroy(runtime.streamEndCapture(self.stream))
            raise
        with self._faults():
            graph = runtime.streamEndCapture(self.stream)
            try:
                executable = runtime.graphInstantiate(graph)
            finally:
                runtime.graphDestroy(graph)
            runtime.graphUpload(executable, self.stream)
            return executable

    def launch_graph(self, graph: int) -> None:
        """Queue a graph."""
        with self._faults():
            self._apis.runtime.graphLaunch(graph, self.stream)

    def free_graph(self, graph: int) -> None:
        with self._faults():
            self._apis.runtime.graphExecDestroy(graph)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Turn the API's errors into faults of the candidate."""
        try:
            yield
        except self._apis.errors as error:
            status: int = getattr(error, "status", 999)
            if status in _STICKY:
                raise StickyFaultError(_STICKY[status], str(error)) from error
            kind = "out_of_memory" if status == _OUT_OF_MEMORY else "launch_refused"
            raise CandidateFaultError(kind, str(error)) from error
