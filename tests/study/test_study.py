"""The loop from end to end, with real PTX, the real assembler and simulator, and a device that is a fake."""

import re
from pathlib import Path

import optuna
import pytest
from fake_device import FakeDevice, time_of
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from toy_study import Recorder, few, rows_in, run, task_on

from emitters import kernel_named
from emitters.kernel import schedule_values
from results.trial import Outcome, Verdict
from search_spaces import space_for
from search_spaces.space import Constraint, Space
from tuner.devices.device import DeviceError
from tuner.devices.errors import CandidateCrashError, CandidateFaultError, CandidateTimeoutError
from tuner.ledger import StudyError
from tuner.pipeline import HaltedError
from tuner.study import Ending


def test_a_study_runs_to_its_total_and_keeps_every_row(tmp_path: Path) -> None:
    device, watch = FakeDevice(), Recorder()
    ending, tuning = run(tmp_path, device, 30, watch)
    rows = rows_in(tmp_path)
    assert ending is Ending.COMPLETE
    assert sum(row.outcome.counts for row in rows) == 30
    assert watch.done == 30
    assert [row.number for row in rows] == list(range(len(rows)))
    assert [row.outcome for row in rows if row.outcome is not Outcome.DUPLICATE] == [Outcome.OK] * 30
    schedules = [tuple(sorted(row.schedule.items())) for row in rows]
    assert len(set(schedules)) == len(schedules)
    for row in rows:
        assert row.measurement is not None
        assert row.verdict is not None
        assert row.resources is not None
        assert row.measurement.time_us == time_of(row.schedule)
        assert row.verdict.is_right
        assert row.resources.threads == row.schedule["threads"]
        assert row.key == task_on(device).key
        assert row.study == tuning.name
        assert (row.sampler, row.seed, row.bound_us) == ("random", 5, 50.0)
        assert row.sizes == {"n": 65536}
        assert {"ptx-tuner", "ptxas", "optuna", "numpy", "python"} <= row.versions.keys()
        assert row.finished_at is not None
        assert row.finished_at >= row.started_at > 1.7e9
        if row.outcome is Outcome.OK:
            assert {"emit", "assemble", "gate", "verify", "measure"} <= row.seconds.keys()


def test_the_hand_written_schedule_is_trial_0(tmp_path: Path) -> None:
    run(tmp_path, FakeDevice(), 3)
    assert rows_in(tmp_path)[0].schedule == schedule_values(kernel_named("toy").baseline)


def test_two_texts_of_one_code_are_evaluated_once(tmp_path: Path) -> None:
    """The whole space: each code comes with two labels, and the second is told the result of the first."""
    device = FakeDevice()
    ending, _ = run(tmp_path, device, 100, task=task_on(device, space=few()))
    rows = rows_in(tmp_path)
    duplicates = [row for row in rows if row.outcome is Outcome.DUPLICATE]
    assert ending is Ending.EXHAUSTED
    assert (len(rows), len(duplicates), len(device.touched)) == (12, 6, 6)
    by_number = {row.number: row for row in rows}
    for row in duplicates:
        assert row.duplicate_of is not None
        original = by_number[row.duplicate_of]
        assert original.number < row.number
        assert original.code_hash == row.code_hash
        assert {**original.schedule, "label": ""} == {**row.schedule, "label": ""}
        assert original.measurement == row.measurement


def test_twins_of_an_earlier_run_are_found(tmp_path: Path) -> None:
    run(tmp_path, FakeDevice(), 4, task=task_on(FakeDevice(), space=few()))
    device = FakeDevice()
    ending, _ = run(tmp_path, device, 100, task=task_on(device, space=few()))
    assert ending is Ending.EXHAUSTED
    ok = [row for row in rows_in(tmp_path) if row.outcome is Outcome.OK]
    assert len(ok) == 6
    assert len({row.code_hash for row in ok}) == 6


def test_every_failure_is_a_row_that_says_why(tmp_path: Path) -> None:
    """A space in which each flaw occurs some times, run to its end."""
    device = FakeDevice()
    some = few("flawed")
    names = ("label", "padding")
    rule = Constraint("left", names, lambda word, padding, _: (word, padding) == ("left", 0), "fewer")
    space = Space("flawed", some.parameters, (*some.constraints, rule), device.target)
    task = task_on(device, "flawed", space=space)
    ending, _ = run(tmp_path, device, 100, task=task, limit_s=1.5)
    assert ending is Ending.EXHAUSTED
    rows = rows_in(tmp_path)
    assert len(rows) == len(space) == 18
    expected = {
        "none": (Outcome.OK, r"^$"),
        "refused by the emitter": (Outcome.EMIT, r"^flaw must be none, got refused by the emitter$"),
        "refused by ptxas": (Outcome.ASSEMBLE, r"PTX line \d+: .*add\.s33"),
        "wrong": (Outcome.WRONG, r"^\d+ mismatches: y\[\d+\] is -?\d+, expected -?\d+.* on 2"),
        "race": (Outcome.FAULT, r"^race: race at PTX line \d+ .*the other party: PTX line \d+"),
        "out_of_bounds": (Outcome.FAULT, r"^out_of_bounds: .*PTX line \d+"),
        "defect": (
            Outcome.CRASH,
            r"^ZeroDivisionError: a defect of the emitter \(at toy_kernels\.py:\d+ in _emit\)",
        ),
        "dies": (Outcome.CRASH, r"^the worker ended while the candidate was being emitted.*: exit status 3$"),
        "hangs": (Outcome.TIMEOUT, r"^a candidate may take 1\.5 s, .* allow more with --timeout$"),
    }
    for row in rows:
        outcome, message = expected[str(row.schedule["flaw"])]
        assert row.outcome is outcome, row.message
        assert re.search(message, row.message), row.message
    assert len(device.touched) == 2


def test_what_a_device_does_to_a_candidate_is_its_outcome(tmp_path: Path) -> None:
    errors = {
        32: (CandidateTimeoutError("hung for 10 s"), Outcome.TIMEOUT),
        64: (CandidateCrashError("the worker died"), Outcome.CRASH),
        128: (CandidateFaultError("out_of_bounds", "illegal address"), Outcome.FAULT),
        256: (KeyError("a defect"), Outcome.CRASH),
    }

    def act(schedule: object) -> None:
        assert isinstance(schedule, dict)
        if schedule["threads"] in errors:
            raise errors[schedule["threads"]][0]

    run(tmp_path, FakeDevice(act=act), 40)
    rows = [row for row in rows_in(tmp_path) if row.duplicate_of is None]
    seen = set()
    for row in rows:
        error, outcome = errors.get(int(row.schedule["threads"]), (None, Outcome.OK))
        assert row.outcome is outcome
        if error is not None:
            seen.add(outcome)
            assert str(error).strip("'") in row.message
        if outcome is Outcome.FAULT:
            assert row.verdict is not None
            assert (row.verdict.fault, row.verdict.where) == ("out_of_bounds", "device")
    assert seen == {Outcome.TIMEOUT, Outcome.CRASH, Outcome.FAULT}


def test_a_candidate_that_is_wrong_on_the_device_is_not_timed(tmp_path: Path) -> None:
    timed: list[object] = []
    device = FakeDevice(
        act=timed.append,
        verdict_of=lambda schedule, problem: Verdict(7, (str(problem),), "y[0] is 1", where="device"),
    )
    run(tmp_path, device, 4)
    assert {row.outcome for row in rows_in(tmp_path)} == {Outcome.WRONG}
    assert timed == []


def test_a_time_below_the_physical_bound_is_refused(tmp_path: Path) -> None:
    run(tmp_path, FakeDevice(bound_us=110.0), 30)
    for row in rows_in(tmp_path):
        is_below = time_of(row.schedule) < 110.0
        assert row.outcome is (Outcome.REFUSED if is_below else Outcome.OK) or row.duplicate_of is not None
        if is_below:
            rule = "a time must not lie below the physical bound, 110.000 us"
            assert row.message.endswith(f"{rule}, got {time_of(row.schedule):.3f} us")
    assert any(row.outcome is Outcome.REFUSED for row in rows_in(tmp_path))


def test_a_lost_device_ends_the_run_and_what_was_finished_is_kept(tmp_path: Path) -> None:
    def act(schedule: object) -> None:
        if len(device.touched) > 5:
            raise DeviceError("the GPU fell off the bus")

    device = FakeDevice(act=act)
    with pytest.raises(HaltedError, match="the GPU fell off the bus"):
        run(tmp_path, device, 30)
    assert sum(row.outcome is Outcome.OK for row in rows_in(tmp_path)) == 5
    ending, _ = run(tmp_path, FakeDevice(), 30)
    assert ending is Ending.COMPLETE
    assert sum(row.outcome.counts for row in rows_in(tmp_path)) == 30


def test_plain_optuna_opens_the_study(tmp_path: Path) -> None:
    """What a dashboard reads: states, values, parameters with their levels, and what became of each."""
    run(tmp_path, FakeDevice(bound_us=110.0), 30)
    rows = rows_in(tmp_path)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(tmp_path / "study.log")))
    (summary,) = optuna.get_all_study_summaries(storage)
    study = optuna.load_study(study_name=summary.study_name, storage=storage)
    assert study.direction is optuna.study.StudyDirection.MINIMIZE
    assert study.user_attrs["kernel"] == "toy"
    assert study.user_attrs["problem"] == "65536"
    assert study.user_attrs["times_are"] == "measured"
    assert len(study.trials) == len(rows)
    space = space_for("toy", FakeDevice().target)
    levels = {p.name: optuna.distributions.CategoricalDistribution(p.values) for p in space.parameters}
    for trial, row in zip(study.trials, rows, strict=True):
        assert trial.params == dict(row.schedule)
        assert trial.distributions == levels
        assert trial.user_attrs["outcome"] == row.outcome
        if row.outcome.has_time:
            assert trial.state is TrialState.COMPLETE
            assert trial.value == time_of(row.schedule)
        else:
            assert trial.state is TrialState.PRUNED
            assert trial.user_attrs["message"] == row.message
    assert study.best_trial.value == min(time_of(row.schedule) for row in rows if row.outcome.has_time)


def test_a_name_that_another_study_has_is_refused(tmp_path: Path) -> None:
    run(tmp_path, FakeDevice(), 3, study="mine")
    with pytest.raises(StudyError, match="study 'mine' has problem 65536, not 128; give another --study"):
        run(tmp_path, FakeDevice(), 3, task=task_on(FakeDevice(), shape="128"), study="mine")
    (tmp_path / "study.log").unlink()
    with pytest.raises(StudyError, match="study 'mine' has rows of toy-65536-"):
        run(tmp_path, FakeDevice(), 3, task=task_on(FakeDevice(), shape="128"), study="mine")


def test_a_finished_study_has_nothing_to_do_and_a_larger_total_goes_on(tmp_path: Path) -> None:
    run(tmp_path, FakeDevice(), 10)
    again = FakeDevice()
    assert run(tmp_path, again, 10)[0] is Ending.COMPLETE
    assert again.touched == []
    watch = Recorder()
    run(tmp_path, FakeDevice(), 15, watch)
    assert sum(row.outcome.counts for row in watch.began) == 10
    assert sum(row.outcome.counts for row in rows_in(tmp_path)) == 15
