"""What is known of a kernel whose mutants are asked about, and a mutant as the rules see it."""

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from emitters.kernel import EmittedKernel, KernelSpec
from results.expression import evaluate
from tuner.mutation.columns import Twins
from tuner.mutation.demand import Demand
from tuner.mutation.lanes import Lanes
from tuner.mutation.mutant import Mutant
from tuner.mutation.source import Source, Statement
from tuner.mutation.values import LARGEST_SIZE, Range, Values

_SAMPLE_SIZES = range(1, 513)
_MOST_BLOCKS = ((1 << 31) - 1, 65535, 65535)
"""Along x, y, z: CUDA C++ Programming Guide, technical specifications per compute capability."""


class Context:
    """A kernel, and what is known of the registers of its entries; made once for all mutants of it."""

    def __init__(self, kernel: EmittedKernel, spec: KernelSpec) -> None:
        self.kernel, self.spec = kernel, spec
        self.entries = tuple(Entry(kernel, spec, name, part) for name, part in Source.of(kernel.ptx).entries)

    def entry_at(self, line: int) -> "Entry":
        """The entry that a line belongs to."""
        return next(entry for entry in self.entries if line in entry.by_line)

    def entry_named(self, name: str) -> "Entry":
        return next(entry for entry in self.entries if entry.name == name)


class Entry:
    """One entry of a kernel's text."""

    def __init__(self, kernel: EmittedKernel, spec: KernelSpec, name: str, source: Source) -> None:
        self.kernel, self.spec, self.name, self.source = kernel, spec, name, source
        self.by_line = {statement.number: statement for statement in source.statements}
        self.steps = [step for step in kernel.plan.kernel_steps if step.entry == name]

    @cached_property
    def values(self) -> Values:
        sizes = {name: self._size(name) for name in self.spec.sizes}
        threads = max(step.threads for step in self.steps)
        return Values(self.source, sizes, threads, [self._blocks(axis) for axis in range(3)])

    @cached_property
    def demand(self) -> Demand:
        return Demand(self.source, self.values)

    @cached_property
    def lanes(self) -> Lanes:
        return Lanes(self.source)

    @cached_property
    def twins(self) -> Twins:
        return Twins(self.source, self.lanes)

    def _blocks(self, axis: int) -> int:
        """The most blocks along an axis, where its formula only grows with the sizes."""
        formulas = [step.grid[axis] for step in self.steps]
        if any(set(re.findall(r"[-%]|//", formula)) for formula in formulas):
            return LARGEST_SIZE
        most = dict.fromkeys(self.spec.sizes, LARGEST_SIZE)
        # A mutant may have one more than the kernel.
        return min(max(evaluate(formula, most) for formula in formulas) + 1, _MOST_BLOCKS[axis])

    def _size(self, name: str) -> Range:
        """The values that limits and the plan leave to a size, from those up to 512."""
        rules = [limit.formula for limit in self.spec.limits if limit.size == name]
        rules = [part for rule in (*rules, self.kernel.plan.valid) for part in _conditions(rule)]
        rules = [rule for rule in rules if _speaks_only_of(rule, name)]
        valid = [v for v in _SAMPLE_SIZES if all(evaluate(rule, {name: v}) for rule in rules)]
        most = min(LARGEST_SIZE, *(_most(rule, name) for rule in rules)) if rules else LARGEST_SIZE
        if not valid:
            return Range(1, most, 1)
        step = min((b - a for a, b in pairwise(valid)), default=1)
        even = all((v - valid[0]) % step == 0 for v in valid)
        last = valid[0] + (most - valid[0]) // step * step
        return Range(valid[0], last, step) if even and last > valid[0] else Range(valid[0], most, 1)


def _speaks_only_of(formula: str, name: str) -> bool:
    words = set(re.findall(r"[a-z_]+", formula)) - {"and", "or", "not", "min", "max", "ceil_div"}
    return words <= {name}


def _most(rule: str, name: str) -> int:
    """The largest value that a rule leaves to a size: of ``d <= 256``, of ``d == 64 or d == 80``."""
    bound = re.fullmatch(rf"{name} <= (\d+)", rule)
    if bound is not None:
        return int(bound[1])
    if re.fullmatch(rf"{name} == \d+(?: or {name} == \d+)*", rule):
        return max(map(int, re.findall(r"\d+", rule)))
    return LARGEST_SIZE


def _conditions(formula: str) -> list[str]:
    """The parts of a formula that all have to hold."""
    parts = formula.split(" and ")
    whole = any(part.count("(") != part.count(")") or " or " in part for part in parts)
    return [formula] if whole else parts


@dataclass(frozen=True)
class Case:
    """A mutant of one statement by another.

    Attributes:
        context: Of the kernel.
        mutant: Itself.
        entry: The entry whose text is changed; None for a change of the plan.
        old: The statement that was changed; None for a change of the plan or of two lines.
        new: What stands there now, one by one.
    """

    context: Context
    mutant: Mutant
    entry: Entry | None
    old: Statement | None
    new: tuple[Statement, ...]

    @classmethod
    def of(cls, context: Context, mutant: Mutant) -> "Case":
        entry = context.entry_at(mutant.line) if mutant.changes else None
        if len(mutant.changes) != 1 or entry is None:
            return cls(context, mutant, entry, None, ())
        ((line, texts),) = mutant.changes
        return cls(context, mutant, entry, entry.by_line[line], Source.of("\n".join(texts)).statements)

    @property
    def values(self) -> Values:
        """What registers hold where the statement stands."""
        assert self.old is not None
        return self.here.values.at(self.here.source, self.old.number)

    @property
    def here(self) -> Entry:
        """The entry, of a change of the text."""
        assert self.entry is not None
        return self.entry

    @property
    def replacement(self) -> Statement | None:
        """The new statement, where one of the same result took the place of the old."""
        if self.old is None or len(self.new) != 1:
            return None
        (new,) = self.new
        same = new.operands[:1] == self.old.operands[:1] and new.guard == self.old.guard
        return new if same and new.negated == self.old.negated else None
