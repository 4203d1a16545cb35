"""Which registers hold the same in all lanes of a warp: for stores that one lane makes on behalf of all.

A register keeps under an exchange of lanes l and l^m, for each m of 1, 2, 4, 8, 16, or it may not. Sums (and
extremes) of a register and its butterfly shuffle by m keep under m.
"""

import re

from tuner.mutation.source import Source, Statement
from tuner.mutation.values import definitions

MASKS = frozenset((1, 2, 4, 8, 16))
_REGISTER = re.compile(r"%[a-z]+\d*(?:\.[xyz])?")
_NOT_LANES = ("%ctaid", "%nctaid", "%ntid", "%warpid")
_COMMUTES = ("add", "max", "min")


class Lanes:
    """Masks under which each register of an entry keeps, for blocks that are long in x only."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._definitions = definitions(source)
        self._kept: dict[str, frozenset[int]] = dict.fromkeys(self._definitions, MASKS)
        changed = True
        while changed:
            parted = self._parted()
            changed = False
            for name, statements in self._definitions.items():
                now = self._kept[name]
                for statement in statements:
                    now &= frozenset() if statement.number in parted else self._result(statement)
                if now != self._kept[name]:
                    self._kept[name], changed = now, True

    def kept(self, operand: str) -> frozenset[int]:
        """Masks under which an operand keeps; for a vector or an address those of all its registers."""
        masks = MASKS
        for name in _REGISTER.findall(operand):
            if name.startswith(("%tid", "%laneid")):
                return frozenset()
            if not name.startswith(_NOT_LANES):
                masks &= self._kept.get(name, frozenset())
        return masks

    def one_lane(self, predicate: str) -> bool:
        """Whether a predicate holds in just one lane of every warp: its number is a certain one."""
        statements = self._definitions.get(predicate, [])
        if len(statements) != 1 or not statements[0].opcode.startswith("setp.eq.") or statements[0].guard:
            return False
        test = statements[0]
        lane = self._definitions.get(test.operands[1], [])
        if len(test.parts) != 3 or len(lane) != 1 or not test.operands[2].isdigit():
            return False
        number, defined = int(test.operands[2]), lane[0]
        if defined.opcode != "and.b32" or defined.operands[2] != "31" or not number < 32:
            return False
        return [s.opcode + s.operands[1] for s in self._definitions[defined.operands[1]]] == ["mov.u32%tid.x"]

    def chooses_among_alike(self, predicate: str) -> bool:
        """Whether a predicate only guards stores that are alike, alone or with what is the same for all."""
        for statement in self._source.statements:
            if predicate in statement.operands[1:]:
                rest = [name for name in statement.operands[1:] if name != predicate]
                joined = statement.opcode == "and.pred" or statement.parts[2:-1] == ("and",)
                same = joined and not statement.guard and all(self.kept(name) == MASKS for name in rest)
                if not same or len(self._definitions[statement.operands[0]]) > 1:
                    return False
                if not self.chooses_among_alike(statement.operands[0]):
                    return False
            if statement.guard == predicate and not (self.alike(statement) and not statement.negated):
                return False
        return True

    def alike(self, store: Statement) -> bool:
        """Whether all lanes of a warp that come to a store would store the same to the same place."""
        same = all(self.kept(operand) == MASKS for operand in store.operands)
        return store.parts[0] == "st" and same and store.number not in self._parted()

    def _parted(self) -> set[int]:
        lines: set[int] = set()
        last = len(self._source.lines)
        for statement in self._source.statements:
            if statement.parts[0] not in ("bra", "ret", "exit") or not statement.guard:
                continue
            if self.kept(statement.guard) != MASKS:
                target = self._source.labels.get(statement.operands[0], last) if statement.operands else last
                lines.update(range(min(statement.number, target), max(statement.number, target) + 1))
        return lines

    def _result(self, statement: Statement) -> frozenset[int]:
        head = statement.parts[0]
        sources = statement.operands[1:]
        masks = self.kept(statement.guard) if statement.guard else MASKS
        if head in ("mma", "wmma", "ldmatrix", "atom", "vote", "match", "activemask"):
            return frozenset()
        if head == "shfl":
            return masks & self.kept(sources[0]) if self._shuffle(statement) else frozenset()
        by = int(sources[1], 0) if len(sources) == 2 and sources[1].isdigit() else None
        threads = sources[:1] and self._is_thread(sources[0])
        if threads and by is not None and head in ("shr", "div"):
            width = 1 << min(by, 5) if head == "shr" else by
            return masks & frozenset(m for m in MASKS if 2 * m <= width and width & (width - 1) == 0)
        if threads and by is not None and head == "rem" and by & (by - 1) == 0:
            return masks & frozenset(m for m in MASKS if m >= by)
        if threads and by is not None and head == "and":
            return masks & frozenset(m for m in MASKS if not by & m)
        for source in sources:
            masks &= self.kept(source)
        return masks | self._butterfly(statement)

    def _is_thread(self, register: str) -> bool:
        """Whether a register is the thread's number, or its last bits."""
        if register in ("%tid.x", "%laneid"):
            return True
        statements = self._definitions.get(register, [])
        if len(statements) != 1 or statements[0].guard:
            return False
        (statement,) = statements
        whole = statement.opcode == "mov.u32" or (
            statement.opcode == "and.b32" and statement.operands[2] in ("31", "0x1F")
        )
        return whole and self._is_thread(statement.operands[1])

    def _butterfly(self, statement: Statement) -> frozenset[int]:
        """The mask of a butterfly, for a sum of a register and what its shuffle gave."""
        if statement.parts[0] not in _COMMUTES or len(statement.operands) != 3 or statement.guard:
            return frozenset()
        for one, other in (statement.operands[1:], statement.operands[:0:-1]):
            found = self._definitions.get(other, [])
            mask = self._shuffle(found[0]) if len(found) == 1 else 0
            of_it = mask and found[0].operands[1] == one
            if of_it and self._unchanged(one, found[0].number, statement.number):
                return frozenset((mask,)) | self.kept(one)
        return frozenset()

    def _unchanged(self, register: str, first: int, last: int) -> bool:
        return not any(first < s.number < last for s in self._definitions.get(register, []))

    def _shuffle(self, statement: Statement) -> int:
        """The mask of a butterfly over the whole warp; 0 for anything else."""
        if statement.opcode != "shfl.sync.bfly.b32" or statement.guard:
            return 0
        *_, mask, clamp, members = statement.operands
        whole = int(clamp, 0) == 31 and int(members, 0) & 0xFFFFFFFF == 0xFFFFFFFF
        return int(mask, 0) if whole and mask.isdigit() and int(mask) in MASKS else 0
