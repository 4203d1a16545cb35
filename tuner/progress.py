"""How a run is shown while it goes on: one live line on a terminal, plain lines in a pipe."""

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from results.analysis import figure_of
from results.trial import Trial
from tuner.schedules import schedule_text

_PLAIN_EVERY_S = 10.0


class Progress:
    """A `Watch` that writes to a console.

    Args:
        console: Where to; a terminal gets the live line.
        title: Of the run, e.g. ``gemm 4096x3456x1280 on sim:rtx4090``.
        total: Trials wanted.
    """

    def __init__(self, console: Console, title: str, total: int) -> None:
        self._console = console
        self._title = title
        self._total = total
        self._started = self._said = time.monotonic()
        self._done = 0
        self._failed = 0
        self._best: Trial | None = None
        self.finished_here = 0
        self._live = (
            Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def elapsed_s(self) -> float:
        """Since the first candidate could be claimed."""
        return time.monotonic() - self._started

    def begin(self, rows: list[Trial], bound_us: float) -> None:
        self._started = self._said = time.monotonic()
        self._done = sum(row.outcome.counts for row in rows)
        self._failed = sum(not row.outcome.has_time for row in rows)
        self._best = min((row for row in rows if row.figure is not None), key=figure_of, default=None)
        bound = f"; bound {bound_us:.2f} us" if bound_us else ""
        resumed = f", {self._done} of them done already" if self._done else ""
        self._say(f"{self._title}: {self._total} trials{resumed}{bound}")
        if self._live is not None:
            self._live.start()

    def finished(self, row: Trial) -> None:
        self.finished_here += 1
        self._failed += not row.outcome.has_time
        if row.figure is not None and (self._best is None or row.figure < figure_of(self._best)):
            self._best = row
            self._say(f"trial {row.number}: {_time(row)}, the best so far: {schedule_text(row.schedule)}")

    def tick(self, done: int) -> None:
        self._done = done
        if self._live is not None:
            self._live.update(Text(self.line, no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() - self._said > _PLAIN_EVERY_S:
            self._say(self.line)

    def notice(self, line: str) -> None:
        self._say(f"note: {line}")

    @property
    def line(self) -> str:
        """Done, failed, best, candidates a minute, time to go."""
        rate = self.finished_here / self.elapsed_s if self.finished_here else 0.0
        left_s = max(0, self._total - self._done) / rate if rate else None
        best = "no time yet" if self._best is None else f"best {_time(self._best)}"
        eta = "--:--" if left_s is None else f"{int(left_s) // 60}:{int(left_s) % 60:02d}"
        return (
            f"{self._done}/{self._total} done, {self._failed} failed, {best}, "
            f"{60 * rate:.0f} candidates a minute, {eta} to go"
        )

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _time(row: Trial) -> str:
    assert row.measurement is not None
    time = f"{row.measurement.time_us:.2f} us {row.measurement.word}"
    return f"{1e3 * figure_of(row):.3f} mJ, {time}" if row.key.objective == "energy" else time
