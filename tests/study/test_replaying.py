"""Searching recorded spaces: every row is what the recording says, failures and their messages included."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import refused
from fake_device import FakeDevice, time_of
from toy_study import Recorder, few, rows_in, task_on
from toy_study import run as run_study

from results.trial import Outcome, Source, Trial
from tuner.cli import run
from tuner.devices.device import DeviceError
from tuner.loop import Ending
from tuner.ptxas import Assembler
from tuner.reading import trials_in
from tuner.replaying import Replaying, about_for, replayed
from tuner.task import Request

REPLAY = Path(os.environ.get("REPLAY_SPACES", Path(__file__).parents[3] / "shared" / "replay"))
FAILED = {(64, 1): "RuntimeFailedConfig", (128, 3): "CompilationFailedConfig"}
ABSENT = (32, 3)  # breaks a condition


def time_ms(x: int, tile: int) -> float:
    return 1.0 + abs(x - 128) / 64 + abs(tile - 2)


def cache(path: Path) -> Path:
    """A Kernel Tuner cache of 11 schedules, two of which failed."""
    entries: dict[str, Any] = {}
    for x in (32, 64, 128, 256):
        for tile in (1, 2, 3):
            time: Any = FAILED.get((x, tile), time_ms(x, tile))
            if (x, tile) != ABSENT:
                entries[f"{x},{tile}"] = {"block_size_x": x, "tile": tile, "time": time, "times": []}
    head = {"device_name": "NVIDIA A100", "kernel_name": "copy", "objective": "time"}
    head |= {"tune_params_keys": ["block_size_x", "tile"], "cache": entries}  # type: ignore[dict-item]
    head["tune_params"] = {"block_size_x": [32, 64, 128, 256], "tile": [1, 2, 3]}  # type: ignore[assignment]
    path.write_text(json.dumps(head))
    return path


def why(row: Trial) -> str:
    """Of a failure, its own message or that of its twin."""
    return re.sub(r"^same code and plan as trial \d+: ", "", row.message)


def search(about: Any, out: Path, trials: int, **request: Any) -> tuple[Ending, list[Trial]]:
    request = {"sampler": "random", "seed": 1, **request}
    loop = Replaying(about, Request(trials=trials, out=out, assembler=Assembler(), **request), Recorder())
    return loop.run(), loop.rows


def test_every_row_is_what_was_recorded(tmp_path: Path) -> None:
    about = replayed(f"replay:{cache(tmp_path / 'copy.json')}")
    ending, rows = search(about, tmp_path / "out", 100)
    assert (ending, len(rows)) == (Ending.EXHAUSTED, 11)
    assert about.key.device == "replay:copy.json"
    for row in rows_in(tmp_path / "out"):
        at = int(row.schedule["block_size_x"]), int(row.schedule["tile"])
        assert at != ABSENT
        if at in FAILED:
            outcome = Outcome.CRASH if FAILED[at].startswith("Runtime") else Outcome.ASSEMBLE
            assert (row.outcome, row.message, row.measurement) == (outcome, FAILED[at], None)
            continue
        assert row.outcome is Outcome.OK
        assert row.measurement is not None
        assert row.measurement.source is Source.REPLAY
        assert row.measurement.time_us == pytest.approx(1000 * time_ms(*at))
        assert (row.verdict, row.code_hash, row.bound_us) == (None, None, None)


@pytest.mark.parametrize("sampler", ["random", "auto", "tpe"])
def test_the_same_seed_searches_alike_interrupted_or_not(tmp_path: Path, sampler: str) -> None:
    about = replayed(f"replay:{cache(tmp_path / 'copy.json')}")
    _, whole = search(about, tmp_path / "whole", 9, sampler=sampler)
    search(about, tmp_path / "parts", 4, sampler=sampler)
    _, parts = search(about, tmp_path / "parts", 9, sampler=sampler)
    assert [row.schedule for row in parts] == [row.schedule for row in whole]


@pytest.mark.skipif(not REPLAY.is_dir(), reason=f"no recorded spaces in {REPLAY}; set REPLAY_SPACES")
def test_a_run_ends_when_the_sampler_is_sure(tmp_path: Path) -> None:
    """As sure as was asked for, and right; the same trials are judged alike when the run is resumed."""
    about = replayed(f"replay:{REPLAY / 'dedispersion_A4000.json.gz'}")
    watch = Recorder()
    request = Request(trials=300, out=tmp_path, assembler=Assembler(), seed=1, until=0.9)
    loop = Replaying(about, request, watch)
    assert loop.run() is Ending.ASSURED
    assert 20 <= len(loop.rows) < 300
    assert len(loop.rows) % 5 == 0
    best = min(row.figure for row in loop.rows if row.figure is not None)
    assert best <= 1.01 * np.nanmin(about.replay.recording.times_us)
    (said,) = watch.notices
    sure = re.fullmatch(r"after (\d+) trials the best is within 1 % of the optimum, (0\.\d+) sure", said)
    assert sure is not None
    assert (int(sure[1]), float(sure[2]) >= 0.9) == (len(loop.rows), True)
    again = Replaying(about, request, Recorder())
    assert (again.run(), len(again.rows)) == (Ending.ASSURED, len(loop.rows))


def test_a_recording_that_grew_makes_another_study(tmp_path: Path) -> None:
    file = cache(tmp_path / "copy.json")
    before = replayed(f"replay:{file}").key
    file.write_text(file.read_text().replace('"time": 1.0,', '"time": 0.5,'))
    after = replayed(f"replay:{file}").key
    assert (before.space_hash, before.device) == (after.space_hash, after.device)
    assert before.name != after.name


def test_own_trials_answer_with_their_failures(tmp_path: Path) -> None:
    """Predicted ones say so; those that were told another's result are answered with it."""
    task = task_on(FakeDevice(source=Source.MODEL), "flawed", "4096", few("flawed", (128,)))
    run_study(tmp_path / "first", FakeDevice(), 100, task=task, limit_s=2)
    known = {tuple(row.schedule.items()): row for row in rows_in(tmp_path / "first")}
    for place in (tmp_path / "first", tmp_path / "first" / "trials"):
        about = replayed(f"replay:{place}", kernel="flawed", shape="4096", arch="sm_89")
        assert (about.key.kernel, about.key.problem, about.key.arch) == ("flawed", "4096", "sm_89")
        _, rows = search(about, tmp_path / "first", 100, study=place.name)  # into the same directory
        assert len(rows) == len(known)
        for row in rows:
            first = known[tuple((name, row.schedule[name]) for name in next(iter(known.values())).schedule)]
            if not first.outcome.has_time:
                assert row.outcome is first.outcome
                assert why(row) == why(first)
                continue
            assert row.measurement is not None
            assert row.measurement.time_us == time_of(row.schedule)
            assert row.measurement.source is Source.REPLAY
            assert row.measurement.details["recorded"] == "model"
        # Schedules with the same code stay duplicates of the first of them, in whatever order they come.
        by_number = {row.number: row for row in rows}
        originals = [row for row in rows if row.duplicate_of is None]
        assert len(originals) == len([row for row in known.values() if row.duplicate_of is None])
        for row in rows:
            if row.duplicate_of is None:
                assert row.outcome is not Outcome.DUPLICATE
                continue
            original = by_number[row.duplicate_of]
            assert original.duplicate_of is None
            assert original.number < row.number
            assert row.figure == original.figure
            assert (row.outcome is Outcome.DUPLICATE) == original.outcome.has_time
            if not original.outcome.has_time:
                assert row.message == f"same code and plan as trial {original.number}: {original.message}"
    assert {row.outcome for row in known.values()} > {Outcome.OK, Outcome.WRONG}


def test_which_of_several_recordings_has_to_be_said(tmp_path: Path) -> None:
    for shape in ("64", "128"):
        run_study(tmp_path, FakeDevice(), 2, task=task_on(FakeDevice(), space=few(), shape=shape))
    message = r"of one kernel, problem, arch, device; choose with .* toy 128 sm_89 fake fake; toy 64 sm_89"
    with pytest.raises(DeviceError, match=message):
        replayed(f"replay:{tmp_path}")
    assert replayed(f"replay:{tmp_path}", shape="64").key.problem == "64"
    with pytest.raises(DeviceError, match="there are none of them"):
        replayed(f"replay:{tmp_path}", shape="65")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--kernel", "cpoy"), r"^--kernel must be that of .*copy\.json, copy, got cpoy$"),
        (("--shape", "64"), r"^--shape is for trials of this tuner, .*copy\.json is the recording of"),
        (("--arch", "sm_89"), r"^--arch is for trials of this tuner"),
        (("--t1", "nowhere.json"), r"^cannot read nowhere\.json: No such file or directory; name another"),
        (("--device", "replay:gone.json"), r"^--device replay:FILE needs a recording, .* 'gone\.json'; give"),
        (("--device", "replay:text.json"), r"^text\.json is no JSON, nor the start of a Kernel Tuner"),
        (("--objective", "energy"), r"^--objective energy needs NVML's energy counter; see tune doctor$"),
        (("--baseline",), r"^--baseline must have a GPU to be timed on, got replay:copy\.json; use cuda$"),
        (("--device", "sim:rtx4090", "--t1", "x"), r"^--t1 is for --device replay:FILE, got --device sim"),
        (("--device", None, "--t1", "x"), r"^--t1 is for --device replay:FILE, got no --device$"),
    ],
)  # fmt: skip
def test_what_a_recording_has_not_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    cache(Path("copy.json"))
    Path("text.json").write_text("times")
    command = ["run", "--device", "replay:copy.json", *options]
    if None in command:
        command = ["run", *command[command.index(None) + 1 :]]
    said = refused(capsys, *command)
    assert re.search(line, said), said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.json", "text.json"]


def test_a_recording_of_a_kernel_of_ours_goes_by_its_alias(tmp_path: Path) -> None:
    path = cache(tmp_path / "cache.json")
    path.write_text(path.read_text().replace('"kernel_name": "copy"', '"kernel_name": "affine_f32"'))
    assert replayed(f"replay:{path}", kernel="affine").key.kernel == "affine_f32"
    with pytest.raises(DeviceError, match=r"^--kernel must be that of .*, affine_f32, got rmsnorm$"):
        replayed(f"replay:{path}", kernel="rmsnorm")


def test_a_device_is_not_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["time", "--kernel", "toy", "--device", "replay:x.json"]) == 2
    assert "replay:x.json answers `tune run` alone" in capsys.readouterr().err


def test_the_command_says_recorded_and_promotes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["run", "--device", f"replay:{cache(tmp_path / 'copy.json')}", "--out", str(out)]
    assert run([*command, "--trials", "11", "--seed", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("copy recorded on replay:copy.json (recorded): 11 trials\n")
    assert re.search(r"^best:         1000\.00 us recorded \(trial \d+\)$", said, re.M)
    assert "failures:     1 crash, 1 assemble" in said or "failures:     1 assemble, 1 crash" in said
    assert not re.search("hand-written|bound|promote|measured|predicted", said)
    assert run(["promote", "best", "--out", str(out)]) == 0
    assert "11 trials are of recordings, and are left out" in capsys.readouterr().out
    assert len(trials_in(out)) == 11
    assert run(["results", "--out", str(out)]) == 0
    assert "recorded" in capsys.readouterr().out


@pytest.mark.skipif(not REPLAY.is_dir(), reason=f"no recorded spaces in {REPLAY}; set REPLAY_SPACES")
@pytest.mark.parametrize("t1", [None, REPLAY / "convolution.t1.json"], ids=["alone", "with T1"])
def test_a_cache_and_t4_of_the_same_data_answer_alike(tmp_path: Path, t1: Path | None) -> None:
    """Schedule by schedule, to the rounding of the formats."""
    files = [REPLAY / "convolution_A4000.json.gz", REPLAY / "convolution_A4000_T4.json.gz"]
    one, other = (about_for(None, None, f"replay:{file}", None, "time", t1) for file in files)
    assert len(one.space) == len(other.space) == 4362
    _, rows = search(one, tmp_path, 60)
    assert {row.outcome for row in rows} > {Outcome.OK}
    assert isinstance(other, type(one))
    for row in rows:
        answer = other.replay.answer(other.space.index(row.schedule))  # type: ignore[attr-defined]
        assert answer.outcome is row.outcome
        if row.measurement is not None:
            assert answer.measurement is not None
            assert answer.measurement.time_us == pytest.approx(row.measurement.time_us, rel=1e-6)
