"""Which bits of each register of up to 32 bits can matter to anything a kernel does: an over-approximation.

A bit matters if it can change an address, a comparison, a stored byte, or a bit that matters. All uses of a
register count, whatever the order in which they run.
"""

import re
from collections.abc import Callable

from tuner.mutation.source import Source, Statement
from tuner.mutation.values import Values

ALL = 0xFFFFFFFF
_REGISTER = re.compile(r"%[rfh]\d+")
_NO_TARGET = ("st", "red", "cp.", "bra", "bar", "wmma.store", "prefetch")
PURE = (
    "mov", "add", "sub", "mul", "mad", "fma", "min", "max", "neg", "abs", "div", "rem", "and", "or", "xor",
    "not", "shl", "shr", "shf", "bfe", "bfi", "prmt", "lop3", "selp", "cvt", "ex2", "lg2", "rcp", "rsqrt",
    "sqrt", "mma",
)  # fmt: skip
"""Instructions that give values and do nothing else."""

_MASKED = re.compile(r"0[xX][0-9a-fA-F]+|\d+")


class Demand:
    """Bits that matter, by register.

    Args:
        source: Text of one entry.
        values: What its registers hold, where that is known.
    """

    def __init__(self, source: Source, values: Values | None = None) -> None:
        self._statements = source.statements
        self._values = values
        self._multiples = _byte_multiples(source)
        self._bits: dict[str, int] = {}
        grown = True
        while grown:
            grown = False
            for statement in reversed(self._statements):
                for name, bits in self._uses(statement):
                    if bits & ~self._bits.get(name, 0):
                        self._bits[name] = self._bits.get(name, 0) | bits
                        grown = True

    def of(self, register: str) -> int:
        """Mask of the bits of a register that can matter."""
        return self._bits.get(register, 0)

    def unread(self, old: Statement, new: Statement | None) -> bool:
        """Whether only registers that nobody reads change where `new` (or nothing) stands for `old`."""
        if old.parts[0] not in PURE or (new is not None and new.parts[0] not in PURE):
            return False
        before, after = _results(old), _results(new) if new is not None else {}
        if before is None or after is None:
            return False
        changed = {name for name in (*before, *after) if before.get(name) != after.get(name)}
        return not any(self.of(name) for name in changed)

    def _uses(self, statement: Statement) -> list[tuple[str, int]]:
        if self._never_done(statement):
            return []
        if statement.parts[0] == "mma":
            return self._mma_uses(statement)
        targets = _REGISTER.findall(statement.operands[0]) if statement.parts[0] in PURE else []
        if targets and not any(map(self.of, targets)):
            return []
        rule = _RULES.get(statement.parts[0])
        if rule is None or not _REGISTER.fullmatch(statement.operands[0]):
            return [(name, ALL) for name in registers_read(statement)]
        if statement.parts[-1].startswith(("f", "b", "e")) and statement.parts[-1] not in ("b32", "b16"):
            rule = _whole
        wanted = self.of(statement.operands[0])
        found = []
        for position, operand in enumerate(statement.operands[1:]):
            if _REGISTER.fullmatch(operand):
                bits = rule(statement, position, wanted)
                found.append((operand, self._shifted(statement, position, wanted) & bits))
            else:
                found += [(name, ALL if wanted else 0) for name in _REGISTER.findall(operand)]
        return found

    def _never_done(self, statement: Statement) -> bool:
        if self._values is None or not statement.guard:
            return False
        return self._values.truth(statement.guard) is statement.negated

    def _shifted(self, statement: Statement, position: int, wanted: int) -> int:
        """Bits of an operand of ``shf.r.wrap`` for the amounts that it is shifted by; all of another's."""
        if statement.opcode != "shf.r.wrap.b32" or position > 1 or self._values is None:
            return ALL
        amounts = self._values.of(statement.operands[3])
        if len(amounts) > 32:
            return ALL
        bits = 0
        for by in (amount & 31 for amount in amounts):
            bits |= (wanted << by if position == 0 else wanted >> (32 - by)) & ALL
        return bits

    def _mma_uses(self, statement: Statement) -> list[tuple[str, int]]:
        """Rows 0 to 7 of an m16n8 product come of A's first, third ... register, rows 8 to 15 of the others.

        The accumulator's low bits pass through unchanged where all products are multiples of 2^t.
        """
        target, a, b, c = (_REGISTER.findall(operand) for operand in statement.operands)
        exact = statement.parts[-1] == "s32"
        low = (1 << min(self._multiples.get(name, 0) for name in b)) - 1 if exact else 0
        half = len(target) // 2
        found = []
        for part in range(2):
            wanted = 0
            for name in target[part * half : (part + 1) * half]:
                wanted |= self.of(name)
            found += [(name, ALL if wanted & ~low else 0) for name in (*a[part::2], *b)]
        for name, out in zip(c, target, strict=True):
            own = self.of(out)
            found.append((name, own & low | _below(own & ~low) & ~low if exact else ALL if own else 0))
        return found


def _results(statement: Statement) -> dict[str, tuple[object, ...]] | None:
    """What each register that is written comes of; None where not all of them are looked after here."""
    targets = _REGISTER.findall(statement.operands[0])
    if len(targets) != len(re.findall("%", statement.operands[0])) or not targets:
        return None
    guard = (statement.guard, statement.negated, statement.opcode)
    if statement.parts[0] != "mma":
        return {name: (*guard, i, *statement.operands[1:]) for i, name in enumerate(targets)}
    _, a, b, c = (_REGISTER.findall(operand) for operand in statement.operands)
    half = len(targets) // 2
    return {name: (*guard, i % half, *a[i // half :: 2], *b, c[i]) for i, name in enumerate(targets)}


def _byte_multiples(source: Source) -> dict[str, int]:
    """For registers whose every definition masks their bytes: t, where all four are multiples of 2^t."""
    found: dict[str, int] = {}
    for statement in source.statements:
        if not statement.operands or statement.parts[0] in ("st", "red"):
            continue
        for name in _REGISTER.findall(statement.operands[0]):
            zeros = 0
            if statement.parts[0] == "and" and _MASKED.fullmatch(statement.operands[2]):
                mask = int(statement.operands[2], 0)
                zeros = min(_trailing_zeros(mask >> shift & 255) for shift in (0, 8, 16, 24))
            found[name] = min(found.get(name, 8), zeros)
    return found


def _trailing_zeros(byte: int) -> int:
    return 8 if byte == 0 else (byte & -byte).bit_length() - 1


def _below(bits: int) -> int:
    """Every bit up to the highest of these: where carries come from."""
    return (1 << bits.bit_length()) - 1


def registers_read(statement: Statement) -> list[str]:
    """Registers of up to 32 bits that a statement reads, in values and addresses."""
    start = 0 if statement.opcode.startswith(_NO_TARGET) else 1
    return [name for text in statement.operands[start:] for name in _REGISTER.findall(text)]


def _constant(statement: Statement, position: int) -> int | None:
    """Value of a source operand that is written as a number."""
    text = statement.operands[1 + position] if len(statement.operands) > 1 + position else ""
    return int(text, 0) & ALL if re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|\d+)", text) else None


Rule = Callable[[Statement, int, int], int]
"""Bits that matter of a source operand, from the statement, its position and those of the result."""


def _same(_: Statement, __: int, wanted: int) -> int:
    return wanted


def _first(_: Statement, position: int, wanted: int) -> int:
    return wanted if position == 0 or not wanted else ALL


def _carried(_: Statement, __: int, wanted: int) -> int:
    return _below(wanted)


def _and(statement: Statement, position: int, wanted: int) -> int:
    mask = _constant(statement, 1 - position)
    return wanted if mask is None else wanted & mask


def _shl(statement: Statement, position: int, wanted: int) -> int:
    by = _constant(statement, 1)
    if by is None or position:
        return ALL if wanted else 0
    return wanted >> by if by < 32 else 0


def _shr(statement: Statement, position: int, wanted: int) -> int:
    by = _constant(statement, 1)
    if by is None or position or by > 31:
        return ALL if wanted else 0
    sign = 1 << 31 if statement.parts[-1].startswith("s") and wanted >> (31 - by) else 0
    return (wanted << by | sign) & ALL


def _extract(statement: Statement, position: int, wanted: int) -> int:
    start, length = _constant(statement, 1), _constant(statement, 2)
    if start is None or length is None or position:
        return ALL if wanted else 0
    return ((1 << length) - 1) << start & ALL if wanted else 0


def _insert(statement: Statement, position: int, wanted: int) -> int:
    start, length = _constant(statement, 2), _constant(statement, 3)
    if start is None or length is None or position > 1:
        return ALL if wanted else 0
    field = ((1 << length) - 1) << start & ALL
    return (wanted & field) >> start if position == 0 else wanted & ~field


def _selected(statement: Statement, position: int, wanted: int) -> int:
    """``selp``: the values as they are; ``prmt``: the bytes that a constant selector takes."""
    selector = _constant(statement, 2)
    if selector is None or len(statement.parts) > 2:
        return ALL if wanted else 0
    bits = 0
    for byte in range(4):
        nibble = selector >> 4 * byte & 15
        part = wanted >> 8 * byte & 255
        if (nibble & 7) // 4 == position:
            bits |= (0x80 if nibble & 8 and part else part) << 8 * (nibble & 3)
    return bits


def _lop3(statement: Statement, position: int, wanted: int) -> int:
    """Bits at which the table depends on the operand, for what a constant operand leaves of it."""
    table = _constant(statement, 3)
    if table is None:
        return wanted
    bits = 0
    for bit in range(32):
        fixed = {p: value >> bit & 1 for p in range(3) if (value := _constant(statement, p)) is not None}
        rows = [row for row in range(8) if all(row >> (2 - p) & 1 == value for p, value in fixed.items())]
        other = 1 << (2 - position)
        if any((table >> row ^ table >> (row ^ other)) & 1 for row in rows):
            bits |= 1 << bit
    return wanted & bits


def _whole(statement: Statement, position: int, wanted: int) -> int:
    return ALL if wanted else 0


_RULES: dict[str, Rule] = {
    "mov": _same,
    "or": _same,
    "xor": _same,
    "not": _same,
    "selp": _same,
    "and": _and,
    "add": _carried,
    "sub": _carried,
    "mul": _whole,
    "mad": _whole,
    "min": _whole,
    "max": _whole,
    "div": _whole,
    "bfe": _extract,
    "bfi": _insert,
    "shl": _shl,
    "shr": _shr,
    "prmt": _selected,
    "lop3": _lop3,
    "shfl": _first,
    "shf": _whole,
}
