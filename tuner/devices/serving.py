"""The worker's side: a process that opens one device, then runs one job at a time until its parent is gone.

`tuner.devices.worker` starts it and kills it. It must not be trusted: candidates can corrupt it.
"""

import os
import select
import socket
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from tuner.devices.channel import Channel, ChannelClosedError, ChannelGarbageError
from tuner.devices.device import DeviceError
from tuner.devices.errors import CandidateFaultError, StickyFaultError

Report = Callable[[str, float], None]
"""Says what the job does next, and within how many seconds the parent is to hear from it again."""

R_co = TypeVar("R_co", covariant=True)


class Opener(Protocol):
    """Picklable; makes in the worker what jobs run on. What it raises is why there is no device."""

    def __call__(self, report: Report) -> Any: ...


class Job(Protocol[R_co]):
    """Picklable; one piece of work on what the opener made. Its result is picklable too."""

    def run(self, bench: Any) -> R_co: ...


@dataclass(frozen=True, slots=True)
class Ready:
    """The device is open."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The device cannot be opened."""

    message: str


@dataclass(frozen=True, slots=True)
class Taken:
    """The job has arrived and begins. A worker that dies before it says so has not touched the job."""


@dataclass(frozen=True, slots=True)
class Phase:
    """The job has come to a part that takes at most `limit_s` seconds."""

    name: str
    limit_s: float


@dataclass(frozen=True, slots=True)
class Done:
    """The job's result."""

    value: Any


@dataclass(frozen=True, slots=True)
class Faulted:
    """The device stopped or refused the candidate. `leaving`: its context is lost, so the worker goes too."""

    kind: str
    message: str
    leaving: bool


@dataclass(frozen=True, slots=True)
class Broke:
    """The job raised something that is no fault of the device, or its result cannot be sent."""

    message: str


def serve(fd: int) -> NoReturn:
    """Run jobs that arrive on the socket `fd`; ends the process, never returns."""
    channel = Channel(socket.socket(fileno=fd))
    _leave_with_parent(channel.fileno(), os.getppid())
    try:
        _serve(channel)
    except ChannelClosedError:
        os._exit(0)
    os._exit(0)


def _serve(channel: Channel) -> None:
    def report(name: str, limit_s: float) -> None:
        channel.send(Phase(name, limit_s))

    try:
        opener: Opener = channel.receive()
        bench = opener(report)
    except ChannelClosedError:
        raise
    except DeviceError as error:
        channel.send(Unavailable(str(error)))
        return
    except Exception as error:
        channel.send(Unavailable(_said(error)))
        return
    channel.send(Ready())
    while True:
        try:
            job: Job[Any] = channel.receive()
        except ChannelGarbageError as garbage:
            channel.send(Broke(f"the job cannot be read: {garbage}"))
            continue
        channel.send(Taken())
        answer = _run(job, bench)
        try:
            channel.send(answer)
        except ChannelClosedError:
            raise
        except Exception as error:
            channel.send(Broke(f"the result cannot be pickled: {_said(error)}"))
        if isinstance(answer, Faulted) and answer.leaving:
            return


def _run(job: Job[Any], bench: Any) -> Done | Faulted | Broke:
    try:
        return Done(job.run(bench))
    except StickyFaultError as fault:
        return Faulted(fault.kind, str(fault), leaving=True)
    except CandidateFaultError as fault:
        return Faulted(fault.kind, str(fault), leaving=False)
    except ChannelClosedError:
        raise
    except Exception as error:
        return Broke(_said(error))


def _said(error: Exception) -> str:
    """The error and where it was raised, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _leave_with_parent(fd: int, parent: int) -> None:
    """End this process when its parent has closed the channel or died, even in the midst of a hung launch.

    Device calls release the interpreter lock, so the thread runs while one hangs. A process that the parent
    forked may still hold its end of the socket; therefore the parent's id is looked at as well.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(fd, select.POLLRDHUP)
        while not poll.poll(1000) and os.getppid() == parent:
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
