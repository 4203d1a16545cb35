"""wgmma: matrix products of a warpgroup that read shared memory on their own time (PTX ISA 9.7.15).

From issue until `wait_group`, the accumulator registers hold poison and the tiles in shared memory are being
read: a write to them is a race. Tiles are found through matrix descriptors, in the canonical layouts of the
ISA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.accesses import shared_offsets
from tuner.simulator.instructions import (
    Closure,
    Effect,
    Opcode,
    Recipe,
    Registers,
    Site,
    UnknownModifierError,
    instruction,
    nothing,
)
from tuner.simulator.memory import Index
from tuner.simulator.scalar_types import B32, B64, PREDICATE, poison
from tuner.simulator.syntax import Vector
from tuner.simulator.tensor_sums import accumulate, add_integers, operand_values

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

GROUP = 128
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8}


@dataclass(slots=True)
class Reading:
    """Tiles that a product under way still reads, and the commit count of its threads at issue."""

    tiles: list[tuple[Index, Any]]
    lanes: Any
    group: Any
    site: Site


@dataclass(slots=True)
class Pending:
    """Accumulators under way: values, the lanes they belong to, and the last group that adds to them."""

    values: list[NDArray[Any]]
    lanes: NDArray[np.bool_]
    group: NDArray[np.int64]


@dataclass(slots=True)
class Products:
    """What a batch has under way."""

    commits: Any
    readings: list[Reading]
    pending: dict[tuple[int, ...], Pending]


def products_of(s: Batch) -> Products:
    found: Products | None = s.state.get("wgmma")
    if found is None:
        found = s.state["wgmma"] = Products(np.zeros((s.blocks, s.threads), np.int64), [], {})
    return found


@instruction("wgmma")
def wgmma(opcode: Opcode) -> Recipe:
    action = opcode.choice("fence", "commit_group", "wait_group", "mma_async")
    if action == "mma_async":
        return _decode(opcode)
    opcode.choice("sync")
    opcode.choice("aligned")
    if action == "fence":
        return Effect(nothing, "wgmma.fence", aligned=True)
    if action == "commit_group":
        return Effect(lambda site: _commit, "wgmma.commit", aligned=True)
    return Effect(lambda site: _bind_wait(site, site.whole(site.operands[0])), "wgmma.wait", aligned=True)


def _commit(r: Registers, s: Batch) -> None:
    products_of(s).commits += s.active_lanes()


def _bind_wait(site: Site, newest: int) -> Closure:
    def run(r: Registers, s: Batch) -> None:
        products = products_of(s)
        done_before = products.commits - newest
        active = s.active_lanes()
        staying = []
        for reading in products.readings:
            over = reading.lanes & active & (reading.group < done_before)
            if over.any():
                end_reading(s, reading, over)
            left = reading.lanes & ~over
            if left.any():
                staying.append(Reading(reading.tiles, left, reading.group, reading.site))
        products.readings = staying
        for slots, pending in list(products.pending.items()):
            over = pending.lanes & active & (pending.group < done_before)
            if not over.any():
                continue
            for slot, value in zip(slots, pending.values, strict=True):
                r[slot] = np.where(over, value, r[slot])
            pending.lanes = pending.lanes & ~over
            if not pending.lanes.any():
                del products.pending[slots]

    return run


def _decode(opcode: Opcode) -> Recipe:
    opcode.choice("sync")
    opcode.choice("aligned")
    shape = next((name for name in opcode.modifiers if name.startswith("m64n")), "")
    if not shape:
        raise UnknownModifierError(f"{opcode.text} is not simulated")
    opcode.modifiers.remove(shape)
    width = int(shape[4:].split("k")[0])
    clamp = opcode.flag("satfinite")
    types = list(opcode.modifiers)
    opcode.modifiers = []
    if (
        len(types) != 3
        or types[0] not in ("f32", "f16", "s32")
        or types[1] not in BITS
        or types[2] not in BITS
    ):
        raise UnknownModifierError(f"{opcode.text} is not simulated")
    result, a_type, b_type = types
    return Effect(
        lambda site: _bind(site, width, result, a_type, b_type, clamp),
        f"wgmma.{shape}.{a_type}.{b_type}",
        aligned=True,
    )


def _bind(site: Site, width: int, result: str, a_type: str, b_type: str, clamp: bool) -> Closure:
    operands = site.operands
    count = width // 4 if result == "f16" else width // 2
    slots = tuple(site.target(item, B32) for item in site.items(operands[0], count))
    from_registers = isinstance(operands[1], Vector)
    a_slots = [site.source(item, B32) for item in site.items(operands[1])] if from_registers else []
    a_descriptor = 0 if from_registers else site.source(operands[1], B64)
    b_descriptor = site.source(operands[2], B64)
    scale = site.source(operands[3], PREDICATE)
    signs = [site.whole(operand) for operand in operands[4:6]] if len(operands) > 4 else [1, 1]
    turns = [site.whole(operand) for operand in operands[6:]]
    a_turn = bool(turns[0]) if turns and not from_registers else False
    b_turn = bool(turns[-1]) if turns else False
    site.reads.extend(slots)
    site.widths.append(("shared", 4))
    site.async_reads = True

    def run(r: Registers, s: Batch) -> None:
        if s.threads % GROUP:
            s.fault("divergence", "wgmma needs whole warpgroups of 128 threads", site, s.active_lanes())
            return
        if s.mask is not None and _torn(s, site):
            return
        tiles: list[tuple[Index, Any]] = []
        if from_registers:
            a = _register_operand([r[slot] for slot in a_slots], s)
        else:
            a = _shared_operand(s, site, r[a_descriptor], 64, a_type, a_turn, tiles)
        b = _shared_operand(s, site, r[b_descriptor], width, b_type, b_turn, tiles)
        products = products_of(s)
        known = products.pending.get(slots)
        start = [r[slot] for slot in slots]
        if known is not None:
            start = [
                np.where(known.lanes, value, old) for value, old in zip(known.values, start, strict=True)
            ]
        keep = np.broadcast_to(r[scale], (s.blocks, s.threads))
        start = [np.where(keep, value, np.uint32(0)) for value in start]
        x, y = (
            operand_values(data, name) * sign
            for data, name, sign in zip((a, b), (a_type, b_type), signs, strict=True)
        )
        values = _spread(_multiply(_gather(start, s, width, result), x, y, result, clamp), s, width, result)
        active = s.active_lanes()
        group = np.broadcast_to(products.commits, active.shape).copy()
        if known is None:
            products.pending[slots] = Pending(values, active.copy(), group)
        else:
            known.values = [np.where(active, new, old) for new, old in zip(values, known.values, strict=True)]
            known.group = np.where(active, group, known.group)
            known.lanes = known.lanes | active
        products.readings.append(Reading(tiles, active.copy(), group, site))
        for slot in slots:
            s.write(r, slot, poison(np.dtype(np.uint32)))

    return run


def _torn(s: Batch, site: Site) -> bool:
    """Record warpgroups of which some warps only run this instruction; return whether there are any."""
    active = s.active_lanes()
    groups = active.reshape(s.blocks, -1, GROUP)
    torn = groups.any(axis=2) & ~groups.all(axis=2)
    if torn.any():
        message = "not all warps of the warpgroup run this instruction together"
        s.fault("divergence", message, site, active & np.repeat(torn, GROUP, axis=1))
    return bool(torn.any())


def _multiply(
    start: NDArray[Any], a: NDArray[Any], b: NDArray[Any], result: str, clamp: bool
) -> NDArray[Any]:
    if result == "s32":
        add_integers(start, a, b.swapaxes(2, 3), clamp, "")
        return start
    total = accumulate(start, a, b.swapaxes(2, 3))
    return total.astype(np.float16) if result == "f16" else total


def _gather(words: list[NDArray[Any]], s: Batch, width: int, result: str) -> NDArray[Any]:
    """Return accumulators (B, G, 64, N).

    Lane 4g + t of warp w holds rows 16w + g and 16w + g + 8, columns 2t and 2t + 1 of every 8.
    """
    full = np.stack([np.broadcast_to(word, (s.blocks, s.threads)) for word in words], -1)
    if result == "f16":
        halves = np.ascontiguousarray(full).view(np.float16).reshape(s.blocks, -1, 4, 8, 4, width // 8, 2, 2)
        return halves.transpose(0, 1, 2, 6, 3, 5, 4, 7).reshape(s.blocks, -1, 64, width).astype(np.float32)
    cells = full.reshape(s.blocks, -1, 4, 8, 4, width // 8, 2, 2).transpose(0, 1, 2, 6, 3, 5, 4, 7)
    matrix = np.ascontiguousarray(cells).reshape(s.blocks, -1, 64, width)
    return matrix.view(np.int32 if result == "s32" else np.float32)


def _spread(matrix: NDArray[Any], s: Batch, width: int, result: str) -> list[NDArray[Any]]:
    """Return the accumulator registers (B, T) of matrices (B, G, 64, N)."""
    cells = matrix.reshape(s.blocks, -1, 4, 2, 8, width // 8, 4, 2).transpose(0, 1, 2, 4, 6, 5, 3, 7)
    words = np.ascontiguousarray(cells).view(np.uint32).reshape(s.blocks, s.threads, -1)
    return [words[..., number] for number in range(words.shape[-1])]


def _register_operand(words: list[NDArray[Any]], s: Batch) -> NDArray[np.uint8]:
    """Return A (B, G, 64, k bytes) from four registers that hold it as those of mma do."""
    full = np.stack([np.broadcast_to(word, (s.blocks, s.threads)) for word in words], -1)
    cells = full.reshape(s.blocks, -1, 4, 8, 4, 2, 2).transpose(0, 1, 2, 6, 3, 5, 4)
    return np.ascontiguousarray(cells).view(np.uint8).reshape(s.blocks, -1, 64, 32)


def _shared_operand(
    s: Batch,
    site: Site,
    descriptor: NDArray[Any],
    rows: int,
    name: str,
    turned: bool,
    tiles: list[tuple[Index, Any]],
) -> NDArray[np.uint8]:
    """Return a tile (B, G, rows, k bytes) that a matrix descriptor names; note its reads."""
    words = np.broadcast_to(descriptor, (len(descriptor), s.threads))[:, ::GROUP].astype(np.uint64)
    if s.mask is not None:  # what inactive warpgroups hold is no descriptor
        groups = s.active_lanes()[:, ::GROUP]
        words = np.broadcast_to(words, groups.shape)
        words = np.where(groups, words, words[groups][0])
    fields = [((words >> np.uint64(shift)) & np.uint64(mask)).astype(np.int64) for shift, mask in
              ((0, 0x3FFF), (16, 0x3FFF), (32, 0x3FFF), (62, 3))]  # fmt: skip
    start, leading, stride = (field[..., None, None] << 4 for field in fields[:3])
    swizzles = np.unique(fields[3])
    if len(swizzles) != 1:
        raise site.error("descriptors of one instruction differ in their swizzle, which is not simulated")
    swizzle = (0, 128, 64, 32)[int(swizzles[0])]
    size = BITS[name] // 8
    offsets = start + (_turned(rows, 32 // size, leading, stride, swizzle, size) if turned else
                       _straight(rows, leading, stride, swizzle))  # fmt: skip
    if swizzle:
        offsets = offsets ^ (((offsets >> 7) & (swizzle // 16 - 1)) << 4)
    flat = offsets.reshape(len(offsets), -1)
    threads = np.repeat(np.arange(0, s.threads, GROUP), flat.shape[1] // (s.threads // GROUP))[None, :]
    active = s.active_lanes()[:, threads[0]] if s.mask is not None else None
    chunks = _checked(s, site, flat, active, threads)
    tiles.append((chunks, threads))
    loaded = s.shared.load(chunks, 16).view(np.uint8).reshape(s.blocks, -1, *offsets.shape[2:], 16)
    if not turned:
        return loaded.reshape(*loaded.shape[:3], -1)
    elements = loaded.view(f"u{size}").reshape(s.blocks, loaded.shape[1], 32 // size, rows)
    return np.ascontiguousarray(elements.swapaxes(2, 3)).view(np.uint8).reshape(s.blocks, -1, rows, 32)


def _straight(rows: int, leading: Index, stride: Index, swizzle: int) -> Index:
    """Offsets (.., rows, 2) of 16-byte chunks of a tile whose rows run along k."""
    row, chunk = np.arange(rows)[:, None], np.arange(2)[None, :]
    if not swizzle:
        return row // 8 * stride + row % 8 * 16 + chunk * leading
    return row // 8 * stride + row % 8 * swizzle + 16 * chunk


def _turned(rows: int, depth: int, leading: Index, stride: Index, swizzle: int, size: int) -> Index:
    """Offsets (.., k, rows / 8) of 16-byte chunks of a tile whose rows of k run along m or n."""
    k, chunk = np.arange(depth)[:, None], np.arange(rows * size // 16)[None, :]
    if not swizzle:
        return chunk * stride + k // 8 * leading + k % 8 * 16
    across = swizzle // 16
    return chunk // across * leading + k // 8 * stride + k % 8 * swizzle + chunk % across * 16


def _checked(s: Batch, site: Site, addresses: Index, active: Any, threads: Index) -> Index:
    """Check chunk addresses (R, N), tell the race detector, and return offsets."""
    offsets = addresses - 1024
    low, high = int(offsets.min()), int(offsets.max())
    if low < 0 or high + 16 > s.shared.nbytes:
        first = np.broadcast_to(addresses[:, :1], (len(addresses), s.threads))
        shared_offsets(s, np.where(first < 1024, first, np.int64(1024 + high)), 16, site, s.mask)
        offsets = offsets.clip(0, max(s.shared.nbytes - 16, 0) // 16 * 16)
    if s.races is not None:
        s.races.read(s, offsets, 16, active, site, threads)
        s.races.hold(offsets, 16, active, site, threads)
    if s.proxy is not None:
        s.proxy.read(s, offsets, 16, active, site, threads)
    return offsets


def end_reading(s: Batch, reading: Reading, over: NDArray[np.bool_]) -> None:
    """A product has been waited for: its reads were those of its warpgroup, up to now."""
    if s.races is None:
        return
    for offsets, threads in reading.tiles:
        s.races.unhold(offsets, 16, over[:, threads[0]], reading.site, threads)
