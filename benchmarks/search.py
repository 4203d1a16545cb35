"""How fast samplers find the best schedule on recorded spaces: ours, Optuna's, Kernel Tuner's own.

    python benchmarks/search.py spaces/*.json.gz --seeds 20 --rows rows.jsonl
    python benchmarks/search.py spaces/*.json.gz --rows rows.jsonl --only-table

Each finished run is appended to the rows file and never repeated: a stopped benchmark goes on where it was.
T1 input (NAME.t1.json) beside a file NAME_*.json.gz gives its parameters. Kernel Tuner needs the extra
`bench` (pip install -e '.[bench]').
"""

import argparse
import json
import platform
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import optuna
import search_contestants
from search_contestants import KERNEL_TUNER, OPTUNA_TPE, contestants

from tuner.devices.recorded import Recording, read_recording, read_t1

BUDGETS = (25, 50, 100, 200, 400)
_PACKAGES = ("ptx-tuner", "kernel-tuner", "optuna", "numpy", "scipy")


@dataclass(frozen=True)
class Row:
    """One run of one contestant on one space.

    Attributes:
        space, contestant, seed, workers: Which.
        budget: Evaluations it was allowed.
        evaluations: Evaluations it made; fewer where it gave up, or had found the optimum.
        found: [evaluation, optimum/best] each time the best so far improved, evaluations counted from 1.
        median_ms, mean_ms: Of ask and tell together; None where not measured.
        versions: Of packages.
    """

    space: str
    contestant: str
    seed: int
    workers: int
    budget: int
    evaluations: int
    found: list[list[float]]
    median_ms: float | None
    mean_ms: float | None
    versions: dict[str, str]

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.space, self.contestant, self.seed, self.workers

    def share_at(self, budget: int) -> float:
        """Optimum over the best found within `budget` evaluations; 0 where all of them failed."""
        return max((share for evaluation, share in self.found if evaluation <= budget), default=0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.contestants == ["all"]:
        given.contestants = list(contestants())
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    unknown = sorted(set(given.contestants) - set(contestants()))
    if unknown:
        print(f"unknown contestant {unknown[0]!r}; there are {', '.join(contestants())}", file=sys.stderr)
        return 2
    rows = read_rows(given.rows)
    if not given.only_table:
        budget = max(given.budgets)
        for row in missing_runs(given.files, given.contestants, given.seeds, budget, given.workers, rows):
            rows.append(row)
            append_row(given.rows, row)
            print(
                f"{row.space} {row.contestant} seed {row.seed}: {row.share_at(budget):.3f}", file=sys.stderr
            )
    wanted = [
        row
        for row in rows
        if row.workers == given.workers and row.contestant in given.contestants and row.seed in given.seeds
    ]
    print("\n".join(table(wanted, given.budgets)))
    return 0


def missing_runs(
    files: Iterable[Path],
    names: Sequence[str],
    seeds: Iterable[int],
    budget: int,
    workers: int,
    rows: Iterable[Row],
) -> Iterable[Row]:
    """Make every run that `rows` has not got, or has with a smaller budget."""
    done = {row.key for row in rows if row.budget >= budget}
    todo = [(seed, name) for seed in seeds for name in names]
    for file in files:
        space = file.name.removesuffix(".gz").removesuffix(".json")
        left = [(seed, name) for seed, name in todo if (space, name, seed, workers) not in done]
        recording = read_with_t1(file) if left else None
        for seed, name in left:
            assert recording is not None
            yield one_row(space, recording, name, seed, budget, workers)


def one_row(space: str, recording: Recording, name: str, seed: int, budget: int, workers: int) -> Row:
    run = search_contestants.run(name, recording, seed, budget, workers)
    optimum = float(np.nanmin(recording.times_us))
    found: list[list[float]] = []
    best = float("inf")
    for evaluation, time_us in enumerate(recording.times_us[run.evaluated], start=1):
        if time_us < best:
            best = float(time_us)
            found.append([evaluation, optimum / best])
    times = run.ask_tell_ms
    return Row(
        space=space,
        contestant=name,
        seed=seed,
        workers=workers,
        budget=budget,
        evaluations=len(run.evaluated),
        found=found,
        median_ms=float(np.median(times)) if times else None,
        mean_ms=float(np.mean(times)) if times else None,
        versions=_versions(),
    )


def table(rows: Sequence[Row], budgets: Sequence[int]) -> list[str]:
    """Markdown: mean of optimum/best with its standard error, a row for each space and budget.

    Of Kernel Tuner's strategies, each cell shows the best one and names it: none is the best everywhere.
    """
    spaces = sorted({row.space for row in rows})
    own = [
        n for n in contestants() if any(r.contestant == n for r in rows) and not n.startswith(KERNEL_TUNER)
    ]
    theirs = sorted({row.contestant for row in rows if row.contestant.startswith(KERNEL_TUNER)})
    heads = ["space", "evaluations", *own, *(["best Kernel Tuner strategy"] if theirs else [])]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    at: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        at[row.space, row.contestant].append(row)
    totals: dict[tuple[int, str], list[float]] = defaultdict(list)
    for space in spaces:
        for budget in budgets:
            cells = [space, str(budget)]
            for name in own:
                mean, error = _mean([row.share_at(budget) for row in at[space, name]])
                totals[budget, name].append(mean)
                cells.append(f"{mean:.3f} ± {error:.3f}")
            if theirs:
                best = max(theirs, key=lambda n: _mean([r.share_at(budget) for r in at[space, n]])[0])
                mean, error = _mean([row.share_at(budget) for row in at[space, best]])
                totals[budget, KERNEL_TUNER].append(mean)
                cells.append(f"{mean:.3f} ± {error:.3f} {best.removeprefix(KERNEL_TUNER)}")
            lines.append("| " + " | ".join(cells) + " |")
    for budget in budgets:
        names = [*own, *([KERNEL_TUNER] if theirs else [])]
        means = [f"{np.mean(totals[budget, name]):.3f}" for name in names]
        lines.append("| " + " | ".join(["**mean**", str(budget), *means]) + " |")
    lines.append(
        "| " + " | ".join(["ask + tell, ms (median)", "", *(_milliseconds(rows, n) for n in own)]) + " |"
    )
    return lines


def read_with_t1(file: Path) -> Recording:
    """A recording, with the T1 input of its kernel where that lies beside it."""
    beside = file.parent / f"{file.name.split('_')[0]}.t1.json"
    return read_recording(file, read_t1(beside) if beside.exists() else None)


def read_rows(path: Path) -> list[Row]:
    """Rows of a file; a torn last line is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(Row(**json.loads(line)))
        except json.JSONDecodeError:
            print(f"{path}: left out a line that is no JSON: {line[:40]!r}", file=sys.stderr)
    return rows


def append_row(path: Path, row: Row) -> None:
    """Append a row, on a line of its own whatever the file ends with."""
    text = path.read_text() if path.exists() else ""
    torn = bool(text) and not text.endswith("\n")
    with path.open("a") as file:
        file.write(("\n" if torn else "") + json.dumps(asdict(row)) + "\n")


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error; NaN where there are too few."""
    if not values:
        return float("nan"), float("nan")
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return float(np.mean(values)), error


def _milliseconds(rows: Sequence[Row], name: str) -> str:
    medians = [r.median_ms for r in rows if r.contestant == name and r.median_ms is not None]
    return f"{np.median(medians):.1f}" if medians else "-"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "files", nargs="*", type=Path, help="recorded spaces: Kernel Tuner caches, T4 results"
    )
    parser.add_argument(
        "--contestants", nargs="+", default=["auto", "random", OPTUNA_TPE], help="or 'all'", metavar="NAME"
    )
    parser.add_argument("--seeds", type=_seeds, default=range(20), help="how many, or FROM-TO; 20")
    parser.add_argument("--budgets", nargs="+", type=int, default=BUDGETS, help="evaluations")
    parser.add_argument("--workers", type=int, default=1, help="trials in flight at once, for ours")
    parser.add_argument("--rows", type=Path, default=Path("search_rows.jsonl"), help="where runs are kept")
    parser.add_argument("--only-table", action="store_true", help="run nothing")
    return parser


def _seeds(text: str) -> range:
    first, dash, last = text.partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(first))


if __name__ == "__main__":
    sys.exit(main())
