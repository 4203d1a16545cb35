"""What ordinary stores write, the async proxy reads behind a proxy fence only."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_harness import entry, run

from tuner.simulator import Report

STORE = """mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [c];
.shared .align 16 .b8 tile[256]; .shared .align 8 .b8 bar[8]; mov.u32 %r4, tile; mov.u32 %r5, bar;
mad.lo.u32 %r6, %r0, 4, %r4; setp.eq.u32 %p1, %r0, 0; setp.eq.u32 %p2, %r0, 40;
{before} st.shared.u32 [%r6], %r0; {after}
@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r4], 256;
@%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0; ret;
"""
FENCE = "fence.proxy.async.shared::cta;"


def go(before: str, after: str, clocks: bool) -> Report:
    begin = "mov.u32 %r9, 64; bar.sync 2, %r9;" if clocks else ""
    text = entry(begin + STORE.format(before=before, after=after))
    return run(text, {"a": np.zeros(64, np.uint32), "c": np.zeros(64, np.uint32)}, block=64)


@pytest.mark.parametrize("clocks", [False, True])
@pytest.mark.parametrize(
    ("before", "after", "clean"),
    [
        ("", FENCE + "bar.sync 0;", True),
        ("", "fence.proxy.async; bar.sync 0;", True),
        ("", f"bar.sync 0; @%p1 {FENCE}", True),
        ("", f"bar.sync 0; @%p2 {FENCE} bar.sync 0;", True),
        ("", "bar.sync 0;", False),
        (FENCE, "bar.sync 0;", False),
        ("", f"@%p2 {FENCE} bar.sync 0;", False),
        ("", "fence.proxy.async.global; bar.sync 0;", False),
        ("", "fence.acq_rel.gpu; bar.sync 0;", False),
    ],
    ids=[
        "writers",
        "of all spaces",
        "the reader",
        "another",
        "none",
        "too early",
        "one writer",
        "global",
        "plain",
    ],
)
def test_a_fence_has_to_lie_between_the_write_and_the_read(
    before: str, after: str, clean: bool, clocks: bool
) -> None:
    report = go(before, after, clocks)
    assert report.clean == clean, [str(fault) for fault in report.faults]
    if not clean:
        (fault,) = report.faults
        assert (fault.kind, "fence.proxy.async" in fault.message) == ("race", True)
        assert fault.other_text.startswith("st.shared")


def test_what_a_bulk_copy_brought_needs_no_fence() -> None:
    after = f"""{FENCE} bar.sync 0; st.shared.u32 [%r6], 7;
@%p1 mbarrier.init.shared.b64 [%r5], 1; bar.sync 0;
@%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r5], 256;
@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%rd0], 256, [%r5];
W: mbarrier.try_wait.parity.shared.b64 %p3, [%r5], 0; @!%p3 bra W;
"""
    report = go("", after, True)
    assert report.clean, [str(fault) for fault in report.faults]
    assert not report.buffers["c"].any()
