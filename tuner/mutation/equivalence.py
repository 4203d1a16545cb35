"""Why a mutant that lives is no fault: rules that a program checks, in the order in which they are asked.

Each rule takes a `Case` and says yes only where the mutant gives what the kernel gives, for every problem
of sizes up to `values.LARGEST_SIZE`. What none of them proves is tried on many more problems
(`tuner.mutation.judging`).
"""

import re
from collections.abc import Callable, Mapping

from results.plan import KernelStep
from tuner.mutation.context import Case, Context, Entry
from tuner.mutation.guarded import never_looked_at
from tuner.mutation.identities import form
from tuner.mutation.integers import function_of, result_of
from tuner.mutation.mutant import Mutant
from tuner.mutation.past_the_end import stores_nothing
from tuner.mutation.source import Statement
from tuner.mutation.values import Values

_SIGN_MATTERS = ("div", "rem", "shr", "min", "max", "mul", "mad", "setp", "cvt")
_REPEATABLE = ("selp", "min", "max", "and", "or", "mov")
_READS_SHARED = ("ld.shared", "ldmatrix", "st.shared", "atom.shared", "red.shared", "wmma.load")
_LOADED: Mapping[frozenset[str], int] = {
    frozenset(("u8", "s8")): 0xFFFFFF00,
    frozenset(("u16", "s16")): 0xFFFF0000,
    frozenset(("u32", "u16")): 0xFFFF0000,
    frozenset(("b32", "u16")): 0xFFFF0000,
    frozenset(("u16", "u8")): 0xFFFFFF00,
}
"""Bits of a register in which loads of two types from one address can differ."""

_MOST_COMPARED = 1 << 16


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
    source = case.here.source
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
    changes = _grid_changes(case)
    for entry, axis, _, _ in changes:
        text = "\n".join(entry.source.lines)
        if re.search(r"\b(?:red|atom)\.", text) or re.search(rf"%n?ctaid\.{'xyz'[axis]}", text):
            return False
    return bool(changes)


def _past_the_end(case: Case) -> bool:
    """One block more than there is work for, which finds that out before it stores anything."""
    changes = _grid_changes(case)
    if not changes or "%nctaid" in case.context.kernel.ptx:
        return False
    return all(
        axis == 0 and new == f"({old}) + 1" and stores_nothing(entry.source, entry.values, old)
        for entry, axis, old, new in changes
    )


def _grid_changes(case: Case) -> list[tuple[Entry, int, str, str]]:
    """Entry, axis, old and new formula of each change, where a mutant changes nothing but grids."""
    plan, old = case.mutant.plan, case.context.kernel.plan
    if plan is None or len(plan.steps) != len(old.steps) or not _differ_only(case, "grid"):
        return []
    return [
        (case.context.entry_named(before.entry), axis, before.grid[axis], new.grid[axis])
        for new, before in zip(plan.kernel_steps, old.kernel_steps, strict=True)
        for axis in range(3)
        if new.grid[axis] != before.grid[axis]
    ]


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


def _guard_settled(case: Case) -> bool:
    """A guard that always holds, dropped; or any change of a statement whose guard never does."""
    old = case.old
    if old is None or not old.guard:
        return False
    holds = case.here.values.truth(old.guard)
    if holds is None:
        return False
    if holds is old.negated:  # never done
        return all((s.guard, s.negated) == (old.guard, old.negated) for s in case.new)
    bare = len(case.new) == 1 and not case.new[0].guard
    return bare and (case.new[0].opcode, case.new[0].operands) == (old.opcode, old.operands)


def _never_looked_at(case: Case) -> bool:
    """Another constant, or none, in a register that is loaded over wherever anything comes of it."""
    old = case.old
    if old is None or len(case.new) > 1 or not old.operands:
        return False
    if case.new and (case.replacement is None or not never_looked_at(case.here.source, case.new[0])):
        return False
    return never_looked_at(case.here.source, old)


def _all_lanes_alike(case: Case) -> bool:
    """A store for which one lane stands in: other lanes of its warp store the same to the same place.

    Its guard is dropped or negated, or the comparison behind it chooses other lanes.
    """
    old, new = case.old, case.replacement
    if old is None:
        return False
    lanes, steps = case.here.lanes, case.here.steps
    if any(step.block[1:] != (1, 1) or step.block[0] % 32 for step in steps):
        return False
    if case.mutant.operator == "predicate":
        return not old.negated and lanes.one_lane(old.guard) and lanes.alike(old)
    if new is None or old.parts[0] != "setp" or not lanes.one_lane(old.operands[0]):
        return False
    others = new.opcode == old.opcode.replace(".eq.", ".ne.") and new.operands == old.operands
    another = new.opcode == old.opcode and new.operands[:2] == old.operands[:2]
    another = another and new.operands[2].isdigit() and int(new.operands[2]) < 32
    return (others or another) and lanes.chooses_among_alike(old.operands[0])


def _column_alike(case: Case) -> bool:
    """Another column of a product whose columns are all the same."""
    if case.old is None or len(case.new) != 1:
        return False
    return case.here.twins.same(case.old, case.new[0])


def _same_form(case: Case) -> bool:
    """The same by the rules of arithmetic: ``x / 1`` and ``x * 1``; a constant's byte that is another's."""
    return case.old is not None and case.replacement is not None and form(case.old) == form(case.replacement)


def _same_value(case: Case) -> bool:
    """The new statement gives the old one's result for every value that its operands can have."""
    old, new = case.old, case.replacement
    if old is None or new is None:
        return False
    values = case.values
    if _only_sign_differs(old, new) and old.parts[0] in _SIGN_MATTERS:
        natural = all(values.of(operand).is_natural for operand in _compared(old))
        if natural or old.parts[0] != "setp":
            return natural
    if old.parts[0] == "setp":
        return _same_comparison(values, old, new)
    return _difference(case) == 0


def _only_sign_differs(old: Statement, new: Statement) -> bool:
    last = {old.parts[-1], new.parts[-1]}
    return old.operands == new.operands and old.parts[:-1] == new.parts[:-1] and last == {"u32", "s32"}


def _compared(statement: Statement) -> tuple[str, ...]:
    """Operands whose sign an instruction looks at."""
    end = {"shr": 2, "cvt": 2}.get(statement.parts[0], 3)
    return statement.operands[1:end]


def _same_comparison(values: Values, old: Statement, new: Statement) -> bool:
    """Both hold for the same values of one register; the constants bound where they can differ."""
    same = (old.operands[1], old.operands[3:], old.parts[2:-1])
    if same != (new.operands[1], new.operands[3:], new.parts[2:-1]):
        return False
    constants = [values.of(statement.operands[2]) for statement in (old, new)]
    if any(len(constant) > 1 for constant in constants):
        return False
    turning = [constant.lo for constant in constants]
    known = values.of(old.operands[1])
    unsigned = {statement.parts[-1][0] for statement in (old, new)} != {"s"}
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
    old, demand = case.old, case.here.demand if case.entry is not None else None
    if old is None or demand is None or not old.operands:
        return False
    if len(case.new) <= 1 and demand.unread(old, case.new[0] if case.new else None):
        return True
    difference = _difference(case)
    return difference is not None and difference & demand.of(old.operands[0]) == 0


def _difference(case: Case) -> int | None:
    """Bits in which the results of the old and the new statement can differ; None where it is not known."""
    old, new = case.old, case.replacement
    if old is None or new is None or not old.operands or not re.fullmatch(r"%[rh]\d+", old.operands[0]):
        return None
    values = case.values
    if old.parts[0] == "ld" and old.operands == new.operands and old.parts[:-1] == new.parts[:-1]:
        bits = _LOADED.get(frozenset((old.parts[-1], new.parts[-1])))
        return bits & 0xFFFF if bits is not None and old.operands[0].startswith("%h") else bits
    if old.parts[0] == "shr" and _only_sign_differs(old, new):
        by = values.of(old.operands[2])
        return (0xFFFFFFFF << (32 - by.hi)) & 0xFFFFFFFF if by.lo >= 0 and by.hi < 32 else None
    if function_of(old) is None or function_of(new) is None:
        return None
    return _computed(values, old, new)


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
    "blocks past the end, which store nothing": _past_the_end,
    "changes nothing when done twice": _done_twice,
    "the same by arithmetic": _same_form,
    "same value for all its operands": _same_value,
    "a guard that always holds, or never": _guard_settled,
    "stored only where it is loaded over": _never_looked_at,
    "stored alike by every lane of a warp": _all_lanes_alike,
    "another column of a product whose columns are the same": _column_alike,
    "differs in bits that nobody reads": _unread_bits,
}
"""In order; every name is what the table of `tune mutate` shows."""
