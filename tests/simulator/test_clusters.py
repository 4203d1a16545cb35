"""Clusters of one block: their barrier, their addresses, and that larger ones are refused."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_harness import entry, kinds, run

from tuner.simulator import PtxError, Report

START = """mov.u32 %r0, %tid.x; ld.param.u64 %rd1, [c]; mad.wide.u32 %rd3, %r0, 4, %rd1;
.shared .align 256 .b8 tile[256]; mov.u32 %r4, tile; mad.lo.u32 %r5, %r0, 4, %r4; xor.b32 %r6, %r5, 252;
mov.u32 %r7, %cluster_ctarank; st.shared.u32 [%r5], %r0;
"""
END = "ld.shared::cluster.u32 %r9, [%r6]; st.global.u32 [%rd3], %r9; ret;"


def go(body: str, **options: int) -> Report:
    text = entry(START + body + END)
    return run(text, {"a": np.zeros(1), "c": np.zeros(64, np.uint32)}, block=64, **options)


@pytest.mark.parametrize("aligned", ["", ".aligned"])
def test_a_cluster_barrier_orders_what_came_before_arrive(aligned: str) -> None:
    sync = f"barrier.cluster.arrive.release{aligned}; barrier.cluster.wait.acquire{aligned};"
    report = go(sync)
    assert report.clean, [str(fault) for fault in report.faults]
    assert np.array_equal(report.buffers["c"], np.arange(64) ^ 63)
    assert kinds(go("")) == ["race"]
    assert kinds(go(sync.replace(".release", ".relaxed"))) == ["race"]
    assert kinds(go(f"barrier.cluster.arrive{aligned};")) == ["race"]


def test_what_comes_between_arrive_and_wait_is_not_ordered() -> None:
    late = "barrier.cluster.arrive; st.shared.u32 [%r5], %r0; barrier.cluster.wait;"
    assert kinds(go(late)) == ["race"]


def test_phases_of_a_cluster_barrier_follow_each_other() -> None:
    sync = "barrier.cluster.arrive; barrier.cluster.wait;"
    twice = f"{sync} ld.shared.u32 %r8, [%r6]; {sync} st.shared.u32 [%r5], %r8; {sync}"
    report = go(twice)
    assert report.clean, [str(fault) for fault in report.faults]
    assert np.array_equal(report.buffers["c"], np.arange(64))


def test_misuse_of_a_cluster_barrier_is_found() -> None:
    assert "divergence" in kinds(go("barrier.cluster.arrive; barrier.cluster.arrive; barrier.cluster.wait;"))
    assert "divergence" in kinds(go("barrier.cluster.wait;"))
    some = "setp.lt.u32 %p1, %r0, 32; @%p1 barrier.cluster.arrive; barrier.cluster.wait;"
    assert "divergence" in kinds(go(some))
    left = "setp.ge.u32 %p1, %r0, 32; @%p1 ret; xor.b32 %r6, %r5, 124;"
    assert go(left + "barrier.cluster.arrive; barrier.cluster.wait;").clean


def test_addresses_of_the_only_block_are_its_own() -> None:
    body = "bar.sync 0; mapa.shared::cluster.u32 %r6, %r6, %r7; getctarank.shared::cluster.u32 %r10, %r6;"
    report = go(body + "add.u32 %r6, %r6, %r10;")
    assert report.clean, [str(fault) for fault in report.faults]
    assert np.array_equal(report.buffers["c"], np.arange(64) ^ 63)
    assert kinds(go("bar.sync 0; mapa.shared::cluster.u32 %r6, %r6, 1;")) == ["out_of_bounds"]


def test_atomics_reach_the_shared_memory_of_the_cluster() -> None:
    body = "bar.sync 0; atom.shared::cluster.add.u32 %r8, [%r4], 1; bar.sync 0; mov.u32 %r6, %r4;"
    assert set(go(body).buffers["c"].tolist()) == {64}


def test_larger_clusters_are_refused() -> None:
    text = entry(START + END).replace("\n{\n", "\n.reqnctapercluster 2, 1, 1\n{\n")
    with pytest.raises(PtxError, match="clusters of more than one block are not simulated"):
        run(text, {"a": np.zeros(1), "c": np.zeros(64, np.uint32)}, block=64)
    single = text.replace("2, 1, 1", "1, 1, 1")
    assert kinds(run(single, {"a": np.zeros(1), "c": np.zeros(64, np.uint32)}, block=64)) == ["race"]
