"""How good the first trials are when the cost model seeds the search, and the cost model is wrong.

    python benchmarks/seeding.py --kernels gemm --devices sim:rtx4090 sim:h200 --draws 20

A draw multiplies every constant of the seeding model by a random factor of 0.5 to 2: those of
`tuner.cost_model`, the GPU's rates, clock and sizes, and the instructions and wavefronts of the closed forms.
The device keeps its own. What a draw finds in its first trials is compared with the best of 400 trials, and
of everything else that was tried. Trials are asked for as `tune run` does it: the hand-written schedule
first, and four in flight. Answers of the device are kept in a file, so that each is worked out only once.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from emitters import kernel_named
from emitters.kernel import EmitError, schedule_values
from emitters.target import Figure, Gpu
from results.trial import Outcome
from search_spaces import space_for
from search_spaces.outline import Outline
from search_spaces.space import Space
from tuner import cost_model
from tuner.cost_model import predict
from tuner.devices.errors import CandidateFaultError
from tuner.devices.sampling import operands_for, plan_work
from tuner.devices.simulated import SimulatedDevice
from tuner.ptxas import AssembleError, Assembler
from tuner.samplers.auto import AutoCore, Settings
from tuner.samplers.base import Past
from tuner.samplers.seeding import Seed, seed, seed_from

FIGURES = (
    "clock_mhz",
    "l2_bytes",
    "dram_gb_s",
    "mma_s8_cycles",
    "mma_f16_cycles",
    "fp32_lanes",
    "l2_bytes_per_clock_per_sm",
)
COUNTS = (
    "instructions",
    "fill_instructions",
    "alu_instructions",
    "other_instructions",
    "shared_reads",
    "shared_writes",
)
IN_FLIGHT = 4
GOAL = 0.95


@dataclass
class Device:
    """A simulated GPU that answers from a file what it was asked before.

    Attributes:
        kernel: Id or alias.
        name: As ``sim:rtx4090``.
        answers: The file, a line an answer.
    """

    kernel: str
    name: str
    answers: Path
    times_us: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._kernel = kernel_named(self.kernel)
        self._target = SimulatedDevice(self.name.partition(":")[2]).target
        self._assembler = Assembler()
        self.problem = self._kernel.default_problem
        self.space: Space = space_for(self._kernel.id, self._target).serving(self.problem.sizes)
        self.baseline = self.space.index(schedule_values(self._kernel.baseline))
        self._about = [self._kernel.id, self.name, self.space.hash]
        for line in self.answers.read_text().splitlines() if self.answers.exists() else []:
            about, schedule, time_us = json.loads(line)
            if about == self._about:
                self.times_us[schedule] = float("nan") if time_us is None else time_us

    def time_us(self, schedule: int) -> float:
        """What the device says of a schedule of the space, microseconds; NaN where it failed."""
        if schedule not in self.times_us:
            time_us = self._measured(schedule)
            self.times_us[schedule] = time_us
            with self.answers.open("a") as file:
                told = None if np.isnan(time_us) else time_us
                file.write(json.dumps([self._about, schedule, told]) + "\n")
        return self.times_us[schedule]

    def _measured(self, schedule: int) -> float:
        try:
            typed = self._kernel.schedule(self.space.values(schedule))
            emitted = self._kernel.emit(typed, self._target)
            binary = self._assembler.assemble(emitted.ptx, emitted.arch)
            operands = operands_for(self._kernel, emitted, self.problem)
            work = plan_work(emitted, binary, self.problem, operands)
        except (EmitError, AssembleError, CandidateFaultError):
            return float("nan")
        return float(predict(work, self._target).time_us)


def search(device: Device, seed: Seed | None, trials: int, rng_seed: int) -> list[float]:
    """Times of the trials of a search, in their order."""
    hints, first = ((), ()) if seed is None else (seed.hints, seed.first.tolist())
    core = AutoCore(device.space, Settings(), hints, first)
    asked = [device.baseline]
    for number in range(1, trials):
        known = np.array(asked, dtype=np.int64)
        count = max(0, number - IN_FLIGHT + 1)
        times_us = np.array([device.time_us(schedule) for schedule in asked[:count]])
        outcomes = tuple(Outcome.FAULT if np.isnan(time) else Outcome.OK for time in times_us)
        past = Past(known[:count], times_us, outcomes, known[count:])
        asked.append(core.propose(past, device.space, np.random.default_rng([rng_seed, number])))
    return [device.time_us(schedule) for schedule in asked]


def wrong_seed(device: Device, draw: int) -> Seed:
    """The seed of a model with all its constants off by random factors."""
    rng = np.random.default_rng(draw)

    def factor() -> float:
        return float(np.exp(rng.uniform(np.log(0.5), np.log(2))))

    constants = {
        name: value * factor()
        for name, value in sorted(vars(cost_model).items())
        if name.isupper() and isinstance(value, float)
    }
    # A ratio above one: what is off is how far above.
    constants["L2_SPILL_RANGE"] = 1 + (cost_model.L2_SPILL_RANGE - 1) * factor()
    target = device.space.target
    assert target.gpu is not None
    assert device.space.outliner is not None
    true = device.space.outliner(device.space.columns, device.problem.sizes)
    outline = _with_counts(true, factor)
    with ExitStack() as stack:
        for name, value in constants.items():
            stack.enter_context(patch.object(cost_model, name, value))
        return seed_from(outline, replace(target, gpu=_with_figures(target.gpu, factor)), len(device.space))


def _with_figures(gpu: Gpu, factor: Callable[[], float]) -> Gpu:
    changed: dict[str, Any] = {name: Figure(getattr(gpu, name).value * factor(), "drawn") for name in FIGURES}
    return replace(gpu, **changed)


def _with_counts(outline: Outline, factor: Callable[[], float]) -> Outline:
    counted = {name: outline.launch[name] * factor() for name in COUNTS if name in outline.launch}
    return replace(outline, launch={**outline.launch, **counted})


def shares(device: Device, draws: int, trials: int, reference: int) -> dict[str, list[float]]:
    """Best of `reference` trials over the best of the first `trials`, by kind of hint, a number a draw."""
    right = seed(device.space, device.problem.sizes)
    if right is None:
        raise ValueError(f"{device.kernel} has no closed forms to seed a search with")
    found: dict[str, list[list[float]]] = {
        "none": [search(device, None, trials, draw) for draw in range(draws)],
        "wrong by 0.5 to 2": [search(device, wrong_seed(device, n), trials, n) for n in range(draws)],
        "right": [search(device, right, trials, draw) for draw in range(draws)],
    }
    search(device, right, reference, 0)
    best = np.nanmin(list(device.times_us.values()))
    return {name: [float(best / np.nanmin(times)) for times in runs] for name, runs in found.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a draw of the wrong model misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kernels", nargs="+", default=["gemm"], help="ids or aliases")
    parser.add_argument("--devices", nargs="+", default=["sim:rtx4090", "sim:h200"])
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--trials", type=int, default=16, help="of each draw")
    parser.add_argument("--reference", type=int, default=400, help="trials whose best is the measure")
    parser.add_argument("--answers", type=Path, default=Path("seeding_answers.jsonl"), help="kept here")
    given = parser.parse_args(arguments)
    print(f"| kernel | device | seeded | within 5 % in {given.trials} | worst | mean |")
    print("|---|---|---|---|---|---|")
    reached = True
    for kernel in given.kernels:
        for name in given.devices:
            device = Device(kernel, name, given.answers)
            for kind, values in shares(device, given.draws, given.trials, given.reference).items():
                within = sum(value >= GOAL for value in values)
                print(
                    f"| {kernel} | {name} | {kind} | {within} of {len(values)} | {min(values):.3f} | "
                    f"{np.mean(values):.3f} |",
                    flush=True,
                )
                reached &= kind == "none" or within == len(values)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
