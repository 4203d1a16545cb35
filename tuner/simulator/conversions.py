"""cvt between integers and floating-point formats, in every rounding, with saturation (PTX ISA 9.7.9.21)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.simulator.instructions import (
    Closure,
    Compute,
    Opcode,
    Recipe,
    Registers,
    UnknownModifierError,
    instruction,
)
from tuner.simulator.rounding import Reals, read, write
from tuner.simulator.scalar_types import SCALARS, Lanes, Scalar

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

_TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@instruction("cvt")
def cvt(opcode: Opcode) -> Recipe:
    """`cvt.to.from`; integers wrap unless `.sat`, floats to integers clamp."""
    rounding = opcode.choice("rn", "rz", "rm", "rp", "rna", *_TO_INTEGER, default="")
    flush, saturate = opcode.flag("ftz"), opcode.flag("sat")
    relu, finite = opcode.flag("relu"), opcode.flag("satfinite")
    result, source = opcode.types(2)
    if result.name in ("f16x2", "bf16x2") and source.name == "f32":
        return _two_to_packed(result, rounding, relu, finite)
    if result.name == "tf32":
        return _to_tf32(rounding, relu)
    if result.kind not in "usf" or source.kind not in "usf":
        raise UnknownModifierError(f"cvt.{result.name}.{source.name} is not simulated")
    if result.kind != "f" and source.kind != "f":
        return Compute(result, (source,), _between_integers(result, source, saturate), wide=True)
    if source.kind != "f":
        return Compute(
            result, (source,), _from_integer(result, source, rounding or "rn", saturate), "float", wide=True
        )
    if result.kind != "f":
        return Compute(result, (source,), _to_integer(result, source, rounding, flush), "float", wide=True)
    return Compute(
        result, (source,), _between_floats(result, source, rounding, flush, saturate, relu, finite), "float"
    )


def _between_integers(result: Scalar, source: Scalar, saturate: bool) -> Any:
    view, wanted, storage = source.view, result.view, result.storage
    if not saturate:
        if source.bits == result.bits:
            return lambda a: lambda r, s: r[a]
        return lambda a: lambda r, s: r[a].view(view).astype(wanted).view(storage)
    limits = np.iinfo(wanted)
    own = np.iinfo(view)
    low, high = max(limits.min, own.min), min(limits.max, own.max)
    return lambda a: lambda r, s: r[a].view(view).clip(low, high).astype(wanted).view(storage)


def _from_integer(result: Scalar, source: Scalar, mode: str, saturate: bool) -> Any:
    view = source.view

    def build(a: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            value = r[a].view(view)
            exact = value.astype(np.float64)
            if source.bits == 64:
                exact = _odd_from_64(value, exact)
                if result.name == "f64":
                    return write(_directed_64(value, mode), result, saturate=saturate)
            return write(exact, result, mode, saturate=saturate)

        return run

    return build


def _odd_from_64(value: Any, nearest: Reals) -> Reals:
    """Round 64-bit integers to odd: the error of the nearest float64 is exact in integers."""
    error = _integer_error(value, nearest)
    bits = nearest.view(np.int64)
    away = (error > 0) == (nearest > 0)
    moved = np.where((error != 0) & ((bits & 1) == 0), bits + np.where(away, 1, -1), bits)
    return moved.view(np.float64)


def _integer_error(value: Any, nearest: Reals) -> Any:
    unsigned = value.dtype.kind == "u"
    top = np.float64(2.0**64 if unsigned else 2.0**63)
    # the limit itself does not fit; modulo 2**64 it is 0 or the most negative value
    wrapped = np.where(nearest == top, 0.0 if unsigned else -top, nearest).astype(value.dtype).view(np.uint64)
    return (value.view(np.uint64) - wrapped).view(np.int64)


def _directed_64(value: Any, mode: str) -> Reals:
    nearest: Reals = value.astype(np.float64)
    error = _integer_error(value, nearest)
    wrong = {
        "rn": np.zeros(error.shape, bool),
        "rz": np.where(nearest > 0, error < 0, error > 0),
        "rm": error < 0,
        "rp": error > 0,
    }[mode]
    towards = {"rn": 0.0, "rz": 0.0, "rm": -np.inf, "rp": np.inf}[mode]
    return np.where(wrong, np.nextafter(nearest, towards), nearest)


def _to_integer(result: Scalar, source: Scalar, rounding: str, flush: bool) -> Any:
    if rounding not in _TO_INTEGER:
        raise UnknownModifierError("a conversion from float to integer needs .rni, .rzi, .rmi or .rpi")
    function, view, storage = _TO_INTEGER[rounding], result.view, result.storage
    limits = np.iinfo(view)
    # a limit that float64 rounds up is beyond the range: compare, then use the limit itself
    too_high, too_low = float(limits.max), float(limits.min)
    # PTX ISA, cvt: NaN becomes 0, but the top bit alone where the source is .f64 or the result has 64 bits
    wide = source.bits == 64 or result.bits == 64
    of_nan = np.array(1 << (result.bits - 1) if wide else 0, storage).view(view)

    def build(a: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            value = function(read(r[a], source, flush))
            high, low = value >= too_high, value <= too_low
            undefined = np.isnan(value)
            inside = np.where(high | low | undefined, 0.0, value).astype(view)
            if wide:
                inside = np.where(undefined, of_nan, inside)
            clamped = np.where(high, view.type(limits.max), np.where(low, view.type(limits.min), inside))
            return clamped.view(storage)

        return run

    return build


def _between_floats(
    result: Scalar, source: Scalar, rounding: str, flush: bool, saturate: bool, relu: bool, finite: bool
) -> Any:
    to_whole = _TO_INTEGER.get(rounding)

    def build(a: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            value = read(r[a], source, flush)
            if to_whole is not None:
                value = to_whole(value)
            if relu:
                value = np.where(value > 0, value, np.where(np.isnan(value), np.nan, 0.0))
            mode = "rn" if to_whole is not None or not rounding else rounding
            bits = write(value, result, mode, flush, saturate)
            return _finite(bits, result) if finite else bits

        return run

    return build


def _finite(bits: Lanes, scalar: Scalar) -> Lanes:
    """Replace infinities by the largest finite value of their sign."""
    infinity = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000}[scalar.name]
    top = np.array(1 << (scalar.bits - 1), scalar.storage)
    return np.where((bits & ~top) == infinity, bits - np.array(1, scalar.storage), bits)


def _two_to_packed(result: Scalar, mode: str, relu: bool, finite: bool) -> Recipe:
    """d = {a in the upper half, b in the lower}."""
    half, single = SCALARS[result.name[:-2]], SCALARS["f32"]
    convert = _between_floats(half, single, mode, False, False, relu, finite)

    def build(a: int, b: int) -> Closure:
        upper, lower = convert(a), convert(b)

        def run(r: Registers, s: Batch) -> Any:
            return (upper(r, s).astype(np.uint32) << np.uint32(16)) | lower(r, s).astype(np.uint32)

        return run

    return Compute(result, (single, single), build, "float")


def _to_tf32(mode: str, relu: bool) -> Recipe:
    """Keep 10 bits of mantissa; what the low 13 bits hold is undefined, so they are not left zero."""
    single = SCALARS["f32"]

    def build(a: int) -> Closure:
        def run(r: Registers, s: Batch) -> Any:
            word = r[a]
            if relu:
                word = np.where((word >> np.uint32(31)).astype(bool), np.uint32(0), word)
            if mode == "rna":
                rounded = word + np.uint32(0x1000)
            elif mode == "rz":
                rounded = word
            else:
                rounded = word + np.uint32(0xFFF) + ((word >> np.uint32(13)) & np.uint32(1))
            special = (word & np.uint32(0x7F800000)) == 0x7F800000
            return np.where(special, word, (rounded & np.uint32(0xFFFFE000)) | np.uint32(0x0A5A))

        return run

    return Compute(SCALARS["b32"], (single,), build, "float")
