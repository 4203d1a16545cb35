"""Random programs of loads, stores, atomics and barriers, against an oracle that checks every pair of
accesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
from ptx_harness import entry, run

THREADS, CELLS = 64, 12


@dataclass(frozen=True)
class Access:
    """What `thread` does to `cell`; `clock` is what the thread knows of every thread at that time."""

    kind: str
    thread: int
    cell: int
    clock: tuple[int, ...]
    time: int


def _program(seed: int, finer: bool) -> tuple[str, bool]:
    """Return (PTX body, whether the oracle finds a race) of a random straight-line program.
    A step is an access by a random range of threads, or a barrier: of the block, of every warp, or a named
    one with a thread count.

    """
    rng = np.random.default_rng(seed)
    clocks = [[int(u == t) for u in range(THREADS)] for t in range(THREADS)]
    accesses: list[Access] = []
    lines = []
    for _ in range(int(rng.integers(3, 9))):
        action = rng.choice(
            ["ld", "st", "atom", "bar", "warp", "named"], p=[0.25, 0.25, 0.1, 0.25, 0.1, 0.05]
        )
        if action in ("warp", "named") and not finer:
            action = "bar"
        if action in ("bar", "warp", "named"):
            lines.append(
                {"bar": "bar.sync 0;", "warp": "bar.warp.sync -1;", "named": "bar.sync 1, 64;"}[action]
            )
            groups = [range(0, 32), range(32, 64)] if action == "warp" else [range(THREADS)]
            for group in groups:
                joined = [max(clocks[t][u] for t in group) for u in range(THREADS)]
                for t in group:
                    clocks[t] = list(joined)
                    clocks[t][t] += 1
            continue
        first, step, start = (
            int(rng.integers(0, THREADS)),
            int(rng.integers(0, 3)),
            int(rng.integers(0, CELLS)),
        )
        count = int(rng.integers(1, 5))
        threads = range(first, min(first + count, THREADS))
        cells = {t: (start + step * (t - first)) % CELLS for t in threads}
        lines.append(f"setp.ge.u32 %p1, %r0, {first}; setp.lt.and.u32 %p1, %r0, {threads.stop}, %p1;")
        lines.append(f"sub.u32 %r7, %r0, {first}; mul.lo.u32 %r7, %r7, {step}; add.u32 %r7, %r7, {start};")
        lines.append(f"rem.u32 %r7, %r7, {CELLS}; mad.lo.u32 %r7, %r7, 4, %r4;")
        text = {
            "ld": "ld.shared.u32 %r9, [%r7];",
            "st": "st.shared.u32 [%r7], %r0;",
            "atom": "atom.shared.add.u32 %r9, [%r7], 1;",
        }
        lines.append(f"@%p1 {text[str(action)]}")
        accesses += [Access(str(action), t, cells[t], tuple(clocks[t]), clocks[t][t]) for t in threads]
    return "\n".join(lines), any(_races(a, b) for a, b in combinations(accesses, 2))


def _races(first: Access, second: Access) -> bool:
    if first.cell != second.cell or first.thread == second.thread:
        return False
    if {first.kind, second.kind} in ({"ld"}, {"atom"}):
        return False
    return first.time > second.clock[first.thread] and second.time > first.clock[second.thread]


def _check(seed: int) -> bool:
    """Compare one program; return whether it races."""
    body, expected = _program(seed, finer=bool(seed % 2))
    start = (
        "mov.u32 %r0, %tid.x; ld.param.u64 %rd1, [c]; mov.u32 %r9, 0;"
        "\n.shared .align 4 .b8 tile[48];\n mov.u32 %r4, tile;"
    )
    start += (
        f"setp.lt.u32 %p1, %r0, {CELLS}; mad.lo.u32 %r5, %r0, 4, %r4; "
        f"@%p1 st.shared.u32 [%r5], 0; bar.sync 0;\n"
    )
    text = entry(start + body + "\nmad.wide.u32 %rd3, %r0, 4, %rd1; st.global.u32 [%rd3], %r9; ret;")
    report = run(text, {"a": np.zeros(1, np.uint32), "c": np.zeros(THREADS, np.uint32)}, block=THREADS)
    found = any(fault.kind == "race" for fault in report.faults)
    assert found == expected, (
        f"seed {seed}: found {found}, expected {expected}\n{body}\n{list(map(str, report.faults))}"
    )
    assert all(fault.kind == "race" for fault in report.faults), list(map(str, report.faults))
    return expected


def test_random_programs_agree_with_the_oracle() -> None:
    racing = sum(_check(seed) for seed in range(200))
    assert 40 < racing < 160  # both answers are common, so neither is right by accident


@pytest.mark.slow
def test_five_thousand_random_programs_agree_with_the_oracle() -> None:
    assert 1000 < sum(_check(seed) for seed in range(1000, 6000)) < 4000
