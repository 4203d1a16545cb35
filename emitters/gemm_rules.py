"""What every schedule of the GEMM family must keep, as named rules with reasons.

The emitter refuses what breaks one; the search space takes them over as constraints.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from emitters.fragments.copies import COPY_WIDTHS
from emitters.fragments.matrix import FRAGMENT_LOADS, MMA_M, MMA_N
from emitters.gemm_schedule import DenseSchedule, GemmSchedule, Geometry
from emitters.kernel import EmitError
from emitters.target import REGISTERS_PER_THREAD, THREADS_PER_BLOCK, WARP, Arch, Target


@dataclass(frozen=True)
class Rule:
    """What every schedule must keep, in a form that a search space takes over.

    Attributes:
        name: Short and stable.
        parameters: What it looks at.
        holds: Called with their values in that order and the target.
        reason: Why a schedule that breaks it cannot be emitted.
    """

    name: str
    parameters: tuple[str, ...]
    holds: Callable[..., bool]
    reason: str


def check(schedule: DenseSchedule, target: Target) -> None:
    """Refuse a schedule of a forward kernel that cannot be emitted.

    Raises:
        EmitError: As `check_rules`.
    """
    check_rules(rules(type(schedule)), schedule, target)


def check_rules(rules: Iterable[Rule], schedule: DenseSchedule, target: Target) -> None:
    """Refuse a schedule that breaks one of some rules.

    Raises:
        EmitError: It breaks a rule; the message gives the reason and the values.
    """
    for rule in rules:
        values = [getattr(schedule, name) for name in rule.parameters]
        if not rule.holds(*values, target):
            given = ", ".join(f"{n}={v}" for n, v in zip(rule.parameters, values, strict=True))
            raise EmitError(f"{rule.name}: {rule.reason}, got {given}")


def power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


@dataclass(frozen=True)
class Family:
    """A schedule type as rules see it that are asked before every parameter is known.

    Attributes:
        geometry: What follows from a schedule.
        neutral: Values of what is not known, and so does not matter to the caller.
        shared: Parameters that shared bytes depend on.
        registers: Parameters that the estimate of registers depends on.
    """

    geometry: type[Geometry]
    neutral: DenseSchedule
    shared: tuple[str, ...]
    registers: tuple[str, ...]

    @property
    def resident(self) -> tuple[str, ...]:
        """Parameters that the blocks which an SM holds depend on."""
        return tuple(dict.fromkeys(self.shared + self.registers))

    def partial(self, names: tuple[str, ...], values: tuple[Any, ...]) -> Geometry:
        """Geometry of a schedule of which some parameters are known."""
        return self.geometry(replace(self.neutral, **dict(zip(names, values, strict=True))))


@lru_cache(maxsize=1 << 16)
def most_blocks(values: tuple[Any, ...], family: Family, arch: Arch) -> int:
    """`Geometry.most_blocks` for values of `Family.resident`; several constraints ask the same."""
    return family.partial(family.resident, values).most_blocks(arch)


SHARED_PARAMETERS = ("tile_m", "tile_n", "tile_k", "warps_n", "stages", "stride_pad", "swizzle")
"""What shared bytes depend on in every kernel of the family."""

REGISTER_PARAMETERS = ("tile_m", "tile_n", "tile_k", "warps_m", "warps_n")
"""What registers depend on in every kernel of the family."""

_NEUTRAL: dict[str, Any] = {
    "tile_m": 128,
    "tile_n": 128,
    "tile_k": 64,
    "warps_m": 1,
    "warps_n": 1,
    "stages": 1,
    "stride_pad": 0,
    "swizzle": False,
    "copy_bytes": 16,
    "fragment_load": "ldmatrix",
    "split_k": 1,
    "raster": 1,
    "min_blocks": 1,
}

DENSE = Family(Geometry, DenseSchedule(**_NEUTRAL), SHARED_PARAMETERS, (*REGISTER_PARAMETERS, "copy_bytes"))
TERNARY = Family(
    Geometry,
    GemmSchedule(**_NEUTRAL, decode="register", weight_layout="plain"),
    (*SHARED_PARAMETERS, "decode", "weight_layout"),
    REGISTER_PARAMETERS,
)


def _on_geometry(
    family: Family, names: tuple[str, ...], holds: Callable[[Geometry, Target], bool]
) -> Callable[..., bool]:
    def asked(*arguments: Any) -> bool:
        *values, target = arguments
        return holds(family.partial(names, tuple(values)), target)

    return asked


def _registers_fit(geometry: Geometry, target: Target) -> bool:
    return geometry.registers <= REGISTERS_PER_THREAD


def _shared_fits(geometry: Geometry, target: Target) -> bool:
    return geometry.shared.nbytes <= target.arch.shared_per_block


def _blocks_fit(family: Family) -> Callable[..., bool]:
    def asked(*arguments: Any) -> bool:
        *values, blocks, target = arguments
        return bool(blocks <= most_blocks(tuple(values), family, target.arch))

    return asked


def common_rules(family: Family) -> tuple[Rule, ...]:
    """What every kernel of the family keeps."""
    return (
        Rule("k-step", ("tile_k",), lambda k, _: k in (32, 64, 128), "tile_k must be 32, 64 or 128"),
        Rule(
            "stages",
            ("stages",),
            lambda stages, _: 1 <= stages <= 6,
            "stages must be within 1..6: one, or the slots of the cp.async ring",
        ),
        Rule(
            "split",
            ("split_k",),
            lambda split, _: 1 <= split <= 64,
            "split_k must be within 1..64",
        ),
        Rule("raster", ("raster",), lambda raster, _: raster >= 1, "raster must be at least 1"),
        Rule("min-blocks", ("min_blocks",), lambda blocks, _: blocks >= 1, "min_blocks must be at least 1"),
        Rule(
            "pad",
            ("stride_pad",),
            lambda pad, _: pad >= 0 and pad % 16 == 0,
            "stride_pad must be a multiple of 16, so that rows stay aligned for ldmatrix and 16-byte copies",
        ),
        Rule(
            "copy-width",
            ("copy_bytes",),
            lambda width, _: width in COPY_WIDTHS,
            "copy_bytes must be 4, 8 or 16, the widths of cp.async",
        ),
        Rule(
            "fragment-load",
            ("fragment_load",),
            lambda load, _: load in FRAGMENT_LOADS,
            "fragment_load must be ldmatrix or ld.shared",
        ),
        Rule(
            "warps",
            ("warps_m", "warps_n"),
            lambda wm, wn, _: power_of_two(wm) and power_of_two(wn),
            "warps_m and warps_n must be powers of two, so that threads share rows evenly",
        ),
        Rule(
            "warp-tile-m",
            ("tile_m", "warps_m"),
            lambda tile, warps, _: tile > 0 and tile % (MMA_M * warps) == 0,
            "a warp's share of tile_m must be a multiple of 16, the m of one mma",
        ),
        Rule(
            "warp-tile-n",
            ("tile_n", "warps_n"),
            lambda tile, warps, _: tile > 0 and tile % (MMA_N * warps) == 0 and tile % 16 == 0,
            "a warp's share of tile_n must be a multiple of 8, the n of one mma, and tile_n of 16",
        ),
        Rule(
            "threads",
            ("warps_m", "warps_n"),
            lambda wm, wn, _: WARP * wm * wn <= THREADS_PER_BLOCK,
            "a block has at most 1024 threads",
        ),
        Rule(
            "pad-or-swizzle",
            ("stride_pad", "swizzle"),
            lambda pad, swizzle, _: not (pad and swizzle),
            "stride_pad and swizzle exclude each other: a swizzle relies on rows of a power of two",
        ),
        Rule(
            "registers",
            family.registers,
            _on_geometry(family, family.registers, _registers_fit),
            "accumulators, fragments and addresses must fit the 255 registers of a thread",
        ),
        Rule(
            "shared-memory",
            family.shared,
            _on_geometry(family, family.shared, _shared_fits),
            "all slots must fit the shared memory of a block",
        ),
        Rule(
            "resident-blocks",
            (*family.resident, "min_blocks"),
            _blocks_fit(family),
            "min_blocks blocks must fit the registers, threads and shared memory of an SM",
        ),
    )


TERNARY_RULES = (
    Rule(
        "decode",
        ("decode",),
        lambda decode, _: decode in ("shared", "register"),
        "decode must be shared or register",
    ),
    Rule(
        "weight-layout",
        ("weight_layout",),
        lambda layout, _: layout in ("plain", "fragment"),
        "weight_layout must be plain or fragment",
    ),
    Rule(
        "code-rows",
        ("tile_n",),
        lambda tile, _: power_of_two(tile),
        "tile_n must be a power of two, so that threads share rows of codes evenly",
    ),
    Rule(
        "fragment-decode",
        ("decode", "weight_layout"),
        lambda decode, layout, _: layout == "plain" or decode == "register",
        "weights in fragment order are decoded in registers: there are no rows to decode to",
    ),
    Rule(
        "fragment-copy",
        ("copy_bytes", "weight_layout"),
        lambda width, layout, _: layout == "plain" or width == 16,
        "records of prepacked weights are aligned: copy_bytes must be 16",
    ),
    Rule(
        "fragment-warp",
        ("tile_n", "warps_n", "weight_layout"),
        lambda tile, warps, layout, _: layout == "plain" or tile // warps % 16 == 0,
        "a warp's share of tile_n must be a multiple of 16, the columns of the smallest record",
    ),
)
"""What every kernel with ternary codes keeps."""

_FORWARD_RULES = (
    Rule(
        "packed-warp",
        ("tile_n", "warps_n", "decode", "weight_layout"),
        lambda tile, warps, decode, layout, _: (
            decode == "shared" or layout == "fragment" or tile // warps in (32, 64, 128)
        ),
        "plain codes decoded in registers: a warp's share of tile_n must be 32, 64 or 128, so that a lane's "
        "codes of one k are one load of whole bytes",
    ),
    Rule(
        "code-copy",
        ("tile_n", "copy_bytes", "weight_layout"),
        lambda tile, width, layout, _: layout == "fragment" or tile % (4 * width) == 0,
        "a copy must not be wider than the block's row of codes, tile_n / 4 bytes",
    ),
)

_RULES: dict[type[DenseSchedule], tuple[Rule, ...]] = {
    DenseSchedule: common_rules(DENSE),
    GemmSchedule: (*TERNARY_RULES, *_FORWARD_RULES, *common_rules(TERNARY)),
}


def rules(schedule_type: type[DenseSchedule]) -> tuple[Rule, ...]:
    """All rules of a schedule type; those that others rely on come first."""
    return _RULES[schedule_type]
