"""Mutation operators on the launch plan: grids, block sizes, shared memory, memsets, arguments."""

from collections.abc import Iterator
from dataclasses import replace

from results.plan import KernelStep, LaunchPlan, MemsetStep, Step
from tuner.mutation.mutant import PLAN_LINE, Mutant

NAME = "plan"


def plan_mutants(plan: LaunchPlan) -> list[Mutant]:
    """Every mutant of a plan."""
    found = []
    for number, step in enumerate(plan.steps):
        changes = _memset(step) if isinstance(step, MemsetStep) else _kernel(step)
        for what, new in changes:
            steps = (*plan.steps[:number], *([] if new is None else [new]), *plan.steps[number + 1 :])
            before = f"step {number}: {'memset' if isinstance(step, MemsetStep) else step.entry}"
            found.append(Mutant(NAME, PLAN_LINE, before, what, plan=replace(plan, steps=steps)))
    return found


def _memset(step: MemsetStep) -> Iterator[tuple[str, Step | None]]:
    yield "(deleted)", None
    yield f"byte {step.byte + 1}", replace(step, byte=step.byte + 1)
    for nbytes in (f"({step.nbytes}) // 2", f"({step.nbytes}) - 4"):
        yield f"{nbytes} bytes", replace(step, nbytes=nbytes)


def _kernel(step: KernelStep) -> Iterator[tuple[str, Step]]:
    for axis, formula in enumerate(step.grid):
        others = [] if formula == "1" else [f"max(1, ({formula}) - 1)"]
        others.append(f"({formula}) + 1")
        if "ceil_div" in formula:
            others.append(formula.replace("ceil_div", "floor_div"))
        for other in others:
            a, b, c = (_floored(other) if i == axis else step.grid[i] for i in range(3))
            yield f"grid {'xyz'[axis]} = {other}", replace(step, grid=(a, b, c))
    for shared_bytes in (step.shared_bytes - 16, step.shared_bytes // 2, 0, step.shared_bytes + 16):
        if shared_bytes >= 0 and shared_bytes != step.shared_bytes:
            yield f"{shared_bytes} shared bytes", replace(step, shared_bytes=shared_bytes)
    x, y, z = step.block
    for threads in dict.fromkeys((x // 2, x - 32, 2 * x)):
        if 0 < threads <= 1024 and threads != x:
            yield f"{threads} threads in x", replace(step, block=(threads, y, z))
    for i in range(len(step.arguments)):
        for j in range(i + 1, len(step.arguments)):
            arguments = list(step.arguments)
            arguments[i], arguments[j] = arguments[j], arguments[i]
            if arguments[i] != arguments[j]:
                what = f"arguments {arguments[j]} and {arguments[i]} exchanged"
                yield what, replace(step, arguments=tuple(arguments))


def _floored(formula: str) -> str:
    """A formula whose ``floor_div(a, b)`` is a quotient rounded down, at least 1."""
    while "floor_div(" in formula:
        start = formula.index("floor_div(")
        depth, comma, end = 0, -1, start + len("floor_div")
        for end in range(start + len("floor_div"), len(formula)):
            depth += {"(": 1, ")": -1}.get(formula[end], 0)
            if depth == 1 and formula[end] == ",":
                comma = end
            if depth == 0:
                break
        numerator, denominator = formula[start + len("floor_div(") : comma], formula[comma + 1 : end]
        formula = f"{formula[:start]}max(1, ({numerator}) // ({denominator})){formula[end + 1 :]}"
    return formula
