"""The table of instructions: one decorated function an opcode family decodes the modifiers and returns a
recipe.

A recipe is bound to the slots of one instruction's operands and gives a closure `(registers, batch) ->
value`. A function runs once for each distinct opcode text; binding is all that is left to do for each
instruction.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from tuner.simulator.scalar_types import PREDICATE, SCALARS, Lanes, Scalar
from tuner.simulator.syntax import (
    SINK,
    Address,
    Float,
    Instruction,
    Integer,
    Name,
    Negated,
    Operand,
    Pair,
    PtxError,
)
from tuner.simulator.syntax import Vector as VectorOperand

if TYPE_CHECKING:
    from tuner.simulator.layout import Layout
    from tuner.simulator.machine import Batch

Registers: TypeAlias = list[Any]
Closure: TypeAlias = "Callable[[Registers, Batch], Any]"


class UnknownModifierError(ValueError):
    """An opcode has a modifier, type or operand shape that its family does not know."""


class Opcode:
    """The modifiers of one opcode, taken one after the other by the function that decodes it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.name, *self.modifiers = text.split(".")

    def flag(self, *names: str) -> bool:
        """Take any of `names`; return whether one was there."""
        found = False
        for name in names:
            if name in self.modifiers:
                self.modifiers.remove(name)
                found = True
        return found

    def choice(self, *names: str, default: str | None = None) -> str:
        """Take the one of `names` that is there, or return the default; without one it must be there."""
        for name in names:
            if name in self.modifiers:
                self.modifiers.remove(name)
                return name
        if default is None:
            raise UnknownModifierError(f"{self.name} needs one of .{', .'.join(names)}")
        return default

    def types(self, count: int) -> tuple[Scalar, ...]:
        """Take `count` types, in the order written."""
        found = [name for name in self.modifiers if name in SCALARS]
        if len(found) < count:
            raise UnknownModifierError(f"{self.name} needs {count} type(s), got {len(found)}")
        for name in found[:count]:
            self.modifiers.remove(name)
        return tuple(SCALARS[name] for name in found[:count])

    def type(self, *names: str) -> Scalar:
        """Take one type; where `names` are given it must be one of them."""
        (scalar,) = self.types(1)
        if names and scalar.name not in names:
            raise UnknownModifierError(f"{self.name} takes .{', .'.join(names)}, got .{scalar.name}")
        return scalar

    def finish(self) -> None:
        """Refuse what was not taken."""
        if self.modifiers:
            raise UnknownModifierError(f"modifier .{self.modifiers[0]} of {self.text} is not simulated")


@dataclass(frozen=True, slots=True)
class Compute:
    """One result from sources, lane by lane: `build(*source_slots)` returns the closure that gives the new
    value.

    `wide` sources and results may sit in registers wider than their type (PTX ISA, "Operand Size Exceeding
    Instruction-Type Size"); the binder narrows and extends.
    """

    result: Scalar
    sources: tuple[Scalar, ...]
    build: Callable[..., Closure]
    category: str = "integer"
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """Anything else: `bind(site)` takes the operands and returns a closure that does its own writing."""

    bind: Callable[[Site], Closure]
    category: str
    aligned: bool = False


@dataclass(frozen=True, slots=True)
class Control:
    """Ends a basic block; `kind` tells the scheduler what to do."""

    kind: str
    bind: Callable[[Site], tuple[Any, ...]]
    category: str = "branch"


Recipe: TypeAlias = Compute | Effect | Control
REASONS = {"tensormap": ": a tensor map is opaque; describe it by a TensorMap that is passed to the launch"}
_TABLE: dict[str, Callable[[Opcode], Recipe]] = {}


def instruction(*names: str) -> Callable[[Callable[[Opcode], Recipe]], Callable[[Opcode], Recipe]]:
    """Enter a decoding function in the table for each of `names`, an opcode up to its first dot."""

    def enter(function: Callable[[Opcode], Recipe]) -> Callable[[Opcode], Recipe]:
        for name in names:
            if name in _TABLE:
                raise ValueError(f"instruction {name} is in the table already")
            _TABLE[name] = function
        return function

    return enter


def covered_instructions() -> dict[str, Callable[[Opcode], Recipe]]:
    """Return the table: opcode name to the function that decodes it."""
    return dict(_TABLE)


@lru_cache(maxsize=4096)
def decode(text: str) -> Recipe:
    """Return the recipe of an opcode text; raise `UnknownModifierError` for what is not simulated."""
    opcode = Opcode(text)
    function = _TABLE.get(opcode.name)
    if function is None:
        reason = REASONS.get(opcode.name, "")
        raise UnknownModifierError(f"instruction {opcode.name} is not simulated{reason}")
    recipe = function(opcode)
    opcode.finish()
    return recipe


class Site:
    """One instruction while it is bound: its operands become slots, and what it reads and writes is noted.

    Attributes:
        result: slot of the value that the closure returns; -1 where the closure writes by itself.
        category: what the instruction counts as, where that depends on its operands.
        widths: (state space, bytes) of its memory accesses, which decide how finely memory is tracked.
        finer_order: whether it orders threads of a block by other means than a whole-block barrier.
        barrier_count: literal thread count of a block barrier.
        polls: whether a loop around it may wait for another thread.
        fences, shared_atomic: a fence; an atomic that may reach shared memory. Together they order
            threads, too.
        stores_through: slots of the addresses it stores to, outside shared memory.
        async_reads: whether it reads shared memory through the async proxy.
        stores_tensors: whether it stores to what tensor maps describe.
        parameter: byte offset of the kernel parameter it loads, -1 for none.
        holds_matrices: whether it takes registers that still hold an accumulator matrix.
    """

    def __init__(self, instruction: Instruction, layout: Layout) -> None:
        self.instruction = instruction
        self.operands = instruction.operands
        self.layout = layout
        self.reads: list[int] = []
        self.writes: list[int] = []
        self.number = -1
        self.result = -1
        self.category = ""
        self.widths: list[tuple[str, int]] = []
        self.holds_matrices = False
        self.finer_order = False
        self.barrier_count = 0
        self.polls = False
        self.fences = False
        self.shared_atomic = False
        self.stores_through: list[int] = []
        self.async_reads = False
        self.stores_tensors = False
        self.parameter = -1

    @property
    def line(self) -> int:
        return self.instruction.line

    @property
    def text(self) -> str:
        return " ".join(self.instruction.text.split())

    def error(self, reason: str) -> PtxError:
        return PtxError(reason, self.line, self.instruction.text)

    def expect(self, *counts: int) -> None:
        """Refuse an operand count that is none of `counts`."""
        if len(self.operands) not in counts:
            wanted = " or ".join(map(str, counts))
            raise self.error(f"{self.instruction.opcode} takes {wanted} operands, got {len(self.operands)}")

    def source(self, operand: Operand, scalar: Scalar, wide: bool = False) -> int:
        """Return the slot that holds `operand` as `scalar`."""
        if isinstance(operand, Name):
            slot = self.layout.register(operand.text)
            if slot is not None:
                self.check_width(operand, slot, scalar, wide)
                self.reads.append(slot)
                return slot
            return self.layout.symbol(operand.text, scalar, self)
        if isinstance(operand, Integer):
            return self.layout.constant(_integer_bits(operand.value, scalar), scalar)
        if isinstance(operand, Float):
            if scalar.kind not in "fb":
                raise self.error(f"a floating-point literal cannot be a .{scalar.name}")
            return self.layout.constant(_float_bits(operand.value, scalar), scalar)
        if isinstance(operand, Address) and isinstance(operand.base, Name):
            slot = self.layout.symbol(operand.base.text, scalar, self, operand.offset)
            return slot
        if isinstance(operand, Negated):
            what = "predicate" if scalar == PREDICATE else "register"
            raise self.error(f"a negated {what} is not taken here")
        raise self.error(f"operand {operand} cannot be read as .{scalar.name}")

    def check_width(self, operand: Name, slot: int, scalar: Scalar, wide: bool) -> None:
        dtype = self.layout.dtypes[slot]
        if dtype != scalar.storage and not (
            wide and dtype != np_bool and scalar.kind != "p" and dtype.itemsize > scalar.storage.itemsize
        ):
            raise self.error(f"{operand.text} is {dtype.itemsize * 8} bits wide, .{scalar.name} was expected")

    def target(self, operand: Operand, scalar: Scalar, wide: bool = False) -> int:
        """Return the slot that the instruction writes; the sink `_` is the scratch slot."""
        if operand == SINK:
            return 0
        if not isinstance(operand, Name):
            raise self.error(f"{operand} cannot be written")
        slot = self.layout.register(operand.text)
        if slot is None:
            raise self.error(f"register {operand.text} is not declared")
        self.check_width(operand, slot, scalar, wide)
        self.writes.append(slot)
        return slot

    def items(self, operand: Operand, count: int | None = None) -> tuple[Operand, ...]:
        """Return the members of a vector operand, a single operand as a vector of one."""
        items = operand.items if isinstance(operand, VectorOperand) else (operand,)
        if count is not None and len(items) != count:
            raise self.error(f"a vector of {count} was expected, got {len(items)}")
        return items

    def pair(self, operand: Operand) -> tuple[Operand, Operand | None]:
        return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)

    def predicate(self, operand: Operand) -> tuple[int, bool]:
        """Return (slot, negated) of a predicate operand that may be written `!p`."""
        if isinstance(operand, Negated):
            return self.source(operand.operand, PREDICATE), True
        return self.source(operand, PREDICATE), False

    def address(self, operand: Operand) -> tuple[int, int]:
        """Return (slot of the base as it is declared, offset in bytes) of an address operand."""
        if not isinstance(operand, Address):
            raise self.error("an address in brackets was expected")
        if operand.base is None:
            return self.layout.constant(operand.offset & ((1 << 64) - 1), SCALARS["u64"]), 0
        slot = self.layout.register(operand.base.text)
        if slot is None:
            return self.layout.symbol(operand.base.text, SCALARS["u64"], self), operand.offset
        if self.layout.dtypes[slot].itemsize < 4:
            raise self.error(f"{operand.base.text} is too narrow for an address")
        self.reads.append(slot)
        return slot, operand.offset

    def whole(self, operand: Operand) -> int:
        """Return the value of an operand that must be an integer literal."""
        if not isinstance(operand, Integer):
            raise self.error("an integer literal was expected")
        return operand.value


def _integer_bits(value: int, scalar: Scalar) -> int:
    if scalar.kind == "p":
        return value
    if scalar.kind == "f":
        return _float_bits(float(value), scalar)
    return value & ((1 << scalar.bits) - 1)


def _float_bits(value: float, scalar: Scalar) -> int:
    if scalar.bits == 64:
        return int.from_bytes(struct.pack("<d", value), "little")
    if scalar.name == "f16":
        return int.from_bytes(struct.pack("<e", value), "little")
    try:
        bits = int.from_bytes(struct.pack("<f", value), "little")
    except OverflowError:
        bits = 0x7F800000 | (0x80000000 if value < 0 else 0)
    return bits >> 16 if scalar.name == "bf16" else bits


def selected(slot: int, negated: bool) -> Callable[[Registers], Lanes]:
    """Return a reader of a predicate slot."""
    if negated:
        return lambda registers: ~registers[slot]
    return lambda registers: registers[slot]


np_bool = PREDICATE.storage


def nothing(site: Site) -> Closure:
    """Bind an instruction that changes no state."""
    return lambda r, s: None
