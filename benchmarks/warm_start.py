"""How much sooner a search finds the best when it has seen other devices: leave one recording out.

    python benchmarks/warm_start.py spaces/*.json.gz --seeds 8

Files are named KERNEL_DEVICE.json.gz. Each is searched with the complete recordings of the other devices of
its kernel as sources; with `--cold` without them too, with `--alone` with each of them alone too. With
`--part 0.85` a search is shown a random part of each recording instead, another one for every seed. A line of
JSON a run goes to the file of `--rows`; runs that it has are not repeated. Printed is optimum/best, the mean.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from search import read_with_t1
from search_contestants import space_of

from results.trial import Outcome
from search_spaces.space import Space
from tuner.devices.recorded import Recording
from tuner.samplers.auto import AutoCore, make_auto
from tuner.samplers.base import Past, Subject
from tuner.samplers.coordinates import Floats
from tuner.samplers.transfer import Source

BUDGETS = (10, 25, 50, 100)
_ALONE = "from "


def shares(core: AutoCore, space: Space, recording: Recording, seed: int) -> list[float]:
    """Optimum over the best so far after each evaluation; the search ends where it is 1."""
    optimum = float(np.nanmin(recording.times_us))
    asked: list[int] = []
    found: list[float] = []
    for number in range(min(BUDGETS[-1], len(space))):
        known = np.array(asked, dtype=np.int64)
        times_us = recording.times_us[known]
        outcomes = tuple(Outcome.CRASH if np.isnan(time) else Outcome.OK for time in times_us)
        past = Past(known, times_us, outcomes, known[:0])
        asked.append(core.propose(past, space, np.random.default_rng([seed, number])))
        seen = recording.times_us[asked]
        found.append(0.0 if np.isnan(seen).all() else optimum / float(np.nanmin(seen)))
        if found[-1] == 1:
            break
    return found


def part_of(source: Source, part: float, seed: int) -> Source:
    """A random part of a source's results, in their order."""
    count = round(part * len(source.schedules))
    kept = np.sort(
        np.random.default_rng([seed, len(source.schedules)]).permutation(len(source.schedules))[:count]
    )
    return Source(source.name, source.schedules[kept], source.times_us[kept])


def sources_for(space: Space, others: Sequence[Path]) -> tuple[Source, ...]:
    """Complete recordings of other devices."""
    sources = []
    for file in others:
        told = read_with_t1(file)
        rows = [(told.schedule(n), float(told.times_us[n])) for n in range(len(told))]
        sources.append(Source.of(_name(file), space, rows))
    return tuple(sources)


def table(rows: Sequence[dict[str, object]], names: Sequence[str]) -> list[str]:
    """Markdown, a row a space and kind of start, with the standard error at 25; then means over spaces."""
    lines = [
        f"| space | start | seeds | {' | '.join(map(str, BUDGETS))} |",
        "|---" * (3 + len(BUDGETS)) + "|",
    ]
    means: dict[str, list[Floats]] = {}
    for name in names:
        for start in dict.fromkeys(str(row["start"]) for row in rows if row["space"] == name):
            runs = [row["found"] for row in rows if (row["space"], row["start"]) == (name, start)]
            values = np.array([[run[min(b, len(run)) - 1] for b in BUDGETS] for run in runs])  # type: ignore[index,arg-type]
            cells = [f"{mean:.3f}" for mean in values.mean(axis=0)]
            if len(runs) > 1:
                cells[1] += f" ± {values[:, 1].std(ddof=1) / len(runs) ** 0.5:.3f}"
            lines.append(f"| {name} | {start} | {len(runs)} | {' | '.join(cells)} |")
            means.setdefault(_kind(start), []).append(values.mean(axis=0))
    for kind, over in means.items():
        cells = [f"{mean:.3f}" for mean in np.mean(over, axis=0)]
        lines.append(f"| mean of {len(over)} | {kind} | | {' | '.join(cells)} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", type=Path, help="recorded spaces, KERNEL_DEVICE.json.gz")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--cold", action="store_true", help="without sources too")
    parser.add_argument("--alone", action="store_true", help="with each source alone too")
    parser.add_argument("--part", type=float, default=1.0, help="of each recording that a search is shown")
    parser.add_argument("--rows", type=Path, default=Path("warm_start_rows.jsonl"), help="kept here")
    given = parser.parse_args(arguments)
    if not 0 < given.part <= 1:
        parser.error(f"--part must be above 0 and at most 1, got {given.part}")
    lines = given.rows.read_text().splitlines() if given.rows.exists() else []
    rows = [json.loads(line) for line in lines]
    done = {(row["space"], row["start"], row["seed"]) for row in rows}
    for file in given.files:
        recording = read_with_t1(file)
        space = space_of(recording)
        for start, others in starts(file, given.files, given.part, given.cold, given.alone).items():
            todo = [seed for seed in range(given.seeds) if (_name(file), start, seed) not in done]
            sources = sources_for(space, others) if todo else ()
            whole = make_auto(Subject(space, {}, sources)) if given.part == 1 else None
            for seed in todo:
                parts = tuple(part_of(source, given.part, seed) for source in sources)
                core = whole or make_auto(Subject(space, {}, parts))
                found = shares(core, space, recording, seed)
                rows.append({"space": _name(file), "start": start, "seed": seed, "found": found})
                with given.rows.open("a") as out:
                    out.write(json.dumps(rows[-1]) + "\n")
    print("\n".join(table(rows, [_name(file) for file in given.files])))
    return 0


def starts(
    file: Path, files: Sequence[Path], part: float, cold: bool, alone: bool
) -> dict[str, tuple[Path, ...]]:
    """Sources of each kind of start, by what it is called."""
    others = tuple(o for o in files if o != file and o.name.split("_")[0] == file.name.split("_")[0])
    shown = "" if part == 1 else f", {part:g} of it"
    kinds = {f"warm{shown}": others} if others else {}
    if alone and len(others) > 1:
        kinds |= {f"{_ALONE}{_name(other).split('_', 1)[1]}{shown}": (other,) for other in others}
    return kinds | ({"cold": ()} if cold else {})


def _kind(start: str) -> str:
    """Starts whose mean is of interest: with all sources, with one, without."""
    return (
        f"one source{start.partition(',')[1]}{start.partition(',')[2]}" if start.startswith(_ALONE) else start
    )


def _name(file: Path) -> str:
    return file.name.removesuffix(".gz").removesuffix(".json")


if __name__ == "__main__":
    sys.exit(main())
