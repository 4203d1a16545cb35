"""What an instruction computes, in one form: two of the same form give the same, whatever the values."""

import re

from tuner.mutation.source import Statement

_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)")
Form = tuple[object, ...]


def form(statement: Statement) -> Form:
    """The form of a statement without its target and guard.

    ``x * 1``, ``x / 1``, ``x + 0``, ``x - 0`` and shifts by 0 are ``x``; a field that reaches past the word
    ends with it; ``prmt`` by a constant is a list of bytes, those of constants as numbers; constants are
    numbers, however written.
    """
    head, kind = statement.parts[0], statement.parts[-1]
    sources = tuple(_number(text) for text in statement.operands[1:])
    if kind in ("u32", "s32", "b32"):
        neutral = {"mul": 1, "div": 1, "add": 0, "sub": 0, "or": 0, "xor": 0, "shl": 0, "shr": 0}.get(head)
        if neutral is not None and "hi" not in statement.parts and sources[1:] == (neutral,):
            return ("same", sources[0])
        if statement.opcode.startswith("mad.lo.") and sources[1] == 1:
            return ("sum", frozenset((sources[0], sources[2])))
        if statement.opcode.startswith("shfl.sync.") and isinstance(sources[2], int):
            # Bits of the third that the ISA does not look at: PTX ISA, shfl.sync.
            return (statement.opcode, *sources[:2], sources[2] & 0x1F1F, *sources[3:])
        if head == "mov":
            return ("same", sources[0])
        if head == "bfe" and kind == "u32" and isinstance(sources[1], int) and isinstance(sources[2], int):
            return (
                "bfe",
                sources[0],
                sources[1] & 255,
                min(sources[2] & 255, max(32 - (sources[1] & 255), 0)),
            )
        if statement.opcode == "prmt.b32" and isinstance(sources[2], int):
            return ("bytes", *(_byte(sources, sources[2] >> 4 * i & 15) for i in range(4)))
    return (statement.opcode, *sources)


def _number(text: str) -> object:
    return int(text, 0) & 0xFFFFFFFF if _INTEGER.fullmatch(text) else text


def _byte(sources: tuple[object, ...], selector: int) -> object:
    """One byte of ``prmt``: a number, or an operand, a byte of it, and whether only its sign is taken."""
    value, number = sources[selector >> 2 & 1], selector & 3
    if not isinstance(value, int):
        return value, number, selector >> 3
    byte = value >> 8 * number & 255
    return (255 if byte & 128 else 0) if selector & 8 else byte
