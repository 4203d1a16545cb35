"""What a launch plan asks of a GPU, in numbers that do not depend on which GPU it is.

A `Work` comes from counters of simulated blocks and the cubin (`tuner.devices.sampling`), or from closed
forms over a schedule. Every field is a number or an array over many schedules; arrays broadcast with each
other.
"""

from dataclasses import dataclass

from tuner.occupancy import Number


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel launch. Counts are of one block in its whole life, unless they say otherwise.

    Attributes:
        blocks: Blocks of the grid.
        threads: Threads a block.
        registers: Registers a thread.
        shared_bytes: Static and dynamic shared memory a block.
        steps: Iterations of the main loop.
        mma_s8: mma's, in units of one m16n8k32 s8 mma of one warp.
        mma_f16: mma's, in units of one m16n8k16 f16 mma of one warp.
        chains: mma's that a warp can have under way at once: its accumulators.
        instructions: Warp instructions of the main loop. Where `phased`, only the mma's and fragment loads.
        fill_instructions: Where `phased`, the other ones: they bring a tile to shared memory.
        alu_instructions: Integer and logic ones; where `phased` they are among `fill_instructions`.
        other_instructions: Warp instructions outside the main loop.
        shared_reads: Wavefronts of ld.shared and ldmatrix, bank conflicts included.
        shared_writes: Wavefronts of st.shared and of arriving cp.async, bank conflicts included.
        scattered_sectors: Sectors of global loads beyond those that their bytes fill: lanes that share none.
        read_bytes: Global bytes that cross from L2.
        write_bytes: Global bytes stored, in whole sectors.
        atomic_bytes: Global bytes of atomics and reductions, in whole sectors.
        phased: 1 where block-wide barriers separate filling shared memory from computing on it, so that
            nothing overlaps across them; else 0.
        lookahead: Steps that a step's loads are ahead of their use.
        free: 1 where no block-wide barrier is in the main loop, so that warps and blocks drift apart; else 0.
            What follows counts only there.
        common_bytes: Of `read_bytes`, what plain loads of every block read, as a vector that all rows need.
        load_wavefronts: Wavefronts of global loads through L1, whether they hit or not.
        own_cycles: Cycles of a warp's own instructions in its whole life, were there nothing to wait for.
        outside_cycles: Of them, outside the main loop.
    """

    blocks: Number
    threads: Number
    registers: Number
    shared_bytes: Number
    steps: Number = 1.0
    mma_s8: Number = 0.0
    mma_f16: Number = 0.0
    chains: Number = 16.0
    instructions: Number = 0.0
    fill_instructions: Number = 0.0
    alu_instructions: Number = 0.0
    other_instructions: Number = 0.0
    shared_reads: Number = 0.0
    shared_writes: Number = 0.0
    scattered_sectors: Number = 0.0
    read_bytes: Number = 0.0
    write_bytes: Number = 0.0
    atomic_bytes: Number = 0.0
    phased: Number = 0.0
    lookahead: Number = 1.0
    free: Number = 0.0
    common_bytes: Number = 0.0
    load_wavefronts: Number = 0.0
    own_cycles: Number = 0.0
    outside_cycles: Number = 0.0


@dataclass(frozen=True, slots=True)
class Fill:
    """A memset of that many bytes."""

    nbytes: Number


@dataclass(frozen=True, slots=True)
class PlanWork:
    """All of one call.

    Attributes:
        steps: In order.
        footprint_bytes: Distinct bytes of global memory that the call touches: operands and workspace.
        input_bytes: Of them, those of the operands that it reads; they come from DRAM where L2 is cold.
    """

    steps: tuple[Work | Fill, ...]
    footprint_bytes: Number
    input_bytes: Number = 0.0
