"""Mutation operators on the text of a kernel: each makes every mutant of its kind.

An operator is a generator function from a `Source` to mutants, entered in `OPERATORS` under its name. Changes
that do not parse as PTX are not made: they say nothing about the gate.
"""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

from tuner.mutation.mutant import Mutant
from tuner.mutation.source import Source, Statement

Operator = Callable[[Source], Iterator[Mutant]]
OPERATORS: dict[str, Operator] = {}

_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)")
_ADDRESS = re.compile(r"\[(%\w+)(?:\+(-?\d+))?\]")
_REGISTER = re.compile(r"(%(?:rd|fd|r|f|p|h))(\d+)")
_SYNCHRONISATION = ("bar", "barrier")
_NO_TARGET = ("st", "red", "bra", "ret", "exit", "bar", "barrier", "cp", "membar", "fence")
_COMMUTATIVE = ("add", "and", "or", "xor", "min", "max", "mul")
_OPPOSITES = {
    "add": ("sub",),
    "sub": ("add",),
    "shl": ("shr",),
    "shr": ("shl",),
    "and": ("or", "xor"),
    "or": ("and",),
    "xor": ("and", "or"),
    "min": ("max",),
    "max": ("min",),
    "div": ("rem", "mul.lo"),
    "rem": ("div",),
    "mul": ("add",),
    "ex2": ("lg2",),
    "neg": ("abs",),
    "fma": ("sub",),
}
_COMPARISONS = {
    "gt": ("ge", "lt", "le"),
    "ge": ("gt", "le"),
    "lt": ("le", "gt"),
    "le": ("lt", "ge"),
    "eq": ("ne",),
    "ne": ("eq",),
}
_SIGNS = {"u32": "s32", "s32": "u32", "u8": "s8", "s8": "u8", "u16": "s16", "u64": "s64", "s64": "u64"}
_NO_SIGN = ("mov", "ld", "st", "red", "atom", "cvta", "mma", "wmma", "add", "sub")


def operator(name: str) -> Callable[[Operator], Operator]:
    """Enter an operator in the table."""

    def enter(function: Operator) -> Operator:
        OPERATORS[name] = function
        return function

    return enter


def all_mutants(source: Source) -> dict[str, list[Mutant]]:
    """Every mutant of the text by operator, in the order of the text; no two have the same text."""
    seen: set[tuple[tuple[int, tuple[str, ...]], ...]] = set()
    found: dict[str, list[Mutant]] = {}
    for name, function in OPERATORS.items():
        fresh = [mutant for mutant in function(source) if mutant.changes not in seen]
        seen.update(mutant.changes for mutant in fresh)
        found[name] = list({mutant.changes: mutant for mutant in fresh}.values())
    return found


def _replaced(name: str, old: Statement, *new: Statement) -> Mutant:
    texts = tuple(statement.text for statement in new)
    return Mutant(name, old.number, old.text, " ".join(texts) or "(deleted)", ((old.number, texts),))


def _is_sync(statement: Statement) -> bool:
    """Whether it orders: a barrier, a commit, a wait."""
    return statement.parts[0] in _SYNCHRONISATION or _is_commit(statement) or _is_wait(statement)


def _is_commit(statement: Statement) -> bool:
    return statement.opcode == "cp.async.commit_group"


def _is_wait(statement: Statement) -> bool:
    return statement.opcode in ("cp.async.wait_group", "cp.async.wait_all")


def _is_branch(statement: Statement) -> bool:
    return statement.parts[0] in ("bra", "ret", "exit")


@operator("delete synchronisation")
def delete_synchronisation(source: Source) -> Iterator[Mutant]:
    for statement in source.statements:
        if _is_sync(statement):
            yield _replaced("delete synchronisation", statement)


@operator("duplicate synchronisation")
def duplicate_synchronisation(source: Source) -> Iterator[Mutant]:
    for statement in source.statements:
        if _is_sync(statement):
            yield _replaced("duplicate synchronisation", statement, statement, statement)


@operator("groups waited for")
def groups_waited_for(source: Source) -> Iterator[Mutant]:
    for statement in source.statements:
        if statement.opcode == "cp.async.wait_group":
            groups = int(statement.operands[0])
            for other in (groups - 1, groups + 1, groups + 2):
                if other >= 0:
                    yield _replaced("groups waited for", statement, statement.with_operand(0, str(other)))


@operator("exchange neighbours")
def exchange_neighbours(source: Source) -> Iterator[Mutant]:
    """A statement and the one after it change places, where one of them orders, or feeds the other."""
    for first, second in pairwise(source.statements):
        if second.number != first.number + 1 or _is_branch(first) or _is_branch(second):
            continue
        if _is_sync(first) or _is_sync(second) or _depend(first, second):
            changes = ((first.number, (second.text,)), (second.number, (first.text,)))
            yield Mutant(
                "exchange neighbours", first.number, f"{first.text} {second.text}",
                f"{second.text} {first.text}", changes,
            )  # fmt: skip


def _depend(first: Statement, second: Statement) -> bool:
    """Whether one writes what the other reads or writes."""
    written_first, written_second = _written(first), _written(second)
    return bool(
        written_first & (_read(second) | written_second) or written_second & (_read(first) | written_first)
    )


def _written(statement: Statement) -> set[str]:
    if statement.parts[0] in _NO_TARGET or not statement.operands:
        return set()
    return {match[0] for match in _REGISTER.finditer(statement.operands[0])}


def _read(statement: Statement) -> set[str]:
    start = 0 if statement.parts[0] in _NO_TARGET else 1
    texts = (*statement.operands[start:], statement.guard)
    return {match[0] for text in texts for match in _REGISTER.finditer(text)}


@operator("delete instruction")
def delete_instruction(source: Source) -> Iterator[Mutant]:
    for statement in source.statements:
        if not _is_sync(statement) and statement.parts[0] not in ("ret", "exit"):
            yield _replaced("delete instruction", statement)


@operator("duplicate instruction")
def duplicate_instruction(source: Source) -> Iterator[Mutant]:
    """Only of those that do something twice: stores, copies, updates in place."""
    for statement in source.statements:
        if _is_sync(statement) or _is_branch(statement):
            continue
        if statement.parts[0] in ("red", "atom") or _written(statement) & _read(statement):
            yield _replaced("duplicate instruction", statement, statement, statement)


@operator("constant")
def constant(source: Source) -> Iterator[Mutant]:
    for statement in source.statements:
        if _is_sync(statement) or statement.parts[0] == "cp":
            continue
        for position, text in enumerate(statement.operands):
            if _INTEGER.fullmatch(text):
                for value in _near(int(text, 0)):
                    yield _replaced("constant", statement, statement.with_operand(position, str(value)))


def _near(value: int) -> list[int]:
    """One more, one less, twice, half, a bit more: those that differ, in s32 or u32 if the value is."""
    near = (value + 1, value - 1, 2 * value, value // 2, value + 16)
    return [other for other in dict.fromkeys(near) if other != value and -(1 << 31) <= other < 1 << 32]


@operator("address")
def address(source: Source) -> Iterator[Mutant]:
    for statement in source.statements:
        for position, text in enumerate(statement.operands):
            match = _ADDRESS.fullmatch(text)
            if match is None:
                continue
            offset = int(match[2] or 0)
            others = [offset + 1, offset + 4, offset - 4, offset + 16, offset - 16, 2 * offset]
            for other in dict.fromkeys(others):
                if other != offset:
                    shifted = f"[{match[1]}+{other}]" if other else f"[{match[1]}]"
                    yield _replaced("address", statement, statement.with_operand(position, shifted))


@operator("exchange operands")
def exchange_operands(source: Source) -> Iterator[Mutant]:
    for statement in source.statements:
        kind = statement.parts[0]
        first = 0 if kind in _NO_TARGET else 1
        if kind in ("mma", "ld", "ldmatrix", "cp"):
            continue
        for i in range(first, len(statement.operands)):
            for j in range(i + 1, len(statement.operands)):
                one, other = statement.operands[i], statement.operands[j]
                same = kind in _COMMUTATIVE or (kind in ("mad", "fma") and j == 2)
                same = same or (kind == "setp" and statement.parts[1] in ("eq", "ne"))
                if same or one == other or "[" in one + other or "{" in one + other or "%p" in one + other:
                    continue
                swapped = statement.with_operand(i, other).with_operand(j, one)
                yield _replaced("exchange operands", statement, swapped)


@operator("vector")
def vector(source: Source) -> Iterator[Mutant]:
    """Two registers of a vector change places: in a fragment, in a wide load or store."""
    for statement in source.statements:
        for position, text in enumerate(statement.operands):
            if not text.startswith("{"):
                continue
            items = [item.strip() for item in text[1:-1].split(",")]
            for i in range(len(items)):
                for j in range(i + 1, len(items)):
                    if items[i] != items[j]:
                        others = list(items)
                        others[i], others[j] = items[j], items[i]
                        swapped = "{" + ", ".join(others) + "}"
                        yield _replaced("vector", statement, statement.with_operand(position, swapped))


@operator("register")
def register(source: Source) -> Iterator[Mutant]:
    """A register gives way to its neighbour by number: a result or an operand goes astray."""
    declared = _declared(source)
    for statement in source.statements:
        for position, text in enumerate(statement.operands):
            for match in _REGISTER.finditer(text):
                kind, number = match[1], int(match[2])
                for other in (number - 1, number + 1):
                    if 0 <= other < declared.get(kind, 0):
                        changed = text[: match.start()] + f"{kind}{other}" + text[match.end() :]
                        yield _replaced("register", statement, statement.with_operand(position, changed))


def _declared(source: Source) -> dict[str, int]:
    """How many registers of each kind there are."""
    pattern = re.compile(r"\s*\.reg\s+\.\w+\s+(%\w+)<(\d+)>;")
    matches = (pattern.fullmatch(line) for line in source.lines)
    return {match[1]: int(match[2]) for match in matches if match is not None}


@operator("opcode")
def opcode(source: Source) -> Iterator[Mutant]:
    for statement in source.statements:
        head, _, tail = statement.opcode.partition(".")
        for other in _OPPOSITES.get(head, ()):
            for changed in _opcodes(other, head, tail):
                yield _replaced("opcode", statement, _with_opcode(statement, changed))


def _opcodes(other: str, head: str, tail: str) -> Iterator[str]:
    """The opcode under another name, with the modifiers that it takes."""
    if head == "mul" and other == "add":
        if tail.startswith("lo."):
            yield f"add.{tail.removeprefix('lo.')}"
    elif head == "shl":
        yield f"shr.u{tail.removeprefix('b')}"
    elif head == "shr":
        yield f"shl.b{tail[1:]}"
    elif not (head in ("add", "sub", "div", "min", "max") and tail.startswith(("rn", "rz")) and "." in other):
        yield f"{other}.{tail}"


def _with_opcode(statement: Statement, changed: str) -> Statement:
    return Statement(statement.number, changed, statement.operands, statement.guard, statement.negated)


@operator("comparison")
def comparison(source: Source) -> Iterator[Mutant]:
    for statement in source.statements:
        if statement.parts[0] == "setp":
            for other in _COMPARISONS.get(statement.parts[1], ()):
                changed = ".".join(("setp", other, *statement.parts[2:]))
                yield _replaced("comparison", statement, _with_opcode(statement, changed))


@operator("sign")
def sign(source: Source) -> Iterator[Mutant]:
    """Unsigned for signed, and the other way about, where it makes a difference."""
    for statement in source.statements:
        head, *rest = statement.parts
        narrow_load = head == "ld" and rest and rest[-1] in ("u8", "s8", "u16", "s16")
        equality = head == "setp" and rest[0] in ("eq", "ne")
        low = head in ("mul", "mad") and "lo" in rest
        if (head in _NO_SIGN and not narrow_load) or equality or low or not rest or rest[-1] not in _SIGNS:
            continue
        changed = ".".join((head, *rest[:-1], _SIGNS[rest[-1]]))
        yield _replaced("sign", statement, _with_opcode(statement, changed))


@operator("predicate")
def predicate(source: Source) -> Iterator[Mutant]:
    """A guard negated or dropped."""
    for statement in source.statements:
        if statement.guard:
            opposite = Statement(
                statement.number, statement.opcode, statement.operands, statement.guard, not statement.negated
            )
            yield _replaced("predicate", statement, opposite)
            yield _replaced(
                "predicate", statement, Statement(statement.number, statement.opcode, statement.operands)
            )


@operator("asynchronous copy")
def asynchronous_copy(source: Source) -> Iterator[Mutant]:
    """Another width, the zero-fill dropped, or zeros always."""
    for statement in source.statements:
        if not statement.opcode.startswith(("cp.async.ca", "cp.async.cg")):
            continue
        to, start, width, *size = statement.operands
        narrower = {"16": "8", "8": "4", "4": "8"}[width]
        copied = statement.opcode.replace(".cg.", ".ca.")
        for operands in [(to, start, width), (to, start, width, "0")] if size else []:
            changed = Statement(
                statement.number, statement.opcode, operands, statement.guard, statement.negated
            )
            yield _replaced("asynchronous copy", statement, changed)
        operands = (to, start, narrower)
        changed = Statement(statement.number, copied, operands, statement.guard, statement.negated)
        yield _replaced("asynchronous copy", statement, changed)


@operator("matrix load")
def matrix_load(source: Source) -> Iterator[Mutant]:
    """`.trans` where there is none, none where there is."""
    for statement in source.statements:
        if statement.parts[0] == "ldmatrix":
            changed = (
                statement.opcode.replace(".trans", "")
                if ".trans" in statement.opcode
                else statement.opcode.replace(".shared", ".trans.shared")
            )
            yield _replaced("matrix load", statement, _with_opcode(statement, changed))


@operator("tensor operands")
def tensor_operands(source: Source) -> Iterator[Mutant]:
    """An mma takes the fragment of the next one, or adds to, or leaves its sum in, another accumulator."""
    sums = [statement for statement in source.statements if statement.parts[0] == "mma"]
    for statement, following in pairwise(sums):
        for position in range(4):
            if statement.operands[position] != following.operands[position]:
                changed = statement.with_operand(position, following.operands[position])
                yield _replaced("tensor operands", statement, changed)


@operator("add or store")
def add_or_store(source: Source) -> Iterator[Mutant]:
    """A store instead of an addition in memory, and the other way about."""
    for statement in source.statements:
        if statement.opcode == "red.global.add.s32":
            yield _replaced("add or store", statement, _with_opcode(statement, "st.global.u32"))
        elif statement.opcode == "st.global.u32":
            yield _replaced("add or store", statement, _with_opcode(statement, "red.global.add.s32"))


@operator("narrow access")
def narrow_access(source: Source) -> Iterator[Mutant]:
    """A load or store of half the width, where that is one register."""
    narrower = {"u32": "u16", "b32": "u16", "u16": "u8"}
    for statement in source.statements:
        if statement.parts[0] in ("ld", "st") and "param" not in statement.parts:
            *rest, kind = statement.parts
            if kind in narrower and not rest[-1].startswith("v"):
                changed = ".".join((*rest, narrower[kind]))
                yield _replaced("narrow access", statement, _with_opcode(statement, changed))
