"""Looks at this machine: what of the CUDA path is there, what does not fit together, and what mends it.

Changes nothing. Whatever may crash (importing CuPy, say) is tried in a process of its own.
"""

import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from typing import Any, Protocol

from emitters.target import ARCHS
from tuner import __version__
from tuner.devices.clocks import ClockSample, open_clocks
from tuner.devices.presence import DriverSeen, driver_seen
from tuner.ptxas import DISTRIBUTIONS, INSTALL, Assembler, AssemblerError, ptxas_of

DISTRIBUTION = "ptx-tuner"
_CUPY = {13: "cupy-cuda13x", 12: "cupy-cuda12x"}
_FIRST_DRIVER = {13: "580", 12: "525"}  # CUDA Toolkit release notes, "minor version compatibility"


class Status(StrEnum):
    """How a finding reads."""

    OK = "ok"
    OPTIONAL = "optional"  # missing, and something is done without it
    MISSING = "missing"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes:
        subject: ``driver``, ``GPU 0``, ``ptxas``, ...
        status: How it is.
        said: What was found.
        remedy: What to do; empty where nothing is to be done.
    """

    subject: str
    status: Status
    said: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, in reading order.

    Attributes:
        findings: One a subject.
        cuda_ready: Whether ``--device cuda`` works here.
    """

    findings: tuple[Finding, ...]
    cuda_ready: bool

    def to_json(self) -> dict[str, Any]:
        return {"cuda_ready": self.cuda_ready, "findings": [asdict(finding) for finding in self.findings]}


class Machine(Protocol):
    """The questions that are asked of a machine."""

    def driver(self) -> DriverSeen | None:
        """None where the driver's library does not load."""
        ...

    def driver_version(self) -> str | None:
        """``580.95.05``."""
        ...

    def clocks(self, pci_bus_id: str) -> ClockSample:
        """What NVML says now."""
        ...

    def installed(self, distribution: str) -> str | None:
        """Version of an installed distribution."""
        ...

    def import_error(self, module: str) -> str | None:
        """Why a module does not import; None where it does."""
        ...

    def ptxas(self) -> str:
        """Version.

        Raises:
            AssemblerError: There is none.
        """
        ...

    def ptxas_of(self, distribution: str) -> str | None:
        """Path of the ptxas that an installed distribution brings."""
        ...

    def extra(self, name: str) -> tuple[str, ...]:
        """What an extra of this distribution requires: ``cupy-cuda13x<15,>=13.6``, ...; empty if unknown."""
        ...


def diagnose(machine: Machine | None = None) -> Diagnosis:
    """Look at a machine; at this one unless another is given."""
    machine = machine or ThisMachine()
    findings = tuple(_findings(machine))
    working = {finding.subject for finding in findings if finding.status is Status.OK}
    has_gpu = any(subject.startswith("GPU ") for subject in working)
    ready = has_gpu and {"driver", "ptxas", "CuPy"} <= working
    return Diagnosis(findings, ready)


def _findings(machine: Machine) -> Iterator[Finding]:
    yield Finding("tune", Status.OK, f"{DISTRIBUTION} {__version__}, Python {platform.python_version()}")
    driver = machine.driver()
    yield _driver(machine, driver)
    if driver is not None:
        yield from _gpus(machine, driver)
    yield _ptxas(machine, driver)
    yield _cupy(machine, driver)
    yield _nvml(machine, driver)
    yield from _baselines(machine, driver)


def _driver(machine: Machine, driver: DriverSeen | None) -> Finding:
    if driver is None:
        return Finding(
            "driver",
            Status.MISSING,
            "no NVIDIA driver (libcuda.so.1 does not load)",
            "install one from https://www.nvidia.com/drivers, or stay with --device sim:rtx4090, "
            "which needs no GPU",
        )
    version = machine.driver_version()
    major, minor = driver.cuda
    said = f"{version + ', ' if version else ''}CUDA {major}.{minor}"
    if driver.error:
        return Finding("driver", Status.CONFLICT, f"{said}: {driver.error}", "see `nvidia-smi` and `dmesg`")
    if major < min(_CUPY):
        return Finding(
            "driver",
            Status.CONFLICT,
            f"{said} is too old",
            f"install a driver of {_FIRST_DRIVER[12]} or newer",
        )
    return Finding("driver", Status.OK, said)


def _gpus(machine: Machine, driver: DriverSeen) -> Iterator[Finding]:
    if not driver.gpus:
        yield Finding(
            "GPU",
            Status.MISSING,
            "the driver shows none",
            "see `nvidia-smi`, and CUDA_VISIBLE_DEVICES if it is set",
        )
    for index, gpu in enumerate(driver.gpus):
        said = f"{gpu.name}, sm_{gpu.major}{gpu.minor}, {gpu.memory_bytes / 2**30:.0f} GiB"
        clocks = machine.clocks(gpu.pci_bus_id)
        if clocks.sm_mhz is not None:
            said += f", SM {clocks.sm_mhz:.0f} MHz"
        if clocks.temperature_c is not None:
            said += f", {clocks.temperature_c:.0f} C"
        if clocks.throttling:
            said += f", held down by {', '.join(clocks.throttling)}"
        number = 10 * gpu.major + gpu.minor
        if any(arch.number // 10 == gpu.major and arch.number <= number for arch in ARCHS.values()):
            yield Finding(f"GPU {index}", Status.OK, said)
        else:
            yield Finding(
                f"GPU {index}",
                Status.CONFLICT,
                f"{said}: no known architecture fits",
                f"choose another GPU with cuda:N; known are {', '.join(ARCHS)}",
            )


def _ptxas(machine: Machine, driver: DriverSeen | None) -> Finding:
    try:
        version = machine.ptxas()
    except AssemblerError as error:
        found = next((name for name in DISTRIBUTIONS if machine.installed(name)), None)
        remedy = INSTALL if found is None else f"pip install --force-reinstall {found}"
        said = str(error).removesuffix(f"; {INSTALL}")
        return Finding("ptxas", Status.MISSING, said, f"{remedy}, or name one with --ptxas")
    if driver is not None and int(version.split(".")[0]) > driver.cuda[0] >= min(_CUPY):
        major = driver.cuda[0]
        return Finding(
            "ptxas",
            Status.CONFLICT,
            f"{version} makes cubins that a driver of CUDA {major} does not load",
            f"{_older_ptxas(machine, major)}; or install a driver of {_FIRST_DRIVER[13]} or newer",
        )
    return Finding("ptxas", Status.OK, version)


def _older_ptxas(machine: Machine, major: int) -> str:
    """How to have a ptxas of an older CUDA used."""
    path = machine.ptxas_of(f"nvidia-cuda-nvcc-cu{major}")
    if path is not None:
        return f"name the older one that is here: --ptxas {path}"
    return f"{_install(machine, major)}, and `tune doctor` again for the --ptxas to name"


def _cupy(machine: Machine, driver: DriverSeen | None) -> Finding:
    found = {name: version for name in (*_CUPY.values(), "cupy") if (version := machine.installed(name))}
    wanted = max((major for major in _CUPY if driver and driver.cuda[0] >= major), default=13)
    if not found:
        return Finding("CuPy", Status.MISSING, "not installed", _install(machine, wanted))
    said = ", ".join(f"{name} {version}" for name, version in found.items())
    if len(found) > 1:
        return Finding(
            "CuPy",
            Status.CONFLICT,
            f"{said}: two at once overwrite each other",
            f"pip uninstall -y {' '.join(found)} && {_install(machine, wanted)}",
        )
    error = machine.import_error("cupy.cuda")
    if error is not None:
        return Finding("CuPy", Status.CONFLICT, f"{said} does not import: {error}", _reinstall(found))
    if driver is not None and _CUPY[13] in found and driver.cuda[0] < 13:
        return Finding(
            "CuPy",
            Status.CONFLICT,
            f"{said} needs a driver of {_FIRST_DRIVER[13]} or newer, this one is of CUDA {driver.cuda[0]}",
            f"pip uninstall -y {_CUPY[13]} && {_install(machine, 12)}",
        )
    return Finding("CuPy", Status.OK, said)


def _nvml(machine: Machine, driver: DriverSeen | None) -> Finding:
    version = machine.installed("nvidia-ml-py")
    if version is None:
        return Finding(
            "clocks",
            Status.OPTIONAL,
            "nvidia-ml-py is not installed: rows have no clocks, temperature, throttling or energy",
            "pip install nvidia-ml-py",
        )
    if driver is not None and machine.driver_version() is None:
        return Finding(
            "clocks",
            Status.OPTIONAL,
            f"nvidia-ml-py {version}, but NVML does not answer: rows have no clocks and no energy",
            "see `nvidia-smi`; a container needs the driver's libnvidia-ml.so.1 (capability `utility`)",
        )
    return Finding("clocks", Status.OK, f"nvidia-ml-py {version}")


def _baselines(machine: Machine, driver: DriverSeen | None) -> Iterator[Finding]:
    """What `--baseline` compares with."""
    cuda = 12 if driver is not None and driver.cuda[0] < 13 else 13
    # The CuPy that is here comes first: another one beside it would be a conflict.
    cupy = next((name for name in _CUPY.values() if machine.installed(name)), _CUPY[cuda])
    checks = (
        (
            "cuBLAS",
            "cupy_backends.cuda.libs.cublas",
            f"pip install '{cupy}[ctk]>=14'",
        ),  # 13 has no such extra
        ("torch", "torch", "pip install torch"),
    )
    for subject, module, remedy in checks:
        error = machine.import_error(module)
        if error is None:
            yield Finding(subject, Status.OK, f"{module} imports")
        else:
            yield Finding(subject, Status.OPTIONAL, f"no baseline from it: {error}", remedy)


def _install(machine: Machine, major: int) -> str:
    """The line that installs what an extra needs; this package itself may come from a checkout."""
    wanted = machine.extra(f"cuda{major}") or (f"{DISTRIBUTION}[cuda{major}]",)
    return f"pip install {' '.join(map(shlex.quote, wanted))}"


def _reinstall(found: dict[str, str]) -> str:
    return "pip install --force-reinstall " + " ".join(
        f"{name}=={version}" for name, version in found.items()
    )


class ThisMachine:
    """The machine that runs this."""

    def driver(self) -> DriverSeen | None:
        return driver_seen()

    def driver_version(self) -> str | None:
        return open_clocks("").driver_version

    def clocks(self, pci_bus_id: str) -> ClockSample:
        return open_clocks(pci_bus_id).sample()

    def installed(self, distribution: str) -> str | None:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return None

    def import_error(self, module: str) -> str | None:
        script = (
            "import importlib, sys\n"
            "try:\n"
            "    importlib.import_module(sys.argv[1])\n"
            "except BaseException as error:\n"
            "    print(f'{type(error).__name__}: {error}'.splitlines()[0])\n"
            "    sys.exit(1)\n"
        )
        try:
            tried = subprocess.run(
                [sys.executable, "-c", script, module],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "importing it takes longer than 120 s"
        if tried.returncode == 0:
            return None
        return tried.stdout.strip() or f"importing it ends the process with {tried.returncode}"

    def ptxas(self) -> str:
        return Assembler().version

    def ptxas_of(self, distribution: str) -> str | None:
        located = ptxas_of(distribution)
        return None if located is None else str(located)

    def extra(self, name: str) -> tuple[str, ...]:
        try:
            required = metadata.requires(DISTRIBUTION) or []
        except metadata.PackageNotFoundError:
            return ()
        marked = (line.partition(";") for line in required)
        return tuple(
            what.strip() for what, _, marker in marked if re.search(rf"extra\s*==\s*['\"]{name}['\"]", marker)
        )
