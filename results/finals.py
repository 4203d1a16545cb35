"""Finals of studies, kept in ``OUT/finals.jsonl``: a line each, and of one study the latest counts."""

import json
import os
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from results.errors import StoreError, StoreWarning

NAME = "finals.jsonl"


@dataclass(frozen=True)
class Final:
    """What came of timing the fastest trials of a study again, interleaved.

    Attributes:
        numbers: Of the trials, fastest first as they had been measured alone.
        medians_us: Of each in the interleaved rounds.
        tied: Numbers of those that are not shown to be slower than the fastest, which is one of them.
        chosen: The winner's number; in a tie, that of the simplest of the tied.
    """

    numbers: tuple[int, ...]
    medians_us: tuple[float, ...]
    tied: tuple[int, ...]
    chosen: int

    def __post_init__(self) -> None:
        if len(self.medians_us) != len(self.numbers) or self.chosen not in self.tied:
            raise ValueError(
                f"a final must have a time for each trial and choose one of the tied, got {self}"
            )

    @property
    def is_tie(self) -> bool:
        return len(self.tied) > 1

    @property
    def time_us(self) -> float:
        """Of the chosen one."""
        return self.median_us(self.chosen)

    def median_us(self, number: int) -> float:
        """Of one of the finalists in the interleaved rounds."""
        return self.medians_us[self.numbers.index(number)]

    def __str__(self) -> str:
        times = ", ".join(
            f"{number}: {time_us:.2f} us"
            for number, time_us in zip(self.numbers, self.medians_us, strict=True)
        )
        if not self.is_tie:
            return f"trial {self.chosen} is the fastest in interleaved rounds ({times})"
        tied = ", ".join(map(str, self.tied))
        return (
            f"trials {tied} are tied in interleaved rounds; {self.chosen}, the simplest, is taken ({times})"
        )

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Final":
        """From what `to_json` gave."""
        numbers, medians_us, tied = (tuple(value[name]) for name in ("numbers", "medians_us", "tied"))
        return cls(numbers, medians_us, tied, value["chosen"])


def keep_final(out: Path, study: str, final: Final) -> None:
    """Add a study's final. When this returns, it survives the process and the machine.

    Raises:
        StoreError: The file cannot be written.
    """
    line = json.dumps({"study": study, "held_at": time.time(), **final.to_json()}) + "\n"
    path = out / NAME
    try:
        with path.open("ab+") as file:
            if file.tell() and not _is_whole(file.fileno()):
                line = "\n" + line  # what was cut short spoils itself and nothing else
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; free space or name another --out") from None


def finals_in(out: Path) -> dict[str, Final]:
    """The latest final of each study. A line that cannot be read is left out, which a `StoreWarning` says."""
    path = out / NAME
    if not path.exists():
        return {}
    finals: dict[str, Final] = {}
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        try:
            value = json.loads(line)
            finals[value["study"]] = Final.from_json(value)
        except (ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            warnings.warn(
                StoreWarning(f"{path}, line {number} is no final ({reason}); it is left out"), stacklevel=2
            )
    return finals


def _is_whole(descriptor: int) -> bool:
    """Whether the last line of a file that is not empty has its end."""
    return os.pread(descriptor, 1, os.fstat(descriptor).st_size - 1) == b"\n"
