"""Schedules of `q6k_soa_gemv`."""

from emitters.q6k_gemv_schedule import Q6KGemvSchedule
from emitters.target import Target
from search_spaces.gemv import WALK_PARAMETERS, registers_fit, walk_constraints
from search_spaces.space import Constraint, Parameter, Space

PARAMETERS = (
    *WALK_PARAMETERS,
    Parameter("rows_per_warp", (1, 2, 4), "power", "rows that a warp sums at once, sharing the loads of x"),
    Parameter("quad", (2, 4, 8, 16), "power", "bytes of ql and of qh that a lane takes of a block"),
    Parameter(
        "load", ("halfword", "window"), "nominal", "two bytes a load, or aligned words shifted into place"
    ),
    Parameter("unroll", (1, 2, 4), "power", "blocks that a lane has in registers at once"),
    Parameter("stages", (1, 2, 3, 4), "ordinal", "blocks in flight; from 2 on cp.async copies ahead"),
    Parameter("dequant", ("weight", "group"), "nominal", "scale every weight, or the sum of a group"),
    Parameter("convert", ("cvt", "prmt"), "nominal", "how codes become f32"),
)


def q6k_gemv_space(target: Target) -> Space:
    """Every valid schedule of `q6k_soa_gemv` on a target."""
    return Space("q6k_soa_gemv", PARAMETERS, (*walk_constraints("quad", _units), *_CONSTRAINTS), target)


def _units(quad: int) -> int:
    return quad // 2


def _schedule(r: int, warps: int, quad: int, unroll: int, stages: int) -> Q6KGemvSchedule:
    return Q6KGemvSchedule(r, warps, warps, 1, quad, "window", unroll, stages, "weight", "cvt")


def _fits_shared(r: int, warps: int, quad: int, unroll: int, stages: int, target: Target) -> bool:
    return _schedule(r, warps, quad, unroll, stages).shared_bytes <= target.arch.shared_per_block


def _fits_registers(r: int, warps: int, quad: int, unroll: int, stages: int, _target: Target) -> bool:
    return registers_fit(_schedule(r, warps, quad, unroll, stages).registers, warps)


_SIZES = ("rows_per_warp", "warps", "quad", "unroll", "stages")
_CONSTRAINTS = (
    Constraint(
        "whole-words",
        ("quad", "load"),
        lambda quad, load, _target: load == "halfword" or quad >= 4,
        "a window holds whole words, so quad must be at least 4",
    ),
    Constraint(
        "ring-of-windows",
        ("load", "stages"),
        lambda load, stages, _target: load == "window" or stages == 1,
        "cp.async copies 4 bytes or more, so a ring takes windows",
    ),
    Constraint(
        "one-way-ahead",
        ("unroll", "stages"),
        lambda unroll, stages, _target: unroll == 1 or stages == 1,
        "loads are in flight either in registers (unroll) or in a ring (stages), not in both",
    ),
    Constraint("shared-memory", _SIZES, _fits_shared, "the ring must fit the shared memory of a block"),
    Constraint("registers", _SIZES, _fits_registers, "what is in flight must fit the registers of an SM"),
)
