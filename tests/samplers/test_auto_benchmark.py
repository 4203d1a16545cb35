"""The search benchmark, small: it runs, goes on where it was, and counts what it should."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("search", "search_contestants", "search_kernel_tuner"):
        sys.modules.pop(name, None)
    return importlib.import_module("search")


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """A Kernel Tuner cache of 120 schedules, 6 of them failures; times in ms, the optimum is 1."""
    values = {"block_size_x": [32, 64, 96, 128], "tile": [1, 2, 3, 4, 5], "unroll": [0, 1], "pad": [0, 1, 2]}
    cache = {}
    for place in np.ndindex(4, 5, 2, 3):
        entry = {name: levels[at] for (name, levels), at in zip(values.items(), place, strict=True)}
        time = 1.0 + abs(place[0] - 1) + 0.5 * abs(place[1] - 3) + place[2] + 0.1 * place[3]
        failed = place[0] == 3 and place[1] == 4
        cache[",".join(map(str, entry.values()))] = {
            **entry,
            "time": "RuntimeFailedConfig" if failed else time,
        }
    path = tmp_path / "small_A100.json"
    head = {
        "device_name": "x",
        "kernel_name": "small",
        "tune_params_keys": list(values),
        "tune_params": values,
    }
    path.write_text(json.dumps({**head, "cache": cache}))
    return path


def arguments(space: Path, rows: Path, *more: str) -> list[str]:
    return [str(space), "--rows", str(rows), "--budgets", "10", "40", *more]


def test_a_benchmark_runs_and_goes_on_where_it_was(
    search: ModuleType, space: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    names = ["--contestants", "auto", "random", "optuna-tpe"]
    assert search.main(arguments(space, rows, "--seeds", "1", *names)) == 0
    first = rows.read_text().splitlines()
    assert len(first) == 3
    assert search.main(arguments(space, rows, "--seeds", "2", *names)) == 0
    again = rows.read_text().splitlines()
    assert len(again) == 6
    assert again[:3] == first
    printed = capsys.readouterr().out
    assert "| space | evaluations | auto | random | optuna-tpe |" in printed
    for row in search.read_rows(rows):
        assert row.evaluations == 40 or row.share_at(row.evaluations) == 1.0
        assert row.found[0][0] == 1
        assert row.share_at(40) >= row.share_at(10) > 0
        assert row.contestant != "auto" or row.share_at(40) == 1.0


def test_a_torn_last_line_is_run_again(search: ModuleType, space: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    search.main(arguments(space, rows, "--seeds", "2", "--contestants", "random"))
    text = rows.read_text()
    rows.write_text(text[:-30])
    search.main(arguments(space, rows, "--seeds", "2", "--contestants", "random"))
    kept = search.read_rows(rows)
    assert [row.seed for row in kept] == [0, 1]


def test_workers_see_results_late(search: ModuleType, space: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    search.main(arguments(space, rows, "--seeds", "1", "--contestants", "auto", "--workers", "4"))
    search.main(arguments(space, rows, "--seeds", "1", "--contestants", "auto"))
    late, sequential = search.read_rows(rows)
    assert (late.workers, sequential.workers) == (4, 1)
    assert late.found != sequential.found


def test_kernel_tuners_strategies_take_part(search: ModuleType, space: Path, tmp_path: Path) -> None:
    pytest.importorskip("kernel_tuner", reason="needs the extra `bench`")
    rows = tmp_path / "rows.jsonl"
    names = ["kernel-tuner:random_sample", "kernel-tuner:genetic_algorithm", "kernel-tuner:mls"]
    search.main(arguments(space, rows, "--seeds", "1", "--contestants", *names))
    for row in search.read_rows(rows):
        assert 0 < row.evaluations <= 40
        assert 0 < row.share_at(40) <= 1


def test_an_unknown_contestant_is_refused(
    search: ModuleType, space: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search.main(arguments(space, tmp_path / "rows", "--contestants", "grid")) == 2
    assert "unknown contestant 'grid'; there are auto" in capsys.readouterr().err
