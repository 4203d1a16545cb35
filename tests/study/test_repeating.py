"""The same seed gives the same trials: interrupted and resumed too, and with the journal lost."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_device import FakeDevice
from toy_study import Recorder, rows_in, run

from results.trial import ParameterValue, Trial
from tuner.study import Ending

Story = list[tuple[int, Mapping[str, ParameterValue], str, int | None, float | None]]


class Impatient(Recorder):
    """Presses Ctrl-C after a number of finished trials."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def finished(self, row: Trial) -> None:
        super().finished(row)
        if len(self.rows) == self.after:
            raise KeyboardInterrupt


def story(out: Path) -> Story:
    """What a study did, without what may differ from run to run."""
    return [
        (
            row.number,
            row.schedule,
            str(row.outcome),
            row.duplicate_of,
            row.measurement and row.measurement.time_us,
        )
        for row in rows_in(out)
        if row.study != "another"
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """26 trials of TPE, never interrupted; past its 10 random ones each result matters."""
    out = tmp_path_factory.mktemp("whole")
    assert run(out, FakeDevice(), 26, sampler="tpe")[0] is Ending.COMPLETE
    return story(out)


def test_the_same_seed_repeats_and_another_does_not(tmp_path: Path, whole: Story) -> None:
    run(tmp_path / "same", FakeDevice(), 26, sampler="tpe")
    run(tmp_path / "other", FakeDevice(), 26, sampler="tpe", seed=6)
    assert story(tmp_path / "same") == whole
    assert story(tmp_path / "other") != whole


@pytest.mark.parametrize("moments", [(1,), (7, 4), (13, 1, 3)])
def test_interrupted_and_resumed_it_is_the_same(
    tmp_path: Path, whole: Story, moments: tuple[int, ...]
) -> None:
    for after in moments:
        assert run(tmp_path, FakeDevice(), 26, Impatient(after), sampler="tpe")[0] is Ending.INTERRUPTED
    assert run(tmp_path, FakeDevice(), 26, sampler="tpe")[0] is Ending.COMPLETE
    assert story(tmp_path) == whole


def test_in_parts_of_a_growing_total_it_is_the_same(tmp_path: Path, whole: Story) -> None:
    for total in (5, 6, 17, 26):
        run(tmp_path, FakeDevice(), total, sampler="tpe")
    assert story(tmp_path) == whole


def test_a_resumed_study_remembers_its_seed_and_look_ahead(tmp_path: Path) -> None:
    run(tmp_path / "a", FakeDevice(), 26, sampler="tpe", seed=None, look_ahead=7)
    seed = rows_in(tmp_path / "a")[0].seed
    run(tmp_path / "b", FakeDevice(), 9, sampler="tpe", seed=seed, look_ahead=7)
    run(tmp_path / "b", FakeDevice(), 26, sampler="tpe", seed=None)
    assert story(tmp_path / "b") == story(tmp_path / "a")


@pytest.mark.parametrize("damage", ["deleted", "first line broken", "cut in half", "of another study only"])
def test_the_journal_is_rebuilt_from_the_rows(tmp_path: Path, whole: Story, damage: str) -> None:
    run(tmp_path, FakeDevice(), 26, Impatient(15), sampler="tpe")
    log = tmp_path / "study.log"
    content = log.read_bytes()
    match damage:
        case "deleted":
            log.unlink()
        case "first line broken":
            log.write_bytes(b"{broken\n" + content)
        case "cut in half":
            log.write_bytes(content[: len(content) // 2])
        case _:
            log.unlink()
            run(tmp_path, FakeDevice(), 2, study="another")
    watch = Recorder()
    assert run(tmp_path, FakeDevice(), 26, watch, sampler="tpe")[0] is Ending.COMPLETE
    assert story(tmp_path) == whole
    kept = list(tmp_path.glob("study.log.unreadable-*"))
    assert bool(kept) == (damage == "first line broken")
    assert any("could not be read" in line for line in watch.notices) == (damage == "first line broken")
