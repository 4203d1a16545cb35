"""Processes that write to one store, for test_store_processes.py: `python writers.py COMMAND OUT ...`.

Each says `number` on standard output once the store has taken that trial.
"""

import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

# Imported before the forks: a writer shall spend its short life writing.
import pyarrow.parquet  # noqa: F401
from sample_trials import ended, started

from results import parts, store, tables  # noqa: F401
from results.errors import StoreWarning


def write(out: Path, first: int, step: int, count: int) -> None:
    """Trials first, first + step, ...: marked, then ended."""
    with store.TrialStore(out) as trials:
        trials.adopt_unfinished()
        for number in range(first, first + step * count, step):
            trials.append(started(number))
            # A parameter that comes up only now and then makes every part be written anew.
            extra = {f"rare{number // 50}": number} if number % 50 == 49 else {}
            trials.append(ended(number, schedule={"tile_m": number, **extra}))
            os.write(1, b"%d\n" % number)


def die(out: Path, rounds: int, seed: int) -> None:
    """Writers one after another, each killed at a random moment; each goes on where trials were taken."""
    moments = random.Random(seed)
    receive, send = os.pipe()
    taken = 0
    for _ in range(rounds):
        child = os.fork()
        if child == 0:
            warnings.simplefilter("ignore", StoreWarning)
            os.dup2(send, 1)
            write(out, first=taken, step=1, count=10**6)
        time.sleep(moments.uniform(0.01, 0.25))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.write(send, b"-1\n")
        text = b""
        while not text.endswith(b"-1\n"):
            text += os.read(receive, 1 << 16)
        numbers = [int(number) for number in text.split() if number != b"-1"]
        for number in numbers:
            print(number)
        # The number after the last one that was taken may be in the store, ended, marked, or not at all.
        taken = max([taken, *(number + 2 for number in numbers)])


if __name__ == "__main__":
    store.COMPACT_SECONDS, store.COMPACT_SHARE = 0.0, 0.5
    parts.PART_ROWS = 40
    command, out, *rest = sys.argv[1:]
    {"write": write, "die": die}[command](Path(out), *map(int, rest))
