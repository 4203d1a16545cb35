"""NVML's answers, and what remains where it has none."""

import importlib
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cuda_standin import StandInGpu, StandInNvml, stand_in

from tuner.devices import clocks
from tuner.devices.clocks import Clocks, ClockSample, ClockSummary, open_clocks
from tuner.devices.cupy_api import DriverApi, RuntimeApi


class FakeNvmlError(Exception):
    """As `pynvml.NVMLError`."""


def not_supported(*_: Any) -> Any:
    raise FakeNvmlError("Not Supported")


def test_a_summary_takes_medians_and_every_reason() -> None:
    samples = [
        ClockSample(1700.0, 2600.0, 60.0, ("sw_power_cap",)),
        ClockSample(1500.0, 2600.0, 71.0, ("hw_thermal_slowdown", "sw_power_cap")),
        ClockSample(1710.0, None, None),
    ]
    assert ClockSummary.of(samples) == ClockSummary(
        1700.0, 1500.0, 2600.0, 71.0, ("hw_thermal_slowdown", "sw_power_cap")
    )
    assert ClockSummary.of([]) == ClockSummary(None, None, None, None, ())


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0b1, ()),  # idle
        (0b100010010, ()),  # clocks that somebody chose, sync boost
        (0b100, ("sw_power_cap",)),
        (0b01001000, ("hw_slowdown", "hw_thermal_slowdown")),
        (0b10100000, ("sw_thermal_slowdown", "hw_power_brake_slowdown")),
        (0b11000000000, ("board_limit", "reliability")),
    ],
)
def test_reasons_have_names(bits: int, names: tuple[str, ...]) -> None:
    _, nvml, _ = stand_in(StandInGpu(throttling=bits))
    assert Clocks(nvml, "0000:00:00.0").sample().throttling == names


def test_what_a_gpu_does_not_answer_is_none() -> None:
    """A MIG slice has no clocks and no energy."""
    nvml = SimpleNamespace(
        NVMLError=FakeNvmlError,
        nvmlDeviceGetHandleByPciBusId=lambda bus: bus,
        nvmlDeviceGetCurrentClocksEventReasons=not_supported,
        nvmlDeviceGetClockInfo=not_supported,
        nvmlDeviceGetMaxClockInfo=not_supported,
        nvmlDeviceGetTemperature=lambda handle, sensor: 40,
        nvmlDeviceGetTotalEnergyConsumption=not_supported,
        nvmlSystemGetDriverVersion=lambda: b"535.104.05",
    )
    slice_ = Clocks(nvml, "0000:00:00.0")
    assert slice_.sample() == ClockSample(None, None, 40, ())
    assert (slice_.energy_mj(), slice_.max_sm_mhz(), slice_.driver_version) == (None, None, "535.104.05")


def test_an_unknown_gpu_and_no_nvml_answer_nothing() -> None:
    nvml = SimpleNamespace(NVMLError=FakeNvmlError, nvmlDeviceGetHandleByPciBusId=not_supported)
    for unknown in (Clocks(nvml, "0000:FF:00.0"), Clocks(None, "0000:00:00.0")):
        assert unknown.sample() == ClockSample()
        assert (unknown.energy_mj(), unknown.max_sm_mhz()) == (None, None)


def test_an_older_nvml_has_another_name_for_reasons() -> None:
    nvml = SimpleNamespace(
        NVMLError=FakeNvmlError,
        nvmlDeviceGetHandleByPciBusId=lambda bus: bus,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0b100,
        nvmlDeviceGetClockInfo=lambda handle, which: {1: 1410, 2: 1593}[which],
        nvmlDeviceGetTemperature=lambda handle, sensor: 40,
    )
    assert Clocks(nvml, "").sample() == ClockSample(1410, 1593, 40, ("sw_power_cap",))


@pytest.mark.skipif(find_spec("pynvml") is None, reason="nvidia-ml-py is not installed")
def test_installed_nvml_takes_the_same_calls_and_has_the_same_numbers() -> None:
    module: Any = importlib.import_module("pynvml")
    for name, function in vars(StandInNvml).items():
        if name.startswith("nvml"):
            ours = list(inspect.signature(function).parameters)[1:]
            assert list(inspect.signature(getattr(module, name)).parameters) == ours, name
    assert (module.NVML_CLOCK_SM, module.NVML_CLOCK_MEM) == (1, 2)
    assert module.NVML_TEMPERATURE_GPU == 0
    numbers = {
        "SwPowerCap": "sw_power_cap",
        "HwSlowdown": "hw_slowdown",
        "SwThermalSlowdown": "sw_thermal_slowdown",
        "HwThermalSlowdown": "hw_thermal_slowdown",
        "HwPowerBrakeSlowdown": "hw_power_brake_slowdown",
        "BoardLimit": "board_limit",
        "Reliability": "reliability",
    }
    assert {
        getattr(module, f"nvmlClocksThrottleReason{name}"): word for name, word in numbers.items()
    } == clocks._THROTTLING


def test_nothing_about_a_gpu_is_set() -> None:
    """NVML is asked and never told; of CUDA's setters only those of a process and of a function are used."""
    asked = {
        name
        for path in Path(clocks.__file__).parent.glob("*.py")
        for name in re.findall(r"\bnvml[A-Z]\w*", path.read_text())
    }
    assert len(asked) >= 8
    harmless = r"nvmlInit$|nvml(Device|System)Get|nvml\w+_t$|nvmlClocksEventReasons$"
    assert all(re.match(harmless, name) for name in asked)
    calls = {name for api in (DriverApi, RuntimeApi) for name in vars(api)}
    assert {name for name in calls if re.search("set(?!s)", name, re.I)} == {
        "setDevice",
        "funcSetAttribute",
        "memsetAsync",
    }


def test_nvml_of_this_machine_can_be_asked() -> None:
    sample = open_clocks("FFFF:FF:00.0").sample()
    assert sample == ClockSample()
