"""Openers and jobs that misbehave, one way each. A module of its own: the worker has to import them."""

import os
import signal
import socket
import stat
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.devices.errors import CandidateFaultError, StickyFaultError
from tuner.devices.serving import Report


@dataclass
class PlainBench:
    """What the well-behaved opener makes."""

    report: Report
    jobs: int = 0


@dataclass(frozen=True)
class OpenPlain:
    def __call__(self, report: Report) -> PlainBench:
        return PlainBench(report)


@dataclass(frozen=True)
class OpenUnavailable:
    def __call__(self, report: Report) -> PlainBench:
        raise RuntimeError("no CUDA-capable device is detected")


@dataclass(frozen=True)
class OpenDying:
    """Dies at start; `survive_after` starts on, counted in a file, it does not."""

    counter: Path
    survive_after: int = 1_000_000

    def __call__(self, report: Report) -> PlainBench:
        starts = len(self.counter.read_text()) if self.counter.exists() else 0
        self.counter.write_text("x" * (starts + 1))
        if starts < self.survive_after:
            print("libcuda.so.1: cannot open shared object file", flush=True)
            os._exit(7)
        return PlainBench(report)


@dataclass(frozen=True)
class OpenHanging:
    def __call__(self, report: Report) -> PlainBench:
        time.sleep(600)
        raise AssertionError


@dataclass(frozen=True)
class Add:
    left: int
    right: int

    def run(self, bench: PlainBench) -> int:
        bench.jobs += 1
        return self.left + self.right


@dataclass(frozen=True)
class WhichJob:
    """Pid of the worker and how many jobs it has done."""

    def run(self, bench: PlainBench) -> tuple[int, int]:
        return os.getpid(), bench.jobs


@dataclass(frozen=True)
class Die:
    """Ends the process the hard way."""

    number: int = signal.SIGSEGV

    def run(self, bench: PlainBench) -> None:
        print("Fatal: the heap is corrupted", file=sys.stderr, flush=True)
        os.kill(os.getpid(), self.number)
        time.sleep(600)


@dataclass(frozen=True)
class Leave:
    """Calls exit, as a library might."""

    def run(self, bench: PlainBench) -> None:
        sys.exit(3)


@dataclass(frozen=True)
class Hang:
    """Announces a launch and never ends; `deaf` to every signal but SIGKILL."""

    limit_s: float
    pid_file: Path

    def run(self, bench: PlainBench) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.pid_file.write_text(str(os.getpid()))
        bench.report("running the candidate", self.limit_s)
        time.sleep(600)


@dataclass(frozen=True)
class SlowButReporting:
    """Takes longer than any one phase may, but says what it does."""

    phases: int
    seconds: float

    def run(self, bench: PlainBench) -> str:
        for number in range(self.phases):
            bench.report(f"phase {number}", 4 * self.seconds)
            time.sleep(self.seconds)
        return "done"


@dataclass(frozen=True)
class Babble:
    """Prints where a naive protocol would have its answers, then answers."""

    def run(self, bench: PlainBench) -> str:
        os.write(1, b"\x80\x05garbage on stdout\n" * 1000)
        os.write(2, b"and on stderr\n" * 1000)
        return "heard"


@dataclass(frozen=True)
class WriteToChannel:
    """Writes raw bytes into the worker's own channel."""

    payload: bytes

    def run(self, bench: PlainBench) -> None:
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            try:
                is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
            except OSError:
                continue
            if is_socket:
                os.write(fd, self.payload)
        time.sleep(600)


@dataclass(frozen=True)
class CloseChannel:
    """Closes the worker's channel but lives on."""

    def run(self, bench: PlainBench) -> None:
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            try:
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    socket.socket(fileno=fd).shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        time.sleep(600)


@dataclass(frozen=True)
class Unpicklable:
    """Answers with something that cannot be sent."""

    def run(self, bench: PlainBench) -> Any:
        return threading.Lock()


class _OnlyHere:
    """Unpickling it fails: only the worker can make one."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise ValueError("made in the worker only")


@dataclass(frozen=True)
class Ununpicklable:
    """Answers with something that the parent cannot read."""

    def run(self, bench: PlainBench) -> Any:
        return _OnlyHere()


@dataclass(frozen=True)
class AnswerNonsense:
    """Raises what the worker reports as ordinary failure."""

    def run(self, bench: PlainBench) -> None:
        raise ZeroDivisionError("a bug of a reference")


@dataclass(frozen=True)
class Fault:
    """Faults as the device would."""

    sticky: bool

    def run(self, bench: PlainBench) -> None:
        bench.report("running the candidate", 10.0)
        kind = StickyFaultError if self.sticky else CandidateFaultError
        raise kind("misaligned", "CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address")


@dataclass(frozen=True)
class DieSoon:
    """Answers, then dies while nobody asks it anything."""

    def run(self, bench: PlainBench) -> str:
        threading.Timer(0.05, lambda: os._exit(9)).start()
        return "last words"


@dataclass(frozen=True)
class OnlyForTheParent:
    """Reading it fails."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_job, ()

    def run(self, bench: PlainBench) -> None: ...


def _no_job() -> None:
    raise ValueError("no job of mine")


@dataclass(frozen=True)
class FatalToRead:
    """Reading it ends the worker, before it has begun with it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (5,)

    def run(self, bench: PlainBench) -> None: ...
