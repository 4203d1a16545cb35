"""A device for tests that is a sibling of the real ones: it times by a formula and misbehaves on request."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from emitters.kernel import Kernel, ParameterValue, Problem
from emitters.target import Target
from results.trial import Measurement, Source, Verdict
from tuner.cost_model import Bound
from tuner.devices.device import Candidate

Schedule = Mapping[str, ParameterValue]


def time_of(schedule: Schedule) -> float:
    """Microseconds; the best toy schedule has 256 threads, 4 elements each, no padding."""
    threads, per_thread = int(schedule["threads"]), int(schedule["per_thread"])
    return 100 + abs(threads - 256) / 8 + 5 * abs(per_thread - 4) + int(schedule["padding"])


@dataclass
class FakeDevice:
    """Has one candidate at a time, as a GPU does.

    Attributes:
        act: Called before each measurement with the schedule; may raise or wait.
        touched: Schedules that were verified, in order.
    """

    act: Callable[[Schedule], None] = lambda schedule: None
    verdict_of: Callable[[Schedule, Problem], Verdict] | None = None
    name: str = "fake"
    target: Target = field(default_factory=lambda: Target.of("sm_89"))
    source: Source = Source.CUDA_EVENTS
    policy: str = "fake"
    parallel: bool = False
    bound_us: float = 50.0
    touched: list[dict[str, ParameterValue]] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)

    def verify(self, candidate: Candidate, problem: Problem, seed: int) -> Verdict:
        self.touched.append(dict(candidate.schedule))
        if self.verdict_of is not None:
            return self.verdict_of(candidate.schedule, problem)
        return Verdict(0, (str(problem),), where="device")

    def measure(self, candidate: Candidate, problem: Problem, best_us: float | None) -> Measurement:
        self.act(candidate.schedule)
        value = time_of(candidate.schedule)
        return Measurement(value, self.source, (value, value), self.policy)

    def bound(self, kernel: Kernel[Any], problem: Problem) -> Bound:
        return Bound(self.bound_us, self.bound_us * 1e6, "operations")

    def close(self) -> None:
        self.closed.set()

    def hang(self, schedule: Schedule) -> None:
        """Wait until the device is closed, as a hung GPU would."""
        self.closed.wait(60)
        time.sleep(0.01)
