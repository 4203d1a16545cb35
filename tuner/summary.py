"""What came of a study, as values: best against hand-written and bound, failures by kind."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.analysis import Ranking, failure_kind, figure_of, rankings, time_of
from results.trial import Outcome, Trial
from tuner.cost_model import Bound
from tuner.devices.replay import is_replay
from tuner.schedules import schedule_text
from tuner.task import About


@dataclass(frozen=True)
class Summary:
    """A study's rows, boiled down.

    Attributes:
        study: Its name.
        rows: Finished trials.
        ranking: Right and timed candidates, best first; None where there is none.
        baseline: The trial of the hand-written schedule; None where it was not run.
        bound: No time can lie below it; None where it is not known.
        is_recorded: Whether the times are somebody else's: there is no hand-written schedule, and nothing to
            pin.
        learned_from: The other studies that it began with; empty where there are none.
    """

    study: str
    rows: Sequence[Trial]
    ranking: Ranking | None
    baseline: Trial | None
    bound: Bound | None
    is_recorded: bool
    learned_from: str = ""

    @property
    def counted(self) -> int:
        """Trials that count towards ``--trials``."""
        return sum(row.outcome.counts for row in self.rows)

    @property
    def duplicates(self) -> int:
        return sum(row.outcome is Outcome.DUPLICATE for row in self.rows)

    @property
    def failures(self) -> dict[str, int]:
        """Failed trials by kind, the most frequent first."""
        return dict(Counter(failure_kind(row) for row in self.rows if not row.outcome.has_time).most_common())

    @property
    def best(self) -> Trial | None:
        return self.ranking.best if self.ranking else None

    def to_json(self) -> dict[str, Any]:
        """The same figures for programs."""
        return {
            "study": self.study,
            "trials": self.counted,
            "duplicates": self.duplicates,
            "failures": self.failures,
            "bound_us": None if self.bound is None else self.bound.time_us,
            "bound_of": None if self.bound is None else self.bound.of,
            "best": _trial_json(self.best),
            "ties": len(self.ranking.ties) if self.ranking else 0,
            "hand_written": _trial_json(self.baseline),
            "learned_from": self.learned_from,
        }


def summarise(task: About, study: str, rows: Sequence[Trial], learned_from: str = "") -> Summary:
    """The summary of a study's finished rows, and of what it learned from."""
    found = rankings(rows)
    by_hand = None if task.baseline is None else task.space.values(task.baseline)
    baseline = next((row for row in rows if dict(row.schedule) == by_hand), None)
    return Summary(
        study,
        rows,
        found[0] if found else None,
        baseline,
        task.bound,
        is_replay(task.key.device),
        learned_from,
    )


def lines(
    summary: Summary, title: str, elapsed_s: float, finished: int, out: Path, beside: Sequence[str] = ()
) -> list[str]:
    """The summary for a person, a line each.

    Args:
        summary: What to tell.
        title: Of the run.
        elapsed_s: How long this run took.
        finished: Trials that this run finished.
        out: Where the rows are.
        beside: Lines to go below the figures: the final, what else was timed.
    """
    failed = sum(summary.failures.values())
    rate = 60 * finished / elapsed_s if elapsed_s > 0 else 0.0
    text = [
        f"{title}: {summary.counted} trials, {failed} failed, {summary.duplicates} duplicates; "
        f"this run {finished} in {elapsed_s:.1f} s ({rate:.0f} a minute)"
    ]
    if summary.failures:
        text.append("failures:     " + ", ".join(f"{n} {kind}" for kind, n in summary.failures.items()))
    if summary.ranking is None or summary.best is None:
        text.append("no candidate was right and timed; `tune results --failures` shows why each failed")
    else:
        text.append(f"best:         {_figures(summary, summary.best)}{_ties(summary.ranking)}")
        text.append(f"              {schedule_text(summary.best.schedule)}")
        if not summary.is_recorded:
            text.append(f"hand-written: {_by_hand(summary)}")
        if summary.bound is not None:
            text.append(f"bound:        {summary.bound.time_us:.2f} us ({summary.bound.of})")
    if summary.learned_from:
        text.append(f"learned from: {summary.learned_from}")
    text += beside
    text.append(f"rows:         {out / 'trials'}, study {summary.study}")
    if summary.best is not None and not summary.is_recorded:
        text.append(f"next:         tune promote best --out {out}")
    return text


def _figures(summary: Summary, row: Trial) -> str:
    time_us, time = time_of(row), row.measurement
    assert time is not None
    parts = [f"{time_us:.2f} us {time.word}"]
    if row.key.objective == "energy":
        parts.insert(0, f"{1e3 * figure_of(row):.3f} mJ")
    if summary.bound is not None:
        parts.append(summary.bound.rate(time_us))
        parts.append(f"{100 * summary.bound.time_us / time_us:.0f} % of the bound")
    return f"{', '.join(parts)} (trial {row.number})"


def _ties(ranking: Ranking) -> str:
    count = len(ranking.ties)
    return f"; {count} other{'s' if count > 1 else ''} cannot be told from it" if count else ""


def _by_hand(summary: Summary) -> str:
    baseline, best = summary.baseline, summary.best
    if baseline is None:
        return "not in this space, or not run yet"
    if not baseline.outcome.has_time:
        return f"{baseline.outcome}: {baseline.message}"
    text = _figures(summary, baseline)
    if best is None or best is baseline:
        return text
    return f"{text}; the best takes {100 * figure_of(best) / figure_of(baseline):.0f} % of that"


def _trial_json(row: Trial | None) -> dict[str, Any] | None:
    if row is None:
        return None
    time = row.measurement
    return {
        "number": row.number,
        "outcome": str(row.outcome),
        "schedule": dict(row.schedule),
        "time_us": None if time is None else time.time_us,
        "energy_j": None if time is None else time.energy_j,
        "source": None if time is None else str(time.source),
        "time_is": None if time is None else time.word,
    }
