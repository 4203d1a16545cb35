"""Comparisons and selections (PTX ISA 9.7.6 and 9.7.7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.simulator.floats import comparable
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
from tuner.simulator.scalar_types import F32, PREDICATE, S32, SCALARS, Lanes, Scalar

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

_ORDERED: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_COMPARISONS = (*_ORDERED, *_UNSIGNED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def compare(name: str, scalar: Scalar, flush: bool) -> Callable[[Lanes, Lanes], Lanes]:
    """Return the function of two registers that gives the truth of a comparison."""
    if scalar.kind != "f":
        function, view = _ORDERED[_UNSIGNED.get(name, name)], scalar.view
        if scalar.kind == "s":
            return lambda x, y: function(x.view(view), y.view(view))
        return function
    read = comparable(scalar, flush)
    if name in ("num", "nan"):

        def ordered(x: Lanes, y: Lanes) -> Any:
            unordered = np.isnan(read(x)) | np.isnan(read(y))
            return unordered if name == "nan" else ~unordered

        return ordered
    if name in _ORDERED and name != "ne":
        function = _ORDERED[name]
        return lambda x, y: function(read(x), read(y))
    if name == "ne":  # ordered: false if either is NaN
        return lambda x, y: (read(x) < read(y)) | (read(x) > read(y))
    function = _ORDERED[name[:2]]

    def unordered_or(x: Lanes, y: Lanes) -> Any:
        a, b = read(x), read(y)
        return function(a, b) | np.isnan(a) | np.isnan(b)

    return unordered_or


@instruction("setp")
def setp(opcode: Opcode) -> Recipe:
    """p (and q, its complement) from a comparison, combined with a third predicate if there is one."""
    name = opcode.choice(*_COMPARISONS)
    combine = opcode.choice("and", "or", "xor", default="")
    flush = opcode.flag("ftz")
    scalar = opcode.type()
    if scalar.name in ("f16x2", "bf16x2"):
        return _packed(compare(name, SCALARS[scalar.name[:-2]], flush), combine)
    truth = compare(name, scalar, flush)

    def bind(site: Site) -> Closure:
        site.expect(4 if combine else 3)
        first, second = site.pair(site.operands[0])
        a, b = (site.source(operand, scalar) for operand in site.operands[1:3])
        join = _COMBINE[combine] if combine else None
        c, negated = site.predicate(site.operands[3]) if combine else (0, False)
        p = site.target(first, PREDICATE)
        q = site.target(second, PREDICATE) if second is not None else None

        def value(r: Registers) -> tuple[Lanes, Lanes | None]:
            found = truth(r[a], r[b])
            if join is None:
                return found, (~found if q is not None else None)
            other = ~r[c] if negated else r[c]
            return join(found, other), (join(~found, other) if q is not None else None)

        if q is None:
            site.result = p
            if join is None:
                return lambda r, s: truth(r[a], r[b])
            return lambda r, s: value(r)[0]

        def run(r: Registers, s: Batch) -> None:
            one, two = value(r)
            s.write(r, p, one)
            s.write(r, q, two)

        return run

    return Effect(bind, "integer" if scalar.kind != "f" else "float")


def _packed(truth: Callable[[Lanes, Lanes], Lanes], combine: str) -> Recipe:
    """Compare two packed halves: p is of the low ones, q of the high ones."""
    scalar = SCALARS["f16x2"]

    def bind(site: Site) -> Closure:
        site.expect(4 if combine else 3)
        first, second = site.pair(site.operands[0])
        a, b = (site.source(operand, scalar) for operand in site.operands[1:3])
        c, negated = site.predicate(site.operands[3]) if combine else (0, False)
        targets = [site.target(operand, PREDICATE) for operand in (first, second) if operand is not None]

        def run(r: Registers, s: Batch) -> None:
            found = [
                truth(
                    (r[a] >> np.uint32(shift)).astype(np.uint16), (r[b] >> np.uint32(shift)).astype(np.uint16)
                )
                for shift in (0, 16)
            ]
            for slot, value in zip(targets, found, strict=False):
                if combine:
                    value = _COMBINE[combine](value, ~r[c] if negated else r[c])
                s.write(r, slot, value)

        return run

    return Effect(bind, "float")


@instruction("set")
def set_(opcode: Opcode) -> Recipe:
    """All ones (or 1.0) where a comparison holds."""
    name = opcode.choice(*_COMPARISONS)
    combine = opcode.choice("and", "or", "xor", default="")
    flush = opcode.flag("ftz")
    result, scalar = opcode.types(2)
    truth = compare(name, scalar, flush)
    ones = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}.get(result.name, (1 << result.bits) - 1)
    yes, no = np.array(ones, result.storage), np.array(0, result.storage)
    if not combine:
        return Compute(
            result, (scalar, scalar), lambda a, b: lambda r, s: np.where(truth(r[a], r[b]), yes, no)
        )
    join = _COMBINE[combine]

    def bind(site: Site) -> Closure:
        site.expect(4)
        a, b = (site.source(operand, scalar) for operand in site.operands[1:3])
        c, negated = site.predicate(site.operands[3])
        site.result = site.target(site.operands[0], result)
        return lambda r, s: np.where(join(truth(r[a], r[b]), ~r[c] if negated else r[c]), yes, no)

    return Effect(bind, "integer")


@instruction("selp")
def selp(opcode: Opcode) -> Recipe:
    """a where the predicate holds, else b."""
    scalar = opcode.type()

    def build(a: int, b: int, p: int) -> Closure:
        return lambda r, s: np.where(r[p], r[a], r[b])

    return Compute(scalar, (scalar, scalar, PREDICATE), build)


@instruction("slct")
def slct(opcode: Opcode) -> Recipe:
    """a where c >= 0, else b; a NaN selects b."""
    flush = opcode.flag("ftz")
    scalar, chooser = opcode.types(2)
    if chooser.name == "f32":
        read = comparable(F32, flush)
        return Compute(
            scalar, (scalar, scalar, F32), lambda a, b, c: lambda r, s: np.where(read(r[c]) >= 0, r[a], r[b])
        )
    return Compute(
        scalar,
        (scalar, scalar, S32),
        lambda a, b, c: lambda r, s: np.where(r[c].view(np.int32) >= 0, r[a], r[b]),
    )
