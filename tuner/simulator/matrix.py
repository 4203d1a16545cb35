"""ldmatrix and mma.sync m16n8 (PTX ISA 9.7.14.5), with the lane maps of the ISA.

In every m16n8 shape a lane 4g + t holds, of A, the 4 bytes at 4t of a 16-byte piece of row g (a0), of row g +
8 (a1), and the same of the next piece of k (a2, a3); of B the same of column g (b0, b1). So a register of a
warp, lane after lane, is 8 rows of 16 bytes, whatever the element type, and `ldmatrix` without `.trans` fills
exactly that. C and D: c0, c1 are row g, columns 2t and 2t + 1; c2, c3 are row g + 8.

Products are put off: a warp's accumulator stays a matrix with a list of steps (A, B) until something reads
it, and then all tiles that share operands are one matrix product over all blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.accesses import shared_offsets, store_shared
from tuner.simulator.counters import shared_wavefronts
from tuner.simulator.instructions import (
    Closure,
    Effect,
    Opcode,
    Recipe,
    Registers,
    Site,
    UnknownModifierError,
    instruction,
)
from tuner.simulator.loads_stores import lane_addresses
from tuner.simulator.products import Accumulator, Kind, Part, flush, queue_of
from tuner.simulator.scalar_types import B32, B64
from tuner.simulator.shapes import stretched

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch


@instruction("ldmatrix")
def ldmatrix(opcode: Opcode) -> Recipe:
    """Lane i gives the address of row i % 8 of matrix i / 8; lane 4r + w receives word w of row r of each."""
    opcode.choice("sync")
    opcode.choice("aligned")
    opcode.choice("m8n8")
    count = int(opcode.choice("x1", "x2", "x4")[1:])
    transposed = opcode.flag("trans")
    opcode.choice("shared", "shared::cta", default="generic")
    opcode.choice("b16")

    def bind(site: Site) -> Closure:
        site.expect(2)
        slots = [site.target(item, B32) for item in site.items(site.operands[0], count)]
        base, offset = site.address(site.operands[1])
        site.widths.append(("shared", 2 if transposed else 4))

        def run(r: Registers, s: Batch) -> None:
            words = load_matrices(s, site, lane_addresses(r, base, offset), count, transposed)
            for number, slot in enumerate(slots):
                value = words[:, :, number].reshape(len(words), s.threads)
                s.write(r, slot, value)

        return run

    return Effect(bind, "ldmatrix", aligned=True)


@instruction("stmatrix")
def stmatrix(opcode: Opcode) -> Recipe:
    """The reverse of ldmatrix: lane 4r + w brings word w of row r of each matrix."""
    opcode.choice("sync")
    opcode.choice("aligned")
    opcode.choice("m8n8")
    count = int(opcode.choice("x1", "x2", "x4")[1:])
    transposed = opcode.flag("trans")
    opcode.choice("shared", "shared::cta", default="generic")
    opcode.choice("b16")

    def bind(site: Site) -> Closure:
        site.expect(2)
        base, offset = site.address(site.operands[0])
        slots = [site.source(item, B32) for item in site.items(site.operands[1], count)]
        site.widths.append(("shared", 2 if transposed else 4))

        def run(r: Registers, s: Batch) -> None:
            address = stretched(lane_addresses(r, base, offset), (s.blocks, s.threads))
            rows = address.reshape(s.blocks, s.warps, 32)
            lane = np.arange(32)
            for number, slot in enumerate(slots):
                words = stretched(r[slot], (s.blocks, s.threads))
                if not transposed:
                    start = rows[:, :, 8 * number + lane // 4].reshape(address.shape)
                    store_shared(s, start + np.tile(4 * (lane % 4), s.warps), words, site, s.mask)
                    continue
                for half in range(2):
                    start = rows[:, :, 8 * number + 2 * (lane % 4) + half].reshape(address.shape)
                    part = (words >> np.uint32(16 * half)).astype(np.uint16)
                    store_shared(s, start + np.tile(2 * (lane // 4), s.warps), part, site, s.mask)

        return run

    return Effect(bind, "stmatrix", aligned=True)


@instruction("movmatrix")
def movmatrix(opcode: Opcode) -> Recipe:
    """Transpose an 8x8 matrix of 16-bit elements held as ldmatrix leaves it."""
    for name in ("sync", "aligned", "m8n8", "trans", "b16"):
        opcode.choice(name)

    def bind(site: Site) -> Closure:
        site.expect(2)
        a = site.source(site.operands[1], B32)
        site.result = site.target(site.operands[0], B32)

        def run(r: Registers, s: Batch) -> Any:
            words = np.ascontiguousarray(stretched(r[a], (len(r[a]), s.threads)))
            halves = words.view(np.uint16).reshape(len(words), s.warps, 8, 8).swapaxes(2, 3)
            return np.ascontiguousarray(halves).view(np.uint32).reshape(len(words), s.threads)

        return run

    return Effect(bind, "integer", aligned=True)


def load_matrices(
    s: Batch, site: Site, address: NDArray[np.int64], count: int, transposed: bool
) -> NDArray[Any]:
    """Return the registers of every lane: (B, W, count, 32) words."""
    address = stretched(address, (len(address), s.threads))
    rows = address.reshape(len(address), s.warps, 32)[:, :, : 8 * count]
    mask = s.mask
    if mask is not None:
        mask = stretched(mask, (len(mask), s.threads)).reshape(len(mask), s.warps, 32)[:, :, : 8 * count]
    offsets, mask = _row_offsets(s, rows, mask, site)
    if s.count:
        _count_rows(s, offsets, mask)
    if s.races is not None:
        _note_reads(s, site, offsets, mask, count, transposed)
    loaded = s.shared.load(offsets, 16)
    blocks = loaded.shape[0]
    if transposed:
        halves = loaded.view(np.uint16).reshape(blocks, s.warps, count, 8, 8)
        return np.ascontiguousarray(halves.swapaxes(3, 4)).view(np.uint32).reshape(blocks, s.warps, count, 32)
    return loaded.view(np.uint32).reshape(blocks, s.warps, count, 32)


def _row_offsets(s: Batch, rows: NDArray[np.int64], mask: Any, site: Site) -> tuple[NDArray[np.int64], Any]:
    """Check row addresses (R, W, 8 * count) and return offsets (R, W, 8 * count)."""
    if mask is None:
        offsets = rows - 1024
        low, high = int(offsets.min()), int(offsets.max())
        if low >= 0 and high + 16 <= s.shared.nbytes and not (np.bitwise_or.reduce(offsets, axis=None) & 15):
            return offsets, None
    width = rows.shape[2]
    full = np.zeros((max(len(rows), len(mask) if mask is not None else 1), s.warps, 32), np.int64)
    lanes = np.zeros(full.shape, bool)
    full[:, :, :width] = rows
    lanes[:, :, :width] = True if mask is None else mask
    offsets, good = shared_offsets(s, full.reshape(-1, s.threads), 16, site, lanes.reshape(-1, s.threads))
    shape = (-1, s.warps, 32)
    return offsets.reshape(shape)[:, :, :width], good.reshape(shape)[:, :, :width]


def _count_rows(s: Batch, offsets: NDArray[np.int64], mask: Any) -> None:
    rows = max(len(offsets), len(mask) if mask is not None else 1)
    times = s.blocks // rows
    flat = offsets.reshape(len(offsets), -1)
    lanes = mask.reshape(len(mask), -1) if mask is not None else None
    if lanes is not None and len(flat) != rows:
        flat = stretched(flat, (rows, flat.shape[1]))
    wavefronts, ideal = shared_wavefronts(flat, 16, lanes, 8)
    traffic = s.counters.matrix_loads
    active = flat.size if lanes is None else int(np.count_nonzero(lanes))
    traffic.instructions += times
    traffic.nbytes += active * 16 * times
    traffic.wavefronts += wavefronts * times
    traffic.ideal += ideal * times


def _note_reads(
    s: Batch, site: Site, offsets: NDArray[np.int64], mask: Any, count: int, transposed: bool
) -> None:
    """Reads are those of the lanes that receive the bytes, not of the lanes that give the addresses."""
    assert s.races is not None
    warps = np.arange(s.warps, dtype=np.int64)[:, None] * 32
    if not transposed:
        words = offsets[..., None] + np.arange(0, 16, 4)
        row, word = np.arange(8 * count) % 8, np.arange(4)
        threads = warps[..., None] + (row[:, None] * 4 + word)[None]
        width = 4
    else:
        words = offsets[..., None] + np.arange(0, 16, 2)
        row, column = np.arange(8 * count) % 8, np.arange(8)
        threads = warps[..., None] + (column[None, :] * 4 + row[:, None] // 2)[None]
        width = 2
    shape = (len(words), -1)
    lanes = (
        None if mask is None else np.repeat(mask[..., None], words.shape[-1], axis=-1).reshape(len(mask), -1)
    )
    s.races.read(s, words.reshape(shape), width, lanes, site, threads.reshape(1, -1))


_INTEGERS = {
    **{("m16n8k16", bits): 16 for bits in ("8",)},
    **{("m16n8k32", "8"): 32, ("m16n8k32", "4"): 16, ("m16n8k64", "4"): 32},
    **{("m16n8k128", "1"): 16, ("m16n8k256", "1"): 32},
    **{("m8n8k16", "8"): 16, ("m8n8k32", "4"): 16, ("m8n8k128", "1"): 16},
}
_FLOATS = {
    **{("m16n8k8", name): 16 for name in ("f16", "bf16")},
    **{("m16n8k16", name): 32 for name in ("f16", "bf16")},
    **{("m16n8k4", "tf32"): 16, ("m16n8k8", "tf32"): 32},
}
_SHAPES = tuple(dict.fromkeys(shape for shape, _ in (*_INTEGERS, *_FLOATS, ("m8n8k4", "f64"))))
_ELEMENTS = ("s8", "u8", "s4", "u4", "b1", "f16", "bf16", "tf32", "f32", "f64", "s32")


@instruction("mma")
def mma(opcode: Opcode) -> Recipe:
    """D = A B + C for a warp; m8n8 shapes are the upper half of m16n8 ones."""
    opcode.choice("sync")
    opcode.choice("aligned")
    shape = opcode.choice(*_SHAPES)
    opcode.choice("row")
    opcode.choice("col")
    clamp = opcode.flag("satfinite")
    operation = opcode.choice("xor", "and", default="")
    opcode.flag("popc")
    types = [name for name in opcode.modifiers if name in _ELEMENTS]
    for name in types:
        opcode.modifiers.remove(name)
    if len(types) == 4 and types[:4] == ["f64"] * 4 and shape == "m8n8k4":
        return double_mma()
    depth = None
    if len(types) == 4 and types[0] == types[3] == "s32" and types[1][1:] == types[2][1:]:
        depth = _INTEGERS.get((shape, types[1][1:]))
    elif (
        len(types) == 4 and types[1] == types[2] and types[0] in ("f32", "f16") and types[3] in ("f32", "f16")
    ):
        depth = _FLOATS.get((shape, types[1]))
    if depth is None or (types[1] == "b1") != bool(operation):
        raise UnknownModifierError(f"{opcode.text} is not simulated")
    accumulator = "s32" if types[0] == "s32" else "f32"
    kind = Kind(shape, types[1], types[2], accumulator, depth, clamp, operation)
    pieces, rows = depth // 16, 1 if shape.startswith("m8") else 2
    counts = [rows * (1 if name == "f16" else 2) for name in (types[0], types[3])]

    def bind(site: Site) -> Closure:
        site.expect(4)
        site.holds_matrices = True
        d = [site.target(item, B32) for item in site.items(site.operands[0], counts[0])]
        a = tuple(site.source(item, B32) for item in site.items(site.operands[1], rows * pieces))
        b = tuple(site.source(item, B32) for item in site.items(site.operands[2], pieces))
        c = tuple(site.source(item, B32) for item in site.items(site.operands[3], counts[1]))
        if len(d) == len(c) == 4 and rows == 2:
            return _multiply(kind, d, a, b, c)
        return _multiply_other(kind, d, a, b, c, types[0], types[3], rows)

    return Effect(bind, f"mma.{shape}.{types[1]}.{types[2]}", aligned=True)


def _multiply_other(
    kind: Kind,
    d: list[int],
    a: tuple[int, ...],
    b: tuple[int, ...],
    c: tuple[int, ...],
    result: str,
    start: str,
    rows: int,
) -> Closure:
    """Shapes with 8 rows, and f16 accumulators: widened to the usual form and multiplied at once."""
    zero = np.zeros((1, 1), np.uint32)

    def run(r: Registers, s: Batch) -> None:
        for slot in (*a, *b, *c, *d):
            if r[slot].__class__ is Part:
                spread(r, s, slot)
        c_values = [r[slot] for slot in c]
        if start == "f16":
            c_values = [half for word in c_values for half in unpacked(word)]
        c_values += [zero] * (4 - len(c_values))
        a_values = [r[slot] for slot in a]
        if rows == 1:
            a_values = [value for word in a_values for value in (word, zero)]
        accumulator = Accumulator(kind, tuple(c_values), -1)
        accumulator.steps.append((tuple(a_values), tuple(r[slot] for slot in b)))
        found = list(accumulator.lanes(s))[: 2 * rows]
        if result == "f16":
            found = [packed(found[i], found[i + 1]) for i in range(0, len(found), 2)]
        for slot, value in zip(d, found, strict=True):
            s.write(r, slot, value)

    return run


def unpacked(word: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the two f16 halves of a register as f32 bits."""
    low, high = (((word >> np.uint32(shift)) & np.uint32(0xFFFF)).astype(np.uint16) for shift in (0, 16))
    return tuple(half.view(np.float16).astype(np.float32).view(np.uint32) for half in (low, high))  # type: ignore[return-value]


def packed(low: NDArray[Any], high: NDArray[Any]) -> NDArray[Any]:
    """Return two f32 registers rounded to f16 in one."""
    halves = [
        np.ascontiguousarray(value).view(np.float32).astype(np.float16).view(np.uint16).astype(np.uint32)
        for value in (low, high)
    ]
    return halves[0] | (halves[1] << np.uint32(16))


def double_mma() -> Recipe:
    """m8n8k4 f64: lane 4g + t holds a at (g, t), b at (t, g), c and d at (g, 2t) and (g, 2t + 1)."""

    def bind(site: Site) -> Closure:
        site.expect(4)
        (d0, d1) = (site.target(item, B64) for item in site.items(site.operands[0], 2))
        (a,) = (site.source(item, B64) for item in site.items(site.operands[1], 1))
        (b,) = (site.source(item, B64) for item in site.items(site.operands[2], 1))
        (c0, c1) = (site.source(item, B64) for item in site.items(site.operands[3], 2))

        def tiles(value: NDArray[Any], s: Batch) -> NDArray[Any]:
            full = np.ascontiguousarray(stretched(value, (len(value), s.threads))).view(np.float64)
            return full.reshape(len(value), s.warps, 8, 4)

        def run(r: Registers, s: Batch) -> None:
            product = np.matmul(tiles(r[a], s), tiles(r[b], s).swapaxes(2, 3))
            pairs = product.reshape(len(product), s.warps, 8, 4, 2)
            for slot, start, half in ((d0, r[c0], 0), (d1, r[c1], 1)):
                total = tiles(start, s) + pairs[..., half]
                s.write(r, slot, total.reshape(len(total), s.threads).view(np.uint64))

        return run

    return Effect(bind, "mma.m8n8k4.f64.f64", aligned=True)


def _multiply(
    kind: Kind, d: list[int], a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...]
) -> Closure:
    d0, (c0, c1, c2, c3) = d[0], c
    in_place = tuple(d) == c
    longest = kind.longest

    def run(r: Registers, s: Batch) -> None:
        for slot in (*a, *b):
            if r[slot].__class__ is Part:
                spread(r, s, slot)
        if s.mask is not None:
            _multiply_masked(kind, r, s, d, a, b, c)
            return
        first = r[c0]
        if (
            first.__class__ is Part
            and (accumulator := first.accumulator).parts[0] is first
            and accumulator.parts[1] is r[c1]
            and accumulator.parts[2] is r[c2]
            and accumulator.parts[3] is r[c3]
            and (accumulator.kind is kind)
        ):
            if not in_place:
                accumulator = accumulator.copy(d0)
                r[d0], r[d[1]], r[d[2]], r[d[3]] = accumulator.parts
        else:
            for slot in c:
                if r[slot].__class__ is Part:
                    spread(r, s, slot)
            accumulator = Accumulator(kind, (r[c0], r[c1], r[c2], r[c3]), d0)
            r[d0], r[d[1]], r[d[2]], r[d[3]] = accumulator.parts
        steps = accumulator.steps
        if not steps:
            queue_of(s).append(accumulator)
        steps.append((tuple(r[slot] for slot in a), tuple(r[slot] for slot in b)))
        if len(steps) >= longest:
            flush(r, s)

    return run


def _multiply_masked(kind: Kind, r: Registers, s: Batch, d: list[int], a: Any, b: Any, c: Any) -> None:
    """Some warps only: multiply at once, and merge."""
    for slot in (*c, *d):
        if r[slot].__class__ is Part:
            spread(r, s, slot)
    accumulator = Accumulator(kind, tuple(r[slot] for slot in c), -1)
    accumulator.steps.append((tuple(r[slot] for slot in a), tuple(r[slot] for slot in b)))
    for slot, value in zip(d, accumulator.lanes(s), strict=True):
        s.write(r, slot, value)


def spread(r: Registers, s: Batch, slot: int) -> None:
    """Replace a register that holds part of an accumulator matrix by its lanes."""
    part: Part = r[slot]
    if part.accumulator.steps:
        flush(r, s)
    r[slot] = part.accumulator.lanes(s)[part.index]
