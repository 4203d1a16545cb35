"""Row logs: what is appended is there, half a line is not, and a lock tells who is alive."""

import errno
import os
from pathlib import Path

import pytest
from sample_trials import ended, started

from results.errors import StoreError, StoreWarning
from results.row import row_of
from results.rowlog import RowLog, locked, read_logs


def test_rows_are_read_back_while_the_writer_lives(tmp_path: Path) -> None:
    log = RowLog(tmp_path)
    log.append(row_of(ended(1), 10))
    (read,) = read_logs(tmp_path)
    assert read.alive
    assert list(read.rows.values()) == [row_of(ended(1), 10)]
    log.close()
    assert not read_logs(tmp_path)[0].alive


def test_the_end_of_a_trial_counts_before_its_mark(tmp_path: Path) -> None:
    log = RowLog(tmp_path)
    log.append(row_of(ended(1), 10))
    log.append(row_of(started(1), 11))  # whatever a clock says
    log.append(row_of(started(2), 12))
    (read,) = read_logs(tmp_path)
    assert [row["outcome"] for row in read.rows.values()] == ["ok", "started"]
    assert [number for _, number in read.marks] == [2]
    log.close()


def test_the_later_of_two_ends_counts(tmp_path: Path) -> None:
    log = RowLog(tmp_path)
    log.append(row_of(ended(1, message="first"), 10))
    log.append(row_of(ended(1, message="again"), 11))
    (read,) = read_logs(tmp_path)
    assert [row["message"] for row in read.rows.values()] == ["again"]
    log.close()


def test_withdrawn_mark_is_gone_and_an_end_is_not(tmp_path: Path) -> None:
    log = RowLog(tmp_path)
    log.append(row_of(started(1), 10))
    log.append(row_of(ended(2), 10))
    for number in (1, 2, 3):
        log.withdraw((started(1).study, number))
    (read,) = read_logs(tmp_path)
    assert [number for _, number in read.rows] == [2]
    log.close()


@pytest.mark.parametrize("kept", [0, 1, 40, -2, -1])
def test_half_a_line_is_left_out_with_a_warning(tmp_path: Path, kept: int) -> None:
    log = RowLog(tmp_path)
    log.append(row_of(ended(1), 10))
    whole = log.path.stat().st_size
    log.append(row_of(ended(2), 11))
    log.close()
    size = log.path.stat().st_size
    os.truncate(log.path, whole + kept if kept >= 0 else size + kept)
    if kept == 0:
        (read,) = read_logs(tmp_path)
    else:
        with pytest.warns(StoreWarning, match=r"jsonl ends in half a line of \d+ bytes, from a run that was"):
            (read,) = read_logs(tmp_path)
    assert [number for _, number in read.rows] == [1]
    assert not read.damaged


def test_half_a_line_of_a_living_writer_is_no_damage(tmp_path: Path) -> None:
    log = RowLog(tmp_path)
    with log.path.open("ab") as file:
        file.write(b'{"study":')
    assert read_logs(tmp_path)[0].rows == {}  # warnings are errors here
    log.close()


@pytest.mark.parametrize(
    "line", [b"\0" * 64, b"{}", b"[1]", b'{"study":"s","number":1,"outcome":"ok"}', b"7"]
)
def test_damage_in_the_middle_is_named_and_the_rest_is_read(tmp_path: Path, line: bytes) -> None:
    log = RowLog(tmp_path)
    log.append(row_of(ended(1), 10))
    with log.path.open("ab") as file:
        file.write(line + b"\n")
    log.append(row_of(ended(2), 11))
    log.close()
    with pytest.warns(StoreWarning, match=r"jsonl line 2 is no row, ignored"):
        (read,) = read_logs(tmp_path)
    assert [number for _, number in read.rows] == [1, 2]
    assert read.damaged


def test_full_disk_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RowLog(tmp_path)
    log.append(row_of(ended(1), 10))
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
        with pytest.raises(StoreError, match=r"cannot keep a trial in .*: the disk is full; free some space"):
            log.append(row_of(ended(2), 11))
    log.append(row_of(ended(3), 12))
    (read,) = read_logs(tmp_path)
    assert [number for _, number in read.rows] == [1, 3]
    log.close()


def test_failing_disk_is_an_error_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = RowLog(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        with pytest.raises(StoreError, match="Input/output error"):
            log.append(row_of(ended(2), 11))
    assert read_logs(tmp_path)[0].rows == {}
    log.close()


def test_a_log_that_vanishes_while_looking_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RowLog(tmp_path)
    log.append(row_of(ended(1), 10))
    listed = [tmp_path / "gone.jsonl"]
    glob = Path.glob

    def with_a_gone_one(self: Path, pattern: str) -> list[Path]:
        return [listed.pop()] if listed else list(glob(self, pattern))

    monkeypatch.setattr(Path, "glob", with_a_gone_one)
    assert [len(read.rows) for read in read_logs(tmp_path)] == [1]
    log.close()


def test_lock_is_refused_while_another_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path) as held, locked(path, wait=False) as second:
        assert (held, second) == (True, False)
    with locked(path, wait=False) as free:
        assert free


def test_directory_that_cannot_be_written_is_named() -> None:
    with pytest.raises(StoreError, match=r"cannot keep trials in /proc/self: "):
        RowLog(Path("/proc/self"))
    with (
        pytest.raises(StoreError, match=r"cannot write in /proc/self: .*; name another directory"),
        locked(Path("/proc/self/lock")),
    ):
        pass
