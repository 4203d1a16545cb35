"""A recorded space answers instead of a device: what a schedule came to is what the recording says.

Recordings are Kernel Tuner caches, T4 results and directories of our own trials. Nothing is emitted, proven
or timed, so this is no `Device`: its kernels need not be ours.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from emitters import UnknownKernelError, kernel_named
from results.comparable import MixedParametersError, RecordedSpace, recorded_spaces
from results.errors import ResultsError
from results.store import TrialStore, out_of
from results.trial import Measurement, Outcome, Source, Trial
from tuner.devices.device import DeviceError
from tuner.devices.recorded import Recording, RecordingError, read_recording, read_t1

PREFIX = "replay:"
POLICY = "recorded"
_UNKNOWN = "recorded"


@dataclass(frozen=True)
class Answer:
    """What a recording says of a schedule: a time, or a failure and its message."""

    outcome: Outcome
    message: str
    measurement: Measurement | None


@dataclass(frozen=True)
class Replay:
    """A recording that answers.

    Attributes:
        name: As in a study's key: ``replay:FILE``, without the directory.
        recording: What is known.
    """

    name: str
    recording: Recording

    @property
    def problem(self) -> str:
        """As the recording says; ``recorded`` where it does not."""
        return self.recording.problem or _UNKNOWN

    @property
    def arch(self) -> str:
        """The same of the architecture."""
        return self.recording.arch or _UNKNOWN

    @cached_property
    def hash(self) -> str:
        """blake3 of everything it answers, hex: a recording that was added to makes another study."""
        known = self.recording
        hashed = blake3(repr((known.kernel, known.names, known.values, known.outcomes)).encode())
        for array in (known.levels, known.times_us, known.raw_us):
            hashed.update(np.ascontiguousarray(array).tobytes())
        if known.originals is not None and np.any(known.originals != np.arange(len(known))):
            hashed.update(known.originals.tobytes())
        return hashed.hexdigest()

    def twins(self, schedule: int) -> NDArray[np.int64]:
        """Other schedules that are recorded as having the same code and plan, by number."""
        originals = self.recording.originals
        if originals is None:
            return np.zeros(0, dtype=np.int64)
        alike: NDArray[np.int64] = np.flatnonzero(originals == originals[schedule])
        others: NDArray[np.int64] = alike[alike != schedule]
        return others

    def answer(self, schedule: int) -> Answer:
        """What became of a schedule, given its number in the recording."""
        known = self.recording
        outcome, time_us = known.outcomes[schedule], float(known.times_us[schedule])
        if outcome is not Outcome.OK:
            return Answer(outcome, known.messages[schedule] or f"recorded as {outcome}", None)
        raw = known.raw_us[schedule]
        times_us = tuple(map(float, raw[np.isfinite(raw)]))
        details = {"recorded": known.source} if known.source else {}
        return Answer(outcome, "", Measurement(time_us, Source.REPLAY, times_us, POLICY, details=details))


def is_replay(device: str) -> bool:
    """Whether a device's name is that of a recording."""
    return device.startswith(PREFIX)


def open_replay(
    name: str,
    t1: Path | None = None,
    kernel: str | None = None,
    problem: str | None = None,
    arch: str | None = None,
) -> Replay:
    """The recording that a device name means.

    Args:
        name: ``replay:FILE``; FILE may be the OUT of earlier runs, or the ``trials`` in it.
        t1: T1 input for the parameters of a file.
        kernel, problem, arch: Which of our own trials, where a directory has more than one recording.

    Raises:
        UnknownKernelError: A directory's trials are to be of a kernel that is none.
        DeviceError: It cannot be read, or not as asked for; one line says what to do.
    """
    path = Path(name.removeprefix(PREFIX))
    if name == PREFIX or not path.exists():  # an empty name is no request for the directory that we are in
        raise DeviceError(
            f"--device {PREFIX}FILE needs a recording, there is no file {name.removeprefix(PREFIX)!r}; "
            "give a cache, T4 results or a directory of trials"
        )
    shown = f"{PREFIX}{path.absolute().name}"
    try:
        if path.is_dir():
            if t1 is not None:
                raise DeviceError(f"--t1 is for recorded files, got the directory {path}")
            return _of_trials(path, shown, kernel, problem, arch)
        recording = read_recording(path, None if t1 is None else read_t1(t1))
    except (OSError, RecordingError, ResultsError) as error:  # each names the file
        raise DeviceError(str(error)) from None
    for option, value in (("--shape", problem), ("--arch", arch)):
        if value is not None:
            raise DeviceError(f"{option} is for trials of this tuner, {path} is the recording of another")
    if kernel is not None and recording.kernel not in (kernel, _id_of(kernel)):
        raise DeviceError(f"--kernel must be that of {path}, {recording.kernel or 'unnamed'}, got {kernel}")
    return Replay(shown, recording)


def _id_of(kernel: str) -> str | None:
    """The id of a kernel of ours; other tuners have kernels of their own."""
    try:
        return kernel_named(kernel).id
    except UnknownKernelError:
        return None


def _of_trials(path: Path, shown: str, kernel: str | None, problem: str | None, arch: str | None) -> Replay:
    kernel = None if kernel is None else kernel_named(kernel).id
    chosen: list[Trial] = []
    for trial in TrialStore(out_of(path), read_only=True).trials():
        key = trial.key
        wanted = ((kernel, key.kernel), (problem, key.problem), (arch, key.arch))
        # An answer of a recording, kept in the same directory, is no evidence of its own.
        if not is_replay(key.device) and all(want in (None, has) for want, has in wanted):
            chosen.append(trial)
    try:
        spaces = recorded_spaces(chosen)
    except MixedParametersError as error:
        raise RecordingError(f"{path}: {error}") from None
    if len(spaces) != 1:
        found = "; ".join(space.label for space in spaces) or "none of them"
        raise DeviceError(
            f"{PREFIX}{path} must have trials of one kernel, problem, arch, device; choose with --kernel, "
            f"--shape and --arch; there are {found}"
        )
    return Replay(shown, _recording(spaces[0]))


def _recording(space: RecordedSpace) -> Recording:
    """Of comparable trials; one that was told another's result has that."""
    names, values, trials = space.names, space.values, space.trials
    timed = [trial.measurement if trial.outcome.has_time else None for trial in trials]
    most = max([1, *(len(time.times_us) for time in timed if time is not None)])
    raw_us = np.full((len(trials), most), np.nan)
    for row, time in zip(raw_us, timed, strict=True):
        if time is not None:
            row[: len(time.times_us)] = time.times_us
    places = [{value: level for level, value in enumerate(levels)} for levels in values]
    key = trials[0].key
    return Recording(
        kernel=key.kernel,
        device=key.device,
        names=names,
        values=values,
        levels=np.array(
            [[place[trial.schedule[n]] for n, place in zip(names, places, strict=True)] for trial in trials],
            dtype=np.int16,
        ),
        times_us=np.array([np.nan if time is None else time.time_us for time in timed]),
        raw_us=raw_us,
        outcomes=tuple(Outcome.OK if trial.outcome.has_time else trial.outcome for trial in trials),
        messages=tuple(map(space.message, range(len(trials)))),
        originals=np.array(space.originals, dtype=np.int64),
        problem=key.problem,
        arch=key.arch,
        source=space.source,
    )
