"""mma.sync (PTX ISA 9.7.14.5), with the lane maps of the ISA.

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
from tuner.simulator.products import Accumulator, Kind, Part, flush, queue_of, same_warps, whole_warps
from tuner.simulator.scalar_types import B32, B64
from tuner.simulator.shapes import stretched

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch


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
        warps = None
        if s.mask is not None:
            warps = whole_warps(s)
            if warps is None or not in_place:
                _multiply_masked(kind, r, s, d, a, b, c)
                return
        first = r[c0]
        if (
            first.__class__ is Part
            and (accumulator := first.accumulator).kind is kind
            and first.index == 0
            and _is_part(r[c1], accumulator, 1)
            and _is_part(r[c2], accumulator, 2)
            and _is_part(r[c3], accumulator, 3)
        ):
            if accumulator.steps and not same_warps(accumulator.warps, warps):
                flush(r, s)
                accumulator.lanes(s)
            if not in_place:
                accumulator = accumulator.copy(d0)
                r[d0], r[d[1]], r[d[2]], r[d[3]] = accumulator.parts()
        else:
            for slot in c:
                if r[slot].__class__ is Part:
                    spread(r, s, slot)
            accumulator = Accumulator(kind, (r[c0], r[c1], r[c2], r[c3]), d0)
            r[d0], r[d[1]], r[d[2]], r[d[3]] = accumulator.parts()
        accumulator.warps = warps
        steps = accumulator.steps
        if not steps:
            queue_of(s).append(accumulator)
        steps.append((tuple(r[slot] for slot in a), tuple(r[slot] for slot in b)))
        if len(steps) >= longest:
            flush(r, s)

    return run


def _is_part(value: Any, accumulator: Accumulator, index: int) -> bool:
    return value.__class__ is Part and value.accumulator is accumulator and value.index == index


def _multiply_masked(kind: Kind, r: Registers, s: Batch, d: list[int], a: Any, b: Any, c: Any) -> None:
    """Some lanes only, and not in place: multiply at once, and merge."""
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
