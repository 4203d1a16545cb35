"""Extended-precision integer arithmetic: the condition code that add.cc and its kin pass on (PTX ISA 9.7.2).

The condition code is a hidden predicate register of every thread. No barrier or call keeps it, but nothing
else changes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tuner.simulator.instructions import Closure, Effect, Opcode, Recipe, Registers, Site
from tuner.simulator.scalar_types import PREDICATE, Lanes, Scalar
from tuner.simulator.syntax import Name

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

CARRY = "%CC"


def condition_code(site: Site) -> int:
    """Return the slot of the condition code."""
    site.layout.function.registers.setdefault(CARRY, "pred")
    slot = site.layout.register(CARRY)
    assert slot is not None
    return slot


def sum_with_carry(opcode: Opcode, takes: bool, gives: bool) -> Recipe:
    """add.cc, addc, addc.cc, sub.cc, subc, subc.cc: the borrow of a subtraction is held as 1."""
    scalar = opcode.type("u32", "s32", "u64", "s64", "b32")
    subtract = opcode.name.startswith("sub")

    def bind(site: Site) -> Closure:
        site.expect(3)
        a, b = (site.source(operand, scalar) for operand in site.operands[1:])
        code = condition_code(site)
        if takes:
            site.source(Name(CARRY), PREDICATE)
        d = site.target(site.operands[0], scalar)
        if gives:
            site.target(Name(CARRY), PREDICATE)

        def run(r: Registers, s: Batch) -> None:
            carry = r[code].astype(scalar.storage) if takes else np.zeros((1, 1), scalar.storage)
            value, out = (_difference if subtract else _sum)(r[a], r[b], carry)
            s.write(r, d, value)
            if gives:
                s.write(r, code, out)

        return run

    return Effect(bind, "integer")


def _sum(a: Lanes, b: Lanes, carry: Lanes) -> tuple[Lanes, Lanes]:
    first = a + b
    total = first + carry
    return total, (first < a) | (total < first)


def _difference(a: Lanes, b: Lanes, borrow: Lanes) -> tuple[Lanes, Lanes]:
    first = a - b
    total = first - borrow
    return total, (a < b) | (first < borrow)


def product_with_carry(opcode: Opcode, scalar: Scalar, part: str, takes: bool, gives: bool) -> Recipe:
    """mad.cc, madc, madc.cc: the carry of adding c to the low or high half of a product."""
    from tuner.simulator.arithmetic import multiply

    product = multiply(scalar, part)

    def bind(site: Site) -> Closure:
        site.expect(4)
        a, b, c = (site.source(operand, scalar) for operand in site.operands[1:])
        code = condition_code(site)
        if takes:
            site.source(Name(CARRY), PREDICATE)
        d = site.target(site.operands[0], scalar)
        if gives:
            site.target(Name(CARRY), PREDICATE)

        def run(r: Registers, s: Batch) -> None:
            carry = r[code].astype(scalar.storage) if takes else np.zeros((1, 1), scalar.storage)
            value, out = _sum(product(r[a], r[b]), r[c], carry)
            s.write(r, d, value)
            if gives:
                s.write(r, code, out)

        return run

    return Effect(bind, "integer")
