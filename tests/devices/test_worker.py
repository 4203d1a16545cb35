"""Isolation: one test a way in which a candidate, or a worker, can go wrong. Real processes throughout."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from hostile_jobs import (
    Add,
    AnswerNonsense,
    Babble,
    CloseChannel,
    Die,
    DieSoon,
    FatalToRead,
    Fault,
    Hang,
    Leave,
    OnlyForTheParent,
    OpenDying,
    OpenHanging,
    OpenPlain,
    OpenUnavailable,
    SlowButReporting,
    Unpicklable,
    Ununpicklable,
    WhichJob,
    WriteToChannel,
)

from results.trial import Outcome
from tuner.devices.device import DeviceError
from tuner.devices.errors import CandidateCrashError, CandidateFaultError, CandidateTimeoutError
from tuner.devices.worker import Worker, WorkerLimits, WorkerLostError

QUICK = WorkerLimits(start_s=20.0, take_s=20.0, die_s=10.0, starts=3, failures=4)


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(OpenPlain(), QUICK) as worker:
        yield worker


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie that nobody has waited for counts as dead)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def unharmed(worker: Worker) -> bool:
    return worker.run(Add(20, 22)) == 42


def test_one_process_serves_many_jobs(worker: Worker) -> None:
    assert [worker.run(Add(i, i)) for i in range(5)] == [0, 2, 4, 6, 8]
    assert worker.run(WhichJob()) == (worker.pid, 5)
    assert worker.pid != os.getpid()
    assert worker.spawned == 1


def test_crash_is_the_candidates_and_the_next_is_unharmed(worker: Worker) -> None:
    with pytest.raises(
        CandidateCrashError, match=r"killed by SIGSEGV after writing.*heap is corrupted"
    ) as caught:
        worker.run(Die())
    assert caught.value.outcome is Outcome.CRASH
    assert unharmed(worker)
    assert worker.spawned == 2


def test_exit_inside_a_job_is_a_crash(worker: Worker) -> None:
    with pytest.raises(CandidateCrashError, match="exited with 3"):
        worker.run(Leave())
    assert unharmed(worker)


def test_timeout_kills_worker(worker: Worker, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(
        CandidateTimeoutError, match=r"no answer within 0\.3 s while running the candidate"
    ) as caught:
        worker.run(Hang(0.3, tmp_path / "pid"))
    assert time.monotonic() - started < 15
    assert caught.value.outcome is Outcome.TIMEOUT
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert unharmed(worker)


def test_a_limit_holds_for_a_phase_not_for_the_job(worker: Worker) -> None:
    assert worker.run(SlowButReporting(phases=8, seconds=0.2)) == "done"
    assert worker.spawned == 1


def test_prints_do_not_garble_answers(worker: Worker) -> None:
    assert worker.run(Babble()) == "heard"
    assert unharmed(worker)
    assert worker.spawned == 1


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"garbage" * 10, id="no header"),
        pytest.param(b"tune" + (5).to_bytes(8, "little") + b"12345", id="no pickle"),
        pytest.param(b"tune" + (1 << 60).to_bytes(8, "little"), id="endless"),
        pytest.param(b"tune" + (4).to_bytes(8, "little") + b"\x80\x02N.", id="no answer"),
    ],
)
def test_garbage_on_the_channel_is_a_crash(worker: Worker, payload: bytes) -> None:
    pid, _ = worker.run(WhichJob())
    with pytest.raises(CandidateCrashError, match="sent garbage while beginning"):
        worker.run(WriteToChannel(payload))
    assert not is_alive(pid)
    assert unharmed(worker)
    assert worker.spawned == 2


def test_closed_channel_of_a_living_worker_is_a_crash(worker: Worker) -> None:
    pid, _ = worker.run(WhichJob())
    with pytest.raises(CandidateCrashError):
        worker.run(CloseChannel())
    assert not is_alive(pid)
    assert unharmed(worker)


def test_unpicklable_result_is_a_crash_and_costs_no_worker(worker: Worker) -> None:
    with pytest.raises(CandidateCrashError, match=r"cannot be pickled.*lock"):
        worker.run(Unpicklable())
    assert unharmed(worker)
    assert worker.spawned == 1


def test_result_that_does_not_unpickle_is_a_crash(worker: Worker) -> None:
    with pytest.raises(CandidateCrashError, match=r"ValueError.*made in the worker only"):
        worker.run(Ununpicklable())
    assert unharmed(worker)


def test_exception_in_a_job_keeps_its_message_and_place(worker: Worker) -> None:
    with pytest.raises(
        CandidateCrashError, match=r"ZeroDivisionError: a bug of a reference \(hostile_jobs.py:\d+\)"
    ):
        worker.run(AnswerNonsense())
    assert worker.spawned == 1
    assert unharmed(worker)


def test_sticky_fault_replaces_the_worker(worker: Worker) -> None:
    pid, _ = worker.run(WhichJob())
    with pytest.raises(CandidateFaultError, match="misaligned address") as caught:
        worker.run(Fault(sticky=True))
    assert (caught.value.kind, caught.value.outcome) == ("misaligned", Outcome.FAULT)
    assert not is_alive(pid)
    assert unharmed(worker)
    assert worker.spawned == 2


def test_refused_launch_keeps_the_worker(worker: Worker) -> None:
    with pytest.raises(CandidateFaultError):
        worker.run(Fault(sticky=False))
    assert unharmed(worker)
    assert worker.spawned == 1


def test_refusals_in_a_row_replace_the_worker_and_a_success_starts_the_count_anew(worker: Worker) -> None:
    """The context may be broken in a way that no status tells."""
    for refusals, spawned in ((2, 1), (2, 1), (3, 2)):
        for _ in range(refusals):
            with pytest.raises(CandidateFaultError):
                worker.run(Fault(sticky=False))
        assert unharmed(worker)
        assert worker.spawned == spawned


def test_unpicklable_job_is_the_callers_error(worker: Worker) -> None:
    class Local:
        def run(self, bench: object) -> int:
            return 1

    with pytest.raises((AttributeError, TypeError), match=r"[Cc]an't (get|pickle) local object|local object"):
        worker.run(Local())
    assert unharmed(worker)


def test_unavailable_device_is_said_at_once_and_not_tried_again() -> None:
    with (
        Worker(OpenUnavailable(), QUICK) as worker,
        pytest.raises(DeviceError, match="RuntimeError: no CUDA-capable device is detected"),
    ):
        worker.run(Add(1, 1))
    assert worker.spawned == 1
    assert worker.pid is None


def test_death_at_start_is_tried_again(tmp_path: Path) -> None:
    with Worker(OpenDying(tmp_path / "starts", survive_after=2), QUICK) as worker:
        assert unharmed(worker)
    assert worker.spawned == 3


def test_death_at_every_start_ends_at_the_limit(tmp_path: Path) -> None:
    with (
        Worker(OpenDying(tmp_path / "starts"), QUICK) as worker,
        pytest.raises(WorkerLostError, match=r"3 workers in a row did not start.*exited with 7.*libcuda"),
    ):
        worker.run(Add(1, 1))
    assert worker.spawned == 3


def test_hang_at_start_is_killed() -> None:
    limits = WorkerLimits(start_s=0.8, starts=2)
    with (
        Worker(OpenHanging(), limits) as worker,
        pytest.raises(WorkerLostError, match=r"did not start within 0\.8 s"),
    ):
        worker.run(Add(1, 1))
    assert worker.pid is None


def test_death_between_jobs_harms_no_candidate(worker: Worker) -> None:
    assert worker.run(DieSoon()) == "last words"
    pid = worker.pid
    assert pid is not None
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert unharmed(worker)
    assert worker.spawned == 2


def test_a_job_that_the_worker_cannot_read_is_a_crash(worker: Worker) -> None:
    with pytest.raises(CandidateCrashError, match=r"the job cannot be read: ValueError.*no job of mine"):
        worker.run(OnlyForTheParent())
    assert unharmed(worker)
    assert worker.spawned == 1


def test_a_worker_that_always_dies_between_jobs_is_lost(worker: Worker) -> None:
    with pytest.raises(WorkerLostError, match=r"3 workers in a row were lost between jobs.*exited with 5"):
        worker.run(FatalToRead())
    assert worker.spawned == 3


def test_failures_in_a_row_end_the_study(worker: Worker) -> None:
    for _ in range(3):
        with pytest.raises(CandidateCrashError):
            worker.run(AnswerNonsense())
    assert unharmed(worker)  # a success starts the count anew
    for _ in range(3):
        with pytest.raises(CandidateCrashError):
            worker.run(AnswerNonsense())
    with pytest.raises(WorkerLostError, match=r"4 jobs in a row failed.*The last: ZeroDivisionError"):
        worker.run(AnswerNonsense())


def test_two_workers_do_not_disturb_each_other(tmp_path: Path) -> None:
    with Worker(OpenPlain(), QUICK) as left, Worker(OpenPlain(), QUICK) as right:
        failures: list[BaseException] = []

        def crash_on_the_left() -> None:
            try:
                for _ in range(3):
                    with pytest.raises(CandidateCrashError):
                        left.run(Die())
            except BaseException as error:
                failures.append(error)

        thread = Thread(target=crash_on_the_left)
        thread.start()
        sums = [right.run(Add(i, 1)) for i in range(200)]
        thread.join()
        assert not failures
        assert sums == list(range(1, 201))
        assert right.spawned == 1
        assert unharmed(left)
        assert left.pid != right.pid


def test_close_ends_the_process_and_may_be_called_twice(worker: Worker) -> None:
    pid, _ = worker.run(WhichJob())
    worker.close()
    worker.close()
    assert not is_alive(pid)


def test_close_from_another_thread_ends_a_job_and_no_other_is_begun(worker: Worker, tmp_path: Path) -> None:
    ended: list[Exception] = []

    def work() -> None:
        for job in (Hang(600.0, tmp_path / "pid"), Add(1, 1)):
            try:
                worker.run(job)
            except (CandidateCrashError, WorkerLostError) as error:
                ended.append(error)

    thread = Thread(target=work)
    thread.start()
    wait_for(tmp_path / "pid")
    worker.close()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert isinstance(ended[0], CandidateCrashError)
    assert isinstance(ended[1], WorkerLostError)
    assert "the device is closed" in str(ended[1])
    assert worker.spawned == 1


def wait_for(file: Path) -> str:
    """What a file holds, once it does."""
    deadline = time.monotonic() + 20
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return file.read_text()


_INTERRUPTED = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
sys.path[:] = {path!r}
from pathlib import Path
from hostile_jobs import Add, Hang, OpenPlain
from tuner.devices.worker import Worker
worker = Worker(OpenPlain())
try:
    worker.run(Hang(600.0, Path({pid_file!r})))
except KeyboardInterrupt:
    print("interrupted", worker.pid, worker.run(Add(20, 22)), flush=True)
    worker.close()
    sys.exit(130)
"""


def start_hanging_parent(tmp_path: Path) -> tuple["subprocess.Popen[str]", int]:
    """A parent of its own session in the midst of a job, and the pid of its worker."""
    pid_file = tmp_path / "pid"
    parent = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED.format(path=sys.path, pid_file=str(pid_file))],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return parent, int(wait_for(pid_file))


def test_ctrl_c_reaches_the_parent_only_and_leaves_no_worker(tmp_path: Path) -> None:
    parent, pid = start_hanging_parent(tmp_path)
    os.killpg(parent.pid, signal.SIGINT)  # what a terminal sends: to the whole foreground group
    printed, _ = parent.communicate(timeout=20)
    assert printed == "interrupted None 42\n"
    assert parent.returncode == 130
    assert not is_alive(pid)


def test_a_killed_parent_leaves_no_worker(tmp_path: Path) -> None:
    parent, pid = start_hanging_parent(tmp_path)
    parent.kill()
    parent.communicate(timeout=20)
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)
