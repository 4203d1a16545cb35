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
    taken = 0
    for _ in range(rounds):
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            warnings.simplefilter("ignore", StoreWarning)
            os.dup2(send, 1)
            write(out, first=taken, step=1, count=10**6)
        os.close(send)
        said, enough = b"", moments.randint(0, 60)
        while said.count(b"\n") < enough:
            said += os.read(receive, 1 << 12)
        time.sleep(moments.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(receive, 1 << 12):
            said += more
        os.close(receive)
        for number in map(int, said.split()):
            print(number)
            # The number after the last one that was taken may be in the store, ended, marked, or not at all.
            taken = number + 2


if __name__ == "__main__":
    store.COMPACT_SECONDS, store.COMPACT_SHARE = 0.0, 0.5
    parts.PART_ROWS = 40
    command, out, *rest = sys.argv[1:]
    {"write": write, "die": die}[command](Path(out), *map(int, rest))
