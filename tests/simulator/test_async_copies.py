"""cp.async: what it brings and when, and the mistakes one can make with it."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_harness import entry, kinds, run
from test_synchronisation import OUT, START, TILE, go

COPY = TILE + "cp.async.ca.shared.global [%r5], [%rd2], 4; cp.async.commit_group;"


def test_a_copy_that_is_waited_for_and_published_arrives() -> None:
    report = go(COPY + "cp.async.wait_group 0; bar.sync 0; ld.shared.u32 %r9, [%r6];" + OUT)
    assert report.clean
    assert np.array_equal(report.buffers["c"], np.arange(128) ^ 1)


@pytest.mark.parametrize(
    ("sync", "target"),
    [
        ("bar.sync 0;", "%r6"),
        ("", "%r5"),
        ("cp.async.wait_group 1; bar.sync 0;", "%r6"),
        ("cp.async.wait_group 0;", "%r6"),
    ],
    ids=["no wait", "own bytes, no wait", "wait one too large", "no barrier"],
)
def test_a_copy_not_waited_for_or_not_published_is_a_race(sync: str, target: str) -> None:
    report = go(COPY + sync + f"ld.shared.u32 %r9, [{target}];" + OUT)
    assert kinds(report) == ["race"]
    assert "cp.async" in report.faults[0].other_text


def test_an_uncommitted_copy_is_not_waited_for_by_groups_but_by_wait_all() -> None:
    body = COPY.replace("cp.async.commit_group;", "")
    assert kinds(go(body + "cp.async.wait_group 0; bar.sync 0; ld.shared.u32 %r9, [%r6];" + OUT)) == ["race"]
    assert go(body + "cp.async.wait_all; bar.sync 0; ld.shared.u32 %r9, [%r6];" + OUT).clean


def test_only_the_issuing_threads_wait_counts() -> None:
    body = (
        COPY
        + "setp.ge.u32 %p1, %r0, 32; @%p1 cp.async.wait_group 0; bar.sync 0; ld.shared.u32 %r9, [%r6];"
        + OUT
    )
    report = go(body)
    assert kinds(report) == ["race"]
    assert report.faults[0].count == 64


def test_a_copy_over_bytes_that_another_thread_may_still_read_is_a_race() -> None:
    body = (
        COPY + "cp.async.wait_group 0; bar.sync 0; ld.shared.u32 %r9, [%r6]; "
        "{} cp.async.ca.shared.global [%r5], [%rd2], 4;"
    )
    assert kinds(go(body.replace("{}", "") + OUT)) == ["race"]
    assert go(body.replace("{}", "bar.sync 0;") + OUT).clean


def test_groups_complete_in_order() -> None:
    body = TILE + "add.u32 %r7, %r5, 512; cp.async.ca.shared.global [%r5], [%rd2], 4; cp.async.commit_group;"
    body += (
        "cp.async.ca.shared.global [%r7], [%rd2], 4; cp.async.commit_group; "
        "cp.async.wait_group 1; ld.shared.u32 %r9, [%r5];"
    )
    assert go(body + OUT).clean
    assert kinds(go(body.replace("%r9, [%r5]", "%r9, [%r7]") + OUT)) == ["race"]


@pytest.mark.parametrize("operand", ["%r7", "%p2"], ids=["src-size", "ignore-src"])
def test_copies_fill_with_zeros_and_do_not_read_beyond_their_size(operand: str) -> None:
    body = START + ".shared .align 16 .b8 big[2048];\n mov.u32 %r4, big; mad.lo.u32 %r5, %r0, 16, %r4;"
    body += (
        "and.b32 %r8, %r0, 7; mul.lo.u32 %r7, %r8, 2; setp.ge.u32 %p2, %r0, 16; "
        "mad.wide.u32 %rd5, %r0, 16, %rd0;"
    )
    body += f"cp.async.cg.shared.global.L2::128B [%r5], [%rd5], 16, {operand}; cp.async.wait_all;"
    body += "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r5]; mad.wide.u32 %rd6, %r0, 16, %rd1;"
    body += "st.global.v4.u32 [%rd6], {%r10, %r11, %r12, %r13}; ret;"
    a = np.random.default_rng(0).integers(0, 256, 512, dtype=np.uint8)
    size = 512 - 2 if operand == "%r7" else 256  # the last lane copies 14 of its 16 bytes
    report = run(entry(body), {"a": a[:size].copy(), "c": np.zeros(512, np.uint8)})
    expected = a.reshape(32, 16).copy()
    for lane in range(32):
        expected[lane, (lane & 7) * 2 if operand == "%r7" else (0 if lane >= 16 else 16) :] = 0
    assert report.clean, [str(fault) for fault in report.faults]
    assert np.array_equal(report.buffers["c"].reshape(32, 16), expected)


def test_a_copy_past_its_source_is_out_of_bounds() -> None:
    report = run(
        entry(COPY + "cp.async.wait_all; ld.shared.u32 %r9, [%r5];" + OUT),
        {"a": np.zeros(30, np.uint32), "c": np.zeros(32, np.uint32)},
    )
    assert kinds(report) == ["out_of_bounds"]
    assert report.faults[0].buffer == "a"
