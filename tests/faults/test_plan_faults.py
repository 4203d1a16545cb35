"""Wrong launch plans: the text is right, what is done with it is not."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from planting import found_as, planted_in_plan, with_kernel

from results.plan import LaunchPlan

Change = Callable[[LaunchPlan], LaunchPlan]
PLAN_FAULTS: dict[str, tuple[str, Change, str]] = {
    "memset of C forgotten": ("split", lambda plan: replace(plan, steps=plan.steps[1:]), "uninitialised"),
    "memset of half of C": (
        "split",
        lambda plan: replace(plan, steps=(replace(plan.steps[0], nbytes="2 * m * n"), plan.steps[1])),
        "uninitialised",
    ),
    "memset with ones": (
        "split",
        lambda plan: replace(plan, steps=(replace(plan.steps[0], byte=1), plan.steps[1])),
        "mismatch",
    ),
    "memset after the kernel": ("split", lambda plan: replace(plan, steps=plan.steps[::-1]), "uninitialised"),
    "one tile row too few": (
        "ring",
        lambda plan: with_kernel(plan, grid=("max(1, m // 32) * ceil_div(n, 32)", "1", "1")),
        "mismatch",
    ),
    "one tile column too few": (
        "ring",
        lambda plan: with_kernel(plan, grid=("ceil_div(m, 32) * max(1, n // 32)", "1", "1")),
        "mismatch",
    ),
    "a block too many in the grid": (
        "ring",
        lambda plan: with_kernel(plan, grid=("ceil_div(m, 32) * ceil_div(n, 32) + 1", "1", "1")),
        "out_of_bounds",
    ),
    "half of the shares of k": (
        "split",
        lambda plan: with_kernel(plan, grid=(*plan.steps[1].grid[:2], "1")),
        "mismatch",
    ),
    "sixteen shared bytes too few": (
        "ring",
        lambda plan: with_kernel(plan, shared_bytes=plan.steps[-1].shared_bytes - 32),
        "out_of_bounds",
    ),
    "half of the threads": ("ring", lambda plan: with_kernel(plan, block=(32, 1, 1)), "uninitialised"),
    "sizes n and k exchanged": (
        "ring",
        lambda plan: with_kernel(plan, arguments=("A", "B", "C", "m", "k", "n")),
        "out_of_bounds",
    ),
    "operands A and B exchanged": (
        "ring",
        lambda plan: with_kernel(plan, arguments=("B", "A", "C", "m", "n", "k")),
        "out_of_bounds",
    ),
}


@pytest.mark.parametrize("name", PLAN_FAULTS)
def test_fault_is_found(name: str) -> None:
    schedule, change, how = PLAN_FAULTS[name]
    assert found_as(schedule, planted_in_plan(schedule, change)) == how
