"""The package in `examples/` is installed as anybody would install it, and tuned through the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

SAXPY = Path(__file__).parent.parent / "examples" / "saxpy"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the example is installed beside this project."""
    site = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    subprocess.run([*pip, *options, str(SAXPY)], check=True, capture_output=True)
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(site / "cache")}


def tune(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tuner.cli import main; main()", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_table_shows_the_kernel_from_outside(environment: dict[str, str]) -> None:
    listed = tune(environment, "kernels", "--json")
    assert listed.returncode == 0, listed.stderr
    assert "saxpy_f32" in listed.stdout
    assert any(row["kernel"] == "saxpy_f32" for row in json.loads(listed.stdout))


def test_the_kernel_from_outside_is_tuned(environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "tuning"
    ran = tune(environment, "run", "--kernel", "saxpy", "--trials", "12", "--out", str(out))
    assert ran.returncode == 0, ran.stderr
    trials = pd.read_parquet(out / "trials")
    assert len(trials) >= 12
    assert set(trials["kernel"]) == {"saxpy_f32"}
    assert set(trials["outcome"]) <= {"ok", "duplicate"}
    promoted = tune(environment, "promote", "best", "--out", str(out))
    assert promoted.returncode == 0, promoted.stderr
    assert list((out / "frozen" / "saxpy_f32").rglob("kernel.ptx"))
