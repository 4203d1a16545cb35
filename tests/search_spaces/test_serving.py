"""Which schedules are left for a problem: exactly those whose plan may serve it."""

import numpy as np
import pytest

from emitters import KERNELS, kernel_named
from emitters.kernel import Kernel, ProblemError
from emitters.target import Target
from search_spaces import space_for
from search_spaces.space import SpaceError

TARGET = Target.of("sm_89")


def problems_of(kernel: Kernel[object]) -> list[dict[str, int]]:
    """Its usual problems, and each with every size a little smaller, where its limits allow that."""
    found = []
    for usual in kernel.usual_problems[:2]:
        for less in (0, 1, 2, 16, 32, 48):
            try:
                found.append(
                    kernel.spec.problem(*(max(1, size - less) for size in usual.sizes.values())).sizes
                )
            except ProblemError:
                continue
    return found


@pytest.mark.parametrize("name", list(KERNELS))
def test_a_schedule_is_left_exactly_if_its_plan_serves_the_problem(name: str) -> None:
    kernel = kernel_named(name)
    space = space_for(name, TARGET)
    chosen = np.random.default_rng(3).choice(len(space), size=min(30, len(space)), replace=False)
    for sizes in problems_of(kernel):
        left = space.serving(sizes)
        for number in chosen:
            schedule = space.values(int(number))
            plan = kernel.emit(kernel.schedule(schedule), TARGET).plan
            try:
                left.check(schedule)
            except SpaceError:
                assert not plan.is_valid(sizes), (schedule, sizes)
            else:
                assert plan.is_valid(sizes), (schedule, sizes)


def test_a_space_that_serves_all_stays_itself() -> None:
    space = space_for("ternary_gemm_s8", TARGET)
    assert space.serving({"m": 4096, "n": 3456, "k": 1280}) is space
    left = space.serving({"m": 300, "n": 272, "k": 96})
    assert 0 < len(left) < len(space)
    assert left.hash != space.hash


def test_what_cannot_serve_says_why() -> None:
    space = space_for("ternary_gemm_s8", TARGET).serving({"m": 300, "n": 272, "k": 96})
    kernel = kernel_named("gemm")
    schedule = {p.name: getattr(kernel.baseline, p.name) for p in space.parameters}
    space.check(schedule)
    with pytest.raises(
        SpaceError, match="constraint problem: such a schedule cannot serve the problem 300x272x96"
    ):
        space.check({**schedule, "copy_bytes": 16})
