"""Loops whose counter is compared before each further turn: what the counter is bounded by.

A loop here is a label and the only branch back to it further down, guarded by a comparison of a register with
another operand that no way through the loop passes over, with nobody branching in between from outside.
"""

from dataclasses import dataclass

from tuner.mutation.integers import OPPOSITE
from tuner.mutation.source import Source, Statement


@dataclass(frozen=True, slots=True)
class Counted:
    """A register that a loop counts with.

    Attributes:
        register: Itself.
        limit: Operand that it is compared with.
        comparison: ``lt``, ``le``, ``gt``, ``ge``, ``eq`` or ``ne``: the loop goes on while it holds.
        kind: ``u32`` or ``s32``.
    """

    register: str
    limit: str
    comparison: str
    kind: str


def counters(source: Source) -> dict[int, Counted]:
    """For the line of each ``add`` or ``sub`` of a loop's counter to itself: what bounds it."""
    found: dict[int, Counted] = {}
    branches = [statement for statement in source.statements if statement.parts[0] == "bra"]
    spans = [
        (start, branch)
        for branch in branches
        if (start := source.labels.get(branch.operands[0], branch.number + 1)) < branch.number
    ]
    for start, back in spans:
        only = [a for a, _ in spans].count(start) == 1
        if not back.guard or not only or _entered_from_outside(source, branches, start, back.number):
            continue
        outer = [(a, b.number) for a, b in spans if a < start and back.number < b.number]
        body = [s for s in source.statements if start < s.number < back.number]
        inner = [(a, b.number) for a, b in spans if start < a and b.number < back.number]
        counted = _condition(source, body, back)
        if counted is None or not all(_starts_anew(source, branches, counted, a, start) for a, _ in outer):
            continue
        for statement in body:
            own = statement.operands[:2] == (counted.register, counted.register)
            nested = any(a < statement.number < b for a, b in inner)
            if own and statement.parts[0] in ("add", "sub") and not nested and not statement.guard:
                found[statement.number] = counted
    return found


def _entered_from_outside(source: Source, branches: list[Statement], start: int, end: int) -> bool:
    return any(
        start < source.labels.get(branch.operands[0], 0) < end and not start < branch.number < end
        for branch in branches
    )


def _starts_anew(source: Source, branches: list[Statement], counted: Counted, outer: int, start: int) -> bool:
    """Whether a turn of an outer loop always gives the counter a start value before the inner loop."""
    targets = {source.labels.get(branch.operands[0], 0) for branch in branches}
    last = max((target for target in targets if outer <= target < start), default=outer)
    return any(
        last < s.number < start and s.operands[:1] == (counted.register,) and not s.guard
        for s in source.statements
    )


def _condition(source: Source, body: list[Statement], back: Statement) -> Counted | None:
    """The comparison that guards the branch back, always made, its register not written after it."""
    tests = [s for s in body if s.operands and s.operands[0] == back.guard]
    if not tests or tests[-1].parts[0] != "setp" or len(tests[-1].parts) != 3 or tests[-1].guard:
        return None
    test = tests[-1]
    _, comparison, kind = test.parts
    if comparison not in OPPOSITE or kind not in ("u32", "s32"):
        return None
    if any(test.number < label < back.number for label in source.labels.values()):
        return None
    _, register, limit = test.operands
    if any(s.number > test.number and s.operands and s.operands[0] == register for s in body):
        return None
    return Counted(register, limit, OPPOSITE[comparison] if back.negated else comparison, kind)
