"""The search spaces of the forward GEMM family.

The emitter's rules say what cannot be emitted. To them come a few preferences: corners that a kernel engineer
would not look into, each with its reason.
"""

from collections.abc import Callable
from typing import Any

from emitters.gemm import GEMM_S8, TERNARY_GEMM_S8
from emitters.gemm_rules import partial_geometry, rules
from emitters.gemm_schedule import DenseSchedule, GemmSchedule
from emitters.target import WARP, Target
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


_RESIDENCY = (
    "tile_m",
    "tile_n",
    "warps_m",
    "warps_n",
    "tile_k",
    "stages",
    "stride_pad",
    "swizzle",
    "copy_bytes",
)
_MOST_BLOCKS = 4


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
        Parameter("stride_pad", (0, 16), "ordinal", "bytes added to each shared row"),
        Parameter("swizzle", (False, True), "nominal", "exchange 16-byte chunks of rows"),
        Parameter("copy_bytes", (4, 8, 16), "power", "bytes of one copy to shared memory"),
        Parameter("fragment_load", ("ldmatrix", "ld.shared"), "nominal", "how s8 fragments are loaded"),
        Parameter("split_k", (1, 2, 4, 8), "power", "blocks that share a tile of C"),
        Parameter("raster", (1, 8), "power", "tile rows that blocks walk before moving on"),
        Parameter(
            "min_blocks",
            tuple(range(1, _MOST_BLOCKS + 1)),
            "ordinal",
            "blocks an SM that ptxas leaves registers for",
        ),
    )


def _from_rules(schedule_type: type[DenseSchedule]) -> tuple[Constraint, ...]:
    return tuple(
        Constraint(rule.name, rule.parameters, rule.holds, rule.reason) for rule in rules(schedule_type)
    )


def _preferences(ternary: bool) -> tuple[Constraint, ...]:
    """What could be emitted but is dominated: the reason says by what."""
    return (
        Constraint(
            "bank-conflicts",
            ("stride_pad", "swizzle"),
            lambda pad, swizzle, _: swizzle or pad > 0,
            "s8 rows of 32, 64 or 128 bytes with neither pad nor swizzle put the eight rows of an ldmatrix "
            "phase into a half, a quarter or an eighth of the banks",
        ),
        Constraint(
            "block-area",
            ("tile_m", "tile_n"),
            lambda m, n, _: m * n >= 4096,
            "a block tile of less than 4096 elements reads over twice the bytes an mma of one of 128x128",
        ),
        Constraint(
            "warp-area",
            ("tile_m", "tile_n", "warps_m", "warps_n"),
            lambda m, n, wm, wn, _: (m // wm) * (n // wn) >= 1024,
            "a warp tile of less than 1024 elements has fewer than eight mma's a slice to hide loads behind",
        ),
        Constraint(
            "warp-shape",
            ("tile_m", "tile_n", "warps_m", "warps_n"),
            lambda m, n, wm, wn, _: (m // wm) <= 4 * (n // wn) and (n // wn) <= 4 * (m // wm),
            "a warp tile longer than 4:1 loads more fragments an mma than a squarer one of the same area",
        ),
        Constraint(
            "block-warps",
            ("warps_m", "warps_n"),
            lambda wm, wn, _: wm * wn >= 2,
            "a block of one warp shares nothing: its tile costs the same copies as two blocks' worth",
        ),
        Constraint(
            "word-loads",
            ("tile_m", "tile_n", "warps_m", "warps_n", "fragment_load"),
            lambda m, n, wm, wn, load, _: load == "ldmatrix" or (m // wm) * (n // wn) <= 1024,
            "ld.shared takes four loads for one ldmatrix: on warp tiles of more than 1024 elements they "
            "crowd out mma's",
        ),
        Constraint(
            "depth",
            ("tile_k", "stages"),
            lambda tile_k, stages, _: stages * tile_k <= 384,
            "more than 384 bytes of k in flight are longer than any memory latency and cost resident blocks",
        ),
        Constraint(
            "copies-a-thread",
            ("tile_m", "tile_n", "warps_m", "warps_n", "tile_k", "copy_bytes"),
            _code_copies_balanced if ternary else _dense_copies_few,
            "a width of copies that leaves over 3 in 4 threads without one, or gives a thread over four"
            if ternary
            else "narrow copies must not make more than sixteen a thread and k-step",
        ),
        Constraint(
            "occupancy",
            (*_RESIDENCY, *(("decode", "weight_layout") if ternary else ()), "min_blocks"),
            _one_or_most_blocks(ternary),
            "min_blocks is 1, which leaves ptxas free, or the most (up to 4) that registers, threads and "
            "shared memory allow: anything between takes registers away and gives no block for it",
        ),
        Constraint(
            "split-or-raster",
            ("split_k", "raster"),
            lambda split, raster, _: split == 1 or raster == 1,
            "a split fills SMs that a small grid leaves idle, a raster orders a grid of several waves: no "
            "grid is both",
        ),
    )


def _one_or_most_blocks(ternary: bool) -> Callable[..., bool]:
    names = (*_RESIDENCY, *(("decode", "weight_layout") if ternary else ()))

    def holds(*arguments: Any) -> bool:
        *values, blocks, target = arguments
        if blocks == 1:
            return True
        return bool(
            blocks == min(_MOST_BLOCKS, partial_geometry(names, tuple(values), ternary).most_blocks(target))
        )

    return holds


def _code_copies_balanced(m: int, n: int, wm: int, wn: int, k: int, width: int, _: Target) -> bool:
    """By the bytes of codes in a tile, which are the same in both layouts."""
    copies, threads = n * k // 4 // width, WARP * wm * wn
    return threads <= 4 * copies and copies <= 4 * threads


def _dense_copies_few(m: int, n: int, wm: int, wn: int, k: int, width: int, _: Target) -> bool:
    copies, threads = (m + n) * k // width, WARP * wm * wn
    return width == 16 or copies <= 16 * threads
