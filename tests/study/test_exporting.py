"""Trials as files of other tuners: read back equal by our own replay, searched by the real Kernel Tuner."""

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import refused

from results.comparable import recorded_spaces
from results.errors import ExportError
from results.export import kernel_tuner_text, t4_text
from results.store import TrialStore
from results.trial import Measurement, Outcome, Source, Trial
from tuner.cli import run
from tuner.devices.recorded import Recording, read_recording
from tuner.devices.replay import open_replay

sys.path.append(str(Path(__file__).parent.parent / "results"))
from sample_trials import KEY

FAILURES = [o for o in Outcome if not o.has_time and o is not Outcome.STARTED]


def trial(number: int, schedule: dict[str, Any], outcome: Outcome = Outcome.OK, **changes: Any) -> Trial:
    """A trial that took 60 us and a third for every number, three times, or failed."""
    time_us = 60 + number / 3
    measurement = Measurement(time_us, Source.MODEL, (time_us, time_us + 0.1), "model")
    row = Trial(
        study="first",
        number=number,
        key=KEY,
        schedule=schedule,
        outcome=outcome,
        message="" if outcome.has_time else f"it is {outcome}, say the rules",
        sizes={"m": 4096, "n": 3456, "k": 1280},
        measurement=measurement if outcome.has_time else None,
        seconds={"emit": 0.001, "assemble": 0.25, "gate": 0.5},
        versions={"ptx-tuner": "0.1.0"},
        started_at=1_760_000_000.25,
        finished_at=1_760_000_001.5,
    )
    return replace(row, **changes)


def all_kinds() -> list[Trial]:
    """Every outcome, every type of parameter, and twins of a right trial and of a failed one."""
    kinds = [Outcome.OK] * 9 + FAILURES
    rows = [
        trial(
            number,
            {
                "tile_m": 128 >> number % 4,
                "swizzle": number % 2 == 0,
                "decode": ("shared", "register")[number // 4 % 2],
                "stages": 1 + number // 8,
            },
            outcome,
        )
        for number, outcome in enumerate(kinds)
    ]
    failed = len(kinds) - 1
    first, last = rows[3].measurement, rows[failed]
    told = {"tile_m": 8, "swizzle": False, "decode": "shared", "stages": 9}
    rows.append(trial(90, told, Outcome.DUPLICATE, measurement=first, duplicate_of=3))
    why = f"same code and plan as trial {failed}: {last.message}"
    rows.append(trial(91, {**told, "stages": 10}, last.outcome, message=why, duplicate_of=failed))
    return rows


def kept(out: Path, trials: list[Trial]) -> Path:
    with TrialStore(out) as store:
        for row in trials:
            store.append(row)
    return out


def exported(out: Path, file_format: str, file: Path, *options: str) -> Path:
    assert run(["export", "--format", file_format, "--out", str(out), "-o", str(file), *options]) == 0
    return file


def same(one: Recording, other: Recording) -> None:
    """Row by row; times to the last bit of a double, since these formats have milliseconds."""
    assert one.names == other.names
    assert one.values == other.values
    assert [[type(v) for v in levels] for levels in one.values] == [
        [type(v) for v in levels] for levels in other.values
    ]
    np.testing.assert_array_equal(one.levels, other.levels)
    np.testing.assert_allclose(one.times_us, other.times_us, rtol=4e-16)
    np.testing.assert_allclose(one.raw_us, other.raw_us, rtol=4e-16)
    assert one.outcomes == other.outcomes
    assert one.messages == other.messages
    assert one.kernel == other.kernel
    assert (one.problem, one.arch, one.source) == (other.problem, other.arch, other.source)
    assert one.originals is not None
    assert other.originals is not None
    np.testing.assert_array_equal(one.originals, other.originals)


@pytest.mark.parametrize("file_format", ["t4", "kernel-tuner"])
def test_replay_reads_an_exported_file_as_it_reads_the_directory(tmp_path: Path, file_format: str) -> None:
    rows = all_kinds()
    out = kept(tmp_path / "out", rows)
    file = exported(out, file_format, tmp_path / "file.json")
    ours, theirs = open_replay(f"replay:{out}"), open_replay(f"replay:{file}")
    same(ours.recording, theirs.recording)
    assert (theirs.problem, theirs.arch) == ("4096x3456x1280", "sm_89")
    by_schedule = {tuple(sorted(row.schedule.items())): row for row in rows}
    for number in range(len(theirs.recording)):
        row = by_schedule[tuple(theirs.recording.schedule(number).items())]
        answer = theirs.answer(number)
        assert answer.outcome is (Outcome.OK if row.outcome is Outcome.DUPLICATE else row.outcome)
        assert answer.message == row.message.split(": ")[-1]
        if answer.measurement is not None:
            assert row.measurement is not None
            assert answer.measurement.time_us == pytest.approx(row.measurement.time_us, rel=1e-15)
            assert answer.measurement.details["recorded"] == "model"
    twins = [sorted([n, *theirs.twins(n).tolist()]) for n in range(len(rows)) if len(theirs.twins(n))]
    failed = len(rows) - 3
    assert twins == [[3, len(rows) - 2], [failed, len(rows) - 1], [3, len(rows) - 2], [failed, len(rows) - 1]]


def test_a_t4_file_says_what_the_format_knows_and_the_rest_beside_it(tmp_path: Path) -> None:
    out = kept(tmp_path / "out", all_kinds())
    document = json.loads(exported(out, "t4", tmp_path / "file.t4").read_text())
    assert document["schema_version"] == "1.0.0"
    about = document["metadata"]
    assert (about["device"], about["times_are"]) == ("sim:rtx4090 (predicted)", "predicted")
    words = {}
    for result in document["results"]:
        measured = {m["name"]: m for m in result["measurements"]}
        words[measured["outcome"]["value"]] = result["invalidity"]
        assert result["objectives"] == ["time"]
        assert result["correctness"] == (result["invalidity"] == "correct")
        if result["invalidity"] == "correct":
            assert measured["source"]["value"] == "model"
            assert measured["time"]["unit"] == "ms"
            assert len(result["times"]["runtimes"]) == 2
    assert words == {
        "ok": "correct",
        "emit": "compile",
        "assemble": "compile",
        "wrong": "correctness",
        "fault": "runtime",
        "refused": "correctness",
        "timeout": "timeout",
        "crash": "runtime",
    }
    first = document["results"][0]
    assert first["configuration"] == {"tile_m": 128, "swizzle": True, "decode": "shared", "stages": 1}
    assert first["times"]["compilation"] == pytest.approx(251)
    assert first["times"]["validation"] == 500
    assert first["times"]["runtimes"][0] == pytest.approx(0.06)


def test_measured_times_are_not_called_predicted(tmp_path: Path) -> None:
    key = replace(KEY, device="cuda:NVIDIA H200", policy="cold-l2")
    timed = Measurement(50.0, Source.CUDA_EVENTS, (50.0,), "cold-l2", energy_j=0.01)
    rows = [trial(n, {"tile_m": 16 << n}, key=key, measurement=timed) for n in range(3)]
    (space,) = recorded_spaces(rows)
    cache = json.loads(kernel_tuner_text(space))
    assert cache["device_name"] == "cuda:NVIDIA H200"
    assert cache["metadata"]["times_are"] == "measured"
    assert cache["cache"]["16"]["energy_j"] == 0.01
    assert "predicted" not in t4_text(space)


def test_what_was_recalled_from_predictions_stays_predicted(tmp_path: Path) -> None:
    key = replace(KEY, device="replay:file.json", policy="recorded")
    recalled = Measurement(50.0, Source.REPLAY, (50.0,), "recorded", details={"recorded": "model"})
    (space,) = recorded_spaces([trial(0, {"tile_m": 16}, key=key, measurement=recalled)])
    assert json.loads(t4_text(space))["metadata"]["times_are"] == "predicted"
    assert json.loads(kernel_tuner_text(space))["device_name"] == "replay:file.json (predicted)"


def test_a_search_of_recorded_predictions_calls_them_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line of the run, its tables and the report; recorded measurements are just recorded."""
    predicted = [trial(n, {"tile_m": 16 << n}) for n in range(24)]
    timed = Measurement(50.0, Source.CUDA_EVENTS, (50.0,), "cold-l2")
    key = replace(KEY, device="cuda:NVIDIA H200", policy="cold-l2")
    measured = [replace(row, key=key, measurement=timed) for row in predicted]
    for name, rows, word in (
        ("predicted", predicted, "recorded prediction"),
        ("measured", measured, "recorded"),
    ):
        file = exported(kept(tmp_path / name, rows), "t4", tmp_path / f"{name}.json")
        out = str(tmp_path / f"{name} again")
        capsys.readouterr()
        command = ["run", "--device", f"replay:{file}", "--trials", "3", "--out", out]
        assert run([*command, "--warm-start", str(file)]) == 0
        said = capsys.readouterr().out
        times = re.findall(r"\d us (.*?)(?:, the best so far:| \(trial)", said)
        assert len(times) >= 2
        assert set(times) == {word}
        assert f"learned from: {name}.json, {word} (24 results)\n" in said
        assert run(["results", "--out", out, "--json"]) == 0
        assert [row["is"] for row in json.loads(capsys.readouterr().out)] == [word]
        assert run([*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["best"]["time_is"] == word
        assert run(["report", "--out", out]) == 0
        assert f"(sm_89), {word}\n" in capsys.readouterr().out


def test_a_parameter_that_a_cache_has_no_room_for_is_refused() -> None:
    (space,) = recorded_spaces([trial(0, {"time": 16})])
    with pytest.raises(ExportError, match="has time for something else than a parameter; export --format t4"):
        kernel_tuner_text(space)


def test_comparable_studies_are_one_space_and_the_first_of_a_schedule_counts(tmp_path: Path) -> None:
    first = trial(0, {"tile_m": 16})
    again = trial(7, {"tile_m": 16}, study="second")
    other = trial(8, {"tile_m": 32}, study="second")
    (space,) = recorded_spaces([again, other, first])
    assert [(row.study, row.number) for row in space.trials] == [("first", 0), ("second", 8)]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--format", "csv"), r"^--format must be t4 or kernel-tuner, got csv$"),
        (("--format", "t4", "--kernel", "gemm_dw"), r"^.*out has no trials of --kernel gemm_dw; it has tern"),
        (("--format", "t4", "--shape", "1x1x1"), r"has no trials of --shape 1x1x1; it has ternary_gemm_s8 "),
        (("--format", "t4", "--study", "thrid"), r"^no study 'thrid' in .*; did you mean third\?$"),
        (("--format", "t4"), r"^one kernel, .* choose with --kernel, --shape, --arch, --device or --study; th"
         r"ere are .* 4096x3456x1280 sm_89 sim:rtx4090 model \(1 schedules, first\); .* 64x64x64 "),
        (("--format", "t4", "--shape", "64x64x64", "-o", "there.json"), r"^there\.json exists, and is not w"),
        (("--format", "kernel-tuner", "-o", "a.txt"), r"^a Kernel Tuner cache must be named FILE\.json, got"),
        (("--format", "t4", "--shape", "64x64x64", "-o", "no/a.json"), r"^cannot write no/a\.json: No such"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    other = trial(0, {"tile_m": 16}, study="third", key=replace(KEY, problem="64x64x64"))
    kept(Path("out"), [trial(0, {"tile_m": 16}), other])
    Path("there.json").write_text("mine")
    said = refused(capsys, "export", "--out", "out", *options)
    assert re.search(line, said), said
    assert Path("there.json").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "there.json"]


def test_one_of_several_spaces_is_chosen_by_device_or_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = replace(KEY, device="sim:h200")
    rows = [trial(0, {"tile_m": 16}), trial(0, {"tile_m": 32}, study="second", key=elsewhere)]
    out = kept(tmp_path / "out", rows)
    for options in (("--device", "sim:h200"), ("--study", "second")):
        assert run(["export", "--format", "kernel-tuner", "--out", str(out), *options]) == 0
        assert list(json.loads(capsys.readouterr().out)["cache"]) == ["32"]


SEARCH = """
import contextlib, io, json, sys
import kernel_tuner
from kernel_tuner.interface import tune_cache
from kernel_tuner.file_utils import output_file_schema
import jsonschema

cache, t4, kernel, problem = sys.argv[1:]
document = json.load(open(cache))
valid = {tuple(entry[name] for name in document["tune_params_keys"]) for entry in document["cache"].values()}
names = document["tune_params_keys"]
heard = io.StringIO()
with contextlib.redirect_stdout(heard):
    results, env = kernel_tuner.tune_kernel(
        kernel, "", tuple(json.loads(problem)), [], document["tune_params"],
        restrictions=lambda p: tuple(p[name] for name in names) in valid, cache=cache, simulation_mode=True,
        strategy="random_sample", strategy_options={"max_fevals": len(valid)},
    )
    tuned, _ = tune_cache(cache)
best = env["best_config"]
jsonschema.validate(json.load(open(t4)), output_file_schema("results")[1])
print(json.dumps({
    "evaluated": len({tuple(result[name] for name in names) for result in results}),
    "failed": sorted(str(r["__error__"]) for r in results if "__error__" in r),
    "best": {name: best[name] for name in names},
    "time": best["time"],
    "exhaustive": min(r["time"] for r in tuned if "__error__" not in r),
    "heard": "sim:rtx4090 (predicted)" in heard.getvalue(),
}))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("kernel_tuner") is None, reason="needs the extra bench: pip install '.[bench]'"
)
def test_kernel_tuner_finds_our_best_in_an_exported_cache(tmp_path: Path) -> None:
    """The real package, in simulation mode, by a strategy and exhaustively; and its own schema for T4."""
    rows = all_kinds()
    out = kept(tmp_path / "out", rows)
    cache = exported(out, "kernel-tuner", tmp_path / "cache.json")
    before = cache.read_bytes()
    t4 = exported(out, "t4", tmp_path / "t4.json")
    command = [sys.executable, "-c", SEARCH, str(cache), str(t4), KEY.kernel, "[4096, 3456, 1280]"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    best = min(rows, key=lambda row: float("inf") if row.figure is None else row.figure)
    assert best.figure is not None
    assert found["best"] == best.schedule
    assert found["time"] == best.figure / 1000
    assert found["exhaustive"] == best.figure / 1000
    assert found["evaluated"] == len(rows)
    compiling = [row for row in rows if row.outcome in (Outcome.EMIT, Outcome.ASSEMBLE)]
    running = [row for row in rows if not row.outcome.has_time and row not in compiling]
    assert found["failed"] == ["CompilationFailedConfig"] * len(compiling) + ["RuntimeFailedConfig"] * len(
        running
    )
    assert found["heard"]
    assert read_recording(cache).complete
    assert cache.read_bytes() == before
