"""One process's row log: a file of JSON lines, written through a line at a time.

The writer holds an exclusive `flock` on its log for as long as it lives. The system drops the lock when the
process ends, however it ends, so whether a log's writer is alive is asked of the lock: no process ids, no
time limits, nothing left behind. `OUT` has to be on a file system whose `flock` works.
"""

import fcntl
import json
import os
import secrets
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.errors import StoreError, StoreWarning
from results.row import Row, RowKey, is_final, key_of, rank_of

SUFFIX = ".jsonl"
_WITHDRAWN = "withdrawn"


class RowLog:
    """The log that this process writes. A forked child must not use its parent's."""

    def __init__(self, directory: Path) -> None:
        """Make a new, empty log.

        Raises:
            StoreError: The directory cannot be written, or its file system has no locks.
        """
        name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
        aside = directory / f".{name}"
        self.path = directory / name
        try:
            self._file = os.open(
                aside, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
            )
            # Locked before it has a name that readers look for, so it never looks abandoned.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(aside, self.path)
            sync_directory(directory)
        except OSError as error:
            raise StoreError(f"cannot keep trials in {directory}: {error.strerror}") from None
        self._end = 0

    def append(self, row: Row) -> None:
        """Add a row; when this returns, it survives the process and the machine.

        Raises:
            StoreError: The disk is full, or failed. The log is as it was before.
        """
        self._write(row)

    def withdraw(self, key: RowKey) -> None:
        """Take back the mark of a trial that was started and shall leave no trace."""
        self._write({_WITHDRAWN: list(key)})

    def close(self) -> None:
        """Let go of the file. In a forked child this leaves the parent's lock alone."""
        os.close(self._file)

    def _write(self, value: dict[str, Any]) -> None:
        line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        try:
            written = os.write(self._file, line)
            if written != len(line):
                raise OSError(0, "the disk is full")
            os.fdatasync(self._file)
        except OSError as error:
            # Half a line in the middle of a log would make it unreadable from there on.
            os.ftruncate(self._file, self._end)
            raise StoreError(
                f"cannot keep a trial in {self.path}: {error.strerror}; free some space"
            ) from None
        self._end += len(line)


@dataclass(frozen=True)
class Log:
    """What a log holds.

    Attributes:
        path: Its file.
        rows: The row that counts, by key.
        alive: Whether its writer may still add to it.
        damaged: Whether a complete line of it could not be read.
    """

    path: Path
    rows: dict[RowKey, Row]
    alive: bool
    damaged: bool

    @property
    def marks(self) -> dict[RowKey, Row]:
        """Trials that were started and have not ended."""
        return {key: row for key, row in self.rows.items() if not is_final(row)}


def read_logs(directory: Path) -> list[Log]:
    """Every log, as of one moment between call and return.

    A log that vanishes while we look has been rewritten into a parquet part and perhaps another log, so we
    look again.
    """
    while True:
        try:
            return [_read(path) for path in sorted(directory.glob(f"[!.]*{SUFFIX}"))]
        except FileNotFoundError:
            continue


def fold(rows: dict[RowKey, Row], row: Row) -> None:
    """Put a row among others, keeping the one of its key that counts."""
    key = key_of(row)
    if key not in rows or rank_of(row) >= rank_of(rows[key]):
        rows[key] = row


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold a lock among all processes. It is free again when its holder ends, however it ends.

    Args:
        path: The lock file, made if needed and never removed.
        wait: Whether to wait for it; without, the value is False where another holds it.

    Raises:
        StoreError: The lock file cannot be made, or its file system has no locks.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StoreError(f"cannot write in {path.parent}: {error.strerror}; name another directory") from None
    try:
        yield _lock(file, path, wait)
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # a child forked in the meantime shares the lock, and lives on
        os.close(file)


def _lock(file: int, path: Path, wait: bool) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StoreError(f"cannot lock {path}: {error.strerror}; name a directory on a local disk") from None
    return True


def sync_directory(directory: Path) -> None:
    """Make names that were made, changed or removed in a directory survive the machine."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _read(path: Path) -> Log:
    with path.open("rb") as file:
        alive = _is_locked(file.fileno())  # asked before reading: a writer that ends now adds nothing after
        lines = file.read().split(b"\n")
    torn = lines.pop()
    if torn and not alive:
        warnings.warn(
            StoreWarning(
                f"{path} ends in half a line of {len(torn)} bytes, from a run that was killed; ignored"
            ),
            stacklevel=2,
        )
    rows: dict[RowKey, Row] = {}
    damaged = False
    for number, line in enumerate(lines, start=1):
        try:
            _fold_line(rows, json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            damaged = True
            warnings.warn(StoreWarning(f"{path} line {number} is no row, ignored: {error}"), stacklevel=2)
    return Log(path, rows, alive, damaged)


def _fold_line(rows: dict[RowKey, Row], value: dict[str, Any]) -> None:
    if _WITHDRAWN in value:
        study, number = value[_WITHDRAWN]
        row = rows.get((study, number))
        if row is not None and not is_final(row):
            del rows[study, number]
    else:
        rank_of(value)  # raises where the line is no row
        fold(rows, value)


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False
