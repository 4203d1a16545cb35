"""benchmarks/gpu.py from end to end on the stand-in GPU, with tiny shapes and few trials."""

import csv
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from cuda_standin import OpenStandIn, StandInGpu
from device_samples import TaggingDevice
from fake_libraries import FakeLibraries

from results.store import TrialStore
from tuner.devices.stopwatch import TimingPolicy
from tuner.devices.timing import StoppingRule

ROOT = Path(__file__).parents[2]
POLICY = TimingPolicy(
    rule=StoppingRule(most_repeats=20), group_us=40.0, warmup_ms=0.1, budget_s=2.0, warm_s=0.5, energy_s=0.0
)


def load_bench() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("gpu_bench", ROOT / "benchmarks" / "gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_bench"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_bench_writes_table_history_and_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = load_bench()
    monkeypatch.setattr(bench, "FIRST_TRIALS", 5)
    place = bench.bench(
        lambda: TaggingDevice(OpenStandIn(StandInGpu(noise=0.002)), POLICY),
        ["48x64x64", "33x48x96"],
        seconds=0.0,
        out=tmp_path,
        workers=1,
        libraries=FakeLibraries(missing=("torch",)),
    )
    assert place == tmp_path / "nvidia-stand-in-9000"
    table = (place / "table.md").read_text().splitlines()
    assert table[0] == "# ternary_gemm_s8 on NVIDIA Stand-in 9000"
    assert any(line.startswith("| 48x64x64 | 5 |") and "torch._int_mm" in line for line in table)
    assert sum("| cuBLAS s8 | 25.0 |" in line for line in table) == 2
    with (place / "history.csv").open() as file:
        history = list(csv.DictReader(file))
    assert [row["trial"] for row in history] == [*"01234"] * 2
    best = [float(row["best_us"]) for row in history if row["shape"] == "48x64x64"]
    assert best == sorted(best, reverse=True)
    with TrialStore(place) as store:
        assert len(store.trials()) == 10


@pytest.mark.slow
def test_a_shape_that_fails_is_a_line_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's buffers do not fit on this GPU."""
    bench = load_bench()
    monkeypatch.setattr(bench, "FIRST_TRIALS", 3)
    small = StandInGpu(noise=0.002, l2_bytes=1 << 16, memory_bytes=9 << 20)
    place = bench.bench(
        lambda: TaggingDevice(OpenStandIn(small), POLICY),
        ["2048x512x64", "48x64x64"],
        seconds=0.0,
        out=tmp_path,
        workers=1,
        libraries=FakeLibraries(missing=("torch", "cublas")),
    )
    table = (place / "table.md").read_text()
    assert "| 2048x512x64 | failed: no trial of 2048x512x64 has a time; the last says: " in table
    assert "needs 4" in table
    assert "| 48x64x64 | 3 |" in table


def test_the_bench_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy is installed")
    bench = load_bench()
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit, match=r"^the device cuda needs CuPy"):
        bench.main()
