"""Speed of the simulator: `OPENBLAS_NUM_THREADS=1 python benchmarks/simulator.py [--sample N]`.

Prints processor seconds (others' load does not count), with race detection on, of a gate (parsing, lowering,
every edge problem and its comparison with the reference) over random schedules, and of single problems, and
the peak memory. Nothing here is a time of a GPU.
"""

import argparse
import resource
from collections.abc import Callable
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
REPEATS = 5


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


def gates(name: str, count: int) -> list[float]:
    """Seconds of the gate of random schedules."""
    kernel, space = KERNELS[name], space_for(name, TARGET)
    rng = np.random.default_rng(0)
    times = []
    for index in rng.choice(len(space), min(count, len(space)), replace=False):
        schedule = kernel.schedule(space.values(int(index)))
        emitted = kernel.emit(schedule, TARGET)
        cases = [(problem, kernel.inputs(problem, rng)) for problem in kernel.edge_problems(schedule)]
        times.append(timed(lambda: gate(kernel, schedule, emitted, cases)))  # noqa: B023 - called at once
    return times


def print_baselines() -> None:
    """Single problems with every block, and what memory they took."""
    print(f"{'baseline, every block':<36}{'first':>9}{'median':>9}{'goal':>9}")
    for name in ("gemm_s8", "ternary_gemm_s8"):
        kernel = KERNELS[name]
        emitted = kernel.emit(kernel.baseline, TARGET)
        for *sizes, goal_s in PROBLEMS:
            problem = kernel.spec.problem(*map(int, sizes))
            data = kernel.prepare(kernel.baseline, problem, kernel.inputs(problem, np.random.default_rng(0)))
            module = parse(emitted.ptx)
            times = [timed(lambda: run(kernel, module, emitted, problem, data)) for _ in range(REPEATS)]  # noqa: B023
            print(f"{f'{name} {problem}':<36}{times[0]:>7.3f} s{median(times):>7.3f} s{goal_s:>7.2f} s")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory so far {peak_mib:.0f} MiB (goal 500 MiB)\n")


def print_gates(sample: int) -> None:
    """Gates of random schedules of every kernel."""
    print(f"{'gate of one candidate':<27}{'mean':>9}{'median':>9}{'slowest':>9}{'goal':>9}")
    for name in KERNELS:
        times = gates(name, sample)
        goal = f"{GATE_GOAL_S:.2f} s" if name.endswith("gemm_s8") else ""
        print(f"{name:<27}{mean(times):>7.3f} s{median(times):>7.3f} s{max(times):>7.3f} s{goal:>9}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sample", type=int, default=100, help="random schedules of each kernel")
    sample = options.parse_args().sample
    print_baselines()
    print_gates(sample)


if __name__ == "__main__":
    main()
