"""Values that are wrong only where a guard fails, and looked at only where it holds.

A register is set, loaded under a guard, and what comes of it is stored under that guard, all between two
labels: what it was set to is never stored.
"""

import re
from itertools import takewhile

from tuner.mutation.demand import PURE, registers_read
from tuner.mutation.source import Source, Statement
from tuner.mutation.values import definitions

_REGISTER = re.compile(r"%[rfh]\d+")


def never_looked_at(source: Source, start: Statement) -> bool:
    """Whether the constant that an unguarded ``mov`` gives its register reaches no store and no address."""
    if (
        start.parts[0] != "mov"
        or start.guard
        or not re.fullmatch(r"(?:-|0)?[0-9a-fA-FxX]+", start.operands[1])
    ):
        return False
    written = definitions(source)
    first = start.operands[0]
    label = min(
        (line for line in source.labels.values() if line > start.number), default=len(source.lines) + 1
    )
    after = [s for s in source.statements if start.number < s.number < label]
    region = list(takewhile(lambda s: s.parts[0] not in ("bra", "ret", "exit"), after))
    loads = [s for s in written.get(first, []) if s.number != start.number]
    guards = {(s.guard, s.negated) for s in loads}
    if len(guards) != 1 or not all(s.guard and s.parts[0] == "ld" and s in region for s in loads):
        return False
    ((guard, negated),) = guards
    tests = written.get(guard, [])
    if negated or len(tests) != 1 or tests[0] in region:
        return False
    return _stays_behind(source, region, first, loads[-1].number, guard)


def _stays_behind(source: Source, region: list[Statement], first: str, since: int, guard: str) -> bool:
    """Follow a register's values to stores under the guard; anything else that reads them says no."""
    written = definitions(source)
    tainted = {first: since}
    inside = {s.number for s in region}
    for statement in source.statements:
        read = tainted.keys() & set(registers_read(statement))
        if not read:
            continue
        if statement.number not in inside or any(statement.number <= tainted[name] for name in read):
            return False
        if statement.parts[0] == "st" and not statement.negated and _implies(source, statement.guard, guard):
            continue
        target = statement.operands[0]
        if statement.parts[0] not in PURE or statement.parts[0] == "mma" or not _REGISTER.fullmatch(target):
            return False
        if len(written[target]) != 1 or statement.guard:
            return False
        tainted[target] = statement.number
    return not any(_read_before(source, name, line) for name, line in tainted.items())


def _read_before(source: Source, name: str, line: int) -> bool:
    """Whether a register is read by its definition, or before it: what another turn of a loop has left."""
    return any(
        s.number <= line and name in _REGISTER.findall(" ".join(s.operands[1:])) for s in source.statements
    )


def _implies(source: Source, predicate: str, guard: str) -> bool:
    """Whether a predicate holds only where the guard does; it must have been joined to it as it is."""
    if predicate == guard:
        return bool(predicate)
    written = definitions(source)
    tests = written.get(predicate, [])
    if len(tests) != 1 or tests[0].guard or tests[0].opcode != "and.pred":
        return False
    if tests[0].number < written[guard][0].number:
        return False
    return any(_implies(source, name, guard) for name in tests[0].operands[1:])
