"""Whether `--until` stops at the right time, judged on kernels that it was not calibrated on.

    python benchmarks/stopping.py record --kernels rmsnorm --out spaces
    python benchmarks/stopping.py made-up --out spaces
    python benchmarks/stopping.py run spaces/*.json.gz recordings/*.json.gz --seeds 6 --rows rows.jsonl
    python benchmarks/stopping.py table --rows rows.jsonl

`record` works out the predicted time of every schedule of kernels of ours once, or with `--hold` of some.
`run` searches recorded spaces with `auto` and notes, every 5 trials from the 20th on, what the estimate is
made of; runs that the rows file has are not repeated. `table` chooses the estimate's constants on all
families of kernels but one and judges on that one, for each, beside those of `tuner.samplers.stopping`. The
family is the first part of a file's name, up to the underscore.
"""

import argparse
import gzip
import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from emitters import kernel_named
from emitters.kernel import EmitError, Kernel, ParameterValue, schedule_values
from emitters.target import Target
from search_spaces import space_for
from search_spaces.listed import ListedSpace, parameter_from
from tuner.devices.device import Candidate
from tuner.devices.errors import CandidateFaultError
from tuner.devices.recorded import Recording, read_recording
from tuner.devices.simulated import SimulatedDevice
from tuner.ptxas import AssembleError, Assembler
from tuner.samplers import stopping
from tuner.samplers.auto import AutoCore
from tuner.samplers.base import Past
from tuner.samplers.seeding import outlined_us
from tuner.samplers.stopping import ENOUGH, expected_better, margin

DOUBTS = (0.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0)
"""Values of the estimate's doubt that are tried."""

CAUTIONS = (1.0, 3.0, 10.0, 30.0)
"""The same of its caution."""

SURE, RIGHT_IN_EACH, RIGHT_IN_ALL = 0.99, 0.95, 0.99
FIRST, EVERY, BUDGET = 20, 5, 400
MADE_UP = "made-up"
SIZES = (8, 16, 32, 64, 128)
_SURE_ENOUGH = 1e-5  # with the largest doubt but one, no other constants would go on


@dataclass(frozen=True)
class Look:
    """What is known when it is asked whether to stop.

    Attributes:
        trials: So many have ended.
        found: Optimum over the best time so far.
        better: Schedules expected to be better, for each of `DOUBTS`: without, and with the margin.
        since: Trials since the best was last improved.
    """

    trials: int
    found: float
    better: list[list[float]]
    since: int


@dataclass(frozen=True)
class Run:
    """One search of a space."""

    space: str
    seed: int
    schedules: int
    looks: list[Look]

    @property
    def family(self) -> str:
        """The kernel: what the file is named after, up to the first underscore."""
        return self.space.split("_")[0]


def searched(name: str, recording: Recording, seed: int) -> Run:
    """Search a space with `auto`, until no constants would go on."""
    pairs = zip(recording.names, recording.values, strict=True)
    parameters = tuple(parameter_from(*pair) for pair in pairs)
    space = ListedSpace(recording.kernel, parameters, (), Target.of("sm_80"), recording.levels)
    core, optimum = AutoCore(space), float(np.nanmin(recording.times_us))
    asked: list[int] = []
    looks: list[Look] = []
    improved, best = 0, float("inf")
    heard: list[list[list[float]]] = []

    def listen(
        means: np.ndarray, spreads: np.ndarray, targets: np.ndarray, times_us: np.ndarray, share: float
    ) -> float:
        count, least = len(targets), targets.min()
        bests = (least, least - margin(targets, times_us))
        heard.append([[expected_better(means, spreads, b, count, d) / share for d in DOUBTS] for b in bests])
        return 0.0

    for number in range(min(BUDGET, len(space))):
        known = np.array(asked, dtype=np.int64)
        past = Past(known, recording.times_us[known], tuple(recording.outcomes[s] for s in asked), known[:0])
        if number >= FIRST and number % EVERY == 0:
            with patch("tuner.samplers.auto.assurance", listen):
                core.assurance(past)
            looks.append(Look(number, optimum / best, heard[-1], number - improved))
            if heard[-1][0][-2] < _SURE_ENOUGH:
                break
        asked.append(core.propose(past, space, np.random.default_rng([seed, number])))
        time_us = float(recording.times_us[asked[-1]])
        if time_us < best:
            best, improved = time_us, number + 1
    return Run(name, seed, len(space), looks)


def missing_runs(files: Sequence[Path], seeds: Sequence[int], rows: Path) -> Iterator[Run]:
    """Runs that the rows file has not got, each appended to it."""
    done = {(run.space, run.seed) for run in read_runs(rows)}
    recordings: dict[Path, Recording] = {}
    for seed in seeds:
        for file in files:
            name = file.name.removesuffix(".gz").removesuffix(".json")
            if (name, seed) in done:
                continue
            if file not in recordings:
                recordings[file] = read_recording(file)
            run = searched(name, recordings[file], seed)
            with rows.open("a") as out:
                out.write(json.dumps(asdict(run)) + "\n")
            yield run


def read_runs(rows: Path) -> list[Run]:
    """Runs of a file."""
    runs = []
    for line in rows.read_text().splitlines() if rows.exists() else []:
        values = json.loads(line)
        runs.append(Run(**{**values, "looks": [Look(**look) for look in values["looks"]]}))
    return runs


def record(
    kernel_name: str, gpu: str, hold: Sequence[str], closed_forms: bool, family: str | None, out: Path
) -> Path:
    """A Kernel Tuner cache of the predicted time of every schedule of a kernel for its default problem.

    Args:
        kernel_name: Id or alias.
        gpu: As ``rtx4090``.
        hold: Parameters that keep their hand-written level.
        closed_forms: Whether the space's closed forms are asked, which takes no time, rather than what ptxas
            makes of each schedule.
        family: First part of the file's name; None takes the kernel.
        out: Directory.
    """
    kernel, device = kernel_named(kernel_name), SimulatedDevice(gpu)
    problem = kernel.default_problem
    space = space_for(kernel.id, device.target).serving(problem.sizes)
    baseline = schedule_values(kernel.baseline)
    held = {space.names.index(name): baseline[name] for name in hold}
    kept = np.ones(len(space), dtype=np.bool_)
    for column, value in held.items():
        kept &= space.levels[:, column] == space.parameters[column].values.index(value)
    numbers = np.flatnonzero(kept).tolist()
    if closed_forms:
        if space.outliner is None:
            raise SystemExit(f"{kernel.id} has no closed forms; leave --closed-forms out")
        outlined = outlined_us(space.outliner(space.columns, problem.sizes), device.target)
        times = ((number, float(outlined[number])) for number in numbers)
    else:
        times = ((number, _predicted_us(kernel, device, space.values(number))) for number in numbers)
    cache = {}
    for number, time_us in times:
        schedule = space.values(number)
        time = "CompilationFailedConfig" if np.isnan(time_us) else time_us / 1000
        cache[",".join(map(str, schedule.values()))] = {**schedule, "time": time}
        if not closed_forms and len(cache) % 100 == 0:
            print(f"{kernel.id}: {len(cache)} of {len(numbers)}", file=sys.stderr, flush=True)
    named = kernel.id.replace("_", "-")
    head = {
        "device_name": f"{device.name} (predicted)",
        "kernel_name": kernel.id,
        "metadata": {"problem": str(problem), "arch": device.target.arch.name, "source": "model"},
    }
    levels = {parameter.name: parameter.values for parameter in space.parameters}
    return _written(out / f"{family or named}_{named}_{gpu}.json.gz", levels, cache, head)


def _written(
    file: Path,
    levels: Mapping[str, Sequence[ParameterValue]],
    cache: Mapping[str, Mapping[str, object]],
    head: Mapping[str, object],
) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    space = {"tune_params_keys": list(levels), "tune_params": levels}
    document = {"device_name": "", **head, **space, "cache": cache}
    file.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
    return file


def _predicted_us(kernel: Kernel[Any], device: SimulatedDevice, schedule: dict[str, ParameterValue]) -> float:
    """Of an emitted and assembled schedule; NaN where it cannot be."""
    try:
        emitted = kernel.emit(kernel.schedule(schedule), device.target)
        binary = Assembler().assemble(emitted.ptx, device.target.arch.name)
        candidate = Candidate(kernel.id, schedule, emitted, binary)
        return device.measure(candidate, kernel.default_problem, None).time_us
    except (EmitError, AssembleError, CandidateFaultError):
        return float("nan")


@dataclass(frozen=True)
class Constants:
    """Of the estimate, by their names in `tuner.samplers.stopping`."""

    caution: float
    doubt: float

    def stop(self, run: Run) -> Look | None:
        """Where a run would have ended that was to be 99 % sure; None where it would have gone on."""
        at = DOUBTS.index(self.doubt)
        return next((k for k in run.looks if self.caution * k.better[1][at] <= -math.log(SURE)), None)


@dataclass(frozen=True)
class Score:
    """What constants come to on some runs: how many, stopped, right when they stopped, and trials."""

    runs: int
    stopped: int
    right: int
    trials: float

    @classmethod
    def of(cls, constants: Constants, runs: Sequence[Run]) -> "Score":
        stops = [constants.stop(run) for run in runs]
        right = sum(stop.found * (1 + ENOUGH) >= 1 for stop in stops if stop is not None)
        trials = [BUDGET if stop is None else stop.trials for stop in stops]
        return cls(len(runs), sum(stop is not None for stop in stops), right, float(np.mean(trials)))

    @property
    def share(self) -> float:
        """Of those that stopped, how many were right; 1 where none stopped."""
        return self.right / self.stopped if self.stopped else 1.0

    @property
    def cells(self) -> list[str]:
        saved = f"{1 - self.trials / BUDGET:.0%}"
        return [str(self.runs), str(self.stopped), str(self.right), f"{self.trials:.0f}", saved]


def calibrated(runs: Sequence[Run]) -> Constants:
    """The constants with the fewest trials of those that are right often enough, in each family and in all.

    Families weigh alike in the number of trials. Where no constants are right so often, the most careful.
    """
    families = _by_family(runs)
    able: list[tuple[float, Constants]] = []
    for doubt in DOUBTS:
        for caution in CAUTIONS:
            constants = Constants(caution, doubt)
            scores = [Score.of(constants, some) for some in families.values()]
            if (
                Score.of(constants, runs).share >= RIGHT_IN_ALL
                and min(s.share for s in scores) >= RIGHT_IN_EACH
            ):
                able.append((float(np.mean([s.trials for s in scores])), constants))
    return min(able, key=lambda each: each[0])[1] if able else Constants(CAUTIONS[-1], DOUBTS[-1])


def table(runs: Sequence[Run]) -> list[str]:
    """Markdown: each family judged with the constants of the others, and with those that are shipped."""
    families = _by_family(runs)
    kernels = [family for family in families if family != MADE_UP]
    heads = ["left out", "caution", "doubt", "runs", "stopped", "right", "trials", "saved", "shipped: right"]
    heads += ["trials"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    shipped = Constants(stopping.CAUTION, stopping.DOUBT)
    judged: list[Score] = []
    as_shipped: list[Score] = []
    for family in [*kernels, *(f for f in families if f == MADE_UP)]:
        chosen = calibrated([run for run in runs if run.family != family])
        score, own = (Score.of(constants, families[family]) for constants in (chosen, shipped))
        if family != MADE_UP:
            judged.append(score)
            as_shipped.append(own)
        cells = [family, f"{chosen.caution:g}", f"{chosen.doubt:g}", *score.cells]
        lines.append("| " + " | ".join([*cells, f"{own.right} of {own.stopped}", f"{own.trials:.0f}"]) + " |")
    counts = [sum(getattr(score, name) for score in judged) for name in ("runs", "stopped", "right")]
    trials, own_trials = (float(np.mean([score.trials for score in some])) for some in (judged, as_shipped))
    right, stopped = (sum(getattr(score, name) for score in as_shipped) for name in ("right", "stopped"))
    total = ["**kernels**", "", "", *map(str, counts), f"{trials:.0f}", f"{1 - trials / BUDGET:.0%}"]
    lines.append("| " + " | ".join([*total, f"{right} of {stopped}", f"{own_trials:.0f}"]) + " |")
    everything = calibrated(runs)
    lines += ["", f"Of all runs: caution {everything.caution:g}, doubt {everything.doubt:g}."]
    return lines


def _by_family(runs: Sequence[Run]) -> dict[str, list[Run]]:
    families: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.family, run.space, run.seed)):
        families.setdefault(run.family, []).append(run)
    return families


def made_up(columns: int, seed: int, out: Path) -> Path:
    """A Kernel Tuner cache of made-up times: what each parameter and each pair of neighbours does, by chance.

    Unkind, since interactions have no structure at all; so these calibrate, and are not judged as a kernel.
    """
    rng = np.random.default_rng(seed)
    levels = np.array(list(itertools.product(range(len(SIZES)), repeat=columns)))
    logs = sum(0.3 * rng.normal(size=len(SIZES)).cumsum()[levels[:, d]] for d in range(columns))
    for d in range(columns - 1):
        logs = logs + 0.2 * rng.normal(size=(len(SIZES), len(SIZES)))[levels[:, d], levels[:, d + 1]]
    names = "abcdefgh"[:columns]
    cache = {}
    for row, time in zip(levels.tolist(), np.exp(logs).tolist(), strict=True):
        schedule = {name: SIZES[level] for name, level in zip(names, row, strict=True)}
        cache[",".join(map(str, schedule.values()))] = {**schedule, "time": time}
    file = out / f"{MADE_UP}_{len(levels)}_{seed}.json.gz"
    return _written(file, dict.fromkeys(names, SIZES), cache, {"kernel_name": "made_up"})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="the predicted times of kernels of ours")
    recorder.add_argument("--kernels", nargs="+", required=True)
    recorder.add_argument("--gpu", default="rtx4090")
    recorder.add_argument("--hold", nargs="*", default=[], help="parameters left as hand-written")
    recorder.add_argument("--closed-forms", action="store_true", help="ask no assembler")
    recorder.add_argument("--family", help="first part of the files' names; the kernel")
    recorder.add_argument("--out", type=Path, required=True)
    inventor = commands.add_parser("made-up", help="spaces that nature has not made")
    inventor.add_argument("--columns", nargs="+", type=int, default=[4, 5])
    inventor.add_argument("--count", type=int, default=3)
    inventor.add_argument("--out", type=Path, required=True)
    runner = commands.add_parser("run", help="search recorded spaces")
    runner.add_argument("files", nargs="+", type=Path)
    runner.add_argument("--seeds", type=int, default=6)
    runner.add_argument("--rows", type=Path, default=Path("stopping_rows.jsonl"))
    printer = commands.add_parser("table", help="calibrate and judge")
    printer.add_argument("--rows", type=Path, default=Path("stopping_rows.jsonl"))
    given = parser.parse_args(arguments)
    if given.command == "record":
        for kernel in given.kernels:
            print(record(kernel, given.gpu, given.hold, given.closed_forms, given.family, given.out))
    elif given.command == "made-up":
        for columns, seed in itertools.product(given.columns, range(given.count)):
            print(made_up(columns, seed, given.out))
    elif given.command == "run":
        for run in missing_runs(given.files, range(given.seeds), given.rows):
            print(f"{run.space} seed {run.seed}: {run.looks[-1].trials} trials", file=sys.stderr)
    else:
        print("\n".join(table(read_runs(given.rows))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
