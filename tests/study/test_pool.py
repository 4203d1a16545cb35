"""One test a way in which a worker can go wrong."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pool_jobs
import pytest

from tuner.pool import Died, Done, Late, Pool, Report


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(pool_jobs.perform, 2)
    yield pool
    pool.close()


def reports_of(pool: Pool, count: int) -> dict[int, Report]:
    found: dict[int, Report] = {}
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found |= {report.tag: report for report in pool.wait(1.0)}
    return found


def is_there(pid: int) -> bool:
    """Whether a process or a thread of it runs; one that has ended and waits to be collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z" or threads > 1


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while is_there(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_there(pid)


def test_jobs_come_back_under_their_tags(pool: Pool) -> None:
    for tag in range(20):
        pool.submit(tag, ("double", tag), 30.0)
    assert reports_of(pool, 20) == {tag: Done(tag, 2 * tag) for tag in range(20)}
    assert pool.busy == 0


def test_a_worker_that_dies_costs_its_own_job_only(pool: Pool) -> None:
    pool.submit(0, ("exit", 3), 30.0)
    for tag in range(1, 6):
        pool.submit(tag, ("double", tag), 30.0)
    reports = reports_of(pool, 6)
    assert reports[0] == Died(0, "exit status 3")
    assert [reports[tag] for tag in range(1, 6)] == [Done(tag, 2 * tag) for tag in range(1, 6)]


def test_a_signal_is_named(pool: Pool) -> None:
    pool.submit(0, ("signal", signal.SIGSEGV), 30.0)
    assert reports_of(pool, 1)[0] == Died(0, "signal 11 (Segmentation fault)")


def test_a_hung_worker_is_killed_and_the_other_goes_on(pool: Pool) -> None:
    started = time.monotonic()
    pool.submit(0, ("sleep", 600), 0.5)
    pool.submit(1, ("double", 4), 30.0)
    pool.submit(2, ("double", 5), 30.0)
    reports = reports_of(pool, 3)
    assert reports == {0: Late(0, 0.5), 1: Done(1, 8), 2: Done(2, 10)}
    assert time.monotonic() - started < 15


def test_a_killed_worker_takes_its_children_with_it(pool: Pool, tmp_path: Path) -> None:
    pool.submit(0, ("child", str(tmp_path / "pid")), 2.0)
    assert reports_of(pool, 1)[0] == Late(0, 2.0)
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (("raise", "no luck"), "RuntimeError: no luck"),
        (("unreadable", None), "its answer cannot be read: ValueError: not for you"),
    ],
)
def test_a_broken_answer_is_told(pool: Pool, job: tuple[str, object], reason: str) -> None:
    pool.submit(0, job, 30.0)
    pool.submit(1, ("double", 1), 30.0)
    reports = reports_of(pool, 2)
    assert reports == {0: Died(0, reason), 1: Done(1, 2)}


def test_an_answer_that_cannot_be_pickled_is_told(pool: Pool) -> None:
    pool.submit(0, ("unsendable", None), 30.0)
    report = reports_of(pool, 1)[0]
    assert isinstance(report, Died)
    assert report.reason.startswith("the result cannot be sent: ")


def test_a_worker_that_died_while_idle_is_replaced(pool: Pool) -> None:
    pool.submit(0, ("process", None), 30.0)
    report = reports_of(pool, 1)[0]
    assert isinstance(report, Done)
    os.kill(report.result, signal.SIGKILL)
    assert wait_until_gone(report.result)
    pool.submit(1, ("double", 2), 30.0)
    pool.submit(2, ("double", 3), 30.0)
    assert reports_of(pool, 2) == {1: Done(1, 4), 2: Done(2, 6)}


def test_close_ends_what_runs(pool: Pool) -> None:
    pool.submit(0, ("process", None), 30.0)
    report = reports_of(pool, 1)[0]
    assert isinstance(report, Done)
    pool.submit(1, ("sleep", 600), 600.0)
    pool.submit(2, ("sleep", 600), 600.0)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 5
    assert wait_until_gone(report.result)


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """In the middle of a job, too: nobody is left to end them."""
    program = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import pool_jobs
from tuner.pool import Pool
if __name__ == "__main__":
    pool = Pool(pool_jobs.perform, 2)
    pool.submit(0, ("process", None), 60.0)
    reports = pool.wait(30.0)
    pool.submit(1, ("sleep", 600), 600.0)
    print(reports[0].result, flush=True)
    time.sleep(600)
"""
    script = tmp_path / "parent.py"
    script.write_text(program)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert is_there(worker)
    parent.kill()
    parent.communicate()
    assert wait_until_gone(worker)


def test_a_ctrl_c_in_the_terminal_does_not_reach_workers(pool: Pool) -> None:
    pool.submit(0, ("process", None), 30.0)
    report = reports_of(pool, 1)[0]
    assert isinstance(report, Done)
    assert os.getpgid(report.result) != os.getpgid(0)


def test_a_pool_needs_a_worker() -> None:
    with pytest.raises(ValueError, match="a pool needs at least 1 worker, got 0"):
        Pool(pool_jobs.perform, 0)


def test_blas_in_a_worker_takes_one_thread(pool: Pool) -> None:
    """The pool has all the cores; and this process keeps the environment it had."""
    before = dict(os.environ)
    pool.submit(0, ("threads", None), 30.0)
    its_own, that_follows_the_parent = 1, 1
    assert reports_of(pool, 1)[0] == Done(0, its_own + that_follows_the_parent)
    assert dict(os.environ) == before
