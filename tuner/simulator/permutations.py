"""prmt: picks of bytes, in general, by a literal selector, and from a literal table (PTX ISA 9.7.9.7)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.simulator.instructions import Closure, Effect, Opcode, Recipe, Registers, Site, instruction
from tuner.simulator.scalar_types import B32, Lanes
from tuner.simulator.syntax import Integer

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch


@instruction("prmt")
def prmt(opcode: Opcode) -> Recipe:
    """Pick four of the eight bytes of b:a; the special modes derive the picks from two selector bits."""
    mode = opcode.choice("f4e", "b4e", "rc8", "ecl", "ecr", "rc16", default="")
    opcode.type("b32")

    def bind(site: Site) -> Closure:
        site.expect(4)
        site.result = site.target(site.operands[0], B32)
        a, b, selector = (site.source(operand, B32) for operand in site.operands[1:4])
        constants = [operand.value for operand in site.operands[1:3] if isinstance(operand, Integer)]
        if not mode and isinstance(site.operands[3], Integer):
            return _fixed_permutation(a, b, site.operands[3].value)
        if not mode and len(constants) == 2:
            table = _byte_table(constants[0] & 0xFFFFFFFF, constants[1] & 0xFFFFFFFF)

            def look_up(r: Registers, s: Batch) -> Any:
                picks = r[selector]
                return table[picks & _BYTE] | (table[(picks >> _EIGHT) & _BYTE] << _SIXTEEN)

            return look_up

        def run(r: Registers, s: Batch) -> Any:
            picks = r[selector] if not mode else _mode_picks(mode, r[selector])
            words = (r[b].astype(np.uint64) << np.uint64(32)) | r[a]
            result: Lanes = np.zeros((1, 1), np.uint32)
            for byte in range(4):
                nibble = (picks >> np.uint32(4 * byte)) & np.uint32(15)
                chosen = (words >> ((nibble & np.uint32(7)) << np.uint32(3)).astype(np.uint64)).astype(
                    np.uint8
                )
                spread = np.where(chosen >> 7, np.uint8(255), np.uint8(0))
                chosen = np.where(nibble >> np.uint32(3), spread, chosen)
                result = result | (chosen.astype(np.uint32) << np.uint32(8 * byte))
            return result

        return run

    return Effect(bind, "integer")


_BYTE, _EIGHT, _SIXTEEN = np.uint32(0xFF), np.uint32(8), np.uint32(16)


@lru_cache(maxsize=64)
def _byte_table(a: int, b: int) -> Lanes:
    """Two result bytes for each value of two selector nibbles, where both words are literals."""
    source = (b << 32 | a).to_bytes(8, "little")
    pick = [source[n & 7] if n < 8 else 255 * (source[n & 7] >> 7) for n in range(16)]
    return np.array([pick[n & 15] | pick[n >> 4] << 8 for n in range(256)], np.uint32)


def _fixed_permutation(a: int, b: int, selector: int) -> Closure:
    """Shift and mask each run of bytes that keeps its distance, instead of byte by byte."""
    runs: dict[tuple[int, int], int] = {}
    signs = []
    for byte in range(4):
        nibble = selector >> (4 * byte) & 15
        if nibble & 8:
            signs.append((byte, nibble & 7))
        else:
            runs[(nibble >> 2, 8 * (byte - (nibble & 3)))] = (
                runs.get((nibble >> 2, 8 * (byte - (nibble & 3))), 0) | 0xFF << 8 * byte
            )
    steps = [((a, b)[word], distance, np.uint32(mask)) for (word, distance), mask in runs.items()]

    def run(r: Registers, s: Batch) -> Any:
        result = None
        for slot, distance, mask in steps:
            value = r[slot]
            if distance > 0:
                value = value << np.uint32(distance)
            elif distance < 0:
                value = value >> np.uint32(-distance)
            if mask != 0xFFFFFFFF:
                value = value & mask
            result = value if result is None else result | value
        for byte, source in signs:
            word = r[(a, b)[source >> 2]] << np.uint32(24 - 8 * (source & 3))
            value = (word.view(np.int32) >> 31).view(np.uint32) & np.uint32(0xFF << 8 * byte)
            result = value if result is None else result | value
        return result

    return run


def _mode_picks(mode: str, selector: Lanes) -> Lanes:
    tables = {
        "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
        "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
        "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
        "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
        "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
        "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
    }
    picks: Lanes = np.array(tables[mode], np.uint32)[selector & np.uint32(3)]
    return picks
