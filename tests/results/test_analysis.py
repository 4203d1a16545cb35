"""What trials say: who wins, who ties, what failed."""

import math
from dataclasses import replace

import pytest
from sample_trials import KEY, ended, failed, started

from results.analysis import (
    best_table,
    failure_kind,
    failures_table,
    history_table,
    rankings,
    winners,
)
from results.report import report, table_text
from results.trial import Outcome, Source, Trial, Verdict


def timed(
    number: int, time_us: float, source: Source = Source.MODEL, energy_j: float | None = 0.02, **key: str
) -> Trial:
    """A trial with that time; `key` changes what it is comparable with."""
    trial = ended(number)
    assert trial.measurement is not None
    measurement = replace(
        trial.measurement, time_us=time_us, times_us=(time_us,), source=source, energy_j=energy_j
    )
    return replace(trial, measurement=measurement, key=replace(KEY, **key))


def test_best_of_comparable_trials_is_the_fastest() -> None:
    (ranking,) = rankings([timed(0, 70), timed(1, 60), failed(2), started(3), timed(4, 66)])
    assert [trial.number for trial in ranking.trials] == [1, 4, 0]
    assert ranking.best.number == 1
    assert ranking.runner_up is not None
    assert ranking.runner_up.number == 4
    assert ranking.margin == 66 / 60 - 1


def test_where_energy_is_sought_the_best_takes_the_least() -> None:
    """A trial without a count of it is not ranked; and what was sought for its time is pinned before it."""
    measured = Source.CUDA_EVENTS
    sought = [
        timed(0, 60, measured, 0.030, objective="energy"),
        timed(1, 70, measured, 0.020, objective="energy"),
        timed(2, 50, measured, None, objective="energy"),
    ]
    (ranking,) = rankings(sought)
    assert [trial.number for trial in ranking.trials] == [1, 0]
    assert ranking.margin == pytest.approx(0.5)
    assert history_table(sought)["best_us"].tolist() == [60, 70, 70]
    slow = timed(3, 90, measured)
    assert [ranking.best.number for ranking in winners([*sought, slow])] == [3]


def test_lone_trial_has_no_runner_up() -> None:
    (ranking,) = rankings([timed(0, 70)])
    assert (ranking.runner_up, ranking.margin, ranking.ties) == (None, None, ())
    assert rankings([]) == rankings([failed(0), started(1)]) == []


def test_trials_that_are_not_comparable_are_ranked_apart() -> None:
    changes = {
        "kernel": "gemm_s8",
        "semantic_hash": "00",
        "problem": "1x16x16",
        "arch": "sm_90",
        "device": "sim:l4",
        "policy": "warm",
        "objective": "energy",
    }
    trials = [timed(0, 60), *(timed(1, 50, **{name: value}) for name, value in changes.items())]
    trials.append(timed(2, 55, Source.CUDA_EVENTS))
    assert len(rankings(trials)) == len(trials)
    assert len(rankings([timed(0, 60), timed(1, 50, space_hash="another")])) == 1


def test_measured_time_outranks_a_faster_prediction() -> None:
    slow = timed(0, 90, Source.CUDA_EVENTS, device="cuda:NVIDIA GeForce RTX 4090")
    fast = timed(1, 10)
    for trials in ([slow, fast], [fast, slow]):
        assert [ranking.best for ranking in winners(trials)] == [slow]
    assert [ranking.best.number for ranking in winners([fast, timed(2, 5, device="sim:l4")])] == [2]


def test_winners_are_one_a_kernel_arch_and_problem() -> None:
    trials = [timed(0, 60), timed(1, 50, arch="sm_90"), timed(2, 40, problem="1x16x16"), timed(3, 59)]
    found = [(r.best.key.arch, r.best.key.problem, r.best.number) for r in winners(trials)]
    assert found == [("sm_89", "1x16x16", 2), ("sm_89", KEY.problem, 3), ("sm_90", KEY.problem, 1)]


def test_measured_times_within_half_a_percent_tie_and_predicted_ones_only_when_equal() -> None:
    times = [100.0, 100.4, 100.6]
    measured = rankings([timed(n, t, Source.CUDA_EVENTS) for n, t in enumerate(times)])[0]
    assert [trial.number for trial in measured.ties] == [1]
    predicted = rankings([timed(n, t) for n, t in enumerate([*times, 100.0])])[0]
    assert [trial.number for trial in predicted.ties] == [3]


def test_duplicate_is_no_second_candidate() -> None:
    best, second = timed(0, 60), timed(1, 65)
    copy = replace(timed(2, 60), outcome=Outcome.DUPLICATE, duplicate_of=0, code_hash=best.code_hash)
    (ranking,) = rankings([copy, best, second])
    assert [trial.number for trial in ranking.trials] == [0, 1]
    assert ranking.ties == ()
    # Where the trial it was told from is not among them, one copy stands for it.
    (ranking,) = rankings([copy, replace(copy, number=3), second])
    assert [trial.number for trial in ranking.trials] == [2, 1]


def test_failures_are_counted_by_kind_the_most_frequent_first() -> None:
    race = Verdict(
        0, ("1x16x16",), fault="race", fault_message="st.shared at line 9 and ld.shared at line 12"
    )
    trials = [
        failed(0),
        failed(1, Outcome.FAULT, verdict=race),
        failed(2, message="too many registers"),
        failed(3, Outcome.FAULT, verdict=replace(race, fault="misaligned")),
        failed(4, Outcome.TIMEOUT),
        ended(5),
        started(6),
    ]
    table = failures_table(trials)
    assert table["failure"].tolist() == ["assemble", "fault: misaligned", "fault: race", "timeout"]
    assert table["trials"].tolist() == [2, 1, 1, 1]
    assert table["message"][0] == "too many registers"
    assert table["number"][0] == 2
    assert failure_kind(failed(0, Outcome.FAULT)) == "fault"
    assert len(failures_table([])) == 0


def test_history_has_the_best_so_far() -> None:
    trials = [timed(2, 70), failed(0), timed(1, 80), started(4), timed(3, 75)]
    table = history_table(trials)
    assert table["number"].tolist() == [0, 1, 2, 3]
    assert math.isnan(table["best_us"][0])
    assert table["best_us"].tolist()[1:] == [80, 70, 70]
    assert table["is_better"].tolist() == [False, True, True, False]
    assert table["time_us"].isna().tolist() == [True, False, False, False]
    assert history_table([failed(0)])["best_us"].dtype == "float64"


def test_best_table_says_how_each_time_was_obtained() -> None:
    table = best_table([timed(0, 63), timed(1, 80, Source.CUDA_EVENTS, device="cuda:x"), timed(2, 63)])
    assert dict(zip(table["device"], table["is"], strict=True)) == {
        "cuda:x": "measured",
        "sim:rtx4090": "predicted",
    }
    row = table[table["is"] == "predicted"].iloc[0]
    assert (row["time_us"], row["ties"], row["margin"], row["ranked"]) == (63, 1, 0, 2)
    assert row["of_bound"] == 44.1 / 63
    assert "tile_m=16" in row["schedule"]
    assert list(best_table([]).columns) == list(table.columns)


def test_report_tells_the_best_the_failures_and_the_progress() -> None:
    page = report([timed(0, 70), timed(1, 60.25), failed(2, message="a|b\nc"), timed(3, 60.25)])
    assert "4 trials of 1 study: 1 assemble, 3 ok." in page
    assert f"### ternary_gemm_s8 {KEY.problem} on sim:rtx4090 (sm_89), predicted" in page
    assert "The best is one of 2 that cannot be told apart." in page
    assert "| 60.25 | 1 | register | 3 | True | 32 | 128 |" in page
    assert "a\\|b<br>c" in page
    assert "3 trials ended" not in page
    assert (
        "4 trials ended, the best found at these\n\n| number | time_us |\n| --- | --- |\n| 0 | 70 |" in page
    )
    assert report([]) == "# Trials\n\nThere are none yet; `tune run` makes them.\n"
    assert "## Failures" not in report([timed(0, 70)])


def test_missing_values_of_a_table_are_empty() -> None:
    text = table_text(best_table([timed(0, 63)])[["margin", "ties"]])
    assert text == "| margin | ties |\n| --- | --- |\n|  | 0 |"
