"""What values the 32-bit registers of a kernel can hold: an over-approximation, without running it.

A `Range` holds lo, lo + step, ... up to hi, signed. All definitions of a register are joined, whatever the
order in which they run; what grows without end (a loop counter) keeps its step and nothing else. Sizes are
taken to be at most `LARGEST_SIZE`: beyond that, no operand fits a GPU.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import product

from tuner.mutation.branches import Fact, facts_at
from tuner.mutation.integers import function_of, result_of, signed
from tuner.mutation.loops import counters
from tuner.mutation.source import Source, Statement

LARGEST_SIZE = 1 << 24
_LOW, _HIGH = -(1 << 31), (1 << 31) - 1
_PASSES = 16
_EXACT_PASSES = 4
_MOST_VALUES = 1 << 14


@dataclass(frozen=True, slots=True)
class Range:
    """lo, lo + step, ... <= hi; step 0 for a single value."""

    lo: int
    hi: int
    step: int

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.lo, self.hi + 1, self.step or 1))

    def __len__(self) -> int:
        return (self.hi - self.lo) // (self.step or 1) + 1

    @property
    def is_natural(self) -> bool:
        """Whether signed and unsigned views agree."""
        return self.lo >= 0

    def between(self, lo: int, hi: int) -> list[int]:
        """Its values from lo to hi, and its ends."""
        step = self.step or 1
        first = max(self.lo, self.lo + -(-(lo - self.lo) // step) * step)
        return [self.lo, *range(first, min(hi, self.hi) + 1, step), self.hi]


ANY = Range(_LOW, _HIGH, 1)


def of_step(lo: int, hi: int, step: int) -> Range:
    """A range cut to what it holds; `ANY`, as far as its step allows, where it leaves 32 bits."""
    if lo < _LOW or hi > _HIGH:
        return _widened(Range(lo, hi, step or 1))
    return Range(lo, hi, 0 if lo == hi else step)


def join(one: Range, other: Range) -> Range:
    step = math.gcd(one.step, other.step, abs(one.lo - other.lo))
    return of_step(min(one.lo, other.lo), max(one.hi, other.hi), step)


class Values:
    """Ranges of every 32-bit register of a kernel.

    Args:
        source: Its text.
        sizes: Range of each ``.u32`` entry parameter by name.
        threads: Of a block.
        blocks: The most blocks along each axis.
    """

    def __init__(
        self,
        source: Source,
        sizes: Mapping[str, Range],
        threads: int,
        blocks: Sequence[int] = (LARGEST_SIZE,) * 3,
    ) -> None:
        self._fixed = {"%tid.x": _up_to(threads - 1), "%laneid": Range(0, 31, 1)}
        for axis, most in zip("xyz", blocks, strict=True):
            self._fixed[f"%ctaid.{axis}"] = _up_to(most - 1)
            self._fixed[f"%nctaid.{axis}"] = Range(1, most, 1) if most > 1 else Range(1, 1, 0)
        self._sizes = sizes
        self._counted = counters(source)
        self._defined = definitions(source)
        self._single = _single_definitions(source)
        self.registers: dict[str, Range] = {}
        for turn in range(_PASSES):
            grown = False
            for statement in source.statements:
                grown |= self._enter(statement, widen=turn >= _EXACT_PASSES)
            if not grown:
                return
        self.registers = {}

    def of(self, operand: str) -> Range:
        """Values of an operand."""
        try:
            value = signed(int(operand, 0))
        except ValueError:
            return self._fixed.get(operand) or self.registers.get(operand, ANY)
        return Range(value, value, 0)

    def at(self, source: Source, line: int) -> "Values":
        """What the registers hold at a line, for the branches before it that were not taken."""
        found = copy(self)
        found.registers = dict(self.registers)
        for fact in facts_at(source, line):
            if fact.register in found.registers:
                found.registers[fact.register] = _within(found, fact)
        return found

    def truth(self, predicate: str) -> bool | None:
        """Whether a predicate always holds, or never; None where it may do either."""
        test = self._single.get(predicate)
        if test is None:
            return None
        if test.opcode == "and.pred":
            known = [self.truth(name) for name in test.operands[1:]]
            return False if False in known else (True if known == [True, True] else None)
        if test.parts[0] != "setp" or test.parts[-1] not in ("u32", "s32"):
            return None
        one, other = (self.of(name) for name in test.operands[1:3])
        if test.parts[-1] == "u32" and not (one.is_natural and other.is_natural):
            return None
        known = [_compared(test.parts[1], one, other), *(self.truth(name) for name in test.operands[3:])]
        if test.parts[2:-1] not in ((), ("and",)):
            return None
        return False if False in known else (True if all(known) else None)

    def combinations(self, operands: Sequence[str]) -> Iterator[tuple[int, ...]] | None:
        """Every combination of values of operands; None where there are too many."""
        names = list(dict.fromkeys(operands))
        ranges = [self.of(name) for name in names]
        if math.prod(map(len, ranges)) > _MOST_VALUES:
            return None
        where = [names.index(operand) for operand in operands]
        return (tuple(values[i] for i in where) for values in product(*ranges))

    def _enter(self, statement: Statement, widen: bool) -> bool:
        if not statement.operands or not statement.operands[0].startswith("%r"):
            return self._enter_unknown(statement)
        name = statement.operands[0]
        if name.startswith("%rd"):
            return False
        new = self._counted_on(statement) or self._result(statement)
        old = self.registers.get(name)
        if old is not None:
            new = join(old, new)
        if new == old:
            return False
        if widen:
            new = _widened(new)
        self.registers[name] = new
        return new != old

    def _counted_on(self, statement: Statement) -> Range | None:
        """Values of a loop's counter after its step: another turn is taken only while it keeps its limit."""
        counted = self._counted.get(statement.number)
        if counted is None or statement.parts[-1] not in ("u32", "s32"):
            return None
        others = [s for s in self._defined[counted.register] if s.number != statement.number]
        if not others or any(s.number in self._counted or s.guard for s in others):
            return None
        by, limit = self.of(statement.operands[2]), self.of(counted.limit)
        starts = [self._result(s) for s in others]
        lowest, highest = min(s.lo for s in starts), max(s.hi for s in starts)
        step = math.gcd(by.step, by.lo, *(s.step for s in starts), *(s.lo - lowest for s in starts))
        if by.lo <= 0 or len(by) > 1:
            return None
        short = 0 if counted.comparison in ("le", "ge") else 1  # of the limit
        if statement.parts[0] == "add" and counted.comparison in ("lt", "le"):
            natural = lowest >= 0 and limit.lo >= 0
            if counted.kind == "u32" and not natural:
                return None
            last = max(highest, limit.hi - short)
            return of_step(lowest + by.lo, lowest + (last - lowest) // step * step + by.lo, step)
        if statement.parts[0] == "sub" and counted.comparison in ("gt", "ge") and counted.kind == "s32":
            last = min(lowest, limit.lo + short)
            return of_step(lowest - (lowest - last) // step * step - by.lo, highest - by.lo, step)
        return None

    def _enter_unknown(self, statement: Statement) -> bool:
        """Registers of a vector that is written."""
        if not statement.operands or not statement.operands[0].startswith("{"):
            return False
        if statement.parts[0] in ("st", "red"):
            return False
        for name in statement.operands[0].strip("{}").split(","):
            self.registers[name.strip()] = ANY
        return False

    def _result(self, statement: Statement) -> Range:
        head, sources = statement.parts[0], statement.operands[1:]
        if head == "ld":
            return self._loaded(statement)
        if head == "selp":
            return join(self.of(sources[0]), self.of(sources[1]))
        if function_of(statement) is None:
            return ANY
        if head == "sub" and self._is_remainder(*sources):
            return Range(0, self.of(sources[0]).hi, 1)
        if head == "sub" and (share := self._share(*sources)) is not None:
            return share
        combinations = self.combinations(sources)
        if combinations is not None:
            try:
                return _covering({result_of(statement, values) for values in combinations})
            except ZeroDivisionError:
                return ANY
        return _of_ends(statement, [self.of(source) for source in sources])

    def _is_remainder(self, value: str, product: str) -> bool:
        """Whether ``value - product`` is ``value - value / y * y``, unsigned and of natural values."""
        multiplied = self._single.get(product)
        if multiplied is None or multiplied.opcode not in ("mul.lo.u32", "mul.lo.s32"):
            return False
        for quotient, divisor in (multiplied.operands[1:], multiplied.operands[:0:-1]):
            divided = self._single.get(quotient)
            if divided is None or divided.opcode != "div.u32" or divided.operands[1:] != (value, divisor):
                continue
            if value in self._single and (divisor in self._single or divisor.isdigit()):
                return self.of(value).is_natural
        return False

    def _share(self, end: str, start: str) -> Range | None:
        """Of ``min(a + b, c) - min(a, c)``, the part of b units from a on that lies before c: from 0 to b."""
        upper, lower = self._single.get(end), self._single.get(start)
        if upper is None or lower is None or {upper.opcode, lower.opcode} != {"min.u32"}:
            return None
        for first in lower.operands[1:]:
            for last in upper.operands[1:]:
                total = self._single.get(last)
                rest = {*lower.operands[1:]} - {first}, {*upper.operands[1:]} - {last}
                if total is None or total.opcode != "add.u32" or first not in total.operands[1:]:
                    continue
                natural = all(self.of(name).is_natural for name in (last, *total.operands[1:], *rest[0]))
                more = next((name for name in total.operands[1:] if name != first), first)
                if rest[0] == rest[1] and natural and first in self._single:
                    return Range(0, self.of(more).hi, 1)
        return None

    def _loaded(self, statement: Statement) -> Range:
        parts = statement.parts
        if "param" in parts:
            name = statement.operands[1].strip("[]").removeprefix("param_")
            return self._sizes.get(name, ANY)
        widths = {"u8": Range(0, 255, 1), "u16": Range(0, 65535, 1), "s8": Range(-128, 127, 1)}
        return widths.get(parts[-1], ANY)


def _compared(comparison: str, one: Range, other: Range) -> bool | None:
    """Whether a comparison of any value of one range with any of another always holds, or never."""
    below, above = one.hi < other.lo, one.lo > other.hi
    apart = below or above
    same = one.lo == one.hi == other.lo == other.hi
    outcomes: dict[str, tuple[bool, bool]] = {  # always, never
        "lt": (below, one.lo >= other.hi),
        "le": (one.hi <= other.lo, above),
        "gt": (above, one.hi <= other.lo),
        "ge": (one.lo >= other.hi, below),
        "eq": (same, apart),
        "ne": (apart, same),
    }
    always, never = outcomes.get(comparison, (False, False))
    return True if always else (False if never else None)


def _within(values: Values, fact: Fact) -> Range:
    """The values of a register for which a comparison holds; all where that leaves no range."""
    known, other = values.of(fact.register), values.of(fact.other)
    lo, hi = known.lo, known.hi
    if fact.kind == "u32":
        bounded = known.step <= 1 and fact.comparison in ("lt", "le", "eq")
        if other.lo < 0 or (lo < 0 and not bounded):
            return known
        lo = max(lo, 0)
    if fact.comparison in ("lt", "le", "eq"):
        hi = min(hi, other.hi - (fact.comparison == "lt"))
    if fact.comparison in ("gt", "ge", "eq"):
        lo = max(lo, other.lo + (fact.comparison == "gt"))
    step = known.step or 1
    lo = known.lo + -(-(lo - known.lo) // step) * step
    hi = known.lo + (hi - known.lo) // step * step
    return Range(lo, hi, 0 if lo == hi else step) if lo <= hi else known


def _up_to(last: int) -> Range:
    return Range(0, last, 1 if last > 0 else 0)


def definitions(source: Source) -> dict[str, list[Statement]]:
    """The statements that write each register."""
    found: dict[str, list[Statement]] = {}
    for statement in source.statements:
        if statement.operands and statement.parts[0] not in ("st", "red"):
            for name in re.split(r"[,|]", statement.operands[0].strip("{}")):
                found.setdefault(name.strip(), []).append(statement)
    return found


def _single_definitions(source: Source) -> dict[str, Statement]:
    """The statement that defines a register, where there is only one, and that always."""
    single = {name: each[0] for name, each in definitions(source).items() if len(each) == 1}
    return {name: statement for name, statement in single.items() if not statement.guard}


def _widened(value: Range) -> Range:
    """All 32-bit values that are congruent to these, for a step that survives the wrap."""
    step = math.gcd(value.step, 1 << 31)
    first = _LOW + (value.lo - _LOW) % step
    return Range(first, first + (_HIGH - first) // step * step, step) if step > 1 else ANY


def _covering(values: set[int]) -> Range:
    lo, hi = min(values), max(values)
    return Range(lo, hi, math.gcd(*(value - lo for value in values)))


def _of_ends(statement: Statement, ranges: Sequence[Range]) -> Range:
    """Range of a monotonous instruction, from the ends of its operands'."""
    head = statement.parts[0]
    if head == "mov":
        return ranges[0]
    if head in ("add", "sub"):
        step = math.gcd(ranges[0].step, ranges[1].step)
        one, other = ranges
        if head == "add":
            return of_step(one.lo + other.lo, one.hi + other.hi, step)
        return of_step(one.lo - other.hi, one.hi - other.lo, step)
    if head in ("mul", "mad") or (head == "shl" and len(ranges[1]) == 1 and 0 <= ranges[1].lo < 32):
        factor = ranges[1] if head != "shl" else Range(1 << ranges[1].lo, 1 << ranges[1].lo, 0)
        corners = [a * b for a in (ranges[0].lo, ranges[0].hi) for b in (factor.lo, factor.hi)]
        # a0 + i * s times b0 + j * t: every term but a0 * b0 is a multiple of one of these
        step = math.gcd(ranges[0].step * factor.lo, factor.step * ranges[0].lo, ranges[0].step * factor.step)
        whole = of_step(min(corners), max(corners), step)
        if head != "mad":
            return whole
        more = ranges[2]
        return of_step(whole.lo + more.lo, whole.hi + more.hi, math.gcd(whole.step, more.step))
    if head in ("min", "max"):
        one, other = ranges
        signed = statement.parts[-1].startswith("s") or (one.is_natural and other.is_natural)
        if signed:
            pick = min if head == "min" else max
            step = math.gcd(one.step, other.step, abs(one.lo - other.lo))
            return of_step(pick(one.lo, other.lo), pick(one.hi, other.hi), step)
        naturals = [r for r in ranges if r.is_natural]
        if head == "min" and naturals:
            return Range(0, min(r.hi for r in naturals), 1)
        return ANY
    if head == "and":
        masks = [r.lo for r in ranges if len(r) == 1 and r.lo >= 0]
        return Range(0, masks[0], 1) if masks else ANY
    if head in ("shr", "div") and len(ranges[1]) == 1 and ranges[0].is_natural and ranges[1].lo >= 0:
        by = 1 << ranges[1].lo if head == "shr" else ranges[1].lo
        if by > 0:
            even = ranges[0].step % by == 0 and ranges[0].step > 0
            return Range(ranges[0].lo // by, ranges[0].hi // by, ranges[0].step // by if even else 1)
    if head in ("div", "rem") and all(r.is_natural for r in ranges):
        return Range(0, ranges[0].hi, 1)
    return ANY
