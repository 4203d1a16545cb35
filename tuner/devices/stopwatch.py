"""Times work on the device with events: cold and warm L2, many calls between two events, as often as needed.

A *group* is some calls of the work between two events, in one CUDA graph, so that launch overhead and the
events' resolution (half a microsecond) are spread. Cold: each call of a group has buffers of its own, and all
of L2 is overwritten before the group. Warm: every call has the same buffers, used just before.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tuner.devices.clocks import Clocks, ClockSample, ClockSummary
from tuner.devices.driver import Driver
from tuner.devices.errors import CandidateFaultError, StickyFaultError
from tuner.devices.timing import Decision, StoppingRule, precision_of

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class TimingPolicy:
    """How a time is obtained. The name is part of a study's key: times of two policies are not compared.

    Attributes:
        name: Of the policy; a change of any figure below that changes times wants another.
        rule: When to stop repeating.
        budget_s: Most wall time for the cold repeats of one candidate.
        warm_s: The same for the warm ones.
        warmup_ms: Work queued before the first repeat, so that clocks have risen.
        group_us: Work between two events, at least, unless `most_calls` or `most_set_bytes` end it.
        most_calls: Calls in a group.
        most_set_bytes: Memory for the buffers of a group, at most; and all groups that are timed together
            take at most half of what is free.
        flush_factor: Size of what is overwritten before a cold group, in sizes of L2. More than 1 because
            replacement is not strictly by age; its duration also hides the queueing of the group.
        energy_s: Least time over which energy is counted; 0 for no energy.
    """

    name: str = "cold-l2"
    rule: StoppingRule = field(default_factory=StoppingRule)
    budget_s: float = 2.0
    warm_s: float = 0.5
    warmup_ms: float = 20.0
    group_us: float = 400.0
    most_calls: int = 64
    most_set_bytes: int = 1024 * MIB
    flush_factor: float = 4.0
    energy_s: float = 0.2


@dataclass(frozen=True, slots=True)
class Work:
    """What is timed.

    Attributes:
        bytes_per_set: Memory of one set of buffers.
        call_on: Gives a call that queues the work on buffers of its own, for set 0, 1, ...; made when first
            asked for, so no more sets exist than are used.
        as_graph: Whether to try to capture it in a graph; where that fails, and without, it is queued call by
            call, and the timing says so.
    """

    bytes_per_set: int
    call_on: Callable[[int], Callable[[], None]]
    as_graph: bool = True


@dataclass(frozen=True, slots=True)
class Timing:
    """What was measured, microseconds a call.

    Attributes:
        cold_us: One a repeat, in order.
        warm_us: The same with a warm L2.
        decision: Why the cold repeats ended.
        precision: How far the true cold median may lie from the measured one, as a part of it (infinity for
            too few repeats).
        calls: Calls in a group.
        launch: ``graph`` or ``direct``.
        energy_j: Of one call, the whole board, warm L2, work back to back; None where NVML counts none.
        clocks: While the repeats ran.
    """

    cold_us: tuple[float, ...]
    warm_us: tuple[float, ...]
    decision: Decision
    precision: float
    calls: int
    launch: str
    energy_j: float | None
    clocks: ClockSummary

    @property
    def median_us(self) -> float:
        return median(self.cold_us)


class Stopwatch:
    """Times work on one device. Holds the memory that is overwritten to flush L2.

    Args:
        driver: The device.
        l2_bytes: Its L2.
        clocks: NVML's view of it.
        policy: How to time.
    """

    def __init__(self, driver: Driver, l2_bytes: int, clocks: Clocks, policy: TimingPolicy) -> None:
        self._driver = driver
        self._clocks = clocks
        self._policy = policy
        self._flush_bytes = math.ceil(policy.flush_factor * l2_bytes)
        self._flush_at = driver.allocate(self._flush_bytes)
        self._free_bytes = driver.free_bytes()
        self._events: list[tuple[int, int]] = []

    def close(self) -> None:
        for pair in self._events:
            for event in pair:
                self._driver.free_event(event)
        self._events.clear()
        self._driver.free(self._flush_at)

    def measure(self, work: Work, best_us: float | None) -> Timing:
        """Time the work.

        Args:
            work: What to time; it has run before, so that the code is loaded.
            best_us: The time to beat: work that is clearly slower is stopped early.
        """
        policy, rule = self._policy, self._policy.rule
        calls = self._calls_for(work)
        samples: list[ClockSample] = []
        cold = _Group(self._driver, [work.call_on(i) for i in range(calls)], work.as_graph)
        try:
            self._warm_up(cold)
            cold_us: list[float] = []
            decision = Decision.CONTINUE
            ends_at = time.monotonic() + policy.budget_s
            for look in rule.looks:
                while len(cold_us) < look and decision is Decision.CONTINUE:
                    count = min(_chunk(cold_us, calls), look - len(cold_us))
                    cold_us += self._repeats(cold, count, self._flush, samples)
                    if time.monotonic() > ends_at:
                        decision = Decision.EXHAUSTED
                if decision is Decision.CONTINUE:
                    decision = rule.decide(cold_us, best_us)
                if decision is not Decision.CONTINUE:
                    break
        finally:
            cold.close()
        warm = _Group(self._driver, [work.call_on(0)] * calls, work.as_graph)
        try:
            warm_us = () if decision is Decision.SLOWER else self._warm(warm, samples)
            energy_j = self._energy(warm, median(warm_us)) if warm_us else None
        finally:
            warm.close()
        return Timing(
            cold_us=tuple(cold_us),
            warm_us=warm_us,
            decision=decision,
            precision=precision_of(cold_us, rule.confidence),
            calls=calls,
            launch=cold.launch,
            energy_j=energy_j,
            clocks=ClockSummary.of(samples),
        )

    def interleaved(
        self, works: Sequence[Work], rounds: int, order: Callable[[], Sequence[int]]
    ) -> tuple[list[list[float]], ClockSummary]:
        """Cold times of several works in rounds, each timed once a round.

        Args:
            works: What to time.
            rounds: How often.
            order: The order within the next round, a permutation of the works' indices.

        Returns:
            For every round the microseconds a call of each work, and the clocks.
        """
        samples: list[ClockSample] = []
        groups: list[_Group] = []
        try:
            for work in works:
                calls = self._calls_for(work, len(works))
                groups.append(_Group(self._driver, [work.call_on(i) for i in range(calls)], work.as_graph))
            for group in groups:
                self._warm_up(group)
            times = [[0.0] * len(works) for _ in range(rounds)]
            for row in times:
                for index in order():
                    row[index] = self._repeats(groups[index], 1, self._flush, samples)[0]
        finally:
            for group in groups:
                group.close()
        return times, ClockSummary.of(samples)

    def _calls_for(self, work: Work, works: int = 1) -> int:
        """Calls in a group, from a first rough time; `works` share the memory."""
        policy = self._policy
        call = work.call_on(0)
        rough = _Group(self._driver, [call] * 3, as_graph=False)
        call()
        rough_us = min(self._repeats(rough, 2, call, []))
        wanted = math.ceil(policy.group_us / max(rough_us, 0.1))
        room = min(policy.most_set_bytes, self._free_bytes // (2 * works))
        fitting = room // max(1, work.bytes_per_set)
        return max(1, min(wanted, policy.most_calls, fitting))

    def _warm_up(self, group: "_Group") -> None:
        driver, (start, end) = self._driver, self._event_pairs(1)[0]
        spent_ms = 0.0
        while spent_ms < self._policy.warmup_ms:
            driver.record(start)
            group.queue()
            driver.record(end)
            driver.synchronize()
            spent_ms += max(driver.elapsed_us(start, end) / 1e3, 0.01)

    def _repeats(
        self, group: "_Group", count: int, before: Callable[[], None], samples: list[ClockSample]
    ) -> list[float]:
        """Microseconds a call of `count` groups; `before` is queued ahead of each, outside the events."""
        driver = self._driver
        pairs = self._event_pairs(count)
        for start, end in pairs:
            before()
            driver.record(start)
            group.queue()
            driver.record(end)
        samples.append(self._clocks.sample())  # while the device works
        driver.synchronize()
        return [driver.elapsed_us(start, end) / group.calls for start, end in pairs]

    def _warm(self, group: "_Group", samples: list[ClockSample]) -> tuple[float, ...]:
        rule, times = self._policy.rule, list[float]()
        ends_at = time.monotonic() + self._policy.warm_s
        for look in rule.looks:
            while len(times) < look and (not times or time.monotonic() < ends_at):
                count = min(_chunk(times, group.calls), look - len(times))
                times += self._repeats(group, count, group.queue, samples)
            if len(times) < look or precision_of(times, rule.confidence) <= rule.precision:
                break
        return tuple(times)

    def _energy(self, group: "_Group", call_us: float) -> float | None:
        """Joules a call, work back to back: between two steps of the counter at least `energy_s` apart."""
        if not self._policy.energy_s or self._clocks.energy_mj() is None:
            return None
        at_once = max(1, min(64, math.ceil(1e4 / (call_us * group.calls))))  # 10 ms between two looks
        calls, last = 0, self._clocks.energy_mj()
        first: tuple[int, int, float] | None = None
        ends_at = time.monotonic() + 5 * self._policy.energy_s + 1.0
        while time.monotonic() < ends_at:
            for _ in range(at_once):
                group.queue()
            self._driver.synchronize()
            calls += at_once * group.calls
            now = self._clocks.energy_mj()
            if now is None or last is None:
                return None
            if now == last:
                continue
            last = now
            if first is None:
                first = (calls, now, time.monotonic())
            elif time.monotonic() - first[2] >= self._policy.energy_s:
                return (now - first[1]) / 1e3 / (calls - first[0])
        return None

    def _flush(self) -> None:
        self._driver.fill(self._flush_at, 0, self._flush_bytes)

    def _event_pairs(self, count: int) -> list[tuple[int, int]]:
        while len(self._events) < count:
            self._events.append((self._driver.event(), self._driver.event()))
        return self._events[:count]


def _chunk(times_us: Sequence[float], calls: int) -> int:
    """Repeats to queue at once: about a tenth of a second, so that a budget is kept with slow work too."""
    return max(1, min(10, int(1e5 / (times_us[-1] * calls)))) if times_us else 1


class _Group:
    """Calls that are queued together: as one graph, or one by one."""

    def __init__(self, driver: Driver, calls: Sequence[Callable[[], None]], as_graph: bool) -> None:
        self._driver = driver
        self._calls = calls
        self._graph = self._captured() if as_graph else None
        self.launch = "direct" if self._graph is None else "graph"

    @property
    def calls(self) -> int:
        return len(self._calls)

    def queue(self) -> None:
        if self._graph is None:
            self._queue_each()
        else:
            self._driver.launch_graph(self._graph)

    def close(self) -> None:
        if self._graph is not None:
            graph, self._graph = self._graph, None
            self._driver.free_graph(graph)

    def _captured(self) -> int | None:
        """A graph of the calls; None where something in them cannot be captured."""
        try:
            return self._driver.capture(self._queue_each)
        except StickyFaultError:
            raise
        except CandidateFaultError:
            return None

    def _queue_each(self) -> None:
        for call in self._calls:
            call()
