"""The text of one PTX operand to its value, and operands under other names."""

from __future__ import annotations

import re
import struct

from tuner.simulator.syntax import (
    Address,
    Arguments,
    Float,
    Integer,
    Name,
    Negated,
    Operand,
    Pair,
    Vector,
)

_SIMPLE = re.compile(r"[\w$%.]+")
_INTEGER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?")
_FLOAT = re.compile(r"[-+]?(?:\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)")


def read_integer(text: str) -> int:
    digits = text.rstrip("U")
    body = digits.lstrip("+-")
    if len(body) > 1 and body[0] == "0" and body.isdigit():
        value = int(body, 8)
        return -value if digits[0] == "-" else value
    return int(digits, 0)


def read_operand(text: str) -> Operand:
    """Turn the text of one operand into its value; raise `ValueError` for what is none."""
    text = text.strip()
    first = text[:1]
    if not first:
        raise ValueError("an operand is missing")
    if first == "{":
        return Vector(tuple(read_operand(item) for item in text[1:-1].split(",")))
    if first == "[":
        return _address(text[1:-1].strip())
    if first == "(":
        inner = text[1:-1].strip()
        return Arguments(tuple(read_operand(item) for item in inner.split(",")) if inner else ())
    if first == "!":
        return Negated(read_operand(text[1:]))
    if first.isdigit() or first in "+-.":
        return _number(text)
    if "|" in text:
        left, _, right = text.partition("|")
        return Pair(read_operand(left), read_operand(right))
    if _SIMPLE.fullmatch(text):
        return Name(text)
    base, plus, offset = text.partition("+")
    if plus and _SIMPLE.fullmatch(base.strip()):  # a variable with an offset, as in `mov.u32 %r1, smem+16`
        return Address(Name(base.strip()), read_integer(offset.strip()))
    raise ValueError(f"operand {text!r} is not understood")


def _number(text: str) -> Operand:
    if _INTEGER.fullmatch(text):
        return Integer(read_integer(text))
    if text[:2] in ("0f", "0F") and len(text) == 10:
        return Float(struct.unpack(">f", bytes.fromhex(text[2:]))[0])
    if text[:2] in ("0d", "0D") and len(text) == 18:
        return Float(struct.unpack(">d", bytes.fromhex(text[2:]))[0])
    if _FLOAT.fullmatch(text):
        return Float(float(text))
    if text[0] == "-" and _SIMPLE.fullmatch(text[1:].strip()):
        return Negated(Name(text[1:].strip()))
    raise ValueError(f"number {text!r} is not understood")


def _address(text: str) -> Address:
    if "{" in text:
        base, _, rest = text.partition(",")
        coordinates = read_operand(rest)
        if not isinstance(coordinates, Vector):
            raise ValueError(f"address [{text}] is not understood")
        return Address(Name(base.strip()), 0, coordinates)
    base, sign, offset = text.partition("+")
    if not sign:
        base, sign, offset = text.partition("-") if not text.startswith("-") else (text, "", "")
    base = base.strip()
    shift = 0
    if sign:
        shift = read_integer(offset.replace(" ", ""))
        shift = -shift if sign == "-" else shift
    if _INTEGER.fullmatch(base):
        return Address(None, read_integer(base) + shift)
    if not _SIMPLE.fullmatch(base):
        raise ValueError(f"address [{text}] is not understood")
    return Address(Name(base), shift)


def renamed_operand(operand: Operand, renamed: dict[str, str]) -> Operand:
    if isinstance(operand, Name):
        return Name(renamed.get(operand.text, operand.text))
    if isinstance(operand, Vector):
        return Vector(tuple(renamed_operand(item, renamed) for item in operand.items))
    if isinstance(operand, Arguments):
        return Arguments(tuple(renamed_operand(item, renamed) for item in operand.items))
    if isinstance(operand, Negated):
        return Negated(renamed_operand(operand.operand, renamed))
    if isinstance(operand, Pair):
        return Pair(renamed_operand(operand.first, renamed), renamed_operand(operand.second, renamed))
    if isinstance(operand, Address) and operand.base is not None:
        vector = operand.coordinates
        moved = Vector(tuple(renamed_operand(item, renamed) for item in vector.items)) if vector else None
        return Address(Name(renamed.get(operand.base.text, operand.base.text)), operand.offset, moved)
    return operand
