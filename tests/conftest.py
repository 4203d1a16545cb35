"""One BLAS thread a test process, before anything imports NumPy: pytest-xdist has a process a core."""

from tuner.threads import use_one_thread

use_one_thread()
