"""After a study on a GPU: its fastest are timed again, and with them what a user would call instead."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from results.finals import Final, keep_final
from results.trial import Source, Trial
from tuner.baselines import BASELINES, BaselineTime, Timer, time_baselines
from tuner.devices import device_named
from tuner.devices.device import DeviceError
from tuner.devices.errors import CandidateError
from tuner.finals import Arena, final_of
from tuner.library_calls import Libraries
from tuner.pipeline import HaltedError
from tuner.task import About, Request, RequestError, Task


@dataclass(frozen=True)
class Closing:
    """What came of it.

    Attributes:
        final: None where none was held.
        no_final: Why one that should have been held was not; else empty.
        baselines: Those that were asked for, with a time or a reason.
    """

    final: Final | None = None
    no_final: str = ""
    baselines: tuple[BaselineTime, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        times = [
            {
                "name": row.name,
                "time_us": None if row.measurement is None else row.measurement.time_us,
                "reason": row.reason,
            }
            for row in self.baselines
        ]
        final = None if self.final is None else self.final.to_json()
        return {"final": final, "no_final": self.no_final, "baselines": times}


def check_baselines(task: About) -> None:
    """Refuse ``--baseline`` where there is nothing to time, before anything is begun.

    Raises:
        RequestError: The device measures nothing, or no baseline is known for the kernel.
    """
    if not _is_on_gpu(task):
        raise RequestError(f"--baseline must have a GPU to be timed on, got {task.key.device}; use cuda")
    if task.key.kernel not in BASELINES:
        known = ", ".join(BASELINES)
        raise RequestError(f"--baseline is for {known}; none is known for {task.key.kernel}")


def close_study(
    task: About,
    study: str,
    rows: Sequence[Trial],
    request: Request,
    baselines: bool = False,
    libraries: Libraries | None = None,
) -> Closing:
    """Hold the final and time the baselines of a study that has ended; nothing on a device without a GPU.

    The final is kept in OUT, where promotion finds it; it is of times, and not held where energy is sought.
    The device is opened anew, by the name in the study's key: one GPU, also for a study on several.

    Args:
        task: What the study was about; its device has been closed.
        study: Its name.
        rows: Its finished trials.
        request: How it was run.
        baselines: Whether to time them.
        libraries: Where baselines come from; those of this Python unless given.

    Raises:
        StoreError: The final cannot be kept.
    """
    if not _is_on_gpu(task):
        return Closing()
    try:
        device: Any = device_named(task.key.device)
    except DeviceError as error:
        return Closing(no_final=str(error))
    try:
        final, no_final = _final(task, rows, device, request)
        if final is not None:
            keep_final(request.out, study, final)
        return Closing(final, no_final, _baselines(task, device, libraries) if baselines else ())
    finally:
        device.close()


def lines(closing: Closing, best_us: float | None) -> list[str]:
    """For a person, a line each.

    Args:
        closing: What to tell.
        best_us: Time of the study's best; the final's is taken where there is one.
    """
    text = []
    if closing.final is not None:
        best_us = closing.final.time_us
        text.append(f"final:        {closing.final}")
    elif closing.no_final:
        text.append(f"no final:     {closing.no_final}")
    return text + [f"{row.name + ':':<13} {_against(row, best_us)}" for row in closing.baselines]


def _is_on_gpu(task: About) -> TypeGuard[Task]:
    return isinstance(task, Task) and task.device.source is Source.CUDA_EVENTS


def _final(task: Task, rows: Sequence[Trial], arena: Arena, request: Request) -> tuple[Final | None, str]:
    if task.key.objective != "time":
        return None, ""
    try:
        return final_of(rows, arena, task.problem, request.assembler), ""
    except (CandidateError, DeviceError, HaltedError) as error:
        return None, str(error)


def _baselines(task: Task, device: Timer, libraries: Libraries | None) -> tuple[BaselineTime, ...]:
    kernel = task.key.kernel
    try:
        return time_baselines(device, kernel, task.problem, libraries)
    except DeviceError as error:
        return tuple(BaselineTime(row.name, None, str(error)) for row in BASELINES[kernel])


def _against(row: BaselineTime, best_us: float | None) -> str:
    if row.measurement is None:
        return f"no time: {row.reason}"
    theirs_us = row.measurement.time_us
    text = f"{theirs_us:.2f} us {row.measurement.source.word}"
    if best_us is None:
        return text
    return f"{text}; the best takes {100 * best_us / theirs_us:.0f} % of that"
