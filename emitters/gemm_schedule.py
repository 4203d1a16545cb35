"""Schedules of the forward GEMM family: their parameters, what follows from them, and what rules them out.

Shared bytes, threads, registers and grid are computed here and nowhere else; the emitter and the constraints of the
search space both ask this module.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from emitters.fragments.matrix import A_REGISTERS, B_REGISTERS, C_REGISTERS, MMA_K, MMA_M, MMA_N
from emitters.fragments.tile import RowTile
from emitters.kernel import EmitError
from emitters.ptx import SHARED_ALIGNMENT, SharedLayout
from emitters.target import (
    REGISTERS_PER_SM,
    REGISTERS_PER_THREAD,
    SHARED_RESERVED,
    THREADS_PER_BLOCK,
    WARP,
    Target,
)
from emitters.ternary import PREPACK_COLUMNS


@dataclass(frozen=True)
class DenseSchedule:
    """How `gemm_s8` is computed. All sizes of tiles are in elements, which are bytes.

    Attributes:
        tile_m, tile_n, tile_k: The block's share of C, and the k-step.
        warps_m, warps_n: How the block's warps divide the tile.
        stages: 1: synchronous copies through registers; 2..6: slots of a `cp.async` pipeline.
        stride_pad: Bytes added to each s8 row in shared memory. (Rows of codes have a pad of their own.)
        swizzle: Exchange 16-byte chunks of rows instead.
        copy_bytes: Width of the global-to-shared copies. In the ternary kernel of codes only: rows of A are 16-byte
            aligned for every valid problem, so A is always copied by 16. In `gemm_s8` of both operands.
        fragment_load: ``ldmatrix`` or ``ld.shared``, for operands that lie in shared memory as s8 rows.
        split_k: Blocks that share an output tile along k; they add to a zeroed C.
        raster: Tile rows that consecutive blocks walk down before moving on to the next tile column.
        min_blocks: Blocks an SM that ptxas leaves registers for.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    warps_m: int
    warps_n: int
    stages: int
    stride_pad: int
    swizzle: bool
    copy_bytes: int
    fragment_load: str
    split_k: int
    raster: int
    min_blocks: int


@dataclass(frozen=True)
class GemmSchedule(DenseSchedule):
    """How `ternary_gemm_s8` is computed.

    Attributes:
        decode: ``shared``: codes become s8 rows in shared memory once a tile. ``register``: they stay packed until a
            warp needs the fragment.
        weight_layout: ``plain``: codes as in the contract. ``fragment``: prepacked (`emitters.ternary.prepack`).
    """

    decode: str
    weight_layout: str


def is_ternary(schedule: DenseSchedule) -> bool:
    return isinstance(schedule, GemmSchedule)


@dataclass(frozen=True)
class Geometry:
    """What follows from a schedule, without a target."""

    schedule: DenseSchedule

    @property
    def b_kind(self) -> str:
        """How B gets to the mma: ``rows`` (s8), ``decoded`` (to s8 rows), ``packed`` or ``records`` (prepacked)."""
        schedule = self.schedule
        if not isinstance(schedule, GemmSchedule):
            return "rows"
        if schedule.decode == "shared":
            return "decoded"
        return "packed" if schedule.weight_layout == "plain" else "records"

    @property
    def threads(self) -> int:
        return WARP * self.schedule.warps_m * self.schedule.warps_n

    @property
    def warp_m(self) -> int:
        return self.schedule.tile_m // self.schedule.warps_m

    @property
    def warp_n(self) -> int:
        return self.schedule.tile_n // self.schedule.warps_n

    @property
    def fragments_m(self) -> int:
        return self.warp_m // MMA_M

    @property
    def fragments_n(self) -> int:
        return self.warp_n // MMA_N

    @property
    def slices(self) -> int:
        """k-slices of one mma in a tile."""
        return self.schedule.tile_k // MMA_K

    @property
    def a_width(self) -> int:
        """Bytes of one copy of A."""
        return 16 if is_ternary(self.schedule) else self.schedule.copy_bytes

    @property
    def paired(self) -> bool:
        """Whether s8 rows of B lie in pair order, which gives lanes four neighbouring columns of C."""
        return self.fragments_n % 2 == 0

    @property
    def record_columns(self) -> int:
        """Columns of a record of prepacked weights: the most that a warp's share divides into."""
        return max((c for c in PREPACK_COLUMNS if self.warp_n % c == 0), default=0)

    @property
    def fragment_buffers(self) -> int:
        """Sets of fragment registers: two, so that the next slice loads during this one's mma's; one if there is
        one slice, when each register is reloaded as soon as its last mma has read it."""
        return 1 if self.slices == 1 else 2

    @property
    def accumulator_registers(self) -> int:
        return C_REGISTERS * self.fragments_m * self.fragments_n

    @property
    def fragment_registers(self) -> int:
        return self.fragment_buffers * (A_REGISTERS * self.fragments_m + B_REGISTERS * self.fragments_n)

    @property
    def registers(self) -> int:
        """Estimate of a thread's registers: accumulators, fragments, copy addresses and about 40 for the rest."""
        copies = self.schedule.tile_m * self.schedule.tile_k // self.a_width // self.threads
        return self.accumulator_registers + self.fragment_registers + min(copies, 32) + 40

    def most_blocks(self, target: Target) -> int:
        """Blocks that an SM holds by registers (as estimated), threads and shared memory."""
        arch = target.arch
        return min(
            REGISTERS_PER_SM // (self.registers * self.threads),
            arch.threads_per_sm // self.threads,
            arch.shared_per_sm // (self.shared.nbytes + SHARED_RESERVED),
            arch.blocks_per_sm,
        )

    @cached_property
    def shared(self) -> "SharedTiles":
        return SharedTiles.of(self)


@dataclass(frozen=True)
class SharedTiles:
    """Where things lie in shared memory.

    A slot of the ring holds one k-tile: A, then B as it comes from memory. Slots start at 0. Codes that are decoded
    to shared memory come from a ring of their own, which runs one tile ahead, to two tiles of s8 rows that are
    written and read in turn (one, where copies are synchronous: those go straight to rows).

    Attributes:
        a: Rows of A in a slot.
        b: Rows of B in a slot; for `packed` rows of codes, for `records` one row a record; None for `decoded`.
        codes: Rows of codes in a slot of the code ring; None unless `decoded` with several stages.
        rows: Decoded rows; None unless `decoded`.
        slot_bytes, code_slot_bytes: Distance of slots.
        codes_start, rows_start: Where the code ring and the decoded rows start.
        rows_bytes: Distance of the two tiles of decoded rows.
        nbytes: All of it.
    """

    a: RowTile
    b: RowTile | None
    codes: RowTile | None
    rows: RowTile | None
    slot_bytes: int
    code_slot_bytes: int
    codes_start: int
    rows_start: int
    rows_bytes: int
    nbytes: int

    @classmethod
    def of(cls, geometry: Geometry) -> "SharedTiles":
        s = geometry.schedule
        slot = SharedLayout()
        rows_m = RowTile(s.tile_m, s.tile_k, s.stride_pad, s.swizzle)
        slot.take(rows_m.nbytes, SHARED_ALIGNMENT)
        tile_b: RowTile | None = None
        match geometry.b_kind:
            case "rows":
                shape = (s.tile_n, s.tile_k, s.stride_pad, s.swizzle)
            case "packed":
                shape = (s.tile_k, s.tile_n // 4, _code_pad(s.tile_n // 4), False)
            case "records":
                columns = geometry.record_columns
                shape = (s.tile_n // columns * geometry.slices, columns * MMA_K // 4, 0, False)
            case _:
                shape = None
        if shape is not None:
            rows, row_bytes, pad, swizzle = shape
            tile_b = RowTile(rows, row_bytes, pad, swizzle)
            offset = slot.take(tile_b.nbytes, SHARED_ALIGNMENT)
            tile_b = RowTile(rows, row_bytes, pad, swizzle, offset)
        slot_bytes = _aligned(slot.nbytes)
        whole = SharedLayout()
        whole.take(slot_bytes * s.stages)
        codes = rows_n = None
        code_slot_bytes = codes_start = rows_start = rows_bytes = 0
        if geometry.b_kind == "decoded":
            rows_n = RowTile(s.tile_n, s.tile_k, s.stride_pad, s.swizzle)
            rows_bytes = _aligned(rows_n.nbytes)
            rows_start = whole.take(rows_bytes * (1 if s.stages == 1 else 2), SHARED_ALIGNMENT)
            if s.stages > 1:
                codes = RowTile(s.tile_k, s.tile_n // 4, _code_pad(s.tile_n // 4))
                code_slot_bytes = _aligned(codes.nbytes)
                codes_start = whole.take(code_slot_bytes * s.stages, SHARED_ALIGNMENT)
        return cls(
            a=rows_m,
            b=tile_b,
            codes=codes,
            rows=rows_n,
            slot_bytes=slot_bytes,
            code_slot_bytes=code_slot_bytes,
            codes_start=codes_start,
            rows_start=rows_start,
            rows_bytes=rows_bytes,
            nbytes=whole.nbytes,
        )


def _code_pad(row_bytes: int) -> int:
    """Bytes after a row of codes, whatever `stride_pad` says of s8 rows.

    Rows an odd number of 16-byte chunks long let lanes read the same columns of eight neighbouring rows from
    eight different groups of banks. Rows shorter than two chunks do so without a pad.
    """
    return 16 if row_bytes % 32 == 0 else 0


def _aligned(nbytes: int) -> int:
    return -(-nbytes // SHARED_ALIGNMENT) * SHARED_ALIGNMENT


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
    """Refuse a schedule that cannot be emitted.

    Raises:
        EmitError: It breaks a rule; the message gives the reason and the values.
    """
    for rule in rules(type(schedule)):
        values = [getattr(schedule, name) for name in rule.parameters]
        if not rule.holds(*values, target):
            given = ", ".join(f"{n}={v}" for n, v in zip(rule.parameters, values, strict=True))
            raise EmitError(f"{rule.name}: {rule.reason}, got {given}")


def valid_formula(schedule: DenseSchedule) -> str:
    """Problems that the schedule serves: wide copies of code rows, N / 4 bytes long, need them aligned."""
    if isinstance(schedule, GemmSchedule) and schedule.weight_layout == "plain" and schedule.copy_bytes > 4:
        return f"n % {4 * schedule.copy_bytes} == 0"
    return "1"


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


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
_NEUTRAL_TERNARY: dict[str, Any] = {**_NEUTRAL, "decode": "register", "weight_layout": "plain"}


def partial_geometry(names: tuple[str, ...], values: tuple[Any, ...], ternary: bool) -> Geometry:
    """Geometry of a schedule of which only some parameters are known; the others do not matter to the caller."""
    known = dict(zip(names, values, strict=True))
    if ternary:
        return Geometry(GemmSchedule(**{**_NEUTRAL_TERNARY, **known}))
    return Geometry(DenseSchedule(**{**_NEUTRAL, **known}))


_SHARED = ("tile_m", "tile_n", "tile_k", "warps_n", "stages", "stride_pad", "swizzle")
_REGISTERS = ("tile_m", "tile_n", "tile_k", "warps_m", "warps_n")


def _on_geometry(
    names: tuple[str, ...], holds: Callable[[Geometry, Target], bool], ternary: bool
) -> Callable[..., bool]:
    def asked(*arguments: Any) -> bool:
        *values, target = arguments
        return holds(partial_geometry(names, tuple(values), ternary), target)

    return asked


def _registers_fit(geometry: Geometry, target: Target) -> bool:
    return geometry.registers <= REGISTERS_PER_THREAD


def _shared_fits(geometry: Geometry, target: Target) -> bool:
    return geometry.shared.nbytes <= target.arch.shared_per_block


def _blocks_fit(geometry: Geometry, target: Target) -> bool:
    return geometry.schedule.min_blocks <= geometry.most_blocks(target)


def _common_rules(ternary: bool) -> tuple[Rule, ...]:
    shared = (*_SHARED, "copy_bytes", *(("decode", "weight_layout") if ternary else ()))
    registers = (*_REGISTERS, *(() if ternary else ("copy_bytes",)))
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
            lambda width, _: width in (4, 8, 16),
            "copy_bytes must be 4, 8 or 16, the widths of cp.async",
        ),
        Rule(
            "fragment-load",
            ("fragment_load",),
            lambda load, _: load in ("ldmatrix", "ld.shared"),
            "fragment_load must be ldmatrix or ld.shared",
        ),
        Rule(
            "warps",
            ("warps_m", "warps_n"),
            lambda wm, wn, _: _power_of_two(wm) and _power_of_two(wn),
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
            registers,
            _on_geometry(registers, _registers_fit, ternary),
            "accumulators, fragments and addresses must fit the 255 registers of a thread",
        ),
        Rule(
            "shared-memory",
            shared,
            _on_geometry(shared, _shared_fits, ternary),
            "all slots must fit the shared memory of a block",
        ),
        Rule(
            "resident-blocks",
            (*shared, "warps_m", "min_blocks"),
            _on_geometry((*shared, "warps_m", "min_blocks"), _blocks_fit, ternary),
            "min_blocks blocks must fit the registers, threads and shared memory of an SM",
        ),
    )


_TERNARY_RULES = (
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
        lambda tile, _: _power_of_two(tile),
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
    Rule(
        "packed-warp",
        ("tile_n", "warps_n", "decode", "weight_layout"),
        lambda tile, warps, decode, layout, _: (
            decode == "shared" or layout == "fragment" or tile // warps % 32 == 0
        ),
        "plain codes decoded in registers: a warp's share of tile_n must be a multiple of 32, so that a lane's "
        "codes of one k are whole bytes",
    ),
    Rule(
        "code-copy",
        ("tile_n", "copy_bytes", "weight_layout"),
        lambda tile, width, layout, _: layout == "fragment" or tile % (4 * width) == 0,
        "a copy must not be wider than the block's row of codes, tile_n / 4 bytes",
    ),
)

_RULES: dict[type[DenseSchedule], tuple[Rule, ...]] = {
    DenseSchedule: _common_rules(ternary=False),
    GemmSchedule: (*_TERNARY_RULES, *_common_rules(ternary=True)),
}


def rules(schedule_type: type[DenseSchedule]) -> tuple[Rule, ...]:
    """All rules of a schedule type; those that others rely on come first."""
    return _RULES[schedule_type]
