"""A trial as one flat row of named cells, and back. Missing values have no cell."""

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from numbers import Integral, Real
from typing import Any

from results.errors import StoreError
from results.schema import COLUMNS, FAMILIES, FIXED, MARKS, Kind
from results.trial import Measurement, Outcome, Resources, Source, StudyKey, Trial, Verdict

Cell = str | int | float | bool | list[str] | list[float]
Row = dict[str, Cell]
RowKey = tuple[str, int]
Rank = tuple[bool, int]

_INT64 = range(-(2**63), 2**63)
_ENTRY = re.compile(r"[^:\s]+")
_DECODERS: dict[str, Callable[[Any], Any]] = {
    "outcome": Outcome,
    "source": Source,
    "verdict.problems": tuple,
    "times_us": tuple,
    "started_at": lambda micros: micros / 1e6,
    "finished_at": lambda micros: micros / 1e6,
}
_PARTS: dict[str, Callable[..., Any]] = {
    "key": StudyKey,
    "resources": Resources,
    "verdict": Verdict,
    "measurement": Measurement,
}


def key_of(row: Mapping[str, Any]) -> RowKey:
    """What tells a row from every other: its study and its number there."""
    return row["study"], row["number"]


def is_final(row: Mapping[str, Any]) -> bool:
    """Whether the trial has ended; if not, the row is the mark of its start."""
    return bool(row["outcome"] != Outcome.STARTED)


def rank_of(row: Mapping[str, Any]) -> Rank:
    """Of rows with one key the one of the highest rank counts: an end before a mark, then the latest."""
    return is_final(row), row["recorded_at"]


def row_of(trial: Trial, recorded_at: int) -> Row:
    """The cells of a trial.

    Args:
        trial: Any outcome.
        recorded_at: Microseconds since the epoch.

    Raises:
        StoreError: A value has no place in its column; the message names both.
    """
    owners = {"": trial, **{part: getattr(trial, part) for part in _PARTS}}
    row: Row = {}
    for column in COLUMNS:
        owner = owners[column.group]
        if column.path and owner is not None:
            value = getattr(owner, column.attribute)
            if value is not None:
                row[column.name] = _cell(column.name, column.kind, value)
    row["recorded_at"] = recorded_at
    for family in FAMILIES:
        owner = owners[family.group]
        if owner is None:
            continue
        for entry, value in getattr(owner, family.attribute).items():
            name = f"{family.name}.{entry}"
            if not _ENTRY.fullmatch(entry):
                raise StoreError(f"a name in {family.name} must have no colon and no space, got {entry!r}")
            kind = kind_of(value, family.kinds)
            if kind not in family.kinds:
                raise StoreError(f"{name} must be of type {' or '.join(family.kinds)}, got {value!r}")
            row[name] = _cell(name, kind, value)
    return row


def trial_of(row: Mapping[str, Any]) -> Trial:
    """The trial whose cells these are. Family cells may carry the suffix of a clashing type."""
    attributes: dict[str, dict[str, Any]] = {"": {}, **{part: {} for part in _PARTS}}
    families: dict[str, dict[str, Any]] = {}
    for name, cell in row.items():
        column = FIXED.get(name)
        if column is None:
            prefix, _, entry = name.partition(".")
            families.setdefault(prefix, {})[entry.partition(":")[0]] = cell
        elif column.path:
            decode = _DECODERS.get(name)
            attributes[column.group][column.attribute] = decode(cell) if decode else cell
    for family in FAMILIES:
        attributes[family.group][family.attribute] = families.get(family.name, {})
    parts = {part: make(**attributes[part]) for part, make in _PARTS.items() if _is_there(part, row)}
    return Trial(**attributes[""], **parts)


def kind_of(value: object, kinds: tuple[Kind, ...]) -> Kind:
    """Which of a family's types a value has: numbers count as floats where there are no integers."""
    if isinstance(value, bool):
        return Kind.BOOL
    if isinstance(value, Integral) and Kind.INT in kinds:
        return Kind.INT
    return Kind.FLOAT if isinstance(value, Real) else Kind.STRING


def now_micros() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000


def _is_there(part: str, row: Mapping[str, Any]) -> bool:
    return part not in MARKS or MARKS[part] in row


def _cell(name: str, kind: Kind, value: Any) -> Cell:
    try:
        return _CELLS[kind](value)
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{name} must be of type {kind}, got {value!r} ({error})") from None


def _text(value: object) -> str:
    """The text without lone surrogates, which the output of a foreign program can hold and UTF-8 cannot."""
    if not isinstance(value, str):
        raise TypeError(f"it is a {type(value).__name__}")
    return str(value).encode("utf-8", "backslashreplace").decode()


def _integer(value: Any) -> int:
    whole = int(value)
    if whole != value or isinstance(value, bool) or whole not in _INT64:
        raise ValueError("it is no 64-bit integer")
    return whole


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"it is a {type(value).__name__}")
    return value


def _micros(seconds: float) -> int:
    """Whole microseconds; a year that pandas and Python can write."""
    micros = round(seconds * 1e6)
    datetime.fromtimestamp(micros / 1e6, UTC)
    return micros


_CELLS: dict[Kind, Callable[[Any], Cell]] = {
    Kind.STRING: _text,
    Kind.INT: _integer,
    Kind.FLOAT: float,
    Kind.BOOL: _boolean,
    Kind.TIME: _micros,
    Kind.STRINGS: lambda values: [_text(value) for value in values],
    Kind.FLOATS: lambda values: [float(value) for value in values],
}
