"""How many blocks of a kernel an SM holds at once, after the CUDA occupancy calculator. Takes arrays too."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from emitters.target import REGISTER_UNIT, REGISTERS_PER_SM, SHARED_RESERVED, WARP, Arch

FloatArray: TypeAlias = NDArray[np.float64]
Number: TypeAlias = float | FloatArray

SUB_PARTITIONS = 4
SHARED_UNIT = (
    128  # bytes; shared memory is handed out in units of this many (compute capability 8.0 and later)
)


def resident_blocks(arch: Arch, threads: Number, registers: Number, shared_bytes: Number) -> FloatArray:
    """Blocks that an SM holds at once; 0 for a block that does not fit at all.

    Args:
        arch: The limits.
        threads: Threads a block.
        registers: Registers a thread.
        shared_bytes: Static and dynamic shared memory a block.
    """
    warps = np.ceil(np.asarray(threads, np.float64) / WARP)
    # A warp's registers come from its own sub-partition, in whole units.
    registers_a_warp = np.ceil(np.maximum(registers, 1) * WARP / REGISTER_UNIT) * REGISTER_UNIT
    warps_by_registers = np.floor(REGISTERS_PER_SM / SUB_PARTITIONS / registers_a_warp) * SUB_PARTITIONS
    shared = np.ceil(np.asarray(shared_bytes, np.float64) / SHARED_UNIT) * SHARED_UNIT + SHARED_RESERVED
    limits = [
        np.floor(arch.threads_per_sm / WARP / warps),
        np.floor(warps_by_registers / warps),
        np.floor(arch.shared_per_sm / shared),
        np.full_like(warps, arch.blocks_per_sm),
    ]
    resident: FloatArray = np.minimum.reduce(np.broadcast_arrays(*limits))
    return resident
