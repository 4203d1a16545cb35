"""Rows of `benchmarks/mutation.py`, and the Markdown that they make: no measuring here."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.mutation import Fate
from tuner.mutation.judging import NO_PROBLEM_TELLS, WITHIN_BOUND

UNPROVEN = (NO_PROBLEM_TELLS, WITHIN_BOUND)
Judged = tuple[str, str, str, str, str]
"""Fate, why, operator, mutant and detail."""


@dataclass(frozen=True)
class Row:
    """The mutants of one schedule.

    Attributes:
        key: What the row stands for; see `mutation.key`.
        kernel: Id.
        label: What the schedule changes of the hand-written one.
        possible: How many mutants there are.
        seconds: That it took, of the clock.
        judged: Those that were tried.
    """

    key: str
    kernel: str
    label: str
    possible: int
    seconds: float
    judged: Sequence[Judged]

    def count(self, fate: Fate) -> int:
        return sum(one[0] == fate for one in self.judged)

    def reasons(self, fate: Fate) -> Counter[str]:
        """How many of a fate, by detector or reason."""
        return Counter(one[1] for one in self.judged if one[0] == fate)

    @property
    def line(self) -> str:
        """The row of a Markdown table."""
        equivalent = self.reasons(Fate.EQUIVALENT)
        unproven = f"{equivalent[NO_PROBLEM_TELLS]} | {equivalent[WITHIN_BOUND]}"
        counts = f"{self.count(Fate.KILLED)} | {self.count(Fate.EQUIVALENT)} | {unproven}"
        lacking = f"{self.count(Fate.MISSED)} | {self.count(Fate.ALIVE)}"
        by = _told(self.reasons(Fate.KILLED))
        label = self.label or "(hand-written)"
        return f"| {label} | {self.possible} | {len(self.judged)} | {counts} | {lacking} | {by} |"


_COLUMNS = (
    "schedule, as it differs from the hand-written one", "possible", "tried", "killed", "equivalent",
    "without proof", "within the bound", "missed", "alive", "killed by",
)  # fmt: skip
_SUMMARY_COLUMNS = (
    "kernel", "schedules", "mutants", "killed", "proven equivalent", "within the bound", "without proof",
    "missed", "alive",
)  # fmt: skip


def tables(rows: Sequence[Row]) -> str:
    """A summary of kernels, the reasons, each kernel's schedules, and every mutant that is not proven."""
    by_kernel: dict[str, list[Row]] = {}
    for row in rows:
        by_kernel.setdefault(row.kernel, []).append(row)
    parts = ["# Mutants of fourteen schedules of each kernel\n", "## Summary\n", summary(by_kernel)]
    for kernel, own in by_kernel.items():
        parts += [f"## {kernel}\n", *_head(_COLUMNS), *(row.line for row in own), ""]
        parts += [f"Equivalent: {_told(_all(own, Fate.EQUIVALENT))}.\n"]
    parts += ["## Without a proof, missed or alive\n"]
    for kernel, own in by_kernel.items():
        told = [line for row in own for line in _unproven(row)]
        parts += [f"### {kernel}\n", *told, ""] if told else []
    return "\n".join(parts)


def summary(by_kernel: dict[str, list[Row]]) -> str:
    """A row a kernel, one for all, and what killed and what excused them."""
    lines = [*_head(_SUMMARY_COLUMNS), *(_summary_line(kernel, own) for kernel, own in by_kernel.items())]
    every = [row for own in by_kernel.values() for row in own]
    lines += [_summary_line("all", every), "", "| killed by | mutants |", "|---|---|"]
    lines += [f"| {why} | {count} |" for why, count in _all(every, Fate.KILLED).most_common()]
    lines += ["", "| equivalent | mutants |", "|---|---|"]
    lines += [f"| {why} | {count} |" for why, count in _all(every, Fate.EQUIVALENT).most_common()]
    return "\n".join([*lines, ""])


def _summary_line(kernel: str, rows: Sequence[Row]) -> str:
    equivalent = _all(rows, Fate.EQUIVALENT)
    open_, bound = equivalent[NO_PROBLEM_TELLS], equivalent[WITHIN_BOUND]
    killed, missed, alive = (
        sum(row.count(fate) for row in rows) for fate in (Fate.KILLED, Fate.MISSED, Fate.ALIVE)
    )
    tried = sum(len(row.judged) for row in rows)
    proven = equivalent.total() - open_ - bound
    cells = (kernel, len(rows), tried, killed, proven, bound, open_, missed, alive)
    return f"| {' | '.join(map(str, cells))} |"


def _head(columns: Sequence[str]) -> tuple[str, str]:
    return f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"


def _unproven(row: Row) -> list[str]:
    lines = []
    for fate, why, _, mutant, detail in row.judged:
        if fate in (Fate.MISSED, Fate.ALIVE) or why in UNPROVEN:
            kind = _short(why) if fate == Fate.EQUIVALENT else f"{fate}, {why}"
            lines.append(f"* {kind}: {row.label}: {mutant}{': ' + detail if detail else ''}")
    return lines


def _short(why: str) -> str:
    return "within the bound" if why == WITHIN_BOUND else "without proof"


def _all(rows: Sequence[Row], fate: Fate) -> Counter[str]:
    return sum((row.reasons(fate) for row in rows), start=Counter())


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{why} {count}" for why, count in counts.most_common())
