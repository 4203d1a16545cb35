"""BLAS threads: one by default, what the user has set stays, children get one."""

import os
import subprocess
import sys

import pytest

from tuner.threads import one_thread_for_children, use_one_thread


@pytest.fixture
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "7")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_choice")
def test_one_thread_unless_the_user_chose() -> None:
    os.environ["OMP_NUM_THREADS"] = "4"
    use_one_thread()
    assert (os.environ["OMP_NUM_THREADS"], os.environ["OPENBLAS_NUM_THREADS"]) == ("4", "1")


@pytest.mark.usefixtures("no_choice")
def test_children_have_one_thread_and_the_parent_keeps_its_own() -> None:
    os.environ["OMP_NUM_THREADS"] = "4"
    with one_thread_for_children():
        seen = subprocess.run(
            [sys.executable, "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"],
            capture_output=True,
            text=True,
            check=True,
        )
    assert seen.stdout == "1\n"
    assert os.environ["OMP_NUM_THREADS"] == "4"
    assert "OPENBLAS_NUM_THREADS" not in os.environ


def test_the_command_asks_for_one_thread_before_numpy_is_there() -> None:
    code = "import sys, tuner.cli; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
