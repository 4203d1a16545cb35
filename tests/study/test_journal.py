"""Optuna's journal after what a killed process can leave behind."""

import os
import time
from pathlib import Path

import optuna
import pytest

from tuner.journal import JournalLock, cut_torn_line, open_journal


def study_in(out: Path) -> optuna.Study:
    return optuna.create_study(study_name="s", storage=open_journal(out), load_if_exists=True)


def test_a_stale_lock_file_does_not_hold_anyone_up(tmp_path: Path) -> None:
    """Optuna's own lock would wait 30 s for it."""
    study_in(tmp_path)
    lock_file = tmp_path / "study.log.lock"
    lock_file.touch()
    os.utime(lock_file, (time.time() - 60, time.time() - 60))
    started = time.monotonic()
    study = study_in(tmp_path)
    study.tell(study.ask(), 1.0)
    assert time.monotonic() - started < 1.0
    assert len(study_in(tmp_path).trials) == 1


def test_a_fresh_lock_file_of_another_program_is_waited_for_but_not_for_long(tmp_path: Path) -> None:
    study_in(tmp_path)
    (tmp_path / "study.log.lock").touch()
    started = time.monotonic()
    study_in(tmp_path)
    assert 0.5 < time.monotonic() - started < 5.0


def test_a_lock_file_with_a_time_to_come_is_removed_too(tmp_path: Path) -> None:
    study_in(tmp_path)
    lock_file = tmp_path / "study.log.lock"
    lock_file.touch()
    os.utime(lock_file, (time.time() + 3600, time.time() + 3600))
    started = time.monotonic()
    study_in(tmp_path)
    assert time.monotonic() - started < 5.0


@pytest.mark.parametrize("torn", [b"{", b'{"op_code": 4, "worker_id": "x"', b"x" * 200_000])
def test_a_torn_last_line_is_cut_off_before_anything_is_written_after_it(tmp_path: Path, torn: bytes) -> None:
    study = study_in(tmp_path)
    study.tell(study.ask(), 1.0)
    with (tmp_path / "study.log").open("ab") as file:
        file.write(torn)
    again = study_in(tmp_path)
    again.tell(again.ask(), 2.0)
    assert [trial.value for trial in study_in(tmp_path).trials] == [1.0, 2.0]


def test_another_process_that_goes_on_cuts_it_as_well(tmp_path: Path) -> None:
    """The one that was killed had the log open at the same time."""
    study = study_in(tmp_path)
    with (tmp_path / "study.log").open("ab") as file:
        file.write(b'{"op_code"')
    study.tell(study.ask(), 1.0)
    assert [trial.value for trial in study_in(tmp_path).trials] == [1.0]


@pytest.mark.parametrize("content", [b"", b"whole\n", b"one\ntwo\n"])
def test_whole_lines_stay(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    cut_torn_line(path)
    assert path.read_bytes() == content


def test_a_log_of_nothing_but_a_torn_line_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"torn")
    cut_torn_line(path)
    assert path.read_bytes() == b""
    cut_torn_line(tmp_path / "missing")


def test_the_lock_excludes_others_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "study.log").touch()
    lock = JournalLock(tmp_path / "study.log")
    assert lock.acquire()
    assert (tmp_path / "study.log.lock").exists()
    lock.release()
    assert not (tmp_path / "study.log.lock").exists()
