"""Whether a block past the last one of a grid stores nothing: its first row is no row, and every store asks.

For grids of ``ceil_div(size, rows)`` blocks along x. In the block after the last, ``%ctaid.x * rows`` is at
least the size; comparisons with the size turn out one way, and with them guards and branches.
"""

import re

from tuner.mutation.source import Source, Statement
from tuner.mutation.values import Values, definitions

_STORES = ("st.global", "red", "atom", "st.f", "st.u", "st.b", "wmma.store")
_LOADS = ("ld.global", "cp.async.c", "wmma.load", "prefetch")
_REGISTER = re.compile(r"%[a-z]+\d*(?:\.[xyz])?")


def stores_nothing(source: Source, values: Values, blocks: str) -> bool:
    """Whether no store is reached in the block that follows the last of the grid.

    Loads that are reached must be at addresses that do not depend on the block: those of the last row.

    Args:
        source: Text of one entry.
        values: What its registers hold.
        blocks: Formula of the grid along x.
    """
    match = re.fullmatch(r"ceil_div\((\w+), (\d+)\)", blocks)
    if match is None:
        return False
    block = _Block(source, values, match[1], int(match[2]))
    return block.stores_nothing()


class _Block:
    """What is known in the block past the end.

    `past` are registers that hold the size or more, `spent` those that hold nothing or less (signed), `known`
    the predicates that are settled, `moved` what depends on the block's number.
    """

    def __init__(self, source: Source, values: Values, size: str, rows: int) -> None:
        self._source, self._values, self._rows = source, values, rows
        self._size = {
            s.operands[0]
            for s in source.statements
            if s.opcode == "ld.param.u32" and s.operands[1] == f"[param_{size}]"
        }
        self._single = {name: each[0] for name, each in definitions(source).items() if not each[0].guard}
        self._size &= self._single.keys()
        self._past: set[str] = set()
        self._spent: set[str] = set()
        self._last: set[str] = set()
        self._known: dict[str, bool] = {}
        for statement in source.statements:  # definitions stand before their uses
            if statement.operands and self._single.get(statement.operands[0]) == statement:
                self._enter(statement)
        self._moved = self._dependent()

    def stores_nothing(self) -> bool:
        reached = self._reached()
        facts = self._past | self._spent | self._last | self._size | self._known.keys()
        written = [s.operands[0] for s in reached if s.operands and s.operands[0] in facts]
        if len(set(written)) < len(written):  # a later definition is come to: nothing is known
            return False
        for statement in reached:
            if statement.guard and self._known.get(statement.guard) == statement.negated:  # never done
                continue
            own = "shared" in statement.parts and statement.parts[0] != "cp"
            if statement.opcode.startswith(_STORES) and not own:
                return False
            read = {name for text in statement.operands for name in _REGISTER.findall(text)}
            if statement.opcode.startswith(_LOADS) and not own and read & self._moved:
                return False
        return True

    def _enter(self, statement: Statement) -> None:
        target, *sources = statement.operands
        head = statement.parts[0]
        if self._is_past(statement) and self._values.of(target).is_natural:
            self._past.add(target)
        elif head == "sub" and sources[0] in self._size and sources[1] in self._past:
            self._spent.add(target)
        elif head == "sub" and sources[0] in self._size and sources[1].isdigit() and int(sources[1]) > 0:
            if self._values.of(target).is_natural:
                self._last.add(target)
        elif head == "setp":
            known = self._settled(statement)
            if known is not None:
                self._known[target] = known
        elif statement.opcode == "and.pred" and any(self._known.get(name) is False for name in sources):
            self._known[target] = False
        elif statement.opcode == "or.pred" and any(self._known.get(name) is True for name in sources):
            self._known[target] = True
        elif statement.opcode == "not.pred" and sources[0] in self._known:
            self._known[target] = not self._known[sources[0]]

    def _is_past(self, statement: Statement) -> bool:
        """Whether a statement gives the block's first row or a later one; ranges say that nothing wraps."""
        sources = statement.operands[1:]
        natural = all(self._values.of(source).is_natural for source in sources)
        if statement.parts[-1] not in ("u32", "s32", "b32") or not natural:
            return False
        if statement.parts[0] in ("add", "mov"):
            return any(source in self._past for source in sources)
        if statement.opcode.startswith("mad.lo"):
            return sources[2] in self._past or self._is_first(sources[0], sources[1])
        if statement.opcode.startswith("mul.lo"):
            return self._is_first(sources[0], sources[1])
        return (
            statement.opcode.startswith("shl")
            and sources[1].isdigit()
            and self._is_first(sources[0], str(1 << int(sources[1])))
        )

    def _is_first(self, block: str, rows: str) -> bool:
        defined = self._single.get(block)
        number = defined is not None and (defined.opcode, defined.operands[1]) == ("mov.u32", "%ctaid.x")
        return number and rows.isdigit() and int(rows) >= self._rows

    def _settled(self, statement: Statement) -> bool | None:
        """How a comparison turns out; with ``.and`` and ``.or`` where one side settles it."""
        _, comparison, *how, kind = statement.parts
        one, other, *more = statement.operands[1:]
        known: bool | None = None
        if one in self._past and other in self._size:
            known = {"lt": False, "ge": True}.get(comparison)
        elif one in self._size and other in self._past:
            known = {"gt": False, "le": True}.get(comparison)
        elif one in self._spent and kind == "s32" and other.isdigit():
            least = 0 if comparison in ("gt", "le") else 1
            known = {"gt": False, "ge": False, "le": True, "lt": True}.get(comparison)
            known = known if int(other) >= least else None
        if not how:
            return known
        if how == ["and"] and (known is False or self._known.get(more[0]) is False):
            return False
        if how == ["or"] and (known is True or self._known.get(more[0]) is True):
            return True
        return None

    def _dependent(self) -> set[str]:
        """Registers that depend on the block's number; the last row, as a lesser, does not."""
        moved = {"%ctaid.x"}
        grown = True
        while grown:
            grown = False
            for statement in self._source.statements:
                if not statement.operands or statement.opcode.startswith(
                    (*_STORES, "bra", "bar", "st", "cp")
                ):
                    continue
                reads = {n for text in statement.operands[1:] for n in _REGISTER.findall(text)}
                if not reads & moved or self._is_last_row(statement):
                    continue
                fresh = set(_REGISTER.findall(statement.operands[0])) - moved
                moved |= fresh
                grown |= bool(fresh)
        return moved

    def _is_last_row(self, statement: Statement) -> bool:
        sources = set(statement.operands[1:])
        return statement.opcode == "min.u32" and bool(sources & self._past) and bool(sources & self._last)

    def _reached(self) -> list[Statement]:
        """Statements that the block may come to."""
        by_place = list(self._source.statements)
        places = {statement.number: place for place, statement in enumerate(by_place)}
        after = sorted(places)
        found: set[int] = set()
        left = [0] if by_place else []
        while left:
            place = left.pop()
            if place in found or place >= len(by_place):
                continue
            found.add(place)
            statement = by_place[place]
            taken = None
            if statement.guard in self._known:
                taken = self._known[statement.guard] != statement.negated
            if statement.parts[0] == "bra" and taken is not False:
                line = self._source.labels[statement.operands[0]]
                left.append(next((places[n] for n in after if n > line), len(by_place)))
            ends = statement.parts[0] in ("bra", "ret", "exit") and (not statement.guard or taken is True)
            if not ends:
                left.append(place + 1)
        return [by_place[place] for place in sorted(found)]
