"""Schedules of `q4k_soa_wmma`."""

from emitters.q4k_soa_schedule import Q4KSoaSchedule
from emitters.quants import BLOCK
from emitters.target import Target
from search_spaces.gemv import WALK_PARAMETERS, registers_fit, walk_constraints
from search_spaces.space import Constraint, Parameter, Space

PARAMETERS = (
    *WALK_PARAMETERS,
    Parameter("tiles", (1, 2, 4), "power", "tiles of 16 rows that a warp sums at once"),
    Parameter(
        "x_chunk", (0, 1024, 2048, 4096), "ordinal", "weights of x that a block rounds at once; 0: each warp"
    ),
    Parameter("unroll", (1, 2), "power", "blocks that a lane has in registers at once"),
    Parameter("stages", (1, 2, 3, 4), "ordinal", "blocks in flight; from 2 on cp.async copies ahead"),
    Parameter("accumulators", (1, 2, 4), "power", "independent sums that mma's take in turn"),
)


def q4k_soa_wmma_space(target: Target) -> Space:
    """Every valid schedule of `q4k_soa_wmma` on a target."""
    return Space(
        "q4k_soa_wmma", PARAMETERS, (*walk_constraints("tiles", lambda _tiles: 1), *_CONSTRAINTS), target
    )


def _fits_shared(
    warps: int, warps_per_row: int, tiles: int, x_chunk: int, stages: int, target: Target
) -> bool:
    schedule = Q4KSoaSchedule(tiles, warps, warps_per_row, 1, x_chunk, 1, stages, 1)
    return schedule.shared_bytes <= target.arch.shared_per_block


def _fits_registers(warps: int, tiles: int, unroll: int, accumulators: int, _target: Target) -> bool:
    return registers_fit(Q4KSoaSchedule(tiles, 1, 1, 1, 0, unroll, 1, accumulators).registers, warps)


_CONSTRAINTS = (
    Constraint(
        "chunk-for-every-warp",
        ("warps_per_row", "x_chunk"),
        lambda warps_per_row, x_chunk, _target: x_chunk == 0 or warps_per_row * BLOCK <= x_chunk,
        "a chunk of x must hold a block for every warp that shares a row",
    ),
    Constraint(
        "one-way-ahead",
        ("unroll", "stages"),
        lambda unroll, stages, _target: unroll == 1 or stages == 1,
        "loads are in flight either in registers (unroll) or in a ring (stages), not in both",
    ),
    Constraint(
        "shared-memory",
        ("warps", "warps_per_row", "tiles", "x_chunk", "stages"),
        _fits_shared,
        "the ring, the chunk of x and the exchange must fit the shared memory of a block",
    ),
    Constraint(
        "registers",
        ("warps", "tiles", "unroll", "accumulators"),
        _fits_registers,
        "what is in flight must fit the registers of an SM",
    ),
)
