"""What the tuner asks of a device: prove a candidate right on it, and time it there."""

from dataclasses import dataclass
from typing import Any, Protocol

from emitters.kernel import EmittedKernel, Kernel, ParameterValue, Problem
from emitters.target import Target
from results.trial import Measurement, Resources, Source, Verdict
from tuner.cost_model import Bound
from tuner.cubin import Binary


class DeviceError(Exception):
    """A device that cannot be had. The message says what is missing and how to get it."""


@dataclass(frozen=True)
class Candidate:
    """A schedule that has been emitted, assembled and proven by the gate. Picklable.

    Attributes:
        kernel: Id; the receiving process looks the entry up itself.
        schedule: Every parameter by name.
        emitted: Text and plan.
        binary: What ptxas made of it.
    """

    kernel: str
    schedule: dict[str, ParameterValue]
    emitted: EmittedKernel
    binary: Binary

    @property
    def resources(self) -> Resources:
        step = self.emitted.plan.kernel_steps[0]
        return Resources(
            registers=self.binary.registers,
            shared_bytes=self.binary.shared_bytes + step.shared_bytes,
            spill_bytes=self.binary.spill_bytes,
            threads=step.threads,
        )


class Device(Protocol):
    """One place where candidates are verified and timed.

    Attributes:
        name: As in a study's key: ``sim:rtx4090``.
        target: What to emit for.
        source: How its times are obtained.
        policy: Its timing policy by name.
        parallel: Whether `verify` and `measure` may run in several processes at once (they are pure), or need
            the one device to themselves.
    """

    @property
    def name(self) -> str: ...
    @property
    def target(self) -> Target: ...
    @property
    def source(self) -> Source: ...
    @property
    def policy(self) -> str: ...
    @property
    def parallel(self) -> bool: ...

    def verify(self, candidate: Candidate, problem: Problem, seed: int) -> Verdict:
        """Whether the candidate is right on the real problem. The gate has passed already."""
        ...

    def measure(self, candidate: Candidate, problem: Problem, best_us: float | None) -> Measurement:
        """Time of the whole plan. `best_us` lets a device stop early on a clearly slower candidate."""
        ...

    def bound(self, kernel: Kernel[Any], problem: Problem) -> Bound:
        """The physical bound of the problem on this device."""
        ...

    def close(self) -> None:
        """Release what is held; may be called twice."""
        ...
