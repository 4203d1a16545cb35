"""The page that documents the columns says what the schema says."""

from pathlib import Path

from results.schema import COLUMNS, FAMILIES, Kind, describe

PAGE = Path(__file__).parents[2] / "docs" / "columns.md"


def test_page_is_that_of_the_schema() -> None:
    assert PAGE.read_text(encoding="utf-8") == describe(), (
        "write it anew: python -m results.schema > docs/columns.md"
    )


def test_every_column_has_a_meaning_and_every_quantity_a_unit() -> None:
    assert all(column.meaning for column in (*COLUMNS, *FAMILIES))
    quantities = [column for column in COLUMNS if column.kind in (Kind.FLOAT, Kind.FLOATS, Kind.TIME)]
    assert len(quantities) > 5
    assert all(column.unit for column in quantities)


def test_names_are_used_once() -> None:
    names = [column.name for column in (*COLUMNS, *FAMILIES)]
    assert len(set(names)) == len(names)
    assert not {column.name.partition(".")[0] for column in COLUMNS} & {family.name for family in FAMILIES}
