"""Sums and maxima across the lanes of a warp, by butterfly shuffles: every lane ends with the result."""

from collections.abc import Sequence

from emitters.ptx import F32, Entry
from emitters.target import WARP

FULL_WARP = "0xFFFFFFFF"


def shuffled(ptx: Entry, value: F32, distance: int) -> F32:
    """The value of the lane whose number differs in bit `distance`. The whole warp takes part."""
    return ptx.f("shfl.sync.bfly.b32", value, distance, f"0x{WARP - 1:X}", FULL_WARP)


def lane_sums(ptx: Entry, values: Sequence[F32], lanes: int = WARP, apart: int = 1) -> list[F32]:
    """Sums over `lanes` lanes whose numbers differ by multiples of `apart`; steps of independent sums
    interleave."""
    return _butterfly(ptx, "add.rn.f32", values, lanes, apart)


def lane_maxima(ptx: Entry, values: Sequence[F32], lanes: int = WARP, apart: int = 1) -> list[F32]:
    """Maxima over lanes, as `lane_sums`."""
    return _butterfly(ptx, "max.f32", values, lanes, apart)


def _butterfly(ptx: Entry, opcode: str, values: Sequence[F32], lanes: int, apart: int) -> list[F32]:
    results = list(values)
    distance = lanes * apart // 2
    while distance >= apart:
        others = [shuffled(ptx, value, distance) for value in results]
        results = [ptx.f(opcode, value, other) for value, other in zip(results, others, strict=True)]
        distance //= 2
    return results
