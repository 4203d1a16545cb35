"""Speed of the simulator: `OPENBLAS_NUM_THREADS=1 python benchmarks/simulator.py [--sample N]`.

Prints processor seconds (others' load does not count), with race detection on, of a gate (parsing, lowering,
every edge problem and its comparison with the reference) over random schedules, and of single problems, each
with the peak memory of a process that does nothing else. Nothing here is a time of a GPU.
"""

import argparse
import gc
import multiprocessing
import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import mean, median
from time import process_time

import numpy as np

from emitters import KERNELS
from emitters.kernel import EmittedKernel, Inputs, Kernel, Problem
from emitters.target import Target
from search_spaces import space_for
from tuner.devices.simulation import launches
from tuner.simulator import Module, Report, parse, simulate

TARGET = Target.of("sm_89")
PROBLEMS = ((512, 512, 512, 0.10), (4096, 1280, 1280, 2.5))
GATE_GOAL_S = 0.10
PEAK_GOAL_MIB = 500
REPEATS = 5


@dataclass(frozen=True)
class Measured:
    """Processor seconds of the runs of one part, and the peak memory of its process."""

    times: tuple[float, ...]
    peak_mib: float


def timed(action: Callable[[], object]) -> float:
    """Processor seconds that an action takes."""
    start = process_time()
    action()
    return process_time() - start


def run(
    kernel: Kernel[object], module: Module, emitted: EmittedKernel, problem: Problem, data: Inputs
) -> Report:
    """Simulate a plan on prepared inputs, every block."""
    buffers = dict(data.buffers)
    outputs = list(kernel.spec.outputs)
    for buffer in kernel.spec.buffers:
        if buffer.role == "out":
            buffers[buffer.name] = np.zeros(buffer.shape_for(problem.sizes), buffer.dtype)
    if emitted.plan.workspace_for(problem.sizes):
        buffers["workspace"] = np.zeros(emitted.plan.workspace_for(problem.sizes), np.uint8)
        outputs.append("workspace")
    steps = launches(emitted.plan, problem.sizes, Inputs(buffers, data.scalars))
    return simulate(module, steps, buffers, outputs=outputs, counters=False)


def gate(
    kernel: Kernel[object], schedule: object, emitted: EmittedKernel, cases: list[tuple[Problem, Inputs]]
) -> None:
    """Run what a candidate has to pass.

    Raises:
        AssertionError: It does not, so that no wrong run is ever timed.
    """
    module = parse(emitted.ptx)
    for problem, given in cases:
        report = run(kernel, module, emitted, problem, kernel.prepare(schedule, problem, given))
        expected = kernel.reference(problem, given, schedule)
        assert report.clean, [str(fault) for fault in report.faults]
        assert not any(expected.mismatched(name, report.buffers[name]).any() for name in expected.values)


def gates(name: str, count: int) -> tuple[float, ...]:
    """Seconds of the gate of random schedules."""
    kernel, space = KERNELS[name], space_for(name, TARGET)
    rng = np.random.default_rng(0)
    times = []
    for index in rng.choice(len(space), min(count, len(space)), replace=False):
        schedule = kernel.schedule(space.values(int(index)))
        emitted = kernel.emit(schedule, TARGET)
        cases = [(problem, kernel.inputs(problem, rng)) for problem in kernel.edge_problems(schedule)]
        times.append(timed(lambda: gate(kernel, schedule, emitted, cases)))  # noqa: B023 - called at once
    return tuple(times)


def baseline(name: str, sizes: tuple[int, ...]) -> tuple[float, ...]:
    """Seconds of one problem with every block, by the kernel's baseline."""
    kernel = KERNELS[name]
    emitted = kernel.emit(kernel.baseline, TARGET)
    problem = kernel.spec.problem(*sizes)
    data = kernel.prepare(kernel.baseline, problem, kernel.inputs(problem, np.random.default_rng(0)))
    module = parse(emitted.ptx)
    return tuple(timed(lambda: run(kernel, module, emitted, problem, data)) for _ in range(REPEATS))


def measured(part: Callable[..., tuple[float, ...]], *arguments: object) -> Measured:
    """Run one part in a process of its own, which leaves its modules to no collector, as workers do."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=gc.freeze) as process:
        times = process.submit(part, *arguments).result()
        return Measured(times, process.submit(_peak_mib).result())


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def print_baselines() -> float:
    """Single problems with every block; returns the highest peak."""
    print(f"{'baseline, every block':<36}{'first':>9}{'median':>9}{'goal':>9}{'peak memory':>15}")
    peaks = []
    for name in ("gemm_s8", "ternary_gemm_s8"):
        for *sizes, goal_s in PROBLEMS:
            found = measured(baseline, name, tuple(map(int, sizes)))
            title = f"{name} {'x'.join(map(str, sizes))}"
            first, middle = found.times[0], median(found.times)
            print(f"{title:<36}{first:>7.3f} s{middle:>7.3f} s{goal_s:>7.2f} s{found.peak_mib:>11.0f} MiB")
            peaks.append(found.peak_mib)
    print()
    return max(peaks)


def print_gates(sample: int) -> float:
    """Gates of random schedules of every kernel; returns the highest peak."""
    head = f"{'gate of one candidate':<27}{'mean':>9}{'median':>9}{'slowest':>9}{'goal':>9}"
    print(f"{head}{'peak memory':>15}")
    peaks = []
    for name in KERNELS:
        found = measured(gates, name, sample)
        times = found.times
        goal = f"{GATE_GOAL_S:.2f} s" if name in ("gemm_s8", "ternary_gemm_s8") else ""
        line = f"{name:<27}{mean(times):>7.3f} s{median(times):>7.3f} s{max(times):>7.3f} s{goal:>9}"
        print(f"{line}{found.peak_mib:>11.0f} MiB")
        peaks.append(found.peak_mib)
    return max(peaks)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sample", type=int, default=100, help="random schedules of each kernel")
    sample = options.parse_args().sample
    peak_mib = max(print_baselines(), print_gates(sample))
    print(f"\nhighest peak {peak_mib:.0f} MiB (goal {PEAK_GOAL_MIB} MiB)")


if __name__ == "__main__":
    main()
