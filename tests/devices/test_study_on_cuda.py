"""A whole study on the stand-in GPU: what a user's `tune run --device cuda` does, in CI."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from cuda_standin import OpenStandIn, StandInGpu
from device_samples import TaggingDevice

from emitters import kernel_named
from emitters.kernel import Problem, schedule_values
from results.analysis import rankings
from results.store import TrialStore
from results.trial import Outcome, Source, StudyKey, Trial, Verdict
from search_spaces import space_for
from tuner.devices.cuda import CudaDevice, CudaDevices
from tuner.devices.device import Candidate
from tuner.devices.stopwatch import TimingPolicy
from tuner.devices.timing import StoppingRule
from tuner.finals import SEED as SECOND_SEED
from tuner.finals import final_of
from tuner.journal import open_journal
from tuner.pipeline import HaltedError
from tuner.ptxas import Assembler
from tuner.study import Ending, Tuning
from tuner.task import Request, Task

POLICY = TimingPolicy(
    rule=StoppingRule(most_repeats=20), group_us=40.0, warmup_ms=0.1, budget_s=2.0, warm_s=0.5, energy_s=0.0
)


class Silent:
    """Watches nothing."""

    def begin(self, rows: list[Trial], bound_us: float) -> None: ...
    def finished(self, row: Trial) -> None: ...
    def tick(self, done: int) -> None: ...
    def notice(self, line: str) -> None: ...


def task_on(device: CudaDevice | CudaDevices) -> Task:
    kernel = kernel_named("affine_f32")
    problem = kernel.spec.problem(5000)
    space = space_for(kernel.id, device.target)
    key = StudyKey(
        kernel=kernel.id,
        semantic_hash=kernel.spec.semantic_hash,
        problem=str(problem),
        arch=device.target.arch.name,
        device=device.name,
        policy=device.policy,
        objective="time",
        space_hash=space.hash,
    )
    return Task(kernel, problem, device, space, key, space.index(schedule_values(kernel.baseline)))


def test_a_study_measures_on_the_gpu(tmp_path: Path) -> None:
    device = TaggingDevice(OpenStandIn(StandInGpu(noise=0.002)), POLICY)
    request = Request(trials=4, out=tmp_path, assembler=Assembler(), sampler="random", seed=1)
    task = task_on(device)
    tuning = Tuning(task, request, Silent())
    assert tuning.run() is Ending.COMPLETE
    rows = [row for row in tuning.rows if row.outcome is Outcome.OK]
    assert len(rows) >= 3
    for row in rows:
        measured = row.measurement
        assert measured is not None
        assert row.verdict is not None
        assert (measured.source, row.verdict.where) == (Source.CUDA_EVENTS, "device")
        assert measured.bound_us is not None
        assert measured.bound_us < measured.time_us
        assert measured.other_us["warm"] < measured.time_us
    arena = TaggingDevice(OpenStandIn(StandInGpu(noise=0.002)), POLICY)
    final = final_of(tuning.rows, arena, task.problem, Assembler(), count=3)
    arena.close()
    assert final is not None
    fastest = sorted(rows, key=lambda row: row.measurement.time_us if row.measurement else 0)[:3]
    assert final.numbers == tuple(row.number for row in fastest)
    assert final.chosen in final.tied
    assert final.is_tie is (len(final.tied) > 1)
    assert f"{final.chosen}: {final.time_us:.2f} us" in str(final)
    assert final_of([], arena, task.problem, Assembler()) is None
    seeds: list[int] = []

    def verify(candidate: Candidate, problem: Problem, seed: int) -> Verdict:
        seeds.append(seed)
        return Verdict(3, (str(problem),), first_bad="y[0] is 1, must be 2")

    arena.verify = verify  # type: ignore[method-assign]
    with pytest.raises(HaltedError, match=r"fails on other data: 3 mismatches: y\[0\] is 1, must be 2"):
        final_of(tuning.rows, arena, task.problem, Assembler())
    assert seeds == [SECOND_SEED]
    assert request.seed != SECOND_SEED
    with TrialStore(tmp_path) as store:
        kept: Any = store.trials(tuning.name)
    assert {row.number for row in kept} == {row.number for row in tuning.rows}


def test_energy_can_be_what_is_sought(tmp_path: Path) -> None:
    """Optuna is told joules, and no candidate is stopped early for being slow."""
    device = TaggingDevice(OpenStandIn(StandInGpu(noise=0.002)), replace(POLICY, energy_s=0.05))
    request = Request(trials=3, out=tmp_path, assembler=Assembler(), sampler="random", seed=1)
    task = task_on(device)
    tuning = Tuning(replace(task, key=replace(task.key, objective="energy")), request, Silent())
    assert tuning.run() is Ending.COMPLETE
    study = optuna.load_study(study_name=tuning.name, storage=open_journal(tmp_path))
    told = [trial.value for trial in study.trials]
    assert told == [row.measurement.energy_j if row.measurement else None for row in tuning.rows]
    (ranking,) = rankings(tuning.rows)
    assert ranking.best.figure == min(value for value in told if value)


def test_a_gpu_that_is_faster_than_its_bound_has_no_best(tmp_path: Path) -> None:
    """Events that count nothing, say: every time is refused, however often it was measured."""
    device = TaggingDevice(OpenStandIn(StandInGpu(launch_us=1e-4, miss_us_per_mib=0.0)), POLICY)
    request = Request(trials=2, out=tmp_path, assembler=Assembler(), sampler="random", seed=1)
    tuning = Tuning(task_on(device), request, Silent())
    assert tuning.run() is Ending.COMPLETE
    assert {row.outcome for row in tuning.rows} == {Outcome.REFUSED}
    assert all("must not lie below the physical bound" in row.message for row in tuning.rows)


def test_energy_that_is_not_counted_ends_the_run(tmp_path: Path) -> None:
    device = TaggingDevice(OpenStandIn(StandInGpu(has_nvml=False)), replace(POLICY, energy_s=0.05))
    request = Request(trials=3, out=tmp_path, assembler=Assembler(), sampler="random", seed=1)
    task = task_on(device)
    tuning = Tuning(replace(task, key=replace(task.key, objective="energy")), request, Silent())
    with pytest.raises(
        HaltedError, match=r"^--objective energy needs NVML's energy counter; see tune doctor$"
    ):
        tuning.run()
    assert tuning.rows == []


def test_several_gpus_work_on_one_study(tmp_path: Path) -> None:
    """Two lanes mark, measure and ring at once: every trial has its row, and each GPU had some of them."""
    devices = [TaggingDevice(OpenStandIn(StandInGpu(noise=0.002)), POLICY) for _ in range(2)]
    measured: dict[int, int] = {0: 0, 1: 0}
    busy = threading.Barrier(2)

    def counted(index: int, measure: Any) -> Any:
        def wrapped(*arguments: Any) -> Any:
            measured[index] += 1
            if measured[index] == 1:
                busy.wait(60)  # both lanes are in use at one moment, or this breaks
            return measure(*arguments)

        return wrapped

    for index, device in enumerate(devices):
        device.measure = counted(index, device.measure)  # type: ignore[method-assign]
    both = CudaDevices(devices)
    assert (both.lanes, both.name) == (2, devices[0].name)
    request = Request(trials=8, out=tmp_path, assembler=Assembler(), sampler="random", seed=3, look_ahead=4)
    tuning = Tuning(task_on(both), request, Silent())
    assert tuning.run() is Ending.COMPLETE
    rows = [row for row in tuning.rows if row.outcome is Outcome.OK]
    assert sum(measured.values()) == len(rows)
    assert min(measured.values()) >= 1
    with TrialStore(tmp_path) as store:
        kept = store.trials(tuning.name)
    assert [row.number for row in kept] == list(range(len(tuning.rows)))
    assert all(row.outcome.has_time for row in kept)
