"""The parent's side of isolation: a process that runs jobs, killed and replaced when a candidate breaks it.

Nothing a candidate does reaches this process: an illegal access ends the worker's CUDA context, a hang is
killed, a dead worker is replaced before the next job. A job that fails raises; it is never run again.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, TypeVar

from tuner.devices.channel import Channel, ChannelClosedError, ChannelGarbageError, ChannelTimeoutError
from tuner.devices.device import DeviceError
from tuner.devices.errors import CandidateCrashError, CandidateFaultError, CandidateTimeoutError
from tuner.devices.serving import Broke, Done, Faulted, Job, Opener, Phase, Ready, Taken, Unavailable

R = TypeVar("R")

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from tuner.devices.serving import serve; serve(int(sys.argv[1]))"
)


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """How long and how often.

    Attributes:
        start_s: For a new process to open its device.
        take_s: For a worker to take a job, and to begin with its first phase.
        die_s: For a killed process to be gone; one stuck in the kernel driver is not.
        starts: Processes that may fail to start, or die without a job, one after another.
        failures: Jobs that may fail one after another. Then it is the device, not the candidates.
        faults: Jobs that the device may refuse one after another before the worker is replaced: its context
            may be broken in a way that no status tells.
    """

    start_s: float = 120.0
    take_s: float = 60.0
    die_s: float = 30.0
    starts: int = 3
    failures: int = 25
    faults: int = 3


class WorkerLostError(DeviceError):
    """No worker can be had any more. The message says what the last ones did."""


class Worker:
    """Runs jobs in a process of its own, one at a time.

    Args:
        opener: Makes, in the worker, what the jobs run on.
        limits: How long and how often.
    """

    def __init__(self, opener: Opener, limits: WorkerLimits | None = None) -> None:
        self._opener = opener
        self._limits = limits or WorkerLimits()
        self._process: _Process | None = None
        self._failures = self._faults = 0
        self._is_closed = False
        self.spawned = 0

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None while there is none."""
        return self._process.pid if self._process is not None else None

    def run(self, job: Job[R]) -> R:
        """The job's result.

        Raises:
            CandidateFaultError: The device stopped or refused it.
            CandidateTimeoutError: It did not report in time; the worker was killed.
            CandidateCrashError: The worker died or answered nonsense, or the job raised.
            WorkerLostError: There is no worker, or too many jobs failed one after another.
        """
        try:
            result: R = self._run(job)
        except (CandidateTimeoutError, CandidateCrashError) as error:
            self._failures += 1
            if self._failures >= self._limits.failures:
                self._discard()
                raise WorkerLostError(
                    f"{self._failures} jobs in a row failed, which is more than candidates do by themselves; "
                    f"see `tune doctor` and `nvidia-smi`. The last: {error}"
                ) from error
            raise
        except CandidateFaultError:
            self._faults += 1
            if self._faults >= self._limits.faults:
                self._faults = 0
                self._discard()
            raise
        except (
            BaseException
        ):  # Ctrl-C between question and answer: the worker's next answer would be the wrong one
            self._discard()
            raise
        self._failures = self._faults = 0
        return result

    def close(self) -> None:
        """Kill the worker for good; may be called twice, and while another thread waits in `run`."""
        self._is_closed = True
        self._discard()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, job: Job[Any]) -> Any:
        process = self._take(job)
        phase, limit_s = "beginning", self._limits.take_s
        while True:
            try:
                answer = process.channel.receive(limit_s)
            except ChannelTimeoutError:
                self._discard()
                raise CandidateTimeoutError(f"no answer within {limit_s:g} s while {phase}; killed") from None
            except ChannelClosedError:
                raise CandidateCrashError(f"the worker {self._bury(process)} while {phase}") from None
            except ChannelGarbageError as garbage:
                self._discard()
                raise CandidateCrashError(f"the worker sent garbage while {phase}: {garbage}") from garbage
            match answer:
                case Phase(name, seconds):
                    phase, limit_s = name, seconds
                case Done(value):
                    return value
                case Faulted(kind, message, leaving):
                    if leaving:
                        self._discard()
                    raise CandidateFaultError(kind, f"{message} (while {phase})")
                case Broke(message):
                    raise CandidateCrashError(f"{message} (while {phase})")
                case _:
                    self._discard()
                    raise CandidateCrashError(f"the worker sent garbage while {phase}: {answer!r:.100}")

    def _take(self, job: Job[Any]) -> "_Process":
        """A worker that has begun the job. One that is lost before has not touched it: the next one has it.

        Raises:
            CandidateCrashError: The worker cannot read the job.
        """
        for _ in range(self._limits.starts):
            process = self._process or self._start()
            try:
                process.channel.send(job, self._limits.take_s)
                answer = process.channel.receive(self._limits.take_s)
            except ChannelTimeoutError:
                reason = f"did not take a job within {self._limits.take_s:g} s"
            except ChannelClosedError:
                reason = self._bury(process)
            except ChannelGarbageError as garbage:
                reason = f"sent garbage: {garbage}"
            else:
                match answer:
                    case Taken():
                        return process
                    case Broke(message):
                        raise CandidateCrashError(message)
                    case _:
                        reason = f"sent garbage: {answer!r:.100}"
            self._discard()
        lost = f"{self._limits.starts} workers in a row were lost between jobs"
        raise WorkerLostError(f"{lost}; the last {reason}")

    def _start(self) -> "_Process":
        if self._is_closed:
            raise WorkerLostError("the device is closed; open another one")
        for _ in range(self._limits.starts):
            process = _Process.spawn()
            self.spawned += 1
            self._process = process
            try:
                process.channel.send(self._opener, self._limits.start_s)
                answer = process.channel.receive(self._limits.start_s)
                while isinstance(answer, Phase):
                    answer = process.channel.receive(answer.limit_s)
            except ChannelTimeoutError:
                reason = f"did not start within {self._limits.start_s:g} s"
            except ChannelClosedError:
                reason = self._bury(process)
            except ChannelGarbageError as garbage:
                reason = f"sent garbage: {garbage}"
            except BaseException:  # Ctrl-C while it starts, or an opener that does not pickle
                self._discard()
                raise
            else:
                match answer:
                    case Ready():
                        return process
                    case Unavailable(message):  # a fact about the device, which trying again does not change
                        self._discard()
                        raise DeviceError(message)
                    case _:
                        reason = f"sent garbage: {answer!r:.100}"
            self._discard()
        raise WorkerLostError(f"{self._limits.starts} workers in a row did not start; the last {reason}")

    def _discard(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill(self._limits.die_s)

    def _bury(self, process: "_Process") -> str:
        """How the process ended, in words, with the last lines it wrote."""
        words = process.ended(self._limits.die_s)
        self._discard()
        return words


class _Process:
    """One worker process with its channel and the file that takes what it prints."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, printed: IO[bytes]) -> None:
        self._process = process
        self._printed = printed
        self.channel = channel

    @classmethod
    def spawn(cls) -> "_Process":
        ours, theirs = socket.socketpair()
        printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `kill`
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the parent, which then ends the worker in order
            )
        return cls(process, Channel(ours), printed)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self, within_s: float) -> str:
        """How it ended, in words. A process that closed its channel but lives is killed first."""
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._kill_group()
            code = self._wait(within_s)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        tail = self._last_lines()
        return how + (f" after writing {' / '.join(tail)!r}" if tail else "")

    def kill(self, within_s: float) -> None:
        """End it and everything it started.

        Raises:
            WorkerLostError: It does not die.
        """
        self._kill_group()
        self.channel.close()
        try:
            self._wait(within_s)
        finally:
            self._printed.close()

    def _last_lines(self) -> list[str]:
        try:
            self._printed.seek(0, os.SEEK_END)
            self._printed.seek(max(0, self._printed.tell() - 2000))
            return self._printed.read().decode(errors="replace").strip().splitlines()[-3:]
        except ValueError:  # closed: another thread has ended the worker on purpose
            return []

    def _kill_group(self) -> None:
        _unless_gone(lambda: os.killpg(self._process.pid, signal.SIGKILL))

    def _wait(self, within_s: float) -> int:
        try:
            return self._process.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            raise WorkerLostError(
                f"worker {self._process.pid} does not die within {within_s:g} s of being killed: "
                "the GPU driver holds it; the GPU has to be reset or the machine restarted"
            ) from None


def _unless_gone(action: Callable[[], None]) -> None:
    try:
        action()
    except ProcessLookupError:
        return
