"""Schedules of `hslm_dx_s8`: those of the forward kernel, with codes that lie along k."""

from dataclasses import dataclass

from emitters import gemm_lanes
from emitters.fragments.decode import SCALE_SHIFT
from emitters.fragments.tile import RowTile
from emitters.gemm_lanes import LanePart
from emitters.gemm_rules import (
    REGISTER_PARAMETERS,
    SHARED_PARAMETERS,
    TERNARY_RULES,
    Family,
    Rule,
    common_rules,
)
from emitters.gemm_schedule import GemmSchedule, Geometry, code_pad


@dataclass(frozen=True)
class DxSchedule(GemmSchedule):
    """How `hslm_dx_s8` is computed: parameters as in `GemmSchedule`, where B is w transposed."""


@dataclass(frozen=True)
class DxGeometry(Geometry):
    """What follows from a `DxSchedule`."""

    schedule: DxSchedule

    @property
    def b_kind(self) -> str:
        """How w gets to the mma: ``decoded`` to s8 rows, ``words`` of codes, or prepacked ``records``."""
        if self.schedule.decode == "shared":
            return "decoded"
        return "words" if self.schedule.weight_layout == "plain" else "records"

    @property
    def valid(self) -> str:
        """Rows of codes are K / 4 bytes long; wide copies need them aligned."""
        if self.schedule.weight_layout == "plain" and self.schedule.copy_bytes > 4:
            return f"k % {4 * self.schedule.copy_bytes} == 0"
        return "1"

    @property
    def code_tile(self) -> RowTile:
        """Rows of codes, a column of dX each. The lanes of a fragment read eight of them at once."""
        row_bytes = self.schedule.tile_k // 4
        return RowTile(self.schedule.tile_n, row_bytes, code_pad(row_bytes, 8))

    @property
    def lane_part(self) -> LanePart:
        return (gemm_lanes.pair_ordered if self.paired else gemm_lanes.natural)(self.fragments_n)

    @property
    def scale_shift(self) -> int:
        return SCALE_SHIFT if self.b_kind == "records" else 0

    @property
    def registers(self) -> int:
        """As estimated for the forward kernel; codes on their way to the mma take more."""
        held = self.fragments_n if self.b_kind == "words" else 0
        return super().registers + held


DX = Family(
    DxGeometry,
    DxSchedule(
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
        decode="register",
        weight_layout="plain",
    ),
    (*SHARED_PARAMETERS, "decode", "weight_layout"),
    (*REGISTER_PARAMETERS, "decode", "weight_layout"),
)

DX_RULES: tuple[Rule, ...] = (
    *TERNARY_RULES,
    Rule(
        "code-copy",
        ("tile_k", "copy_bytes", "weight_layout"),
        lambda tile, width, layout, _: layout == "fragment" or tile % (4 * width) == 0,
        "a copy must not be wider than the block's row of codes, tile_k / 4 bytes",
    ),
    *common_rules(DX),
)
"""What every `DxSchedule` must keep."""
