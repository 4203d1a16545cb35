"""benchmarks/timing_errors.py prints its tables, also of recorded noise, and sees a rule that errs."""

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.devices.timing import StoppingRule

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "timing_errors.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("timing_errors", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_table_is_printed(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    rows = {
        str(i): {"tile": i, "time": 1.0, "times": (1 + 0.01 * rng.standard_normal(32)).tolist()}
        for i in range(5)
    } | {"5": {"tile": 5, "time": "CompilationFailedConfig"}}
    head = {"tune_params_keys": ["tile"], "tune_params": {"tile": list(range(6))}}
    cache = json.dumps(head | {"cache": rows})[:-2]  # a cache may lack its closing braces
    (tmp_path / "convolution_A100.json.gz").write_bytes(gzip.compress(cache.encode()))
    monkeypatch.setattr(sys, "argv", ["timing_errors.py", "--runs", "2", "--recorded", str(tmp_path)])
    bench.main()
    said = capsys.readouterr().out
    for name in (*bench.NOISES, "recorded: A100, convolution", "A100, convolution", *bench.FINALISTS):
        assert f"\n| {name} | " in said


def test_a_rule_that_stops_too_soon_is_seen(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that drops candidates within the noise of the best errs in nearly every run."""
    honest = bench.rates(bench.white, 30, np.random.default_rng(0))
    monkeypatch.setattr(bench, "StoppingRule", lambda: StoppingRule(slower_margin=0.0, hopeless_margin=-0.03))
    rash = bench.rates(bench.white, 30, np.random.default_rng(0))
    assert honest[:2] == ["0 %", "0 %"]
    assert float(rash[1].removesuffix(" %")) > 50
