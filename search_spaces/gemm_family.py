"""What the search spaces of the GEMM family share.

The emitter's rules say what cannot be emitted. To them come a few preferences: corners that a kernel engineer
would not look into, each with its reason.
"""

from collections.abc import Callable, Iterable
from typing import Any

from emitters.gemm_rules import Family, Rule, most_blocks
from search_spaces.space import Constraint, Parameter

CODES = (
    Parameter("decode", ("shared", "register"), "nominal", "where codes become s8"),
    Parameter("weight_layout", ("plain", "fragment"), "nominal", "codes as they are, or prepacked"),
)
"""Parameters of a kernel whose weights are ternary codes."""


_MOST_BLOCKS = 4


def parameters(own: tuple[Parameter, ...] = ()) -> tuple[Parameter, ...]:
    """The parameters of the family, and a kernel's own."""
    return (
        Parameter("tile_m", (16, 32, 64, 128, 256), "power", "rows of C a block"),
        Parameter("tile_n", (32, 64, 128, 256), "power", "columns of C a block"),
        Parameter("warps_m", (1, 2, 4), "power", "warps along m"),
        Parameter("warps_n", (1, 2, 4), "power", "warps along n"),
        *own,
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


def from_rules(rules: Iterable[Rule]) -> tuple[Constraint, ...]:
    """What the emitter refuses."""
    return tuple(Constraint(rule.name, rule.parameters, rule.holds, rule.reason) for rule in rules)


def preferences(family: Family, copies: Constraint) -> tuple[Constraint, ...]:
    """What could be emitted but is dominated: the reason says by what.

    Args:
        family: Of the schedules.
        copies: What the kernel has to say about the width of its copies.
    """
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
        copies,
        Constraint(
            "occupancy",
            (*family.resident, "min_blocks"),
            _one_or_most_blocks(family),
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


def _one_or_most_blocks(family: Family) -> Callable[..., bool]:
    def holds(*arguments: Any) -> bool:
        *values, blocks, target = arguments
        most = min(_MOST_BLOCKS, most_blocks(tuple(values), family, target.arch))
        return bool(blocks in (1, most))

    return holds
