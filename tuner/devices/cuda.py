"""A real GPU: candidates are verified and timed on it, in a worker process of its own.

``cuda`` and ``cuda:N`` are one GPU, ``cuda:all`` is every GPU of the machine on one study.
"""

from collections.abc import Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, TypeVar

from emitters import kernel_named
from emitters.kernel import Kernel, Problem
from emitters.target import ARCHS, Arch, Target
from results.trial import Measurement, Source, Verdict
from tuner.cost_model import Bound, bound
from tuner.devices.device import Candidate, DeviceError
from tuner.devices.errors import CandidateFaultError
from tuner.devices.gpu_figures import gpu_of
from tuner.devices.jobs import (
    LAUNCH_SECONDS,
    AskFacts,
    Compare,
    Finalists,
    Measure,
    OpenCuda,
    Opened,
    Verify,
)
from tuner.devices.serving import Job, Opener
from tuner.devices.stopwatch import TimingPolicy
from tuner.devices.timing import rounds_needed
from tuner.devices.worker import Worker, WorkerLimits

R = TypeVar("R")

ROUNDS = 160


def open_cuda(index: str = "") -> "CudaDevice | CudaDevices":
    """The device of ``cuda``, ``cuda:N``, ``cuda:all`` or ``cuda:NAME``, from what follows the colon.

    By its name a device of a study is found again, whichever number it has.

    Raises:
        DeviceError: There is none; the message says what is missing.
    """
    if index == "all":
        return CudaDevices.open()
    return CudaDevice(OpenCuda(int(index or 0) if not index or index.isdecimal() else index))


class CudaDevice:
    """One GPU.

    Args:
        opener: Opens the GPU in the worker.
        policy: How to time.
        limits: Of the worker.
        launch_s: What a candidate's first run may take; one that takes longer hangs.

    Raises:
        DeviceError: The GPU cannot be opened, or no architecture here fits it.
    """

    parallel = False
    lanes = 1
    source = Source.CUDA_EVENTS

    def __init__(
        self,
        opener: Opener,
        policy: TimingPolicy | None = None,
        limits: WorkerLimits | None = None,
        launch_s: float = LAUNCH_SECONDS,
    ) -> None:
        self._launch_s = launch_s
        self._worker = Worker(opener, limits)
        self._policy = policy or TimingPolicy()
        try:
            self.opened: Opened = self._worker.run(AskFacts())
            facts = self.opened.facts
            arch = arch_of(facts.major, facts.minor, facts.name)
            self._gpu = gpu_of(self.opened, arch)
            self.target = Target(arch, self._gpu)
        except BaseException:
            self._worker.close()
            raise

    @property
    def name(self) -> str:
        """``cuda:NVIDIA H200``: by model, since times on one do not depend on its number."""
        return f"cuda:{self.opened.facts.name}"

    @property
    def policy(self) -> str:
        return self._policy.name

    @property
    def worker(self) -> Worker:
        return self._worker

    def verify(self, candidate: Candidate, problem: Problem, seed: int) -> Verdict:
        """Every element compared on the real problem; a fault of the device is a verdict too.

        Raises:
            CandidateTimeoutError, CandidateCrashError: There is no verdict.
        """
        try:
            return self._worker.run(Verify(candidate, problem, seed, self._launch_s))
        except CandidateFaultError as fault:
            return Verdict(0, (str(problem),), fault=fault.kind, fault_message=str(fault), where="device")

    def measure(self, candidate: Candidate, problem: Problem, best_us: float | None) -> Measurement:
        """Time of the whole plan.

        Raises:
            CandidateError: It did not come to a time.
        """
        measured = self._worker.run(Measure(candidate, problem, best_us, self._policy, self._launch_s))
        return replace(measured, bound_us=self.bound(kernel_named(candidate.kernel), problem).time_us)

    def compare(
        self, candidates: Sequence[Candidate], problem: Problem, seed: int, rounds: int = ROUNDS
    ) -> Finalists:
        """Time finalists again, interleaved, and say which is fastest or which are tied.

        Raises:
            CandidateError: One of them failed; who has passed `verify` and `measure` does not.
            ValueError: Too few rounds to tell that many apart.
        """
        needed = rounds_needed(len(candidates))
        if rounds < needed:
            raise ValueError(
                f"rounds must be at least {needed} to tell {len(candidates)} apart, got {rounds}"
            )
        return self._worker.run(Compare(tuple(candidates), problem, rounds, seed, self._policy))

    def bound(self, kernel: Kernel[Any], problem: Problem) -> Bound:
        """The physical bound at the GPU's maximum clock: what is read comes from DRAM."""
        return bound(kernel.demand(problem), self._gpu, cold=True)

    def run(self, job: Job[R]) -> R:
        """Run another job on this GPU's bench (a baseline, say)."""
        return self._worker.run(job)

    @property
    def timing_policy(self) -> TimingPolicy:
        return self._policy

    def close(self) -> None:
        self._worker.close()


class CudaDevices:
    """Several GPUs of one model as one device. Up to `lanes` threads may verify and measure at once.

    Args:
        devices: One a GPU, at least one.

    Raises:
        DeviceError: They are of different models, whose times cannot be compared.
    """

    parallel = False
    source = Source.CUDA_EVENTS

    def __init__(self, devices: Sequence[CudaDevice]) -> None:
        names = sorted({device.name for device in devices})
        if len(names) != 1:
            raise DeviceError(
                f"cuda:all needs GPUs of one model, found {', '.join(names) or 'none'}; "
                "choose one with cuda:N"
            )
        self._devices = tuple(devices)
        self._free: SimpleQueue[CudaDevice] = SimpleQueue()
        for device in devices:
            self._free.put(device)

    @classmethod
    def open(cls) -> "CudaDevices":
        """Every GPU of this machine.

        Raises:
            DeviceError: There is none, or they differ.
        """
        devices: list[CudaDevice] = []
        try:
            devices.append(CudaDevice(OpenCuda(0)))
            count = devices[0].opened.count
            devices.extend(CudaDevice(OpenCuda(index)) for index in range(1, count))
            return cls(devices)
        except BaseException:
            for device in devices:
                device.close()
            raise

    @property
    def lanes(self) -> int:
        return len(self._devices)

    @property
    def name(self) -> str:
        return self._devices[0].name

    @property
    def target(self) -> Target:
        return self._devices[0].target

    @property
    def policy(self) -> str:
        return self._devices[0].policy

    @property
    def opened(self) -> Opened:
        """Facts of the first."""
        return self._devices[0].opened

    @property
    def devices(self) -> tuple[CudaDevice, ...]:
        return self._devices

    def verify(self, candidate: Candidate, problem: Problem, seed: int) -> Verdict:
        """As `CudaDevice.verify`, on whichever GPU is free; waits for one."""
        device = self._free.get()
        try:
            return device.verify(candidate, problem, seed)
        finally:
            self._free.put(device)

    def measure(self, candidate: Candidate, problem: Problem, best_us: float | None) -> Measurement:
        """As `CudaDevice.measure`, on whichever GPU is free; waits for one."""
        device = self._free.get()
        try:
            return device.measure(candidate, problem, best_us)
        finally:
            self._free.put(device)

    def compare(
        self, candidates: Sequence[Candidate], problem: Problem, seed: int, rounds: int = ROUNDS
    ) -> Finalists:
        """As `CudaDevice.compare`, all on one GPU: times of two boards are not a pair."""
        device = self._free.get()
        try:
            return device.compare(candidates, problem, seed, rounds)
        finally:
            self._free.put(device)

    def run(self, job: Job[R]) -> R:
        """As `CudaDevice.run`."""
        device = self._free.get()
        try:
            return device.run(job)
        finally:
            self._free.put(device)

    @property
    def timing_policy(self) -> TimingPolicy:
        return self._devices[0].timing_policy

    def bound(self, kernel: Kernel[Any], problem: Problem) -> Bound:
        return self._devices[0].bound(kernel, problem)

    def close(self) -> None:
        for device in self._devices:
            device.close()


def arch_of(major: int, minor: int, gpu: str) -> Arch:
    """The architecture to emit for: the newest known of the same major number that the GPU can run.

    Raises:
        DeviceError: None fits.
    """
    number = 10 * major + minor
    fitting = [arch for arch in ARCHS.values() if arch.number // 10 == major and arch.number <= number]
    if not fitting:
        known = ", ".join(ARCHS)
        raise DeviceError(f"{gpu} is sm_{number}, which no known architecture fits; known are {known}")
    return max(fitting, key=lambda arch: arch.number)
