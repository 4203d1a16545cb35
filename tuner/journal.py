"""Optuna's journal file at OUT/study.log, opened so that a killed process can neither block nor tear it."""

import contextlib
import fcntl
import json
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from tuner.locks import DIRECTORY

NAME = "study.log"
_FOREIGN_S = (
    2.0  # a program that writes the log without our lock (a dashboard) holds its own for milliseconds
)
_TAIL_BYTES = 1 << 16


class JournalLock(JournalFileOpenLock):
    """Optuna's `JournalFileOpenLock`, behind a lock that the kernel drops when its holder dies.

    Whoever holds the kernel's lock and finds the lock file there knows that no tuner holds it: it was left
    behind, and is removed as soon as it is certain that it is not a dashboard's. A last line that was torn by
    a crash is cut off before anything is written after it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._left_behind = Path(f"{path}.lock")
        self._ours = path.parent / DIRECTORY / f"{path.name}.lock"
        self._ours.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(str(path))
        self._descriptor = -1

    def acquire(self) -> bool:
        self._descriptor = os.open(self._ours, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._remove_stale()
            super().acquire()
            cut_torn_line(self._path)
        except BaseException:
            os.close(self._descriptor)
            raise
        return True

    def release(self) -> None:
        try:
            super().release()
        finally:
            os.close(self._descriptor)

    def _remove_stale(self) -> None:
        give_up = time.monotonic() + _FOREIGN_S
        while True:
            try:
                age_s = time.time() - self._left_behind.stat().st_mtime
            except FileNotFoundError:
                return
            if age_s > _FOREIGN_S or time.monotonic() > give_up:
                self._left_behind.unlink(missing_ok=True)
                return
            time.sleep(0.005)


class Journal(JournalFileBackend):
    """Optuna's journal file, written without waiting for the disk.

    What it says can be had from the rows, which are durable. A process that is killed loses nothing of it;
    a machine that loses power, a few lines. Waiting would cost a trial four times what its row costs.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = JournalLock(path)
        super().__init__(str(path), lock_obj=self._guard)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        self._guard.acquire()
        try:
            with self._path.open("ab") as file:
                file.write(text.encode())
        finally:
            self._guard.release()


def cut_torn_line(path: Path) -> None:
    """Cut off a last line that has no end, which only a crash in the middle of a write can leave."""
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end:
            start = max(0, end - _TAIL_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end != size:
            file.truncate(end)


def open_journal(out: Path) -> JournalStorage:
    """The storage of all studies in OUT.

    Raises:
        ValueError, KeyError, AssertionError: The log holds something that is no record of Optuna's.
    """
    lock = JournalLock(out / NAME)
    lock.acquire()  # cuts a torn line
    lock.release()
    storage = JournalStorage(Journal(out / NAME))
    _check_last_line(out / NAME)
    return storage


def _check_last_line(path: Path) -> None:
    """Optuna forgives a last line that is no JSON, until something has been written after it."""
    with path.open("rb") as file:
        for line in deque(file, maxlen=1):
            json.loads(line)
