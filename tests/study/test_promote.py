"""What gets pinned: the best that proves right again; a measured one before any predicted one."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from fake_device import FakeDevice, time_of
from toy_study import few, rows_in, run, task_on

import results
from results.finals import Final, keep_final
from results.store import TrialStore
from results.trial import Measurement, Source, Trial
from tuner.freezing import verify_pinned
from tuner.promote import promote_best
from tuner.ptxas import Assembler


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Trial]:
    """All 12 schedules of a small space, half of them told the other half's results."""
    out = tmp_path_factory.mktemp("rows")
    device = FakeDevice(source=Source.MODEL)
    run(out, device, 100, task=task_on(device, space=few(), shape="8192"))
    return rows_in(out)


def promote(out: Path, rows: list[Trial]) -> tuple[list[str], list[bool]]:
    """What was said, and whether each kernel was pinned."""
    said: list[str] = []
    promotions = promote_best(out, rows, Assembler(), said.append)
    return said, [promotion.place is not None for promotion in promotions]


def timed(row: Trial, time_us: float, source: Source) -> Trial:
    """The row with another time."""
    return replace(row, measurement=Measurement(time_us, source, (time_us,), "fake"))


def test_the_best_is_pinned_with_its_runner_up_and_margin(tmp_path: Path, rows: list[Trial]) -> None:
    said, pinned = promote(tmp_path, rows)
    assert pinned == [True]
    kernel = results.frozen.load("toy", 8192, arch="sm_89", out=tmp_path)
    times = sorted(time_of(row.schedule) for row in rows if row.duplicate_of is None)
    manifest = kernel.manifest
    assert manifest["measurement"]["time_us"] == times[0]
    assert manifest["runner_up"]["time_us"] == times[1]
    assert manifest["margin"] == pytest.approx(times[1] / times[0] - 1)
    assert manifest["verdict"]["problems"][-1] == "8192"
    assert manifest["verdict"]["mismatches"] == 0
    assert manifest["prepack"] is None
    assert any("before the next" in line for line in said)
    assert verify_pinned(tmp_path, "toy", Assembler())[0].complaint == ""


def test_a_measured_time_comes_before_a_faster_predicted_one(tmp_path: Path, rows: list[Trial]) -> None:
    own = [row for row in rows if row.duplicate_of is None]
    slow = timed(own[0], 900.0, Source.CUDA_EVENTS)
    assert promote(tmp_path, [slow, *own[1:]])[1] == [True]
    kernel = results.frozen.load("toy", 8192, arch="sm_89", out=tmp_path)
    assert kernel.manifest["measurement"]["time_us"] == 900.0
    assert not kernel.is_predicted
    said, pinned = promote(tmp_path, own)
    assert pinned == [False]
    assert any("a predicted kernel never replaces a measured one" in line for line in said)
    assert not results.frozen.load("toy", 8192, arch="sm_89", out=tmp_path).is_predicted


def test_whom_the_final_chose_comes_first(tmp_path: Path, rows: list[Trial]) -> None:
    """The fourth alone won the rounds; the first alone was next in them."""
    own = sorted((row for row in rows if row.duplicate_of is None), key=lambda row: time_of(row.schedule))
    numbers = tuple(row.number for row in own[:4])
    final = Final(numbers, (101.0, 104.0, 103.0, 100.0), (numbers[3],), numbers[3])
    keep_final(tmp_path, own[0].study, final)
    said, pinned = promote(tmp_path, own)
    assert pinned == [True]
    assert said[0] == f"{own[0].study}: {final}"
    manifest = results.frozen.load("toy", 8192, arch="sm_89", out=tmp_path).manifest
    assert (manifest["number"], manifest["runner_up"]["number"]) == (numbers[3], numbers[0])
    assert any(re.search(r"\d % behind the next where each was timed alone", line) for line in said)


def test_a_final_that_the_best_was_not_in_is_out_of_date(tmp_path: Path, rows: list[Trial]) -> None:
    own = sorted((row for row in rows if row.duplicate_of is None), key=lambda row: time_of(row.schedule))
    late = Final((own[1].number, own[2].number), (100.0, 99.0), (own[2].number,), own[2].number)
    keep_final(tmp_path, own[0].study, late)
    assert promote(tmp_path, own)[1] == [True]
    manifest = results.frozen.load("toy", 8192, arch="sm_89", out=tmp_path).manifest
    assert manifest["number"] == own[0].number


def test_a_measured_one_is_proven_on_the_gpu_that_measured_it(
    tmp_path: Path, rows: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name: the first GPU of a machine may be another model."""
    own = next(row for row in rows if row.duplicate_of is None)
    device = FakeDevice(name="cuda:NVIDIA L4")
    measured = replace(timed(own, 90.0, Source.CUDA_EVENTS), key=replace(own.key, device=device.name))
    names: list[str] = []
    monkeypatch.setattr("tuner.promote.device_named", lambda name: names.append(name) or device)
    assert promote(tmp_path, [measured])[1] == [True]
    assert names == ["cuda:NVIDIA L4"]
    assert device.touched == [dict(own.schedule)]
    assert device.closed.is_set()


def test_a_candidate_that_is_wrong_is_passed_over(tmp_path: Path) -> None:
    """Its row says that it was right; the proof says otherwise."""
    run(
        tmp_path,
        FakeDevice(),
        100,
        task=task_on(FakeDevice(), "flawed", "4096", space=few("flawed", (128,))),
        limit_s=2,
    )
    found = [row for row in rows_in(tmp_path) if row.outcome.has_time]
    good = found[0]
    bad = next(
        row for row in rows_in(tmp_path) if row.schedule["flaw"] == "wrong" and row.duplicate_of is None
    )
    lie = replace(timed(bad, 1.0, Source.CUDA_EVENTS), outcome=good.outcome, message="", verdict=good.verdict)
    said, pinned = promote(tmp_path / "frozen-set", [lie, good])
    assert pinned == [True]
    assert any(f"trial {bad.number} is not right: " in line and "mismatches" in line for line in said)
    kernel = results.frozen.load("flawed", 4096, arch="sm_89", out=tmp_path / "frozen-set")
    assert kernel.schedule["flaw"] == "none"
    said, pinned = promote(tmp_path / "other", [lie])
    assert pinned == [False]
    assert not (tmp_path / "other" / "frozen").exists()


@pytest.mark.parametrize(("field", "name"), [("source_hash", "PTX"), ("code_hash", "machine code")])
def test_what_was_timed_is_what_is_pinned(tmp_path: Path, rows: list[Trial], field: str, name: str) -> None:
    other = replace(rows[0], **{field: "0" * 64})  # type: ignore[arg-type]
    said, pinned = promote(tmp_path, [other])
    assert pinned == [False]
    assert any(f"its {name} is not what was timed" in line for line in said)


def test_trials_of_another_meaning_are_left_out(tmp_path: Path, rows: list[Trial]) -> None:
    old = replace(rows[0], key=replace(rows[0].key, semantic_hash="0" * 64))
    said, pinned = promote(tmp_path, [old])
    assert pinned == []
    assert said == [
        "1 trials are of another version of their kernel, and are left out",
        "nothing to promote: no trial has a time; `tune run` makes some",
    ]


def test_each_problem_gets_its_own(tmp_path: Path, rows: list[Trial]) -> None:
    run(tmp_path, FakeDevice(), 2, task=task_on(FakeDevice(), space=few(), shape="128"))
    with TrialStore(tmp_path) as store:
        for row in rows:
            store.append(row)
    assert promote(tmp_path, rows_in(tmp_path))[1] == [True, True]
    assert [place.name for place in results.frozen.places(tmp_path)] == ["128", "8192"]


def test_a_pinned_kernel_that_the_emitter_writes_otherwise_is_found(
    tmp_path: Path, rows: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(tmp_path, rows)
    (place,) = results.frozen.places(tmp_path)
    entry = results.frozen.verify_entry(place)
    changed = replace(entry, ptx=entry.ptx.replace("// toy", "// a toy"), source_hash="1" * 64, replaces=None)
    results.frozen.freeze(tmp_path, changed)
    (finding,) = verify_pinned(tmp_path, None, Assembler())
    assert finding.complaint.startswith("the emitter writes another text for this schedule now")
