"""How often the rules of timing err: on simulated noise, on recorded noise, and among finalists.

    python benchmarks/timing_errors.py [--runs 2000] [--recorded DIR]

Prints the tables of docs/timing.md. DIR holds caches of Kernel Tuner with every single time (``times``), as
the FAIR Benchmark Hub for Auto-Tuning publishes them (DOI 10.5281/zenodo.15364124); without it they are left
out.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from tuner.devices.cuda import ROUNDS
from tuner.devices.recorded import read_recording
from tuner.devices.timing import Comparison, Decision, StoppingRule, compare

Times = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Times]
"""So many repeats of something that takes 1."""

SPREAD = 0.01


def white(rng: np.random.Generator, count: int, spread: float = SPREAD) -> Times:
    """Independent and normal."""
    return 1 + spread * rng.standard_normal(count)


def disturbed(rng: np.random.Generator, count: int) -> Times:
    """One repeat in twenty takes half as long again."""
    return white(rng, count) * np.where(rng.random(count) < 0.05, 1.5, 1.0)


def heavy(rng: np.random.Generator, count: int) -> Times:
    """Student's t of 2 degrees of freedom: no variance."""
    return np.maximum(1 + 0.5 * SPREAD * rng.standard_t(2, count), 0.5)


def autoregressive(rng: np.random.Generator, count: int, memory: float) -> Times:
    """AR(1): each error carries `memory` of the one before."""
    fresh = np.sqrt(1 - memory**2) * rng.standard_normal(count)
    fresh[0] = rng.standard_normal()
    errors: Times = lfilter([1.0], [1.0, -memory], fresh)
    return 1 + SPREAD * errors


def drifting(rng: np.random.Generator, count: int) -> Times:
    """Rises by 1 % over the first 100 repeats, as a GPU that warms up."""
    return white(rng, count) + 0.01 * np.minimum(np.arange(count) / 100, 1)


NOISES: Mapping[str, Noise] = {
    "normal, 1 %": white,
    "normal, 3 %": partial(white, spread=0.03),
    "1 in 20 takes half as long again": disturbed,
    "Student's t, 2 degrees of freedom": heavy,
    "each error carries 0.5 of the last": partial(autoregressive, memory=0.5),
    "each error carries 0.8 of the last": partial(autoregressive, memory=0.8),
    "each error carries 0.9 of the last": partial(autoregressive, memory=0.9),
    "rises by 1 % over 100 repeats": drifting,
}

RECORDINGS = {
    "convolution_A100": "A100, convolution",
    "convolution_A4000": "A4000, convolution",
    "convolution_W7800": "W7800, convolution",
    "gemm_RTX_3090": "RTX 3090, GEMM",
    "dedispersion_A4000": "A4000, dedispersion",
    "dedispersion_W7800": "W7800, dedispersion",
}


def stopped(rule: StoppingRule, times: Sequence[float], best: float | None) -> tuple[Decision, int]:
    """What the rule decides about these repeats, and after how many."""
    for look in rule.looks:
        decision = rule.decide(times[:look], best)
        if decision is not Decision.CONTINUE:
            return decision, look
    raise AssertionError("the last look always decides")


def rates(noise: Noise, runs: int, rng: np.random.Generator) -> list[str]:
    """A row of the table of simulated noise."""
    rule = StoppingRule()
    most = rule.looks[-1]

    def stops(slower_by: float) -> tuple[float, float]:
        """Share of runs that are stopped as slower, and the median repeats of those."""
        ends = [stopped(rule, noise(rng, most).tolist(), 1 / (1 + slower_by)) for _ in range(runs)]
        after = [look for decision, look in ends if decision is Decision.SLOWER]
        return len(after) / runs, float(np.median(after)) if after else 0.0

    def shown(slower_by: float) -> str:
        share, after = stops(slower_by)
        return f"{100 * share:.3g} %, {after:.0f}"

    precise: list[tuple[int, float]] = []
    for _ in range(runs):
        times = noise(rng, most).tolist()
        decision, look = stopped(rule, times, None)
        if decision is Decision.PRECISE:
            precise.append((look, abs(float(np.median(times[:look])) - 1)))
    off = [error > rule.precision for _, error in precise]
    return [
        f"{100 * stops(rule.slower_margin)[0]:.2g} %",
        f"{100 * stops(0.0)[0]:.2g} %",
        shown(0.05),
        shown(0.3),
        f"{100 * len(precise) / runs:.3g} %, {np.mean([look for look, _ in precise]):.0f}"
        if precise
        else "0 %",
        f"{100 * np.mean(off):.2g} %" if off else "-",
    ]


def recorded(path: Path) -> list[list[float]]:
    """All repeats of every schedule of a cache that has a time."""
    repeats = (row[~np.isnan(row)].tolist() for row in read_recording(path).raw_us)
    return [times for times in repeats if times]


def blocks_of(recordings: Sequence[Sequence[float]]) -> Noise:
    """Noise that strings recorded measurements together, each about its own median."""
    pieces = [np.array(times) / np.median(times) for times in recordings]

    def noise(rng: np.random.Generator, count: int) -> Times:
        chosen: list[Times] = []
        while sum(map(len, chosen)) < count:
            chosen.append(pieces[rng.integers(len(pieces))])
        return np.concatenate(chosen)[:count]

    return noise


def recorded_rates(recordings: Sequence[Sequence[float]], runs: int, rng: np.random.Generator) -> list[str]:
    """A row of the table of recordings: each schedule against its own median, and against itself in pairs."""
    rule = StoppingRule(most_repeats=20)
    chosen = [recordings[i] for i in rng.permutation(len(recordings))[:runs]]
    wrong = precise = off = wins = 0
    for times in chosen:
        truth = float(np.median(times))
        wrong += stopped(rule, times, truth)[0] is Decision.SLOWER
        decision, look = stopped(rule, times, None)
        if decision is Decision.PRECISE:
            precise += 1
            off += abs(float(np.median(times[:look])) / truth - 1) > rule.precision
        wins += compare(list(zip(times[0::2], times[1::2], strict=True))).winner is not None
    return [
        f"{100 * wrong / len(chosen):.2g} %",
        f"{100 * precise / len(chosen):.3g} %",
        f"{100 * off / max(1, precise):.2g} %",
        f"{100 * wins / len(chosen):.2g} %",
    ]


FINALISTS: Mapping[str, Sequence[float]] = {
    "four equals": (1, 1, 1, 1),
    "0.5 % faster than one": (1, 1.005),
    "1 % faster than one": (1, 1.01),
    "1.5 % faster than three": (1, 1.015, 1.015, 1.015),
    "2 % faster than three": (1, 1.02, 1.02, 1.02),
}
PAIRED: Mapping[str, Noise] = {
    "independent": white,
    "carries 0.5": partial(autoregressive, memory=0.5),
    "carries 0.8": partial(autoregressive, memory=0.8),
}


def final(noise: Noise, relative: Sequence[float], rng: np.random.Generator) -> Comparison:
    """Finalists with noise of 0.7 % of their own under a common drift of 5 %."""
    drift = 1 + 0.05 * np.linspace(0, 1, ROUNDS)
    columns = [drift * time * (1 + 0.7 * (noise(rng, ROUNDS) - 1)) for time in relative]
    return compare(np.array(columns).T.tolist())


def final_rates(relative: Sequence[float], runs: int, rng: np.random.Generator) -> list[str]:
    """A row of the table of finals: how often the first is declared the winner, and another one is."""
    cells = []
    for noise in PAIRED.values():
        winners = [final(noise, relative, rng).winner for _ in range(runs)]
        first = sum(winner == 0 for winner in winners) / runs
        other = sum(winner not in (None, 0) for winner in winners) / runs
        cells.append(f"{100 * first:.3g} %, {100 * other:.2g} %")
    return cells


def table(head: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *([name, *cells] for name, cells in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--recorded", type=Path, help="directory of caches with every single time")
    given = parser.parse_args()
    rng = np.random.default_rng(1)
    noises = dict(NOISES)
    spaces: dict[str, list[list[float]]] = {}
    if given.recorded is not None:
        for name, title in RECORDINGS.items():
            path = given.recorded / f"{name}.json.gz"
            if path.exists():
                spaces[title] = recorded(path)
                noises[f"recorded: {title}"] = blocks_of(spaces[title])
    head = ["noise", "exactly at the limit, stopped", "as fast, stopped", "5 % slower: stopped, after"]
    head += ["30 % slower: stopped, after", "precise, after", "off"]
    print(table(head, {name: rates(noise, given.runs, rng) for name, noise in noises.items()}), flush=True)
    if spaces:
        head = ["recorded on", "as fast, stopped", "precise by 20 repeats", "off", "beats itself"]
        print(table(head, {title: recorded_rates(times, given.runs, rng) for title, times in spaces.items()}))
    rows = {name: final_rates(relative, given.runs, rng) for name, relative in FINALISTS.items()}
    print(table(["finalists", *PAIRED], rows))


if __name__ == "__main__":
    main()
