"""What the branches before a statement say of the values that it meets: those that were not taken."""

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.mutation.integers import OPPOSITE
from tuner.mutation.source import Source, Statement

_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


@dataclass(frozen=True, slots=True)
class Fact:
    """A comparison that holds: ``register comparison other``, of the kind ``u32`` or ``s32``."""

    register: str
    comparison: str
    other: str
    kind: str


def facts_at(source: Source, line: int) -> list[Fact]:
    """Comparisons that hold at a line, from tests and branches since the last label before it."""
    start = max((label for label in source.labels.values() if label < line), default=0)
    before = [s for s in source.statements if start < s.number < line]
    found: list[Fact] = []
    for branch in before:
        if branch.parts[0] == "bra" and branch.guard:
            found += _implied(before, branch.guard, branch.negated, branch.number, line)
    return found


def _implied(before: list[Statement], predicate: str, value: bool, at: int, line: int) -> Iterator[Fact]:
    """What follows from a predicate's value at a line, and still holds at a later one."""
    written = [s for s in before if s.operands[:1] == (predicate,)]
    if len(written) != 1 or written[0].guard or written[0].number > at:
        return
    (test,) = written
    if test.opcode == "not.pred":
        yield from _implied(before, test.operands[1], not value, test.number, line)
    if test.opcode == "and.pred" and value:
        for name in test.operands[1:]:
            yield from _implied(before, name, True, test.number, line)
    if test.parts[0] != "setp" or test.parts[-1] not in ("u32", "s32") or test.parts[1] not in OPPOSITE:
        return
    _, comparison, *how, kind = test.parts
    if how and (how != ["and"] or not value):
        return
    for name in test.operands[3:]:
        yield from _implied(before, name, True, test.number, line)
    one, other = test.operands[1:3]
    changed = {s.operands[0] for s in before if s.number > test.number and s.operands}
    if any(name in text for text in changed for name in (one, other) if name.startswith("%")):
        return
    holds = comparison if value else OPPOSITE[comparison]
    yield Fact(one, holds, other, kind)
    yield Fact(other, _MIRRORED[holds], one, kind)
