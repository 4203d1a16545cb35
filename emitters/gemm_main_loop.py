"""The main loop of the GEMM family, for any operands.

Several stages: a ring of slots in shared memory, all of them on their way from the start. In each k-step
there is one barrier, within the mma's of the last slice: by then every warp has the present tile's fragments
in registers, so the barrier publishes the next tile and frees the present slot at once. The next tile's first
fragments load and its copies start behind it, between the remaining mma's. Fragments are double-buffered in
registers; where a tile has only one slice there is nothing to alternate with, and each register is reloaded
as soon as its last mma has read it.

One stage: copy, barrier, mma's, barrier.
"""

from collections.abc import Callable
from functools import partial

from emitters.fragments.copies import Ring, commit, wait_for_all_but
from emitters.fragments.matrix import A_REGISTERS, B_REGISTERS, C_REGISTERS, mma_s8
from emitters.fragments.weave import Fill, weave
from emitters.gemm_operands import Block, DecodedOperand, Operand
from emitters.ptx import R32

Accumulators = list[list[list[R32]]]
"""C fragment of each (m, n) fragment of the warp tile."""


class MainLoop:
    """Emits everything between the addresses and the epilogue."""

    def __init__(self, block: Block, a: Operand, b: Operand, steps: R32) -> None:
        """
        Args:
            block: This block.
            a, b: The operands.
            steps: k-steps of this block, at least one. Counted down.
        """
        self._block = block
        self._ptx = ptx = block.ptx
        self._a, self._b = a, b
        self._steps = steps
        geometry = block.geometry
        self._stages = geometry.schedule.stages
        self._tiles = geometry.shared
        self._rows, self._columns = geometry.fragments_m, geometry.fragments_n
        self._slices = geometry.slices
        buffers = geometry.fragment_buffers
        self._a_fragments = [[ptx.new_rs(A_REGISTERS) for _ in range(self._rows)] for _ in range(buffers)]
        self._b_fragments = [[ptx.new_rs(B_REGISTERS) for _ in range(self._columns)] for _ in range(buffers)]
        self.accumulators: Accumulators = [
            [[ptx.r("mov.b32", 0) for _ in range(C_REGISTERS)] for _ in range(self._columns)]
            for _ in range(self._rows)
        ]
        self._decoded = b if isinstance(b, DecodedOperand) else None

    def emit(self) -> None:
        if self._stages == 1:
            self._synchronous()
        else:
            self._pipelined()

    # --- pieces ---

    def _mmas(self, slice_k: int) -> list[Callable[[], None]]:
        """The products of one slice, row by row."""
        buffer = slice_k % len(self._a_fragments)
        a, b = self._a_fragments[buffer], self._b_fragments[buffer]
        return [
            partial(mma_s8, self._ptx, self.accumulators[row][column], a[row], b[column])
            for row in range(self._rows)
            for column in range(self._columns)
        ]

    def _loads(self, operand: Operand, slice_k: int, in_place_after: int | None = None) -> list[Fill]:
        """Loads of the fragments of a slice. `in_place_after` is given where they overwrite those in use: the
        number of mma's that go before in any case."""
        buffer = slice_k % len(self._a_fragments)
        is_a = operand is self._a
        fragments = (self._a_fragments if is_a else self._b_fragments)[buffer]

        def ready(number: int) -> int:
            if in_place_after is None:
                return 0
            if is_a:
                return max(in_place_after, (number + 1) * self._columns)
            return max(in_place_after, (self._rows - 1) * self._columns + number + 1)

        return operand.loads(slice_k, fragments, ready)

    def _loop(self, name: str, body: Callable[[], None]) -> None:
        ptx = self._ptx
        label = ptx.new_label(name)
        ptx.place(label)
        body()
        ptx.op("sub.u32", self._steps, self._steps, 1)
        ptx.branch(label, ptx.p("setp.ne.u32", self._steps, 0))

    # --- one stage ---

    def _synchronous(self) -> None:
        ptx, operands = self._ptx, (self._a, self._b)
        slot = self._block.shared
        b_slot = ptx.r("add.u32", slot, self._tiles.rows_start) if self._decoded else slot
        ptx.phase("main loop: one slot, copies through registers")
        for operand, target in zip(operands, (slot, b_slot), strict=True):
            operand.aim(target)
            operand.open(target)

        def step() -> None:
            for operand in operands:
                operand.copy_now()
            for operand in operands:
                operand.advance()
            ptx.op("bar.sync", 0)
            weave([], [fill for operand in operands for fill in self._loads(operand, 0)])
            for slice_k in range(self._slices):
                fills: list[Fill] = []
                if slice_k + 1 < self._slices:
                    fills = [f for operand in operands for f in self._loads(operand, slice_k + 1)]
                ptx.comment(f"slice {slice_k}")
                weave(self._mmas(slice_k), fills)
            ptx.op("bar.sync", 0)

        self._loop("MAIN_LOOP", step)

    # --- several stages ---

    def _pipelined(self) -> None:
        ptx, a, b = self._ptx, self._a, self._b
        self._ring = Ring(ptx, self._block.shared, self._tiles.slot_bytes, self._stages)
        if self._decoded:
            self._start_decoded(self._decoded)
        else:
            ptx.phase("prologue: every slot is on its way", "Tiles past the end arrive as zeros.")
            for operand in (a, b):
                operand.aim(self._ring.address)
            for stage in range(self._stages):
                ptx.comment(f"tile {stage}")
                for operand in (a, b):
                    self._copy_stage(operand, stage, self._tiles.slot_bytes)
                for operand in (a, b):
                    operand.advance()
                commit(ptx)
            wait_for_all_but(ptx, self._stages - 1)
            ptx.op("bar.sync", 0)
            b.open(self._ring.address)
        a.open(self._ring.address)
        ptx.comment("fragments of the first slice")
        weave([], [fill for operand in (a, b) for fill in self._loads(operand, 0)])
        ptx.phase(
            f"main loop: {self._slices} slices of k a step, {self._stages} slots",
            "A slice's mma's, and between them the loads of the next slice's fragments.",
        )
        self._loop("MAIN_LOOP", self._pipelined_step)
        ptx.phase("drain", "What is in flight are zeros past the end; shared memory must outlive them.")
        ptx.op("cp.async.wait_all")

    def _copy_stage(self, operand: Operand, stage: int, slot_bytes: int) -> None:
        weave([], operand.copies(stage * slot_bytes))

    def _start_decoded(self, b: DecodedOperand) -> None:
        """Codes run one tile ahead of A, because a tile is decoded in the step before it is used."""
        ptx, a, tiles = self._ptx, self._a, self._tiles
        base = self._block.shared
        codes = ptx.r("add.u32", base, tiles.codes_start)
        ptx.phase(
            "prologue: A and codes on their way, codes one tile ahead",
            "The first tile is decoded before the loop. Tiles past the end arrive as zeros.",
        )
        a.aim(self._ring.address)
        b.aim(codes)
        self._copy_stage(b, 0, 0)
        b.advance()
        for stage in range(self._stages - 1):
            ptx.comment(f"tile {stage} of A, {stage + 1} of codes")
            self._copy_stage(a, stage, tiles.slot_bytes)
            self._copy_stage(b, stage + 1, tiles.code_slot_bytes)
            a.advance()
            b.advance()
            commit(ptx)
        wait_for_all_but(ptx, self._stages - 2)
        ptx.op("bar.sync", 0)
        ptx.comment("tile 0 becomes rows")
        rows = ptx.r("add.u32", base, tiles.rows_start)
        weave([], b.decode(codes, rows))
        ptx.op("bar.sync", 0)
        self._copy_stage(a, self._stages - 1, tiles.slot_bytes)
        self._copy_stage(b, 0, 0)
        a.advance()
        b.advance()
        commit(ptx)
        b.open(rows)
        self._codes = Ring(ptx, codes, tiles.code_slot_bytes, self._stages, first=1)
        self._next_rows = ptx.r("add.u32", rows, tiles.rows_bytes)
        self._rows_sum = ptx.r("add.u32", rows, self._next_rows)

    def _pipelined_step(self) -> None:
        ptx, last = self._ptx, self._slices - 1
        barrier_after = self._columns if self._rows > 1 else 0
        decoding = self._decoded.decode(self._codes.address, self._next_rows) if self._decoded else []
        for slice_k in range(last):
            fills = [f for operand in (self._a, self._b) for f in self._loads(operand, slice_k + 1)]
            # Decoding is spread over the slices before the barrier.
            share = -(-len(decoding) // (last - slice_k))
            fills, decoding = fills + decoding[:share], decoding[share:]
            ptx.comment(f"slice {slice_k}, and loads of slice {slice_k + 1}")
            weave(self._mmas(slice_k), fills)
        ptx.comment(f"slice {last}, and the turn to the next tile")
        weave(self._mmas(last), decoding + self._turn(barrier_after))

    def _turn(self, after: int) -> list[Fill]:
        """What the last slice's mma's hide: barrier, the next tile's first fragments, and copies to the freed
        slot.

        Args:
            after: Number of mma's of the slice that come before the barrier.
        """
        ptx, a, b, decoded = self._ptx, self._a, self._b, self._decoded

        def barrier() -> None:
            ptx.comment("The next tile is there, and nobody reads this slot any more.")
            wait_for_all_but(ptx, self._stages - 2)
            ptx.op("bar.sync", 0)

        def turn() -> None:
            a.aim(self._ring.address)
            if decoded:
                b.aim(self._codes.address)
                self._codes.advance()
                b.open(self._next_rows)
                ptx.op("sub.u32", self._next_rows, self._rows_sum, self._next_rows)
                self._ring.advance()
            else:
                b.aim(self._ring.address)
                self._ring.advance()
                b.open(self._ring.address)
            a.open(self._ring.address)

        def advance() -> None:
            commit(ptx)
            a.advance()
            b.advance()

        in_place = after if self._slices == 1 else None
        fills = [
            *self._loads(a, 0, in_place),
            *(Fill(fill.write, after) for fill in (*a.copies(), *b.copies())),
            Fill(advance, after),
            *self._loads(b, 0, in_place),
        ]
        if in_place is not None:
            fills.sort(key=lambda fill: fill.ready)
        return [Fill(barrier, after), Fill(turn, after), *fills]
