"""`tune doctor` tells exactly what is missing, what does not fit together, and the line that mends it."""

import ctypes
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tuner.devices.clocks import ClockSample
from tuner.devices.presence import DriverSeen, GpuSeen, ask_driver
from tuner.doctor import Diagnosis, Finding, Status, ThisMachine, diagnose
from tuner.ptxas import NoPtxasError, find_ptxas

ROOT = Path(__file__).parents[1]

H200 = GpuSeen("NVIDIA H200", 9, 0, 143 << 30, "0000:3B:00.0")
ONE_GPU = DriverSeen(13000, (H200,))
IDLE = ClockSample(345.0, 2619.0, 41.0)


@dataclass(frozen=True)
class FakeMachine:
    """A machine by its answers; whole unless told otherwise."""

    seen: DriverSeen | None = ONE_GPU
    distributions: dict[str, str] = field(
        default_factory=lambda: {"cupy-cuda13x": "14.2.0", "nvidia-ml-py": "13.615.71"}
    )
    broken: dict[str, str] = field(default_factory=dict)
    ptxas_version: str | None = "13.0.88"
    version: str | None = "580.95.05"
    sample: ClockSample = IDLE

    def driver(self) -> DriverSeen | None:
        return self.seen

    def driver_version(self) -> str | None:
        return self.version

    def clocks(self, pci_bus_id: str) -> ClockSample:
        assert pci_bus_id == H200.pci_bus_id
        return self.sample

    def installed(self, distribution: str) -> str | None:
        return self.distributions.get(distribution)

    def import_error(self, module: str) -> str | None:
        return self.broken.get(module)

    def ptxas(self) -> str:
        if self.ptxas_version is None:
            raise NoPtxasError("no ptxas: neither on PATH nor in a wheel")
        return self.ptxas_version

    def ptxas_of(self, distribution: str) -> str | None:
        assert distribution == "nvidia-cuda-nvcc-cu12"
        return "/site/ptxas" if distribution in self.distributions else None

    def extra(self, name: str) -> tuple[str, ...]:
        return () if name == "cuda13" else ("cupy-cuda12x<15,>=13.4", "nvidia-cuda-nvcc-cu12<13,>=12.8")


OLDER = "pip install 'cupy-cuda12x<15,>=13.4' 'nvidia-cuda-nvcc-cu12<13,>=12.8'"
WHOLE = FakeMachine()


def about(diagnosis: Diagnosis, subject: str) -> Finding:
    (found,) = (finding for finding in diagnosis.findings if finding.subject == subject)
    return found


def test_a_whole_machine_is_ready() -> None:
    diagnosis = diagnose(WHOLE)
    assert diagnosis.cuda_ready
    assert {finding.status for finding in diagnosis.findings} == {Status.OK}
    assert about(diagnosis, "driver").said == "580.95.05, CUDA 13.0"
    assert about(diagnosis, "GPU 0").said == "NVIDIA H200, sm_90, 143 GiB, SM 345 MHz, 41 C"
    assert about(diagnosis, "ptxas").said == "13.0.88"
    assert about(diagnosis, "CuPy").said == "cupy-cuda13x 14.2.0"


@pytest.mark.parametrize(
    ("machine", "subject", "status", "said", "remedy"),
    [
        pytest.param(
            replace(WHOLE, seen=None),
            "driver",
            Status.MISSING,
            "no NVIDIA driver",
            "--device sim:rtx4090",
            id="no driver",
        ),
        pytest.param(
            replace(WHOLE, seen=DriverSeen(13000, (), "cuInit fails: unknown error")),
            "driver",
            Status.CONFLICT,
            "cuInit fails: unknown error",
            "nvidia-smi",
            id="driver broken",
        ),
        pytest.param(
            replace(WHOLE, seen=DriverSeen(11040, (H200,))),
            "driver",
            Status.CONFLICT,
            "CUDA 11.4 is too old",
            "525 or newer",
            id="driver too old",
        ),
        pytest.param(
            replace(WHOLE, seen=DriverSeen(13000, ())),
            "GPU",
            Status.MISSING,
            "the driver shows none",
            "CUDA_VISIBLE_DEVICES",
            id="no GPU",
        ),
        pytest.param(
            replace(WHOLE, seen=DriverSeen(13000, (replace(H200, major=7, minor=0),))),
            "GPU 0",
            Status.CONFLICT,
            "sm_70, 143 GiB, SM 345 MHz, 41 C: no known architecture fits",
            "known are sm_80",
            id="GPU too old",
        ),
        pytest.param(
            replace(WHOLE, sample=ClockSample(1200.0, None, 88.0, ("hw_thermal_slowdown",))),
            "GPU 0",
            Status.OK,
            "held down by hw_thermal_slowdown",
            "",
            id="throttled",
        ),
        pytest.param(
            replace(WHOLE, ptxas_version=None),
            "ptxas",
            Status.MISSING,
            "no ptxas",
            "pip install nvidia-cuda-nvcc",
            id="no ptxas",
        ),
        pytest.param(
            replace(WHOLE, seen=DriverSeen(12080, (H200,)), distributions={"cupy-cuda12x": "13.6.0"}),
            "ptxas",
            Status.CONFLICT,
            "13.0.88 makes cubins that a driver of CUDA 12 does not load",
            f"{OLDER}, and `tune doctor` again for the --ptxas to name; or install a driver of 580 or newer",
            id="ptxas newer than driver",
        ),
        pytest.param(
            replace(
                WHOLE,
                seen=DriverSeen(12080, (H200,)),
                distributions={"cupy-cuda12x": "13.6.0", "nvidia-cuda-nvcc-cu12": "12.9.86"},
            ),
            "ptxas",
            Status.CONFLICT,
            "13.0.88 makes cubins that a driver of CUDA 12 does not load",
            "name the older one that is here: --ptxas /site/ptxas; or install a driver of 580 or newer",
            id="ptxas newer than driver, an older one beside it",
        ),
        pytest.param(
            replace(
                WHOLE, ptxas_version=None, distributions={**WHOLE.distributions, "nvidia-cuda-nvcc": "13.0"}
            ),
            "ptxas",
            Status.MISSING,
            "no ptxas",
            "pip install --force-reinstall nvidia-cuda-nvcc, or name one with --ptxas",
            id="ptxas broken",
        ),
        pytest.param(
            replace(WHOLE, distributions={}),
            "CuPy",
            Status.MISSING,
            "not installed",
            "pip install 'ptx-tuner[cuda13]'",
            id="no CuPy",
        ),
        pytest.param(
            replace(WHOLE, distributions={}, seen=DriverSeen(12080, (H200,))),
            "CuPy",
            Status.MISSING,
            "not installed",
            OLDER,
            id="no CuPy, older driver",
        ),
        pytest.param(
            replace(WHOLE, seen=DriverSeen(12080, (H200,)), ptxas_version="12.9.86"),
            "CuPy",
            Status.CONFLICT,
            "cupy-cuda13x 14.2.0 needs a driver of 580 or newer, this one is of CUDA 12",
            f"pip uninstall -y cupy-cuda13x && {OLDER}",
            id="CuPy newer than driver",
        ),
        pytest.param(
            replace(WHOLE, distributions={"cupy-cuda13x": "14.2.0", "cupy-cuda12x": "13.6.0"}),
            "CuPy",
            Status.CONFLICT,
            "two at once overwrite each other",
            "pip uninstall -y cupy-cuda13x cupy-cuda12x && pip install 'ptx-tuner[cuda13]'",
            id="two CuPys",
        ),
        pytest.param(
            replace(WHOLE, broken={"cupy.cuda": "ImportError: libnvrtc.so.13"}),
            "CuPy",
            Status.CONFLICT,
            "does not import: ImportError: libnvrtc.so.13",
            "pip install --force-reinstall cupy-cuda13x==14.2.0",
            id="CuPy broken",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_remedy(
    machine: FakeMachine, subject: str, status: Status, said: str, remedy: str
) -> None:
    diagnosis = diagnose(machine)
    finding = about(diagnosis, subject)
    assert finding.status is status
    assert said in finding.said
    assert remedy in finding.remedy
    assert diagnosis.cuda_ready is (status is Status.OK)


def test_one_fitting_gpu_is_enough() -> None:
    old = replace(H200, name="Tesla V100", major=7)
    diagnosis = diagnose(replace(WHOLE, seen=DriverSeen(13000, (old, H200))))
    assert about(diagnosis, "GPU 0").status is Status.CONFLICT
    assert about(diagnosis, "GPU 1").status is Status.OK
    assert diagnosis.cuda_ready


@pytest.mark.parametrize(
    ("machine", "subject", "remedy"),
    [
        (replace(WHOLE, distributions={"cupy-cuda13x": "14.2.0"}), "clocks", "pip install nvidia-ml-py"),
        (replace(WHOLE, broken={"torch": "ModuleNotFoundError"}), "torch", "pip install torch"),
        (
            replace(WHOLE, broken={"cupy_backends.cuda.libs.cublas": "libcublas.so.13"}),
            "cuBLAS",
            "pip install 'cupy-cuda13x[ctk]>=14'",
        ),
        (
            replace(WHOLE, version=None),
            "clocks",
            "see `nvidia-smi`; a container needs the driver's libnvidia-ml.so.1 (capability `utility`)",
        ),
        (
            replace(
                WHOLE,
                distributions={"cupy-cuda12x": "14.2.0"},
                broken={"cupy_backends.cuda.libs.cublas": "libcublas.so.12"},
            ),
            "cuBLAS",
            "pip install 'cupy-cuda12x[ctk]>=14'",  # beside a newer driver too: two CuPys do not go together
        ),
    ],
)
def test_what_is_optional_does_not_stop_the_device(machine: FakeMachine, subject: str, remedy: str) -> None:
    diagnosis = diagnose(machine)
    assert about(diagnosis, subject).status is Status.OPTIONAL
    assert about(diagnosis, subject).remedy == remedy
    assert diagnosis.cuda_ready


def test_this_machine_can_be_asked() -> None:
    """Whatever it has: every subject is there once, and readiness follows from them."""
    diagnosis = diagnose()
    subjects = [finding.subject for finding in diagnosis.findings]
    assert len(set(subjects)) == len(subjects)
    assert {"tune", "driver", "ptxas", "CuPy", "clocks", "cuBLAS", "torch"} <= set(subjects)
    assert about(diagnosis, "ptxas").status is Status.OK
    as_json = diagnosis.to_json()
    assert as_json["cuda_ready"] is diagnosis.cuda_ready
    assert as_json["findings"][0]["subject"] == "tune"


def test_install_lines_are_what_this_package_declares() -> None:
    """From pyproject.toml, by way of the installed metadata."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in ("cuda12", "cuda13"):
        found = {Requirement(line) for line in ThisMachine().extra(name)}
        assert found == {Requirement(line) for line in extras[name]}
    assert ThisMachine().extra("cuda11") == ()
    assert ThisMachine().ptxas_of("nvidia-cuda-nvcc") == str(find_ptxas())
    assert ThisMachine().ptxas_of("no-such-distribution") is None


def test_an_import_that_ends_its_process_is_reported(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fatal_module.py").write_text("import os; os.abort()")
    (tmp_path / "missing_library.py").write_text("raise OSError('libcuda.so.1: cannot open')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    machine = ThisMachine()
    assert machine.import_error("fatal_module") == "importing it ends the process with -6"
    assert machine.import_error("missing_library") == "OSError: libcuda.so.1: cannot open"
    assert machine.import_error("json") is None


class FakeLibrary:
    """libcuda's calls, as far as they are asked: one H200, or a status from cuInit."""

    def __init__(self, status: int = 0) -> None:
        self.status = status

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = 12080
        return 0

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self.status

    def cuGetErrorString(self, status: int, text: Any) -> int:  # noqa: N802
        text._obj.value = b"no CUDA-capable device is detected"
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 1
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, length: int, device: Any) -> int:  # noqa: N802
        name.value = b"NVIDIA H200"
        return 0

    def cuDeviceGetPCIBusId(self, bus: Any, length: int, device: Any) -> int:  # noqa: N802
        bus.value = b"0000:3B:00.0"
        return 0

    def cuDeviceTotalMem_v2(self, nbytes: Any, device: Any) -> int:  # noqa: N802
        assert isinstance(nbytes._obj, ctypes.c_size_t)
        nbytes._obj.value = 143 << 30
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        value._obj.value = {75: 9, 76: 0}[attribute]
        return 0


def test_the_drivers_own_library_is_asked() -> None:
    assert ask_driver(FakeLibrary()) == DriverSeen(12080, (H200,))
    assert ask_driver(FakeLibrary(100)).error == "cuInit fails: no CUDA-capable device is detected"
