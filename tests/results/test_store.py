"""The trial store within one process. What several processes do to it is in test_store_processes.py."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_trials import KEY, SCHEDULE, ended, failed, started

import results
from results import parts, store
from results.errors import StoreError, StoreWarning
from results.rowlog import RowLog
from results.store import TrialStore
from results.trial import Outcome, Trial

BARE = [sys.executable, "-I", "-W", "error", "-c"]
OTHER = replace(KEY, kernel="rmsnorm", problem="4096x1024")


def other(number: int, **changes: object) -> Trial:
    """A trial of another kernel, with parameters of its own."""
    trial = ended(number, study=OTHER.name, key=OTHER, sizes={"rows": 4096, "n": 1024})
    return replace(trial, **{"schedule": {"warps": 4, "vector": 8}, **changes})


def bare_pandas(out: Path, expression: str) -> str:
    """What a process says that has pandas and nothing of ours, asked about `df`."""
    code = f"import pandas, sys; df = pandas.read_parquet(sys.argv[1]); print({expression})"
    command = [*BARE, code, str(out / "trials")]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout.strip()


def part_files(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "trials").iterdir())


def row_files(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "_rows").iterdir() if path.name != "lock")


def test_trials_come_back_by_study_and_number(tmp_path: Path) -> None:
    with TrialStore(tmp_path) as trials:
        for trial in (ended(2), other(0), ended(0), failed(1)):
            trials.append(trial)
        assert trials.trials() == [other(0), ended(0), failed(1), ended(2)]
        assert trials.trials(KEY.name) == [ended(0), failed(1), ended(2)]
        assert trials.trials("no such study") == []
    assert TrialStore(tmp_path, read_only=True).trials() == [other(0), ended(0), failed(1), ended(2)]


def test_trial_is_there_for_another_reader_at_once(tmp_path: Path) -> None:
    with TrialStore(tmp_path) as writer:
        for number in range(5):
            writer.append(ended(number))
            assert len(TrialStore(tmp_path, read_only=True).trials()) == number + 1


def test_later_state_replaces_earlier_one_wherever_it_is(tmp_path: Path) -> None:
    with TrialStore(tmp_path) as trials:
        trials.append(started(0))
        assert [trial.outcome for trial in trials.trials()] == [Outcome.STARTED]
        trials.append(ended(0, message="first"))
        trials.compact()
        trials.append(ended(0, message="again"))
        trials.append(ended(1))
        assert [trial.message for trial in trials.trials()] == ["again", ""]
        trials.compact()
        assert [trial.message for trial in trials.trials()] == ["again", ""]
    assert bare_pandas(tmp_path, "sorted(df['message'])") == "['', 'again']"


def test_mark_never_undoes_an_end(tmp_path: Path) -> None:
    with TrialStore(tmp_path) as trials:
        trials.append(ended(0))
        trials.compact()
        trials.append(started(0))
        assert trials.trials() == [ended(0)]


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


def test_unfinished_trial_of_an_ended_process_becomes_a_crash(tmp_path: Path) -> None:
    with TrialStore(tmp_path) as first:
        first.append(ended(0))
        first.append(started(1))
        first.append(started(0, study="another"))
    with TrialStore(tmp_path) as second:
        (crash,) = second.adopt_unfinished(KEY.name)
        assert (crash.number, crash.outcome, crash.schedule) == (1, Outcome.CRASH, started(1).schedule)
        assert crash.message == "process 4242 on here ended before this trial did; it is not tried again"
        assert second.adopt_unfinished(KEY.name) == []
        assert [trial.outcome for trial in second.trials(KEY.name)] == [Outcome.OK, Outcome.CRASH]
        assert [trial.outcome for trial in second.trials("another")] == [Outcome.STARTED]
        assert [trial.study for trial in second.adopt_unfinished()] == ["another"]
    assert row_files(tmp_path) == []
    assert bare_pandas(tmp_path, "sorted(df['outcome'])") == "['crash', 'crash', 'ok']"


def test_running_trial_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    with TrialStore(tmp_path) as first, TrialStore(tmp_path) as second:
        first.append(started(1))
        assert second.adopt_unfinished() == []
        second.compact()
        first.append(ended(1))
        assert second.trials() == [ended(1)]


def test_adoption_that_was_cut_short_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The crash is in a part already, and the log with the mark is still there."""
    with TrialStore(tmp_path) as first:
        first.append(started(1))
    with monkeypatch.context() as patched, TrialStore(tmp_path) as second:
        patched.setattr(TrialStore, "_retire", lambda self, log: None)
        second.adopt_unfinished()
    assert len(row_files(tmp_path)) == 1
    with TrialStore(tmp_path) as third:
        assert third.adopt_unfinished() == []
        assert [trial.outcome for trial in third.trials()] == [Outcome.CRASH]
    assert row_files(tmp_path) == []


def test_withdrawn_trial_leaves_no_trace(tmp_path: Path) -> None:
    with TrialStore(tmp_path) as trials:
        for number in (0, 1, 2):
            trials.append(started(number))
        trials.append(ended(0))
        trials.compact()
        trials.withdraw(KEY.name, 1)
        trials.withdraw(KEY.name, 0)
        trials.withdraw(KEY.name, 9)
        assert [trial.number for trial in trials.trials()] == [0, 2]
    with TrialStore(tmp_path) as trials:
        assert [trial.number for trial in trials.adopt_unfinished()] == [2]


def test_log_with_a_damaged_line_is_kept_aside(tmp_path: Path) -> None:
    TrialStore(tmp_path).close()
    log = RowLog(tmp_path / "_rows")
    log.path.write_bytes(b"garbage\n")
    log.close()
    with pytest.warns(StoreWarning, match="line 1 is no row"):
        TrialStore(tmp_path).close()
    assert (tmp_path / "_corrupt" / log.path.name).read_bytes() == b"garbage\n"
    assert row_files(tmp_path) == []


def test_reading_changes_nothing(tmp_path: Path) -> None:
    with TrialStore(tmp_path) as trials:
        trials.append(ended(0))
        trials.append(started(1))
        before = sorted((path, path.stat()) for path in tmp_path.rglob("*"))
        reader = TrialStore(tmp_path, read_only=True)
        assert len(reader.trials()) == 2
        reader.close()
        assert sorted((path, path.stat()) for path in tmp_path.rglob("*")) == before
    for change in (lambda: reader.append(ended(2)), reader.compact, reader.adopt_unfinished):
        with pytest.raises(StoreError, match="was opened to be read only"):
            change()


def test_impossible_directories_are_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(
        StoreError, match=r"the output directory must be a directory, .*file is a file; name an"
    ):
        TrialStore(file)
    with pytest.raises(StoreError, match=r"cannot make .*: Not a directory; name another directory"):
        TrialStore(file / "below")
    with pytest.raises(StoreError, match=r"cannot make /proc/.*; name another directory"):
        TrialStore("/proc/tuning")
    with pytest.raises(StoreError, match=r"there is no directory .*none; `tune run --out .*none` makes it"):
        TrialStore(tmp_path / "none", read_only=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_directory_without_write_permission_is_refused(tmp_path: Path) -> None:
    TrialStore(tmp_path).close()
    (tmp_path / "_rows").chmod(0o555)
    with pytest.raises(StoreError, match="Permission denied"):
        TrialStore(tmp_path)


def test_closed_store_opens_again_on_use_and_close_may_be_repeated(tmp_path: Path) -> None:
    trials = TrialStore(tmp_path)
    trials.append(ended(0))
    trials.close()
    trials.close()
    assert row_files(tmp_path) == []
    assert trials.trials() == [ended(0)]


def test_part_that_cannot_be_written_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

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
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

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


@pytest.mark.slow
def test_ten_thousand_trials_are_added_and_read_in_good_time(tmp_path: Path) -> None:
    """Of one processor, so that a busy machine fails nothing; what was measured is in `results.store`."""
    some = [ended(number) for number in range(10_000)]
    with TrialStore(tmp_path) as trials:
        began = time.process_time()
        for trial in some:
            trials.append(trial)
        assert time.process_time() - began < 10
        trials.compact()
        began = time.process_time()
        assert trials.trials() == some
        assert time.process_time() - began < 5


def test_threads_may_share_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "COMPACT_SECONDS", 0.01)
    with TrialStore(tmp_path) as trials:

        def add(first: int) -> None:
            for number in range(first, first + 25):
                trials.append(ended(number))

        threads = [threading.Thread(target=add, args=(first,)) for first in (0, 25, 50, 75)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [trial.number for trial in trials.trials()] == list(range(100))


def test_load_trials_has_what_is_not_yet_compacted(tmp_path: Path) -> None:
    with TrialStore(tmp_path) as trials:
        trials.append(ended(1))
        trials.compact()
        trials.append(failed(0))
        trials.append(started(2))
        frame = results.load_trials(tmp_path)
    assert frame["number"].tolist() == [0, 1, 2]
    assert frame["outcome"].tolist() == ["assemble", "ok", "started"]
    assert frame["schedule.tile_m"].tolist() == [16, 32, 64]
    assert frame["time_us"].isna().tolist() == [True, False, True]
    assert str(frame["started_at"].dtype) == "datetime64[us, UTC]"
    assert frame["schedule.decode"].tolist() == [SCHEDULE["decode"]] * 3
