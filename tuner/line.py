"""The queue before the device that verifies and times, served by a thread of this process a lane."""

import multiprocessing
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from emitters.kernel import Problem
from tuner.devices.device import Candidate, Device
from tuner.pipeline import Halted, HaltedError, Proven, time_on


@dataclass(frozen=True)
class Timed:
    """What the device said about a candidate."""

    number: int
    result: Proven | Halted


class DeviceLine:
    """Candidates in the order in which they were proven, one at a time in each of the device's lanes.

    A device has one lane unless its attribute ``lanes`` says more, as several GPUs behind one device do.

    Args:
        device: Used by the line's threads only, until `close`.
        problem: The real one.
        seed: Of the data.
        before: Called with a trial's number right before the device is touched.
    """

    def __init__(self, device: Device, problem: Problem, seed: int, before: Callable[[int], None]) -> None:
        self._device = device
        self._problem = problem
        self._seed = seed
        self._before = before
        self._waiting: queue.SimpleQueue[tuple[int, Candidate, float | None] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Timed] = queue.SimpleQueue()
        self._closed = threading.Event()
        self.bell, self._ring = multiprocessing.Pipe(duplex=False)
        self._bell_guard = threading.Lock()
        lanes = int(getattr(device, "lanes", 1))
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(lanes)]
        for thread in self._threads:
            thread.start()

    def submit(self, number: int, candidate: Candidate, best_us: float | None) -> None:
        """Queue a candidate."""
        self._waiting.put((number, candidate, best_us))

    def collect(self) -> list[Timed]:
        """What is done. `bell` becomes readable when there is something."""
        done = []
        while self.bell.poll():
            self.bell.recv_bytes()
            done.append(self._done.get())
        return done

    def close(self) -> None:
        """Give up what is queued, end what runs by closing the device, and wait for the threads."""
        self._closed.set()
        for _ in self._threads:
            self._waiting.put(None)
        self._device.close()
        for thread in self._threads:
            thread.join(timeout=10.0)

    def _serve(self) -> None:
        while (job := self._waiting.get()) is not None:
            if self._closed.is_set():
                return
            number, candidate, best_us = job
            result: Proven | Halted
            try:
                self._before(number)
                result = time_on(self._device, candidate, self._problem, self._seed, best_us)
            except HaltedError as error:
                result = Halted(str(error))
            except Exception as error:
                result = Halted(f"{type(error).__name__}: {error}")
            self._done.put(Timed(number, result))
            with self._bell_guard:
                self._ring.send_bytes(b"!")
