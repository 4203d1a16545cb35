"""What 32-bit integer instructions give, for values as Python has them."""

import math
from collections.abc import Callable, Mapping, Sequence

from tuner.mutation.source import Statement

OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
"""The comparison that holds where another does not."""


def _unsigned(value: int) -> int:
    return value & 0xFFFFFFFF


def signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _shift_right(parts: Sequence[str], value: int, by: int) -> int:
    by = min(_unsigned(by), 32)
    return value >> by if parts[-1].startswith("s") else _unsigned(value) >> by


def _divide(parts: Sequence[str], one: int, other: int) -> int:
    if other == 0:
        raise ZeroDivisionError
    if parts[-1].startswith("u"):
        return _unsigned(one) // _unsigned(other)
    return int(math.copysign(abs(one) // abs(other), one * other)) if one else 0


def _extreme(choose: Callable[[int, int], int]) -> Callable[..., int]:
    def function(parts: Sequence[str], one: int, other: int) -> int:
        unsigned = parts[-1].startswith("u")
        return choose(_unsigned(one), _unsigned(other)) if unsigned else choose(one, other)

    return function


def _extract(parts: Sequence[str], value: int, start: int, length: int) -> int:
    start, length = start & 255, length & 255
    field = (_unsigned(value) >> start) & ((1 << length) - 1) if length else 0
    if parts[-1].startswith("s") and length:
        top = min(start + length - 1, 31)
        if _unsigned(value) >> top & 1:
            field |= -1 << min(length, 32)
    return field


def _insert(_: Sequence[str], field: int, value: int, start: int, length: int) -> int:
    start, length = start & 255, length & 255
    mask = ((1 << length) - 1) << start & 0xFFFFFFFF
    return (_unsigned(field) << start & mask) | (_unsigned(value) & ~mask)


FUNCTIONS: Mapping[str, Callable[..., int]] = {
    "mov": lambda _, one: one,
    "add": lambda _, one, other: one + other,
    "sub": lambda _, one, other: one - other,
    "mul.lo": lambda _, one, other: one * other,
    "mad.lo": lambda _, one, other, more: one * other + more,
    "and": lambda _, one, other: one & other,
    "or": lambda _, one, other: one | other,
    "xor": lambda _, one, other: one ^ other,
    "shl": lambda _, one, by: one << min(_unsigned(by), 32),
    "shr": _shift_right,
    "div": _divide,
    "rem": lambda parts, one, other: one - other * _divide(parts, one, other),
    "min": _extreme(min),
    "max": _extreme(max),
    "bfe": _extract,
    "bfi": _insert,
}
"""What an instruction gives, from signed operands; the result is cut to 32 bits by `result_of`."""


def function_of(statement: Statement) -> Callable[..., int] | None:
    """How to compute a statement; None for one that is not 32-bit integer arithmetic."""
    *name, kind = statement.parts
    if statement.guard or kind not in ("u32", "s32", "b32"):
        return None
    return FUNCTIONS.get(".".join(name))


def result_of(statement: Statement, values: Sequence[int]) -> int:
    """Result of a statement for values of its source operands, signed 32 bits."""
    function = function_of(statement)
    assert function is not None
    return signed(function(statement.parts, *values))
