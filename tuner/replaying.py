"""A search over a recorded space: the loop of a study with the recording for an answer, in this process."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from optuna.trial import TrialState

from results.trial import OBJECTIVES, StudyKey, recorded_word
from search_spaces.listed import ListedSpace
from search_spaces.space import Space
from tuner.devices.replay import POLICY, Replay, is_replay, open_replay
from tuner.loop import Flight, Loop, Watch
from tuner.pipeline import Failure
from tuner.study import Tuning
from tuner.task import NO_ENERGY, About, Request, RequestError, Task, task_for


@dataclass(frozen=True)
class Replayed:
    """What such a study is about, as `tuner.task.About` has it."""

    replay: Replay
    space: Space
    key: StudyKey
    baseline: int | None = None
    bound: None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Of the problem; a recording does not name them."""
        return {}

    @property
    def weights(self) -> dict[str, str]:
        """A recording does not name them."""
        return {}

    @property
    def times_are(self) -> str:
        """Recorded; of predictions that too."""
        return recorded_word(self.replay.recording.source)

    def close(self) -> None:
        """Nothing is held."""


def replayed(
    name: str,
    t1: Path | None = None,
    kernel: str | None = None,
    shape: str | None = None,
    arch: str | None = None,
    objective: str = OBJECTIVES[0],
) -> Replayed:
    """What the command line describes; the arguments are those of `open_replay`.

    Raises:
        DeviceError, RequestError: Something is unknown or impossible; one line says what.
    """
    if objective == "energy":
        raise RequestError(NO_ENERGY)
    replay = open_replay(name, t1, kernel, shape, arch)
    known = replay.recording
    space = ListedSpace.of(known.kernel, known.names, known.values, known.levels)
    key = StudyKey(
        kernel=space.kernel,
        semantic_hash=replay.hash,
        problem=replay.problem,
        arch=replay.arch,
        device=replay.name,
        policy=POLICY,
        objective=objective,
        space_hash=space.hash,
    )
    return Replayed(replay, space, key)


def about_for(
    kernel: str | None,
    shape: str | None,
    device: str | None,
    arch: str | None,
    objective: str,
    t1: Path | None,
    weights: Path | None = None,
    tensor: str | None = None,
) -> About:
    """What a run is about: a kernel of ours on a device, or a recording.

    Raises:
        ValueError, DeviceError: Something is unknown, impossible or not to be had; one line says what.
    """
    if device is not None and is_replay(device):
        if weights is not None or tensor is not None:
            raise RequestError(
                "--weights and --tensor are for a kernel on a device; a recording has its own data"
            )
        return replayed(device, t1, kernel, shape, arch, objective)
    if t1 is not None:
        got = "no --device" if device is None else f"--device {device}"
        raise RequestError(f"--t1 is for --device replay:FILE, got {got}")
    if kernel is None:
        raise RequestError("Missing option '--kernel'; `tune kernels` lists them")
    return task_for(kernel, shape, device, arch, objective, weights, tensor)


def loop_for(about: About, request: Request, watch: Watch) -> Loop:
    """The loop that evaluates it."""
    match about:
        case Task():
            return Tuning(about, request, watch)
        case Replayed():
            return Replaying(about, request, watch)
    raise TypeError(f"no loop is for {type(about).__name__}")


class Replaying(Loop):
    """One process's search over a recorded space, one schedule after the other unless asked otherwise."""

    def __init__(self, about: Replayed, request: Request, watch: Watch) -> None:
        super().__init__(about, request, watch, look_ahead=1)
        self._replay = about.replay
        self._space = about.space

    def _start(self, stack: ExitStack) -> None:
        """Everything is here already."""

    def _send(self, flight: Flight) -> None:
        """It is answered by `_advance`."""

    def _advance(self) -> None:
        for flight in list(self._flights.values()):
            schedule = self._space.index(flight.claim.schedule)
            answer = self._replay.answer(schedule)
            twin = self._twin(flight.number, schedule)
            if twin is not None:
                self._copy(flight, twin, answer.outcome, answer.message, None, answer.measurement)
                continue
            failure = None if answer.measurement else Failure(answer.outcome, answer.message)
            self._finish(flight, None, answer.measurement, failure)

    def _twin(self, number: int, schedule: int) -> int | None:
        """The first trial before this one whose schedule has the same code and plan, as on a device."""
        twins = self._replay.twins(schedule).tolist()
        if not twins:
            return None
        alike = [self._space.values(twin) for twin in twins]
        earlier = self._ledger.trials()[:number]
        return next((t.number for t in earlier if t.state is not TrialState.FAIL and t.params in alike), None)

    def _give_up(self) -> None:
        """No device has been touched."""
