"""Why a mutant that lives is no fault: rules that a program checks, in the order in which they are asked.

Each rule takes a `Case` and says yes only where the mutant gives what the kernel gives, for every problem
of sizes up to `values.LARGEST_SIZE`. What none of them proves is tried on many more problems
(`tuner.mutation.judging`).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from emitters.kernel import EmittedKernel, KernelSpec
from results.expression import evaluate
from results.plan import KernelStep
from tuner.mutation.demand import Demand
from tuner.mutation.mutant import Mutant
from tuner.mutation.source import Source, Statement
from tuner.mutation.values import LARGEST_SIZE, Range, Values, function_of, result_of

_SIGN_MATTERS = ("div", "rem", "shr", "min", "max", "mul", "mad", "setp")
_REPEATABLE = ("selp", "min", "max", "and", "or", "mov")
_READS_SHARED = ("ld.shared", "ldmatrix", "st.shared", "atom.shared", "red.shared", "wmma.load")
_SAMPLE_SIZES = range(1, 513)
_MOST_COMPARED = 1 << 16


class Context:
    """A kernel, and what is known of its registers; made once for all mutants of it."""

    def __init__(self, kernel: EmittedKernel, spec: KernelSpec) -> None:
        self.kernel, self.spec = kernel, spec
        self.source = Source.of(kernel.ptx)
        self.by_line = {statement.number: statement for statement in self.source.statements}

    @cached_property
    def values(self) -> Values:
        threads = max(step.threads for step in self.kernel.plan.kernel_steps)
        return Values(self.source, {name: self._size(name) for name in self.spec.sizes}, threads)

    @cached_property
    def demand(self) -> Demand:
        return Demand(self.source)

    def _size(self, name: str) -> Range:
        """The values that limits and the plan leave to a size, from those up to 512."""
        rules = [limit.formula for limit in self.spec.limits if limit.size == name]
        if self._speaks_only_of(self.kernel.plan.valid, name):
            rules.append(self.kernel.plan.valid)
        valid = [v for v in _SAMPLE_SIZES if all(evaluate(rule, {name: v}) for rule in rules)]
        step = min(b - a for a, b in pairwise(valid))
        even = all((v - valid[0]) % step == 0 for v in valid)
        return Range(valid[0], LARGEST_SIZE, step) if even else Range(valid[0], LARGEST_SIZE, 1)

    def _speaks_only_of(self, formula: str, name: str) -> bool:
        words = set(re.findall(r"[a-z_]+", formula)) - {"and", "or", "not", "min", "max", "ceil_div"}
        return words <= {name}


@dataclass(frozen=True)
class Case:
    """A mutant of one statement by another.

    Attributes:
        context: Of the kernel.
        mutant: Itself.
        old: The statement that was changed; None for a change of the plan or of two lines.
        new: What stands there now, one by one.
    """

    context: Context
    mutant: Mutant
    old: Statement | None
    new: tuple[Statement, ...]

    @classmethod
    def of(cls, context: Context, mutant: Mutant) -> "Case":
        if len(mutant.changes) != 1:
            return cls(context, mutant, None, ())
        ((line, texts),) = mutant.changes
        return cls(context, mutant, context.by_line[line], Source.of("\n".join(texts)).statements)

    @property
    def replacement(self) -> Statement | None:
        """The new statement, where one of the same result took the place of the old."""
        if self.old is None or len(self.new) != 1:
            return None
        (new,) = self.new
        same = new.operands[:1] == self.old.operands[:1] and new.guard == self.old.guard
        return new if same and new.negated == self.old.negated else None


Rule = Callable[[Case], bool]


def reason(context: Context, mutant: Mutant) -> str | None:
    """The first rule that proves a mutant equivalent; None where none does."""
    case = Case.of(context, mutant)
    return next((name for name, rule in RULES.items() if rule(case)), None)


def _more_synchronisation(case: Case) -> bool:
    """A barrier, a wait or a commit twice, or a wait for more.

    The second of two barriers in a row orders nothing new. Another commit makes an empty group, which a wait
    counts among those it leaves: it then waits for as many real groups, or for more.
    """
    if case.mutant.operator == "duplicate synchronisation" and case.old is not None:
        return case.old.opcode.startswith(("bar.sync", "bar.warp.sync", "barrier.sync", "cp.async."))
    if case.mutant.operator != "groups waited for" or case.old is None:
        return False
    return int(case.new[0].operands[0]) < int(case.old.operands[0])


def _nothing_left_to_read(case: Case) -> bool:
    """A wait after which no shared memory is touched: the copies that it waits for are never looked at."""
    old = case.old
    if old is None or not old.opcode.startswith("cp.async.wait"):
        return False
    source = case.context.source
    later = [statement for statement in source.statements if statement.number > old.number]
    back = any(
        statement.parts[0] == "bra" and source.labels.get(statement.operands[0], 0) <= old.number
        for statement in later
    )
    return not back and not any(statement.opcode.startswith(_READS_SHARED) for statement in later)


def _spare_shared_memory(case: Case) -> bool:
    """More dynamic shared memory than before, in a kernel that does not ask how much it has."""
    plan, old = case.mutant.plan, case.context.kernel.plan
    if plan is None or len(plan.steps) != len(old.steps) or "smem_size" in case.context.kernel.ptx:
        return False
    return _differ_only(case, "shared_bytes") and all(
        new.shared_bytes >= before.shared_bytes
        for new, before in zip(plan.kernel_steps, old.kernel_steps, strict=True)
    )


def _unread_grid_axis(case: Case) -> bool:
    """Blocks along an axis that the kernel does not look at repeat what others store, and add nothing."""
    plan, old = case.mutant.plan, case.context.kernel.plan
    if plan is None or len(plan.steps) != len(old.steps) or not _differ_only(case, "grid"):
        return False
    text = case.context.kernel.ptx
    if re.search(r"\b(?:red|atom)\.", text):
        return False
    for new, before in zip(plan.kernel_steps, old.kernel_steps, strict=True):
        for axis in range(3):
            looked_at = re.search(rf"%n?ctaid\.{'xyz'[axis]}", text)
            if new.grid[axis] != before.grid[axis] and looked_at:
                return False
    return True


def _differ_only(case: Case, field: str) -> bool:
    plan, old = case.mutant.plan, case.context.kernel.plan
    assert plan is not None
    for new, before in zip(plan.steps, old.steps, strict=True):
        if isinstance(new, KernelStep) and isinstance(before, KernelStep):
            names = ("entry", "grid", "block", "shared_bytes", "arguments")
            if any(getattr(new, name) != getattr(before, name) for name in names if name != field):
                return False
        elif new != before:
            return False
    return True


def _done_twice(case: Case) -> bool:
    """A statement that changes nothing when it is done again."""
    old = case.old
    return (
        old is not None
        and case.new == (*_renumbered(old), *_renumbered(old, 2))
        and old.parts[0] in _REPEATABLE
    )


def _renumbered(statement: Statement, number: int = 1) -> tuple[Statement, ...]:
    return (Statement(number, statement.opcode, statement.operands, statement.guard, statement.negated),)


def _same_value(case: Case) -> bool:
    """The new statement gives the old one's result for every value that its operands can have."""
    old, new = case.old, case.replacement
    if old is None or new is None:
        return False
    if old.parts[0] == "setp":
        return _same_comparison(case.context.values, old, new)
    if _only_sign_differs(old, new) and old.parts[0] in _SIGN_MATTERS:
        return all(case.context.values.of(operand).is_natural for operand in _compared(old))
    return _difference(case) == 0


def _only_sign_differs(old: Statement, new: Statement) -> bool:
    last = {old.parts[-1], new.parts[-1]}
    return old.operands == new.operands and old.parts[:-1] == new.parts[:-1] and last == {"u32", "s32"}


def _compared(statement: Statement) -> tuple[str, ...]:
    """Operands whose sign an instruction looks at."""
    end = {"shr": 2, "mul": 3, "mad": 3}.get(statement.parts[0], 3)
    return statement.operands[1:end]


def _same_comparison(values: Values, old: Statement, new: Statement) -> bool:
    """Both hold for the same values of one register; the constants bound where they can differ."""
    if old.operands[1] != new.operands[1]:
        return False
    constants = [values.of(statement.operands[2]) for statement in (old, new)]
    if any(len(constant) > 1 for constant in constants):
        return False
    turning = [constant.lo for constant in constants]
    known = values.of(old.operands[1])
    unsigned = {statement.parts[2][0] for statement in (old, new)} != {"s"}
    if unsigned and not (known.is_natural and min(turning) >= 0):
        return False
    if max(turning) - min(turning) > _MOST_COMPARED:
        return False
    near = known.between(min(turning) - 1, max(turning) + 1)
    return all(_holds(old, value, turning[0]) == _holds(new, value, turning[1]) for value in near)


def _holds(statement: Statement, one: int, other: int) -> bool:
    comparisons: Mapping[str, bool] = {
        "gt": one > other, "ge": one >= other, "lt": one < other, "le": one <= other,
        "eq": one == other, "ne": one != other,
    }  # fmt: skip
    return comparisons[statement.parts[1]]


def _unread_bits(case: Case) -> bool:
    """The results differ, but only in bits that nothing depends on."""
    old = case.old
    if old is None or not old.operands:
        return False
    difference = _difference(case)
    return difference is not None and difference & case.context.demand.of(old.operands[0]) == 0


def _difference(case: Case) -> int | None:
    """Bits in which the results of the old and the new statement can differ; None where it is not known."""
    old, new = case.old, case.replacement
    if old is None or new is None or not old.operands or not re.fullmatch(r"%r\d+", old.operands[0]):
        return None
    if old.parts[:2] == ("ld", "shared") and old.operands == new.operands:
        width = {frozenset(("u8", "s8")): 8, frozenset(("u16", "s16")): 16}.get(
            frozenset((old.parts[-1], new.parts[-1]))
        )
        return None if width is None else 0xFFFFFFFF << width & 0xFFFFFFFF
    if old.parts[0] == "shr" and _only_sign_differs(old, new):
        by = case.context.values.of(old.operands[2])
        return (0xFFFFFFFF << (32 - by.lo)) & 0xFFFFFFFF if len(by) == 1 and 0 <= by.lo < 32 else None
    if function_of(old) is None or function_of(new) is None:
        return None
    return _computed(case.context.values, old, new)


def _computed(values: Values, old: Statement, new: Statement) -> int | None:
    """Differing bits over all combinations of operand values, or over the low bits that a sum leaves open."""
    split = len(old.operands) - 1
    combinations = values.combinations((*old.operands[1:], *new.operands[1:]))
    if combinations is None:
        return _sums_differ(values, old, new)
    bits = 0
    try:
        for each in combinations:
            bits |= result_of(old, each[:split]) ^ result_of(new, each[split:])
    except ZeroDivisionError:
        return None
    return bits & 0xFFFFFFFF


def _sums_differ(values: Values, old: Statement, new: Statement) -> int | None:
    """x + c and x + d: where the low bits of x are known and neither carries, only those bits differ."""
    if old.parts[0] != "add" or new.parts[0] != "add" or old.operands[1] != new.operands[1]:
        return None
    known = values.of(old.operands[1])
    one, other = values.of(old.operands[2]), values.of(new.operands[2])
    low = (known.step & -known.step) or 1
    if len(one) > 1 or len(other) > 1 or low == 1:
        return None
    first, second = known.lo % low + one.lo, known.lo % low + other.lo
    return (first ^ second) & (low - 1) if first // low == second // low else None


RULES: dict[str, Rule] = {
    "synchronises as much or more": _more_synchronisation,
    "waits for copies that nobody reads": _nothing_left_to_read,
    "spare shared memory": _spare_shared_memory,
    "blocks that repeat others": _unread_grid_axis,
    "changes nothing when done twice": _done_twice,
    "same value for all its operands": _same_value,
    "differs in bits that nobody reads": _unread_bits,
}
"""In order; every name is what the table of `tune mutate` shows."""
