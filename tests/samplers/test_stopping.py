"""How sure the model is that nothing better is left, and what the calibration makes of runs."""

import importlib
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from search_spaces.listed import ListedSpace
from tuner.devices.recorded import Recording, read_recording
from tuner.samplers.base import Past
from tuner.samplers.stopping import CAUTION, DOUBT, FEWEST_TRIALS, assurance, expected_better, margin
from tuner.samplers.target import ranked

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_number_of_better_candidates_is_a_sum_of_chances() -> None:
    means, spreads = np.array([0.0, 1.0]), np.array([1.0, 2.0])
    expected = ndtr(-1.0) + ndtr(-1.0)
    assert expected_better(means, spreads, -1.0, 50, 0.0) == pytest.approx(expected)
    wide = ndtr(-1 / math.sqrt(2)) + ndtr(-2 / (2 * math.sqrt(2)))
    assert expected_better(means, spreads, -1.0, 50, 50.0) == pytest.approx(wide)


def test_assurance_is_the_chance_that_a_poisson_number_is_none() -> None:
    times_us = np.linspace(100.0, 500.0, 40)
    targets = ranked(times_us)
    means, spreads = np.array([0.5, 1.5]), np.array([0.2, 0.4])
    best = targets.min() - margin(targets, times_us)
    better = expected_better(means, spreads, best, 40, DOUBT)
    for share in (1.0, 0.25):
        found = assurance(means, spreads, targets, times_us, share)
        assert found == pytest.approx(math.exp(-CAUTION * better / share))
    few = FEWEST_TRIALS - 1
    assert assurance(means, spreads, targets[:few], times_us[:few]) == 0.0


def test_the_margin_is_a_fifth_or_so_of_what_five_percent_make_in_ranks() -> None:
    """log(1.01) of log(1.05) is 0.204; the third of these times is 5 % above the first."""
    times_us = np.array([105.0, 100.0, np.nan, 102.0, 300.0])
    targets = ranked(times_us)
    expected = (targets[0] - targets[1]) * math.log(1.01) / math.log(1.05)
    assert margin(targets, times_us) == pytest.approx(expected)


def test_the_margin_is_small_where_the_best_stands_alone() -> None:
    crowd = np.concatenate([[100.0], np.linspace(101, 104, 20), np.linspace(200, 400, 20)])
    alone = np.concatenate([[100.0], np.linspace(150, 190, 20), np.linspace(200, 400, 20)])
    margins = [margin(ranked(times), times) for times in (crowd, alone)]
    assert margins[0] > 5 * margins[1] > 0


def test_equal_times_leave_no_margin() -> None:
    times_us = np.full(25, 100.0)
    assert margin(ranked(times_us), times_us) == 0.0


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("stopping", "stopping_spaces", "seeding"):
        sys.modules.pop(name, None)
    return importlib.import_module("stopping")


def space_of(recording: Recording) -> ListedSpace:
    return ListedSpace.of(recording.kernel, recording.names, recording.values, recording.levels)


def run_of(module: ModuleType, space: str, seed: int, wrong_until: int, confident_from: int) -> Any:
    """Found the best at `wrong_until`; no better one is expected from `confident_from` on, at doubt 10."""
    looks = []
    for trials in range(20, 400, 5):
        level = 1e-9 if trials >= confident_from else 1.0
        better = [level * 10 ** (doubt > 10) for doubt in module.DOUBTS]
        looks.append(module.Look(trials, 1.0 if trials >= wrong_until else 0.9, [better, better]))
    return module.Run(space, seed, 5000, looks)


def test_constants_are_judged_where_they_were_not_chosen(stopping: ModuleType) -> None:
    """Family a is found early, family b late and with too much confidence: only b teaches to be careful."""
    early = [run_of(stopping, "a_GPU", seed, 30, 40) for seed in range(4)]
    late = [run_of(stopping, "b_GPU", seed, 100, 60) for seed in range(4)]
    bold = stopping.Constants(1.0, 0.0)
    assert bold.stop(early[0]).trials == 40
    score = stopping.Score.of(bold, [*early, *late])
    assert (score.runs, score.stopped, score.right, score.trials) == (8, 8, 4, 50.0)
    assert stopping.calibrated(early) == bold
    lines = stopping.table([*early, *late])
    row = next(line for line in lines if line.startswith("| b |"))
    assert [cell.strip() for cell in row.split("|")][2:8] == ["1", "0", "4", "4", "0", "60"]


def test_where_no_constants_are_right_the_most_careful_are_taken(stopping: ModuleType) -> None:
    hopeless = [run_of(stopping, "a_GPU", seed, 1000, 20) for seed in range(4)]
    chosen = stopping.calibrated(hopeless)
    assert chosen == stopping.Constants(stopping.CAUTIONS[-1], stopping.DOUBTS[-1])


def test_a_made_up_space_is_searched_and_not_twice(
    stopping: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "BUDGET", 40)
    assert stopping.main(["made-up", "--columns", "3", "--count", "1", "--out", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*.json.gz")
    rows = tmp_path / "rows.jsonl"
    command = ["run", str(file), "--seeds", "1", "--rows", str(rows)]
    assert stopping.main(command) == 0
    once = rows.read_text()
    (run,) = stopping.read_runs(rows)
    assert (run.family, run.schedules) == ("made-up", 125)
    assert [look.trials for look in run.looks] == [20, 25, 30, 35]
    assert all(0 < look.found <= 1 for look in run.looks)
    assert stopping.main(command) == 0
    assert rows.read_text() == once


def test_a_kernel_with_closed_forms_is_recorded_and_seeded(stopping: ModuleType, tmp_path: Path) -> None:
    spaces = sys.modules["stopping_spaces"]
    hold = ["warps_m", "warps_n", "stages", "raster", "copy_bytes", "min_blocks", "split_k"]
    file = spaces.record("gemm_dw", "rtx4090", hold, True, "our-gemm", tmp_path)
    assert file.name == "our-gemm_hslm-dw-s8_rtx4090.json.gz"
    recording = read_recording(file)
    assert recording.source == "model"
    assert recording.device == "sim:rtx4090 (predicted)"
    levels = dict(zip(recording.names, np.ptp(recording.levels, axis=0).tolist(), strict=True))
    assert not any(levels[name] for name in hold)
    assert levels["tile_m"] > 0
    whole, core = spaces.seeded("gemm_dw", "rtx4090", 0)
    assert len(whole) > len(recording)
    nothing = np.zeros(0, dtype=np.int64)
    past = Past(nothing, np.zeros(0), (), nothing)
    proposal = core.propose(past, space_of(whole), np.random.default_rng(0))
    assert whole.times_us[proposal] < np.nanmedian(whole.times_us)
