"""The calls of CuPy that are used exist as they are called: as recorded of it, and as installed."""

import ctypes
import importlib
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cuda_standin import StandInDriver, StandInRuntime, stand_in
from standin_machine import StandInGpu

from tuner.devices import driver as cuda
from tuner.devices.cupy_api import DriverApi, RuntimeApi, cupy_apis
from tuner.devices.device import DeviceError

RECORDED = Path(__file__).with_name("cupy_signatures.txt")
APIS: dict[str, type] = {"driver": DriverApi, "runtime": RuntimeApi}
CALLS = [
    (namespace, name)
    for namespace, api in APIS.items()
    for name in vars(api)
    if inspect.isfunction(getattr(api, name)) and not name.startswith("_")
]


def parameters_of(signature: str) -> list[str]:
    """Names in ``eventRecord(intptr_t event, intptr_t stream) -> int``."""
    (inside,) = re.findall(r"\(([^)]*)\)", signature)
    return [part.split("=")[0].split()[-1] for part in inside.split(",") if part.strip()]


def recorded() -> dict[tuple[str, str], list[str]]:
    lines = [line for line in RECORDED.read_text().splitlines() if not line.startswith("#")]
    signatures = [line.split(" ", 1) for line in lines]
    return {(namespace, text.split("(")[0]): parameters_of(text) for namespace, text in signatures}


def declared(api: type, name: str) -> list[str]:
    return list(inspect.signature(getattr(api, name)).parameters)[1:]


@pytest.mark.parametrize(("namespace", "name"), CALLS)
def test_calls_are_as_recorded(namespace: str, name: str) -> None:
    assert declared(APIS[namespace], name) == recorded()[namespace, name]


@pytest.mark.parametrize(("namespace", "name"), CALLS)
def test_the_stand_in_takes_the_same_calls(namespace: str, name: str) -> None:
    stand_ins: dict[str, type] = {"driver": StandInDriver, "runtime": StandInRuntime}
    assert declared(stand_ins[namespace], name) == declared(APIS[namespace], name)


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
@pytest.mark.parametrize(("namespace", "name"), CALLS)
def test_installed_cupy_takes_the_same_calls(namespace: str, name: str) -> None:
    module: Any = importlib.import_module("cupy.cuda")
    signature = getattr(getattr(module, namespace), name).__doc__.splitlines()[0]
    assert parameters_of(signature) == declared(APIS[namespace], name)


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
def test_installed_cupy_has_the_same_numbers() -> None:
    module: Any = importlib.import_module("cupy.cuda")
    driver, runtime = module.driver, module.runtime
    assert driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES == cuda.STATIC_SHARED_BYTES
    assert driver.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES == cuda.LOCAL_BYTES
    assert driver.CU_FUNC_ATTRIBUTE_NUM_REGS == cuda.REGISTERS
    assert driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == cuda.MAX_DYNAMIC_SHARED_BYTES
    assert driver.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT == cuda.SHARED_CARVEOUT
    numbers = {
        "clock_khz": runtime.cudaDevAttrClockRate,
        "sms": runtime.cudaDevAttrMultiProcessorCount,
        "memory_clock_khz": runtime.cudaDevAttrMemoryClockRate,
        "memory_bus_bits": runtime.cudaDevAttrGlobalMemoryBusWidth,
        "l2_bytes": runtime.cudaDevAttrL2CacheSize,
        "major": 75,  # cudaDevAttrComputeCapabilityMajor and Minor, which CuPy does not export
        "minor": 76,
        "shared_bytes_per_sm": runtime.cudaDevAttrMaxSharedMemoryPerMultiprocessor,
        "shared_bytes_per_block_optin": runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin,
        "shared_bytes_reserved": runtime.cudaDevAttrReservedSharedMemoryPerBlock,
    }
    assert numbers == cuda.ATTRIBUTES


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
def test_installed_cupy_puts_the_number_of_an_error_in_its_status() -> None:
    """Of the runtime's; the driver's cannot be made without a driver (tests/gpu/test_faults.py has them)."""
    module: Any = importlib.import_module("cupy.cuda")
    raised = module.runtime.CUDARuntimeError(700)
    assert raised.status == 700
    assert isinstance(raised, cupy_apis().errors)


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
def test_without_cupy_the_device_says_what_to_do() -> None:
    with pytest.raises(DeviceError, match=r"needs CuPy.*`tune doctor` says which extra to install"):
        cupy_apis()


def test_arguments_are_packed_as_the_driver_reads_them() -> None:
    """An array of pointers to values of 8, 4 and 4 bytes."""
    packed = cuda.Arguments.of([ctypes.c_uint64(1 << 40), ctypes.c_uint32(7), ctypes.c_float(0.5)])
    pointers = (ctypes.c_void_p * 3).from_address(packed.address)
    assert ctypes.c_uint64.from_address(pointers[0] or 0).value == 1 << 40
    assert ctypes.c_uint32.from_address(pointers[1] or 0).value == 7
    assert ctypes.c_float.from_address(pointers[2] or 0).value == 0.5


def test_an_error_inside_a_capture_ends_the_capture() -> None:
    apis, _, machine = stand_in(StandInGpu())
    driver = cuda.Driver(apis, 0)

    def broken() -> None:
        raise KeyError("in the middle")

    with pytest.raises(KeyError):
        driver.capture(broken)
    assert machine.captured is None
    assert machine.handles.keys() == {driver.stream}
