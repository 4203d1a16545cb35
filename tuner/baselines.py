"""What a user would call instead of a tuned kernel, timed in the same worker under the same policy.

One that is not installed, that refuses the problem, or whose exact result is wrong is a row with a reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from emitters import kernel_named
from emitters.kernel import Expected, Kernel, Problem
from results.trial import Measurement
from tuner import library_calls as calls
from tuner.devices.errors import CandidateError, CandidateFaultError, StickyFaultError
from tuner.devices.jobs import DATA_SECONDS, LAUNCH_SECONDS, Bench, measurement, mismatched, timing_seconds
from tuner.devices.serving import Job
from tuner.devices.stopwatch import Stopwatch, TimingPolicy
from tuner.library_calls import InstalledLibraries, Libraries, LibraryMissingError, LibraryWork, Setting

R = TypeVar("R")
_SEED = 0  # as candidates are timed


@dataclass(frozen=True, slots=True)
class Baseline:
    """A row of the table.

    Attributes:
        name: As a summary prints it.
        build: Makes the work, in the worker.
    """

    name: str
    build: Callable[[Setting], LibraryWork]


_GEMM = (
    Baseline("torch._int_mm", calls.torch_int_mm),
    Baseline("cuBLAS s8", calls.cublas_s8),
    Baseline("cuBLAS f16", calls.cublas_f16),
)
_GEMV = (Baseline("cuBLAS f16", calls.cublas_f16),)

BASELINES: Mapping[str, tuple[Baseline, ...]] = {
    "ternary_gemm_s8": _GEMM,
    "gemm_s8": _GEMM,
    "hslm_dx_s8": _GEMM,
    "hslm_dw_s8": _GEMM,
    "affine_f32": (Baseline("CuPy elementwise", calls.cupy_affine),),
    "rmsnorm": (Baseline("torch rms_norm", calls.torch_rms_norm),),
    "wmma_gemv": _GEMV,
    "q4k_gemv": _GEMV,
    "q6k_soa_gemv": _GEMV,
    "q4k_soa_wmma": _GEMV,
    "sdpa_decode": (Baseline("torch attention", calls.torch_attention),),
}


@dataclass(frozen=True, slots=True)
class BaselineTime:
    """What became of a baseline.

    Attributes:
        name: Of the baseline.
        measurement: None where there is no time.
        reason: Why there is none; empty otherwise.
    """

    name: str
    measurement: Measurement | None
    reason: str = ""


class Timer(Protocol):
    """A device that runs jobs on a bench: those of `tuner.devices.cuda`."""

    @property
    def timing_policy(self) -> TimingPolicy: ...
    def run(self, job: Job[R]) -> R: ...


def time_baselines(
    device: Timer, kernel: str, problem: Problem, libraries: Libraries | None = None
) -> tuple[BaselineTime, ...]:
    """Time every baseline of a kernel, each in a worker job of its own.

    Args:
        device: Where.
        kernel: Id.
        problem: What the kernel is tuned for.
        libraries: Where libraries come from; those of this Python unless given.
    """
    times: list[BaselineTime] = []
    for baseline in BASELINES.get(kernel, ()):
        job = TimeBaseline(
            kernel, problem, baseline.name, device.timing_policy, libraries or InstalledLibraries()
        )
        try:
            times.append(device.run(job))
        except CandidateError as error:
            times.append(BaselineTime(baseline.name, None, str(error)))
    return tuple(times)


@dataclass(frozen=True)
class TimeBaseline:
    """The worker's job: build, run, compare where the result is exact, time."""

    kernel: str
    problem: Problem
    baseline: str
    policy: TimingPolicy
    libraries: Libraries

    def run(self, bench: Bench) -> BaselineTime:
        kernel = kernel_named(self.kernel)
        (baseline,) = (row for row in BASELINES[self.kernel] if row.name == self.baseline)
        bench.report("making the baseline's data", DATA_SECONDS)
        inputs = bench.inputs(kernel, self.problem, _SEED)
        try:
            built = baseline.build(Setting(bench, self.libraries, self.kernel, self.problem, inputs))
        except LibraryMissingError as error:
            return BaselineTime(self.baseline, None, str(error))
        try:
            measured = self._timed(bench, kernel, built)
        except StickyFaultError:
            raise
        except CandidateFaultError as fault:
            bench.driver.synchronize()  # raises if the library's error was one that loses the context
            built.close()
            return BaselineTime(self.baseline, None, str(fault))
        built.close()
        return measured

    def _timed(self, bench: Bench, kernel: Kernel[Any], built: LibraryWork) -> BaselineTime:
        bench.report("running the baseline", 6 * LAUNCH_SECONDS)  # a library loads its code at the first call
        built.work.call_on(0)()
        bench.driver.synchronize()
        bench.report("comparing the baseline", DATA_SECONDS)
        wrong = _wrong(bench.expected(kernel, self.problem, _SEED, kernel.baseline), built)
        if wrong:
            return BaselineTime(self.baseline, None, wrong)
        bench.report("timing the baseline", timing_seconds(self.policy))
        stopwatch = Stopwatch(bench.driver, bench.facts.l2_bytes, bench.clocks, self.policy)
        try:
            timing = stopwatch.measure(built.work, None)
        finally:
            stopwatch.close()
        return BaselineTime(
            self.baseline, measurement(bench, timing, self.policy, {"baseline": self.baseline})
        )


def _wrong(expected: Expected, built: LibraryWork) -> str:
    """Why this is not what the kernel computes; empty where it is."""
    ((name, values),) = expected.values.items()
    actual = built.output().reshape(values.shape)
    if built.tolerance == 0.0:
        count, first_bad = mismatched(expected, {name: actual})
        return f"{count} mismatches: {first_bad}" if count else ""
    wanted = values.astype(np.float64)
    allowed = built.tolerance * float(np.abs(wanted).max())
    worst = float(np.abs(actual - wanted).max())
    # A comparison that NaN fails as well.
    return "" if worst <= allowed else f"off by up to {worst:g}, more than {allowed:g}"
