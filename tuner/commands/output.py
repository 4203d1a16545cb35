"""How commands print: rich tables on a terminal, aligned plain lines in a pipe, JSON for programs."""

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import pandas as pd


def json_text(value: Any) -> str:
    """A JSON document."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=str)


def print_json(value: Any) -> None:
    """A JSON document on standard output."""
    typer.echo(json_text(value))


def print_frame(frame: "pd.DataFrame", title: str = "") -> None:
    """A pandas frame as a table."""
    print_table(
        list(frame.columns), [tuple(map(_known, row)) for row in frame.itertuples(index=False)], title
    )


def frame_records(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """A pandas frame as JSON values, missing ones null."""
    names = list(frame.columns)
    return [dict(zip(names, map(_known, row), strict=True)) for row in frame.itertuples(index=False)]


def write_whole(path: Path, text: str) -> None:
    """Write a file aside and rename it, so that it is there whole or not at all.

    Raises:
        RequestError: It cannot be written, or is a directory.
    """
    from tuner.task import RequestError

    if not path.name:
        raise RequestError(f"--output must name a file, got {path}, a directory")
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # where nothing can be written, nothing can be removed
            aside.unlink()
        raise RequestError(f"cannot write {path}: {error.strerror}; name another file") from None


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """A table on standard output; numbers are aligned to the right."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    texts = [[_text(cell) for cell in row] for row in rows]
    right = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
    if console.is_terminal:
        table = Table(title=title or None, title_justify="left")
        for name, is_number in zip(columns, right, strict=True):
            table.add_column(name, justify="right" if is_number else "left", overflow="fold")
        for row in texts:
            table.add_row(*map(_escaped, row))
        console.print(table)
        return
    if title:
        typer.echo(title)
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    for row in (list(columns), *texts):
        cells = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, right, strict=True)
        ]
        typer.echo("  ".join(cells).rstrip())


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _known(cell: Any) -> Any:
    """The cell; None for a missing one."""
    import pandas as pd

    return None if not isinstance(cell, list | tuple | dict) and pd.isna(cell) else cell


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return str(cell).lower()
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
