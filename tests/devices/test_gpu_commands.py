"""The commands of a user on stand-in GPUs, from `tune run --device cuda:0` to the pinned kernel."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
from cuda_standin import OpenStandIn, StandInGpu
from device_samples import TaggingDevice
from fake_libraries import CALL_US, FakeLibraries
from test_study_on_cuda import POLICY

from results.frozen import load
from tuner.cli import run
from tuner.devices.serving import Opener

GPU = StandInGpu(count=2, noise=0.002)


@pytest.fixture(autouse=True)
def _gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has two GPUs, and libraries to compare with."""

    def open_device(opener: Opener) -> TaggingDevice:
        return TaggingDevice(opener, replace(POLICY, energy_s=0.02))

    monkeypatch.setattr("tuner.devices.cuda.OpenCuda", lambda which: OpenStandIn(GPU, which))
    monkeypatch.setattr("tuner.devices.cuda.CudaDevice", open_device)
    monkeypatch.setattr("tuner.baselines.InstalledLibraries", lambda: FakeLibraries(("torch",)))


def command(out: Path, kernel: str, shape: str, *more: str) -> list[str]:
    made = ["run", "--kernel", kernel, "--shape", shape, "--out", str(out), "--sampler", "random"]
    return [*made, "--seed", "1", "--workers", "1", *more]


def from_run_to_pin(
    out: Path, kernel: str, shape: str, baseline: str, capsys: pytest.CaptureFixture[str]
) -> Any:
    """What a user does; the row of the pinned trial."""
    wanted = command(out, kernel, shape, "--device", "cuda:0", "--trials", "4", "--baseline")
    assert run(wanted) == 0
    said = capsys.readouterr().out
    assert re.search(r"^best: .* us measured", said, re.M)
    (chosen,) = re.findall(
        r"^final: +trials? .*?(\d+)(?:, the simplest, is taken| is the fastest)", said, re.M
    )
    assert re.search(rf"^{re.escape(baseline)}: +{CALL_US:.0f}\.\d+ us measured; the best takes", said, re.M)
    rows = pandas.read_parquet(out / "trials")
    measured = rows[rows.outcome == "ok"]
    assert len(measured) >= 3
    assert set(measured.device) == {f"cuda:{GPU.name}"}
    assert set(measured.source) == {"cuda_events"}
    assert (measured["measurement.bound_us"] < measured["time_us"]).all()
    assert measured["energy_j"].min() > 0  # empty for those stopped early
    assert run(["promote", "best", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"proving trial {chosen} anew" in said
    assert "simulated instead" not in said  # it was verified on the GPU that measured it
    return measured.set_index("number").loc[int(chosen)]


def test_from_a_run_on_a_gpu_to_the_pinned_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = from_run_to_pin(tmp_path, "affine_f32", "5000", "CuPy elementwise", capsys)
    loaded = load("affine_f32", 5000, arch="sm_90", out=tmp_path)
    assert loaded.entry.code_hash == row.code_hash
    assert loaded.entry.verdict.where == "device"


@pytest.mark.slow
def test_the_gemm_from_a_run_on_a_gpu_to_the_pinned_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from_run_to_pin(tmp_path, "gemm", "33x48x96", "cuBLAS s8", capsys)


def test_all_gpus_work_on_one_study_for_energy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ["--device", "cuda:all", "--trials", "6", "--objective", "energy", "--json"]
    assert run(command(tmp_path, "affine_f32", "5000", *wanted)) == 0
    told = json.loads(capsys.readouterr().out)
    rows = pandas.read_parquet(tmp_path / "trials")
    timed = rows[rows.outcome == "ok"]
    assert told["best"]["number"] == timed.set_index("number").energy_j.idxmin()
    assert told["final"] is None


def test_one_schedule_is_proven_and_timed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["time", "--kernel", "affine_f32", "--shape", "5000", "--device", "cuda:1"]) == 0
    assert "measured" in capsys.readouterr().out
    assert run(["time", "--kernel", "affine_f32", "--shape", "5000", "--device", "cuda:2"]) == 2
    assert "cuda:2 must be one of the 2 GPUs, cuda:0 to cuda:1" in capsys.readouterr().err
