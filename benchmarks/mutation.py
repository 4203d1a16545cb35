"""Mutants of fourteen schedules of a kernel: the tables of `docs/detection.md`.

The schedules of the forward kernels are small, so that it takes minutes; together they hold every level of
every parameter but the largest tiles. Of other kernels fourteen are drawn from the space. Run as
``python benchmarks/mutation.py --mutants 200 KERNEL ...``; exit code 1 where a mutant was missed or is alive.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from emitters import kernel_named
from emitters.kernel import schedule_values
from emitters.target import Target
from search_spaces import space_for
from search_spaces.space import Space
from tuner.mutation import Fate, Mutated, mutate
from tuner.mutation.judging import NO_PROBLEM_TELLS
from tuner.ptxas import Assembler
from tuner.schedules import schedule_text

TARGET = Target.of("sm_89")
_TILES = [(32, 128, 1, 2), (64, 64, 1, 2), (64, 64, 2, 1), (128, 32, 2, 1), (16, 256, 1, 4)]
"""tile_m, tile_n, warps_m, warps_n."""
_DENSE: list[tuple[int, dict[str, Any]]] = [
    (0, {}),
    (1, {"stages": 2}),
    (2, {"stages": 3, "tile_k": 64}),
    (3, {"stages": 4, "split_k": 2}),
    (1, {"stages": 5, "fragment_load": "ld.shared", "warps_m": 2}),
    (1, {"stages": 6, "copy_bytes": 4}),
    (0, {"stages": 2, "tile_k": 128, "stride_pad": 0, "swizzle": True}),
    (1, {"stages": 3, "tile_k": 64, "stride_pad": 0, "swizzle": True, "raster": 8}),
    (2, {"tile_k": 128, "split_k": 4}),
    (3, {"stages": 2, "stride_pad": 0, "swizzle": True, "copy_bytes": 8}),
    (4, {"stages": 3}),
    (0, {"stages": 4, "split_k": 8}),
    (1, {"tile_k": 64, "fragment_load": "ld.shared", "warps_m": 2, "stride_pad": 0, "swizzle": True}),
    (3, {"stages": 3, "raster": 8, "min_blocks": 4}),
]
_TERNARY: list[tuple[int, dict[str, Any]]] = [
    (0, {}),
    (1, {"stages": 2}),
    (2, {"stages": 3, "tile_k": 64, "copy_bytes": 8}),
    (3, {"stages": 4, "split_k": 2}),
    (1, {"stages": 2, "fragment_load": "ld.shared", "warps_m": 2, "stride_pad": 0, "swizzle": True}),
    (0, {"decode": "register"}),
    (1, {"decode": "register", "stages": 3, "raster": 8}),
    (2, {"decode": "register", "stages": 2, "tile_k": 64, "split_k": 4}),
    (0, {"decode": "register", "stages": 5, "copy_bytes": 16, "stride_pad": 0, "swizzle": True}),
    (4, {"decode": "register", "stages": 4, "copy_bytes": 8}),
    (1, {"weight_layout": "fragment"}),
    (2, {"weight_layout": "fragment", "stages": 3, "tile_k": 64}),
    (3, {"weight_layout": "fragment", "stages": 6, "split_k": 8}),
    (0, {"weight_layout": "fragment", "stages": 2, "tile_k": 128, "raster": 8, "min_blocks": 4}),
]


_NAMED = {"gemm_s8": _DENSE, "ternary_gemm_s8": _TERNARY}
_COUNT = 14
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
    """Random schedules; where they have tiles, of no more than `_LARGEST_TILE` elements."""
    found = []
    for number in np.random.default_rng(_SEED).permutation(len(space)):
        values = space.values(int(number))
        if int(values.get("tile_m", 1)) * int(values.get("tile_n", 1)) <= _LARGEST_TILE:
            found.append(values)
        if len(found) == _COUNT:
            break
    return found


def label(kernel: str, schedule: Mapping[str, Any]) -> str:
    """What a schedule changes of the hand-written one."""
    usual = schedule_values(kernel_named(kernel).baseline)
    return schedule_text({name: value for name, value in schedule.items() if value != usual[name]})


def row(kernel: str, one: Mutated, seconds: float) -> str:
    """One schedule as a row of a Markdown table."""
    killed = ", ".join(f"{why} {count}" for why, count in one.reasons(Fate.KILLED).most_common())
    counts = " | ".join(str(one.count(fate)) for fate in Fate)
    cells = (label(kernel, one.schedule), one.possible, len(one.judged), counts, killed, f"{seconds:.0f}")
    return f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernels", nargs="+")
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    bad = 0
    for kernel in given.kernels:
        equivalent: Counter[str] = Counter()
        killed: Counter[str] = Counter()
        print(f"## {kernel}\n")
        print("| schedule | possible | tried | killed | equivalent | missed | alive | killed by | s |")
        print("|---|---|---|---|---|---|---|---|---|", flush=True)
        told: list[str] = []
        shown = 0
        for schedule in schedules(kernel):
            started = time.monotonic()
            one = mutate(
                kernel_named(kernel).id,
                schedule,
                TARGET,
                given.mutants,
                given.seed,
                Assembler(),
                given.workers,
            )
            print(row(kernel, one, time.monotonic() - started), flush=True)
            equivalent += one.reasons(Fate.EQUIVALENT)
            killed += one.reasons(Fate.KILLED)
            told += [
                f"* {judged.fate}: {label(kernel, schedule)}: {judged.mutant}: {judged.why}: {judged.detail}"
                for judged in one.judged
                if judged.fate in (Fate.MISSED, Fate.ALIVE) or judged.why == NO_PROBLEM_TELLS
            ]
            for line in told[shown:]:
                print(line, file=sys.stderr, flush=True)
            shown = len(told)
            bad += one.count(Fate.MISSED) + one.count(Fate.ALIVE)
        print(f"\nkilled by: {dict(killed.most_common())}")
        print(f"equivalent: {dict(equivalent.most_common())}\n")
        print("\n".join(told), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
