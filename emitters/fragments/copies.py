"""Copies of a tile from global to shared memory, a fixed number of bytes a thread at a time.

Asynchronous (`cp.async`, PTX ISA "Data Movement and Conversion Instructions: cp.async") or synchronous
through registers. What lies past the end of the reduction arrives as zeros in both, so that no main loop has
a tail.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from emitters.fragments.tile import RowTile
from emitters.fragments.weave import Fill
from emitters.ptx import R32, R64, Entry, Pred, at, vector

COPY_WIDTHS = (4, 8, 16)
"""Bytes that one `cp.async` moves; only 16 may bypass L1 (`.cg`)."""

_REGISTERS_IN_FLIGHT = 32
"""Registers that a batch of synchronous loads may hold before it is stored."""


class Reach:
    """How much of the reduction is left for a thread, counted down once a tile.

    A unit of the reduction is an element of K. `left` is the end of the reduction minus the first unit of
    this thread's chunks; a chunk whose own first unit lies `ahead` of that is inside while `ahead < left`.
    """

    def __init__(self, ptx: Entry, left: R32, tile_k: int) -> None:
        self._ptx = ptx
        self._left = left
        self._tile_k = tile_k
        self._inside: dict[int, Pred] = {}
        self._sizes: dict[tuple[int, int], R32] = {}

    def inside(self, ahead: int = 0) -> Pred:
        """Whether the chunk is inside the reduction; one comparison a tile and distance."""
        if ahead not in self._inside:
            self._inside[ahead] = self._ptx.p("setp.gt.s32", self._left, ahead)
        return self._inside[ahead]

    def size(self, width: int, ahead: int = 0) -> R32:
        """Bytes that a copy of `width` bytes reads: all or, past the end, none."""
        if (width, ahead) not in self._sizes:
            self._sizes[width, ahead] = self._ptx.r("selp.b32", width, 0, self.inside(ahead))
        return self._sizes[width, ahead]

    def advance(self) -> None:
        """Go on to the next tile."""
        self._ptx.op("sub.s32", self._left, self._left, self._tile_k)
        self._inside.clear()
        self._sizes.clear()


@dataclass(frozen=True, slots=True)
class Split:
    """How the threads of a block share a tile.

    Thread `t` copies, for every `c < count`, the `width` bytes at column `t % per_row * width` of row
    `t // per_row + c * step`.
    """

    tile: RowTile
    threads: int
    width: int

    def __post_init__(self) -> None:
        if (
            self.tile.row_bytes % self.width
            or self.per_row & (self.per_row - 1)
            or self.threads % self.per_row
        ):
            raise ValueError(
                "a row must be a power of two of copies that divides the threads, "
                f"got {self.tile.row_bytes} bytes in copies of {self.width} by {self.threads} threads"
            )

    @property
    def per_row(self) -> int:
        return self.tile.row_bytes // self.width

    @property
    def step(self) -> int:
        """Rows between two chunks of a thread."""
        return self.threads // self.per_row

    @property
    def count(self) -> int:
        """Chunks of a thread."""
        return -(-self.tile.rows // self.step)


class TileCopy:
    """One thread's part in copying a tile: where its chunks come from and where they go.

    Shared addresses are one register for every placement that the swizzle tells apart, with immediate
    offsets; global addresses are 32-bit offsets from one pointer that moves along the reduction.
    """

    def __init__(self, ptx: Entry, split: Split, tid: R32) -> None:
        self._ptx = ptx
        self.split = split
        self.row = ptx.r("shr.u32", tid, split.per_row.bit_length() - 1)
        column = ptx.r("and.b32", tid, split.per_row - 1)
        self.byte = ptx.r("mul.lo.u32", column, split.width)
        period = split.tile.period
        self._places: dict[int, R32] = {}
        for chunk in range(split.count):
            turn = chunk * split.step % period
            if turn not in self._places:
                row = ptx.r("add.u32", self.row, turn) if turn else self.row
                self._places[turn] = split.tile.place(ptx, row, self.byte)
        self._last_is_mine: Pred | None = None
        if split.count * split.step != split.tile.rows:
            last = split.tile.rows - (split.count - 1) * split.step
            self._last_is_mine = ptx.p("setp.lt.u32", self.row, last)

    def rows(self) -> list[R32]:
        """Row of each of the thread's chunks, for the caller to find its source."""
        step = self.split.step
        return [
            self._ptx.r("add.u32", self.row, c * step) if c else self.row for c in range(self.split.count)
        ]

    def aim(self, slot: R32) -> None:
        """Compute the shared addresses of the tile in `slot`; copies go there until the next call."""
        self._targets = {turn: self._ptx.r("add.u32", slot, place) for turn, place in self._places.items()}

    def _target(self, chunk: int, slot_offset: int = 0) -> str:
        split = self.split
        turn = chunk * split.step % split.tile.period
        return at(self._targets[turn], (chunk * split.step - turn) * split.tile.stride + slot_offset)

    def _guard(self, chunk: int) -> Pred | None:
        return self._last_is_mine if chunk == self.split.count - 1 else None

    def asynchronous(self, source: "Source", slot_offset: int = 0) -> list[Fill]:
        """`cp.async` of every chunk to where `aim` aimed, plus `slot_offset` bytes."""
        ptx, width = self._ptx, self.split.width
        level = "cg" if width == 16 else "ca"

        def copy(chunk: int) -> None:
            size = source.reach.size(width, source.ahead(chunk))
            address = ptx.rd("mad.wide.u32", source.offsets[chunk], 1, source.base)
            ptx.op(
                f"cp.async.{level}.shared.global",
                self._target(chunk, slot_offset),
                at(address),
                width,
                size,
                guard=self._guard(chunk),
            )

        return [Fill(partial(copy, chunk)) for chunk in range(self.split.count)]

    def synchronous(self, source: "Source") -> None:
        """Loads into registers, then stores, in batches."""
        ptx, width = self._ptx, self.split.width
        batch = max(1, _REGISTERS_IN_FLIGHT // (width // 4))
        for first in range(0, self.split.count, batch):
            chunks = range(first, min(first + batch, self.split.count))
            loaded = []
            for chunk in chunks:
                inside = source.reach.inside(source.ahead(chunk))
                mine = self._guard(chunk)
                if mine is not None:
                    inside = ptx.p("and.pred", inside, mine)
                loaded.append(load_or_zero(ptx, width, source.base, source.offsets[chunk], inside))
            for chunk, registers in zip(chunks, loaded, strict=True):
                store_shared(ptx, self._target(chunk), registers, self._guard(chunk))


@dataclass(frozen=True)
class Source:
    """Where the chunks of a `TileCopy` come from.

    Attributes:
        base: Global pointer of the present tile.
        offsets: Bytes from there, a chunk each.
        reach: What is left of the reduction.
        ahead: Units of the reduction by which a chunk lies ahead of the thread's first one.
        advance: Emits the step of `base` to the next tile.
    """

    base: R64
    offsets: list[R32]
    reach: Reach
    ahead: Callable[[int], int]
    advance: Callable[[], None]


def load_or_zero(ptx: Entry, width: int, base: R64, offset: R32, inside: Pred) -> list[R32]:
    """Words of a guarded global load; zeros where the guard does not hold."""
    registers = [ptx.r("mov.b32", 0) for _ in range(width // 4)]
    source = ptx.rd("mad.wide.u32", offset, 1, base)
    shape = {1: "", 2: ".v2", 4: ".v4"}[len(registers)]
    operand = registers[0] if len(registers) == 1 else vector(registers)
    ptx.op(f"ld.global.nc{shape}.b32", operand, at(source), guard=inside)
    return registers


def store_shared(ptx: Entry, address: str, registers: list[R32], guard: Pred | None = None) -> None:
    """One, two or four words in one store."""
    shape = {1: "", 2: ".v2", 4: ".v4"}[len(registers)]
    operand = registers[0] if len(registers) == 1 else vector(registers)
    ptx.op(f"st.shared{shape}.b32", address, operand, guard=guard)


def commit(ptx: Entry) -> None:
    """Close the group of copies issued so far."""
    ptx.op("cp.async.commit_group")


def wait_for_all_but(ptx: Entry, groups: int) -> None:
    """Wait until at most `groups` of this thread's latest groups are in flight. Others need a barrier too."""
    ptx.op("cp.async.wait_group", groups)


class Ring:
    """The slot of the stage that is being read, as a shared address that goes round."""

    def __init__(self, ptx: Entry, base: R32, slot_bytes: int, slots: int, first: int = 0) -> None:
        self._ptx = ptx
        self._slots = slots
        self._slot_bytes = slot_bytes
        self._base = base
        self.address = ptx.r("add.u32", base, first * slot_bytes)
        self._end = ptx.r("add.u32", base, slots * slot_bytes)

    def advance(self) -> None:
        """Make `address` that of the next slot; the register stays the same."""
        self._ptx.op("add.u32", self.address, self.address, self._slot_bytes)
        wrapped = self._ptx.p("setp.eq.u32", self.address, self._end)
        self._ptx.op("selp.b32", self.address, self._base, self.address, wrapped)
