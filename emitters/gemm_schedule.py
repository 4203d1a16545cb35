"""Schedules of the forward GEMM family: their parameters, and what follows from them.

Shared bytes, threads, registers and resident blocks are computed here and nowhere else; the emitter and the
constraints of the search space both ask this module.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from emitters import gemm_lanes
from emitters.fragments.decode import SCALE_SHIFT
from emitters.fragments.matrix import A_REGISTERS, B_REGISTERS, C_REGISTERS, MMA_K, MMA_M, MMA_N
from emitters.fragments.tile import BANK_BYTES, RowTile
from emitters.gemm_lanes import LanePart
from emitters.ptx import SHARED_ALIGNMENT, SharedLayout
from emitters.target import REGISTERS_PER_SM, SHARED_RESERVED, WARP, Arch
from emitters.ternary import PREPACK_COLUMNS


@dataclass(frozen=True)
class DenseSchedule:
    """How `gemm_s8` is computed. All sizes of tiles are in elements, which are bytes.

    Attributes:
        tile_m, tile_n, tile_k: The block's share of C, and the k-step.
        warps_m, warps_n: How the block's warps divide the tile.
        stages: 1: synchronous copies through registers; 2..6: slots of a `cp.async` pipeline.
        stride_pad: Bytes added to each s8 row in shared memory. (Rows of codes have a pad of their own.)
        swizzle: Exchange 16-byte chunks of rows instead.
        copy_bytes: Width of the global-to-shared copies. In the ternary kernel of codes only: rows of A are
            16-byte aligned for every valid problem, so A is always copied by 16. In `gemm_s8` of both
            operands.
        fragment_load: ``ldmatrix`` or ``ld.shared``, for operands that lie in shared memory as s8 rows.
        split_k: Blocks that share an output tile along k; they add to a zeroed C.
        raster: Tile rows that consecutive blocks walk down before moving on to the next tile column.
        min_blocks: Blocks an SM that ptxas leaves registers for.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    warps_m: int
    warps_n: int
    stages: int
    stride_pad: int
    swizzle: bool
    copy_bytes: int
    fragment_load: str
    split_k: int
    raster: int
    min_blocks: int


@dataclass(frozen=True)
class GemmSchedule(DenseSchedule):
    """How `ternary_gemm_s8` is computed.

    Attributes:
        decode: ``shared``: codes become s8 rows in shared memory once a tile. ``register``: they stay packed
            until a warp needs the fragment.
        weight_layout: ``plain``: codes as in the contract. ``fragment``: prepacked
            (`emitters.ternary.prepack`).
    """

    decode: str
    weight_layout: str


@dataclass(frozen=True)
class Geometry:
    """What follows from a schedule, without a target. The kernels of the backward pass have their own."""

    schedule: DenseSchedule

    @property
    def valid(self) -> str:
        """Problems that the schedule serves: wide copies of code rows, N / 4 bytes long, need them
        aligned."""
        schedule = self.schedule
        if (
            isinstance(schedule, GemmSchedule)
            and schedule.weight_layout == "plain"
            and schedule.copy_bytes > 4
        ):
            return f"n % {4 * schedule.copy_bytes} == 0"
        return "1"

    @property
    def b_kind(self) -> str:
        """How B gets to the mma: s8 ``rows``, ``decoded`` to such, ``packed``, or prepacked ``records``."""
        schedule = self.schedule
        if not isinstance(schedule, GemmSchedule):
            return "rows"
        if schedule.decode == "shared":
            return "decoded"
        return "packed" if schedule.weight_layout == "plain" else "records"

    @property
    def threads(self) -> int:
        return WARP * self.schedule.warps_m * self.schedule.warps_n

    @property
    def warp_m(self) -> int:
        return self.schedule.tile_m // self.schedule.warps_m

    @property
    def warp_n(self) -> int:
        return self.schedule.tile_n // self.schedule.warps_n

    @property
    def fragments_m(self) -> int:
        return self.warp_m // MMA_M

    @property
    def fragments_n(self) -> int:
        return self.warp_n // MMA_N

    @property
    def slices(self) -> int:
        """k-slices of one mma in a tile."""
        return self.schedule.tile_k // MMA_K

    @property
    def a_width(self) -> int:
        """Bytes of one copy of A."""
        return 16 if isinstance(self.schedule, GemmSchedule) else self.schedule.copy_bytes

    @property
    def paired(self) -> bool:
        """Whether s8 rows of B lie in pair order, which gives lanes four neighbouring columns of C."""
        return self.fragments_n % 2 == 0

    @property
    def record_columns(self) -> int:
        """Columns of a record of prepacked weights: the most that a warp's share divides into."""
        return max((c for c in PREPACK_COLUMNS if self.warp_n % c == 0), default=0)

    @property
    def lane_part(self) -> LanePart:
        """What each lane holds of C."""
        if self.b_kind == "packed":
            return gemm_lanes.grouped(self.fragments_n, exchange=self.schedule.split_k == 1)
        return (gemm_lanes.pair_ordered if self.paired else gemm_lanes.natural)(self.fragments_n)

    @property
    def scale_shift(self) -> int:
        """Bits by which sums are larger than C."""
        return SCALE_SHIFT if isinstance(self.schedule, GemmSchedule) else 0

    @property
    def a_tile(self) -> RowTile:
        """A in a slot of the ring."""
        s = self.schedule
        return RowTile(s.tile_m, s.tile_k, s.stride_pad, s.swizzle)

    @property
    def b_tile(self) -> RowTile | None:
        """B in a slot as it comes from memory: s8 rows, rows of codes, or one row a record. None for
        ``decoded``."""
        s = self.schedule
        match self.b_kind:
            case "rows":
                return RowTile(s.tile_n, s.tile_k, s.stride_pad, s.swizzle)
            case "decoded":
                return None
            case "records":
                columns = self.record_columns
                return RowTile(s.tile_n // columns * self.slices, columns * MMA_K // 4)
        return self.code_tile

    @property
    def code_tile(self) -> RowTile:
        """Rows of codes, k after k."""
        s = self.schedule
        return RowTile(s.tile_k, s.tile_n // 4, code_pad(s.tile_n // 4, 4 if self.b_kind == "packed" else 8))

    @property
    def fragment_buffers(self) -> int:
        """Sets of fragment registers.

        Two, so that the next slice loads during this one's mma's. One if a tile has one slice: then each
        register is reloaded as soon as its last mma has read it.
        """
        return 1 if self.slices == 1 else 2

    @property
    def accumulator_registers(self) -> int:
        return C_REGISTERS * self.fragments_m * self.fragments_n

    @property
    def fragment_registers(self) -> int:
        return self.fragment_buffers * (A_REGISTERS * self.fragments_m + B_REGISTERS * self.fragments_n)

    @property
    def registers(self) -> int:
        """Estimate of a thread's registers: accumulators, fragments, copy addresses, and 40 for the rest."""
        copies = self.schedule.tile_m * self.schedule.tile_k // self.a_width // self.threads
        return self.accumulator_registers + self.fragment_registers + min(copies, 32) + 40

    def most_blocks(self, arch: Arch) -> int:
        """Blocks that an SM holds by registers (as estimated), threads and shared memory."""
        return min(
            REGISTERS_PER_SM // (self.registers * self.threads),
            arch.threads_per_sm // self.threads,
            arch.shared_per_sm // (self.shared.nbytes + SHARED_RESERVED),
            arch.blocks_per_sm,
        )

    @cached_property
    def shared(self) -> "SharedTiles":
        return SharedTiles.of(self)


@dataclass(frozen=True)
class SharedTiles:
    """Where things lie in shared memory.

    A slot of the ring holds one k-tile: A, then B as it comes from memory. Slots start at 0. Codes that are
    decoded to shared memory come from a ring of their own, which runs one tile ahead, to two tiles of s8 rows
    that are written and read in turn (one, where copies are synchronous: those go straight to rows).

    Attributes:
        a: A in a slot.
        b: Rows of B in a slot; for `packed` rows of codes, for `records` one row a record; None for
            `decoded`.
        codes: Rows of codes in a slot of the code ring; None unless `decoded` with several stages.
        rows: Decoded rows; None unless `decoded`.
        slot_bytes, code_slot_bytes: Distance of slots.
        codes_start, rows_start: Where the code ring and the decoded rows start.
        rows_bytes: Distance of the two tiles of decoded rows.
        nbytes: All of it.
    """

    a: RowTile
    b: RowTile | None
    codes: RowTile | None
    rows: RowTile | None
    slot_bytes: int
    code_slot_bytes: int
    codes_start: int
    rows_start: int
    rows_bytes: int
    nbytes: int

    @classmethod
    def of(cls, geometry: Geometry) -> "SharedTiles":
        s = geometry.schedule
        slot = SharedLayout()
        tile_a, tile_b = geometry.a_tile, geometry.b_tile
        slot.take(tile_a.nbytes, SHARED_ALIGNMENT)
        if tile_b is not None:
            tile_b = replace(tile_b, offset=slot.take(tile_b.nbytes, SHARED_ALIGNMENT))
        slot_bytes = _aligned(slot.nbytes)
        whole = SharedLayout()
        whole.take(slot_bytes * s.stages)
        codes = rows_n = None
        code_slot_bytes = codes_start = rows_start = rows_bytes = 0
        if geometry.b_kind == "decoded":
            rows_n = RowTile(s.tile_n, s.tile_k, s.stride_pad, s.swizzle)
            rows_bytes = _aligned(rows_n.nbytes)
            rows_start = whole.take(rows_bytes * (1 if s.stages == 1 else 2), SHARED_ALIGNMENT)
            if s.stages > 1:
                codes = geometry.code_tile
                code_slot_bytes = _aligned(codes.nbytes)
                codes_start = whole.take(code_slot_bytes * s.stages, SHARED_ALIGNMENT)
        return cls(
            a=tile_a,
            b=tile_b,
            codes=codes,
            rows=rows_n,
            slot_bytes=slot_bytes,
            code_slot_bytes=code_slot_bytes,
            codes_start=codes_start,
            rows_start=rows_start,
            rows_bytes=rows_bytes,
            nbytes=whole.nbytes,
        )


def code_pad(row_bytes: int, rows_read: int) -> int:
    """Bytes after a row of codes, whatever `stride_pad` says of s8 rows.

    Lanes read the same columns of `rows_read` neighbouring rows at once: 4 where codes go to registers, 8 and
    more where they are decoded to shared memory. Rows an odd number of 16-byte chunks long start in different
    groups of banks; so do rows that fill the banks no more than once together.
    """
    return 16 if row_bytes % 32 == 0 and row_bytes * rows_read > BANK_BYTES else 0


def _aligned(nbytes: int) -> int:
    return -(-nbytes // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
