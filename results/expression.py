"""Integer formulas over problem sizes, written as text so that a frozen entry carries its own.

The language is a small part of Python's: integers, size names, ``+ - * // %``, comparisons, ``and or not``,
and the functions ``min``, ``max`` and ``ceil_div``. Nothing else parses, so a manifest can run no code.
"""

import ast
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType

_NODES = (
    ast.Expression,
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.Call,
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Mod,
    ast.UnaryOp,
    ast.USub,
    ast.Not,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.Compare,
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
)


class ExpressionError(ValueError):
    """A formula that does not parse, or that needs a size it was not given."""


def ceil_div(numerator: int, denominator: int) -> int:
    """Quotient rounded up, for a positive denominator."""
    return -(-numerator // denominator)


_FUNCTIONS = {"min": min, "max": max, "ceil_div": ceil_div}


def evaluate(expression: str, sizes: Mapping[str, int]) -> int:
    """Value of a formula for the given sizes; a comparison gives 0 or 1.

    Args:
        expression: For example ``"ceil_div(m, 128) * ceil_div(n, 128)"``.
        sizes: A value for every name in the formula.

    Raises:
        ExpressionError: The text is outside the language, or names a size that is not given.
    """
    code, names = _compiled(expression)
    missing = names - sizes.keys()
    if missing:
        known = ", ".join(sorted(sizes)) or "none"
        raise ExpressionError(f"{expression!r} needs the size {sorted(missing)[0]!r}; given are: {known}")
    try:
        return int(eval(code, {"__builtins__": {}, **_FUNCTIONS}, dict(sizes)))
    except ZeroDivisionError:
        raise ExpressionError(f"{expression!r} divides by zero for {dict(sizes)}") from None


def names_in(expression: str) -> frozenset[str]:
    """The sizes that a formula needs."""
    return _compiled(expression)[1]


@lru_cache(maxsize=4096)
def _compiled(expression: str) -> tuple[CodeType, frozenset[str]]:
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError as error:
        raise ExpressionError(f"{expression!r} is not a formula: {error.msg}") from None
    names: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise ExpressionError(f"{expression!r} uses {type(node).__name__}, which formulas do not have")
        if isinstance(node, ast.Constant) and type(node.value) is not int:
            raise ExpressionError(f"{expression!r} has {node.value!r}; only integers are allowed")
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS or node.keywords:
                raise ExpressionError(f"{expression!r} calls something other than {', '.join(_FUNCTIONS)}")
        elif isinstance(node, ast.Name):
            names.add(node.id)
    return compile(tree, "<formula>", "eval"), frozenset(names - _FUNCTIONS.keys())
