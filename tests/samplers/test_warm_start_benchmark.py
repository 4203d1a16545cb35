"""The benchmark of warm starts, small: other devices help, and nothing is run twice."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = [8, 16, 32, 64, 128, 256]


def recording(path: Path, best: int) -> Path:
    """A Kernel Tuner cache of 216 schedules whose times rise with the distance from a size."""
    levels = {"x": SIZES, "y": SIZES, "z": SIZES}
    cache = {}
    for x in SIZES:
        for y in SIZES:
            for z in SIZES:
                time = 1 + sum(abs(size.bit_length() - best.bit_length()) for size in (x, y, z))
                cache[f"{x},{y},{z}"] = {"x": x, "y": y, "z": z, "time": time}
    head = {"kernel_name": "small", "tune_params_keys": list(levels), "tune_params": levels}
    path.write_text(json.dumps({**head, "device_name": path.stem, "cache": cache}))
    return path


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("warm_start", "search", "search_contestants", "search_kernel_tuner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("warm_start")


def test_each_source_alone_and_parts_of_it(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(recording(tmp_path / f"small_{device}.json", 64)) for device in "ABC"]
    rows = tmp_path / "rows.jsonl"
    asked = ["--seeds", "1", "--alone", "--part", "0.5", "--rows", str(rows)]
    assert benchmark.main([*files, *asked]) == 0
    starts = {(run["space"][-1], run["start"]) for run in map(json.loads, rows.read_text().splitlines())}
    of = ", 0.5 of it"
    alone = {(a, f"from {b}{of}") for a in "ABC" for b in "ABC" if a != b}
    assert starts == {(a, f"warm{of}") for a in "ABC"} | alone
    printed = capsys.readouterr().out
    assert f"| mean of 3 | warm{of} |" in printed
    assert f"| mean of 6 | one source{of} |" in printed
    with pytest.raises(SystemExit):
        benchmark.main([*files, "--part", "0"])


def test_other_devices_help_and_no_run_is_repeated(
    benchmark: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = [str(recording(tmp_path / f"small_{device}.json", 64)) for device in ("A", "B")]
    rows = tmp_path / "rows.jsonl"
    assert benchmark.main([*files, "--seeds", "2", "--cold", "--rows", str(rows)]) == 0
    printed = capsys.readouterr().out
    runs = [json.loads(line) for line in rows.read_text().splitlines()]
    assert len(runs) == 8
    assert all(run["found"] == [1.0] for run in runs if run["start"] == "warm")
    assert all(len(run["found"]) > 1 for run in runs if run["start"] == "cold")
    assert printed.count("| warm | 2 | 1.000 | 1.000 ± 0.000 | 1.000 | 1.000 |") == 2
    monkeypatch.setattr(benchmark, "shares", None)
    assert benchmark.main([*files, "--seeds", "2", "--cold", "--rows", str(rows)]) == 0
    assert capsys.readouterr().out == printed
