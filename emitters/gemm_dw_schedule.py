"""Schedules of `hslm_dw_s8`: how two operands are transposed whose reduction is the slow axis."""

from dataclasses import dataclass

from emitters import gemm_lanes
from emitters.fragments.tile import SWIZZLED_ROWS, RowTile
from emitters.gemm_lanes import LanePart
from emitters.gemm_rules import (
    REGISTER_PARAMETERS,
    SHARED_PARAMETERS,
    Family,
    Rule,
    common_rules,
    power_of_two,
)
from emitters.gemm_schedule import DenseSchedule, Geometry

TRANSPOSES = ("fragment", "copy")


@dataclass(frozen=True)
class DwSchedule(DenseSchedule):
    """How `hslm_dw_s8` is computed. The reduction, k, runs over rows of X and dY.

    Attributes:
        transpose: ``fragment``: rows of X and dY stay as they are in shared memory; `ldmatrix .trans` and a
            `prmt` a register transpose what a warp loads. ``copy``: bytes are transposed in registers on
            their way from global to shared memory, which then holds rows along k.
        copy_bytes: Bytes of one row that a thread copies at once.
    """

    transpose: str


@dataclass(frozen=True)
class DwGeometry(Geometry):
    """What follows from a `DwSchedule`."""

    schedule: DwSchedule

    @property
    def b_kind(self) -> str:
        """How dY gets to the mma: ``columns`` of rows as they are, or ``rows`` along k."""
        return "columns" if self.schedule.transpose == "fragment" else "rows"

    @property
    def a_tile(self) -> RowTile:
        return self._tile(self.schedule.tile_m)

    @property
    def b_tile(self) -> RowTile:
        return self._tile(self.schedule.tile_n)

    def _tile(self, across: int) -> RowTile:
        """The share of an operand in a slot of the ring."""
        s = self.schedule
        shape = (s.tile_k, across) if self.b_kind == "columns" else (across, s.tile_k)
        return RowTile(*shape, s.stride_pad, s.swizzle)

    @property
    def lane_part(self) -> LanePart:
        return gemm_lanes.alternating(self.fragments_n)

    def patch_rows(self, across: int) -> int:
        """Rows of the reduction in one patch of ``copy``: the most that leave no thread idle and no thread
        over 32 registers of a patch."""
        s = self.schedule
        columns = across // s.copy_bytes
        fitting = [rows for rows in (16, 8, 4) if rows * s.copy_bytes <= 128]
        return next((r for r in fitting if columns * s.tile_k // r >= self.threads), 4)

    @property
    def registers(self) -> int:
        """Estimate of a thread's registers, as for the forward kernel, with the second operand's copies and
        what is loaded but not transposed yet."""
        s = self.schedule
        copies = (s.tile_m + s.tile_n) * s.tile_k // s.copy_bytes // self.threads
        fragments = self.fragment_registers + 8 + min(copies, 32)
        if s.transpose == "copy":  # patches and fragments do not live at once
            fragments = max(self.fragment_registers, 32) + 8
        return self.accumulator_registers + fragments + 36


DW = Family(
    DwGeometry,
    DwSchedule(
        tile_m=128,
        tile_n=128,
        tile_k=64,
        warps_m=1,
        warps_n=1,
        stages=1,
        stride_pad=0,
        swizzle=False,
        copy_bytes=16,
        fragment_load="ldmatrix",
        split_k=1,
        raster=1,
        min_blocks=1,
        transpose="fragment",
    ),
    (*SHARED_PARAMETERS, "transpose"),
    (*REGISTER_PARAMETERS, "copy_bytes", "transpose"),
)

DW_RULES: tuple[Rule, ...] = (
    Rule(
        "transpose",
        ("transpose",),
        lambda transpose, _: transpose in TRANSPOSES,
        "transpose must be fragment or copy",
    ),
    Rule(
        "tile-rows",
        ("tile_m", "tile_n"),
        lambda m, n, _: power_of_two(m) and power_of_two(n) and m >= 16 and n >= 16,
        "tile_m and tile_n must be powers of two from 16 on, so that threads share rows of X and dY evenly",
    ),
    Rule(
        "warp-columns",
        ("tile_n", "warps_n"),
        lambda tile, warps, _: tile % (16 * warps) == 0,
        "a warp's share of tile_n must be a multiple of 16: columns alternate between two fragments",
    ),
    Rule(
        "row-copy",
        ("tile_m", "tile_n", "warps_m", "warps_n", "copy_bytes"),
        lambda m, n, wm, wn, width, _: max(m, n) // width <= 32 * wm * wn,
        "a row of X or dY must not be more copies than the block has threads",
    ),
    Rule(
        "transposed-load",
        ("fragment_load", "transpose"),
        lambda load, transpose, _: transpose == "copy" or load == "ldmatrix",
        "fragments are transposed by ldmatrix .trans: fragment_load must be ldmatrix",
    ),
    Rule(
        "transposed-swizzle",
        ("tile_m", "tile_n", "swizzle", "transpose"),
        lambda m, n, swizzle, transpose, _: (
            not swizzle or transpose == "copy" or (m in SWIZZLED_ROWS and n in SWIZZLED_ROWS)
        ),
        "rows of tile_m and tile_n bytes must be 32 to 256 long to be swizzled",
    ),
    Rule(
        "transposed-copy",
        ("stages", "transpose"),
        lambda stages, transpose, _: transpose != "copy" or stages == 1,
        "bytes that are transposed between global and shared memory go through registers: stages must be 1",
    ),
    *common_rules(DW),
)
"""What every `DwSchedule` must keep."""
