"""`tune run` killed with SIGKILL at random moments, and two of them at once on one study."""

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import optuna
import pytest
from commands import start, tune
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from toy_study import rows_in

from results.trial import Outcome, Trial


def finished(out: Path) -> dict[int, Trial]:
    """Finished rows by number; nothing where the store is not there yet."""
    if not out.is_dir():
        return {}
    return {row.number: row for row in rows_in(out) if row.outcome is not Outcome.STARTED}


def check_study(out: Path, trials: int) -> dict[int, Trial]:
    """Exactly the wanted number, nothing twice, and Optuna's storage says the same."""
    rows = finished(out)
    assert sum(row.outcome.counts for row in rows.values()) == trials
    assert len({tuple(sorted(row.schedule.items())) for row in rows.values()}) == len(rows)
    codes = [row.code_hash for row in rows.values() if row.outcome is Outcome.OK]
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(out / "study.log")))
    (summary,) = optuna.get_all_study_summaries(storage)
    study = optuna.load_study(study_name=summary.study_name, storage=storage)
    assert len(codes) > 0
    states = {trial.number: trial.state for trial in study.trials}
    assert {number for number, state in states.items() if state is not TrialState.FAIL} == rows.keys()
    assert TrialState.RUNNING not in states.values()
    for number, row in rows.items():
        assert study.trials[number].params == dict(row.schedule)
        assert (states[number] is TrialState.COMPLETE) == row.outcome.has_time
    return rows


def end_with_kills(command: Sequence[object], out: Path, waits_s: Sequence[float]) -> int:
    """Kill the command after each wait, then let it end. Nothing that was finished is ever lost or changed.

    Returns:
        How many of the kills hit a running study.
    """
    kept: dict[int, Trial] = {}
    hits = 0
    for wait_s in waits_s:
        process = start(*command, "--out", out, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(wait_s)
        hits += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        rows = finished(out)
        assert {number: rows.get(number) for number in kept} == kept
        kept = rows
    started = time.monotonic()
    last = tune(*command, "--out", out, timeout_s=600)
    assert last.returncode == 0, last.stderr
    assert "Traceback" not in last.stderr
    rows = finished(out)
    assert {number: rows[number] for number in kept} == kept
    # A stale lock of Optuna's would hold the run up for 30 s.
    ours = max((row.finished_at or 0) - row.started_at for row in rows.values())
    assert time.monotonic() - started < 30 + 60 * ours
    return hits


def story(rows: dict[int, Trial]) -> list[tuple[object, ...]]:
    return [
        (number, tuple(row.schedule.items()), row.outcome, row.duplicate_of, row.measurement)
        for number, row in sorted(rows.items())
    ]


def test_killed_at_random_moments_it_ends_the_same(tmp_path: Path) -> None:
    command = ("run", "--kernel", "toy", "--shape", "4096", "--trials", 40, "--seed", 3, "--workers", 2)
    assert tune(*command, "--out", tmp_path / "whole").returncode == 0
    waits = np.random.default_rng(1).uniform(0.4, 2.2, size=4)
    hits = end_with_kills(command, tmp_path / "killed", [float(wait) for wait in waits])
    assert hits >= 2
    rows = check_study(tmp_path / "killed", 40)
    assert story(rows) == story(check_study(tmp_path / "whole", 40))


@pytest.mark.slow
def test_gemm_killed_at_20_random_moments_ends_with_exactly_200(tmp_path: Path) -> None:
    command = ("run", "--kernel", "gemm", "--trials", 200, "--seed", 9)
    waits = np.random.default_rng(2).uniform(0.3, 2.0, size=20)
    hits = end_with_kills(command, tmp_path / "killed", [float(wait) for wait in waits])
    assert hits >= 15
    rows = check_study(tmp_path / "killed", 200)
    assert tune(*command, "--out", tmp_path / "whole", timeout_s=600).returncode == 0
    assert story(rows) == story(check_study(tmp_path / "whole", 200))


def test_two_runs_of_one_study_share_the_work(tmp_path: Path) -> None:
    command = ("run", "--kernel", "toy", "--shape", 4096, "--trials", 60, "--workers", 1, "--out", tmp_path)
    runs = [start(*command), start(*command)]
    said = [run.communicate(timeout=300) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    rows = check_study(tmp_path, 60)
    shares = [sum(row.process == run.pid for row in rows.values()) for run in runs]
    assert sum(shares) == len(rows)
    assert min(shares) >= 5
    assert all(": 60 trials, 0 failed" in stdout for stdout, _ in said)


def test_what_a_killed_run_had_in_flight_is_done_by_the_other(tmp_path: Path) -> None:
    command = ("run", "--kernel", "toy", "--shape", 4096, "--trials", 60, "--workers", 1, "--out", tmp_path)
    first, second = start(*command), start(*command)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        rows = finished(tmp_path).values()
        if {first.pid, second.pid} <= {row.process for row in rows}:
            break
        time.sleep(0.05)
    first.kill()
    first.communicate()
    _, stderr = second.communicate(timeout=300)
    assert second.returncode == 0, stderr
    rows_now = check_study(tmp_path, 60)
    assert {row.process for row in rows_now.values()} == {first.pid, second.pid}
