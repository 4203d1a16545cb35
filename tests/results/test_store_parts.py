"""The parquet files of the trial store: what others read in them, how they fill, and what damages them."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_trials import OTHER, ended, failed, other, started
from store_files import bare_pandas, part_files, row_files

import results
from results import parts, store
from results.errors import StoreError, StoreWarning
from results.store import TrialStore


def refuse(*_: object, **__: object) -> None:
    """In the place of what writes a part."""
    raise OSError(28, "No space left on device")


def test_marks_stay_out_of_parquet_until_the_end(tmp_path: Path) -> None:
    with TrialStore(tmp_path) as trials:
        trials.append(started(0))
        trials.append(ended(1))
        trials.compact()
        assert bare_pandas(tmp_path, "df['number'].tolist()") == "[1]"
        trials.append(ended(0))
        trials.compact()
        assert bare_pandas(tmp_path, "df['number'].tolist()") == "[1, 0]"


def test_pandas_reads_the_directory_of_a_run_that_has_just_begun(tmp_path: Path) -> None:
    with TrialStore(tmp_path):
        columns = "len(df), df['time_us'].dtype, df['registers'].dtype"
        assert bare_pandas(tmp_path, columns) == "0 float64 Int64"


def test_pandas_reads_a_first_part_of_nothing_but_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", 3)
    with TrialStore(tmp_path) as trials:
        for number in range(3):
            trials.append(failed(number))
        trials.compact()
        trials.append(ended(3))
    assert part_files(tmp_path) == ["part-000000.parquet", "part-000001.parquet"]
    shown = bare_pandas(tmp_path, "df['time_us'].tolist()[-1], df['registers'].dtype, df['registers'].sum()")
    assert shown == "63.0 Int64 168"


def test_pandas_sees_the_columns_of_every_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", 2)
    with TrialStore(tmp_path) as trials:
        for number in range(4):
            trials.append(ended(number))
        trials.compact()
        trials.append(other(0))
    assert len(part_files(tmp_path)) == 3
    schemas = [pq.read_schema(path) for path in sorted((tmp_path / "trials").iterdir())]
    assert schemas[0] == schemas[1] == schemas[2]
    shown = bare_pandas(
        tmp_path, "df['schedule.warps'].dropna().tolist(), df['schedule.tile_m'].dropna().tolist()"
    )
    assert shown == "[4] [16, 32, 64, 128]"


def test_names_with_values_of_two_types_get_a_column_each(tmp_path: Path) -> None:
    with TrialStore(tmp_path) as trials:
        trials.append(ended(0, schedule={"decode": "register"}))
        trials.compact()
        clashing = [other(0, schedule={"decode": 8}), other(1, schedule={"decode": True})]
        for trial in clashing:
            trials.append(trial)
        assert [trial.schedule for trial in trials.trials(OTHER.name)] == [{"decode": 8}, {"decode": True}]
    again = TrialStore(tmp_path, read_only=True).trials()
    assert [trial.schedule["decode"] for trial in again] == [8, True, "register"]
    assert type(again[1].schedule["decode"]) is bool
    frame = results.load_trials(tmp_path)
    types = {name: str(frame[name].dtype) for name in frame if name.startswith("schedule")}
    assert types == {
        "schedule.decode": "str",
        "schedule.decode:bool": "boolean",
        "schedule.decode:int64": "Int64",
    }


def test_parts_are_filled_up_and_then_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", 10)
    with TrialStore(tmp_path) as trials:
        for number in range(34):
            trials.append(ended(number))
            if number == 14:
                trials.compact()
                full = (tmp_path / "trials" / "part-000000.parquet").stat()
        trials.compact()
    sizes = [pq.read_metadata(path).num_rows for path in sorted((tmp_path / "trials").iterdir())]
    assert sizes == [10, 10, 10, 4]
    assert (tmp_path / "trials" / "part-000000.parquet").stat() == full


def test_compacting_twice_changes_nothing(tmp_path: Path) -> None:
    with TrialStore(tmp_path) as trials:
        trials.append(ended(0))
        trials.compact()
        before = (tmp_path / "trials" / "part-000000.parquet").stat()
        trials.compact()
        assert (tmp_path / "trials" / "part-000000.parquet").stat() == before
    assert row_files(tmp_path) == []


def test_reading_parts_leaves_no_thread_that_could_abort_the_exit(tmp_path: Path) -> None:
    with TrialStore(tmp_path) as trials:
        trials.append(ended(0))
    code = """if True:
        import os, sys
        from pathlib import Path
        import pyarrow.parquet
        from results.store import TrialStore
        before = len(os.listdir("/proc/self/task"))
        read = TrialStore(Path(sys.argv[1]), read_only=True).trials()
        print(len(read), len(os.listdir("/proc/self/task")) - before)
    """
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1 0\n"


def test_busy_run_compacts_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "COMPACT_SECONDS", 0.0)
    monkeypatch.setattr(store, "COMPACT_SHARE", 1e9)
    with TrialStore(tmp_path) as trials:
        for number in range(3):
            trials.append(ended(number))
            assert len(pd.read_parquet(tmp_path / "trials")) == number + 1


@pytest.mark.parametrize("damage", ["short", "flipped", "empty", "text"])
def test_damaged_part_is_named_kept_and_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", 2)
    with TrialStore(tmp_path) as trials:
        for number in range(6):
            trials.append(ended(number))
    path = tmp_path / "trials" / "part-000000.parquet"
    content = bytearray(path.read_bytes())
    content[content.index(b"register")] ^= 0xFF  # one bit pattern of one value
    broken = {"short": bytes(content[:-100]), "flipped": bytes(content), "empty": b"", "text": b"a,b\n1,2\n"}
    path.write_bytes(broken[damage])
    with pytest.warns(
        StoreWarning, match=r"trials/part-000000.parquet is damaged \(.*\); it is kept as .*_cor"
    ):
        left = TrialStore(tmp_path, read_only=True).trials()
    assert [trial.number for trial in left] == [2, 3, 4, 5]
    (kept,) = (tmp_path / "_corrupt").iterdir()
    assert kept.read_bytes() == broken[damage]
    assert bare_pandas(tmp_path, "df['number'].tolist()") == "[2, 3, 4, 5]"
    with TrialStore(tmp_path) as trials:  # and the store goes on
        trials.append(ended(6))
    assert [trial.number for trial in TrialStore(tmp_path, read_only=True).trials()] == [2, 3, 4, 5, 6]


def test_part_damaged_during_a_run_does_not_stop_it(tmp_path: Path) -> None:
    with TrialStore(tmp_path) as trials:
        trials.append(ended(0))
        trials.compact()
        (tmp_path / "trials" / "part-000000.parquet").write_bytes(b"PAR1")
        trials.append(ended(1))
        with pytest.warns(StoreWarning, match="is damaged"):
            trials.compact()
        assert trials.trials() == [ended(1)]


def test_parquet_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with TrialStore(tmp_path) as trials:
        trials.append(ended(0))
    alien = tmp_path / "trials" / "part-000007.parquet"
    pq.write_table(pa.table({"mine": [1]}), alien)
    content = alien.read_bytes()
    with pytest.warns(
        StoreWarning, match=r"part-000007.parquet is of another program \(column mine of type int6"
    ):
        assert TrialStore(tmp_path, read_only=True).trials() == [ended(0)]
    assert alien.read_bytes() == content


def test_parts_copied_in_from_elsewhere_are_read_and_not_doubled(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with TrialStore(tmp_path / name) as trials:
            trials.append(ended(0))
            trials.append(ended(1 if name == "one" else 2))
    (tmp_path / "two/trials/part-000000.parquet").rename(tmp_path / "one/trials/part-000005.parquet")
    assert TrialStore(tmp_path / "one").trials() == [ended(0), ended(1), ended(2)]


def test_part_that_cannot_be_written_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = TrialStore(tmp_path)
    trials.append(ended(0))
    trials.compact()
    with monkeypatch.context() as patched:
        patched.setattr(parts.pq, "write_table", refuse)
        trials.append(ended(1))
        with pytest.raises(
            StoreError, match=r"cannot write .*: No space left on device; the trials stay in the"
        ):
            trials.compact()
        assert trials.trials() == [ended(0), ended(1)]
        with pytest.raises(StoreError, match="No space left"):
            trials.close()
    assert TrialStore(tmp_path).trials() == [ended(0), ended(1)]
    assert row_files(tmp_path) == []


def test_trial_counts_as_added_though_compacting_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = TrialStore(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(parts.pq, "write_table", refuse)
        patched.setattr(store, "COMPACT_SECONDS", 0.0)
        patched.setattr(store, "COMPACT_SHARE", 1e9)
        with pytest.warns(StoreWarning, match="No space left on device; the trials stay in their row logs"):
            trials.append(ended(0))
    assert trials.trials() == [ended(0)]
    trials.close()
    assert bare_pandas(tmp_path, "len(df)") == "1"
