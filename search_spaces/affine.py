"""Schedules of `affine_f32`."""

from emitters.affine import AffineSchedule
from emitters.target import Target
from search_spaces.space import Constraint, Parameter, Space

PARAMETERS = (
    Parameter("threads", (64, 128, 256, 512, 1024), "power", "threads of a block"),
    Parameter("vector", (1, 2, 4), "power", "elements of one load or store"),
    Parameter("unroll", (1, 2, 4, 8), "power", "vectors that a thread has in flight"),
    Parameter("turns", (1, 2, 4, 8), "power", "how often a block does that"),
    Parameter("load", ("ca", "nc", "cs"), "nominal", "cache operator of the loads"),
    Parameter("store", ("wb", "cs"), "nominal", "cache operator of the stores"),
)


def affine_f32_space(target: Target) -> Space:
    """Every valid schedule of `affine_f32` on a target."""
    return Space("affine_f32", PARAMETERS, _CONSTRAINTS, target)


def _elements_per_block(threads: int, vector: int, unroll: int, turns: int) -> int:
    return AffineSchedule(threads, vector, unroll, turns, "ca", "wb").elements_per_block


_CONSTRAINTS = (
    Constraint(
        "share",
        ("threads", "vector", "unroll", "turns"),
        lambda *sizes: _elements_per_block(*sizes[:-1]) <= 1 << 16,
        "a block of more than 65536 elements leaves SMs idle at the usual lengths",
    ),
)
