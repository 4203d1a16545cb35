"""Lowering of one entry: basic blocks of closures, made once for a module and run by every launch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.simulator.inlining import inlined
from tuner.simulator.instructions import (
    Closure,
    Compute,
    Control,
    Effect,
    Registers,
    Site,
    UnknownModifierError,
    decode,
)
from tuner.simulator.layout import Layout
from tuner.simulator.scalar_types import PREDICATE, SCALARS, Scalar
from tuner.simulator.syntax import Function, Instruction, Module, PtxError

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch


@dataclass(slots=True)
class Block:
    """A basic block: `steps` are (slot, closure, keeps) with keeps = the old value of masked-off lanes is
    needed.

    `kind` is how it ends: fall, branch, exit, barrier; `details` are the operands of that end. `polls` is set
    by lowering where it reads what other threads may change and, once labels are known, only kept at branches
    that go back over such reads: the ends of loops that may wait for another thread.
    """

    index: int
    steps: list[tuple[int, Closure, bool]] = field(default_factory=list)
    kind: str = "fall"
    guard: int = 0
    negated: bool = False
    target: int = -1
    details: tuple[Any, ...] = ()
    site: Site | None = None
    counts: Counter[str] = field(default_factory=Counter)
    polls: bool = False
    exposed: int = 0
    written: int = 0

    @property
    def length(self) -> int:
        return len(self.steps) + 1


@dataclass(slots=True)
class Program:
    """What a launch needs of an entry.

    `granule_bytes` is the narrowest access to shared memory, `global_bytes` that of the stores to global
    memory. `finer_order` says that threads of a block are ordered by more than block barriers,
    `barrier_counts` are the thread counts that those name. `stored_parameters` are the byte offsets of
    pointer parameters that may be stored through; `tensor_stores` says that tensor maps may be.
    `async_reads` says that shared memory is read through the async proxy.
    `together` is how many threads have to run some instruction together: those of a warp, or of a warpgroup.
    """

    function: Function
    layout: Layout
    blocks: list[Block]
    sites: list[Site]
    granule_bytes: int
    global_bytes: int
    finer_order: bool
    barrier_counts: tuple[int, ...]
    fences: bool
    stored_parameters: frozenset[int]
    tensor_stores: bool
    async_reads: bool
    together: int


def program_of(module: Module, name: str) -> Program:
    """Return the lowered entry `name`, from the module's cache after the first time."""
    program = module.programs.get(name)
    if program is None:
        program = module.programs[name] = _lower(module, module.entry(name))
    return program


def _lower(module: Module, entry: Function) -> Program:
    function = inlined(module, entry)
    layout = Layout(module, function)
    lowering = _Lowering(function, layout)
    lowering.run()
    granule = min(lowering.widths["shared"], default=4)
    stored = min(lowering.widths["global"], default=4)
    return Program(
        function,
        layout,
        lowering.blocks,
        lowering.sites,
        min(granule, 4),
        min(stored, 4),
        any(site.finer_order for site in lowering.sites)
        or (
            any(site.fences for site in lowering.sites) and any(site.shared_atomic for site in lowering.sites)
        ),
        tuple(site.barrier_count for site in lowering.sites if site.barrier_count),
        any(site.fences for site in lowering.sites),
        _stored_parameters(lowering.sites),
        any(site.stores_tensors for site in lowering.sites),
        any(site.async_reads for site in lowering.sites),
        128 if any(item.opcode.startswith("wgmma.") for item in function.body) else 32,
    )


def _stored_parameters(sites: list[Site]) -> frozenset[int]:
    """Follow the addresses of stores back to the parameters they come from."""
    writers: dict[int, list[Site]] = {}
    for site in sites:
        for slot in (*site.writes, *([site.result] if site.result > 0 else [])):
            writers.setdefault(slot, []).append(site)
    wanted = {slot for site in sites for slot in site.stores_through}
    found: set[int] = set()
    work = list(wanted)
    while work:
        for site in writers.get(work.pop(), ()):
            if site.parameter >= 0:
                found.add(site.parameter)
            for source in site.reads:
                if source not in wanted:
                    wanted.add(source)
                    work.append(source)
    return frozenset(found)


class _Lowering:
    def __init__(self, function: Function, layout: Layout) -> None:
        self.function, self.layout = function, layout
        self.blocks: list[Block] = []
        self.sites: list[Site] = []
        self.widths: dict[str, set[int]] = {"shared": set(), "global": set()}
        self.references: dict[int, int] = {}
        self.shared_slots: set[int] = set()
        self.accumulators: set[int] = set()
        self.reads_of: list[list[tuple[int, Site]]] = []
        self.updates: set[tuple[int, int]] = set()

    def run(self) -> None:
        labels = self.function.labels
        starts = set(labels.values())
        label_blocks: dict[int, int] = {}
        block = self.open_block(label_blocks, 0)
        accumulators = self.find_accumulators()
        for position, item in enumerate(self.function.body):
            if position in starts and (block.steps or block.kind != "fall" or position not in label_blocks):
                block = self.open_block(label_blocks, position)
            ended = self.lower(item, block, accumulators)
            if ended:
                block = self.open_block(label_blocks, position + 1)
        end = len(self.function.body)
        if end not in label_blocks:
            block = self.open_block(label_blocks, end)
        block.kind = "exit"
        self.resolve(labels, label_blocks)
        self.keep_old_values()
        self.find_unwritten()

    def open_block(self, label_blocks: dict[int, int], position: int) -> Block:
        block = Block(len(self.blocks))
        self.blocks.append(block)
        self.reads_of.append([])
        label_blocks[position] = block.index
        return block

    def find_accumulators(self) -> set[int]:
        """Return the slots that a matrix instruction writes: they may hold a matrix that has to be spread
        first.
        """
        found = set()
        for item in self.function.body:
            if item.opcode.startswith("mma.") and item.operands:
                for operand in (item.operands[0], item.operands[-1]):
                    for part in getattr(operand, "items", ()):
                        slot = self.layout.register(getattr(part, "text", ""))
                        if slot is not None:
                            found.add(slot)
        return found

    def lower(self, item: Instruction, block: Block, accumulators: set[int]) -> bool:
        site = Site(item, self.layout)
        site.number = len(self.sites)
        self.sites.append(site)
        try:
            recipe = decode(item.opcode)
            guard = 0
            if item.guard is not None:
                slot = self.layout.register(item.guard)
                if slot is None or self.layout.dtypes[slot] != PREDICATE.storage:
                    raise site.error(f"{item.guard} is not a declared predicate")
                guard = slot
                site.reads.append(slot)
            if isinstance(recipe, Control):
                block.kind, block.guard, block.negated = recipe.kind, guard, item.negated
                block.details, block.site = recipe.bind(site), site
                block.counts[recipe.category] += 1
                if site.writes:
                    site.reads.extend(site.writes)  # lanes that do not wait keep their value
                self.note(site, block, site.writes)
                return True
            closure, target = self.bind(recipe, site)
        except UnknownModifierError as error:
            raise site.error(str(error)) from None
        block.counts[recipe.category if not site.category else site.category] += 1
        block.polls |= site.polls
        for space, width in site.widths:
            self.widths[space].add(width)
        if isinstance(recipe, Compute):
            self.updates.update((slot, site.number) for slot in site.reads if slot in site.writes)
        if isinstance(recipe, Effect) and recipe.aligned:
            closure = _aligned(closure, site)  # within the guard: it must be the same for a whole warp
        if guard:
            if target >= 0:
                closure = _guarded_value(closure, guard, item.negated, target)
            else:
                closure = _guarded_effect(closure, guard, item.negated)
            site.reads.extend(site.writes)
        if accumulators and not site.holds_matrices:
            self.spread(site, block, accumulators)
        block.steps.append((max(target, 0), closure, target > 0))
        self.note(site, block, site.writes)
        return False

    def spread(self, site: Site, block: Block, accumulators: set[int]) -> None:
        touched = tuple({slot for slot in (*site.reads, *site.writes) if slot in accumulators})
        if touched:
            block.steps.append((0, _spreader(touched, tuple(site.reads)), False))

    def bind(self, recipe: Compute | Effect, site: Site) -> tuple[Closure, int]:
        if isinstance(recipe, Effect):
            closure = recipe.bind(site)
            return closure, site.result
        operands = site.operands
        site.expect(len(recipe.sources) + 1)
        if not recipe.wide:
            slots = [
                site.source(operand, scalar)
                for operand, scalar in zip(operands[1:], recipe.sources, strict=True)
            ]
            return recipe.build(*slots), site.target(operands[0], recipe.result)
        return self.bind_wide(recipe, site)

    def bind_wide(self, recipe: Compute, site: Site) -> tuple[Closure, int]:
        narrowed = []
        slots = []
        for operand, scalar in zip(site.operands[1:], recipe.sources, strict=True):
            slot = site.source(operand, scalar, wide=True)
            if self.layout.dtypes[slot] != scalar.storage:
                hidden = self.layout.new_slot(scalar.storage)
                narrowed.append((slot, hidden, scalar.storage))
                slot = hidden
            slots.append(slot)
        closure = recipe.build(*slots)
        target = site.target(site.operands[0], recipe.result, wide=True)
        stored = self.layout.dtypes[target]
        result = recipe.result
        if narrowed or stored != result.storage:
            closure = _resized(closure, narrowed, result, stored)
        return closure, target

    def note(self, site: Site, block: Block, writes: Any) -> None:
        """Keep what the data-flow analyses need: references, reads before the first write, writes."""
        for slot in site.reads:
            if slot in self.layout.names:
                bit = 1 << slot
                if not block.written & bit and not block.exposed & bit:
                    block.exposed |= bit
                    self.reads_of[block.index].append((slot, site))
                self.refer(slot, block.index)
        for slot in writes:
            block.written |= 1 << slot
            self.refer(slot, block.index)

    def refer(self, slot: int, index: int) -> None:
        if self.references.setdefault(slot, index) != index:
            self.shared_slots.add(slot)

    def resolve(self, labels: dict[tuple[int, str], int], label_blocks: dict[int, int]) -> None:
        for block in self.blocks:
            if block.kind in ("branch",) and block.site is not None:
                name = block.details[0]
                for scope in block.site.instruction.scope:
                    if (scope, name) in labels:
                        block.target = label_blocks[labels[scope, name]]
                        break
                else:
                    raise block.site.error(f"label {name} is not defined in this function")
        polling = [block.polls for block in self.blocks]
        for block in self.blocks:
            back = block.kind == "branch" and block.target <= block.index
            block.polls = back and any(polling[block.target : block.index + 1])

    def keep_old_values(self) -> None:
        """Drop the merge of masked-off lanes for registers that live inside one basic block only."""
        for block in self.blocks:
            block.steps = [
                (slot, closure, keeps and (slot in self.shared_slots or bool(block.exposed >> slot & 1)))
                for slot, closure, keeps in block.steps
            ]

    def find_unwritten(self) -> None:
        """Report, when it is executed, each read of a register that no path has written."""
        count = len(self.blocks)
        successors: list[list[int]] = []
        for block in self.blocks:
            ends = block.kind in ("exit", "trap") and not block.guard
            following = [] if ends else [block.index + 1]
            if block.kind == "branch":
                following = [block.target, *([block.index + 1] if block.guard else [])]
            successors.append([index for index in following if index < count])
        arriving = [0] * count
        work, seen = [0], {0}
        while work:
            index = work.pop()
            leaving = arriving[index] | self.blocks[index].written
            for successor in successors[index]:
                if successor not in seen or arriving[successor] | leaving != arriving[successor]:
                    seen.add(successor)
                    arriving[successor] |= leaving
                    work.append(successor)
        for index in seen:
            block = self.blocks[index]
            missing = block.exposed & ~arriving[index]
            if missing:
                for slot, site in self.reads_of[index]:
                    kept = site.result == slot or slot in site.writes  # for lanes that do not write
                    if missing >> slot & 1 and (not kept or (slot, site.number) in self.updates):
                        block.steps.insert(0, (0, _unwritten(slot, self.layout.names[slot], site), False))


def _resized(closure: Closure, narrowed: list[tuple[int, int, Any]], result: Scalar, stored: Any) -> Closure:
    view = result.view if result.kind != "f" else result.storage
    wide = np.dtype(f"{'i' if view.kind == 'i' else 'u'}{stored.itemsize}")

    def run(r: Registers, s: Batch) -> Any:
        for slot, hidden, dtype in narrowed:
            r[hidden] = r[slot].astype(dtype)
        value = closure(r, s)
        return value.view(view).astype(wide).view(stored) if stored != result.storage else value

    return run


def _guarded_value(closure: Closure, guard: int, negated: bool, target: int) -> Closure:
    if negated:
        return lambda r, s: np.where(r[guard], r[target], closure(r, s))
    return lambda r, s: np.where(r[guard], closure(r, s), r[target])


def _guarded_effect(closure: Closure, guard: int, negated: bool) -> Closure:
    def run(r: Registers, s: Batch) -> None:
        outer = s.mask
        inner = s.narrowed(r[guard], negated)
        if inner is not False:
            s.mask = inner
            closure(r, s)
            s.mask = outer

    return run


def _aligned(closure: Closure, site: Site) -> Closure:
    def run(r: Registers, s: Batch) -> Any:
        if s.mask is not None:
            s.check_whole_warps(site)
        return closure(r, s)

    return run


def _spreader(touched: tuple[int, ...], reads: tuple[int, ...]) -> Closure:
    from tuner.simulator.matrix import spread

    needed = tuple(slot for slot in touched if slot in reads)

    def run(r: Registers, s: Batch) -> None:
        for slot in needed if s.mask is None else touched:
            if r[slot].__class__ is not np.ndarray:
                spread(r, s, slot)

    return run


def _unwritten(slot: int, name: str, site: Site) -> Closure:
    def run(r: Registers, s: Batch) -> None:
        s.fault("uninitialised", f"register {name} is read and was never written", site, s.active_lanes())

    return run


__all__ = ["SCALARS", "Block", "Program", "PtxError", "program_of"]
