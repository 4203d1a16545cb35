"""Running `tune` as a person does: in a process of its own, or where it refuses to, in this one."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tuner.cli import run

TUNE = Path(sys.executable).with_name("tune")
TOY = Path(__file__).parent.parent / "toy"


def environment() -> dict[str, str]:
    """This process's, with the toy kernels installed."""
    paths = [str(TOY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def start(*arguments: object, **options: Any) -> "subprocess.Popen[str]":
    """Start a command; its output is piped."""
    command = [str(TUNE), *map(str, arguments)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(), preexec_fn=_hear_interrupts, **{**pipes, **options})


def tune(
    *arguments: object, cwd: Path | None = None, timeout_s: float = 120.0
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    process = start(*arguments, cwd=cwd)
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 2) -> str:
    """The one line that a command ends with."""
    assert run([str(argument) for argument in arguments]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("tune: ")
    assert said.err.count("\n") == 1
    return said.err.removeprefix("tune: ").rstrip("\n")


def _hear_interrupts() -> None:
    """Where a background shell runs the tests, SIGINT is ignored, and a child would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
