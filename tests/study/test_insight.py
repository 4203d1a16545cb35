"""`tune results --importance` and `tune space --coverage`: what trials say, and what they left out."""

import json
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emitters import kernel_named
from emitters.target import Target
from results.store import TrialStore
from results.trial import Measurement, Outcome, Source, StudyKey, Trial
from search_spaces import space_for
from tuner.cli import run

SPACE = space_for("affine_f32", Target.of("sm_89"))
KEY = StudyKey(
    kernel="affine_f32",
    semantic_hash=kernel_named("affine").spec.semantic_hash,
    problem="1048576",
    arch="sm_89",
    device="sim:rtx4090",
    policy="model",
    objective="time",
    space_hash=SPACE.hash,
)


def time_of(schedule: dict[str, Any]) -> float:
    """Vectors matter most, then threads; the store operator only for vectors of one."""
    odd = 3.0 if schedule["store"] == "cs" and schedule["vector"] == 1 else 0.0
    return float(40 / schedule["vector"] + abs(np.log2(schedule["threads"] / 256)) + odd)


def trial(number: int, schedule: dict[str, Any], fails: bool = False, key: StudyKey = KEY) -> Trial:
    time_us = time_of(schedule)
    row = Trial("first", number, key, schedule, Outcome.OK, sizes={"n": 1048576}, started_at=1.0)
    if fails:
        return replace(row, outcome=Outcome.TIMEOUT, message="too slow", finished_at=2.0)
    measurement = Measurement(time_us, Source.MODEL, (time_us,), "model")
    return replace(row, measurement=measurement, finished_at=2.0)


def some(count: int) -> list[dict[str, Any]]:
    """Schedules of the space by chance, without two levels of its parameters."""
    drawn = np.random.default_rng(3).permutation(len(SPACE))
    kept = [SPACE.values(int(number)) for number in drawn]
    return [s for s in kept if s["load"] != "cs" and s["turns"] != 8][:count]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    with TrialStore(tmp_path / "out") as store:
        for number, schedule in enumerate(some(80)):
            store.append(trial(number, schedule, fails=number % 16 == 15))
    return tmp_path / "out"


def said(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert run(command) == 0
    return capsys.readouterr().out


def test_importance_ranks_what_made_the_times(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = json.loads(said(capsys, "results", "--importance", "--json", "--out", str(out)))
    assert (found["kernel"], found["device"], found["over"]) == ("affine_f32", "sim:rtx4090", "valid set")
    assert (found["trials"], found["failed"], found["schedules"]) == (80, 5, len(SPACE))
    assert found["explained"] > 0.5
    names = [weight["parameters"] for weight in found["parameters"]]
    assert names[:2] == [["vector"], ["threads"]]
    assert {name for (name,) in names} == set(SPACE.names)
    vector = found["parameters"][0]
    assert 0 < vector["main"] <= vector["total"] <= 1.5
    right = [s for n, s in enumerate(some(80)) if n % 16 != 15]
    for level in vector["levels"]:
        alike = [time_of(s) for s in right if [s["vector"]] == level["values"]]
        assert level["best"] == pytest.approx(min(alike))
        assert level["trials"] - level["failed"] == len(alike)


def test_importance_as_a_table_says_how_much_the_model_knows(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "results", "--importance", "--out", str(out), "--kernel", "affine").splitlines()
    assert text[0].startswith(
        "affine_f32 1048576 on sim:rtx4090 (sm_89), time: 80 schedules tried, 5 failed;"
    )
    assert "% of what it was not shown" in text[0]
    assert text[1].split()[:3] == ["parameter", "main", "total"]
    assert text[2].startswith("vector ")


def test_importance_of_few_trials_is_not_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with TrialStore(tmp_path) as store:
        for number, schedule in enumerate(some(19)):
            store.append(trial(number, schedule))
    text = said(capsys, "results", "--importance", "--out", str(tmp_path))
    assert text.endswith("19 schedules tried, 0 failed; shares need 20 with two different results\n")


def test_a_recorded_kernel_is_shown_and_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its valid set is not known, so shares are over what was tried and one change from it."""
    key = replace(KEY, kernel="copy_kernel", problem="recorded", arch="recorded", device="replay:copy.json")
    with TrialStore(tmp_path) as store:
        for number, schedule in enumerate(some(40)):
            store.append(trial(number, schedule, key=key))
            store.append(replace(trial(number, schedule), study="other"))
    wanted = ("results", "--out", str(tmp_path), "--kernel", "copy_kernel")
    (best,) = json.loads(said(capsys, *wanted, "--json"))
    assert (best["kernel"], best["ranked"]) == ("copy_kernel", 40)
    (found,) = json.loads(said(capsys, *wanted, "--importance", "--json"))
    assert (found["kernel"], found["over"]) == ("copy_kernel", "tried and one change away")
    assert found["parameters"][0]["parameters"] == ["vector"]
    assert run(["results", "--out", str(tmp_path), "--kernel", "cpoy_kernel"]) == 2
    assert "recorded there: copy_kernel" in capsys.readouterr().err


def test_results_are_narrowed_by_shape_and_device(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, ranked in (
        (("--shape", "1048576"), 1),
        (("--device", "sim:h200"), 0),
        (("--shape", "1"), 0),
    ):
        found = json.loads(said(capsys, "results", "--json", "--out", str(out), *options))
        assert len(found) == ranked


def coverage(capsys: pytest.CaptureFixture[str], out: Path, *options: str) -> Any:
    command = ["space", "--kernel", "affine", "--coverage", "--json", "--out", str(out), *options]
    return json.loads(said(capsys, *command))


def test_coverage_counts_levels_and_pairs(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against a count of the whole space, schedule by schedule."""
    (found,) = coverage(capsys, out)
    valid = [SPACE.values(number) for number in range(len(SPACE))]
    tried = some(80)
    assert (found["valid"], found["tried"], found["outside"]) == (len(valid), 80, 0)
    for one in found["parameters"]:
        counts = [Counter(s[one["parameter"]] for s in schedules) for schedules in (valid, tried)]
        for level in one["levels"]:
            assert [level["valid"], level["tried"]] == [count[level["value"]] for count in counts]
    pairs = [
        {(names, tuple(s[name] for name in names)) for s in schedules for names in combinations(s, 2)}
        for schedules in (valid, tried)
    ]
    assert found["pairs"] == len(pairs[0])
    untried = [(tuple(pair["parameters"]), tuple(pair["values"])) for pair in found["untried_pairs"]]
    assert set(untried) == pairs[0] - pairs[1]
    counts = [pair["valid"] for pair in found["untried_pairs"]]
    assert counts == sorted(counts, reverse=True)


def test_coverage_measures_how_far_the_rest_is(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = coverage(capsys, out)
    tried = some(80)

    def changes(schedule: dict[str, Any]) -> int:
        return min(sum(schedule[name] != other[name] for name in schedule) for other in tried)

    counts = Counter(changes(SPACE.values(number)) for number in range(len(SPACE)))
    expected = [counts[n] / len(SPACE) for n in range(max(counts) + 1)]
    np.testing.assert_allclose(found["distances"], expected)
    assert found["sampled"] == len(SPACE)
    assert changes(found["farthest"]) == max(counts)


def test_coverage_as_a_table_names_what_was_never_tried(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "space", "--kernel", "affine", "--coverage", "--out", str(out))
    lines = text.splitlines()
    assert f"80 of {len(SPACE):,} valid schedules tried" in lines[0]
    assert next(line for line in lines if line.startswith("load ")).endswith(" cs")
    assert next(line for line in lines if line.startswith("turns ")).endswith(" 8")
    assert next(line for line in lines if line.startswith("vector ")).endswith(" -")
    assert any(line.startswith("pairs of levels: ") for line in lines)


def test_coverage_of_another_problem_is_empty(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert coverage(capsys, out, "--shape", "1") == []
    text = said(capsys, "space", "--kernel", "affine", "--coverage", "--out", str(out), "--shape", "1")
    assert text == f"no trials of affine in {out} that were asked for\n"


def test_schedules_of_an_older_space_are_counted_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with TrialStore(tmp_path) as store:
        for number, schedule in enumerate([*some(5), {**some(1)[0], "turns": 3}]):
            store.append(trial(number, schedule))
    (found,) = coverage(capsys, tmp_path)
    assert (found["tried"], found["outside"]) == (5, 1)
