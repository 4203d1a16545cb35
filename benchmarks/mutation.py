"""Mutants of fourteen schedules of each kernel: the tables of `docs/detection.md`.

    python benchmarks/mutation.py KERNEL ... --mutants 66 --rows rows.jsonl
    python benchmarks/mutation.py KERNEL ... --mutants 66 --rows rows.jsonl --table measured/mutation.md

Each finished schedule is appended to the rows file and is not repeated while its text, its plan and its edge
problems stay as they are and no more mutants are wanted: a stopped benchmark goes on where it was. `--part
0:5` does the first five schedules of each kernel. The rules that prove mutants equivalent are asked again
each time, of those that no rule had proven.

The schedules of the forward kernels are named and small, so that it takes minutes; those of others are drawn
from the space. Together they hold every level of every parameter. Exit code 1 where a mutant was missed or
is alive.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from mutation_tables import UNPROVEN, Row, tables

from emitters import kernel_named
from emitters.kernel import canonical_json, schedule_values
from emitters.target import Target
from search_spaces import space_for
from search_spaces.space import Space
from tuner.checking import absent_levels
from tuner.mutation import Fate, mutate
from tuner.mutation.context import Context
from tuner.mutation.equivalence import reason
from tuner.mutation.sampling import every_mutant
from tuner.ptxas import Assembler
from tuner.schedules import schedule_text

TARGET = Target.of("sm_89")
_TILES = [
    (32, 128, 1, 2),
    (64, 64, 1, 2),
    (64, 64, 2, 1),
    (128, 32, 2, 1),
    (16, 256, 1, 4),
    (256, 32, 4, 1),
    (32, 128, 2, 2),
    (128, 32, 2, 2),
]
"""tile_m, tile_n, warps_m, warps_n."""
_DENSE: list[tuple[int, dict[str, Any]]] = [
    (0, {}),
    (1, {"stages": 2}),
    (2, {"stages": 3, "tile_k": 64}),
    (7, {"stages": 4, "min_blocks": 3}),
    (1, {"stages": 5, "fragment_load": "ld.shared", "warps_m": 2}),
    (6, {"stages": 6, "copy_bytes": 4, "min_blocks": 2}),
    (0, {"stages": 2, "tile_k": 128, "stride_pad": 0, "swizzle": True}),
    (1, {"stages": 3, "tile_k": 64, "stride_pad": 0, "swizzle": True, "raster": 8}),
    (2, {"tile_k": 128, "split_k": 4}),
    (5, {"stages": 2, "stride_pad": 0, "swizzle": True, "copy_bytes": 8}),
    (4, {"stages": 3, "split_k": 2}),
    (0, {"stages": 4, "split_k": 8}),
    (1, {"tile_k": 64, "fragment_load": "ld.shared", "warps_m": 2, "stride_pad": 0, "swizzle": True}),
    (3, {"stages": 3, "raster": 8, "min_blocks": 4}),
]
_TERNARY: list[tuple[int, dict[str, Any]]] = [
    (0, {}),
    (1, {"stages": 2}),
    (2, {"stages": 3, "tile_k": 64, "copy_bytes": 8}),
    (7, {"stages": 5, "split_k": 2, "min_blocks": 2}),
    (1, {"stages": 2, "fragment_load": "ld.shared", "warps_m": 2, "stride_pad": 0, "swizzle": True}),
    (0, {"decode": "register"}),
    (6, {"stages": 6, "raster": 8, "min_blocks": 3}),
    (2, {"decode": "register", "stages": 2, "tile_k": 64, "split_k": 4}),
    (0, {"decode": "register", "stages": 5, "copy_bytes": 16, "stride_pad": 0, "swizzle": True}),
    (4, {"decode": "register", "stages": 4, "copy_bytes": 8}),
    (5, {"weight_layout": "fragment"}),
    (2, {"weight_layout": "fragment", "stages": 3, "tile_k": 64}),
    (3, {"weight_layout": "fragment", "stages": 6, "split_k": 8}),
    (0, {"weight_layout": "fragment", "stages": 2, "tile_k": 128, "raster": 8, "min_blocks": 4}),
]


_NAMED = {"gemm_s8": _DENSE, "ternary_gemm_s8": _TERNARY}
_COUNT = 14
_DRAWS = 3000
_LARGEST_TILE = 8192
_SEED = 0


def schedules(kernel: str) -> list[dict[str, Any]]:
    """The schedules of a kernel, each in its search space."""
    entry = kernel_named(kernel)
    space = space_for(entry.id, TARGET)
    if entry.id not in _NAMED:
        return _drawn(space)
    found = []
    for tile, change in _NAMED[entry.id]:
        m, n, warps_m, warps_n = _TILES[tile]
        if change.get("weight_layout") == "fragment":
            change = {"decode": "register", "copy_bytes": 16, **change}
        shape = {"tile_m": m, "tile_n": n, "warps_m": warps_m, "warps_n": warps_n}
        schedule = {**schedule_values(entry.baseline), **shape, **change}
        space.index(schedule)
        found.append(schedule)
    return found


def _drawn(space: Space) -> list[dict[str, Any]]:
    """Random schedules, of tiles of `_LARGEST_TILE` elements at most; each the one that adds most levels."""
    order = np.random.default_rng(_SEED).permutation(len(space))[:_DRAWS]
    drawn = [values for number in order if _is_small(values := space.values(int(number)))]
    found: list[dict[str, Any]] = []
    seen: set[tuple[str, Any]] = set()
    while len(found) < _COUNT:
        added = [len(values.items() - seen) for values in drawn]
        best = drawn.pop(int(np.argmax(added)))
        found.append(best)
        seen |= best.items()
    return found


def _is_small(values: dict[str, Any]) -> bool:
    return int(values.get("tile_m", 1)) * int(values.get("tile_n", 1)) <= _LARGEST_TILE


def label(kernel: str, schedule: dict[str, Any]) -> str:
    """What a schedule changes of the hand-written one."""
    usual = schedule_values(kernel_named(kernel).baseline)
    return schedule_text({name: value for name, value in schedule.items() if value != usual[name]})


def key(kernel: str, schedule: dict[str, Any], seed: int) -> str:
    """What a row stands for: the text, the plan, the edge problems and what is drawn first."""
    entry = kernel_named(kernel)
    typed = entry.schedule(schedule)
    edges = [str(problem) for problem in entry.edge_problems(typed)]
    return canonical_json([entry.id, entry.emit(typed, TARGET).source_hash, edges, seed])


def measured(kernel: str, schedule: dict[str, Any], mutants: int, seed: int, workers: int) -> Row:
    """Mutate one schedule."""
    started = time.monotonic()
    one = mutate(kernel, schedule, TARGET, mutants, seed, Assembler(), workers)
    judged = [
        (judged.fate.value, judged.why, judged.mutant.operator, str(judged.mutant), judged.detail)
        for judged in one.judged
    ]
    seconds = round(time.monotonic() - started, 1)
    return Row(key(kernel, schedule, seed), kernel, label(kernel, schedule), one.possible, seconds, judged)


def asked_again(row: Row, schedule: dict[str, Any]) -> Row:
    """The row, with the reasons that the rules give for what rested on problems alone."""
    if not any(why in UNPROVEN for _, why, *_ in row.judged):
        return row
    entry = kernel_named(row.kernel)
    emitted = entry.emit(entry.schedule(schedule), TARGET)
    context = Context(emitted, entry.spec)
    by_text = {str(mutant): mutant for each in every_mutant(emitted).values() for mutant in each}
    judged = [
        (
            fate,
            (reason(context, by_text[mutant]) or why) if why in UNPROVEN else why,
            operator,
            mutant,
            detail,
        )
        for fate, why, operator, mutant, detail in row.judged
    ]
    return replace(row, judged=judged)


def rows_of(path: Path) -> dict[str, Row]:
    """Rows by key; the later of two holds."""
    if not path.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in path.read_text().splitlines()]
    return {row.key: row for row in rows}


def _wanted(given: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    first, last = (int(text) if text else None for text in given.part.split(":"))
    for name in given.kernels:
        kernel = kernel_named(name).id
        chosen = schedules(kernel)
        absent = absent_levels(space_for(kernel, TARGET), chosen)
        print(f"{kernel}: levels in no schedule: {', '.join(absent) or 'none'}", flush=True)
        for schedule in chosen[first:last]:
            yield kernel, schedule


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernels", nargs="+")
    parser.add_argument("--mutants", type=int, default=66, help="of each schedule")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--part", default=":", help="which schedules of each kernel, as 0:5")
    parser.add_argument("--rows", type=Path, required=True, help="where finished schedules are appended")
    parser.add_argument("--table", type=Path, help="Markdown file to write")
    parser.add_argument("--only-table", action="store_true", help="of what is there; nothing is run")
    given = parser.parse_args()
    known = rows_of(given.rows)
    found: list[Row] = []
    for kernel, schedule in _wanted(given):
        row = known.get(key(kernel, schedule, given.seed))
        if given.only_table and row is None:
            continue
        if row is None or (len(row.judged) < min(given.mutants, row.possible) and not given.only_table):
            row = measured(kernel, schedule, given.mutants, given.seed, given.workers)
            with given.rows.open("a") as file:
                file.write(json.dumps(row.__dict__) + "\n")
            print(row.line, flush=True)
        found.append(asked_again(row, schedule))
    if given.table:
        given.table.write_text(tables(found))
    return 1 if any(row.count(fate) for row in found for fate in (Fate.MISSED, Fate.ALIVE)) else 0


if __name__ == "__main__":
    sys.exit(main())
