"""What the tuner keeps: trials, launch plans and the frozen set. Needs no emitter, no simulator, no GPU.

For other programs: `results.load_trials()` for every trial as a data frame, and `results.frozen.load` for a
pinned kernel.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from results import frozen

__all__ = ["frozen", "load_trials"]


def load_trials(out: Path | str = "tuning") -> "pd.DataFrame":
    """Every trial in a directory, also of a run that is going on; columns as in ``docs/columns.md``.

    Raises:
        results.errors.StoreError: There is no such directory.
    """
    from results.store import TrialStore

    return TrialStore(out, read_only=True).frame()


def __getattr__(name: str) -> Any:
    """`results.frozen` when it is first asked for: emitters import this package and do not need it."""
    if name == "frozen":
        return import_module("results.frozen")
    raise AttributeError(f"module 'results' has no attribute {name!r}")
