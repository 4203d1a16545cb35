"""What follows a study on the stand-in GPU: the final, which is kept, and baselines beside it."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cuda_standin import OpenStandIn, StandInGpu
from device_samples import TaggingDevice
from fake_libraries import CALL_US, FakeLibraries
from test_study_on_cuda import POLICY, Silent, task_on

from results.finals import finals_in
from results.trial import Trial
from tuner.cli import run
from tuner.closing import Closing, check_baselines, close_study, lines
from tuner.devices import device_named
from tuner.devices.device import DeviceError
from tuner.ptxas import Assembler
from tuner.study import Tuning
from tuner.task import Request, RequestError, Task, task_for


def opened(name: str = "") -> TaggingDevice:
    return TaggingDevice(OpenStandIn(StandInGpu(noise=0.002)), POLICY)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Task, Request, list[Trial]]:
    """A study of five trials; its device has been closed."""
    out = tmp_path_factory.mktemp("ended")
    task = task_on(opened())
    request = Request(trials=5, out=out, assembler=Assembler(), sampler="random", seed=1)
    tuning = Tuning(task, request, Silent())
    tuning.run()
    return task, request, tuning.rows


def test_the_final_is_held_and_kept(
    ended: tuple[Task, Request, list[Trial]], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, request, rows = ended
    monkeypatch.setattr("tuner.closing.device_named", opened)
    closed = close_study(task, "mine", rows, request, True, FakeLibraries())
    assert closed.final is not None
    assert len(closed.final.numbers) == 4
    assert finals_in(request.out)["mine"] == closed.final
    text = lines(closed, 1.0)
    assert text[0] == f"final:        {closed.final}"
    share = f"{100 * closed.final.time_us / CALL_US:.0f}"
    assert re.fullmatch(rf"CuPy elementwise: [\d.]+ us measured; the best takes {share} % of that", text[1])
    (baseline,) = closed.to_json()["baselines"]
    assert baseline == {"name": "CuPy elementwise", "time_us": pytest.approx(CALL_US, rel=0.01), "reason": ""}


def test_a_final_that_cannot_be_held_is_one_line(
    ended: tuple[Task, Request, list[Trial]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU is gone, or has no room for the data now."""
    task, request, rows = ended

    def gone(name: str) -> TaggingDevice:
        raise DeviceError(f"no GPU is called {name}")

    monkeypatch.setattr("tuner.closing.device_named", gone)
    closed = close_study(task, "gone", rows, request, True)
    assert lines(closed, 1.0) == [f"no final:     no GPU is called {task.key.device}"]
    small = StandInGpu(memory_bytes=1 << 20)
    monkeypatch.setattr("tuner.closing.device_named", lambda name: TaggingDevice(OpenStandIn(small), POLICY))
    closed = close_study(task, "small", rows, request)
    assert closed.final is None
    assert re.match(r"no final:     .*memory", lines(closed, 1.0)[0])
    assert not {"gone", "small"} & finals_in(request.out).keys()


def test_no_final_where_energy_is_sought(
    ended: tuple[Task, Request, list[Trial]], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, request, rows = ended
    monkeypatch.setattr("tuner.closing.device_named", opened)
    sought = replace(task, key=replace(task.key, objective="energy"))
    assert close_study(sought, "energy", rows, request) == Closing()


def test_nothing_is_held_on_a_prediction(tmp_path: Path) -> None:
    task = task_for("affine_f32", None, "sim:rtx4090", None)
    request = Request(trials=1, out=tmp_path, assembler=Assembler())
    assert close_study(task, "sim", [], request) == Closing()
    with pytest.raises(RequestError, match="--baseline must have a GPU to be timed on, got sim:rtx4090"):
        check_baselines(task)


def test_the_command_prints_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where CuPy is not installed, the baseline's line says so."""
    names: list[str] = []

    def named(name: str) -> Any:
        names.append(name)
        return opened() if name.startswith("cuda") else device_named(name)

    monkeypatch.setattr("tuner.task.device_named", named)
    monkeypatch.setattr("tuner.closing.device_named", named)
    monkeypatch.setattr("tuner.baselines.InstalledLibraries", lambda: FakeLibraries(("cupy",)))
    command = ["run", "--kernel", "affine_f32", "--shape", "5000", "--device", "cuda", "--trials", "3"]
    command += ["--sampler", "random", "--seed", "1", "--workers", "1", "--out", str(tmp_path), "--baseline"]
    assert run(command) == 0
    said = capsys.readouterr().out
    assert re.search(r"^final:        trials? .* interleaved rounds", said, re.M)
    assert re.search(r"^CuPy elementwise: no time: cupy does not import", said, re.M)
    assert run([*command, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["final"]["chosen"] in value["final"]["tied"]
    assert value["baselines"][0]["time_us"] is None
    assert names == ["cuda", f"cuda:{StandInGpu().name}"] * 2
