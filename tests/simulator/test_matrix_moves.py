"""ldmatrix and stmatrix: which lane gets which word, and what they count and read."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_harness import entry, kinds, run


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_gives_lane_4r_plus_w_word_w_of_row_r(count: int, transposed: bool) -> None:
    names = ", ".join(f"%r{20 + i}" for i in range(count))
    body = """mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [c];
.shared .align 16 .b8 tile[1024]; mov.u32 %r4, tile; mad.lo.u32 %r5, %r0, 16, %r4;
mad.wide.u32 %rd2, %r0, 16, %rd0;
ld.global.v4.u32 {%r6, %r7, %r8, %r9}, [%rd2]; st.shared.v4.u32 [%r5], {%r6, %r7, %r8, %r9}; bar.sync 0;
"""
    body += (
        f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16 {{{names}}}, [%r5];"
    )
    body += f"mad.wide.u32 %rd3, %r0, {4 * count}, %rd1;"
    body += "".join(f"st.global.u32 [%rd3+{4 * i}], %r{20 + i};" for i in range(count)) + "ret;"
    a = np.random.default_rng(0).integers(0, 1 << 16, (32, 8), dtype=np.uint16)
    report = run(entry(body), {"a": a, "c": np.zeros((32, count), np.uint32)})
    assert report.clean
    found = report.buffers["c"]
    for lane in range(32):
        for number in range(count):
            matrix = a[8 * number : 8 * number + 8]
            matrix = matrix.T if transposed else matrix
            low, high = matrix[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2].tolist()
            assert int(found[lane, number]) == low | high << 16


@pytest.mark.parametrize("transposed", ["", ".trans"])
def test_stmatrix_is_the_reverse_of_ldmatrix(transposed: str) -> None:
    body = f"""mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [c];
.shared .align 16 .b8 tile[1024]; mov.u32 %r4, tile; mad.lo.u32 %r5, %r0, 16, %r4;
mad.wide.u32 %rd2, %r0, 16, %rd0;
ld.global.v4.u32 {{%r6, %r7, %r8, %r9}}, [%rd2];
stmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 [%r5], {{%r6, %r7, %r8, %r9}}; bar.sync 0;
ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 {{%r16, %r17, %r18, %r19}}, [%r5];
mad.wide.u32 %rd3, %r0, 16, %rd1; st.global.v4.u32 [%rd3], {{%r16, %r17, %r18, %r19}}; ret;"""
    a = np.random.default_rng(0).integers(0, 1 << 32, (32, 4), dtype=np.uint32)
    report = run(entry(body), {"a": a, "c": np.zeros_like(a)})
    assert report.clean
    assert np.array_equal(report.buffers["c"], a)


@pytest.mark.parametrize(("stride", "wavefronts"), [(16, 4), (48, 4), (80, 4), (64, 16), (32, 8), (128, 32)])
def test_ldmatrix_conflicts_are_counted_a_matrix(stride: int, wavefronts: int) -> None:
    body = f"""mov.u32 %r0, %tid.x; ld.param.u64 %rd1, [c]; .shared .align 16 .b8 tile[4352];
    mov.u32 %r4, tile;
mad.lo.u32 %r5, %r0, {stride}, %r4; st.shared.v4.u32 [%r5], {{%r0, %r0, %r0, %r0}}; bar.sync 0;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r16, %r17, %r18, %r19}}, [%r5];
mad.wide.u32 %rd3, %r0, 4, %rd1; st.global.u32 [%rd3], %r16; ret;"""
    report = run(entry(body), {"a": np.zeros(1), "c": np.zeros(32, np.uint32)})
    loads = report.counters[0].matrix_loads
    assert (loads.wavefronts, loads.ideal, loads.nbytes) == (wavefronts, 4, 512)


def test_ldmatrix_reads_are_those_of_the_receiving_lanes() -> None:
    """Each lane wrote the words that it receives, so there is no race though it gives the address of others'
    rows.
    """
    body = """mov.u32 %r0, %tid.x; ld.param.u64 %rd1, [c]; .shared .align 16 .b8 tile[128]; mov.u32 %r4, tile;
mad.lo.u32 %r5, %r0, 4, %r4; st.shared.u32 [%r5], %r0; and.b32 %r6, %r0, 7; mad.lo.u32 %r6, %r6, 16, %r4; {}
ldmatrix.sync.aligned.m8n8.x1{}.shared.b16 {%r16}, [%r6]; mad.wide.u32 %rd3, %r0, 4, %rd1;
st.global.u32 [%rd3], %r16; ret;"""
    buffers = {"a": np.zeros(1), "c": np.zeros(32, np.uint32)}
    assert run(entry(body.replace("{}", "")), buffers).clean
    report = run(entry(body.replace("{}", "", 1).replace("{}", ".trans")), buffers)
    assert kinds(report) == ["race"]
