"""Reads recorded tuning spaces: every schedule that somebody timed on a GPU, and what came of it.

Formats: Kernel Tuner cache files (also those that lack their end, since the tuner appends), T4 results, and
T1 input for parameters and conditions; gzip or plain. T1 and T4 are those of the Benchmark suite for
Auto-Tuners (https://github.com/odgaard/TuningSchema). What is recorded is the valid set: a combination that
is absent breaks a condition. This module knows nothing of the kernels of this project.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from results.export import DUPLICATE_OF, MESSAGE, OUTCOME, US_PER_MS, schedule_key
from results.expression import ExpressionError, evaluate
from results.trial import Outcome, ParameterValue, Source

_FAILURES = {
    "CompilationFailedConfig": Outcome.ASSEMBLE,
    "RuntimeFailedConfig": Outcome.CRASH,
    "compile": Outcome.ASSEMBLE,
    "runtime": Outcome.CRASH,
    "timeout": Outcome.TIMEOUT,
    "correctness": Outcome.WRONG,
}
_INVALID = ("InvalidConfig", "constraints")
_CUTS = 3  # lines that a file cut short may lose before it parses


class RecordingError(ValueError):
    """A file that is no recording, or one that does not fit its T1 input."""


@dataclass(frozen=True)
class Recording:
    """A recorded space.

    Attributes:
        kernel, device: As the file names them; empty where it does not.
        names: Parameters, in the file's order.
        values: Levels of each.
        levels: Recorded schedules as level indices, shape (schedules, parameters), int16.
        times_us: Mean time of each, microseconds; NaN where it failed.
        raw_us: Every time behind it, shape (schedules, most repeats), NaN where there is none.
        outcomes: What became of each.
        messages: For a failure, the file's word for it; else empty.
        complete: Whether the file had its end.
        originals: For each schedule the number of the one whose code and plan it has, its own where none is
            known; shape (schedules,), int64. None where nothing tells.
        problem, arch: What was timed, and for which architecture; empty where the file does not say.
        source: How the times were obtained, as in `results.trial.Source`; empty where the file does not say.
    """

    kernel: str
    device: str
    names: tuple[str, ...]
    values: tuple[tuple[ParameterValue, ...], ...]
    levels: NDArray[np.int16]
    times_us: NDArray[np.float64]
    raw_us: NDArray[np.float64]
    outcomes: tuple[Outcome, ...]
    messages: tuple[str, ...]
    complete: bool = True
    originals: NDArray[np.int64] | None = None
    problem: str = ""
    arch: str = ""
    source: str = ""

    def __len__(self) -> int:
        return len(self.levels)

    def schedule(self, number: int) -> dict[str, ParameterValue]:
        """Schedule number `number` by parameter name."""
        row = self.levels[number]
        return {n: v[level] for n, v, level in zip(self.names, self.values, row, strict=True)}


@dataclass(frozen=True)
class T1:
    """What T1 input says of a space.

    Attributes:
        kernel: Its name.
        values: Levels of each parameter by name, in order.
        conditions: Formulas over parameter names; all must hold.
    """

    kernel: str
    values: Mapping[str, tuple[ParameterValue, ...]]
    conditions: tuple[str, ...] = ()

    def broken(self, schedule: Mapping[str, ParameterValue]) -> str | None:
        """The first condition that a schedule breaks, or None.

        Raises:
            RecordingError: A condition is no formula that this package evaluates.
        """
        try:
            return next((text for text in self.conditions if not evaluate(text, _numbers(schedule))), None)
        except ExpressionError as error:
            raise RecordingError(f"condition of {self.kernel}: {error}") from None


def read_recording(path: Path, t1: T1 | None = None) -> Recording:
    """A recorded space from a file, whichever of the formats it has.

    Args:
        path: JSON, gzip or not.
        t1: Gives levels their order; recorded schedules must keep its conditions.

    Raises:
        RecordingError: With what is wrong and where.
    """
    text, whole = _text(path)
    document, complete = _document(text, path)
    complete = complete and whole
    if "cache" in document:
        named, reader = "Kernel Tuner cache", _from_cache
    elif "results" in document:
        named, reader = "T4 results file", _from_t4
    else:
        known = ", ".join(sorted(document)[:8]) or "neither"
        raise RecordingError(f"{path} must have `cache` (Kernel Tuner) or `results` (T4), got {known}")
    try:
        recording = reader(document, path)
    except RecordingError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise RecordingError(
            f"{path} has the head of a {named}, but not its form: {error!r}; write it anew"
        ) from None
    recording = replace(recording, complete=complete)
    return recording if t1 is None else _ordered_as(recording, t1, path)


def read_t1(path: Path) -> T1:
    """T1 input from a file.

    Raises:
        RecordingError: It is none.
    """
    document, _ = _document(_text(path)[0], path)
    try:
        space = document["ConfigurationSpace"]
        kernel = document.get("KernelSpecification", {})
        values = {p["Name"]: tuple(_values(p["Values"])) for p in space["TuningParameters"]}
        conditions = tuple(c["Expression"] for c in space.get("Conditions", ()))
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"{path} is no T1 input: {error!r}") from None
    return T1(str(kernel.get("KernelName", "")), values, conditions)


@dataclass(frozen=True, slots=True)
class _Row:
    schedule: Mapping[str, ParameterValue]
    times_ms: Sequence[float]
    time_ms: float | None
    outcome: Outcome = Outcome.OK
    message: str = ""
    original: str = ""


def _from_cache(document: Mapping[str, Any], path: Path) -> Recording:
    names = tuple(document["tune_params_keys"])
    objective = _first(document.get("objective", "time"))
    rows = []
    for key, entry in document["cache"].items():
        schedule = {name: entry[name] for name in names if name in entry}
        if len(schedule) < len(names):
            raise RecordingError(f"{path}: entry {key!r} must have all of {', '.join(names)}")
        time = entry.get("time", entry.get(objective))
        failure = entry.get("__error__", time)  # the first is where Kernel Tuner 1.5 has it
        rows.append(_row(schedule, time, entry.get("times"), failure, entry))
    values = tuple(tuple(document["tune_params"][name]) for name in names)
    about = document.get("metadata") or {}
    return replace(
        _recording(names, values, rows, path, about),
        kernel=str(document.get("kernel_name", "")),
        device=str(document.get("device_name", "")),
    )


def _from_t4(document: Mapping[str, Any], path: Path) -> Recording:
    rows = []
    for entry in document["results"]:
        measured = {m["name"]: m["value"] for m in entry["measurements"]}
        time = measured.get("time", measured.get(_first(entry["objectives"])))
        failure = entry.get("invalidity", "correct")
        failed = time if failure == "correct" else failure
        rows.append(_row(entry["configuration"], time, entry["times"].get("runtimes"), failed, measured))
    names = tuple(rows[0].schedule) if rows else ()
    values = tuple(tuple(sorted({row.schedule[name] for row in rows}, key=_order)) for name in names)
    about = document.get("metadata") or {}
    return replace(
        _recording(names, values, rows, path, about),
        kernel=str(about.get("kernel", "")),
        device=str(about.get("device", "")),
    )


def _first(objective: object) -> str:
    """An objective, which Kernel Tuner 1.5 writes as a list."""
    return str(objective[0]) if isinstance(objective, list) and objective else str(objective)


def _row(
    schedule: Mapping[str, ParameterValue],
    time: object,
    times: object,
    failure: object,
    noted: Mapping[str, Any],
) -> _Row:
    """A row; what our own trials know better than the format has words for is in what was noted beside it.

    Args:
        schedule, time, times: As recorded, milliseconds.
        failure: The format's word for it; any number where there is none.
        noted: Other values of the entry.
    """
    raw = [float(t) for t in times] if isinstance(times, list) else []
    original = str(noted.get(DUPLICATE_OF, ""))
    if isinstance(failure, int | float) and isinstance(time, int | float) and 0 < time < np.inf:
        return _Row(schedule, raw, float(time), original=original)
    word = str(failure)
    if word in _INVALID:
        return _Row(schedule, raw, None, Outcome.STARTED)
    kind = noted.get(OUTCOME)
    known = [outcome for outcome in Outcome if outcome == kind and not outcome.has_time]
    outcome = known[0] if known else _FAILURES.get(word, Outcome.CRASH)
    message = str(noted.get(MESSAGE, "")) if known else word
    return _Row(schedule, raw, None, outcome, message, original)


def _recording(
    names: tuple[str, ...],
    values: tuple[tuple[ParameterValue, ...], ...],
    rows: Iterable[_Row],
    path: Path,
    about: Mapping[str, Any],
) -> Recording:
    """A recording of rows; `about` says where our own exported trials came from, other tuners do not."""
    kept = [row for row in rows if row.outcome is not Outcome.STARTED]
    if not kept:
        raise RecordingError(f"{path} must have at least one recorded schedule")
    places = [{value: level for level, value in enumerate(levels)} for levels in values]
    try:
        levels = [[place[row.schedule[n]] for n, place in zip(names, places, strict=True)] for row in kept]
    except KeyError as error:
        raise RecordingError(f"{path} has a schedule with {error}, which is no level there") from None
    most = max(1, max(len(row.times_ms) for row in kept))
    raw_us = np.full((len(kept), most), np.nan)
    for number, row in enumerate(kept):
        times_ms = row.times_ms or ([] if row.time_ms is None else [row.time_ms])
        raw_us[number, : len(times_ms)] = times_ms
    return Recording(
        kernel="",
        device="",
        names=names,
        values=values,
        levels=np.array(levels, dtype=np.int16),
        times_us=np.array([np.nan if r.time_ms is None else r.time_ms for r in kept]) * US_PER_MS,
        raw_us=raw_us * US_PER_MS,
        outcomes=tuple(row.outcome for row in kept),
        messages=tuple(row.message for row in kept),
        originals=_originals(kept),
        problem=str(about.get("problem", "")),
        arch=str(about.get("arch", "")),
        source=_source(str(about.get("source", ""))),
    )


def _source(text: str) -> str:
    """What our own exported trials say of their times; other programs' words for it tell nothing here."""
    return text if set(text.split(", ")) <= set(Source) else ""


def _originals(rows: Sequence[_Row]) -> NDArray[np.int64] | None:
    if not any(row.original for row in rows):
        return None
    numbers = {schedule_key(row.schedule): number for number, row in enumerate(rows)}
    return np.array([numbers.get(row.original, number) for number, row in enumerate(rows)], dtype=np.int64)


def _ordered_as(recording: Recording, t1: T1, path: Path) -> Recording:
    """The recording with the levels and the order of T1 input."""
    if set(t1.values) != set(recording.names):
        odd = sorted(set(t1.values) ^ set(recording.names))
        raise RecordingError(
            f"{path} must have the parameters of its T1 input; these differ: {', '.join(odd)}"
        )
    for number in range(len(recording)):
        broken = t1.broken(recording.schedule(number))
        if broken is not None:
            schedule = recording.schedule(number)
            raise RecordingError(f"{path}: recorded schedules must keep {broken!r}, got {schedule}")
    moved = []
    for name, values in t1.values.items():
        position = recording.names.index(name)
        absent = [value for value in recording.values[position] if value not in values]
        if absent:
            raise RecordingError(f"{path}: {name} must be one of {values} by its T1 input, got {absent[0]}")
        place = np.array([values.index(value) for value in recording.values[position]], dtype=np.int16)
        moved.append(place[recording.levels[:, position]])
    return replace(
        recording,
        kernel=recording.kernel or t1.kernel,
        names=tuple(t1.values),
        values=tuple(t1.values.values()),
        levels=np.stack(moved, axis=1),
    )


def _numbers(schedule: Mapping[str, ParameterValue]) -> dict[str, int]:
    return {name: int(value) for name, value in schedule.items() if isinstance(value, int)}


def _values(text: object) -> list[ParameterValue]:
    """Levels of a T1 parameter: a list, or the text of one."""
    listed = json.loads(text.replace("'", '"')) if isinstance(text, str) else text
    if not isinstance(listed, list) or not all(isinstance(v, int | float | str | bool) for v in listed):
        raise ValueError(f"values must be a list of numbers or texts, got {text!r}")
    return listed


def _order(value: ParameterValue) -> tuple[bool, float, str]:
    is_text = isinstance(value, str)
    return is_text, 0.0 if is_text else float(value), str(value)


def _text(path: Path) -> tuple[str, bool]:
    """Text of a file, and whether its compressed stream had its end."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}; name another file") from None
    try:
        if raw[:2] != b"\x1f\x8b":
            return raw.decode(), True
        try:
            return gzip.decompress(raw).decode(), True
        except EOFError:
            stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            return stream.decompress(raw).decode(errors="ignore"), False
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error) as error:
        raise RecordingError(f"{path} must be JSON text, gzip or not: {error}; name another file") from None


def _document(text: str, path: Path) -> tuple[dict[str, Any], bool]:
    """The JSON object of a file, and whether it had its end.

    An unfinished file has whole lines, each an entry, and lacks its closing braces; its last line may be cut.
    So lines are dropped from the end until the rest parses.
    """
    try:
        return _object(json.loads(text), path), True
    except json.JSONDecodeError as error:
        reason = error
    lines = text.rstrip().splitlines()
    for kept in range(len(lines), max(0, len(lines) - _CUTS), -1):
        start = "\n".join(lines[:kept]).rstrip().rstrip(",")
        for ending in ("", "}", "}}", "]}"):
            try:
                return _object(json.loads(start + ending), path), False
            except json.JSONDecodeError:
                continue
    raise RecordingError(f"{path} is no JSON, nor the start of a Kernel Tuner cache: {reason}")


def _object(document: object, path: Path) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise RecordingError(f"{path} must hold a JSON object, got {type(document).__name__}")
    return document
