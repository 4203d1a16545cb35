"""Schedules of `wmma_gemv`."""

from emitters.fragments.wmma import SHAPES
from emitters.target import Target
from emitters.wmma_gemv_schedule import MMA, WmmaGemvSchedule
from search_spaces.gemv import WALK_PARAMETERS, registers_fit, walk_constraints
from search_spaces.space import Constraint, Parameter, Service, Space

PARAMETERS = (
    Parameter("instruction", (MMA, *SHAPES), "nominal", "mma.m16n8k16, or wmma of 16 or 32 rows"),
    *WALK_PARAMETERS,
    Parameter("tiles", (1, 2, 4), "power", "tiles of rows that a warp sums at once"),
    Parameter("load_bytes", (4, 8, 16), "power", "bytes of a row that a lane loads at once"),
    Parameter("x_chunk", (0, 1024, 2048, 4096, 8192), "ordinal", "elements of x in shared memory; 0: global"),
    Parameter("unroll", (1, 2, 4), "power", "units that a warp has in registers at once"),
    Parameter("stages", (1, 2, 3, 4), "ordinal", "units in flight; from 2 on cp.async copies ahead"),
    Parameter("accumulators", (1, 2, 4), "power", "independent sums that slices take in turn"),
)


def wmma_gemv_space(target: Target) -> Space:
    """Every valid schedule of `wmma_gemv` on a target."""
    return Space(
        "wmma_gemv",
        PARAMETERS,
        (*walk_constraints("tiles", lambda _tiles: 1), *_CONSTRAINTS),
        target,
        service=Service(("instruction", "tiles"), _served),
    )


def _served(instruction: str, tiles: int) -> str:
    return WmmaGemvSchedule(instruction, tiles, 1, 1, 1, 4, 0, 1, 1, 1).valid


def _fits_shared(
    instruction: str, warps: int, warps_per_row: int, tiles: int, x_chunk: int, stages: int, target: Target
) -> bool:
    schedule = WmmaGemvSchedule(instruction, tiles, warps, warps_per_row, 1, 4, x_chunk, 1, stages, 1)
    return schedule.shared_bytes <= target.arch.shared_per_block


def _fits_registers(
    instruction: str, warps: int, tiles: int, unroll: int, accumulators: int, _target: Target
) -> bool:
    schedule = WmmaGemvSchedule(instruction, tiles, 1, 1, 1, 4, 0, unroll, 1, accumulators)
    return registers_fit(schedule.registers, warps)


_CONSTRAINTS = (
    Constraint(
        "wmma-loads-as-it-likes",
        ("instruction", "load_bytes"),
        lambda instruction, load_bytes, _target: instruction == MMA or load_bytes == 4,
        "how wmma.load reads is not for the schedule to say",
    ),
    Constraint(
        "wmma-vector",
        ("instruction", "x_chunk"),
        lambda instruction, x_chunk, _target: instruction == MMA or x_chunk > 0,
        "the columns of wmma's B overlap, and only shared memory has something readable behind x",
    ),
    Constraint(
        "wmma-ring",
        ("instruction", "stages"),
        lambda instruction, stages, _target: instruction == MMA or stages == 1,
        "the layout of wmma fragments is open, so a lane cannot copy its own ahead",
    ),
    Constraint(
        "one-way-ahead",
        ("unroll", "stages"),
        lambda unroll, stages, _target: unroll == 1 or stages == 1,
        "loads are in flight either in registers (unroll) or in a ring (stages), not in both",
    ),
    Constraint(
        "shared-memory",
        ("instruction", "warps", "warps_per_row", "tiles", "x_chunk", "stages"),
        _fits_shared,
        "the ring, the chunk of x, wmma's results and the exchange must fit the shared memory of a block",
    ),
    Constraint(
        "registers",
        ("instruction", "warps", "tiles", "unroll", "accumulators"),
        _fits_registers,
        "what is in flight must fit the registers of an SM",
    ),
)
