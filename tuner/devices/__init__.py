"""Devices by name: ``sim:rtx4090``, ``cuda``, ``replay:FILE``. A new one is one file and one row here."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tuner.devices.device import Device, DeviceError
from tuner.names import hint


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """A row of the table.

    Attributes:
        form: How the name is written, for a person.
        summary: What it does.
        open: Makes the device from what follows the colon.
    """

    form: str
    summary: str
    open: Callable[[str], Device]


def _open_simulated(gpu: str) -> Device:
    from tuner.devices.simulated import SimulatedDevice

    return SimulatedDevice(gpu or "rtx4090")


def _open_cuda(index: str) -> Device:
    from tuner.devices.cuda import open_cuda

    return open_cuda(index)


def _open_replay(file: str) -> Device:
    raise DeviceError(
        f"replay:{file} answers `tune run` alone; nothing can be proven or timed on a recording"
    )


DEVICES: dict[str, DeviceEntry] = {
    "sim": DeviceEntry(
        "sim:GPU", "no GPU needed: the simulator proves, the cost model predicts", _open_simulated
    ),
    "cuda": DeviceEntry("cuda[:N|all]", "an NVIDIA GPU, or all: proves and measures there", _open_cuda),
    "replay": DeviceEntry("replay:FILE", "a recorded space answers", _open_replay),
}
DEFAULT_SIMULATED = "sim:rtx4090"


def default_device() -> str:
    """``cuda`` where a GPU and CuPy are there, else a prediction for `DEFAULT_SIMULATED`."""
    return "cuda" if has_gpu() and find_spec("cupy") is not None else DEFAULT_SIMULATED


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU, as its driver, a container or WSL shows it. Loads nothing."""
    return (
        any(Path("/proc/driver/nvidia/gpus").glob("*"))
        or any(Path("/dev").glob("nvidia[0-9]*"))
        or Path("/usr/lib/wsl/lib/libcuda.so.1").exists()
    )


def device_named(name: str) -> Device:
    """The device of that name, opened.

    Raises:
        DeviceError: There is no such device, or it cannot be had here; the message says what is missing.
    """
    kind, _, rest = name.partition(":")
    entry = DEVICES.get(kind)
    if entry is None:
        forms = hint(kind, (entry.form for entry in DEVICES.values()))
        raise DeviceError(f"unknown device {name!r}; {forms}")
    return entry.open(rest)


def simulated_gpus() -> dict[str, str]:
    """Name and architecture of every GPU that ``sim:`` knows."""
    from emitters.gpus import GPUS

    return {name: gpu.arch for name, gpu in GPUS.items()}
