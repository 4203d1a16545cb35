"""Do the parameters of a space matter? Best, median and worst prediction over random schedules of a kernel.

    python benchmarks/spaces.py [--device sim:rtx4090] [--sample 200] [--seed 0] [--kernel NAME]

Prints a table in Markdown: predicted times in microseconds with a cold L2, how many schedules tie with the
best (within 0.1 %), and which share of its time the bound is. Nothing is proven here: `tune check` does that.
"""

import argparse
from collections.abc import Iterator

import numpy as np

from emitters import KERNELS, kernel_named
from emitters.kernel import Kernel
from results.trial import Measurement
from search_spaces import space_for
from tuner.checking import sample
from tuner.devices.device import Candidate
from tuner.devices.simulated import SimulatedDevice
from tuner.ptxas import Assembler

TIE = 1.001


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="sim:rtx4090")
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernel", action="append")
    given = parser.parse_args()
    device = SimulatedDevice(given.device.removeprefix("sim:"))
    print("| kernel | problem | space | best | median | worst | median / best | ties | bound | reached |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in given.kernel or KERNELS:
        kernel = kernel_named(name)
        times = sorted(one.time_us for one in predictions(kernel, device, given.sample, given.seed))
        best, median, worst = times[0], float(np.median(times)), times[-1]
        bound = device.bound(kernel, kernel.default_problem).time_us
        ties = sum(time <= best * TIE for time in times) - 1
        print(
            f"| `{kernel.id}` | {kernel.default_problem} | {len(space_for(kernel.id, device.target))} "
            f"| {best:.2f} | {median:.2f} | {worst:.2f} | {median / best:.3f} | {ties} of {len(times)} "
            f"| {bound:.2f} | {100 * bound / best:.0f} % |",
            flush=True,
        )


def predictions(kernel: Kernel, device: SimulatedDevice, count: int, seed: int) -> Iterator[Measurement]:
    """Predictions of random schedules that serve the kernel's default problem."""
    problem, assembler = kernel.default_problem, Assembler()
    space = space_for(kernel.id, device.target).serving(problem.sizes)
    for values in sample(space, count, seed):
        emitted = kernel.emit(kernel.schedule(values), device.target)
        binary = assembler.assemble(emitted.ptx, device.target.arch.name)
        yield device.measure(Candidate(kernel.id, values, emitted, binary), problem, None)


if __name__ == "__main__":
    main()
