"""Worker processes, each with one job at a time, that may crash or hang without harm to the others' jobs.

Not `concurrent.futures`: there one dead worker fails every job in flight, and a hung one cannot be ended.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from tuner.threads import one_thread_for_children

Perform = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Done:
    """A job that returned."""

    tag: int
    result: Any


@dataclass(frozen=True, slots=True)
class Late:
    """A job that ran over its limit; its worker was killed."""

    tag: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class Died:
    """A job whose worker went down with it.

    Attributes:
        reason: The signal or the exit status, or the text of an exception that escaped.
    """

    tag: int
    reason: str


Report = Done | Late | Died


@dataclass
class _Job:
    tag: int
    value: Any
    limit_s: float


@dataclass
class _Worker:
    process: ForkServerProcess
    pipe: Connection
    job: _Job | None = None
    deadline: float = field(default=float("inf"))


class Pool:
    """Performs jobs in `size` worker processes, oldest first.

    Args:
        perform: A function of a module (workers look it up by name); jobs and results are pickled.
        size: Number of workers; each starts with the first job that needs it.
        preload: Modules to import once for all workers.
    """

    def __init__(self, perform: Perform, size: int, preload: Sequence[str] = ()) -> None:
        if size < 1:
            raise ValueError(f"a pool needs at least 1 worker, got {size}")
        self._perform = perform
        self._size = size
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        with one_thread_for_children():
            forkserver.ensure_running()
        self._queue: deque[_Job] = deque()
        self._workers: list[_Worker] = []

    @property
    def busy(self) -> int:
        """Jobs that are queued or running."""
        return len(self._queue) + sum(worker.job is not None for worker in self._workers)

    def submit(self, tag: int, job: Any, limit_s: float) -> None:
        """Queue a job; `wait` reports it under its tag."""
        self._queue.append(_Job(tag, job, limit_s))
        self._feed()

    def wait(self, timeout_s: float, also: Sequence[Connection] = ()) -> list[Report]:
        """What happened, as soon as something has; empty after `timeout_s`, or when `also` has data."""
        self._feed()
        busy = [worker for worker in self._workers if worker.job is not None]
        deadline = min((worker.deadline for worker in busy), default=float("inf"))
        timeout_s = max(0.0, min(timeout_s, deadline - time.monotonic()))
        ready = wait([*(worker.pipe for worker in busy), *also], timeout_s)
        reports = [self._collect(worker) for worker in busy if worker.pipe in ready]
        now = time.monotonic()
        for worker in busy:
            if worker.job is not None and worker.deadline <= now:
                reports.append(Late(worker.job.tag, worker.job.limit_s))
                self._discard(worker)
        self._feed()
        return reports

    def close(self) -> None:
        """End every worker at once, whatever it is doing; may be called twice."""
        self._queue.clear()
        for worker in list(self._workers):
            self._discard(worker)

    def _feed(self) -> None:
        for worker in [idle for idle in self._workers if idle.job is None and not idle.process.is_alive()]:
            self._discard(worker)
        while self._queue:
            idle = next((worker for worker in self._workers if worker.job is None), None)
            if idle is None:
                if len(self._workers) >= self._size:
                    return
                idle = self._start()
            idle.job = self._queue.popleft()
            idle.deadline = time.monotonic() + idle.job.limit_s
            try:
                idle.pipe.send(idle.job.value)
            except OSError:  # it died while idle: the job goes to a fresh one
                self._queue.appendleft(idle.job)
                self._discard(idle)

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._perform), daemon=True)
        process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        return worker

    def _collect(self, worker: _Worker) -> Report:
        assert worker.job is not None
        tag = worker.job.tag
        try:
            escaped, result = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            reason = _exit_reason(worker.process.exitcode)
            self._discard(worker)
            return Died(tag, reason)
        except Exception as error:
            self._discard(worker)
            return Died(tag, f"its answer cannot be read: {type(error).__name__}: {error}")
        worker.job = None
        return Died(tag, result) if escaped else Done(tag, result)

    def _discard(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.pipe.close()
        if worker.process.pid is not None:
            # The worker leads a process group of its own: a ptxas that it waits for goes with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.kill()
        worker.process.join()
        worker.process.close()


def _exit_reason(status: int | None) -> str:
    if status is not None and status < 0:
        return f"signal {-status} ({signal.strsignal(-status)})"
    return f"exit status {status}"


def _serve(pipe: Connection, perform: Perform) -> None:
    """The life of a worker: jobs until the pipe closes."""
    gc.freeze()  # what is imported stays: no collection has to walk it
    os.setpgid(0, 0)  # a Ctrl-C in the terminal is the parent's to handle
    threading.Thread(target=_follow_parent, daemon=True).start()
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):  # closed; reset, if it was closed with an answer unread
            return
        try:
            answer: tuple[bool, Any] = (False, perform(job))
        except Exception as error:
            answer = (True, f"{type(error).__name__}: {error}")
        try:
            pipe.send(answer)
        except OSError:
            return
        except Exception as error:
            pipe.send((True, f"the result cannot be sent: {type(error).__name__}: {error}"))


def _follow_parent() -> None:
    """End this worker, and what it started, when the parent is gone, even in the middle of a job."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(0, signal.SIGKILL)
