"""Whether there is a GPU: asked of the driver's own library, so that the answer does not depend on CuPy.

No context is made and no memory is taken.
"""

import ctypes
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """A GPU as the driver's own library lists it."""

    name: str
    major: int
    minor: int
    memory_bytes: int
    pci_bus_id: str


@dataclass(frozen=True, slots=True)
class DriverSeen:
    """What the driver's own library says.

    Attributes:
        cuda_version: 13000 for 13.0.
        gpus: Those it shows; none where `error` says why.
        error: Why the driver does not work.
    """

    cuda_version: int
    gpus: tuple[GpuSeen, ...]
    error: str = ""

    @property
    def cuda(self) -> tuple[int, int]:
        return self.cuda_version // 1000, self.cuda_version % 1000 // 10


def driver_seen() -> DriverSeen | None:
    """What this machine's driver says; None where its library does not load."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return ask_driver(library)


def ask_driver(library: Any) -> DriverSeen:
    """What libcuda says.

    Args:
        library: It, loaded.
    """
    value = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(value))
    version = value.value
    status = library.cuInit(0)
    if status != 0:
        text = ctypes.c_char_p()
        library.cuGetErrorString(status, ctypes.byref(text))
        return DriverSeen(version, (), f"cuInit fails: {(text.value or b'unknown error').decode()}")
    library.cuDeviceGetCount(ctypes.byref(value))
    return DriverSeen(version, tuple(_ask_gpu(library, index) for index in range(value.value)))


def _ask_gpu(library: Any, index: int) -> GpuSeen:
    device = ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(device), index)
    name, bus = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceGetPCIBusId(bus, len(bus), device)
    nbytes = ctypes.c_size_t()
    library.cuDeviceTotalMem_v2(ctypes.byref(nbytes), device)
    numbers = []
    for attribute in (75, 76):  # cuda.h, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        numbers.append(value.value)
    major, minor = numbers
    return GpuSeen(name.value.decode(), major, minor, nbytes.value, bus.value.decode())
