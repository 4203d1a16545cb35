"""ldmatrix, stmatrix and movmatrix (PTX ISA 9.7.14.5.14 and following), with the lane maps of the ISA."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator.accesses import shared_offsets, store_shared
from tuner.simulator.counters import shared_wavefronts
from tuner.simulator.instructions import Closure, Effect, Opcode, Recipe, Registers, Site, instruction
from tuner.simulator.loads_stores import lane_addresses
from tuner.simulator.scalar_types import B32
from tuner.simulator.shapes import stretched

if TYPE_CHECKING:
    from tuner.simulator.machine import Batch


@instruction("ldmatrix")
def ldmatrix(opcode: Opcode) -> Recipe:
    """Lane i gives the address of row i % 8 of matrix i / 8; lane 4r + w receives word w of row r of each."""
    count, transposed = _form(opcode)

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
    count, transposed = _form(opcode)

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


def _form(opcode: Opcode) -> tuple[int, bool]:
    """Take the modifiers of ldmatrix and stmatrix: how many matrices, and whether they are transposed."""
    for name in ("sync", "aligned", "m8n8", "b16"):
        opcode.choice(name)
    opcode.choice("shared", "shared::cta", default="generic")
    return int(opcode.choice("x1", "x2", "x4")[1:]), opcode.flag("trans")


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
    width = 2 if transposed else 4
    words = offsets[..., None] + np.arange(0, 16, width)
    shape = (len(words), -1)
    lanes = (
        None if mask is None else np.repeat(mask[..., None], words.shape[-1], axis=-1).reshape(len(mask), -1)
    )
    s.races.read(s, words.reshape(shape), width, lanes, site, _receivers(s.warps, count, transposed))


@lru_cache(maxsize=64)
def _receivers(warps: int, count: int, transposed: bool) -> NDArray[np.int64]:
    """Return the threads (1, N) that receive each word (each half, where transposed) of each row."""
    first = np.arange(warps, dtype=np.int64)[:, None, None] * 32
    row = np.arange(8 * count) % 8
    if transposed:
        threads = first + (np.arange(8)[None, :] * 4 + row[:, None] // 2)
    else:
        threads = first + (row[:, None] * 4 + np.arange(4))
    return threads.reshape(1, -1)
