"""What trials say: the best of each group, how sure that is, what failed and why, progress over time.

Only comparable trials are ranked against each other. A measured time outranks a predicted one, however fast.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from results.trial import Outcome, Source, Trial

if TYPE_CHECKING:
    import pandas as pd

# Devices repeat until a median seems known to 0.5 % (how often it is: docs/timing.md); nearer ones may tie.
MEASURED_TIE = 0.005


@dataclass(frozen=True)
class Ranking:
    """Comparable trials that have a time of their own, best first; never empty.

    Attributes:
        trials: One each code; those that were only told another's result are left out.
    """

    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        return self.trials[0]

    @property
    def runner_up(self) -> Trial | None:
        return self.trials[1] if len(self.trials) > 1 else None

    @property
    def margin(self) -> float | None:
        """How much more the runner-up takes: 0.02 for two percent; None without one."""
        return figure_of(self.trials[1]) / figure_of(self.best) - 1 if len(self.trials) > 1 else None

    @property
    def ties(self) -> tuple[Trial, ...]:
        """Other trials that cannot be told from the best: measured within 0.5 %, predicted equal."""
        margin = MEASURED_TIE if source_of(self.best).is_measured else 0.0
        limit = figure_of(self.best) * (1 + margin)
        return tuple(trial for trial in self.trials[1:] if figure_of(trial) <= limit)


def rankings(trials: Iterable[Trial]) -> list[Ranking]:
    """A ranking of every group of comparable trials in which one has a time.

    Comparable are trials of one kernel (and meaning of it), problem, arch, device, policy, objective and
    source of the time; the search space does not matter. The best has the least of what is the objective.
    """
    groups: dict[tuple[str, ...], list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.figure is not None and trial.measurement is not None:
            key = trial.key
            group = (key.kernel, key.arch, key.problem, key.device, key.policy, key.objective)
            groups[*group, key.semantic_hash, trial.measurement.source].append(trial)
    return [Ranking(_distinct(sorted(groups[group], key=_by_figure))) for group in sorted(groups)]


def winners(trials: Iterable[Trial]) -> list[Ranking]:
    """For each kernel, arch and problem the ranking whose best is to be pinned.

    Measured before predicted, sought for its time before sought for its energy, then the fastest, whatever
    device or policy it was on (the best trial names them). Trials of another meaning of a kernel than today's
    are for the caller to leave out.
    """
    found: dict[tuple[str, str, str], Ranking] = {}
    for ranking in rankings(trials):
        key = ranking.best.key
        place = (key.kernel, key.arch, key.problem)
        if place not in found or _outranks(ranking.best, found[place].best):
            found[place] = ranking
    return [found[place] for place in sorted(found)]


def best_table(trials: Iterable[Trial]) -> "pd.DataFrame":
    """One row a ranking.

    Columns: kernel, problem, arch, device, policy, objective, time_us, is (as `Measurement.word`), of_bound
    (part of the time that physics demands, 1 is perfect), ties, margin (of the runner-up), ranked (candidates
    with a time), study, number, schedule.
    """
    import pandas as pd

    columns = ["kernel", "problem", "arch", "device", "policy", "objective", "time_us", "is", "of_bound"]
    columns += ["ties", "margin", "ranked", "study", "number", "schedule"]
    return pd.DataFrame([_best_row(ranking) for ranking in rankings(trials)], columns=columns)


def failure_kind(trial: Trial) -> str:
    """The outcome; for a fault with its kind, as ``fault: race``."""
    fault = trial.verdict.fault if trial.verdict else None
    return f"{trial.outcome}: {fault}" if trial.outcome is Outcome.FAULT and fault else str(trial.outcome)


def failures_table(trials: Iterable[Trial]) -> "pd.DataFrame":
    """One row a kernel, problem, device and kind of failure: trials, and number and message of the latest."""
    import pandas as pd

    counts: Counter[tuple[str, str, str, str]] = Counter()
    latest: dict[tuple[str, str, str, str], Trial] = {}
    for trial in trials:
        if trial.outcome.has_time or trial.outcome is Outcome.STARTED:
            continue
        group = (trial.key.kernel, trial.key.problem, trial.key.device, failure_kind(trial))
        counts[group] += 1
        if group not in latest or trial.number >= latest[group].number:
            latest[group] = trial
    rows = [
        (*group, counts[group], latest[group].number, latest[group].message)
        for group in sorted(counts, key=lambda group: (group[:3], -counts[group], group[3]))
    ]
    columns = ["kernel", "problem", "device", "failure", "trials", "number", "message"]
    return pd.DataFrame(rows, columns=columns)


def history_table(trials: Sequence[Trial]) -> "pd.DataFrame":
    """Progress of one study: a row a trial that ended, by number, with its time and the best so far.

    Columns: number, outcome, time_us, best_us (of the best so far, missing until there is one), is_better.
    """
    import pandas as pd

    rows: list[tuple[int, str, float | None, float | None, bool]] = []
    best: Trial | None = None
    for trial in sorted(trials, key=lambda trial: trial.number):
        if trial.outcome is Outcome.STARTED:
            continue
        is_better = trial.figure is not None and (best is None or figure_of(trial) < figure_of(best))
        best = trial if is_better else best
        time_us = time_of(trial) if trial.outcome.has_time and trial.measurement else None
        best_us = None if best is None else time_of(best)
        rows.append((trial.number, str(trial.outcome), time_us, best_us, is_better))
    frame = pd.DataFrame(rows, columns=["number", "outcome", "time_us", "best_us", "is_better"])
    return frame.astype({"time_us": "float64", "best_us": "float64"})


def time_of(trial: Trial) -> float:
    """The time of a ranked trial, microseconds."""
    assert trial.measurement is not None
    return trial.measurement.time_us


def figure_of(trial: Trial) -> float:
    """What the study of a ranked trial makes least."""
    assert trial.figure is not None
    return trial.figure


def source_of(trial: Trial) -> Source:
    """How the time of a ranked trial was obtained."""
    assert trial.measurement is not None
    return trial.measurement.source


def word_of(trial: Trial) -> str:
    """What a person reads beside the time of a ranked trial."""
    assert trial.measurement is not None
    return trial.measurement.word


def _distinct(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Without trials that were told the result of another one here, or of one told the same."""
    own = {trial.code_hash for trial in trials if trial.outcome is Outcome.OK}
    kept: list[Trial] = []
    for trial in trials:
        if trial.outcome is Outcome.DUPLICATE:
            if trial.code_hash in own:
                continue
            own.add(trial.code_hash)
        kept.append(trial)
    return tuple(kept)


def _by_figure(trial: Trial) -> tuple[float, str, int]:
    return figure_of(trial), trial.study, trial.number


def _outranks(trial: Trial, other: Trial) -> bool:
    if source_of(trial).is_measured != source_of(other).is_measured:
        return source_of(trial).is_measured
    if trial.key.objective != other.key.objective:
        return trial.key.objective == "time"
    return time_of(trial) < time_of(other)


def _best_row(ranking: Ranking) -> tuple[object, ...]:
    best = ranking.best
    key, time_us = best.key, time_of(best)
    schedule = " ".join(f"{name}={value}" for name, value in best.schedule.items())
    of_bound = best.bound_us / time_us if best.bound_us else None
    where = (key.kernel, key.problem, key.arch, key.device, key.policy, key.objective)
    how_sure = (len(ranking.ties), ranking.margin, len(ranking.trials))
    return (*where, time_us, word_of(best), of_bound, *how_sure, best.study, best.number, schedule)
