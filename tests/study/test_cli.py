"""The commands, as a person and as a program uses them."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import environment, start, tune
from toy_study import rows_in

import results
from emitters import kernel_named
from emitters.target import ARCHS, Target
from results.trial import Outcome
from tuner import __version__
from tuner.cli import run


def said_by(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    """Standard output of a command that succeeds."""
    assert run([str(argument) for argument in arguments]) == code, capsys.readouterr().err
    return capsys.readouterr().out


def json_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    return json.loads(said_by(capsys, *arguments, "--json"))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 trials of toy and what was promoted of them."""
    out = tmp_path_factory.mktemp("tuned") / "out"
    run_toy = [
        "run",
        "--kernel",
        "toy",
        "--shape",
        "4096",
        "--trials",
        "12",
        "--seed",
        "1",
        "--sampler",
        "random",
    ]
    assert run([*run_toy, "--out", str(out)]) == 0
    assert run(["promote", "best", "--out", str(out)]) == 0
    return out


def test_help_is_instant_and_loads_nothing_heavy() -> None:
    script = "import sys; from tuner.cli import run; run(['--help']); print(sorted(sys.modules))"
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    elapsed_s = time.monotonic() - started
    loaded = set(re.findall(r"'([\w.]+)'", done.stdout.splitlines()[-1]))
    assert not loaded & {"numpy", "optuna", "pandas", "pyarrow", "scipy", "blake3"}
    assert elapsed_s < 2.0


def test_version_and_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert said_by(capsys, "--version") == f"tune {__version__}\n"
    assert said_by(capsys).startswith("Usage: tune")


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "kernels", "space", "emit", "check", "time", "results", "report", "doctor"):
        assert said_by(capsys, command, "--help").startswith(f"Usage: tune {command}")
    for group, commands in {"promote": ("best",), "frozen": ("list", "verify", "export")}.items():
        for command in commands:
            assert said_by(capsys, group, command, "--help").startswith(f"Usage: tune {group} {command}")


def test_run_in_a_pipe_prints_plain_lines_and_a_summary(tmp_path: Path) -> None:
    done = tune(
        "run", "--kernel", "toy", "--shape", 4096, "--trials", 10, "--seed", 1, "--out", tmp_path / "out"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"toy 4096 on sim:rtx4090 \(sm_89\): 10 trials; bound [\d.]+ us", lines[0])
    assert re.match(r"trial \d+: [\d.]+ us predicted, the best so far: threads=\d+ ", lines[1])
    text = done.stdout
    assert re.search(r"10 trials, 0 failed, \d+ duplicates; this run \d+ in [\d.]+ s \(\d+ a minute\)", text)
    assert re.search(r"^best: +[\d.]+ us predicted, .* % of the bound \(trial \d+\)", text, re.M)
    assert re.search(r"^hand-written: [\d.]+ us predicted", text, re.M)
    assert re.search(r"^bound: +[\d.]+ us \((operations|bytes from DRAM|bytes from L2)\)$", text, re.M)
    assert f"rows:         {tmp_path / 'out' / 'trials'}, study toy-4096-sm_89-sim:rtx4090-" in text
    assert lines[-1] == f"next:         tune promote best --out {tmp_path / 'out'}"
    assert "measured" not in text


def test_run_for_programs(tmp_path: Path) -> None:
    command = ("run", "--kernel", "toy", "--shape", 4096, "--trials", 6, "--out", tmp_path, "--json")
    done = tune(*command)
    value = json.loads(done.stdout)
    best = min(row.measurement.time_us for row in rows_in(tmp_path) if row.measurement)
    assert (value["ending"], value["trials"], value["failures"]) == ("complete", 6, {})
    assert value["best"]["time_us"] == best
    assert (value["best"]["source"], value["best"]["time_is"]) == ("model", "predicted")
    assert value["hand_written"]["number"] == 0
    assert value["hand_written"]["schedule"]["threads"] == 128


def test_ctrl_c_ends_with_the_summary_and_130(tmp_path: Path) -> None:
    run_toy = start("run", "--kernel", "toy", "--shape", 4096, "--trials", 150, "--out", tmp_path)
    assert run_toy.stdout is not None
    while not run_toy.stdout.readline().startswith("trial 0"):
        assert run_toy.poll() is None
    run_toy.send_signal(signal.SIGINT)
    stdout, stderr = run_toy.communicate(timeout=30)
    assert run_toy.returncode == 130
    assert stderr == ""
    assert "interrupted: the same command goes on where this stopped" in stdout
    assert re.search(r"^best: +[\d.]+ us predicted", stdout, re.M)
    assert not [row for row in rows_in(tmp_path) if row.outcome is Outcome.CRASH]


def test_results_and_report(tuned: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (best,) = json_of(capsys, "results", "--out", tuned)
    times = [row.measurement.time_us for row in rows_in(tuned) if row.measurement]
    assert (best["kernel"], best["problem"], best["is"]) == ("toy", "4096", "predicted")
    assert best["time_us"] == min(times)
    history = json_of(capsys, "results", "--out", tuned, "--history")
    assert [row["number"] for row in history] == [row.number for row in rows_in(tuned)]
    assert said_by(capsys, "results", "--out", tuned, "--failures").endswith("none that failed\n")
    assert "toy" in said_by(capsys, "results", "--out", tuned)
    said_by(capsys, "report", "--out", tuned, "-o", tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == said_by(capsys, "report", "--out", tuned)


def test_a_corrupt_part_is_named_and_kept_and_the_rest_is_read(tuned: Path, tmp_path: Path) -> None:
    out = shutil.copytree(tuned, tmp_path / "out", symlinks=True)
    (out / "trials" / "part-000099.parquet").write_bytes(b"PAR1 and then nonsense")
    done = tune("results", "--out", out, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)[0]["kernel"] == "toy"
    assert re.fullmatch(r"tune: warning: .*part-000099\.parquet.*\n", done.stderr), done.stderr


def test_promoted_kernels_load_and_verify(
    tuned: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (manifest,) = json_of(capsys, "frozen", "list", "--out", tuned)
    assert (manifest["kernel"], manifest["time_is"]) == ("toy", "predicted")
    kernel = results.frozen.load("toy", 4096, arch="sm_89", out=tuned)
    assert kernel.is_predicted
    assert "4096" in manifest["verdict"]["problems"]
    (row,) = [row for row in rows_in(tuned) if row.number == manifest["number"]]
    assert manifest["source_hash"] == row.source_hash
    assert "right" in said_by(capsys, "frozen", "verify", "--out", tuned)
    said_by(capsys, "frozen", "export", tmp_path / "kernels.zip", "--out", tuned)
    assert (tmp_path / "kernels.zip").exists()
    again = json_of(capsys, "promote", "best", "--out", tuned)
    assert again[0]["pinned"]


def test_promote_with_nothing_to_promote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing to promote" in said_by(capsys, "promote", "best", "--out", tmp_path)


def test_kernels_and_space(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {entry["kernel"]: entry for entry in json_of(capsys, "kernels")}
    assert {"toy", "ternary_gemm_s8", "gemm_s8"} <= listed.keys()
    assert listed["toy"]["schedules on sm_89"] == 168
    assert listed["toy"]["usual problems"] == ["1048576", "65536"]
    assert "4096x4096, 14336x4096, 4096x14336, 1024x4096" in said_by(capsys, "kernels")
    assert "168 valid schedules" in said_by(capsys, "space", "--kernel", "toy")
    assert "a block does at most 2048" in said_by(capsys, "space", "--kernel", "toy", "--constraints")
    space = json_of(capsys, "space", "--kernel", "toy", "--arch", "sm_90")
    assert (space["arch"], space["valid"]) == ("sm_90", 168)
    one = said_by(capsys, "space", "--kernel", "toy", "--set", "threads=64", "--set", "label=right")
    assert re.fullmatch(
        r"valid, number \d+ of 168: threads=64 per_thread=1 padding=0 label=right flaw=none\n", one
    )


def test_emit_writes_what_the_emitter_gives(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kernel = kernel_named("gemm")
    ptx = kernel.emit(kernel.baseline, Target.of("sm_90")).ptx
    assert said_by(capsys, "emit", "--kernel", "gemm", "--arch", "sm_90") == ptx
    said_by(capsys, "emit", "--kernel", "gemm", "--arch", "sm_90", "-o", tmp_path / "k.ptx")
    assert (tmp_path / "k.ptx").read_text() == ptx
    plan = json.loads(said_by(capsys, "emit", "--kernel", "gemm", "--plan", "--set", "split_k=2"))
    assert [step["kind"] for step in plan["steps"]] == ["memset", "kernel"]


def test_check_a_sample_on_every_arch(capsys: pytest.CaptureFixture[str]) -> None:
    value = json_of(capsys, "check", "--kernel", "toy", "--arch", "all", "--sample", 6)
    assert [row["arch"] for row in value["archs"]] == list(ARCHS)
    assert all((row["right"], row["failed"], row["problems"]) == (6, 0, 12) for row in value["archs"])
    assert value["failures"] == []


def test_check_names_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    flaws = ("wrong", "race", "refused by ptxas", "dies", "defect")
    for flaw, outcome in zip(flaws, ("wrong", "fault", "assemble", "crash", "crash"), strict=True):
        said = said_by(capsys, "check", "--kernel", "flawed", "--set", f"flaw={flaw}", code=1)
        assert f"sm_89 {outcome}: " in said
        assert f"flaw={flaw}" in said


def test_check_a_whole_problem_and_a_sample_of_its_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("check", "--kernel", "toy", "--shape", 100_000)
    assert re.search(r"sm_89 +1 +1 +1 +0", said_by(capsys, *arguments))
    assert re.search(r"sm_89 +1 +1 +1 +0", said_by(capsys, *arguments, "--blocks", 7))
    wrong = ("check", "--kernel", "flawed", "--set", "flaw=wrong", "--shape", 100_000, "--blocks", 7)
    # 7 blocks of 128 elements, the last one of 32: only what they wrote is compared.
    assert "wrong: 800 mismatches" in said_by(capsys, *wrong, code=1)


def test_time_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    said = said_by(capsys, "time", "--kernel", "toy", "--shape", 65536, "--explain")
    assert re.match(r"toy 65536 on sim:rtx4090: [\d.]+ us predicted, ", said)
    assert "registers" in said
    value = json_of(capsys, "time", "--kernel", "toy", "--shape", 65536)
    assert value["source"] == "model"
    assert value["measurement"]["time_us"] > 0
    assert run(["time", "--kernel", "flawed", "--set", "flaw=wrong"]) == 1
    assert capsys.readouterr().err.startswith("tune: wrong: ")


def test_doctor_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    value = json_of(capsys, "doctor")
    assert "ptxas" in {finding["subject"] for finding in value["findings"]}
    assert "--device sim:rtx4090 needs no GPU" in said_by(capsys, "doctor")


def test_a_closed_pipe_is_no_traceback() -> None:
    command = f"{Path(sys.executable).with_name('tune')} emit --kernel gemm | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment())
    assert done.stdout.startswith("// ternary_gemm_s8")
    assert done.stderr == ""
