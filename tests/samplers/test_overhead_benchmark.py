"""The benchmark of ask and tell, small: it runs, and its parts add up."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def overhead(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sys.modules.pop("overhead", None)
    return importlib.import_module("overhead")


def test_the_parts_of_an_ask_and_tell_are_measured(overhead: ModuleType) -> None:
    first, second = overhead.measure("auto", 400, [12, 20], 4, 1)
    assert (first.space, first.trials, second.trials) == (400, 12, 20)
    for row in (first, second):
        assert row.processor_ms.shape == (4,)
        assert np.all(row.core_ms > 0)
        assert np.all(row.storage_ms > 0)
        assert np.all(row.core_ms + row.storage_ms < row.processor_ms)
    lines = overhead.table([first, second])
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| 400 | 12 | ")


def test_a_space_too_small_for_the_trials_is_refused(
    overhead: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        overhead.main(["--spaces", "100", "--trials", "50", "--count", "60"])
    assert ended.value.code == 2
    assert "more schedules than are tried" in capsys.readouterr().err
