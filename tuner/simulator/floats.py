"""Floating-point arithmetic: f64, f32, f16, bf16 and their packed halves (PTX ISA 9.7.3 to 9.7.5).

Rounding, flushing (`.ftz`) and saturation are those of the ISA; NaN results are the canonical NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.instructions import (
    Closure,
    Compute,
    Opcode,
    UnknownModifierError,
    instruction,
)
from tuner.simulator.rounding import (
    NAN_BITS,
    Reals,
    add_exact,
    flushed,
    read,
    to_odd,
    two_product,
    two_sum,
    write,
)
from tuner.simulator.scalar_types import SCALARS, Lanes, Scalar

if TYPE_CHECKING:
    pass

FLOATS = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")
Function = Callable[..., Lanes]
"""A function of register bits that returns register bits."""


def comparable(scalar: Scalar, flush: bool) -> Callable[[Lanes], NDArray[Any]]:
    """Return a reader that gives values NumPy compares as the ISA does."""
    if scalar.name in ("f64", "f32", "f16") and not flush:
        view = scalar.view
        return lambda bits: bits.view(view)
    if scalar.name == "f32":
        return lambda bits: flushed(bits.view(np.float32))
    return lambda bits: read(bits, scalar)


def lanewise(scalar: Scalar, function: Function, count: int) -> Compute:
    """Return a recipe for a function of `count` sources; a packed type applies it to both halves."""
    if scalar.name in ("f16x2", "bf16x2"):
        plain = function

        def function(*words: Lanes) -> Lanes:
            halves = (np.ascontiguousarray(word).view(np.uint16).reshape(*word.shape, 2) for word in words)
            packed: Lanes = np.ascontiguousarray(plain(*halves)).view(np.uint32)[..., 0]
            return packed

    if count == 1:

        def build1(a: int) -> Closure:
            return lambda r, s: function(r[a])

        return Compute(scalar, (scalar,), build1, "float")
    if count == 2:

        def build2(a: int, b: int) -> Closure:
            return lambda r, s: function(r[a], r[b])

        return Compute(scalar, (scalar, scalar), build2, "float")

    def build3(a: int, b: int, c: int) -> Closure:
        return lambda r, s: function(r[a], r[b], r[c])

    return Compute(scalar, (scalar, scalar, scalar), build3, "float")


def element(scalar: Scalar) -> Scalar:
    """Return the type of one half of a packed type, any other type itself."""
    return SCALARS[scalar.name.removesuffix("x2")] if scalar.name in ("f16x2", "bf16x2") else scalar


def float_binary(opcode: Opcode) -> Compute:
    """add, sub, mul, min, max."""
    mode = opcode.choice("rn", "rz", "rm", "rp", default="rn")
    flush, saturate, keep_nan = opcode.flag("ftz"), opcode.flag("sat"), opcode.flag("NaN")
    magnitude = opcode.flag("xorsign")
    if magnitude:
        opcode.flag("abs")
    scalar = opcode.type(*FLOATS)
    one = element(scalar)
    name = opcode.name
    if name in ("min", "max"):
        return lanewise(scalar, _extremum(one, name, flush, keep_nan, magnitude), 2)
    if one.name == "f32" and mode == "rn":
        return lanewise(scalar, _single(name, flush, saturate), 2)
    if one.name == "f64":
        return lanewise(scalar, _double(name, mode), 2)
    exact_sum = one.name == "f16"  # all f16 values are multiples of 2**-24 below 2**17: float64 holds sums

    def function(x: Lanes, y: Lanes) -> Lanes:
        a, b = read(x, one, flush), read(y, one, flush)
        if name == "sub":
            b = -b
        exact = a * b if name == "mul" else a + b if exact_sum else add_exact(a, b)
        if mode == "rm" and name != "mul":
            exact = _negative_zero(exact, a, b)
        return write(exact, one, mode, flush, saturate)

    return lanewise(scalar, function, 2)


def _negative_zero(total: Reals, a: Reals, b: Reals) -> Reals:
    """A sum that cancels to zero is -0 when rounding down (IEEE 754, 6.3)."""
    both_positive = (a == 0) & (b == 0) & ~np.signbit(a) & ~np.signbit(b)
    return np.where((total == 0) & ~both_positive, -0.0, total)


def _single(name: str, flush: bool, saturate: bool) -> Function:
    ufunc = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[name]
    nan = np.uint32(NAN_BITS["f32"])

    def function(x: Lanes, y: Lanes) -> Lanes:
        a, b = x.view(np.float32), y.view(np.float32)
        if flush:
            a, b = flushed(a), flushed(b)
        result = ufunc(a, b)
        if flush:
            result = flushed(result)
        if saturate:
            result = np.where(np.isnan(result), np.float32(0), result).clip(np.float32(0), np.float32(1))
            return (result + np.float32(0)).view(np.uint32)
        return np.where(result == result, result.view(np.uint32), nan)

    return function


def _double(name: str, mode: str) -> Function:
    def function(x: Lanes, y: Lanes) -> Lanes:
        a, b = x.view(np.float64), y.view(np.float64)
        if name == "sub":
            b = -b
        value, error = two_product(a, b) if name == "mul" else two_sum(a, b)
        if mode == "rm" and name != "mul":
            value = _negative_zero(value, a, b)
        return direct_double(value, error, mode)

    return function


def direct_double(value: Reals, error: Reals, mode: str) -> Lanes:
    """Step from the nearest float64 to the one that a directed rounding asks for."""
    nan = np.uint64(NAN_BITS["f64"])
    if mode != "rn":
        down = (error < 0) & np.isfinite(error)
        up = (error > 0) & np.isfinite(error)
        if mode == "rz":
            towards, wrong = np.float64(0), np.where(value > 0, down, up)
        else:
            towards, wrong = (np.float64(-np.inf), down) if mode == "rm" else (np.float64(np.inf), up)
        value = np.where(wrong & np.isfinite(value), np.nextafter(value, towards), value)
    bits = np.ascontiguousarray(value).view(np.uint64)
    return np.where(np.isnan(value), nan, bits)


def _extremum(scalar: Scalar, name: str, flush: bool, keep_nan: bool, xorsign: bool) -> Function:
    """-0 is below +0; a NaN loses to a number unless `.NaN`."""

    def function(x: Lanes, y: Lanes) -> Lanes:
        a, b = read(x, scalar, flush), read(y, scalar, flush)
        sign = np.signbit(a) ^ np.signbit(b)
        if xorsign:
            a, b = np.abs(a), np.abs(b)
        first_less = (a < b) | ((a == b) & np.signbit(a) & ~np.signbit(b))
        result = np.where(first_less if name == "min" else ~first_less, a, b)
        result = np.where(np.isnan(a), b, np.where(np.isnan(b), a, result))
        if keep_nan:
            result = np.where(np.isnan(a) | np.isnan(b), np.nan, result)
        if xorsign:
            result = np.where(sign, -result, result)
        return write(result, scalar, "rn", flush)

    return function


def float_multiply_add(opcode: Opcode) -> Compute:
    """fma: one rounding. mad is the same instruction on every target simulated."""
    mode = opcode.choice("rn", "rz", "rm", "rp", default="rn")
    flush, saturate, relu = opcode.flag("ftz"), opcode.flag("sat"), opcode.flag("relu")
    scalar = opcode.type(*FLOATS)
    one = element(scalar)
    if one.name == "f64":
        return lanewise(scalar, _double_fma(mode), 3)

    def function(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
        product = read(x, one, flush) * read(y, one, flush)
        addend = read(z, one, flush)
        exact = add_exact(product, addend)
        if mode == "rm":
            exact = _negative_zero(exact, product, addend)
        if relu:
            exact = np.where(exact > 0, exact, np.where(np.isnan(exact), np.nan, 0.0))
        return write(exact, one, mode, flush, saturate)

    return lanewise(scalar, function, 3)


@instruction("fma")
def fma(opcode: Opcode) -> Compute:
    return float_multiply_add(opcode)


def _double_fma(mode: str) -> Function:
    """Boldo and Melquiond's Fma from two-products, two-sums and one addition rounded to odd."""

    def function(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
        a, b, c = (bits.view(np.float64) for bits in (x, y, z))
        high, low = two_product(a, b)
        low = np.where(np.isfinite(high) & np.isfinite(low), low, 0.0)
        upper, lower = two_sum(c, low)
        value, rest = two_sum(high, upper)
        tail = to_odd(*two_sum(lower, rest))
        total, error = two_sum(value, np.where(np.isfinite(tail), tail, 0.0))
        plain = ~np.isfinite(total)
        total = np.where(plain, a * b + c, total)
        if mode == "rm":
            total = _negative_zero(total, a * b, c)
        return direct_double(total, error, mode)

    return function


def float_unary(opcode: Opcode) -> Compute:
    """abs and neg change the sign bit only; `.ftz` flushes."""
    flush = opcode.flag("ftz")
    scalar = opcode.type(*FLOATS)
    one = element(scalar)
    top = np.array(1 << (one.bits - 1), one.storage)
    rest = np.array((1 << (one.bits - 1)) - 1, one.storage)
    absolute = opcode.name == "abs"

    def function(x: Lanes) -> Any:
        if flush and one.name == "f32":
            x = flushed(x.view(np.float32)).view(np.uint32)
        return x & rest if absolute else x ^ top

    return lanewise(scalar, function, 1)


def float_divide(opcode: Opcode) -> Compute:
    """div.rn and friends round once; `.approx` and `.full` are in `approximations`."""
    from tuner.simulator.approximations import approximate_division

    if opcode.name == "rem":
        raise UnknownModifierError("rem takes integer types")
    accuracy = opcode.choice("approx", "full", default="exact")
    mode = opcode.choice("rn", "rz", "rm", "rp", default="rn")
    flush = opcode.flag("ftz")
    scalar = opcode.type("f32", "f64")
    if accuracy != "exact":
        return lanewise(scalar, approximate_division(accuracy, flush), 2)

    def function(x: Lanes, y: Lanes) -> Lanes:
        a, b = read(x, scalar, flush), read(y, scalar, flush)
        quotient, residue = quotient_and_residue(a, b)
        if scalar.name == "f64":
            return direct_double(quotient, residue, mode)
        return write(to_odd(quotient, residue), scalar, mode, flush)

    return lanewise(scalar, function, 2)


def quotient_and_residue(a: Reals, b: Reals) -> tuple[Reals, Reals]:
    """Return a / b to nearest and a value with the sign of what is missing (0 where it is exact)."""
    quotient = a / b
    product, error = two_product(quotient, b)
    residue = (a - product) - error
    residue = np.where(np.isfinite(quotient) & (b != 0), residue, 0.0)
    return quotient, np.where(np.signbit(b), -residue, residue)


def root_and_residue(a: Reals) -> tuple[Reals, Reals]:
    """Return sqrt(a) to nearest and a value with the sign of what is missing."""
    root = np.sqrt(a)
    square, error = two_product(root, root)
    residue = (a - square) - error
    return root, np.where(np.isfinite(root), residue, 0.0)
