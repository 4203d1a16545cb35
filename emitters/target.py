"""What a kernel is emitted for: an architecture and, for the cost model, the figures of one GPU.

Limits of an architecture are from the CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability"; the lowest PTX version that knows it is from the PTX ISA, "Release Notes".
"""

from dataclasses import dataclass


class UnknownArchError(ValueError):
    """An architecture that no table here describes."""


@dataclass(frozen=True, slots=True)
class Arch:
    """Limits of one compute capability.

    Attributes:
        name: As ptxas takes it: ``sm_89``.
        ptx_version: Lowest ``.version`` that accepts ``.target`` `name`.
        shared_per_block: Most dynamic shared memory of one block after opt-in, bytes.
        shared_per_sm: Shared memory of one SM, bytes; every resident block also takes `SHARED_RESERVED`.
        threads_per_sm, blocks_per_sm: Most resident at once.
        unified_bytes: Memory of an SM that shared memory and L1 divide between them.
    """

    name: str
    ptx_version: str
    shared_per_block: int
    shared_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    unified_bytes: int

    @property
    def number(self) -> int:
        """89 for ``sm_89``."""
        return int(self.name.removeprefix("sm_"))


REGISTERS_PER_SM = 65536
REGISTERS_PER_THREAD = 255
REGISTER_UNIT = 256  # registers are handed to a warp in units of this many
THREADS_PER_BLOCK = 1024
WARP = 32
SHARED_RESERVED = 1024  # bytes of shared memory that the system takes for each resident block
KIB = 1024

ARCHS: dict[str, Arch] = {
    arch.name: arch
    for arch in (
        Arch("sm_80", "7.0", 163 * KIB, 164 * KIB, 2048, 32, 192 * KIB),
        Arch("sm_86", "7.1", 99 * KIB, 100 * KIB, 1536, 16, 128 * KIB),
        Arch("sm_89", "7.8", 99 * KIB, 100 * KIB, 1536, 24, 128 * KIB),
        Arch("sm_90", "7.8", 227 * KIB, 228 * KIB, 2048, 32, 256 * KIB),
        Arch("sm_100", "8.6", 227 * KIB, 228 * KIB, 2048, 32, 256 * KIB),
        Arch("sm_120", "8.7", 99 * KIB, 100 * KIB, 1536, 24, 128 * KIB),
    )
}


def arch_named(name: str) -> Arch:
    """The architecture of that name.

    Raises:
        UnknownArchError: With the names there are.
    """
    try:
        return ARCHS[name]
    except KeyError:
        raise UnknownArchError(f"unknown arch {name!r}; known are {', '.join(ARCHS)}") from None


@dataclass(frozen=True, slots=True)
class Figure:
    """One number about a GPU and where it is from."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """Figures of one GPU that the cost model needs (`emitters.gpus` holds the table).

    Attributes:
        name: As in ``sim:rtx4090``.
        arch: Name of its architecture.
        sms: Streaming multiprocessors.
        clock_mhz: Boost clock at which times are predicted; the physical bound uses `max_clock_mhz`.
        max_clock_mhz: Highest clock the part can run at.
        l2_bytes: L2 capacity.
        dram_gb_s: Peak DRAM bandwidth, 10^9 bytes a second.
        mma_s8_cycles: Cycles of one m16n8k32 s8 mma on one of the four sub-partitions of an SM, through
            `mma.sync`.
        mma_f16_cycles: The same for m16n8k16 f16 with f32 accumulation.
        fp32_lanes: FP32 fma lanes of an SM.
        l2_bytes_per_clock_per_sm: Sustained L2 read bandwidth.
        mma_s8_peak_cycles, mma_f16_peak_cycles: Where the specification allows more than `mma.sync` was seen
            to reach: that rate. Only the physical bound uses it.
    """

    name: str
    arch: str
    sms: Figure
    clock_mhz: Figure
    max_clock_mhz: Figure
    l2_bytes: Figure
    dram_gb_s: Figure
    mma_s8_cycles: Figure
    mma_f16_cycles: Figure
    fp32_lanes: Figure
    l2_bytes_per_clock_per_sm: Figure
    mma_s8_peak_cycles: Figure | None = None
    mma_f16_peak_cycles: Figure | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What a kernel is emitted, assembled and modelled for.

    Attributes:
        arch: Decides the text and the limits.
        gpu: Figures for the cost model; emitters never look at it.
    """

    arch: Arch
    gpu: Gpu | None = None

    @classmethod
    def of(cls, arch: str) -> "Target":
        """The target of an architecture by name, without a GPU's figures."""
        return cls(arch_named(arch))
