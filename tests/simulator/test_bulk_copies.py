"""cp.async.bulk with mbarriers and bulk groups, and the mistakes one can make with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ptx_harness import entry, kinds, run

from tuner.simulator import Report

START = """mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [c];
mad.wide.u32 %rd3, %r0, 4, %rd1;
.shared .align 16 .b8 tile[512]; .shared .align 8 .b8 bar[8]; mov.u32 %r4, tile; mov.u32 %r5, bar;
mad.lo.u32 %r6, %r0, 4, %r4; setp.eq.u32 %p1, %r0, 0;
"""
LOAD = """@%p1 mbarrier.init.shared.b64 [%r5], 1; bar.sync 0;
@%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r5], {};
@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%rd0], 256, [%r5];
"""
WAIT = "W: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0; @!%p2 bra W;\n"
OUT = "ld.shared.u32 %r9, [%r6]; st.global.u32 [%rd3], %r9; ret;"


def go(body: str) -> Report:
    a = np.arange(64, dtype=np.uint32)
    return run(entry(START + body), {"a": a, "c": np.zeros(64, np.uint32)}, block=64)


def test_a_bulk_copy_arrives_for_who_waits_for_its_mbarrier() -> None:
    report = go(LOAD.format(256) + WAIT + OUT)
    assert report.clean, [str(fault) for fault in report.faults]
    assert np.array_equal(report.buffers["c"], np.arange(64))


def test_reading_without_waiting_is_a_race() -> None:
    assert kinds(go(LOAD.format(256) + OUT)) == ["race"]
    only_first = WAIT.replace("W:", "@!%p1 bra SKIP;\nW:") + "SKIP: "
    assert "race" in kinds(go(LOAD.format(256) + only_first + OUT))


def test_expecting_more_bytes_than_come_is_endless() -> None:
    assert kinds(go(LOAD.format(272) + WAIT + OUT)) == ["endless"]


def test_misaligned_sizes_are_found() -> None:
    assert "misaligned" in kinds(go(LOAD.format(250).replace(" 256,", " 250,") + OUT))


STORE = """st.shared.u32 [%r6], %r0; fence.proxy.async.shared::cta; bar.sync 0;
@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r4], 256; @%p1 cp.async.bulk.commit_group; {}
st.shared.u32 [%r6], 7; ret;
"""


def test_a_bulk_store_reads_until_it_is_waited_for() -> None:
    report = go(STORE.format("@%p1 cp.async.bulk.wait_group.read 0; bar.sync 0;"))
    assert report.clean, [str(fault) for fault in report.faults]
    assert np.array_equal(report.buffers["c"], np.arange(64))
    assert kinds(go(STORE.format("bar.sync 0;"))) == ["race"]


def test_a_bulk_store_that_nothing_waits_for_is_noted() -> None:
    report = go(STORE.format("ret;"))
    assert report.clean, [str(fault) for fault in report.faults]
    assert any("nothing has waited" in note for note in report.notes)
    assert np.array_equal(report.buffers["c"], np.arange(64))  # but there when the launch is over


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("add.u32", lambda x: 100 + 2 * x),
        ("max.u32", lambda x: np.maximum(x, 100)),
        ("xor.b32", lambda x: 0 * x + 100),
    ],
)
def test_a_bulk_reduction_changes_what_is_there(
    operation: str, expected: Callable[..., NDArray[Any]]
) -> None:
    body = "mad.wide.u32 %rd2, %r0, 4, %rd0; ld.global.u32 %r9, [%rd2]; st.shared.u32 [%r6], %r9;"
    body += "fence.proxy.async.shared::cta; bar.sync 0;"
    body += f"@%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation} [%rd1], [%r4], 256;"
    body += "@%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0; ret;"
    a = np.random.default_rng(2).integers(0, 200, 64, dtype=np.uint32)
    buffers = {"a": a, "c": np.full(64, 100, np.uint32)}
    report = run(entry(START + body), buffers, block=64, grid=2, outputs=())
    assert report.clean, [str(fault) for fault in report.faults]
    assert np.array_equal(report.buffers["c"], expected(a))


def test_prefetches_change_nothing() -> None:
    report = go("@%p1 cp.async.bulk.prefetch.L2.global [%rd0], 256;" + LOAD.format(256) + WAIT + OUT)
    assert report.clean, [str(fault) for fault in report.faults]


def test_a_trap_is_a_fault_of_the_threads_that_run_into_it() -> None:
    report = go("st.global.u32 [%rd3], %r0; setp.gt.u32 %p3, %r0, 60; @%p3 trap; ret;")
    (fault,) = report.faults
    assert (fault.kind, fault.count, fault.thread) == ("trap", 3, (61, 0, 0))
