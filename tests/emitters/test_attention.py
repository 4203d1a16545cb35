"""`sdpa_decode` where it is hardest: one key, a full cache, grouped heads, every head dimension, scores of
+-80."""

import math
from dataclasses import replace

import numpy as np
import pytest
from float_proof import is_right, kernel_of, simulated

from emitters.kernel import Inputs, ProblemError
from emitters.sdpa_schedule import HEAD_DIMS, SPEC, SdpaSchedule

KERNEL = kernel_of("sdpa_decode")
SCHEDULES = {
    "one block": SdpaSchedule(lanes=32, heads=1, warps=4, keys=2, stages=1, splits=1),
    "flash decoding": SdpaSchedule(lanes=16, heads=4, warps=2, keys=2, stages=1, splits=8),
    "ring": SdpaSchedule(lanes=8, heads=2, warps=2, keys=1, stages=3, splits=4),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("d", HEAD_DIMS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "n_ctx", "pos"), [(1, 1, 1, 1), (8, 1, 70, 70), (8, 8, 40, 1), (12, 4, 50, 49)]
)
def test_within_the_bound(name: str, d: int, heads: int, kv_heads: int, n_ctx: int, pos: int) -> None:
    problem = SPEC.problem(heads, kv_heads, d, n_ctx, pos)
    inputs = KERNEL.inputs(problem, np.random.default_rng(1))
    assert is_right(KERNEL, SCHEDULES[name], problem, inputs)


def with_scores(scores: np.ndarray, d: int, heads: int) -> Inputs:
    """A cache whose scores are exactly these, for every head, and Gaussian values."""
    rng = np.random.default_rng(2)
    q = np.zeros((heads, d), np.float32)
    q[:, 0] = 1.0
    k = np.zeros((len(scores), 1, d), np.float32)
    k[:, 0, 0] = scores
    v = rng.standard_normal((len(scores), 1, d), dtype=np.float32)
    return Inputs({"q": q, "K": k, "V": v}, {"scale": 1.0})


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    "scores",
    [
        np.linspace(-80.0, 80.0, 200),
        np.linspace(80.0, -80.0, 200),
        np.full(200, 80.0),
        np.full(200, -80.0),
        np.tile([-80.0, 80.0], 100),
    ],
    ids=["rising", "falling", "all +80", "all -80", "alternating"],
)
def test_scores_of_80_do_not_overflow(name: str, scores: np.ndarray) -> None:
    problem = SPEC.problem(2, 1, 64, len(scores), len(scores))
    assert is_right(KERNEL, SCHEDULES[name], problem, with_scores(scores, 64, 2))


def test_equal_scores_average_the_values() -> None:
    inputs = with_scores(np.full(33, 3.0), 64, 1)
    problem = SPEC.problem(1, 1, 64, 33, 33)
    report = simulated(KERNEL, SCHEDULES["flash decoding"], problem, inputs)
    np.testing.assert_allclose(report.buffers["out"][0], inputs.buffers["V"].mean(axis=(0, 1)), atol=1e-6)


def test_keys_past_pos_do_not_count() -> None:
    problem = SPEC.problem(2, 1, 64, 60, 31)
    inputs = KERNEL.inputs(problem, np.random.default_rng(3))
    inputs.buffers["V"][31:] = np.nan
    inputs.buffers["K"][31:] = np.inf
    for schedule in SCHEDULES.values():
        report = simulated(KERNEL, schedule, problem, inputs)
        assert np.isfinite(report.buffers["out"]).all()


def test_one_correction_bounds_less_than_many() -> None:
    schedule = replace(SCHEDULES["one block"], keys=1)
    errors = np.full(400, 1e-7)
    assert schedule.corrections(np.arange(400.0), errors) == schedule.turns(400)
    assert schedule.corrections(-np.arange(400.0), errors) == 1
    ties = np.zeros(400)
    assert schedule.corrections(ties, errors) == schedule.turns(400), "rounding may order ties either way"


def test_corrections_cover_what_a_straightforward_walk_counts() -> None:
    rng = np.random.default_rng(4)
    schedule = SCHEDULES["flash decoding"]
    scores = rng.standard_normal(777)
    length = math.ceil(len(scores) / schedule.splits)
    most = 0
    for split in range(schedule.splits):
        here = scores[split * length : (split + 1) * length]
        units = [here[i : i + schedule.keys].max() for i in range(0, len(here), schedule.keys)]
        for group in range(schedule.groups):
            largest, count = -np.inf, 0
            for unit in units[group :: schedule.groups]:
                count += unit > largest
                largest = max(largest, unit)
            most = max(most, count)
    assert schedule.corrections(scores, np.zeros_like(scores)) == most


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((8, 3, 64, 10, 10), "n_head must be a positive multiple of n_kv_head, got 8"),
        ((8, 8, 72, 10, 10), "d must be one of 64, 80, 96, 128, got 72"),
        ((8, 8, 64, 10, 0), "pos must be at least 1, got 0"),
        ((8, 8, 64, 10, 11), "n_ctx must be at least pos, got 10"),
        ((8, 0, 64, 10, 10), "n_kv_head must be at least 1, got 0"),
    ],
)
def test_impossible_problems_are_refused(sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        SPEC.problem(*sizes)
