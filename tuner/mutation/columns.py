"""Accumulators of products whose right operand has the same in every column: neighbours hold the same.

Of an m16n8 product a lane holds columns 2t and 2t + 1, of two rows. Where the fragment of B is the same for
all lanes that hold different columns of it (they differ in bits 2 to 4 of their number), and the sums start
alike, both columns stay alike. A GEMV on tensor cores is of that kind.
"""

import re

from tuner.mutation.lanes import Lanes
from tuner.mutation.source import Source, Statement
from tuner.mutation.values import definitions

_COLUMN_LANES = frozenset((4, 8, 16))
_FLOAT = re.compile(r"%f\d+")


class Twins:
    """Registers that hold what another holds, whenever a product is not under way."""

    def __init__(self, source: Source, lanes: Lanes) -> None:
        self._lanes = lanes
        self._definitions = definitions(source)
        products = [s for s in source.statements if s.opcode.startswith("mma.sync.aligned.m16n8")]
        self._first = {two: one for s in products for one, two in _pairs(s.operands[0])}
        grown = True
        while grown:
            wrong = {two for two, one in self._first.items() if not self._alike(one, two)}
            grown = bool(wrong)
            self._first = {two: one for two, one in self._first.items() if two not in wrong}

    def same(self, old: Statement, new: Statement) -> bool:
        """Whether statements differ only in which of two twins they name; all that was written still is."""
        if old.operands[:1] != new.operands[:1]:
            written = [sorted(_FLOAT.findall(statement.operands[0])) for statement in (old, new)]
            if old.parts[0] != "mma" or written[0] != written[1]:
                return False
        return bool(self._first) and self._named(old) == self._named(new)

    def _named(self, statement: Statement) -> tuple[str, ...]:
        renamed = (_FLOAT.sub(lambda m: self._first.get(m[0], m[0]), text) for text in statement.operands)
        return (statement.opcode, statement.guard, str(statement.negated), *renamed)

    def _alike(self, one: str, two: str) -> bool:
        """Whether everything that writes one of them writes the same to the other."""
        mine, others = self._definitions[one], self._definitions[two]
        starts = [
            [s.operands[1] for s in each if s.opcode == "mov.f32" and not s.guard] for each in (mine, others)
        ]
        products = [[s for s in each if s.parts[0] == "mma" and not s.guard] for each in (mine, others)]
        if starts[0] != starts[1] or products[0] != products[1]:
            return False
        if len(starts[0]) + len(products[0]) != len(mine) or len(mine) != len(others):
            return False
        if any(_FLOAT.match(start) for start in starts[0]):
            return False
        return all(self._keeps(product, (one, two)) for product in products[0])

    def _keeps(self, product: Statement, pair: tuple[str, str]) -> bool:
        """Whether a product that writes a pair takes it from a pair that is alike, and all columns are."""
        written = _pairs(product.operands[0])
        if pair not in written:
            return False
        one, two = _pairs(product.operands[3])[written.index(pair)]
        return self._first.get(two) == one and self._lanes.kept(product.operands[2]) >= _COLUMN_LANES


def _pairs(vector: str) -> list[tuple[str, str]]:
    names = _FLOAT.findall(vector)
    return list(zip(names[::2], names[1::2], strict=True)) if len(names) == 4 else []
