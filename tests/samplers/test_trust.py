"""Believing other studies: until results speak clearly against them."""

import numpy as np

from tuner.samplers.gaussian_process import Hints, Points, Prior
from tuner.samplers.target import ranked
from tuner.samplers.trust import Outlook, believed

RNG = np.random.default_rng(3)
PLACES = RNG.random((60, 3)).astype(np.float32)
TRUTH = ranked(np.sin(6 * PLACES[:, 0]) + PLACES[:, 1] + 0.1 * RNG.normal(size=60))
NOT_TAUGHT = Outlook(Hints(np.zeros(1), np.zeros(1)), Prior())
# As if elsewhere the last parameter alone had mattered.
LEARNED = tuple(np.log([20.0, 20.0, 0.3, 0.6, 0.1, 0.1, 0.05]))
TAUGHT = Outlook(Hints(np.array([0.8]), np.array([0.3])), Prior(log_spread=0.6, learned=LEARNED))


def hints_after(prediction: np.ndarray, results: int) -> Hints:
    points = Points(PLACES[:results], prediction[:results, None].astype(np.float32))
    return believed(points, TRUTH[:results], TAUGHT, NOT_TAUGHT)[0]


def test_a_source_that_is_right_is_believed() -> None:
    assert all(hints_after(TRUTH + 0.2, results) is TAUGHT.hints for results in (8, 20, 60))


def test_a_source_that_is_wrong_is_believed_until_results_speak_clearly() -> None:
    wrong = np.random.default_rng(4).normal(size=60)
    assert hints_after(wrong, 4) is TAUGHT.hints
    assert hints_after(wrong, 60) is NOT_TAUGHT.hints


def test_without_lessons_there_is_no_rival() -> None:
    points = Points(PLACES, np.zeros((60, 1), dtype=np.float32))
    hints, covariance = believed(points, TRUTH, NOT_TAUGHT, None)
    assert hints is NOT_TAUGHT.hints
    assert covariance.lengths[2] > covariance.lengths[0]
