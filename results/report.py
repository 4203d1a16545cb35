"""A report of what was tried, as one Markdown page: the best, what failed and why, how each study went."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from results.analysis import (
    Ranking,
    best_table,
    failures_table,
    history_table,
    rankings,
    time_of,
    word_of,
)
from results.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 5  # candidates of a ranking that are listed with their schedules


def report(trials: Iterable[Trial]) -> str:
    """The page. Every time says whether it was measured or predicted."""
    kept = list(trials)
    if not kept:
        return "# Trials\n\nThere are none yet; `tune run` makes them.\n"
    sections = ["# Trials", _counted(kept), "## Best", table_text(best_table(kept).drop(columns="schedule"))]
    for ranking in rankings(kept):
        sections += _ranking_text(ranking)
    failures = failures_table(kept)
    if len(failures):
        sections += ["## Failures", table_text(failures)]
    sections += ["## Progress", *_progress(kept)]
    return "\n\n".join(sections) + "\n"


def table_text(frame: "pd.DataFrame") -> str:
    """A data frame as a Markdown table; missing values are empty, floats have four digits."""
    import pandas as pd

    def cell(value: object) -> str:
        if value is None or value is pd.NA or value != value:
            return ""
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        return text.replace("|", "\\|").replace("\n", "<br>")

    lines = [list(map(str, frame.columns)), ["---"] * len(frame.columns)]
    lines += [[cell(value) for value in row] for row in frame.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _counted(trials: Sequence[Trial]) -> str:
    counts: dict[str, int] = defaultdict(int)
    for trial in trials:
        counts[str(trial.outcome)] += 1
    listed = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
    studies = len({trial.study for trial in trials})
    return f"{len(trials)} trials of {studies} {'study' if studies == 1 else 'studies'}: {listed}."


def _ranking_text(ranking: Ranking) -> list[str]:
    key, word = ranking.best.key, word_of(ranking.best)
    lines = [f"### {key.kernel} {key.problem} on {key.device} ({key.arch}), {word}"]
    if ranking.ties:
        lines.append(f"The best is one of {len(ranking.ties) + 1} that cannot be told apart.")
    names = sorted({name for trial in ranking.trials[:_SHOWN] for name in trial.schedule})
    head = ["time_us", "number", *names]
    rows = [
        [f"{time_of(trial):.4g}", trial.number, *(trial.schedule.get(name, "") for name in names)]
        for trial in ranking.trials[:_SHOWN]
    ]
    cells = [head, ["---"] * len(head), *([str(cell) for cell in row] for row in rows)]
    lines.append("\n".join(f"| {' | '.join(row)} |" for row in cells))
    return lines


def _progress(trials: Sequence[Trial]) -> list[str]:
    studies: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        studies[trial.study].append(trial)
    lines: list[str] = []
    for study in sorted(studies):
        history = history_table(studies[study])
        steps = history[history["is_better"]]
        ended = f"`{study}`: {len(history)} trials ended, the best found at these"
        lines += [ended, table_text(steps[["number", "time_us"]])]
    return lines
