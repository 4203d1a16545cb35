"""The trial store under several processes, some of which are killed."""

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
from sample_trials import KEY, ended, started

from results.errors import StoreWarning
from results.store import TrialStore
from results.trial import Outcome

WRITERS = str(Path(__file__).with_name("writers.py"))


def run_writers(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, WRITERS, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@contextmanager
def torn_lines_allowed() -> Iterator[None]:
    """A writer killed in the middle of a line leaves half of it, and the next one says so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*half a line.*", StoreWarning)
        yield


def killed_at_random(out: Path, rounds: int, seed: int) -> None:
    writers = run_writers("die", out, rounds, seed)
    said = [int(line) for line in writers.communicate()[0].split()]
    assert writers.returncode == 0
    assert len(said) > 10 * rounds, "the writers were killed before they wrote; nothing was tested"
    with TrialStore(out) as store:
        crashes = {trial.number for trial in store.adopt_unfinished()}
        found = store.trials()
    numbers = [trial.number for trial in found]
    assert len(numbers) == len(set(numbers)), "a trial is there twice"
    lost = set(said) - {trial.number for trial in found if trial.outcome is Outcome.OK}
    assert not lost, f"trials that were taken are gone: {sorted(lost)}"
    assert all(trial.schedule["tile_m"] == trial.number for trial in found if trial.outcome is Outcome.OK)
    assert crashes <= {trial.number for trial in found if trial.outcome is Outcome.CRASH}
    frame = pd.read_parquet(out / "trials")
    assert sorted(frame["number"]) == numbers
    assert sorted(path.name for path in (out / "_rows").iterdir() if not path.name.startswith(".")) == [
        "lock"
    ]


def test_no_trial_is_lost_or_doubled_by_sigkill(tmp_path: Path) -> None:
    with torn_lines_allowed():
        killed_at_random(tmp_path, rounds=12, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_no_trial_is_lost_or_doubled_by_many_sigkills(tmp_path: Path, seed: int) -> None:
    with torn_lines_allowed():
        killed_at_random(tmp_path, rounds=40, seed=seed)


def test_two_processes_write_and_pandas_reads_all_the_while(tmp_path: Path) -> None:
    TrialStore(tmp_path).close()
    code = (
        "import pandas, sys, time\n"
        "lengths = []\n"
        "while not lengths or lengths[-1] < 300 and len(lengths) < 10000:\n"
        "    df = pandas.read_parquet(sys.argv[1])\n"
        "    if 'schedule.tile_m' in df:\n"
        "        assert df['schedule.tile_m'].tolist() == df['number'].tolist()\n"
        "    assert df['number'].is_unique and df['time_us'].dtype == 'float64'\n"
        "    lengths.append(len(df))\n"
        "assert lengths == sorted(lengths), lengths\n"
        "assert 'schedule.tile_m' in df\n"
        "print(len(set(lengths)))\n"
    )
    reader = subprocess.Popen(
        [sys.executable, "-I", "-W", "error", "-c", code, str(tmp_path / "trials")],
        stdout=subprocess.PIPE,
        text=True,
    )
    writers = [run_writers("write", tmp_path, first, 2, 150) for first in (0, 1)]
    said = [int(line) for writer in writers for line in writer.communicate()[0].split()]
    assert [writer.returncode for writer in writers] == [0, 0]
    steps = int(reader.communicate(timeout=60)[0])
    assert reader.returncode == 0
    assert steps > 3, "the reader saw no step in between; nothing was tested"
    assert sorted(said) == list(range(300))
    assert [trial.number for trial in TrialStore(tmp_path, read_only=True).trials()] == list(range(300))


def test_log_of_a_living_process_is_not_adopted_and_of_a_killed_one_is(tmp_path: Path) -> None:
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[2])\n"
        "from results.store import TrialStore; from sample_trials import started\n"
        "store = TrialStore(sys.argv[1]); store.append(started(7))\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other, TrialStore(tmp_path) as store:
        assert other.stdout is not None
        other.stdout.readline()
        assert store.adopt_unfinished() == []
        other.kill()
        other.wait()
        assert [trial.number for trial in store.adopt_unfinished()] == [7]


def test_forked_child_gets_a_log_of_its_own_and_keeps_no_lock(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    store.append(started(0))
    release, held = os.pipe()
    child = os.fork()
    if child == 0:
        store.append(ended(1))
        os.read(release, 1)
        os._exit(0)
    deadline = time.monotonic() + 20
    while len(store.trials()) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    store.close()
    with TrialStore(tmp_path) as after:  # the child lives, and yet the parent's mark is free to adopt
        assert [trial.number for trial in after.adopt_unfinished()] == [0]
        os.write(held, b"x")
        assert os.waitpid(child, 0)[1] == 0
        assert [(trial.study, trial.number) for trial in after.trials()] == [(KEY.name, 0), (KEY.name, 1)]
