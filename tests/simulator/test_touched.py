"""Which sectors of global memory each block loads, however often."""

import numpy as np

from tuner.simulator import Counters, Launch, parse, simulate

# Every thread reads word `tid` of `common`, and word 64 * block + tid of `own`, twice.
READ_AGAIN = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 common, .param .u64 own, .param .u64 out)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    ld.param.u64 %d0, [common];
    ld.param.u64 %d1, [own];
    ld.param.u64 %d2, [out];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mad.lo.u32 %r2, %r1, 64, %r0;
    and.b32 %r7, %r0, 31;
    mad.wide.u32 %d3, %r7, 4, %d0;
    mad.wide.u32 %d4, %r2, 4, %d1;
    mad.wide.u32 %d5, %r2, 4, %d2;
    ld.global.u32 %r3, [%d3];
    ld.global.u32 %r4, [%d4];
    ld.global.u32 %r5, [%d4];
    add.u32 %r6, %r3, %r4;
    add.u32 %r6, %r6, %r5;
    st.global.u32 [%d5], %r6;
    ret;
}
"""


def run(blocks: list[int], grid: int = 16) -> Counters:
    buffers = {
        "common": np.arange(32, dtype=np.uint32),
        "own": np.arange(64 * grid, dtype=np.uint32),
        "out": np.zeros(64 * grid, np.uint32),
    }
    launch = Launch("k", (grid, 1, 1), (64, 1, 1), 0, ("common", "own", "out"))
    report = simulate(parse(READ_AGAIN), [launch], buffers, outputs=(), scratch=["out"], blocks={0: blocks})
    assert not report.faults
    return report.counters[0]


def test_a_sector_counts_once_a_block_and_common_ones_are_known() -> None:
    counters = run([3, 9])
    assert counters.touched is not None
    assert counters.global_loads.sectors == 2 * 2 * 3 * 4  # blocks, warps, loads, sectors of 32 words
    assert counters.touched.sectors == 2 * (4 + 8)  # a block has 4 common ones, and 8 of its own
    assert counters.touched.common([3, 9]) == 4
    assert counters.touched.common([3]) == 12


def test_many_blocks_are_not_tracked() -> None:
    assert run(list(range(16))).touched is None


def test_turns_and_visited_instructions_are_counted() -> None:
    counters = run([0])
    assert counters.turns == 2  # its one basic block loads and stores, and two warps come to it
    assert counters.visited == 1
