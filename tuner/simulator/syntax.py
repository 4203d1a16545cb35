"""What PTX text is parsed into: operands, instructions, declarations, functions, modules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

MOST_SHOWN = 120
"""Characters of a statement that a message repeats: what is no PTX at all may be one line of megabytes."""


class PtxError(ValueError):
    """PTX that cannot be run: not understood, not supported, or used against its own declarations.

    Attributes:
        line: 1-based line of the PTX text, 0 where no line is to blame.
        text: that line's statement.
        reason: what is wrong with it.
    """

    def __init__(self, reason: str, line: int = 0, text: str = "") -> None:
        self.reason, self.line, self.text = reason, line, " ".join(text.split())
        shown = self.text if len(self.text) <= MOST_SHOWN else f"{self.text[:MOST_SHOWN]}..."
        where = f"PTX line {line}: {shown}: " if line else ""
        super().__init__(f"{where}{reason}")


@dataclass(frozen=True, slots=True)
class Name:
    """A register, special register, variable, function or label: which of them, declarations decide."""

    text: str


@dataclass(frozen=True, slots=True)
class Integer:
    value: int


@dataclass(frozen=True, slots=True)
class Float:
    """A floating-point literal; `0f...` and `0d...` keep every bit in `value`."""

    value: float


@dataclass(frozen=True, slots=True)
class Vector:
    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`; a base of None is an absolute address. `coordinates` belong to tensor copies."""

    base: Name | None
    offset: int
    coordinates: Vector | None = None


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p`, and `-r` where an instruction takes it."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Pair:
    """`p|q`: two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Arguments:
    """A parenthesised list of a `call`."""

    items: tuple[Operand, ...]


Operand: TypeAlias = Name | Integer | Float | Vector | Address | Negated | Pair | Arguments
SINK = Name("_")


class Instruction(NamedTuple):
    """One instruction; `guard` is the predicate register of `@p`, `negated` says `@!p`."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: str | None
    negated: bool
    line: int
    text: str
    scope: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A declaration in a state space (`shared`, `global`, `const`, `local`, `param`), sizes in bytes.

    `nbytes` is 0 for an `extern` array of unknown length. `initial` is the declared value, if any.
    """

    name: str
    space: str
    type: str
    align: int
    nbytes: int
    line: int
    initial: bytes | None = None


@dataclass(slots=True)
class Function:
    """An `.entry` or `.func` with its body."""

    name: str
    is_entry: bool
    line: int
    parameters: list[Variable] = field(default_factory=list)
    results: list[Variable] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    body: list[Instruction] = field(default_factory=list)
    labels: dict[tuple[int, str], int] = field(default_factory=dict)
    required_threads: tuple[int, ...] = ()
    maximum_threads: tuple[int, ...] = ()
    required_cluster: tuple[int, ...] = ()


@dataclass(slots=True)
class Module:
    """A parsed PTX file. `programs` caches what is generated for each entry, so a module is parsed and
    lowered once.
    """

    text: str
    target: str
    version: str
    functions: dict[str, Function]
    variables: dict[str, Variable]
    programs: dict[str, Any] = field(default_factory=dict)

    def entry(self, name: str) -> Function:
        """Return the entry `name`; raise `PtxError` that lists the entries there are."""
        function = self.functions.get(name)
        if function is None or not function.is_entry:
            names = ", ".join(f.name for f in self.functions.values() if f.is_entry) or "none"
            raise PtxError(f"no entry is named {name!r}; the module's entries: {names}")
        return function


TYPE_BYTES = {
    **{f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)},
    **{"b128": 16, "f16": 2, "f32": 4, "f64": 8, "bf16": 2, "f16x2": 4, "bf16x2": 4, "pred": 1},
}
