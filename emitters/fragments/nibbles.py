"""Small unsigned codes in the bytes of a word become f32, exactly."""

from enum import StrEnum

from emitters.fragments.opening import f32
from emitters.ptx import F32, R32, Entry


class Converter(StrEnum):
    """How a byte becomes f32: a conversion (a quarter of the fma rate), or two cheap instructions."""

    CVT = "cvt"
    PRMT = "prmt"


def bytes_to_f32(ptx: Entry, word: R32, how: Converter, count: int = 4, less: int = 0) -> list[F32]:
    """The first `count` bytes of a word, lowest first, as f32, each less a small constant.

    ``prmt`` puts a byte below the exponent of 2^23, where one unit is one bit of the mantissa: the f32 is
    2^23 plus the byte, and subtracting 2^23 (and the constant with it) is exact.
    """
    if how is Converter.PRMT:
        merged = [ptx.r("prmt.b32", word, "0x4B000000", f"0x{0x7440 | byte:04X}") for byte in range(count)]
        return [ptx.f("sub.rn.f32", ptx.f("mov.b32", bits), f32(2.0**23 + less)) for bits in merged]
    isolated = [ptx.r("bfe.u32", word, 8 * byte, 8) for byte in range(count)]
    if less:
        return [ptx.f("cvt.rn.f32.s32", ptx.r("sub.s32", byte, less)) for byte in isolated]
    return [ptx.f("cvt.rn.f32.u32", byte) for byte in isolated]
