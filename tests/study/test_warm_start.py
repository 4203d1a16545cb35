"""``--warm-start``: what a study learns from, that it is kept, and what is said of it."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from commands import refused
from fake_device import FakeDevice
from toy_study import Recorder, few, rows_in, task_on
from toy_study import run as run_study

from emitters.target import Target
from results.trial import Outcome
from search_spaces import space_for
from tuner import warm_start
from tuner.cli import run
from tuner.ledger import StudyError
from tuner.loop import Ending
from tuner.ptxas import Assembler
from tuner.replaying import Replaying, replayed
from tuner.task import Request, RequestError

SIZES = (8, 16, 32, 64, 128)


def time_ms(x: int, tile: int, pad: int) -> float:
    return 1.0 + abs(x - 64) / 8 + abs(tile - 16) / 8 + pad


def cache(path: Path, kernel: str = "copy", scale: float = 1.0, sizes: tuple[int, ...] = SIZES) -> Path:
    """A Kernel Tuner cache with the same order of schedules whatever the scale; two fail."""
    entries: dict[str, Any] = {}
    for x in sizes:
        for tile in sizes:
            for pad in (0, 1, 2):
                time: Any = scale * time_ms(x, tile, pad)
                if (x, tile) == (128, 128) and pad:
                    time = "RuntimeFailedConfig"
                entry = {"block_size_x": x, "tile": tile, "pad": pad, "time": time}
                entries[f"{x},{tile},{pad}"] = entry
    levels = {"block_size_x": list(sizes), "tile": list(sizes), "pad": [0, 1, 2]}
    head = {"device_name": path.stem, "kernel_name": kernel, "objective": "time", "cache": entries}
    path.write_text(json.dumps({**head, "tune_params_keys": list(levels), "tune_params": levels}))
    return path


def search(device: Path, out: Path, trials: int, *words: object, seed: int = 1, **request: Any) -> Replaying:
    wanted = Request(
        trials=trials,
        out=out,
        assembler=Assembler(),
        seed=seed,
        warm_start=tuple(map(str, words)),
        **request,
    )
    watch = Recorder()
    loop = Replaying(replayed(f"replay:{device}"), wanted, watch)
    loop.notices = watch.notices  # type: ignore[attr-defined]
    loop.run()
    return loop


def schedules(loop: Replaying) -> list[dict[str, Any]]:
    return [dict(row.schedule) for row in loop.rows]


def test_what_is_best_elsewhere_is_tried_first(tmp_path: Path) -> None:
    here, there = cache(tmp_path / "here.json"), cache(tmp_path / "there.json", scale=7)
    warm = search(here, tmp_path / "warm", 1, there)
    assert warm.rows[0].figure == pytest.approx(1000 * time_ms(64, 16, 0))
    cold = search(here, tmp_path / "cold", 1)
    assert cold.rows[0].figure > warm.rows[0].figure
    assert warm.learned_from == "there.json, recorded (73 results)"
    assert cold.learned_from == ""


def test_times_from_elsewhere_are_no_results(tmp_path: Path) -> None:
    here, there = cache(tmp_path / "here.json"), cache(tmp_path / "there.json", scale=0.01)
    loop = search(here, tmp_path / "out", 5, there)
    rows = rows_in(tmp_path / "out")
    assert len(rows) == len(loop.rows) == 5
    for row in rows:
        assert row.figure is None or row.figure >= 1000
        assert row.key.device == "replay:here.json"


def test_a_resumed_study_goes_on_with_what_it_began_with(tmp_path: Path) -> None:
    """Though the source has gone, or says other things, and whether or not it is named again."""
    here, there = cache(tmp_path / "here.json"), cache(tmp_path / "there.json", scale=7)
    whole = search(here, tmp_path / "whole", 14, there)
    search(here, tmp_path / "parts", 4, there)
    there.write_text("not a recording any more")
    named = search(here, tmp_path / "parts", 9, there)
    assert named.notices == ["goes on with what it began with: there.json, recorded (73 results)"]
    there.unlink()
    parts = search(here, tmp_path / "parts", 14)
    assert schedules(parts) == schedules(whole)
    assert parts.learned_from == whole.learned_from
    assert schedules(search(here, tmp_path / "cold", 14)) != schedules(whole)


def test_auto_takes_the_other_studies_in_out_and_keeps_what_it_took(tmp_path: Path) -> None:
    here, there = cache(tmp_path / "here.json"), cache(tmp_path / "there.json", scale=7)
    other = cache(tmp_path / "other.json", kernel="another")
    out = tmp_path / "out"
    search(there, out, 30)
    search(other, out, 30)
    first = search(here, out, 3, "auto")
    assert re.fullmatch(
        r"recorded on replay:there\.json \(recorded\), recorded \(\d+ results\)", first.learned_from
    )
    search(there, out, 60, study="more")
    again = search(here, out, 6, "auto")
    assert again.learned_from == first.learned_from
    assert schedules(again)[:3] == schedules(first)


def test_auto_with_nothing_to_learn_from_starts_cold_and_stays_so(tmp_path: Path) -> None:
    here, there = cache(tmp_path / "here.json"), cache(tmp_path / "there.json")
    out = tmp_path / "out"
    search(there, out, 5)
    loop = search(here, out, 6, "auto")
    assert loop.notices == [
        "not learned from: recorded on replay:there.json (recorded), recorded (5 results)",
        "no other study has results to learn from; this one starts cold",
    ]
    assert schedules(loop) == schedules(search(here, tmp_path / "cold", 6))
    search(there, out, 40)
    resumed = search(here, out, 12, "auto")
    assert resumed.notices == ["goes on with what it began with: nothing from elsewhere"]
    assert schedules(resumed) == schedules(search(here, tmp_path / "cold", 12))


def test_a_study_that_began_cold_is_not_warmed(tmp_path: Path) -> None:
    here, there = cache(tmp_path / "here.json"), cache(tmp_path / "there.json")
    search(here, tmp_path, 3)
    with pytest.raises(StudyError, match=r"began without a warm start .*; leave --warm-start out, or give"):
        search(here, tmp_path, 6, there)
    # Nothing in OUT is of use, but that is not what is wrong.
    with pytest.raises(StudyError, match=r"began without a warm start"):
        search(here, tmp_path, 6, tmp_path)
    assert search(here, tmp_path, 6, there, study="new").learned_from


def test_several_sources_and_the_runs_of_another_directory(tmp_path: Path) -> None:
    here = cache(tmp_path / "here.json")
    search(cache(tmp_path / "there.json", scale=3), tmp_path / "runs", 40)
    one = cache(tmp_path / "one.json", scale=2)
    for place in (tmp_path / "runs", tmp_path / "runs" / "trials"):
        loop = search(here, tmp_path / "out", 3, one, place, study=place.name)
        assert re.fullmatch(
            r"one\.json, recorded \(73 results\); recorded on replay:there\.json .* \(\d+ results\)",
            loop.learned_from,
        )


def test_the_first_of_two_processes_decides(tmp_path: Path) -> None:
    space = replayed(f"replay:{cache(tmp_path / 'here.json')}").space
    rows = [(space.values(number), 1.0 + number) for number in range(30)]
    first = warm_start.WarmStart(
        (warm_start.Source.of("first", space, [*rows, (space.values(40), float("nan"))]),)
    )
    second = warm_start.WarmStart((warm_start.Source.of("second", space, rows),))
    assert warm_start.keep(tmp_path, "study", space, first) is first
    kept = warm_start.keep(tmp_path, "study", space, second)
    assert kept.text == "first (30 results)"
    assert kept.sources[0].schedules.tolist() == [*range(30), 40]
    assert kept.sources[0].times_us[:30].tolist() == [1.0 + number for number in range(30)]
    assert kept.sources[0].times_us[30] != kept.sources[0].times_us[30]
    assert [path.name[0] for path in (tmp_path / warm_start.DIRECTORY).iterdir()] != ["."]


def test_studies_of_a_kernel_teach_another_problem_of_it(tmp_path: Path) -> None:
    """On devices, where trial 0 stays the hand-written schedule."""
    space = space_for("toy", Target.of("sm_89"))
    run_study(tmp_path, FakeDevice(), 40, task=task_on(FakeDevice(), shape="4096", space=space))
    watch = Recorder()
    task = task_on(FakeDevice(), space=space)
    ending, tuning = run_study(
        tmp_path, FakeDevice(), 6, watch, task=task, sampler="auto", warm_start=("auto",)
    )
    assert ending is Ending.COMPLETE
    assert tuning.learned_from.startswith("4096 on fake (sm_89), measured (")
    best = min(row.figure for row in rows_in(tmp_path) if row.key.problem == "4096" and row.figure)
    by_hand = task.space.values(task.baseline) if task.baseline is not None else None
    assert dict(tuning.rows[0].schedule) == by_hand
    assert min(row.figure for row in tuning.rows if row.figure) <= 1.05 * best
    assert {row.outcome for row in tuning.rows} <= {Outcome.OK, Outcome.DUPLICATE}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nowhere"], r"^--warm-start must be auto, the OUT of .* or a recording, and there is no nowhere$"),
        (["other.json"], r"^--warm-start must be of the kernel copy, other\.json is of another; name"),
        (["few.json"], r"^--warm-start needs 20 times of copy that are in its space, few\.json has 12; n"),
        (["bad.json"], r"^--warm-start: bad\.json is no JSON"),
        (["empty"], r"^--warm-start needs 20 times of copy .*, empty has 0; name another, or leave it out$"),
    ],
)  # fmt: skip
def test_a_source_of_no_use_is_one_line_before_anything_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    cache(Path("here.json"))
    cache(Path("other.json"), kernel="another")
    cache(Path("few.json"), sizes=(8, 16))
    Path("bad.json").write_text("times")
    Path("empty").mkdir()
    options = [option for word in words for option in ("--warm-start", word)]
    said = refused(capsys, "run", "--device", "replay:here.json", *options)
    assert re.search(line, said), said
    assert not Path("tuning").exists()


def test_only_a_sampler_that_learns_takes_it(tmp_path: Path) -> None:
    with pytest.raises(
        RequestError, match=r"^--warm-start needs a sampler that learns .*, auto, got random$"
    ):
        Request(trials=1, out=tmp_path, assembler=Assembler(), sampler="random", warm_start=("auto",))


NO_SOURCE = json.dumps({"study": "s", "space_hash": "0", "sources": [{"name": "there"}]})


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"space_hash": 1}', NO_SOURCE])
def test_what_is_kept_and_unreadable_is_said(tmp_path: Path, text: str) -> None:
    here, there = cache(tmp_path / "here.json"), cache(tmp_path / "there.json")
    search(here, tmp_path, 2, there)
    (file,) = (tmp_path / warm_start.DIRECTORY).iterdir()
    file.write_text(text)
    with pytest.raises(StudyError, match=r"what study .* began with, cannot be read: .*; give another"):
        search(here, tmp_path, 4)


def test_results_warn_of_what_is_kept_and_unreadable_and_show_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = cache(tmp_path / "here.json"), cache(tmp_path / "there.json")
    out = tmp_path / "out"
    search(here, out, 3, there, study="broken")
    (file,) = (out / warm_start.DIRECTORY).iterdir()
    file.write_text("{")
    search(there, out, 3, here, study="whole")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert run(["results", "--out", str(out), "--json"]) == 0
    said = capsys.readouterr()
    assert {row["study"]: row["learned_from"] for row in json.loads(said.out)} == {
        "broken": "",
        "whole": "here.json, recorded (73 results)",
    }
    assert re.fullmatch(
        r"tune: warning: .*, what study 'broken' began with, cannot be read: .*; it is not shown\n", said.err
    )


def test_the_command_and_the_results_say_what_was_learned_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = cache(tmp_path / "here.json"), cache(tmp_path / "there.json")
    out = str(tmp_path / "out")
    command = ["run", "--device", f"replay:{here}", "--out", out, "--trials", "3", "--seed", "1"]
    assert run([*command, "--warm-start", str(there)]) == 0
    assert re.search(r"^learned from: there\.json, recorded \(73 results\)$", capsys.readouterr().out, re.M)
    assert run(["results", "--out", out, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["learned_from"] == "there.json, recorded (73 results)"
    assert run([*command, "--study", "cold", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["learned_from"] == ""
    cold = task_on(FakeDevice(), space=few())
    run_study(tmp_path / "plain", FakeDevice(), 2, task=cold)
    assert run(["results", "--out", str(tmp_path / "plain"), "--json"]) == 0
    assert "learned_from" not in json.loads(capsys.readouterr().out)[0]
