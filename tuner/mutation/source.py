"""PTX text as a list of statements that can be edited one at a time.

The emitters write one statement a line; only such lines are statements here. Everything else (directives,
labels, comments, braces) is left alone.
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property

_STATEMENT = re.compile(
    r"(?P<indent>\s*)(?:@(?P<negated>!?)(?P<guard>%\w+)\s+)?(?P<opcode>[a-z][\w.:]*)"
    r"(?:\s+(?P<operands>[^;]*\S))?\s*;\s*(?://.*)?"
)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s{}\[\]][^,{}\[\]]*")
_ENTRY = re.compile(r"\s*(?:\.visible\s+)?\.entry\s+([\w$]+)")
_LABEL = re.compile(r"\s*([\w$]+):\s*(?://.*)?")


@dataclass(frozen=True, slots=True)
class Statement:
    """One instruction as written.

    Attributes:
        number: 1-based line of the text.
        opcode: With all its modifiers.
        operands: Texts, vectors and addresses whole.
        guard: Predicate register of ``@%p``; empty for none.
        negated: Whether the guard is ``@!%p``.
    """

    number: int
    opcode: str
    operands: tuple[str, ...]
    guard: str = ""
    negated: bool = False

    @property
    def text(self) -> str:
        """As PTX, without indentation."""
        guard = f"@{'!' if self.negated else ''}{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode}{' ' if self.operands else ''}{', '.join(self.operands)};"

    @property
    def parts(self) -> tuple[str, ...]:
        """The opcode at its dots: ``("setp", "gt", "s32")``."""
        return tuple(self.opcode.split("."))

    def with_operand(self, position: int, text: str) -> "Statement":
        operands = list(self.operands)
        operands[position] = text
        return replace(self, operands=tuple(operands))


@dataclass(frozen=True)
class Source:
    """A PTX text.

    Attributes:
        lines: As they are, without line ends.
    """

    lines: tuple[str, ...]

    @classmethod
    def of(cls, ptx: str) -> "Source":
        return cls(tuple(ptx.split("\n")))

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """Every instruction, in the order of the text."""
        found = []
        for number, line in enumerate(self.lines, 1):
            match = _STATEMENT.fullmatch(line)
            if match is not None:
                operands = tuple(text.strip() for text in _OPERAND.findall(match["operands"] or ""))
                found.append(
                    Statement(
                        number, match["opcode"], operands, match["guard"] or "", match["negated"] == "!"
                    )
                )
        return tuple(found)

    @cached_property
    def labels(self) -> dict[str, int]:
        """Line of each label."""
        matches = ((number, _LABEL.fullmatch(line)) for number, line in enumerate(self.lines, 1))
        return {match[1]: number for number, match in matches if match is not None}

    @cached_property
    def entries(self) -> tuple[tuple[str, "Source"], ...]:
        """Each entry's name and a text that has only its lines, at their numbers."""
        matches = ((number, _ENTRY.match(line)) for number, line in enumerate(self.lines))
        starts = [(number, match[1]) for number, match in matches if match is not None]
        ends = [*(number for number, _ in starts[1:]), len(self.lines)]
        found = []
        for (start, name), end in zip(starts, ends, strict=True):
            blank = ("",) * start
            found.append((name, Source((*blank, *self.lines[start:end]))))
        return tuple(found)

    def with_lines(self, changes: dict[int, tuple[str, ...]]) -> str:
        """The text with lines replaced, each by any number of others."""
        lines: list[str] = []
        for number, line in enumerate(self.lines, 1):
            if number in changes:
                indent = line[: len(line) - len(line.lstrip())]
                lines += [indent + text for text in changes[number]]
            else:
                lines.append(line)
        return "\n".join(lines)
