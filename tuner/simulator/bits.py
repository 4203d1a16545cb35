"""Logic, shifts, bit fields and byte permutations (PTX ISA 9.7.8)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.simulator.instructions import (
    Closure,
    Compute,
    Effect,
    Opcode,
    Recipe,
    Registers,
    Site,
    instruction,
)
from tuner.simulator.scalar_types import B32, PREDICATE, S32, U32, Lanes, Scalar

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@instruction("and", "or", "xor")
def logic(opcode: Opcode) -> Recipe:
    scalar = opcode.type("b16", "b32", "b64", "pred")
    function = _LOGIC[opcode.name]
    return Compute(scalar, (scalar, scalar), lambda a, b: lambda r, s: function(r[a], r[b]))


@instruction("not")
def invert(opcode: Opcode) -> Recipe:
    scalar = opcode.type("b16", "b32", "b64", "pred")
    return Compute(scalar, (scalar,), lambda a: lambda r, s: ~r[a])


@instruction("cnot")
def cnot(opcode: Opcode) -> Recipe:
    """1 where the source is 0, else 0."""
    scalar = opcode.type("b16", "b32", "b64")
    storage = scalar.storage
    return Compute(scalar, (scalar,), lambda a: lambda r, s: (r[a] == 0).astype(storage))


@instruction("shl", "shr")
def shift(opcode: Opcode) -> Recipe:
    """Amounts beyond the width clamp to it; signed right shifts fill with the sign."""
    scalar = opcode.type(*(f"{kind}{bits}" for kind in "bus" for bits in (16, 32, 64)))
    function = np.left_shift if opcode.name == "shl" else np.right_shift
    view, storage, last = scalar.view, scalar.storage, np.uint32(scalar.bits - 1)
    if opcode.name == "shr" and scalar.kind == "s":

        def signed(a: int, b: int) -> Closure:
            return lambda r, s: (r[a].view(view) >> np.minimum(r[b], last).astype(view)).view(storage)

        return Compute(scalar, (scalar, U32), signed)
    if scalar.bits == 32:
        return Compute(scalar, (scalar, U32), lambda a, b: lambda r, s: function(r[a], r[b]))

    def other(a: int, b: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            amount = np.minimum(r[b], np.uint32(scalar.bits)).astype(storage)
            return function(r[a], amount)

        return run

    return Compute(scalar, (scalar, U32), other)


@instruction("shf")
def funnel_shift(opcode: Opcode) -> Recipe:
    """32 bits of the concatenation b:a shifted left or right."""
    left = opcode.choice("l", "r") == "l"
    clamp = opcode.choice("clamp", "wrap") == "clamp"
    opcode.type("b32")

    def build(a: int, b: int, c: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            amount = np.minimum(r[c], np.uint32(32)) if clamp else r[c] & np.uint32(31)
            both = (r[b].astype(np.uint64) << np.uint64(32)) | r[a]
            if left:
                return ((both << amount.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)
            return (both >> amount.astype(np.uint64)).astype(np.uint32)

        return run

    return Compute(B32, (B32, B32, U32), build)


def _fold(table: int) -> Callable[[Lanes, Lanes, Lanes], Lanes]:
    """Return a function of three words for a lop3 table: the cheapest of two nested operations, else a sum of
    minterms.
    """
    values = {"a": 0xF0, "b": 0xCC, "c": 0xAA}
    functions: dict[str, Callable[[int, int], int]] = {
        "&": lambda x, y: x & y,
        "|": lambda x, y: x | y,
        "^": lambda x, y: x ^ y,
        "&~": lambda x, y: x & ~y & 0xFF,
        "|~": lambda x, y: (x | ~y) & 0xFF,
    }
    for first, second, third in permutations("abc"):
        x, y, z = values[first], values[second], values[third]
        for inner, inside in functions.items():
            word = inside(x, y)
            for outer, outside in functions.items():
                for text, value in (
                    (f"({first} {inner} {second}) {outer} {third}", outside(word, z)),
                    (f"{third} {outer} ({first} {inner} {second})", outside(z, word)),
                ):
                    if value == table:
                        return _compiled(text)
                    if value ^ 0xFF == table:
                        return _compiled(f"~({text})")
            if word == table:
                return _compiled(f"{first} {inner} {second}")
    minterms = [
        "(" + " & ".join(n if row >> s & 1 else f"~{n}" for n, s in (("a", 2), ("b", 1), ("c", 0))) + ")"
        for row in range(8)
        if table >> row & 1
    ]
    return _compiled(" | ".join(minterms) or "a ^ a")


def _compiled(text: str) -> Callable[[Lanes, Lanes, Lanes], Lanes]:
    words = text.replace("&~", "& ~").replace("|~", "| ~")
    function: Callable[[Lanes, Lanes, Lanes], Lanes] = eval(f"lambda a, b, c: {words}")
    return function


lop3_function = lru_cache(maxsize=256)(_fold)


@instruction("lop3")
def lop3(opcode: Opcode) -> Recipe:
    """Any function of three bits, by its truth table; `.BoolOp` also gives a predicate."""
    boolean = opcode.choice("or", "and", default="")
    opcode.type("b32")

    def bind(site: Site) -> Closure:
        site.expect(6 if boolean else 5)
        result, truth = site.pair(site.operands[0])
        a, b, c = (site.source(operand, B32) for operand in site.operands[1:4])
        function = lop3_function(site.whole(site.operands[4]) & 0xFF)
        d = site.target(result, B32)
        if not boolean:

            def plain(r: Registers, s: Batch) -> None:
                s.write(r, d, function(r[a], r[b], r[c]))

            return plain
        if truth is None:
            raise site.error("lop3 with .BoolOp writes d|p")
        p = site.target(truth, PREDICATE)
        q, negated = site.predicate(site.operands[5])
        combine = _LOGIC[boolean]

        def run(r: Registers, s: Batch) -> None:
            word = function(r[a], r[b], r[c])
            flag = combine(word != 0, ~r[q] if negated else r[q])
            s.write(r, d, word)
            s.write(r, p, flag)

        return run

    if boolean:
        return Effect(bind, "integer")

    def bind_plain(site: Site) -> Closure:
        site.expect(5)
        d = site.target(site.operands[0], B32)
        a, b, c = (site.source(operand, B32) for operand in site.operands[1:4])
        function = lop3_function(site.whole(site.operands[4]) & 0xFF)
        site.result = d
        return lambda r, s: function(r[a], r[b], r[c])

    return Effect(bind_plain, "integer")


@instruction("bfe")
def bfe(opcode: Opcode) -> Recipe:
    """Extract a bit field; a signed one is extended from its top bit, or from the word's where it runs past
    the end.
    """
    scalar = opcode.type("u32", "s32", "u64", "s64")
    bits, storage, view = scalar.bits, scalar.storage, scalar.view

    def build(a: int, b: int, c: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            position = (r[b] & np.uint32(255)).astype(np.int64)
            length = (r[c] & np.uint32(255)).astype(np.int64)
            value = r[a]
            high = np.minimum(position + length, bits)
            kept = np.maximum(high - np.minimum(position, bits), 0)
            left = np.where(kept > 0, bits - high, 0).astype(storage)
            down = np.where(kept > 0, bits - kept, 0).astype(storage)
            field = (value << left).view(view) >> down.view(view)
            if scalar.kind == "u":
                empty: Lanes = np.zeros((1, 1), view)
            else:
                empty = np.where(length > 0, value.view(view) >> np.array(bits - 1, view), np.array(0, view))
            return np.where(kept > 0, field, empty).view(storage)

        return run

    return Compute(scalar, (scalar, U32, U32), build)


@instruction("bfi")
def bfi(opcode: Opcode) -> Recipe:
    """Insert the low bits of a into b."""
    scalar = opcode.type("b32", "b64")
    bits, storage = scalar.bits, scalar.storage

    def build(a: int, b: int, c: int, d: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            position = (r[c] & np.uint32(255)).astype(np.int64)
            length = np.minimum((r[d] & np.uint32(255)).astype(np.int64), bits)
            ones = np.array((1 << bits) - 1, storage)
            shift = np.minimum(position, bits).astype(storage)
            low = np.where(
                length == bits, ones, (np.array(1, storage) << length.astype(storage)) - np.array(1, storage)
            )
            mask = low << shift
            return (r[b] & ~mask) | ((r[a] << shift) & mask)

        return run

    return Compute(scalar, (scalar, scalar, U32, U32), build)


@instruction("bmsk")
def bmsk(opcode: Opcode) -> Recipe:
    """A mask of b ones from bit a on."""
    clamp = opcode.choice("clamp", "wrap") == "clamp"
    opcode.type("b32")

    def build(a: int, b: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            start, width = r[a].astype(np.uint64), r[b].astype(np.uint64)
            if not clamp:
                start, width = start & np.uint64(31), width & np.uint64(31)
            start, width = np.minimum(start, np.uint64(32)), np.minimum(width, np.uint64(32))
            return (((np.uint64(1) << width) - np.uint64(1)) << start).astype(np.uint32)

        return run

    return Compute(B32, (U32, U32), build)


@instruction("popc")
def popc(opcode: Opcode) -> Recipe:
    scalar = opcode.type("b32", "b64")
    return Compute(U32, (scalar,), lambda a: lambda r, s: np.bitwise_count(r[a]).astype(np.uint32))


@instruction("clz")
def clz(opcode: Opcode) -> Recipe:
    scalar = opcode.type("b32", "b64")
    return Compute(U32, (scalar,), lambda a: lambda r, s: _leading_zeros(r[a], scalar))


def _leading_zeros(value: Lanes, scalar: Scalar) -> Lanes:
    shift = 1
    while shift < scalar.bits:
        value = value | (value >> np.array(shift, scalar.storage))
        shift *= 2
    return np.uint32(scalar.bits) - np.bitwise_count(value).astype(np.uint32)


@instruction("bfind")
def bfind(opcode: Opcode) -> Recipe:
    """Position of the top bit that differs from the sign; all ones where there is none."""
    as_shift = opcode.flag("shiftamt")
    scalar = opcode.type("u32", "s32", "u64", "s64")

    def build(a: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            value = r[a]
            if scalar.kind == "s":
                value = np.where(value.view(scalar.view) < 0, ~value, value)
            zeros = _leading_zeros(value, scalar)
            found = zeros if as_shift else np.uint32(scalar.bits - 1) - zeros
            return np.where(value == 0, np.uint32(0xFFFFFFFF), found)

        return run

    return Compute(U32, (scalar,), build)


@instruction("brev")
def brev(opcode: Opcode) -> Recipe:
    scalar = opcode.type("b32", "b64")
    storage = scalar.storage
    steps = [(1, 0x55), (2, 0x33), (4, 0x0F)]

    def build(a: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            value = r[a].byteswap()
            for distance, byte in steps:
                mask = np.array(int.from_bytes(bytes([byte]) * scalar.nbytes, "little"), storage)
                by = np.array(distance, storage)
                value = ((value >> by) & mask) | ((value & mask) << by)
            return value

        return run

    return Compute(scalar, (scalar,), build)


@instruction("fns")
def fns(opcode: Opcode) -> Recipe:
    """Find the n-th set bit from a base, upwards for n > 0 and downwards for n < 0."""
    opcode.type("b32")

    def find(mask: int, base: int, offset: int) -> int:
        if offset == 0:
            return base if mask >> base & 1 else 0xFFFFFFFF
        step, count, position = (1 if offset > 0 else -1), abs(offset), base
        while 0 <= position < 32:
            count -= mask >> position & 1
            if count == 0:
                return position
            position += step
        return 0xFFFFFFFF

    def build(a: int, b: int, c: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            mask, base, offset = np.broadcast_arrays(r[a], r[b], r[c].view(np.int32))
            found = [
                find(int(m), int(p), int(n))
                for m, p, n in zip(mask.flat, base.flat, offset.flat, strict=True)
            ]
            return np.array(found, np.uint32).reshape(mask.shape)

        return run

    return Compute(B32, (B32, U32, S32), build)


@instruction("szext")
def szext(opcode: Opcode) -> Recipe:
    """Keep b bits of a, sign- or zero-extended."""
    clamp = opcode.choice("clamp", "wrap") == "clamp"
    scalar = opcode.type("u32", "s32")

    def build(a: int, b: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            width = np.minimum(r[b], np.uint32(32)) if clamp else r[b] & np.uint32(31)
            away = np.uint32(32) - width
            shifted = (r[a] << away).view(scalar.view)
            kept = (shifted >> np.minimum(away, np.uint32(31)).view(scalar.view)).view(np.uint32)
            return np.where(width == 0, np.uint32(0), kept)

        return run

    return Compute(scalar, (scalar, U32), build)
