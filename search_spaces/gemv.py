"""What the spaces of all matrix-vector products share: rows, warps, splits."""

from collections.abc import Callable

from emitters.target import REGISTERS_PER_SM, REGISTERS_PER_THREAD, WARP, Target
from search_spaces.space import Constraint, Parameter

MOST_WALKERS = 64

WALK_PARAMETERS = (
    Parameter("warps", (1, 2, 4, 8, 16), "power", "warps of a block"),
    Parameter("warps_per_row", (1, 2, 4, 8, 16), "power", "warps that share the same rows"),
    Parameter(
        "splits", (1, 2, 4, 8), "power", "blocks that share the same rows; above 1 a second launch adds them"
    ),
)


def walk_constraints(load: str, units_per_step: Callable[[int], int]) -> tuple[Constraint, ...]:
    """Constraints on `WALK_PARAMETERS`.

    Args:
        load: The parameter that decides how many units a warp takes side by side.
        units_per_step: That number, of the parameter's value.
    """

    def walkers(warps_per_row: int, splits: int, value: int, _target: Target) -> bool:
        return warps_per_row * splits * units_per_step(value) <= MOST_WALKERS

    return (
        Constraint(
            "whole-groups",
            ("warps", "warps_per_row"),
            lambda warps, warps_per_row, _target: warps % warps_per_row == 0,
            "warps must be a multiple of warps_per_row, so that every warp belongs to a group of rows",
        ),
        Constraint(
            "walkers",
            ("warps_per_row", "splits", load),
            walkers,
            f"with more than {MOST_WALKERS} partial sums of a row most have no unit at the usual lengths",
        ),
    )


def registers_fit(registers: int, warps: int) -> bool:
    """Whether a block of so many warps can be resident at all with so many registers a thread."""
    return registers <= min(REGISTERS_PER_THREAD, REGISTERS_PER_SM // (warps * WARP))
