"""What is shown while a run goes on."""

import io
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_device import FakeDevice
from rich.console import Console
from toy_study import rows_in, run, task_on

from results.trial import Outcome, Source, Trial
from tuner.progress import Progress
from tuner.summary import lines, summarise


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Trial]:
    out = tmp_path_factory.mktemp("rows")
    run(out, FakeDevice(), 8)
    return rows_in(out)


def progress_on(terminal: bool) -> tuple[Progress, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200, legacy_windows=False)
    return Progress(console, "toy", 8), text


def test_a_pipe_gets_each_new_best_and_a_line_now_and_then(
    rows: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress, text = progress_on(terminal=False)
    with progress:
        progress.begin([], 50.0)
        for row in rows:
            progress.finished(row)
            progress.tick(row.number + 1)
        assert "done" not in text.getvalue()
        later = time.monotonic() + 60
        monkeypatch.setattr("tuner.progress.time.monotonic", lambda: later)
        progress.tick(8)
    said = text.getvalue().splitlines()
    assert said[0] == "toy: 8 trials; bound 50.00 us"
    bests = [line for line in said if "the best so far" in line]
    times = [float(line.split()[2]) for line in bests]
    assert times == sorted(times, reverse=True)
    assert all("us measured" in line for line in bests)
    assert said[-1].startswith(f"8/8 done, 0 failed, best {times[-1]:.2f} us measured, ")
    assert said[-1].endswith("candidates a minute, 0:00 to go")


def test_a_terminal_gets_one_live_line(rows: list[Trial]) -> None:
    progress, text = progress_on(terminal=True)
    with progress:
        progress.begin([], 50.0)
        progress.finished(rows[0])
        progress.tick(1)
        time.sleep(0.3)
    assert "1/8 done, 0 failed" in text.getvalue()
    assert "\x1b[" in text.getvalue()


def test_a_resumed_run_counts_what_is_there(rows: list[Trial]) -> None:
    progress, text = progress_on(terminal=False)
    failed = replace(rows[1], outcome=Outcome.WRONG, measurement=None)
    progress.begin([rows[0], failed], 50.0)
    assert text.getvalue() == "toy: 8 trials, 2 of them done already; bound 50.00 us\n"
    assert progress.line.startswith("2/8 done, 1 failed, best ")
    assert "--:-- to go" in progress.line


def test_before_anything_is_timed_it_says_so() -> None:
    progress, text = progress_on(terminal=False)
    assert progress.line == "0/8 done, 0 failed, no time yet, 0 candidates a minute, --:-- to go"
    progress.notice("something [happened]")
    assert text.getvalue() == "note: something [happened]\n"


def test_a_summary_sets_the_best_against_hand_written_and_bound(rows: list[Trial]) -> None:
    task = task_on(FakeDevice())
    summary = summarise(task, "s", rows)
    text = "\n".join(lines(summary, "toy", 2.0, 8, Path("tuning")))
    assert summary.best is not None
    assert summary.best.measurement is not None
    assert summary.baseline is rows[0]
    assert f"{summary.best.measurement.time_us:.2f} us measured" in text
    assert "8 trials, 0 failed" in text
    assert "(240 a minute)" in text
    assert "bound:        50.00 us (operations)" in text


def test_a_summary_of_failures_counts_them_by_kind(rows: list[Trial]) -> None:
    failed = [replace(row, outcome=Outcome.WRONG, measurement=None, message="7 mismatches") for row in rows]
    summary = summarise(task_on(FakeDevice()), "s", failed)
    text = "\n".join(lines(summary, "toy", 2.0, 8, Path("tuning")))
    assert f"failures:     {len(rows)} wrong" in text
    assert "no candidate was right and timed" in text
    assert "promote" not in text
    assert summary.to_json()["hand_written"]["outcome"] == "wrong"


def test_a_hand_written_schedule_that_failed_is_told(rows: list[Trial]) -> None:
    first = replace(rows[0], outcome=Outcome.REFUSED, message="too fast to be true")
    summary = summarise(task_on(FakeDevice()), "s", [first, *rows[1:]])
    assert "hand-written: refused: too fast to be true" in lines(summary, "toy", 2.0, 8, Path("tuning"))


def test_a_prediction_is_never_called_measured(rows: list[Trial]) -> None:
    predicted = [
        replace(row, measurement=row.measurement and replace(row.measurement, source=Source.MODEL))
        for row in rows
    ]
    text = "\n".join(lines(summarise(task_on(FakeDevice()), "s", predicted), "toy", 2.0, 8, Path("tuning")))
    assert "us predicted" in text
    assert "measured" not in text
