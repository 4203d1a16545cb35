"""The search spaces of the forward GEMM family.

The emitter's rules say what cannot be emitted. To them come a few preferences: corners that a kernel engineer would
not look into, each with its reason.
"""

from emitters.gemm import GEMM_S8, TERNARY_GEMM_S8
from emitters.gemm_schedule import DenseSchedule, GemmSchedule, rules
from emitters.target import Target
from search_spaces.space import Constraint, Parameter, Space


def ternary_gemm_s8_space(target: Target) -> Space:
    """Schedules of `ternary_gemm_s8` worth trying on a target."""
    return Space(
        kernel=TERNARY_GEMM_S8.id,
        parameters=_parameters(ternary=True),
        constraints=(*_from_rules(GemmSchedule), *_preferences(ternary=True)),
        target=target,
    )


def gemm_s8_space(target: Target) -> Space:
    """Schedules of `gemm_s8` worth trying on a target."""
    return Space(
        kernel=GEMM_S8.id,
        parameters=_parameters(ternary=False),
        constraints=(*_from_rules(DenseSchedule), *_preferences(ternary=False)),
        target=target,
    )


def _parameters(ternary: bool) -> tuple[Parameter, ...]:
    own = (
        Parameter("decode", ("shared", "register"), "nominal", "where codes become s8"),
        Parameter("weight_layout", ("plain", "fragment"), "nominal", "codes as they are, or prepacked"),
    )
    return (
        Parameter("tile_m", (16, 32, 64, 128, 256), "power", "rows of C a block"),
        Parameter("tile_n", (32, 64, 128, 256), "power", "columns of C a block"),
        Parameter("warps_m", (1, 2, 4), "power", "warps along m"),
        Parameter("warps_n", (1, 2, 4), "power", "warps along n"),
        *(own if ternary else ()),
        Parameter("tile_k", (32, 64, 128), "power", "k-step, bytes"),
        Parameter("stages", (1, 2, 3, 4, 5, 6), "ordinal", "slots of the cp.async ring; 1: synchronous"),
        Parameter("stride_pad", (0, 16, 32), "ordinal", "bytes added to each shared row"),
        Parameter("swizzle", (False, True), "nominal", "exchange 16-byte chunks of rows"),
        Parameter("copy_bytes", (4, 8, 16), "power", "bytes of one copy to shared memory"),
        Parameter("fragment_load", ("ldmatrix", "ld.shared"), "nominal", "how s8 fragments are loaded"),
        Parameter("split_k", (1, 2, 4, 8), "power", "blocks that share a tile of C"),
        Parameter("raster", (1, 4, 8), "power", "tile rows that blocks walk before moving on"),
        Parameter("min_blocks", (1, 2, 3), "ordinal", "blocks an SM that ptxas leaves registers for"),
    )


def _from_rules(schedule_type: type[DenseSchedule]) -> tuple[Constraint, ...]:
    return tuple(
        Constraint(rule.name, rule.parameters, rule.holds, rule.reason) for rule in rules(schedule_type)
    )


def _preferences(ternary: bool) -> tuple[Constraint, ...]:
    return ()
