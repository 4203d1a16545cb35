"""A small kernel whose mutants tests judge, and texts of a few statements."""

import dataclasses

from emitters.gemm import GEMM_S8
from emitters.target import Target
from tuner.mutation.source import Source

TARGET = Target.of("sm_89")
SMALL = dataclasses.replace(GEMM_S8.baseline, tile_m=32, tile_n=32, warps_m=1, warps_n=2, stages=2)
EMITTED = GEMM_S8.emit(SMALL, TARGET)


def text(*statements: str) -> Source:
    """A text of these statements and the registers that they may use."""
    return Source.of("\n".join(["    .reg .b32 %r<64>;", "    .reg .pred %p<8>;", *statements]))
