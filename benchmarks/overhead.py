"""What the search itself costs: ask and tell of a sampler, with the storage that `tune run` has.

    OPENBLAS_NUM_THREADS=1 python benchmarks/overhead.py
    OPENBLAS_NUM_THREADS=1 python benchmarks/overhead.py --spaces 18000 --trials 200 1000 --count 100

A study of made-up times is filled by chance up to each number of trials; then the sampler is asked and told,
as the loop of `tune run` does it (claim, evaluate, tell), in the journal at OUT/study.log. A row of the table
is one space at one number of trials; each space has a process of its own, whose peak of memory is given.

Milliseconds of ask and tell together: processor time of the process, with what the kernel does for it, and
wall time. `core` is the thinking, `storage` writing and reading the journal with its locks and JSON, `rest`
Optuna's own and ours between the two.
"""

import argparse
import itertools
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from emitters.target import Target
from results.trial import Measurement, Outcome, Source, StudyKey, Trial
from search_spaces.listed import ListedSpace
from search_spaces.space import Parameter, Space
from tuner.journal import Journal
from tuner.ledger import Ledger
from tuner.locks import Presence
from tuner.samplers import SAMPLERS, sampler_named
from tuner.samplers.base import Past, Subject, ValidSetSampler

_COUNTS = (4, 4, 4, 4, 4, 4, 4, 4, 4, 4)  # a million combinations


@dataclass
class Clock:
    """Seconds of processor and wall time that went into something."""

    processor_s: float = 0.0
    wall_s: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        processor, wall = time.process_time(), time.perf_counter()
        try:
            yield
        finally:
            self.processor_s += time.process_time() - processor
            self.wall_s += time.perf_counter() - wall


@dataclass
class Clocks:
    """Where the time of one ask and tell went."""

    whole: Clock = field(default_factory=Clock)
    core: Clock = field(default_factory=Clock)
    storage: Clock = field(default_factory=Clock)


class TimedCore:
    """A core on the clock."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.clock = Clock()

    def propose(self, past: Past, space: Space, rng: np.random.Generator) -> int:
        with self.clock.running():
            return int(self.core.propose(past, space, rng))


@contextmanager
def storage_on(clock: Callable[[], Clock]) -> Iterator[None]:
    """Time everything that the journal does."""
    append, read = Journal.append_logs, Journal.read_logs

    def append_logs(self: Journal, logs: list[dict[str, Any]]) -> None:
        with clock().running():
            append(self, logs)

    def read_logs(self: Journal, log_number_from: int) -> Iterator[dict[str, Any]]:
        with clock().running():
            logs = list(read(self, log_number_from))
        yield from logs

    Journal.append_logs, Journal.read_logs = append_logs, read_logs  # type: ignore[method-assign]
    try:
        yield
    finally:
        Journal.append_logs, Journal.read_logs = append, read  # type: ignore[method-assign]


@dataclass(frozen=True)
class Row:
    """One space at one number of trials; milliseconds have shape (asks,)."""

    space: int
    trials: int
    processor_ms: np.ndarray
    wall_ms: np.ndarray
    core_ms: np.ndarray
    storage_ms: np.ndarray
    memory_mb: float


def space_of(size: int) -> Space:
    """A made-up space of ten parameters with four levels; those beyond the size are left out by chance."""
    parameters = tuple(
        Parameter(f"p{number}", tuple(1 << level for level in range(count)), "power", "made up")
        for number, count in enumerate(_COUNTS)
    )
    levels = np.array(list(itertools.product(*(range(count) for count in _COUNTS))), dtype=np.int16)
    kept = np.sort(np.random.default_rng(0).permutation(len(levels))[:size])
    return ListedSpace("made_up", parameters, (), Target.of("sm_80"), levels[kept])


def time_us(levels: np.ndarray) -> float | None:
    """A made-up time: main effects, two interactions, and a corner that fails."""
    at = levels.astype(np.float64)
    if at[0] == 3 and at[1] == 3:
        return None
    return float(np.exp(0.1 * np.abs(at - 1.5).sum() + 0.2 * at[2] * at[3] - 0.1 * at[4] * at[5]))


def row_for(key: StudyKey, number: int, space: Space, schedule: int) -> Trial:
    """What the device would have said."""
    us = time_us(space.levels[schedule])
    timed = None if us is None else Measurement(us, Source.MODEL, (us,), "made up")
    outcome = Outcome.OK if timed else Outcome.TIMEOUT
    message = "" if timed else "a made-up schedule that fails"
    values = space.values(schedule)
    return Trial(key.name, number, key, values, outcome, message, measurement=timed)


def measure(sampler: str, size: int, at: Sequence[int], count: int, seed: int) -> list[Row]:
    """Rows of one space, in this process."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = space_of(size)
    core = TimedCore(SAMPLERS[sampler].make(Subject(space)))
    asked = ValidSetSampler(sampler, core, space, seed)
    chance = sampler_named("random", Subject(space), seed)
    key = StudyKey("made_up", "0" * 64, "1", "sm_80", "made up", "made up", "time", "0" * 64)
    storage = Clock()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        out = Path(place)
        presence = Presence(out)
        ledger = Ledger(out, key.name, key, space, presence, {"seed": seed})

        def step(by: ValidSetSampler) -> None:
            claim = ledger.claim(by, sys.maxsize, None)
            assert claim is not None
            ledger.tell(row_for(key, claim.number, space, space.index(claim.schedule)))

        done = 0
        for trials in sorted(at):
            while done < trials:
                step(chance)
                done += 1
            step(asked)  # builds what the model keeps of the space
            done += 1
            measured: list[tuple[float, float, float, float]] = []
            for _ in range(count):
                storage, core.clock, whole = Clock(), Clock(), Clock()
                with storage_on(lambda: storage), whole.running():  # noqa: B023
                    step(asked)
                done += 1
                measured.append(
                    (whole.processor_s, whole.wall_s, core.clock.processor_s, storage.processor_s)
                )
            columns = 1e3 * np.array(measured).T
            peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            rows.append(Row(len(space), trials, *columns, peak_mb))
        presence.close()
    return rows


def table(rows: Sequence[Row]) -> list[str]:
    """Markdown."""
    heads = ["schedules", "trials", "processor ms: median", "mean", "95 %", "wall ms: median", "mean", "95 %"]
    heads += ["median of core", "storage", "rest", "peak MB"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [f"{row.space:,}", f"{row.trials:,}"]
        for times in (row.processor_ms, row.wall_ms):
            cells += [f"{x:.1f}" for x in (np.median(times), times.mean(), np.quantile(times, 0.95))]
        rest = row.processor_ms - row.core_ms - row.storage_ms
        cells += [f"{np.median(part):.1f}" for part in (row.core_ms, row.storage_ms, rest)]
        lines.append("| " + " | ".join([*cells, f"{row.memory_mb:.0f}"]) + " |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--spaces", nargs="+", type=int, default=[18_000, 1_000_000], help="schedules")
    parser.add_argument("--trials", nargs="+", type=int, default=[200, 1_000], help="in the study")
    parser.add_argument("--count", type=int, default=100, help="asks and tells that are timed")
    parser.add_argument("--sampler", default="auto", choices=list(SAMPLERS))
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    most = int(np.prod(_COUNTS))
    if not all(given.trials[-1] + given.count < size <= most for size in given.spaces):
        parser.error(f"a space must have more schedules than are tried, and at most {most}")
    rows: list[Row] = []
    for size in given.spaces:  # a process each, for its own peak of memory
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            job = (given.sampler, size, given.trials, given.count, given.seed)
            rows += pool.apply(measure, job)
    print("\n".join(table(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
