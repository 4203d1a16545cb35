"""What NVML says about a GPU while it works: clocks, temperature, throttling, energy. Reads only.

NVML is optional: without `nvidia-ml-py`, or where the GPU does not answer, a value is None.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

# nvml.h, nvmlClocksEventReasons: what holds the clocks down. Idle (bit 0), clocks that somebody chose (bits 1
# and 8) and sync boost (bit 4) are no throttling.
_THROTTLING = {
    1 << 2: "sw_power_cap",
    1 << 3: "hw_slowdown",
    1 << 5: "sw_thermal_slowdown",
    1 << 6: "hw_thermal_slowdown",
    1 << 7: "hw_power_brake_slowdown",
    1 << 9: "board_limit",
    1 << 10: "reliability",
}
_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # nvmlClockType_t
_TEMPERATURE_GPU = 0  # nvmlTemperatureSensors_t


@dataclass(frozen=True, slots=True)
class ClockSample:
    """One look at a working GPU; None for what it does not say.

    Attributes:
        sm_mhz, memory_mhz: Clocks.
        temperature_c: Of the GPU.
        throttling: Names of what held the clocks down.
    """

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    temperature_c: float | None = None
    throttling: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClockSummary:
    """Several looks during one measurement.

    Attributes:
        sm_mhz, memory_mhz: Median clocks.
        sm_mhz_low: The lowest clock seen.
        temperature_c: The highest.
        throttling: Names of what held the clocks down, at any of the looks.
    """

    sm_mhz: float | None
    sm_mhz_low: float | None
    memory_mhz: float | None
    temperature_c: float | None
    throttling: tuple[str, ...]

    @classmethod
    def of(cls, samples: Sequence[ClockSample]) -> "ClockSummary":
        sm = [sample.sm_mhz for sample in samples if sample.sm_mhz is not None]
        memory = [sample.memory_mhz for sample in samples if sample.memory_mhz is not None]
        degrees = [sample.temperature_c for sample in samples if sample.temperature_c is not None]
        return cls(
            sm_mhz=median(sm) if sm else None,
            sm_mhz_low=min(sm, default=None),
            memory_mhz=median(memory) if memory else None,
            temperature_c=max(degrees, default=None),
            throttling=tuple(sorted({name for sample in samples for name in sample.throttling})),
        )


class Clocks:
    """One GPU as NVML sees it.

    Args:
        nvml: The module `pynvml`, initialised, or a stand-in; None where there is none.
        pci_bus_id: Of the GPU: NVML counts GPUs in its own order.
    """

    def __init__(self, nvml: Any | None, pci_bus_id: str) -> None:
        self._nvml = nvml
        self._handle = self._asked(lambda: nvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)) if nvml else None

    @property
    def driver_version(self) -> str | None:
        """``580.95.05``."""
        nvml = self._nvml
        version = self._asked(lambda: nvml.nvmlSystemGetDriverVersion()) if nvml else None
        return version.decode() if isinstance(version, bytes) else version

    def sample(self) -> ClockSample:
        """What holds now. Worth something only while the GPU works."""
        nvml, handle = self._nvml, self._handle
        if nvml is None or handle is None:
            return ClockSample()
        if hasattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons"):
            reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons
        else:  # until NVML 12.2
            reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        bits = self._asked(lambda: reasons(handle)) or 0
        return ClockSample(
            sm_mhz=self._asked(lambda: nvml.nvmlDeviceGetClockInfo(handle, _SM_CLOCK)),
            memory_mhz=self._asked(lambda: nvml.nvmlDeviceGetClockInfo(handle, _MEMORY_CLOCK)),
            temperature_c=self._asked(lambda: nvml.nvmlDeviceGetTemperature(handle, _TEMPERATURE_GPU)),
            throttling=tuple(name for bit, name in _THROTTLING.items() if bits & bit),
        )

    def energy_mj(self) -> int | None:
        """Millijoules that the whole board has used since the driver was loaded; it moves in steps."""
        nvml, handle = self._nvml, self._handle
        if nvml is None or handle is None:
            return None
        energy: int | None = self._asked(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        return energy

    def max_sm_mhz(self) -> float | None:
        """The highest clock that the SMs can run at."""
        nvml, handle = self._nvml, self._handle
        if nvml is None or handle is None:
            return None
        clock: float | None = self._asked(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, _SM_CLOCK))
        return clock

    def _asked(self, question: Callable[[], Any]) -> Any:
        """The answer, or None where this GPU or driver has none (MIG slices, old boards)."""
        assert self._nvml is not None
        try:
            return question()
        except self._nvml.NVMLError:
            return None


def open_clocks(pci_bus_id: str) -> Clocks:
    """NVML's view of a GPU; one that answers nothing where NVML is not installed or does not load."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return Clocks(None, pci_bus_id)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return Clocks(None, pci_bus_id)
    return Clocks(nvml, pci_bus_id)
