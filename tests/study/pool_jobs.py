"""Jobs that misbehave in worker processes."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


class Unreadable:
    """An answer whose pickle cannot be read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_refuse, ())


def _refuse() -> None:
    raise ValueError("not for you")


def threads() -> int:
    """Of this process."""
    return len(os.listdir("/proc/self/task"))


def perform(job: tuple[str, Any]) -> Any:
    """Do what the job says."""
    what, value = job
    match what:
        case "double":
            return 2 * value
        case "sleep":
            time.sleep(value)
            return "slept"
        case "raise":
            raise RuntimeError(value)
        case "exit":
            os._exit(value)
        case "signal":
            os.kill(os.getpid(), value)
            time.sleep(60)
        case "unreadable":
            return Unreadable()
        case "unsendable":
            return lambda: None
        case "threads":
            np.ones((600, 600)) @ np.ones((600, 600))
            return threads()
        case "process":
            return os.getpid()
        case "child":  # starts a process of its own and waits for it, as a worker waits for ptxas
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            Path(value).write_text(str(child.pid))
            child.wait()
    return None
