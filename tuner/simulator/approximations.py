"""Approximate functions, each perturbed within the error that the PTX ISA states for it (ISA 9.7.3, 9.7.4).

The perturbation is a fixed scramble of the argument, so the same argument always errs the same way, and a
kernel that relies on more than the ISA promises is found out. Special values follow the tables of the ISA
exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.simulator.floats import (
    FLOATS,
    direct_double,
    element,
    lanewise,
    quotient_and_residue,
    root_and_residue,
)
from tuner.simulator.instructions import Compute, Opcode, UnknownModifierError, instruction
from tuner.simulator.rounding import Reals, flushed, read, to_odd, write
from tuner.simulator.scalar_types import SCALARS, Lanes, Scalar

F32 = SCALARS["f32"]


def perturbation(bits: Lanes) -> Reals:
    """Return a value in [-1, 1] for each register."""
    mixed = bits.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    result: Reals = (mixed >> np.uint64(11)).astype(np.float64) / 2.0**52 - 1.0
    return result


def ulps_off(bits: Lanes, source: Lanes, most: int) -> Lanes:
    """Move finite f32 results by at most `most` units in the last place; none to zero, infinity, or over
    the border of subnormals.
    """
    steps = np.rint(perturbation(source) * (most + 0.49)).astype(np.int64)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    border = np.abs(magnitude.astype(np.int64) - 0x00800000 + 0.5) < most
    movable = (magnitude > most) & (magnitude < 0x7F800000 - most) & ~border
    return np.where(movable, (bits.astype(np.int64) + steps).astype(np.uint32), bits)


def scaled(exact: Reals, source: Lanes, error: float) -> Reals:
    """Err by a relative `error` at most."""
    return exact * (1.0 + perturbation(source) * error)


def approximate_division(accuracy: str, flush: bool) -> Callable[[Lanes, Lanes], Lanes]:
    """div.approx and div.full: at most 2 ulp; div.approx gives 0 for 2**126 < |b| < 2**128."""

    def function(x: Lanes, y: Lanes) -> Lanes:
        a, b = read(x, F32, flush), read(y, F32, flush)
        quotient = a / b
        bits = ulps_off(write(quotient, F32, "rn", flush), x ^ (y << np.uint32(1)), 2)
        if accuracy == "approx":
            huge = (np.abs(b) > 2.0**126) & np.isfinite(b) & np.isfinite(a)
            bits = np.where(huge, bits & np.uint32(0x80000000), bits)
        return bits

    return function


def _half_or_single(opcode: Opcode) -> tuple[Scalar, Scalar, bool]:
    flush = opcode.flag("ftz")
    scalar = opcode.type(*FLOATS)
    return scalar, element(scalar), flush


def _exact_root(scalar: Scalar, mode: str, flush: bool) -> Callable[[Lanes], Lanes]:
    def function(x: Lanes) -> Lanes:
        root, residue = root_and_residue(read(x, scalar, flush))
        if scalar.name == "f64":
            return direct_double(root, residue, mode)
        return write(to_odd(root, residue), scalar, mode, flush)

    return function


@instruction("sqrt")
def sqrt(opcode: Opcode) -> Compute:
    """sqrt.rn and friends round once; sqrt.approx errs by 2**-23 relative."""
    approximate = opcode.flag("approx")
    mode = opcode.choice("rn", "rz", "rm", "rp", default="rn")
    flush = opcode.flag("ftz")
    scalar = opcode.type("f32", "f64")
    if not approximate:
        return lanewise(scalar, _exact_root(scalar, mode, flush), 1)

    def function(x: Lanes) -> Lanes:
        root = np.sqrt(read(x, F32, flush))
        return write(scaled(root, x, 2.0**-24), F32, "rn", flush)

    return lanewise(scalar, function, 1)


@instruction("rcp")
def rcp(opcode: Opcode) -> Compute:
    """rcp.rn and friends round once; rcp.approx errs by 1 ulp, its f64 form has 20 good bits only."""
    approximate = opcode.flag("approx")
    mode = opcode.choice("rn", "rz", "rm", "rp", default="rn")
    flush = opcode.flag("ftz")
    scalar = opcode.type("f32", "f64")
    if scalar.name == "f64" and approximate:
        return lanewise(scalar, lambda x: _top_half(1.0 / _top_input(x)), 1)

    def function(x: Lanes) -> Lanes:
        value = read(x, scalar, flush)
        if approximate:
            return ulps_off(write(1.0 / value, F32, "rn", flush), x, 1)
        quotient, residue = quotient_and_residue(np.ones_like(value), value)
        if scalar.name == "f64":
            return direct_double(quotient, residue, mode)
        return write(to_odd(quotient, residue), scalar, mode, flush)

    return lanewise(scalar, function, 1)


def _top_input(x: Lanes) -> Reals:
    value = (x & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
    return np.where(np.abs(value) < 2.0**-1022, np.copysign(0.0, value), value)


def _top_half(value: Reals) -> Lanes:
    """Keep the upper 32 bits of a float64 and flush subnormals, as the `.approx.ftz.f64` forms do."""
    value = np.where(np.abs(value) < 2.0**-1022, np.copysign(0.0, value), value)
    bits = np.ascontiguousarray(value).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)
    return np.where(np.isnan(value), np.uint64(0x7FFFFFFF00000000), bits)


@instruction("rsqrt")
def rsqrt(opcode: Opcode) -> Compute:
    """Relative error 2**-22.9; the f64 form has 20 good bits only."""
    opcode.choice("approx")
    flush = opcode.flag("ftz")
    scalar = opcode.type("f32", "f64")
    if scalar.name == "f64":
        if flush:
            return lanewise(scalar, lambda x: _top_half(1.0 / np.sqrt(_top_input(x))), 1)
        return lanewise(scalar, lambda x: write(1.0 / np.sqrt(read(x, scalar)), scalar), 1)

    def function(x: Lanes) -> Lanes:
        exact = 1.0 / np.sqrt(read(x, F32, flush))
        return write(scaled(exact, x, 2.0**-22.9 - 2.0**-24), F32, "rn", flush)

    return lanewise(scalar, function, 1)


@instruction("ex2")
def ex2(opcode: Opcode) -> Compute:
    """2 ulp in f32; relative error 2**-9.9 in f16 and 2**-7 in bf16."""
    opcode.choice("approx")
    scalar, one, flush = _half_or_single(opcode)
    if one.name == "f64":
        raise UnknownModifierError("ex2 takes f32, f16 and bf16")

    def function(x: Lanes) -> Lanes:
        exact = np.exp2(read(x, one, flush))
        if one.name == "f32":
            bits = ulps_off(write(exact, F32, "rn", flush), x, 2)
            return np.where(read(x, one, flush) == 0, np.uint32(0x3F800000), bits)
        error = 2.0**-9.9 - 2.0**-11 if one.name == "f16" else 2.0**-7 - 2.0**-8
        return write(scaled(exact, x, error), one)

    return lanewise(scalar, function, 1)


@instruction("lg2")
def lg2(opcode: Opcode) -> Compute:
    """Absolute error 2**-22 for arguments in (0.5, 2), relative 2**-22 beyond."""
    opcode.choice("approx")
    flush = opcode.flag("ftz")
    scalar = opcode.type("f32")

    def function(x: Lanes) -> Lanes:
        value = read(x, F32, flush)
        exact = np.log2(value)
        room = np.maximum(np.where((value > 0.5) & (value < 2), 1.0, np.abs(exact)), 0) * (
            2.0**-22 - 2.0**-24
        )
        erred = np.where(np.isfinite(exact) & (value != 1), exact + perturbation(x) * room, exact)
        return write(erred, F32, "rn", flush)

    return lanewise(scalar, function, 1)


@instruction("sin", "cos")
def sine(opcode: Opcode) -> Compute:
    """Absolute error 2**-20.5 within [-pi, pi]; beyond it is taken to grow with the argument."""
    opcode.choice("approx")
    flush = opcode.flag("ftz")
    scalar = opcode.type("f32")
    exact = np.sin if opcode.name == "sin" else np.cos

    def function(x: Lanes) -> Lanes:
        value = read(x, F32, flush)
        room = (2.0**-20.5 - 2.0**-24) * np.maximum(np.abs(value) / np.pi, 1.0)
        erred = exact(value) + perturbation(x) * np.minimum(room, 2.0**-14.7)
        if opcode.name == "sin":
            erred = np.where(value == 0, value, erred)
        return write(erred, F32, "rn", flush)

    return lanewise(scalar, function, 1)


@instruction("tanh")
def tanh(opcode: Opcode) -> Compute:
    """Relative error 2**-11 in f32; absolute 2**-10.987 in f16 and 2**-8 in bf16."""
    opcode.choice("approx")
    scalar, one, _ = _half_or_single(opcode)

    def function(x: Lanes) -> Lanes:
        exact = np.tanh(read(x, one))
        if one.name == "f32":
            erred = scaled(exact, x, 2.0**-11 - 2.0**-23).clip(-1.0, 1.0)
            return write(np.where(np.isinf(read(x, one)), exact, erred), F32)
        error = 2.0**-10.987 - 2.0**-12 if one.name == "f16" else 2.0**-8 - 2.0**-9
        return write(exact + np.where(exact == 0, 0.0, perturbation(x) * error), one)

    return lanewise(scalar, function, 1)


@instruction("testp")
def testp(opcode: Opcode) -> Compute:
    """Whether a number is finite, infinite, a number, NaN, normal or subnormal."""
    kind = opcode.choice("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    scalar = opcode.type("f32", "f64")
    least = 2.0**-126 if scalar.name == "f32" else 2.0**-1022

    def function(x: Lanes) -> Any:
        value = x.view(scalar.view)
        size = np.abs(value)
        tests = {
            "finite": np.isfinite(value),
            "infinite": np.isinf(value),
            "number": ~np.isnan(value),
            "notanumber": np.isnan(value),
            "normal": np.isfinite(value) & (size >= least),
            "subnormal": (size > 0) & (size < least),
        }
        return tests[kind]

    return Compute(SCALARS["pred"], (scalar,), lambda a: lambda r, s: function(r[a]), "float")


@instruction("copysign")
def copysign(opcode: Opcode) -> Compute:
    """b with the sign of a."""
    scalar = opcode.type("f32", "f64")
    top = np.array(1 << (scalar.bits - 1), scalar.storage)
    return lanewise(scalar, lambda x, y: (x & top) | (y & ~top), 2)


__all__ = ["approximate_division", "flushed", "perturbation"]
