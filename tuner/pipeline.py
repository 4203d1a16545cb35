"""The way of one candidate: emit, assemble, gate, verify, measure.

The one place where exceptions become outcomes. A failure keeps the message of what went wrong. What is wrong
with the machine rather than with the candidate (no ptxas, a full disk, a device that is gone) is no outcome:
`HaltedError` ends the run.
"""

import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from emitters import kernel_named
from emitters.kernel import (
    DataError,
    EmitError,
    EmittedKernel,
    ParameterValue,
    Problem,
    ProblemError,
    RealData,
)
from emitters.target import Target
from results.trial import Measurement, Outcome, Verdict
from tuner.devices import device_named
from tuner.devices.device import Candidate, Device, DeviceError
from tuner.devices.errors import CandidateError, CandidateFaultError
from tuner.gate import prove, prove_on, prove_on_data
from tuner.ptxas import AssembleError, Assembler, AssemblerError


class HaltedError(Exception):
    """The machine cannot go on with any candidate. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a candidate went no further."""

    outcome: Outcome
    message: str


@dataclass(frozen=True)
class BuildJob:
    """Emit and assemble one schedule.

    Attributes:
        kernel: Id.
        schedule: Every parameter by name.
        target: What to emit for.
        sizes: Of the problem that the schedule has to serve, in the kernel's order; None for any.
        assembler: Assembles it.
    """

    kernel: str
    schedule: dict[str, ParameterValue]
    target: Target
    sizes: tuple[int, ...] | None
    assembler: Assembler


@dataclass(frozen=True)
class Built:
    """What came of a `BuildJob`: a candidate or a failure, and seconds by part."""

    candidate: Candidate | None = None
    failure: Failure | None = None
    source_hash: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ProveJob:
    """Run the gate for a candidate and, where `device` is given, verify and measure it there.

    Attributes:
        candidate: As built.
        sizes: Of the problem, in the kernel's order.
        seed: Of the data.
        device: Name of a device that needs nothing to itself; None stops after the gate.
        data: Of the problem on that device, where it is real.
    """

    candidate: Candidate
    sizes: tuple[int, ...]
    seed: int
    device: str | None
    data: RealData | None = None


@dataclass(frozen=True)
class Proven:
    """What came of a `ProveJob` or of `time_on`."""

    verdict: Verdict | None = None
    measurement: Measurement | None = None
    failure: Failure | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class WholeJob:
    """Simulate every block of a problem: slower than the gate, and the most that can be had without a GPU.

    Attributes:
        candidate: As built.
        sizes: Of the problem, in the kernel's order.
        seed: Of the data.
        blocks: How many blocks to simulate, edges among them; None for all.
        data: Of the problem, where it is real.
    """

    candidate: Candidate
    sizes: tuple[int, ...]
    seed: int
    blocks: int | None = None
    data: RealData | None = None


Job = BuildJob | ProveJob | WholeJob


@dataclass(frozen=True, slots=True)
class Halted:
    """A `HaltedError` on its way between processes."""

    message: str


def perform(job: Job) -> Built | Proven | Halted:
    """Do a job; what a worker process runs. Raises nothing."""
    try:
        match job:
            case BuildJob():
                return build(job)
            case ProveJob():
                return gate(job)
            case WholeJob():
                return whole(job)
    except HaltedError as error:
        return Halted(str(error))


def build(job: BuildJob) -> Built:
    """Emit and assemble one schedule.

    Raises:
        HaltedError: Nothing can be assembled on this machine.
    """
    seconds: dict[str, float] = {}
    source_hash = None
    try:
        kernel = kernel_named(job.kernel)
        with _timed(seconds, "emit"):
            emitted = kernel.emit(kernel.schedule(job.schedule), job.target)
        source_hash = emitted.source_hash
        if job.sizes is not None:
            check_serves(emitted, kernel.spec.problem(*job.sizes))
        with _timed(seconds, "assemble"):
            binary = job.assembler.assemble(emitted.ptx, emitted.arch)
        candidate = Candidate(kernel.id, dict(job.schedule), emitted, binary)
        return Built(candidate, None, source_hash, seconds)
    except (EmitError, ProblemError) as error:
        failure = Failure(Outcome.EMIT, str(error))
    except AssembleError as error:
        failure = Failure(Outcome.ASSEMBLE, str(error))
    except AssemblerError as error:
        raise HaltedError(str(error)) from error
    except Exception as error:
        failure = _crash(error)
    return Built(None, failure, source_hash, seconds)


def check_serves(emitted: EmittedKernel, problem: Problem) -> None:
    """Refuse a problem that this schedule cannot serve.

    Raises:
        ProblemError: The rule, and the problem.
    """
    if not emitted.plan.is_valid(problem.sizes):
        raise ProblemError(f"this schedule serves problems with {emitted.plan.valid}, got {problem}")


def gate(job: ProveJob) -> Proven:
    """Simulate a candidate on its edge problems and on real data; on a device of many hands, also time it.

    Raises:
        HaltedError: The device or the problem's data are gone.
    """
    seconds: dict[str, float] = {}
    try:
        with _timed(seconds, "gate"):
            verdict = prove(job.candidate, job.seed)
            if verdict.is_right and job.data is not None:
                problem = kernel_named(job.candidate.kernel).spec.problem(*job.sizes)
                real = prove_on_data(job.candidate, problem, job.data, job.seed)
                verdict = replace(real, problems=(*verdict.problems, *real.problems))
    except DataError as error:
        raise HaltedError(str(error)) from error
    except Exception as error:
        return Proven(None, None, _crash(error), seconds)
    failure = judge(verdict)
    if failure is not None or job.device is None:
        return Proven(verdict, None, failure, seconds)
    problem = kernel_named(job.candidate.kernel).spec.problem(*job.sizes)
    device, problem = _device(job.device), replace(problem, data=job.data)
    timed = time_on(device, job.candidate, problem, job.seed, None)
    there = timed.verdict
    if there is not None and (there.where != verdict.where or not there.is_right):
        verdict = there  # what a device has seen counts for more than what the simulator has
    return Proven(verdict, timed.measurement, timed.failure, {**seconds, **timed.seconds})


def whole(job: WholeJob) -> Proven:
    """Simulate a candidate on one problem.

    Raises:
        HaltedError: The problem's data are gone.
    """
    seconds: dict[str, float] = {}
    try:
        problem = kernel_named(job.candidate.kernel).spec.problem(*job.sizes)
        with _timed(seconds, "simulate"):
            verdict = prove_on(job.candidate, (replace(problem, data=job.data),), job.seed, job.blocks)
        return Proven(verdict, None, judge(verdict), seconds)
    except DataError as error:
        raise HaltedError(str(error)) from error
    except Exception as error:
        return Proven(None, None, _crash(error), seconds)


def time_on(
    device: Device, candidate: Candidate, problem: Problem, seed: int, best_us: float | None
) -> Proven:
    """Verify a candidate on a device, then time it.

    Raises:
        HaltedError: The device is gone.
    """
    verified = verify_on(device, candidate, problem, seed)
    if verified.failure is not None:
        return verified
    verdict, seconds = verified.verdict, dict(verified.seconds)
    try:
        with _timed(seconds, "measure"):
            measurement = device.measure(candidate, problem, best_us)
        bound_us = device.bound(kernel_named(candidate.kernel), problem).time_us
        return Proven(verdict, measurement, _below(measurement, bound_us), seconds)
    except Exception as error:
        return _on_device(error, problem, verdict, seconds)


def verify_on(device: Device, candidate: Candidate, problem: Problem, seed: int) -> Proven:
    """Verify a candidate on a device.

    Raises:
        HaltedError: The device is gone.
    """
    seconds: dict[str, float] = {}
    try:
        with _timed(seconds, "verify"):
            verdict = device.verify(candidate, problem, seed)
        return Proven(verdict, None, judge(verdict), seconds)
    except Exception as error:
        return _on_device(error, problem, None, seconds)


def judge(verdict: Verdict) -> Failure | None:
    """The failure that a verdict amounts to; None for a candidate that is right."""
    if verdict.fault is not None:
        return Failure(Outcome.FAULT, f"{verdict.fault}: {verdict.fault_message}")
    if verdict.mismatches:
        return Failure(Outcome.WRONG, f"{verdict.mismatches} mismatches: {verdict.first_bad}")
    if not verdict.is_right:
        return Failure(Outcome.WRONG, "a candidate must be right on at least one problem, got none")
    return None


def _on_device(
    error: Exception, problem: Problem, verdict: Verdict | None, seconds: Mapping[str, float]
) -> Proven:
    """What an exception on a device amounts to."""
    if isinstance(error, DeviceError | DataError):
        raise HaltedError(str(error)) from error
    if isinstance(error, CandidateFaultError):
        fault = Verdict(0, (str(problem),), "", error.kind, str(error), "device")
        return Proven(fault, None, Failure(error.outcome, str(error)), seconds)
    if isinstance(error, CandidateError):
        return Proven(verdict, None, Failure(error.outcome, str(error)), seconds)
    return Proven(verdict, None, _crash(error), seconds)


def _below(measurement: Measurement, bound_us: float) -> Failure | None:
    bound_us = max(bound_us, measurement.bound_us or 0.0)
    if measurement.time_us >= bound_us:
        return None
    return Failure(
        Outcome.REFUSED,
        f"a time must not lie below the physical bound, {bound_us:.3f} us, got {measurement.time_us:.3f} us",
    )


def _crash(error: Exception) -> Failure:
    """An exception that nothing here expects: what, and where."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno} in {place.name}"
    return Failure(Outcome.CRASH, f"{type(error).__name__}: {error} (at {where})")


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[part] = time.perf_counter() - started


@lru_cache(maxsize=4)
def _device(name: str) -> Device:
    """One device of that name a process."""
    return device_named(name)
