"""The search spaces of the forward GEMM family.

The emitter's rules say what cannot be emitted. To them come a few preferences: corners that a kernel engineer
would not look into, each with its reason.
"""

from collections.abc import Callable
from typing import Any

from emitters.gemm import GEMM_S8, TERNARY_GEMM_S8
from emitters.gemm_rules import most_blocks, resident_parameters, rules
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
        _copies_of_codes() if ternary else _copies_of_rows(),
        Constraint(
            "occupancy",
            (*resident_parameters(ternary), "min_blocks"),
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
    def holds(*arguments: Any) -> bool:
        *values, blocks, target = arguments
        most = min(_MOST_BLOCKS, most_blocks(tuple(values), ternary, target.arch))
        return bool(blocks in (1, most))

    return holds


def _copies_of_codes() -> Constraint:
    def holds(n: int, wm: int, wn: int, k: int, width: int, layout: str, _: Target) -> bool:
        copies, threads = n * k // 4 // width, WARP * wm * wn
        return copies <= 4 * threads and (layout == "fragment" or threads <= 4 * copies)

    return Constraint(
        "copies-a-thread",
        ("tile_n", "warps_m", "warps_n", "tile_k", "copy_bytes", "weight_layout"),
        holds,
        "plain codes: a width of copies that leaves over 3 in 4 threads without one is shared out better by "
        "a narrower one; and none may give a thread more than four",
    )


def _copies_of_rows() -> Constraint:
    def holds(m: int, n: int, wm: int, wn: int, k: int, width: int, _: Target) -> bool:
        return width == 16 or (m + n) * k // width <= 16 * WARP * wm * wn

    return Constraint(
        "copies-a-thread",
        ("tile_m", "tile_n", "warps_m", "warps_n", "tile_k", "copy_bytes"),
        holds,
        "narrow copies must not make more than sixteen a thread and k-step",
    )
