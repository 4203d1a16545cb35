"""What a CUDA worker does: the bench it works on, and its jobs, each a picklable value."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from emitters import kernel_named
from emitters.kernel import Expected, Inputs, Kernel, Problem
from results.trial import Measurement, Source, Verdict
from tuner.devices.clocks import Clocks, open_clocks
from tuner.devices.cupy_api import cupy_apis
from tuner.devices.device import Candidate
from tuner.devices.driver import Driver, GpuFacts, index_of
from tuner.devices.errors import CandidateFaultError
from tuner.devices.launch import GUARD_BYTES, Buffers, Call, LoadedPlan
from tuner.devices.serving import Report
from tuner.devices.stopwatch import Stopwatch, Timing, TimingPolicy, Work
from tuner.devices.timing import Comparison, compare

K = TypeVar("K")
V = TypeVar("V")

DATA_SECONDS = 900.0  # making data and its reference, on the host
LAUNCH_SECONDS = 10.0  # from the first launch of a candidate to its end, unless told: what takes longer hangs
TIMING_SECONDS = 60.0  # beyond the policy's budgets
_SHOWN = 3  # wrong elements in a verdict
_TIMING_SEED = 0  # all candidates are timed on the same data: power, and with it clocks, depends on the data


class Bench:
    """One open GPU in the worker, with the data that jobs have in common.

    Args:
        driver: The device.
        clocks: NVML's view of it.
        report: Says what comes next, and how long it may take.
    """

    def __init__(self, driver: Driver, clocks: Clocks, report: Report) -> None:
        self.driver = driver
        self.clocks = clocks
        self.report = report
        self.facts: GpuFacts = driver.facts()
        self._inputs: OrderedDict[tuple[str, Problem, int], Inputs] = OrderedDict()
        self._expected: OrderedDict[tuple[str, Problem, int], Expected] = OrderedDict()

    def inputs(self, kernel: Kernel[Any], problem: Problem, seed: int) -> Inputs:
        """Data for a problem; the same for the same seed."""
        key = (kernel.id, problem, seed)
        return _kept(self._inputs, key, lambda: kernel.data(problem, np.random.default_rng(seed)))

    def expected(self, kernel: Kernel[Any], problem: Problem, seed: int, schedule: Any) -> Expected:
        """What the outputs must be.

        Exact results do not depend on the schedule, so they are made once; bounds do.
        """
        key = (kernel.id, problem, seed)
        if key in self._expected:
            return self._expected[key]
        expected = kernel.reference(problem, self.inputs(kernel, problem, seed), schedule)
        return expected if expected.bounds else _kept(self._expected, key, lambda: expected)


def _kept(kept: OrderedDict[K, V], key: K, make: Callable[[], V]) -> V:
    """The value under `key`, made if need be; two are kept, since one can take hundreds of megabytes."""
    if key not in kept:
        kept[key] = make()
        while len(kept) > 2:
            kept.popitem(last=False)
    return kept[key]


@dataclass(frozen=True, slots=True)
class OpenCuda:
    """Opens a GPU through CuPy.

    Attributes:
        which: Number of the device as CUDA counts, or its name.
    """

    which: int | str

    def __call__(self, report: Report) -> Bench:
        apis = cupy_apis()
        driver = Driver(apis, self.which if isinstance(self.which, int) else index_of(apis, self.which))
        return Bench(driver, open_clocks(driver.facts().pci_bus_id), report)


@dataclass(frozen=True, slots=True)
class Opened:
    """What a worker says about its GPU.

    Attributes:
        facts: From the driver.
        driver_version: ``580.95.05``, where NVML says so.
        max_sm_mhz: The highest clock of the SMs, from NVML, else from the driver.
        count: GPUs of the machine that CUDA shows.
    """

    facts: GpuFacts
    driver_version: str | None
    max_sm_mhz: float
    count: int


@dataclass(frozen=True, slots=True)
class AskFacts:
    """Which GPU is this?"""

    def run(self, bench: Bench) -> Opened:
        highest = bench.clocks.max_sm_mhz() or bench.facts.clock_khz / 1e3
        return Opened(bench.facts, bench.clocks.driver_version, highest, bench.driver.count)


@dataclass(frozen=True)
class Verify:
    """Run a candidate on fresh data and compare every element; a result is a verdict of right or wrong."""

    candidate: Candidate
    problem: Problem
    seed: int
    launch_s: float = LAUNCH_SECONDS

    def run(self, bench: Bench) -> Verdict:
        kernel = kernel_named(self.candidate.kernel)
        schedule = kernel.schedule(self.candidate.schedule)
        bench.report("making data and its reference", DATA_SECONDS)
        inputs = bench.inputs(kernel, self.problem, self.seed)
        expected = bench.expected(kernel, self.problem, self.seed, schedule)
        with Loaded(bench, self.candidate, self.problem, inputs) as loaded:
            buffers = loaded.buffers()
            buffers.poison()
            bench.driver.synchronize()
            bench.report("running the candidate", self.launch_s)
            loaded.call_on(buffers)()
            bench.driver.synchronize()
            bench.report("comparing", DATA_SECONDS)
            stray = buffers.stray_write()
            mismatches, first_bad = mismatched(expected, buffers.outputs())
        return Verdict(
            mismatches=mismatches,
            problems=(str(self.problem),),
            first_bad=first_bad,
            fault="out_of_bounds" if stray else None,
            fault_message=stray,
            where="device",
        )


@dataclass(frozen=True)
class Measure:
    """Time a candidate that has been verified."""

    candidate: Candidate
    problem: Problem
    best_us: float | None
    policy: TimingPolicy
    launch_s: float = LAUNCH_SECONDS

    def run(self, bench: Bench) -> Measurement:
        kernel = kernel_named(self.candidate.kernel)
        bench.report("making data", DATA_SECONDS)
        inputs = bench.inputs(kernel, self.problem, _TIMING_SEED)
        with Loaded(bench, self.candidate, self.problem, inputs) as loaded:
            work = loaded.work()
            bench.report("running the candidate", self.launch_s)
            work.call_on(0)()
            bench.driver.synchronize()
            bench.report("timing", timing_seconds(self.policy))
            stopwatch = Stopwatch(bench.driver, bench.facts.l2_bytes, bench.clocks, self.policy)
            try:
                timing = stopwatch.measure(work, self.best_us)
            finally:
                stopwatch.close()
            blocks = min(step.blocks_per_sm for step in loaded.plan.steps)
        return measurement(bench, timing, self.policy, {"blocks_per_sm": float(blocks)})


@dataclass(frozen=True)
class Finalists:
    """What an interleaved comparison found.

    Attributes:
        comparison: Leader, ties, p-values.
        rounds_us: For every round the time of each, microseconds.
        throttling: What held the clocks down meanwhile.
    """

    comparison: Comparison
    rounds_us: tuple[tuple[float, ...], ...]
    throttling: tuple[str, ...]

    def chosen(self, candidates: Sequence[Candidate]) -> int:
        """Index of the winner or, in a tie, of the simplest of the tied.

        That is the one with the fewest steps, then the least shared memory, registers, threads and text.
        """
        return min(self.comparison.tied, key=lambda index: _complexity(candidates[index]))


def _complexity(candidate: Candidate) -> tuple[int, ...]:
    needs = candidate.resources
    return (
        len(candidate.emitted.plan.steps),
        needs.shared_bytes,
        needs.registers,
        needs.threads,
        len(candidate.emitted.ptx),
    )


@dataclass(frozen=True)
class Compare:
    """Time finalists in interleaved rounds, in random order within a round."""

    candidates: tuple[Candidate, ...]
    problem: Problem
    rounds: int
    seed: int
    policy: TimingPolicy

    def run(self, bench: Bench) -> Finalists:
        rng = np.random.default_rng(self.seed)
        bench.report("making data", DATA_SECONDS)
        loaded: list[Loaded] = []
        works: list[Work] = []
        try:
            for candidate in self.candidates:
                kernel = kernel_named(candidate.kernel)
                inputs = bench.inputs(kernel, self.problem, _TIMING_SEED)
                loaded.append(Loaded(bench, candidate, self.problem, inputs))
                works.append(loaded[-1].work())
            bench.report("running the finalists", LAUNCH_SECONDS * len(works))
            for work in works:
                work.call_on(0)()
            bench.driver.synchronize()
            bench.report("timing the finalists", TIMING_SECONDS + self.policy.budget_s * len(works))
            stopwatch = Stopwatch(bench.driver, bench.facts.l2_bytes, bench.clocks, self.policy)
            try:
                rounds, clocks = stopwatch.interleaved(
                    works, self.rounds, lambda: [int(i) for i in rng.permutation(len(works))]
                )
            finally:
                stopwatch.close()
        finally:
            for one in loaded:
                one.close()
        return Finalists(compare(rounds), tuple(map(tuple, rounds)), clocks.throttling)


class Loaded:
    """A candidate on the device: its code and as many sets of buffers as were asked for.

    The inputs are those of the kernel; its `prepare` lays them out as the schedule wants them.
    """

    def __init__(self, bench: Bench, candidate: Candidate, problem: Problem, inputs: Inputs) -> None:
        self._bench = bench
        self._kernel = kernel_named(candidate.kernel)
        self._problem = problem
        bench.report("laying out data and loading the code", DATA_SECONDS)
        self._inputs = self._kernel.prepare(self._kernel.schedule(candidate.schedule), problem, inputs)
        self._workspace = candidate.emitted.plan.workspace_for(problem.sizes)
        self._sets: list[Buffers] = []
        self.plan = LoadedPlan(bench.driver, bench.facts, candidate.emitted.plan, candidate.binary.cubin)

    def buffers(self, guard_bytes: int = GUARD_BYTES, like: Buffers | None = None) -> Buffers:
        """A fresh set of buffers, closed with this object."""
        made = Buffers(
            self._bench.driver,
            self._kernel.spec,
            self._problem,
            self._inputs,
            self._workspace,
            guard_bytes,
            like,
        )
        self._sets.append(made)
        return made

    def call_on(self, buffers: Buffers) -> Call:
        """A call of the plan on a set of buffers."""
        return self.plan.bind(self._kernel.spec, self._problem, self._inputs.scalars, buffers.addresses)

    def work(self) -> Work:
        """The plan as something to time, on sets of buffers without guards."""
        sets: list[Buffers] = []
        calls: list[Call] = []

        def call_on(index: int) -> Call:
            while len(sets) <= index:
                sets.append(self.buffers(guard_bytes=0, like=sets[0] if sets else None))
                calls.append(self.call_on(sets[-1]))
            return calls[index]

        call_on(0)
        return Work(bytes_per_set=sets[0].nbytes, call_on=call_on)

    def close(self) -> None:
        for buffers in self._sets:
            buffers.close()
        self._sets.clear()
        self.plan.close()

    def __enter__(self) -> "Loaded":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After a fault the context may be lost: then nothing can be freed, and the process goes.
        if kind is None:
            self.close()
            return
        try:
            self.close()
        except CandidateFaultError:
            return


def mismatched(expected: Expected, actual: dict[str, NDArray[Any]]) -> tuple[int, str]:
    """How many elements are wrong, and the first of them for a person."""
    count, shown = 0, list[str]()
    for name, values in expected.values.items():
        wrong = np.argwhere(expected.mismatched(name, actual[name]))
        count += len(wrong)
        for index in map(tuple, wrong[: _SHOWN - len(shown)]):
            where = ", ".join(map(str, index))
            shown.append(f"{name}[{where}] is {actual[name][index]}, must be {values[index]}")
    return count, "; ".join(shown)


def timing_seconds(policy: TimingPolicy) -> float:
    """How long a measurement under a policy may take before it counts as hung."""
    return TIMING_SECONDS + 2 * (policy.budget_s + policy.warm_s) + 6 * policy.energy_s


def measurement(
    bench: Bench, timing: Timing, policy: TimingPolicy, details: dict[str, float | str]
) -> Measurement:
    """A timing as a row keeps it."""
    clocks = timing.clocks
    told: dict[str, float | str] = {
        "gpu": bench.facts.name,
        "launch": timing.launch,
        "calls_per_group": float(timing.calls),
        "ended": timing.decision.value,
        "precision": timing.precision,
        **details,
    }
    if clocks.sm_mhz_low is not None:
        told["clock_mhz_low"] = float(clocks.sm_mhz_low)
    if clocks.throttling:
        told["throttling"] = ",".join(clocks.throttling)
    return Measurement(
        time_us=timing.median_us,
        source=Source.CUDA_EVENTS,
        times_us=timing.cold_us,
        policy=policy.name,
        other_us={"warm": float(np.median(timing.warm_us))} if timing.warm_us else {},
        clock_mhz=clocks.sm_mhz,
        memory_clock_mhz=clocks.memory_mhz,
        temperature_c=clocks.temperature_c,
        driver=bench.clocks.driver_version or f"CUDA {bench.facts.cuda_version // 1000}",
        energy_j=timing.energy_j,
        details=told,
    )
