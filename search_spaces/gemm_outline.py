"""What schedules of the GEMM family ask of a GPU, in closed form.

Bytes, mma's, blocks, shared bytes and wavefronts follow from the tiles. Instructions are counts a fragment, a
copy and a step, fitted to cubins of some hundred random schedules of each kernel for sm_89 and sm_90; an
iteration of a main loop comes out within a fifth for nine schedules in ten.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from emitters.fragments.matrix import MMA_K, MMA_M, MMA_N
from emitters.fragments.tile import BANK_BYTES
from emitters.gemm_rules import Family
from emitters.target import REGISTERS_PER_SM, WARP
from search_spaces.outline import Columns, Floats, Outline, Outliner

SECTOR_BYTES = 32
RESULT_BYTES = 4
_REGISTERS_AT_ONCE = 8  # ptxas gives a thread registers in steps of this many


@dataclass(frozen=True)
class Way:
    """How operands get to the mma, as instructions of a warp: all of them, and the integer ones among them.

    Attributes:
        load_a, load_b: A fragment by ldmatrix, and by ld.shared; a decoder's instructions are among them.
        copy: One copy of a thread to shared memory.
        decode: A byte of codes that a thread decodes on its way to shared memory.
        step: Whatever else a step takes.
        alu_a, alu_b, alu_copy, alu_decode, alu_step: Of them, integer ones.
        reads: Wavefronts that fragments of B are read with, against those of s8 rows.
        atomic_bytes: Bytes of sectors that the sum of one element of C touches, where blocks share a tile.
    """

    load_a: tuple[float, float]
    load_b: tuple[float, float]
    copy: float
    decode: float
    step: float
    alu_a: tuple[float, float]
    alu_b: float
    alu_copy: float
    alu_decode: float
    alu_step: float
    reads: float = 1.0
    atomic_bytes: float = 16.0


@dataclass(frozen=True)
class Operands:
    """Where the operands of a kernel of the family come from.

    Attributes:
        ways: By name.
        chosen: Where each of them is taken, shape (schedules,) each.
        share_b: Bytes of an element of B.
        row_b: Elements that lie next to each other in B: ``n`` or ``k``.
        wide_a: Whether A is always copied by 16 bytes, whatever `copy_bytes` says.
    """

    ways: Mapping[str, Way]
    chosen: Callable[[Columns], Mapping[str, Floats]]
    share_b: float
    row_b: str
    wide_a: bool


_DECODED = Way((2.3, 5.4), (0.7, 2.6), 3.1, 4, 32, (0.6, 0.8), 0.2, 2.3, 3.1, 21, reads=1.1)
_RECORDS = Way((1.6, 5.1), (3.7, 3.7), 3.4, 0, 19, (0.4, 0.7), 3.6, 2.2, 0, 13, reads=0.25)
_PACKED = Way((2.7, 7.9), (7.2, 7.2), 3.3, 0, 22, (0.7, 1.7), 6.6, 2.2, 0, 13, reads=0.5, atomic_bytes=32)
_WORDS = Way((0.6, 3.9), (8.5, 8.5), 4.1, 0, 23, (0.1, 0.4), 8.1, 2.4, 0, 14)
_ROWS = Way((1.7, 5.5), (0.8, 2.5), 3, 0, 17, (0.5, 1), 0.2, 2, 0, 11)
_TRANSPOSED_LOADS = Way((5.4, 5.4), (2.7, 2.7), 5.1, 0, 16, (4.5, 4.5), 2.2, 3.8, 0, 9.5)
_TRANSPOSED_COPIES = Way((1.4, 6.3), (1.9, 3.7), 3.1, 0, 73, (0.6, 2.1), 1.1, 2.6, 0, 47)


def _by_decode(columns: Columns) -> Mapping[str, Floats]:
    shared, records = columns.are("decode", "shared"), columns.are("weight_layout", "fragment")
    chosen = {"decoded": shared, "codes": ~shared & ~records, "records": ~shared & records}
    return {name: where.astype(np.float64) for name, where in chosen.items()}


def _by_transpose(columns: Columns) -> Mapping[str, Floats]:
    copied = columns.are("transpose", "copy").astype(np.float64)
    return {"copies": copied, "loads": 1 - copied}


TERNARY = Operands(
    {"decoded": _DECODED, "codes": _PACKED, "records": _RECORDS}, _by_decode, 0.25, "n", wide_a=True
)
TERNARY_ALONG_K = Operands(
    {"decoded": _DECODED, "codes": _WORDS, "records": _RECORDS}, _by_decode, 0.25, "k", wide_a=True
)
DENSE = Operands({"rows": _ROWS}, lambda columns: {"rows": np.ones(len(columns))}, 1.0, "k", wide_a=False)
TRANSPOSED = Operands(
    {"copies": _TRANSPOSED_COPIES, "loads": _TRANSPOSED_LOADS}, _by_transpose, 1.0, "n", wide_a=False
)


def outliner(family: Family, operands: Operands, sizes: tuple[str, str, str] = ("m", "n", "k")) -> Outliner:
    """The outline of a kernel of the family.

    Args:
        family: Its schedules.
        operands: Where they come from.
        sizes: Names of the rows and columns of the result, and of the length of its sums.
    """

    def outline(columns: Columns, problem: Mapping[str, int]) -> Outline:
        m, n, k = (problem[name] for name in sizes)
        return _outline(_Tiles(columns, family, operands), m, n, k)

    return outline


class _Tiles:
    """What follows from schedules without a problem; arrays of shape (schedules,)."""

    def __init__(self, columns: Columns, family: Family, operands: Operands) -> None:
        number = columns.numbers
        self.m, self.n, self.k = number("tile_m"), number("tile_n"), number("tile_k")
        self.warps_m, self.warps_n = number("warps_m"), number("warps_n")
        self.stages, self.split = number("stages"), number("split_k")
        self.warps = self.warps_m * self.warps_n
        self.threads = WARP * self.warps
        self.fragments_m = self.m / self.warps_m / MMA_M
        self.fragments_n = self.n / self.warps_n / MMA_N
        self.slices = self.k / MMA_K
        self.bytes_a, self.bytes_b = self.m * self.k, self.n * self.k * operands.share_b
        width = number("copy_bytes")
        self.copies = np.ceil(self.bytes_a / (16 if operands.wide_a else width) / self.threads)
        self.copies = self.copies + np.ceil(self.bytes_b / width / self.threads)
        self.by_words = columns.are("fragment_load", "ld.shared")
        self.conflicting = (number("stride_pad") > 0) & (self.k < BANK_BYTES)
        self.operands = operands
        self.chosen = operands.chosen(columns)
        names = family.registers
        registers = columns.each(names, lambda *given: family.partial(names, given).registers)
        most = REGISTERS_PER_SM / (self.threads * number("min_blocks"))
        self.registers = np.minimum(0.92 * registers, most // _REGISTERS_AT_ONCE * _REGISTERS_AT_ONCE)
        shared = family.shared
        self.shared_bytes = columns.each(shared, lambda *given: family.partial(shared, given).shared.nbytes)

    def of(self, number: str, place: int | None = None) -> Floats:
        """A number of the way of every schedule."""
        total = np.zeros(len(self.m))
        for name, where in self.chosen.items():
            value = getattr(self.operands.ways[name], number)
            total += where * (value if place is None else value[place])
        return total

    def by_load(self, number: str) -> Floats:
        """A number that depends on how fragments are loaded."""
        chosen: Floats = np.where(self.by_words, self.of(number, 1), self.of(number, 0))
        return chosen

    @property
    def decoded(self) -> Floats:
        """1 where codes are decoded on their way to shared memory."""
        return self.chosen.get("decoded", np.zeros(len(self.m)))

    @property
    def read_bytes(self) -> Floats:
        """Of a step, in whole sectors: a row may be shorter than one."""
        share = self.operands.share_b
        along, rows = (self.n * share, self.k) if self.operands.row_b == "n" else (self.k * share, self.n)
        whole = self.chosen.get("records", np.zeros(len(self.m)))
        return self.bytes_a + np.where(whole > 0, self.bytes_b, rows * np.maximum(along, SECTOR_BYTES))


def _outline(tiles: _Tiles, m: int, n: int, k: int) -> Outline:
    t = tiles
    steps = np.ceil(k / t.split / t.k)
    shared_tile = (t.split > 1).astype(np.float64)
    phased = (t.stages == 1).astype(np.float64)
    turns = t.warps * steps
    fragments_a, fragments_b = t.fragments_m * t.slices, t.fragments_n * t.slices
    mma = t.fragments_m * t.fragments_n * t.slices
    decoded = t.bytes_b / t.threads

    issued = mma + fragments_a * t.by_load("load_a") + fragments_b * t.by_load("load_b")
    issued = issued + t.copies * t.of("copy") + decoded * t.of("decode") + t.of("step")
    alu = fragments_a * t.by_load("alu_a") + fragments_b * t.of("alu_b")
    alu = alu + t.copies * t.of("alu_copy") + decoded * t.of("alu_decode") + t.of("alu_step")
    # Where filling and computing take turns, only mma's and loads of fragments compute.
    computing = mma + fragments_a * np.where(t.by_words, 4, 1) + fragments_b * np.where(t.by_words, 2, 0.5)
    accumulators = 4 * t.fragments_m * t.fragments_n
    outside = 145 + 2.2 * accumulators * (1 + shared_tile) + 9 * t.copies * (t.stages - 1)

    reads = t.slices * (t.m / 4 * t.warps_n + t.n / 4 * t.warps_m * t.of("reads"))
    reads = reads * (1 + 1 / (steps * t.slices)) + t.decoded * 2 * t.bytes_b / BANK_BYTES
    twice_a = 1.0 + t.conflicting
    twice_b = 1.0 if t.operands.share_b < 1 else twice_a
    writes = (t.bytes_a * twice_a + t.bytes_b * twice_b) / BANK_BYTES * (1 + (t.stages - 1) / steps)
    writes = writes + t.decoded * 2 * t.n * t.k / BANK_BYTES
    result = m * n * RESULT_BYTES
    return Outline(
        launch={
            "blocks": np.ceil(m / t.m) * np.ceil(n / t.n) * t.split,
            "threads": t.threads,
            "registers": t.registers,
            "shared_bytes": t.shared_bytes,
            "steps": steps,
            "mma_s8": mma * turns,
            "chains": t.fragments_m * t.fragments_n,
            "instructions": np.where(phased > 0, computing, issued) * turns,
            "fill_instructions": phased * np.maximum(issued - computing, 0) * turns,
            "alu_instructions": alu * turns,
            "other_instructions": outside * t.warps,
            "shared_reads": reads * steps,
            "shared_writes": writes * steps,
            "read_bytes": t.read_bytes * steps,
            "write_bytes": t.m * t.n * RESULT_BYTES * (1 - shared_tile),
            "atomic_bytes": t.m * t.n * t.of("atomic_bytes") * shared_tile,
            "phased": phased,
            "lookahead": np.maximum(t.stages - 1, 1),
        },
        footprint_bytes=m * k + n * k * t.operands.share_b + result,
        zeroed_bytes=result * shared_tile,
    )
