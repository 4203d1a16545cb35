"""Whether `--until` stops at the right time, judged on kernels that it was not calibrated on.

    python benchmarks/stopping.py record --kernels rmsnorm --out spaces
    python benchmarks/stopping.py made-up --out spaces
    python benchmarks/stopping.py run spaces/*.json.gz recordings/*.json.gz --seeds 6 --rows rows.jsonl
    python benchmarks/stopping.py run --seeded gemm_dw --seeds 6 --rows rows.jsonl
    python benchmarks/stopping.py table --rows rows.jsonl

`record` works out the predicted time of every schedule of kernels of ours once, or with `--hold` of some.
`run` searches recorded spaces with `auto`, and with `--seeded` GEMMs of ours as `tune run` does, seeded by a
cost model that is wrong; it notes, every 5 trials from the 20th on, what the estimate is made of. Runs that
the rows file has are not repeated. `table` chooses the estimate's constants on all families of kernels but
one and judges on that one, for each, beside those of `tuner.samplers.stopping`. The family is the first part
of a file's name, up to the underscore.
"""

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
from stopping_spaces import MADE_UP, made_up, record, seeded

from search_spaces.listed import ListedSpace
from tuner.devices.recorded import Recording, read_recording
from tuner.samplers import stopping
from tuner.samplers.auto import AutoCore
from tuner.samplers.base import Past
from tuner.samplers.stopping import ENOUGH, expected_better, margin

DOUBTS = (0.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0)
"""Values of the estimate's doubt that are tried."""

CAUTIONS = (1.0, 3.0, 10.0, 30.0)
"""The same of its caution."""

SURE = RIGHT_IN_EACH = 0.99
FIRST, EVERY, BUDGET = 20, 5, 400
OUR_GEMM = "our-gemm"
_SURE_ENOUGH = 1e-5  # with the largest doubt but one, no other constants would go on


@dataclass(frozen=True)
class Look:
    """What is known when it is asked whether to stop.

    Attributes:
        trials: So many have ended.
        found: Optimum over the best time so far.
        better: Schedules expected to be better, for each of `DOUBTS`: without, and with the margin.
    """

    trials: int
    found: float
    better: list[list[float]]


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


def searched(name: str, recording: Recording, seed: int, core: AutoCore | None = None) -> Run:
    """Search a space with `auto`, or another core, until no constants would go on."""
    space = ListedSpace.of(recording.kernel, recording.names, recording.values, recording.levels)
    core = core or AutoCore(space)
    optimum = float(np.nanmin(recording.times_us))
    asked: list[int] = []
    looks: list[Look] = []
    best = float("inf")
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
            looks.append(Look(number, optimum / best, heard[-1]))
            if heard[-1][0][-2] < _SURE_ENOUGH:
                break
        asked.append(core.propose(past, space, np.random.default_rng([seed, number])))
        best = float(np.fmin(best, recording.times_us[asked[-1]]))
    return Run(name, seed, len(space), looks)


def missing_runs(
    files: Sequence[Path], kernels: Sequence[str], gpu: str, seeds: Sequence[int], rows: Path
) -> Iterator[Run]:
    """Runs that the rows file has not got, each appended to it.

    Args:
        files: Recorded spaces, searched with nothing known beforehand.
        kernels: GEMMs of ours, by id or alias, seeded by a wrong cost model (`stopping_spaces.seeded`).
        gpu: For these.
        seeds: One a run of each.
        rows: The file.
    """
    done = {(run.space, run.seed) for run in read_runs(rows)}
    recordings: dict[Path, Recording] = {}
    for seed in seeds:
        todo: list[tuple[str, Path | str]] = [
            *((file.name.removesuffix(".gz").removesuffix(".json"), file) for file in files),
            *((f"{OUR_GEMM}_seeded-{kernel.replace('_', '-')}_{gpu}", kernel) for kernel in kernels),
        ]
        for name, what in todo:
            if (name, seed) in done:
                continue
            if isinstance(what, Path):
                if what not in recordings:
                    recordings[what] = read_recording(what)
                recording = recordings[what]
                run = searched(name, recording, seed)
            else:
                recording, core = seeded(what, gpu, seed)
                run = searched(name, recording, seed, core)
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
    """The constants with the fewest trials of those that are right often enough in each family.

    Families weigh alike in the number of trials. Where no constants are right so often, the most careful.
    """
    families = _by_family(runs)
    able: list[tuple[float, Constants]] = []
    for doubt in DOUBTS:
        for caution in CAUTIONS:
            constants = Constants(caution, doubt)
            scores = [Score.of(constants, some) for some in families.values()]
            if min(score.share for score in scores) >= RIGHT_IN_EACH:
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
    runner.add_argument("files", nargs="*", type=Path)
    runner.add_argument("--seeded", nargs="*", default=[], help="GEMMs of ours, seeded by a wrong model")
    runner.add_argument("--gpu", default="rtx4090", help="for these")
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
        for run in missing_runs(given.files, given.seeded, given.gpu, range(given.seeds), given.rows):
            print(f"{run.space} seed {run.seed}: {run.looks[-1].trials} trials", file=sys.stderr)
    else:
        print("\n".join(table(read_runs(given.rows))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
