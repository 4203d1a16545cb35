"""What is in the directory of a store, as other programs see it."""

import subprocess
import sys
from pathlib import Path

_BARE = [sys.executable, "-I", "-W", "error", "-c"]


def bare_pandas(out: Path, expression: str) -> str:
    """What a process says that has pandas and nothing of ours, asked about `df`."""
    code = f"import pandas, sys; df = pandas.read_parquet(sys.argv[1]); print({expression})"
    command = [*_BARE, code, str(out / "trials")]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout.strip()


def part_files(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "trials").iterdir())


def row_files(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "_rows").iterdir() if path.name != "lock")
