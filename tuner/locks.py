"""Locks of processes that share one OUT. The kernel holds them (flock): a killed process leaves none behind.

POSIX only.
"""

import fcntl
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DIRECTORY = "_locks"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`, waiting for it as long as another process does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Presence:
    """A lock file that is held for as long as this process lives, under a token that others can look up.

    Attributes:
        token: ``host-pid-random``: the owner that a claimed trial names.
    """

    def __init__(self, out: Path) -> None:
        self._directory = out / DIRECTORY
        self._directory.mkdir(parents=True, exist_ok=True)
        self.token = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._path = self._directory / f"{self.token}.alive"
        self._descriptor: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        """Leave; may be called twice."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def is_alive(self, token: str) -> bool:
        """Whether the process with that token is still there. The mark of a dead one is removed."""
        if token == self.token:
            return self._descriptor is not None
        path = self._directory / f"{token}.alive"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(descriptor)

    def others(self) -> tuple[str, ...]:
        """Tokens of the other processes that are alive in this OUT."""
        tokens = sorted(path.stem for path in self._directory.glob("*.alive"))
        return tuple(token for token in tokens if token != self.token and self.is_alive(token))
