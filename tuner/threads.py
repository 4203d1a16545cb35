"""One BLAS thread a process: the cores are for candidates, and small products gain less than they wait.

NumPy reads the number from the environment alone, once, when it is imported.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_NAMES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def use_one_thread() -> None:
    """Ask for one BLAS thread in this process, before NumPy is imported. What the user has set stays."""
    for name in _NAMES:
        os.environ.setdefault(name, "1")


@contextmanager
def one_thread_for_children() -> Iterator[None]:
    """Processes started meanwhile have one BLAS thread; this one stays as it is."""
    before = {name: os.environ.get(name) for name in _NAMES}
    os.environ.update(dict.fromkeys(_NAMES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
