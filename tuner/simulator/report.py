"""What a simulation gives back: result buffers, faults, notes and counters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from tuner.simulator.counters import Counters

FAULT_KINDS = ("race", "out_of_bounds", "misaligned", "uninitialised", "divergence", "endless", "trap")


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of misbehaviour at one PTX line, with the first thread that showed it.

    `block` and `thread` are (x, y, z). `address` is the byte offset into `buffer` for global memory, the
    shared or local address otherwise. The `other_` fields name the second party of a race, where it is known;
    `other_thread` is None where several threads are. `count` is how many accesses of lanes did the same.
    """

    kind: str
    message: str
    line: int
    text: str
    step: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    address: int | None = None
    space: str = ""
    buffer: str = ""
    other_line: int | None = None
    other_text: str = ""
    other_thread: tuple[int, int, int] | None = None
    other_block: tuple[int, int, int] | None = None
    count: int = 1

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise ValueError(f"kind must be one of {', '.join(FAULT_KINDS)}, got {self.kind}")

    def __str__(self) -> str:
        where = f"block {self.block}, thread {self.thread}"
        text = f"{self.kind} at PTX line {self.line} `{self.text}`, {where}: {self.message}"
        if self.other_line is not None:
            text += f"; the other party: PTX line {self.other_line} `{self.other_text}`"
            if self.other_block is not None:
                text += f", block {self.other_block}"
            text += f", thread {self.other_thread}" if self.other_thread is not None else ", several threads"
        return text + (f" ({self.count} times)" if self.count > 1 else "")


@dataclass(frozen=True, slots=True)
class Unwritten:
    """Elements of an output that the plan never wrote: how many, and the first flat indices."""

    count: int
    first: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a plan.

    Attributes:
        buffers: every buffer after the plan, as an array of the shape and type that was passed in. Only
            those that were written are copies; the others are the arrays passed in.
        faults: at most 16 distinct (kind, line), in the order found.
        notes: things worth knowing that are no fault, such as lanes of one instruction that store equal
            values.
        counters: one for each step of the plan; a memset counts nothing.
        unwritten: for each output with elements never written (also where only sampled blocks ran).
    """

    buffers: dict[str, NDArray[Any]]
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    counters: tuple[Counters, ...]
    unwritten: dict[str, Unwritten]

    @property
    def clean(self) -> bool:
        """Whether no fault was found."""
        return not self.faults


class Findings:
    """Collects faults and notes of a plan; keeps the first of each (kind, line) and counts the rest."""

    LIMIT = 16

    def __init__(self) -> None:
        self.faults: dict[tuple[str, int, int], Fault] = {}
        self.notes: dict[str, None] = {}

    def seen(self, kind: str, step: int, line: int, count: int) -> bool:
        """Count another occurrence of a known fault; return whether nothing more is to be recorded."""
        known = self.faults.get((kind, step, line))
        if known is not None:
            self.faults[kind, step, line] = replace(known, count=known.count + count)
            return True
        return len(self.faults) >= self.LIMIT

    def add(self, fault: Fault) -> None:
        self.faults[fault.kind, fault.step, fault.line] = fault

    def note(self, text: str) -> None:
        if len(self.notes) < self.LIMIT:
            self.notes[text] = None
