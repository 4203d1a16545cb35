"""Running studies of the toy kernels in tests."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emitters import kernel_named
from emitters.kernel import schedule_values
from emitters.target import Target
from results.store import TrialStore
from results.trial import StudyKey, Trial
from search_spaces import space_for
from search_spaces.space import Constraint, Space
from tuner.devices.device import Device
from tuner.ptxas import Assembler
from tuner.study import Ending, Tuning
from tuner.task import Request, Task


@dataclass
class Recorder:
    """A `Watch` that keeps what it is told."""

    began: list[Trial] = field(default_factory=list)
    rows: list[Trial] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    done: int = 0

    def begin(self, rows: list[Trial], bound_us: float) -> None:
        self.began = rows

    def finished(self, row: Trial) -> None:
        self.rows.append(row)

    def tick(self, done: int) -> None:
        self.done = done

    def notice(self, line: str) -> None:
        self.notices.append(line)


def task_on(
    device: Device, kernel_name: str = "toy", shape: str = "65536", space: Space | None = None
) -> Task:
    """A task on a device that the table does not have."""
    kernel = kernel_named(kernel_name)
    problem = kernel.spec.parse_problem(shape)
    searched = space or space_for(kernel.id, device.target)
    key = StudyKey(
        kernel.id,
        kernel.spec.semantic_hash,
        str(problem),
        device.target.arch.name,
        device.name,
        device.policy,
        "time",
        searched.hash,
    )
    return Task(kernel, problem, device, searched, key, searched.index(schedule_values(kernel.baseline)))


def few(kernel_name: str = "toy", threads: tuple[int, ...] = (64, 128)) -> Space:
    """12 schedules of the toy, for each of its flaws: 2 sizes of block, 3 paddings, 2 labels."""
    full = space_for(kernel_name, Target.of("sm_89"))
    names = ("threads", "per_thread")
    rule = Constraint("few", names, lambda t, e, _: t in threads and e == 1, "a test wants few")
    return Space(kernel_name, full.parameters, (rule,), full.target)


def run(
    out: Path, device: Device, trials: int, watch: Any = None, task: Task | None = None, **request: Any
) -> tuple[Ending, Tuning]:
    """Run a study to its end."""
    request.setdefault("sampler", "random")
    request.setdefault("seed", 5)
    wanted = Request(trials=trials, out=out, assembler=Assembler(), workers=2, **request)
    tuning = Tuning(task or task_on(device), wanted, watch or Recorder())
    return tuning.run(), tuning


def rows_in(out: Path) -> list[Trial]:
    """What the store has, read as another program would."""
    return TrialStore(out, read_only=True).trials()
