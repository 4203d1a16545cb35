"""Integer arithmetic: sums, products, quotients, extrema, dot products (PTX ISA 9.7.1).

Where the ISA leaves a result unspecified (division by zero) the result is poison, never a convenient zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.simulator.carries import product_with_carry, sum_with_carry
from tuner.simulator.floats import float_binary, float_divide, float_multiply_add, float_unary
from tuner.simulator.instructions import (
    Closure,
    Compute,
    Opcode,
    Recipe,
    Registers,
    UnknownModifierError,
    instruction,
)
from tuner.simulator.layout import PARAMETER_BASE
from tuner.simulator.scalar_types import POISON, SCALARS, U32, U64, Lanes, Scalar

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

INTEGERS = tuple(f"{kind}{bits}" for kind in "us" for bits in (16, 32, 64))


def binary(function: Callable[[Lanes, Lanes], Lanes], scalar: Scalar) -> Callable[..., Closure]:
    """Build closures that apply a two-operand ufunc, on the bits for unsigned and untyped values."""
    view, storage = scalar.view, scalar.storage
    if scalar.kind == "s":

        def signed(a: int, b: int) -> Closure:
            return lambda r, s: function(r[a].view(view), r[b].view(view)).view(storage)

        return signed

    def plain(a: int, b: int) -> Closure:
        return lambda r, s: function(r[a], r[b])

    return plain


@instruction("add", "sub", "addc", "subc")
def add(opcode: Opcode) -> Recipe:
    """Integer sums wrap; `.sat` (s32 only) clamps."""
    takes, gives = opcode.name.endswith("c"), opcode.flag("cc")
    if takes or gives:
        return sum_with_carry(opcode, takes, gives)
    saturate = opcode.flag("sat") if "s32" in opcode.modifiers else False
    if any(name in opcode.modifiers for name in ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")):
        return float_binary(opcode)
    scalar = opcode.type(*INTEGERS, "u16x2", "s16x2")
    function = np.add if opcode.name == "add" else np.subtract
    if scalar.name in ("u16x2", "s16x2"):
        return Compute(scalar, (scalar, scalar), halves(function, scalar.name[:3]))
    if saturate:

        def clamped(a: int, b: int) -> Closure:
            def run(r: Registers, s: Batch) -> Any:
                exact = function(r[a].view(np.int32), r[b].view(np.int32), dtype=np.int64)
                return exact.clip(-(2**31), 2**31 - 1).astype(np.int32).view(np.uint32)

            return run

        return Compute(scalar, (scalar, scalar), clamped)
    unsigned = scalar._replace(kind="u")
    return Compute(scalar, (scalar, scalar), binary(function, unsigned))


def halves(function: Callable[[Lanes, Lanes], Lanes], name: str) -> Callable[..., Closure]:
    """Build closures that apply a ufunc to the two 16-bit halves of 32-bit registers."""
    view = SCALARS[name].view

    def build(a: int, b: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            first, second = np.broadcast_arrays(r[a], r[b])
            x, y = (np.ascontiguousarray(value).view(view) for value in (first, second))
            return function(x, y).astype(view).view(np.uint32)

        return run

    return build


def wide_of(scalar: Scalar) -> Scalar:
    """Return the type of twice the width."""
    return SCALARS[f"{scalar.kind}{scalar.bits * 2}"]


def multiply(scalar: Scalar, part: str) -> Callable[[Lanes, Lanes], Lanes]:
    """Return the function of two registers that gives the low, high or wide product, as bits."""
    view, storage = scalar.view, scalar.storage
    if part == "lo":
        return np.multiply
    if scalar.bits < 64:
        wide = wide_of(scalar)
        if part == "wide":
            return lambda x, y: np.multiply(x.view(view), y.view(view), dtype=wide.view).view(wide.storage)
        return lambda x, y: (
            (np.multiply(x.view(view), y.view(view), dtype=wide.view) >> scalar.bits)
            .astype(view)
            .view(storage)
        )
    if part == "wide":
        raise UnknownModifierError("mul.wide takes 16- and 32-bit types")
    return _high_signed if scalar.kind == "s" else _high_unsigned


def _high_unsigned(x: Lanes, y: Lanes) -> Any:
    low_mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1, y0, y1 = x & low_mask, x >> shift, y & low_mask, y >> shift
    middle = x1 * y0 + ((x0 * y0) >> shift)
    other = x0 * y1 + (middle & low_mask)
    return x1 * y1 + (middle >> shift) + (other >> shift)


def _high_signed(x: Lanes, y: Lanes) -> Any:
    zero, sign = np.uint64(0), np.uint64(63)
    negative_x, negative_y = (x >> sign).astype(bool), (y >> sign).astype(bool)
    return _high_unsigned(x, y) - np.where(negative_x, y, zero) - np.where(negative_y, x, zero)


@instruction("mul")
def mul(opcode: Opcode) -> Recipe:
    part = opcode.choice("lo", "hi", "wide", default="")
    if not part:
        return float_binary(opcode)
    scalar = opcode.type(*INTEGERS)
    function = multiply(scalar, part)

    def build(a: int, b: int) -> Closure:
        return lambda r, s: function(r[a], r[b])

    return Compute(wide_of(scalar) if part == "wide" else scalar, (scalar, scalar), build)


@instruction("mad", "madc")
def mad(opcode: Opcode) -> Recipe:
    gives = opcode.flag("cc")
    part = opcode.choice("lo", "hi", "wide", default="")
    if not part:
        return float_multiply_add(opcode)
    saturate = opcode.flag("sat")
    scalar = opcode.type(*INTEGERS)
    if gives or opcode.name == "madc":
        return product_with_carry(opcode, scalar, part, opcode.name == "madc", gives)
    function = multiply(scalar, part)
    result = wide_of(scalar) if part == "wide" else scalar
    if saturate:
        if part != "hi" or scalar.name != "s32":
            raise UnknownModifierError("mad.sat is for .hi.s32 only")

        def clamped(a: int, b: int, c: int) -> Closure:
            def run(r: Registers, s: Batch) -> Any:
                total = function(r[a], r[b]).view(np.int32).astype(np.int64) + r[c].view(np.int32)
                return total.clip(-(2**31), 2**31 - 1).astype(np.int32).view(np.uint32)

            return run

        return Compute(result, (scalar, scalar, result), clamped)

    def build(a: int, b: int, c: int) -> Closure:
        return lambda r, s: function(r[a], r[b]) + r[c]

    return Compute(result, (scalar, scalar, result), build)


@instruction("mul24", "mad24")
def mul24(opcode: Opcode) -> Recipe:
    """Products of the low 24 bits; `.hi` is bits 47..16 of the 48-bit product."""
    part = opcode.choice("lo", "hi")
    scalar = opcode.type("u32", "s32")
    shift = 0 if part == "lo" else 16

    def product(x: Lanes, y: Lanes) -> Any:
        factors = [(value << np.uint32(8)).view(scalar.view) >> 8 for value in (x, y)]
        exact = np.multiply(factors[0], factors[1], dtype=np.int64) >> shift
        return exact.astype(np.uint64).astype(np.uint32)

    if opcode.name == "mul24":
        return Compute(scalar, (scalar, scalar), lambda a, b: lambda r, s: product(r[a], r[b]))
    return Compute(scalar, (scalar,) * 3, lambda a, b, c: lambda r, s: product(r[a], r[b]) + r[c])


@instruction("div", "rem")
def div(opcode: Opcode) -> Recipe:
    """Integer quotients truncate towards zero; by zero the result is unspecified."""
    if any(name in opcode.modifiers for name in ("f32", "f64")):
        return float_divide(opcode)
    scalar = opcode.type(*INTEGERS)
    view, storage = scalar.view, scalar.storage
    unspecified = np.array(POISON & ((1 << scalar.bits) - 1), storage).view(view)
    remainder = opcode.name == "rem"

    def build(a: int, b: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            x, y = r[a].view(view), r[b].view(view)
            zero = y == 0
            safe = np.where(zero, np.array(1, view), y)
            rest = np.fmod(x, safe)
            result = rest if remainder else np.floor_divide(x - rest, safe)
            return np.where(zero, unspecified, result).view(storage)

        return run

    return Compute(scalar, (scalar, scalar), build)


@instruction("min", "max")
def extremum(opcode: Opcode) -> Recipe:
    if any(name in opcode.modifiers for name in ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")):
        return float_binary(opcode)
    relu = opcode.flag("relu")
    scalar = opcode.type(*INTEGERS, "u16x2", "s16x2")
    function: Callable[[Lanes, Lanes], Lanes] = np.minimum if opcode.name == "min" else np.maximum
    if relu:
        plain = function
        function = lambda x, y: np.maximum(plain(x, y), np.array(0, x.dtype))  # noqa: E731
    if scalar.name in ("u16x2", "s16x2"):
        return Compute(scalar, (scalar, scalar), halves(function, scalar.name[:3]))
    return Compute(scalar, (scalar, scalar), binary(function, scalar))


@instruction("abs", "neg")
def sign(opcode: Opcode) -> Recipe:
    """The most negative value is its own negative and its own magnitude."""
    if any(name in opcode.modifiers for name in ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")):
        return float_unary(opcode)
    scalar = opcode.type("s16", "s32", "s64")
    function = np.negative if opcode.name == "neg" else np.abs
    view, storage = scalar.view, scalar.storage
    return Compute(scalar, (scalar,), lambda a: lambda r, s: function(r[a].view(view)).view(storage))


@instruction("sad")
def sad(opcode: Opcode) -> Recipe:
    """c + |a - b|."""
    scalar = opcode.type(*INTEGERS)
    view, storage = scalar.view, scalar.storage

    def build(a: int, b: int, c: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            x, y = r[a].view(view), r[b].view(view)
            return (
                np.where(x < y, y.view(storage) - x.view(storage), x.view(storage) - y.view(storage)) + r[c]
            )

        return run

    return Compute(scalar, (scalar,) * 3, build)


@instruction("dp4a")
def dp4a(opcode: Opcode) -> Recipe:
    """c plus the dot product of four bytes."""
    types = opcode.types(2)
    views = [np.dtype(np.int8 if scalar.kind == "s" else np.uint8) for scalar in types]

    def build(a: int, b: int, c: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            x, y = (
                np.ascontiguousarray(r[slot]).view(view).reshape(*r[slot].shape, 4).astype(np.int32)
                for slot, view in zip((a, b), views, strict=True)
            )
            return (x * y).sum(-1, dtype=np.int32).view(np.uint32) + r[c]

        return run

    return Compute(U32, (U32, U32, U32), build)


@instruction("dp2a")
def dp2a(opcode: Opcode) -> Recipe:
    """c plus the dot product of two 16-bit halves of a with the low or high two bytes of b."""
    first = 0 if opcode.choice("lo", "hi") == "lo" else 2
    wide, narrow = opcode.types(2)
    views = (
        np.dtype(np.int16 if wide.kind == "s" else np.uint16),
        np.dtype(f"{'i' if narrow.kind == 's' else 'u'}1"),
    )

    def build(a: int, b: int, c: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            x = np.ascontiguousarray(r[a]).view(views[0]).reshape(*r[a].shape, 2).astype(np.int32)
            y = np.ascontiguousarray(r[b]).view(views[1]).reshape(*r[b].shape, 4)[..., first : first + 2]
            return (x * y.astype(np.int32)).sum(-1, dtype=np.int32).view(np.uint32) + r[c]

        return run

    return Compute(U32, (U32, U32, U32), build)


def _addresses(opcode: Opcode) -> Recipe:
    scalar = opcode.type("u32", "u64")
    return Compute(scalar, (scalar,), lambda a: lambda r, s: r[a])


@instruction("cvta")
def cvta(opcode: Opcode) -> Recipe:
    """Between a state space and generic addresses, where every space has its own window."""
    opcode.flag("to")
    space = opcode.choice("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param")
    if space in ("global", "const") or "u32" in opcode.modifiers:
        return _addresses(opcode)
    opcode.type("u64")
    if space == "param":  # an address of 64 bits has its window already
        base = np.array([[PARAMETER_BASE]], np.uint64)
        if ".to." in opcode.text:
            return Compute(U64, (U64,), lambda a: lambda r, s: r[a] & ~base)
        return Compute(U64, (U64,), lambda a: lambda r, s: r[a] | base)
    window = np.array([[GENERIC_WINDOWS[space.split("::")[0]]]], np.uint64)
    if ".to." in opcode.text:
        return Compute(U64, (U64,), lambda a: lambda r, s: r[a] - window)
    return Compute(U64, (U64,), lambda a: lambda r, s: r[a] + window)


GENERIC_WINDOWS = {"shared": 1 << 60, "local": 2 << 60}
