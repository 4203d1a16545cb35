"""What a study begins with of other studies' results: ``--warm-start``.

Sources are read when a study is new and kept beside it, in OUT/warm_starts. Resuming takes them from there,
so the study goes on as it began, whatever has become of the sources. They are hints for the sampler: none of
their times is ever a result of the study.
"""

import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from results.errors import StoreError, StoreWarning
from results.store import TrialStore, out_of
from results.trial import Outcome, ParameterValue, Trial, recorded_word
from search_spaces.space import Space
from tuner.devices.recorded import RecordingError, read_recording
from tuner.devices.replay import is_replay
from tuner.ledger import StudyError
from tuner.samplers.transfer import FEWEST, Source
from tuner.task import About, RequestError

AUTO = "auto"
DIRECTORY = "warm_starts"
MOST_SOURCES = 8
_KEYS = {"study", "space_hash", "sources"}

Rows = list[tuple[Mapping[str, ParameterValue], float]]


@dataclass(frozen=True)
class WarmStart:
    """What a study begins with.

    Attributes:
        sources: Results of others as schedules of its space; none where nothing was of use.
        left_out: For a person: what was found and is of no use, a phrase each.
    """

    sources: tuple[Source, ...]
    left_out: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The sources for a person, as ``4096x3456x1280 on cuda:NVIDIA L4, measured (212 results)``."""
        return "; ".join(source.text for source in self.sources)


def found(words: Sequence[str], about: About, out: Path, study: str) -> WarmStart:
    """What the command line means by ``--warm-start``.

    Args:
        words: Each `AUTO`, the OUT of earlier runs, or a recording.
        about: What the study is about.
        out: Where `AUTO` looks.
        study: The study, which is no source of its own.

    Raises:
        RequestError: A path that is named cannot be read, is of another kernel, or has nothing of use.
    """
    sources: list[Source] = []
    left_out: list[str] = []
    for word in dict.fromkeys(words):
        read = _of_word(word, about, out, study)
        some = [Source.of(name, about.space, rows) for name, rows in read]
        useful = [source for source in some if source.timed >= FEWEST]
        if word != AUTO and not useful:
            most = max((source.timed for source in some), default=0)
            raise RequestError(
                f"--warm-start needs {FEWEST} times of {about.key.kernel} that are in its space, {word} has "
                f"{most}; name another, or leave it out"
            )
        sources += useful
        left_out += [source.text for source in some if source.timed < FEWEST]
    # Stable: of equally many the first that was found.
    sources.sort(key=lambda source: -source.timed)
    left_out += [source.text for source in sources[MOST_SOURCES:]]
    return WarmStart(tuple(sources[:MOST_SOURCES]), tuple(left_out))


def kept(out: Path, study: str, space: Space) -> WarmStart | None:
    """What a study began with; None where it had no warm start.

    Raises:
        StudyError: What is kept cannot be read, or is of another space.
    """
    try:
        read = _read(out, study)
    except StudyError as error:
        raise StudyError(f"{error}; give another --study") from None
    if read is None:
        return None
    space_hash, start = read
    if space_hash != space.hash:
        raise StudyError(f"study {study!r} began in another search space; give another --study")
    return start


def keep(out: Path, study: str, space: Space, start: WarmStart) -> WarmStart:
    """Keep what a new study begins with, and return what is kept: another process may have been first."""
    path = _path(out, study)
    path.parent.mkdir(parents=True, exist_ok=True)
    sources = [
        {
            "name": source.name,
            "schedules": source.schedules.tolist(),
            "times_us": [None if math.isnan(time) else time for time in source.times_us.tolist()],
        }
        for source in start.sources
    ]
    document = {"study": study, "space_hash": space.hash, "sources": sources}
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(json.dumps(document), encoding="utf-8")
        try:
            os.link(aside, path)  # unlike a rename it does not replace
        except FileExistsError:
            return kept(out, study, space) or start
    finally:
        aside.unlink(missing_ok=True)
    return start


def learned_from(out: Path, study: str) -> str:
    """The sources of a study for a person; empty where it had none.

    Where what is kept cannot be read, a `StoreWarning` says so, and it is empty too.
    """
    try:
        read = _read(out, study)
    except StudyError as error:
        warnings.warn(f"{error}; it is not shown", StoreWarning, stacklevel=2)
        return ""
    return "" if read is None else read[1].text


def _path(out: Path, study: str) -> Path:
    return out / DIRECTORY / f"{blake3(study.encode()).hexdigest()[:32]}.json"


def _read(out: Path, study: str) -> tuple[str, WarmStart] | None:
    """The hash of a study's space and what it began with; None where nothing is kept."""
    path = _path(out, study)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or not document.keys() >= _KEYS:
            raise ValueError(f"it must be an object of {', '.join(sorted(_KEYS))}")
        return str(document["space_hash"]), WarmStart(tuple(map(_source, document["sources"])))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, KeyError, TypeError, ValueError) as error:
        reason = repr(error) if isinstance(error, KeyError | TypeError) else str(error)
        raise StudyError(f"{path}, what study {study!r} began with, cannot be read: {reason}") from None


def _source(entry: Mapping[str, Any]) -> Source:
    times_us = [math.nan if time is None else float(time) for time in entry["times_us"]]
    return Source(entry["name"], np.array(entry["schedules"], dtype=np.int64), np.array(times_us))


def _of_word(word: str, about: About, out: Path, study: str) -> list[tuple[str, Rows]]:
    """Rows by source, which has a name for a person."""
    if word == AUTO:
        return _of_trials(_trials(out), about, study) if (out / "trials").is_dir() else []
    path = Path(word)
    if not word or not path.exists():
        raise RequestError(
            f"--warm-start must be {AUTO}, the OUT of earlier runs or a recording, and there is no "
            f"{word or 'file without a name'}"
        )
    try:
        if not path.is_dir():
            return _of_recording(path, about)
        return _of_trials(_trials(out_of(path)), about, study)
    except (OSError, RecordingError, StoreError) as error:
        raise RequestError(f"--warm-start: {error}") from None  # which names the file


def _trials(out: Path) -> list[Trial]:
    return TrialStore(out, read_only=True).trials()


def _of_trials(trials: Iterable[Trial], about: About, study: str) -> list[tuple[str, Rows]]:
    """Of the kernel's trials, each group of comparable ones; the study's own are left out."""
    groups: dict[tuple[str, ...], list[Trial]] = {}
    for trial in trials:
        key = trial.key
        if key.kernel == about.key.kernel and trial.study != study and trial.outcome is not Outcome.STARTED:
            group = (key.problem, key.device, key.arch, key.policy, key.objective, key.semantic_hash)
            groups.setdefault(group, []).append(trial)
    return [(_name(groups[group], about), _rows(groups[group], about)) for group in sorted(groups)]


def _rows(trials: Sequence[Trial], about: About) -> Rows:
    """Each trial with its energy, where that is sought and all have it, or else its time; in any unit."""
    timed = [trial.measurement if trial.outcome.has_time else None for trial in trials]
    by_energy = about.key.objective == "energy" and all(
        time.energy_j is not None for time in timed if time is not None
    )
    rows: Rows = []
    for trial, time in zip(trials, timed, strict=True):
        figure = math.nan if time is None else time.energy_j if by_energy else time.time_us
        rows.append((trial.schedule, math.nan if figure is None else figure))
    return rows


def _name(trials: Sequence[Trial], about: About) -> str:
    key = trials[0].key
    words = {trial.measurement.word for trial in trials if trial.measurement is not None}
    parts = [f"{key.problem} on {key.device} ({key.arch})", *sorted(words)]
    if key.semantic_hash != about.key.semantic_hash and not is_replay(key.device):
        parts.append("another version")
    if key.objective != about.key.objective:
        parts.append(f"sought for {key.objective}")
    return ", ".join(parts)


def _of_recording(path: Path, about: About) -> list[tuple[str, Rows]]:
    recording = read_recording(path)
    if recording.kernel and recording.kernel != about.key.kernel and about.key.kernel != "recorded":
        raise RequestError(
            f"--warm-start must be of the kernel {about.key.kernel}, {path} is of {recording.kernel}; "
            "name another, or leave it out"
        )
    rows = zip(map(recording.schedule, range(len(recording))), recording.times_us.tolist(), strict=True)
    return [(f"{path.name}, {recorded_word(recording.source)}", list(rows))]
