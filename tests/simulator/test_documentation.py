"""The table of instructions in the docs is the table of instructions of the simulator."""

from __future__ import annotations

import re
from pathlib import Path

from tuner.simulator.coverage import covered_instructions

PAGE = Path(__file__).parents[2] / "docs" / "simulator.md"


def test_every_instruction_has_a_row_and_every_row_an_instruction() -> None:
    table = PAGE.read_text().split("## Instructions")[1]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(covered_instructions())
