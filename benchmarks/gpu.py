"""Tunes the published shapes on a GPU against its libraries, and writes what it measured.

    python benchmarks/gpu.py                    # six shapes in 8 minutes, into benchmarks/measured/GPU/
    python benchmarks/gpu.py --minutes 2 --shape 4096x3456x1280

A shape gets an equal share of the time: trials as they come, then the finalists interleaved, then the
baselines under the same policy. Rows, history and table are kept under the GPU's name. A shape that fails is
a line of the table, and the next one goes on.
"""

import argparse
import csv
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from emitters import kernel_named
from emitters.kernel import Problem, schedule_values
from results.finals import Final
from results.trial import Measurement, StudyKey, Trial
from search_spaces import space_for
from tuner.baselines import BaselineTime, time_baselines
from tuner.devices.cuda import CudaDevice, CudaDevices, open_cuda
from tuner.devices.device import DeviceError
from tuner.devices.errors import CandidateError
from tuner.finals import final_of
from tuner.library_calls import Libraries
from tuner.pipeline import HaltedError
from tuner.ptxas import Assembler
from tuner.study import Tuning
from tuner.task import Request, Task

KERNEL = "ternary_gemm_s8"
SHAPES = (
    "4096x3456x1280",
    "4096x1280x3456",
    "4096x1280x1280",
    "16384x3456x1280",
    "16384x1280x3456",
    "16384x1280x1280",
)
FIRST_TRIALS = 24  # from which the speed of the search is taken
RESERVED_S = 20.0  # of a shape's share, for finalists and baselines
SEED = 1

OpenDevice = Callable[[], CudaDevice | CudaDevices]


@dataclass(frozen=True)
class ShapeResult:
    """What came of one shape.

    Attributes:
        problem: The shape.
        rows: Every trial.
        final: What the interleaved rounds found.
        baselines: What a user would call instead.
    """

    problem: Problem
    rows: tuple[Trial, ...]
    final: Final
    baselines: tuple[BaselineTime, ...]

    @property
    def best(self) -> Trial:
        return next(row for row in self.rows if row.number == self.final.chosen)


class Quiet:
    """Watches a study and prints nothing."""

    def begin(self, rows: list[Trial], bound_us: float) -> None: ...
    def finished(self, row: Trial) -> None: ...
    def tick(self, done: int) -> None: ...

    def notice(self, line: str) -> None:
        print(f"  {line}", file=sys.stderr)


def tune_shape(
    open_device: OpenDevice, shape: str, out: Path, seconds: float, workers: int, libraries: Libraries | None
) -> ShapeResult:
    """Tune one shape, time the finalists again and the baselines beside them.

    Raises:
        DeviceError: The GPU cannot be had, or no trial has a time.
    """
    ends_at = time.monotonic() + max(0.0, seconds - RESERVED_S)
    started = time.monotonic()
    rows = _tuned(open_device, shape, out, FIRST_TRIALS, workers)
    a_trial_s = (time.monotonic() - started) / FIRST_TRIALS
    more = int((ends_at - time.monotonic()) / a_trial_s)
    if more > 0:
        rows = _tuned(open_device, shape, out, FIRST_TRIALS + more, workers)
    device = open_device()
    try:
        problem = kernel_named(KERNEL).spec.parse_problem(shape)
        final = final_of(rows, device, problem, Assembler())
        if final is None:
            raise DeviceError(f"no trial of {shape} has a time; the last says: {rows[-1].message}")
        return ShapeResult(problem, tuple(rows), final, time_baselines(device, KERNEL, problem, libraries))
    finally:
        device.close()


def _tuned(open_device: OpenDevice, shape: str, out: Path, trials: int, workers: int) -> list[Trial]:
    """Rows of a study with so many trials; those that it has already are not repeated."""
    device = open_device()
    kernel = kernel_named(KERNEL)
    problem = kernel.spec.parse_problem(shape)
    space = space_for(kernel.id, device.target)
    key = StudyKey(
        kernel=kernel.id,
        semantic_hash=kernel.spec.semantic_hash,
        problem=str(problem),
        arch=device.target.arch.name,
        device=device.name,
        policy=device.policy,
        objective="time",
        space_hash=space.hash,
    )
    baseline = space.index(schedule_values(kernel.baseline))
    task = Task(kernel, problem, device, space, key, baseline)
    tuning = Tuning(task, Request(trials, out, Assembler(), seed=SEED, workers=workers), Quiet())
    tuning.run()  # closes the device
    return tuning.rows


def _measured(row: Trial) -> Measurement:
    assert row.measurement is not None
    return row.measurement


def table_of(results: Sequence[ShapeResult], failed: Mapping[str, str], gpu: str, driver: str) -> str:
    """The results as Markdown, and why the other shapes have none."""
    lines = [
        f"# {KERNEL} on {gpu}",
        "",
        f"Measured {datetime.now(UTC):%Y-%m-%d}, driver {driver}, ptxas {Assembler().version}, cold L2, CUDA "
        "events (docs/timing.md). "
        "TOPS count 2mnk operations. A ratio above 1 means that the tuned kernel is faster.",
        "",
        "| shape | trials | hand-written us | tuned us | TOPS | tie | SM MHz | baseline | us | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        operations = kernel_named(KERNEL).demand(result.problem).operations
        by_hand = next((row for row in result.rows if row.number == 0), None)
        hand = f"{by_hand.measurement.time_us:.1f}" if by_hand and by_hand.measurement else "-"
        clock = _measured(result.best).clock_mhz
        head = (
            f"| {result.problem} | {len(result.rows)} | {hand} | {result.final.time_us:.1f} "
            f"| {operations / result.final.time_us / 1e6:.0f} | {'yes' if result.final.is_tie else 'no'} "
            f"| {'-' if clock is None else f'{clock:.0f}'} "
        )
        for baseline in result.baselines or (BaselineTime("-", None, "none"),):
            if baseline.measurement is None:
                lines.append(f"{head}| {baseline.name} | {baseline.reason} | - |")
            else:
                theirs = baseline.measurement.time_us
                lines.append(
                    f"{head}| {baseline.name} | {theirs:.1f} | {theirs / result.final.time_us:.2f} |"
                )
            head = "| | | | | | | "
    lines += [f"| {shape} | failed: {message} | | | | | | | | |" for shape, message in failed.items()]
    lines += ["", "Chosen schedules:", ""]
    for result in results:
        schedule = " ".join(f"{name}={value}" for name, value in result.best.schedule.items())
        lines.append(f"* {result.problem}: {schedule}")
    return "\n".join(lines) + "\n"


def write_history(results: Sequence[ShapeResult], path: Path) -> None:
    """Every trial in order, with the best time so far."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["shape", "trial", "outcome", "time_us", "best_us", "seconds_since_start"])
        for result in results:
            best = float("inf")
            begin = min(row.started_at for row in result.rows)
            for row in sorted(result.rows, key=lambda row: row.number):
                time_us = row.measurement.time_us if row.measurement and row.outcome.has_time else None
                best = min(best, time_us or best)
                since = (row.finished_at or row.started_at) - begin
                known = "" if best == float("inf") else f"{best:.3f}"
                shown = "" if time_us is None else f"{time_us:.3f}"
                writer.writerow([result.problem, row.number, row.outcome, shown, known, f"{since:.2f}"])


def bench(
    open_device: OpenDevice,
    shapes: Sequence[str],
    seconds: float,
    out: Path,
    workers: int = 8,
    libraries: Libraries | None = None,
) -> Path:
    """Bench all shapes and write table, history and rows.

    Returns:
        The directory that holds them.
    """
    device = open_device()
    gpu, opened = device.name.removeprefix("cuda:"), device.opened
    device.close()
    driver = opened.driver_version or f"CUDA {opened.facts.cuda_version // 1000}"
    place = out / gpu.lower().replace(" ", "-")
    place.mkdir(parents=True, exist_ok=True)
    results: list[ShapeResult] = []
    failed: dict[str, str] = {}
    ends_at = time.monotonic() + seconds
    for number, shape in enumerate(shapes):
        share = (ends_at - time.monotonic()) / (len(shapes) - number)
        try:
            results.append(tune_shape(open_device, shape, place, share, workers, libraries))
        except (CandidateError, DeviceError, HaltedError) as error:
            failed[shape] = str(error)
            print(f"{shape}: {error}", flush=True)
        else:
            best = results[-1]
            print(f"{shape}: {best.final.time_us:.1f} us after {len(best.rows)} trials", flush=True)
        # Written after each shape: an abort keeps what is done.
        (place / "table.md").write_text(table_of(results, failed, gpu, driver))
        write_history(results, place / "history.csv")
    return place


def main() -> None:
    """Read the command line and bench."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=7.5, help="the last shape may overrun a little")
    parser.add_argument("--shape", action="append", help="MxNxK; may be repeated")
    parser.add_argument("--device", default="", help="what follows cuda: N or all")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "measured")
    parser.add_argument("--workers", type=int, default=8)
    given = parser.parse_args()
    try:
        place = bench(
            lambda: open_cuda(given.device),
            given.shape or SHAPES,
            60 * given.minutes,
            given.out,
            given.workers,
        )
    except DeviceError as error:
        sys.exit(str(error))
    print((place / "table.md").read_text())


if __name__ == "__main__":
    main()
