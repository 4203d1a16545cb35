"""wmma.load, wmma.store and wmma.mma (PTX ISA 9.7.14.4), with fragments in a layout that nobody can guess.

The ISA leaves open which lane holds which element, so here a fixed shuffle decides, another for every shape,
type and layout: a kernel that reads an element of a fragment by position, or mixes layouts, computes
nonsense.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.accesses import load_global, load_shared, store_global, store_shared
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
from tuner.simulator.loads_stores import lane_addresses, windows
from tuner.simulator.memory import ELEMENTS, SHARED_WINDOW, Index
from tuner.simulator.rounding import read
from tuner.simulator.scalar_types import F16, SCALARS, U32
from tuner.simulator.tensor_sums import accumulate, add_integers

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch

SHAPES = {
    "m16n16k16": (16, 16, 16),
    "m32n8k16": (32, 8, 16),
    "m8n32k16": (8, 32, 16),
    "m16n16k8": (16, 16, 8),
    "m8n8k4": (8, 8, 4),
}
ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1, "f32": 4, "s32": 4, "f64": 8}


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment: its matrix, what a register holds, and where the shuffle puts elements.

    `rows` and `columns` are (32, slots): the element that a slot of a lane holds; each register has `packing`
    slots.
    """

    role: str
    type: str
    height: int
    width: int
    registers: int
    packing: int
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        return ELEMENT_BYTES[self.type]

    @property
    def register_bits(self) -> int:
        return max(32, 8 * self.nbytes * self.packing)


@lru_cache(maxsize=128)
def fragment(shape: str, role: str, name: str, layout: str) -> Fragment:
    """Return the fragment of matrix a, b, c or d; c and d share a layout."""
    m, n, k = SHAPES[shape]
    height, width = {"a": (m, k), "b": (k, n)}.get(role, (m, n))
    packing = max(4 // ELEMENT_BYTES[name], 1)
    copies = (
        512 // (height * width) if name == "f16" and role in "ab" else 1
    )  # f16 operands take 16 halves a lane
    slots = height * width * copies // 32
    place = "c" if role in "cd" else role
    rng = np.random.default_rng(crc32(f"{shape} {place} {name} {layout if role in 'ab' else ''}".encode()))
    order = np.concatenate([rng.permutation(height * width) for _ in range(copies)]).reshape(slots, 32).T
    return Fragment(role, name, height, width, slots // packing, packing, order // width, order % width)


def _decode(opcode: Opcode, role: str) -> tuple[Fragment, str, str]:
    shape = opcode.choice(*SHAPES)
    layout = opcode.choice("row", "col")
    space = opcode.choice("global", "shared", "shared::cta", default="generic").split("::")[0]
    name = opcode.choice(*ELEMENT_BYTES)
    return fragment(shape, role, name, layout), layout, space


@instruction("wmma")
def wmma(opcode: Opcode) -> Recipe:
    action = opcode.choice("load", "store", "mma")
    opcode.choice("sync")
    opcode.choice("aligned")
    if action == "mma":
        return _mma(opcode)
    role = opcode.choice("a", "b", "c", "d")
    held, layout, space = _decode(opcode, role)
    return Effect(
        lambda site: _bind_access(site, held, layout, space, action == "load"), f"wmma.{action}", aligned=True
    )


def _bind_access(site: Site, held: Fragment, layout: str, space: str, loads: bool) -> Closure:
    if len(site.operands) not in (2, 3):
        raise site.error("wmma.load and .store take a vector, an address and an optional stride")
    registers, address = site.operands[:2] if loads else site.operands[1::-1]
    base, offset = site.address(address)
    stride = site.source(site.operands[2], U32) if len(site.operands) == 3 else None
    scalar = SCALARS[f"b{held.register_bits}"]
    items = site.items(registers, held.registers)
    slots = [site.target(item, scalar) if loads else site.source(item, scalar) for item in items]
    if space != "global":
        site.widths.append(("shared", held.nbytes))
    if not loads and space != "shared":
        site.widths.append(("global", held.nbytes))
    tile = _Tile.of(held, layout)

    def run(r: Registers, s: Batch) -> None:
        usual = np.full((1, 1), tile.length, np.int64)
        leading = r[stride].astype(np.int64) if stride is not None else usual
        start = _uniform(lane_addresses(r, base, offset), s, site)
        _check_rows(s, site, held, start, leading)
        if loads:
            words = scatter(s, held, tile.load(s, site, space, start, leading))
            for slot, word in zip(slots, words, strict=True):
                s.write(r, slot, word)
        else:
            tile.store(s, site, space, start, leading, gather(s, held, [r[slot] for slot in slots]))

    return run


@dataclass(frozen=True, slots=True)
class _Tile:
    """How a matrix lies in memory: `lines` of `length` elements, accessed in pieces of `piece` bytes."""

    lines: int
    length: int
    nbytes: int
    piece: int
    turned: bool

    @classmethod
    def of(cls, held: Fragment, layout: str) -> _Tile:
        turned = layout == "col"
        lines, length = (held.width, held.height) if turned else (held.height, held.width)
        return cls(lines, length, held.nbytes, min(16, length * held.nbytes), turned)

    @property
    def pieces(self) -> int:
        return self.lines * self.length * self.nbytes // self.piece

    def rounds(self, s: Batch, start: Index, leading: Index) -> list[tuple[Index, Any]]:
        """Return (addresses (R, T), lanes that take part) of accesses that cover the matrix of each warp."""
        a_line = self.length * self.nbytes // self.piece
        found = []
        for first in range(0, self.pieces, 32):
            number = first + np.tile(np.arange(32, dtype=np.int64), s.warps)[None, :]
            there = number < self.pieces
            number = np.minimum(number, self.pieces - 1)
            address = start + (number // a_line) * leading * self.nbytes + (number % a_line) * self.piece
            lanes = s.mask
            if not there.all():
                lanes = there if s.mask is None else s.mask & there
            found.append((address, lanes))
        return found

    def load(self, s: Batch, site: Site, space: str, start: Index, leading: Index) -> NDArray[Any]:
        """Return the matrices of all warps as bits, (R, W, height, width)."""
        parts = [
            _load(s, where, self.piece, site, space, lanes) for where, lanes in self.rounds(s, start, leading)
        ]
        rows = max(len(part) for part in parts)
        joined = np.stack([np.broadcast_to(part, (rows, s.threads)) for part in parts], 1)
        by_warp = joined.reshape(rows, len(parts), s.warps, 32).swapaxes(1, 2).reshape(rows, s.warps, -1)
        elements = np.ascontiguousarray(by_warp[:, :, : self.pieces]).view(f"u{self.nbytes}")
        matrix = elements.reshape(rows, s.warps, self.lines, self.length)
        return matrix.swapaxes(2, 3) if self.turned else matrix

    def store(
        self, s: Batch, site: Site, space: str, start: Index, leading: Index, matrix: NDArray[Any]
    ) -> None:
        """Store the matrices of all warps, bits (R, W, height, width)."""
        lines = np.ascontiguousarray(matrix.swapaxes(2, 3) if self.turned else matrix)
        rows = len(lines)
        pieces = lines.reshape(rows, s.warps, -1).view(ELEMENTS[self.piece])
        rounds = self.rounds(s, start, leading)
        padded = np.zeros((rows, s.warps, 32 * len(rounds)), pieces.dtype)
        padded[:, :, : self.pieces] = pieces
        for number, (where, lanes) in enumerate(rounds):
            values = padded[:, :, 32 * number : 32 * number + 32].reshape(rows, s.threads)
            _store(s, where, values, site, space, lanes)


def _uniform(address: Index, s: Batch, site: Site) -> Index:
    """All lanes of a warp have to give one address and stride; here the first lane's counts."""
    full = np.broadcast_to(address, (len(address), s.threads)).reshape(len(address), s.warps, 32)
    if address.shape[1] > 1 and (full != full[:, :, :1]).any():
        lanes = s.active_lanes() & np.repeat((full != full[:, :, :1]).any(2), 32, axis=1)
        if lanes.any():
            s.fault(
                "divergence", "the lanes of a warp give different addresses for one fragment", site, lanes
            )
    return np.repeat(full[:, :, 0], 32, axis=1)


def _check_rows(s: Batch, site: Site, held: Fragment, start: Index, leading: Index) -> None:
    """Rows have to be 16-byte aligned (or as wide as they are, where that is less)."""
    need = min(16, held.width * held.nbytes if held.width * held.nbytes >= 1 else 16)
    wrong = ((start | (leading * held.nbytes)) & (need - 1)) != 0
    if wrong.any():
        lanes = s.active_lanes() & wrong
        if lanes.any():
            message = f"rows of a fragment must begin at multiples of {need} bytes"
            s.fault("misaligned", message, site, lanes)


def _load(s: Batch, address: Index, nbytes: int, site: Site, space: str, lanes: Any) -> NDArray[Any]:
    if space == "generic":
        space, address = _resolved(s, address)
    if space == "shared":
        return load_shared(s, address, nbytes, site, lanes)
    return load_global(s, address, nbytes, site, lanes, s.counters.global_loads)


def _store(s: Batch, address: Index, values: NDArray[Any], site: Site, space: str, lanes: Any) -> None:
    if space == "generic":
        space, address = _resolved(s, address)
    if space == "shared":
        store_shared(s, address, values, site, lanes)
    else:
        store_global(s, address, values, site, lanes)


def _resolved(s: Batch, address: Index) -> tuple[str, Index]:
    """Return the state space that generic addresses of fragments lie in; one for the whole batch."""
    in_shared = any(window == 1 for window, _ in windows(s, address))
    return ("shared", address - SHARED_WINDOW) if in_shared else ("global", address)


def _mma(opcode: Opcode) -> Recipe:
    a_layout, b_layout = [name for name in opcode.modifiers if name in ("row", "col")]
    opcode.modifiers = [name for name in opcode.modifiers if name not in ("row", "col")]
    shape = opcode.choice(*SHAPES)
    clamp = opcode.flag("satfinite")
    types = [name for name in opcode.modifiers if name in ELEMENT_BYTES]
    opcode.modifiers = [name for name in opcode.modifiers if name not in ELEMENT_BYTES]
    if len(types) == 2:  # f16: only d and c are named
        types = [types[0], "f16", "f16", types[1]]
    if len(types) != 4:
        raise UnknownModifierError(f"{opcode.text} is not simulated")
    d, a, b, c = (
        fragment(shape, role, name, layout)
        for role, name, layout in zip("dabc", types, ("", a_layout, b_layout, ""), strict=True)
    )

    def bind(site: Site) -> Closure:
        site.expect(4)
        targets = [
            site.target(item, SCALARS[f"b{d.register_bits}"])
            for item in site.items(site.operands[0], d.registers)
        ]
        slots = [
            [
                site.source(item, SCALARS[f"b{held.register_bits}"])
                for item in site.items(site.operands[number], held.registers)
            ]
            for number, held in enumerate((a, b, c), 1)
        ]

        def run(r: Registers, s: Batch) -> None:
            x, y, z = (
                numbers(gather(s, held, [r[slot] for slot in chosen]), held.type)
                for held, chosen in zip((a, b, c), slots, strict=True)
            )
            result = _product(x, y, z, a.type, c.type, d.type, clamp)
            for slot, word in zip(targets, scatter(s, d, result), strict=True):
                s.write(r, slot, word)

        return run

    return Effect(bind, f"wmma.{shape}.{types[1]}", aligned=True)


def gather(s: Batch, held: Fragment, words: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the matrix (R, W, height, width) of element bits that fragments hold."""
    rows = max(len(word) for word in words)
    dtype = words[0].dtype
    stacked = np.empty((rows, s.threads, held.registers), dtype)
    for number, word in enumerate(words):
        stacked[:, :, number] = word
    cells = stacked.view(f"u{held.nbytes}").reshape(rows, s.warps, 32, -1)
    matrix = np.empty((rows, s.warps, held.height, held.width), cells.dtype)
    matrix[:, :, held.rows, held.columns] = cells
    return matrix


def numbers(bits: NDArray[Any], name: str) -> NDArray[Any]:
    """View matrix elements as numbers that can be multiplied: float64, or float32 for integers."""
    if name == "f16":
        return read(bits, F16)
    if name == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if name == "tf32":
        return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if name in ("s8", "u8"):
        return (bits.view(np.int8) if name == "s8" else bits).astype(np.float32)
    return bits.view({"f32": np.float32, "s32": np.int32, "f64": np.float64}[name])


def _product(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], operand: str, start: str, result: str, clamp: bool
) -> Any:
    shape = np.broadcast_shapes(a.shape[:2], b.shape[:2], c.shape[:2])
    c = np.broadcast_to(c, (*shape, *c.shape[2:]))
    if operand in ("s8", "u8"):
        total = c.astype(np.int32)
        add_integers(total, a, b, clamp, "")
        return total.view(np.uint32)
    if operand == "f64":
        return (np.matmul(a, b) + c).view(np.uint64)
    single = accumulate(c.astype(np.float32), a, b)
    if result == "f16":
        half = single.astype(np.float16)
        if clamp:
            half = np.clip(half, np.float16(-65504), np.float16(65504))
        return half.view(np.uint16)
    return single.view(np.uint32)


def scatter(s: Batch, held: Fragment, matrix: NDArray[Any]) -> list[NDArray[Any]]:
    """Return the registers of a fragment that holds a matrix of bits."""
    cells = np.ascontiguousarray(matrix[:, :, held.rows, held.columns])
    words = cells.view(f"u{held.register_bits // 8}").reshape(len(matrix), s.threads, held.registers)
    return [words[:, :, number] for number in range(held.registers)]
