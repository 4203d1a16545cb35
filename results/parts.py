"""The parquet side of the store: parts that plain pandas reads as one data set.

pandas takes the schema of the first part for all of them. So every part has the union of all columns, each
with its fixed type, and where a column appears the older parts are written anew. A part is written aside and
renamed into its place, and a good one is never removed, so a reader finds whole parts at any moment.
"""

import os
import re
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from results.errors import StoreError, StoreWarning
from results.row import Rank, Row, RowKey, key_of, rank_of
from results.rowlog import sync_directory
from results.tables import Kinds, kinds_of, ranks_of, schema_for, table_of, union, widen, without

PART_ROWS = 4096
_PART = re.compile(r"part-(\d{6})\.parquet")
_Identity = tuple[int, int, int]


@dataclass(frozen=True)
class _Summary:
    """What has to be known of a part to decide whether it needs writing anew."""

    identity: _Identity
    kinds: Kinds
    ranks: Mapping[RowKey, Rank]


class PartSet:
    """The parts in one directory."""

    def __init__(self, directory: Path, aside: Path, corrupt: Path) -> None:
        """Name the places; nothing is read yet.

        Args:
            directory: Of the parts.
            aside: Where they are written first, on the same file system.
            corrupt: Where damaged ones are kept; made when it is needed.
        """
        self._directory = directory
        self._aside = aside
        self._corrupt = corrupt
        self._known: dict[Path, _Summary] = {}

    def tables(self) -> list[pa.Table]:
        """The parts in order; damaged ones are named in a warning, moved away and left out."""
        return [table for path in self._paths() if (table := self._read(path)) is not None]

    def keys(self) -> set[RowKey]:
        """Keys of all trials in parts."""
        return {key for summary in self._summaries().values() for key in summary.ranks}

    def add(self, rows: Mapping[RowKey, Row]) -> None:
        """Put rows in, in place of older ones with the same key; with no rows, make sure there is a part.

        Only one process may do this at a time. Killed half way, it leaves every part whole, and the same
        call made again completes it.

        Raises:
            StoreError: A part cannot be written.
        """
        summaries = self._summaries()
        fresh, replaced = _sort_out(rows, summaries)
        kinds = union([summary.kinds for summary in summaries.values()], rows.values())
        names = list(kinds)
        paths = list(summaries)
        room = PART_ROWS - len(summaries[paths[-1]].ranks) if paths else 0
        last, rest = (fresh[:room], fresh[room:]) if room > 0 else ([], fresh)
        for path, summary in summaries.items():
            new = replaced[path] + (last if path == paths[-1] else [])
            if new or list(summary.kinds) != names:
                self._extend(path, new, kinds)
        number = 1 + max((self._number(path) for path in self._paths()), default=-1)
        chunks = [rest[start : start + PART_ROWS] for start in range(0, len(rest), PART_ROWS)]
        for chunk in chunks or ([] if paths else [[]]):
            self._write(self._directory / f"part-{number:06}.parquet", table_of(chunk, kinds))
            number += 1
        sync_directory(self._directory)

    def _paths(self) -> list[Path]:
        return sorted(path for path in self._directory.glob("part-*") if _PART.fullmatch(path.name))

    @staticmethod
    def _number(path: Path) -> int:
        return int(path.stem.removeprefix("part-"))

    def _summaries(self) -> dict[Path, _Summary]:
        known: dict[Path, _Summary] = {}
        for path in self._paths():
            summary = self._known.get(path)
            if summary is None or summary.identity != _identity(path):
                identity = _identity(path)
                table = self._read(path)
                if table is None:
                    continue
                ranks = {key: rank for key, (rank, _) in ranks_of(table).items()}
                summary = _Summary(identity, kinds_of(table.schema), ranks)
            known[path] = summary
        self._known = known
        return known

    def _read(self, path: Path) -> pa.Table | None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None  # moved away by another process, which has said so
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from None
        try:
            # On this thread alone: a process that ends while pyarrow starts its threads is aborted.
            file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False, page_checksum_verification=True)
            table = file.read(use_threads=False)
        except (pa.ArrowException, OSError) as error:
            self._set_aside(path, str(error).partition("\n")[0])
            return None
        try:
            kinds = kinds_of(table.schema)
        except ValueError as error:
            warnings.warn(StoreWarning(f"{path} is of another program ({error}); left alone"), stacklevel=2)
            return None
        return table.select(list(kinds)).cast(schema_for(kinds))

    def _extend(self, path: Path, rows: list[Row], kinds: Kinds) -> None:
        table = self._read(path)
        if table is None:
            raise StoreError(f"{path} changed while it was extended; the trials stay in their row logs")
        kept = widen(without(table, map(key_of, rows)), kinds)
        self._write(path, pa.concat_tables([kept, table_of(rows, kinds)]))

    def _write(self, path: Path, table: pa.Table) -> None:
        temporary = self._aside / f".{path.name}-{secrets.token_hex(4)}"
        try:
            with temporary.open("xb") as file:
                pq.write_table(table, file, write_page_checksum=True)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            reason = error.strerror or str(error)
            raise StoreError(f"cannot write {path}: {reason}; the trials stay in their row logs") from None

    def _set_aside(self, path: Path, reason: str) -> None:
        place = self._corrupt / f"{path.stem}-{secrets.token_hex(4)}{path.suffix}"
        try:
            self._corrupt.mkdir(exist_ok=True)
            os.rename(path, place)
        except FileNotFoundError:
            return
        except OSError as error:
            message = f"{path} is damaged ({reason}), cannot be moved away ({error.strerror}) and is ignored"
        else:
            message = f"{path} is damaged ({reason}); it is kept as {place}, and the rest is read"
        warnings.warn(StoreWarning(message), stacklevel=2)


def _sort_out(
    rows: Mapping[RowKey, Row], summaries: Mapping[Path, _Summary]
) -> tuple[list[Row], dict[Path, list[Row]]]:
    """Rows that are in no part, and for each part the rows that replace one of its own."""
    where = {key: path for path, summary in summaries.items() for key in summary.ranks}
    fresh: list[Row] = []
    replaced: dict[Path, list[Row]] = {path: [] for path in summaries}
    for key, row in rows.items():
        path = where.get(key)
        if path is None:
            fresh.append(row)
        elif rank_of(row) > summaries[path].ranks[key]:
            replaced[path].append(row)
    return fresh, replaced


def _identity(path: Path) -> _Identity:
    """Differs whenever the file was written anew, since every part is a new file."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size
