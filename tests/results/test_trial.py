"""The values that travel: what counts, what may win, what can be compared."""

from dataclasses import fields, replace

import pytest
from sample_trials import KEY

from results.trial import Measurement, Outcome, Source, Verdict


def test_what_counts_towards_the_trials_asked_for() -> None:
    assert {outcome.value for outcome in Outcome if not outcome.counts} == {"duplicate", "started"}


def test_what_has_a_time_that_may_win() -> None:
    assert {outcome.value for outcome in Outcome if outcome.has_time} == {"ok", "duplicate"}


def test_only_the_model_predicts() -> None:
    words = {source.value: (source.word, source.is_measured) for source in Source}
    assert words == {
        "model": ("predicted", False),
        "replay": ("recorded", True),
        "cuda_events": ("measured", True),
    }


@pytest.mark.parametrize(
    ("recorded", "word"),
    [
        ({}, "recorded"),
        ({"recorded": "cuda_events"}, "recorded"),
        ({"recorded": "model"}, "recorded prediction"),
        ({"recorded": "cuda_events, model"}, "recorded prediction"),
    ],
)
def test_a_prediction_is_called_one_when_it_is_recalled(recorded: dict[str, str], word: str) -> None:
    assert Measurement(1.0, Source.REPLAY, (1.0,), "recorded", details=recorded).word == word
    assert Measurement(1.0, Source.CUDA_EVENTS, (1.0,), "cold-l2", details=recorded).word == "measured"
    assert Measurement(1.0, Source.MODEL, (1.0,), "model").word == "predicted"


@pytest.mark.parametrize("time_us", [0.0, -1.0, float("nan")])
def test_impossible_time_is_no_measurement(time_us: float) -> None:
    with pytest.raises(ValueError, match="a time must be above 0 us, got"):
        Measurement(time_us, Source.MODEL, (time_us,), "model")


@pytest.mark.parametrize(
    ("verdict", "is_right"),
    [
        (Verdict(0, ("1x16x16",)), True),
        (Verdict(1, ("1x16x16",)), False),
        (Verdict(0, ("1x16x16",), fault="race"), False),
        (Verdict(0, ()), False),  # nothing was run
    ],
)
def test_right_is_no_mismatch_and_no_fault_on_some_problem(verdict: Verdict, is_right: bool) -> None:
    assert verdict.is_right is is_right


def test_study_has_another_name_whenever_a_part_of_its_key_differs() -> None:
    names = {replace(KEY, **{field.name: "another"}).name for field in fields(KEY)} | {KEY.name}
    assert len(names) == len(fields(KEY)) + 1
    assert KEY.name == f"ternary_gemm_s8-4096x3456x1280-sm_89-sim:rtx4090-model-time-{'5e' * 3}{'0b' * 3}"
