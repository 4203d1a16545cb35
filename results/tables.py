"""Rows as Arrow tables, with the column types that `results.schema` fixes."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from results.row import Rank, Row, RowKey, kind_of, rank_of
from results.schema import COLUMNS, FAMILIES, FAMILY_NAMED, FIXED, Kind
from results.trial import Outcome

Kinds = Mapping[str, Kind]

_ARROW: dict[Kind, pa.DataType] = {
    Kind.STRING: pa.string(),
    Kind.INT: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.BOOL: pa.bool_(),
    Kind.TIME: pa.timestamp("us", "UTC"),
    Kind.STRINGS: pa.list_(pa.string()),
    Kind.FLOATS: pa.list_(pa.float64()),
}
_NULLABLE = {Kind.INT: "Int64", Kind.BOOL: "boolean"}  # pandas' own types that have a missing value
_KEYS = ("study", "number", "outcome", "recorded_at")


def kinds_of(schema: pa.Schema) -> dict[str, Kind]:
    """Type of every column of a stored table.

    Raises:
        ValueError: A column is not ours, or not of its type, or a key is missing.
    """
    kinds: dict[str, Kind] = {}
    for column in schema:
        family = FAMILY_NAMED.get(column.name.partition(".")[0])
        allowed = (FIXED[column.name].kind,) if column.name in FIXED else family.kinds if family else ()
        kind = next((kind for kind in allowed if _is_of(column.type, kind)), None)
        if kind is None:
            raise ValueError(f"column {column.name} of type {column.type} is none of this version's")
        kinds[column.name] = kind
    for name in _KEYS:
        if name not in kinds:
            raise ValueError(f"it has no column {name}")
    return kinds


def union(parts: Iterable[Kinds], rows: Iterable[Row]) -> dict[str, Kind]:
    """Type of every column that stored tables and new rows have together; what is stored decides first."""
    merged = {column.name: column.kind for column in COLUMNS}
    for part in parts:
        for name, kind in part.items():
            merged.setdefault(name, kind)
    for row in rows:
        for name, cell in row.items():
            if name not in FIXED:
                kind = _entry_kind(name, cell)
                merged.setdefault(_column_for(name, kind, merged), kind)
    return {name: merged[name] for name in sorted(merged, key=_rank)}


def schema_for(kinds: Kinds) -> pa.Schema:
    """The columns, with a note for pandas, which then reads whole numbers with gaps as whole numbers."""
    nullable = [
        {
            "name": name,
            "field_name": name,
            "pandas_type": str(kind),
            "numpy_type": _NULLABLE[kind],
            "metadata": None,
        }
        for name, kind in kinds.items()
        if kind in _NULLABLE
    ]
    note = {"index_columns": [], "column_indexes": [], "columns": nullable, "pandas_version": "2.2.0"}
    fields = [(name, _ARROW[kind]) for name, kind in kinds.items()]
    return pa.schema(fields, metadata={"pandas": json.dumps(note)})


def table_of(rows: Sequence[Row], kinds: Kinds) -> pa.Table:
    """Rows as a table with exactly these columns."""
    cells: dict[str, list[Any]] = {name: [None] * len(rows) for name in kinds}
    for index, row in enumerate(rows):
        for name, cell in row.items():
            column = name if name in FIXED else _column_for(name, _entry_kind(name, cell), kinds)
            cells[column][index] = cell
    arrays = [pa.array(cells[name], _ARROW[kind]) for name, kind in kinds.items()]
    return pa.Table.from_arrays(arrays, schema=schema_for(kinds))


def widen(table: pa.Table, kinds: Kinds) -> pa.Table:
    """The same rows with these columns, missing where the table had none."""
    names = set(table.column_names)
    columns = [
        table.column(name) if name in names else pa.nulls(len(table), _ARROW[kind])
        for name, kind in kinds.items()
    ]
    return pa.Table.from_arrays(columns, schema=schema_for(kinds))


def ranks_of(table: pa.Table) -> dict[RowKey, tuple[Rank, int]]:
    """For every key, how late its row is (see `results.row.rank_of`), and which row that is."""
    found: dict[RowKey, tuple[Rank, int]] = {}
    columns = (_python(table.column(name)) for name in _KEYS)
    for index, (study, number, outcome, recorded) in enumerate(zip(*columns, strict=True)):
        rank = (outcome != Outcome.STARTED, recorded)
        if (study, number) not in found or rank >= found[study, number][0]:
            found[study, number] = rank, index
    return found


def merge(tables: Sequence[pa.Table], rows: Mapping[RowKey, Row], study: str | None = None) -> pa.Table:
    """One table in which every key has the one row that counts.

    Args:
        tables: What is stored.
        rows: What is not, or not yet.
        study: The only study to keep, None for all.
    """
    if study is not None:
        tables = [table.filter(pc.equal(table.column("study"), study)) for table in tables]
    best: dict[RowKey, tuple[Rank, int, int]] = {}
    for number, table in enumerate(tables):
        for key, (rank, index) in ranks_of(table).items():
            if key not in best or rank >= best[key][0]:
                best[key] = rank, number, index
    added = []
    for key, row in rows.items():
        rank = rank_of(row)
        if study in (None, key[0]) and (key not in best or rank > best[key][0]):
            best.pop(key, None)
            added.append(row)
    kept: list[list[int]] = [[] for _ in tables]
    for _, number, index in best.values():
        kept[number].append(index)
    kinds = union([kinds_of(table.schema) for table in tables], added)
    chosen = [
        table if len(indices) == len(table) else table.take(pa.array(indices, pa.int64()))
        for table, indices in zip(tables, kept, strict=True)
    ]
    return pa.concat_tables([*(widen(table, kinds) for table in chosen), table_of(added, kinds)])


def rows_of(table: pa.Table) -> list[Row]:
    """Every row's cells, missing values left out; times in microseconds since the epoch."""
    rows: list[Row] = [{} for _ in range(len(table))]
    for name in table.column_names:
        for row, cell in zip(rows, _python(table.column(name)), strict=True):
            if cell is not None:
                row[name] = cell
    return rows


def without(table: pa.Table, keys: Iterable[RowKey]) -> pa.Table:
    """The rows of a table that have none of these keys."""
    gone = set(keys)
    studies, numbers = (_python(table.column(name)) for name in ("study", "number"))
    return table.filter(pa.array([key not in gone for key in zip(studies, numbers, strict=True)], pa.bool_()))


def _is_of(arrow: pa.DataType, kind: Kind) -> bool:
    """Whether a column has that type; what the elements of a list are called does not matter."""
    wanted = _ARROW[kind]
    if pa.types.is_list(arrow) and pa.types.is_list(wanted):
        return bool(arrow.value_type == wanted.value_type)
    return bool(arrow == wanted)


def _python(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _rank(name: str) -> tuple[int, str]:
    """Fixed columns in the order of the schema, then families in theirs, each by name."""
    if name in FIXED:
        return list(FIXED).index(name), ""
    families = [family.name for family in FAMILIES]
    return len(FIXED) + families.index(name.partition(".")[0]), name


def _entry_kind(name: str, cell: object) -> Kind:
    return kind_of(cell, FAMILY_NAMED[name.partition(".")[0]].kinds)


def _column_for(name: str, kind: Kind, kinds: Kinds) -> str:
    """Column of a family entry: the plain name unless values of another type have it."""
    return name if kinds.get(name, kind) is kind else f"{name}:{kind}"
