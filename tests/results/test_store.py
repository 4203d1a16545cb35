"""The trial store within one process: what is added, read, marked and taken back. Its parquet files are in
test_store_parts.py, what several processes do to it in test_store_processes.py.
"""

import os
import threading
import time
from pathlib import Path

import pytest
from sample_trials import KEY, SCHEDULE, ended, failed, other, started
from store_files import bare_pandas, row_files

import results
from results import store
from results.errors import StoreError, StoreWarning
from results.rowlog import RowLog
from results.store import TrialStore
from results.trial import Outcome


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
