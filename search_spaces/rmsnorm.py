"""Schedules of `rmsnorm`."""

from emitters.rmsnorm import RmsNormSchedule
from emitters.target import Target
from search_spaces.gemv import registers_fit
from search_spaces.space import Constraint, Parameter, Service, Space

LONG_ROW = 14336
LONGEST_CHAIN = 256

PARAMETERS = (
    Parameter("warps", (1, 2, 4, 8, 16, 32), "power", "warps of a block"),
    Parameter("warps_per_row", (1, 2, 4, 8, 16, 32), "power", "warps that share a row"),
    Parameter("vector", (1, 2, 4), "power", "elements of one load or store"),
    Parameter("unroll", (1, 2, 4), "power", "vectors in flight, and independent sums"),
    Parameter(
        "hold", (0, 1, 2, 4, 8, 16), "ordinal", "vectors kept in registers from the sum to the scaling"
    ),
    Parameter(
        "splits", (1, 2, 4, 8), "power", "blocks that share a row; above 1 the sum is a launch of its own"
    ),
)


def rmsnorm_space(target: Target) -> Space:
    """Every valid schedule of `rmsnorm` on a target."""
    return Space("rmsnorm", PARAMETERS, _CONSTRAINTS, target, service=Service(("vector",), _served))


def _served(vector: int) -> str:
    return RmsNormSchedule(1, 1, vector, 1, 0, 1).valid


def _chain(warps: int, warps_per_row: int, vector: int, unroll: int, hold: int, splits: int) -> int:
    return RmsNormSchedule(warps, warps_per_row, vector, unroll, hold, splits).chain(LONG_ROW)


def _fits_registers(warps: int, vector: int, unroll: int, hold: int, _target: Target) -> bool:
    return registers_fit(RmsNormSchedule(1, 1, vector, unroll, hold, 1).registers, warps)


_CONSTRAINTS = (
    Constraint(
        "whole-groups",
        ("warps", "warps_per_row"),
        lambda warps, warps_per_row, _target: warps % warps_per_row == 0,
        "warps must be a multiple of warps_per_row, so that every warp belongs to a row",
    ),
    Constraint(
        "hold-in-one-launch",
        ("hold", "splits"),
        lambda hold, splits, _target: hold == 0 or splits == 1,
        "registers do not outlive a launch, and a split row takes two",
    ),
    Constraint(
        "registers",
        ("warps", "vector", "unroll", "hold"),
        _fits_registers,
        "what is held and in flight must fit the registers of an SM",
    ),
    Constraint(
        "chain",
        ("warps", "warps_per_row", "vector", "unroll", "hold", "splits"),
        lambda *values: _chain(*values[:-1]) <= LONGEST_CHAIN,
        f"above {LONGEST_CHAIN} additions in a row at n = {LONG_ROW} the error bound hides a lost term",
    ),
)
