"""Schedules of `q4k_gemv`."""

from emitters.q4k_gemv import Q4KGemvSchedule
from emitters.target import Target
from search_spaces.gemv import WALK_PARAMETERS, registers_fit, walk_constraints
from search_spaces.space import Constraint, Parameter, Space

PARAMETERS = (
    *WALK_PARAMETERS,
    Parameter("rows_per_warp", (1, 2, 4), "power", "rows that a warp sums at once, sharing the loads of x"),
    Parameter("load_bytes", (4, 8, 16), "power", "nibble bytes that a lane loads from one block at once"),
    Parameter("unroll", (1, 2, 4), "power", "blocks that a lane has in registers at once"),
    Parameter("stages", (1, 2, 3, 4), "ordinal", "blocks in flight; from 2 on cp.async copies ahead"),
    Parameter("dequant", ("weight", "group"), "nominal", "scale every weight, or the sum of a group"),
    Parameter("convert", ("cvt", "prmt"), "nominal", "how codes become f32"),
)


def q4k_gemv_space(target: Target) -> Space:
    """Every valid schedule of `q4k_gemv` on a target."""
    return Space(
        "q4k_gemv", PARAMETERS, (*walk_constraints("load_bytes", _lanes_apart), *_CONSTRAINTS), target
    )


def _lanes_apart(load_bytes: int) -> int:
    return load_bytes // 4


def _schedule(rows_per_warp: int, warps: int, load_bytes: int, unroll: int, stages: int) -> Q4KGemvSchedule:
    return Q4KGemvSchedule(rows_per_warp, warps, warps, 1, load_bytes, unroll, stages, "weight", "cvt")


def _fits_shared(r: int, warps: int, load_bytes: int, unroll: int, stages: int, target: Target) -> bool:
    return _schedule(r, warps, load_bytes, unroll, stages).shared_bytes <= target.arch.shared_per_block


def _fits_registers(r: int, warps: int, load_bytes: int, unroll: int, stages: int, _target: Target) -> bool:
    return registers_fit(_schedule(r, warps, load_bytes, unroll, stages).registers, warps)


_SIZES = ("rows_per_warp", "warps", "load_bytes", "unroll", "stages")
_CONSTRAINTS = (
    Constraint(
        "one-way-ahead",
        ("unroll", "stages"),
        lambda unroll, stages, _target: unroll == 1 or stages == 1,
        "loads are in flight either in registers (unroll) or in a ring (stages), not in both",
    ),
    Constraint("shared-memory", _SIZES, _fits_shared, "the ring must fit the shared memory of a block"),
    Constraint("registers", _SIZES, _fits_registers, "what is in flight must fit the registers of an SM"),
)
