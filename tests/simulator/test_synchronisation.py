"""Races and barriers: every detector with planted bugs it must catch, and correct code it must pass."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_harness import entry, kinds, run

from tuner.simulator import Launch, Memset, Report, simulate

IDS = "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.s32 %r3, %r1, %r2, %r0;\n"
START = (
    IDS + "ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [c]; "
    "mad.wide.u32 %rd2, %r3, 4, %rd0; mad.wide.u32 %rd3, %r3, 4, %rd1;\n"
)
TILE = (
    START + ".shared .align 16 .b8 tile[2048];\n mov.u32 %r4, tile; "
    "mad.lo.u32 %r5, %r0, 4, %r4; xor.b32 %r6, %r0, 1; mad.lo.u32 %r6, %r6, 4, %r4;"
    "\n"
)
OUT = "st.global.u32 [%rd3], %r9; ret;"


def go(body: str, block: int = 64, grid: int = 2, **options: object) -> Report:
    a = np.arange(grid * block, dtype=np.uint32)
    return run(
        entry(body), {"a": a, "c": np.zeros(grid * block, np.uint32)}, block=block, grid=grid, **options
    )


def test_a_barrier_orders_a_write_before_a_read() -> None:
    report = go(TILE + "st.shared.u32 [%r5], %r0; bar.sync 0; ld.shared.u32 %r9, [%r6];" + OUT)
    assert report.clean
    assert np.array_equal(report.buffers["c"], np.tile(np.arange(64) ^ 1, 2))


def test_a_missing_barrier_names_both_lines_and_threads() -> None:
    report = go(TILE + "st.shared.u32 [%r5], %r0;\n ld.shared.u32 %r9, [%r6];" + OUT)
    (fault,) = report.faults
    assert fault.kind == "race"
    assert "ld.shared" in fault.text
    assert "st.shared" in fault.other_text
    assert fault.other_line == fault.line - 1
    assert (fault.thread, fault.other_thread) == ((0, 0, 0), (1, 0, 0))
    assert fault.space == "shared"


def test_lanes_of_one_warp_are_not_ordered_by_running_together() -> None:
    assert kinds(go(TILE + "st.shared.u32 [%r5], %r0; ld.shared.u32 %r9, [%r6];" + OUT, block=32)) == ["race"]


def test_a_write_after_another_threads_read_needs_a_barrier() -> None:
    body = (
        TILE
        + "st.shared.u32 [%r5], %r0; bar.sync 0; ld.shared.u32 %r9, [%r6]; {} st.shared.u32 [%r5], %r9;"
        + OUT
    )
    report = go(body.replace("{}", ""))
    assert kinds(report) == ["race"]
    assert "ld.shared" in report.faults[0].other_text
    assert go(body.replace("{}", "bar.sync 0;")).clean


def test_a_write_after_many_readers_needs_a_barrier_even_for_one_of_them() -> None:
    body = (
        TILE
        + "setp.eq.u32 %p1, %r0, 63; @%p1 st.shared.u32 [%r4], %r0; bar.sync 0; ld.shared.u32 %r9, [%r4];"
    )
    report = go(body + "@%p1 st.shared.u32 [%r4], 1;" + OUT)
    assert kinds(report) == ["race"]
    assert report.faults[0].other_thread is None


def test_two_threads_writing_one_address() -> None:
    report = go(TILE + "st.shared.u32 [%r4], %r0; bar.sync 0; ld.shared.u32 %r9, [%r4];" + OUT)
    assert kinds(report) == ["race"]


def test_equal_stores_of_one_instruction_are_a_note() -> None:
    report = go(TILE + "st.shared.u32 [%r4], 7; bar.sync 0; ld.shared.u32 %r9, [%r4];" + OUT)
    assert report.clean
    assert "equal values" in report.notes[0]
    report = go(START + "st.global.u32 [%rd1], 7; ret;", grid=1)
    assert report.clean
    assert "equal values" in report.notes[0]


def test_blocks_that_differ_keep_their_own_shadow() -> None:
    body = (
        TILE + "st.shared.u32 [%r5], %r0; setp.eq.u32 %p1, %r1, 1; @%p1 bra SKIP; bar.sync 0;"
        "\nSKIP: ld.shared.u32 %r9, [%r6];" + OUT
    )
    report = go(body)
    assert kinds(report) == ["race"]
    assert report.faults[0].block == (1, 0, 0)


def test_narrow_stores_side_by_side_do_not_race() -> None:
    body = (
        TILE + "add.u32 %r7, %r4, %r0; st.shared.u8 [%r7], %r0; bar.sync 0; ld.shared.u32 %r9, [%r4];" + OUT
    )
    assert go(body).clean


def test_wide_reads_collide_with_a_part_of_them() -> None:
    body = TILE + "mad.lo.u32 %r7, %r0, 16, %r4; st.shared.v4.u32 [%r7], {%r0, %r0, %r0, %r0}; bar.sync 0;"
    body += (
        "setp.eq.u32 %p1, %r0, 9; @%p1 st.shared.u32 [%r7+12], %r0; "
        "ld.shared.v4.u32 {%r9, %r10, %r11, %r12}, [%r4+144];" + OUT
    )
    report = go(body)
    assert kinds(report) == ["race"]


@pytest.mark.parametrize("first", ["ld", "st", "atom"])
@pytest.mark.parametrize("second", ["ld", "st", "atom"])
def test_atomics_race_with_plain_accesses_and_not_with_each_other(first: str, second: str) -> None:
    texts = {
        "ld": "ld.shared.u32 %r9, [%r4];",
        "st": "st.shared.u32 [%r4], 5;",
        "atom": "atom.shared.add.u32 %r9, [%r4], 1;",
    }
    body = (
        TILE + "mov.u32 %r9, 0; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [%r4], 0; "
        "setp.eq.u32 %p2, %r0, 40; bar.sync 0;"
    )
    report = go(body + f"@%p1 {texts[first]} @%p2 {texts[second]}" + OUT)
    harmless = (first, second) in (("ld", "ld"), ("atom", "atom"))
    assert kinds(report) == ([] if harmless else ["race"])


# -- barriers and divergence --


def test_a_barrier_in_a_branch_that_part_of_a_warp_takes_is_divergence() -> None:
    body = (
        TILE + "mov.u32 %r9, 0; setp.lt.u32 %p1, %r0, 16; @%p1 bra THEN; bar.sync 0; "
        "bra.uni END;\nTHEN: bar.sync 0;\nEND: " + OUT
    )
    assert "divergence" in kinds(go(body, block=32))


def test_a_barrier_that_some_threads_never_reach_is_divergence() -> None:
    body = (
        TILE
        + "mov.u32 %r9, 0; setp.lt.u32 %p1, %r0, 32; @%p1 bar.sync 1; @!%p1 bar.sync 0; bar.sync 0;"
        + OUT
    )
    report = go(body)
    assert kinds(report) == ["divergence"]
    assert "never come" in report.faults[0].message


def test_threads_that_have_exited_are_not_waited_for() -> None:
    body = (
        TILE + "setp.ge.u32 %p1, %r0, 32; @%p1 exit; st.shared.u32 [%r5], %r0; bar.sync 0; "
        "ld.shared.u32 %r9, [%r6];"
    )
    report = go(body + OUT)
    assert report.clean
    assert report.unwritten["c"].count == 64


def test_an_aligned_instruction_in_a_partial_warp_is_divergence() -> None:
    body = TILE + "st.shared.u32 [%r5], %r0; bar.sync 0; setp.lt.u32 %p1, %r0, 20; @!%p1 bra END;"
    body += "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r4];\nEND: mov.u32 %r9, 1;" + OUT
    assert kinds(go(body, block=32)) == ["divergence"]


def test_a_shuffle_that_names_absent_lanes_is_divergence() -> None:
    body = (
        START + "mov.u32 %r9, 0; setp.lt.u32 %p1, %r0, 16; @!%p1 bra END; "
        "shfl.sync.bfly.b32 %r9, %r0, 1, 31, {};\nEND: " + OUT
    )
    assert kinds(go(body.replace("{}", "0xffffffff"), block=32)) == ["divergence"]
    assert go(body.replace("{}", "0xffff"), block=32).clean


def test_an_endless_loop_ends_with_a_fault() -> None:
    report = go(
        START + "mov.u32 %r9, 0;\nL: add.u32 %r9, %r9, 1; setp.ne.u32 %p1, %r9, 0; @%p1 bra L;" + OUT,
        step_budget=3000,
    )
    assert kinds(report) == ["endless"]


def test_polling_for_what_never_comes_is_endless_at_once() -> None:
    body = START + "L: ld.volatile.global.u32 %r9, [%rd1]; setp.eq.u32 %p1, %r9, 0; @%p1 bra L; ret;"
    steps = [Memset("c", 0), Launch("k", (2, 1, 1), (32, 1, 1), 0, ("a", "c"))]
    report = simulate(entry(body), steps, {"a": np.zeros(1, np.uint32), "c": np.zeros(1, np.uint32)})
    assert kinds(report) == ["endless"]
    assert "poll" in report.faults[0].message


def test_loops_with_different_trip_counts_come_together_again() -> None:
    body = (
        START + "and.b32 %r7, %r0, 7; mov.u32 %r9, 0;\nL: add.u32 %r9, %r9, 3; "
        "setp.eq.u32 %p1, %r7, 0; add.u32 %r7, %r7, -1;"
    )
    report = go(body + "@!%p1 bra L; shfl.sync.idx.b32 %r9, %r9, 7, 31, -1;" + OUT)
    assert report.clean
    assert set(report.buffers["c"].tolist()) == {24}


PAIR = "xor.b32 %r20, %r0, 32; mad.lo.u32 %r21, %r20, 4, %r4; setp.lt.u32 %p1, %r0, 32;\n"


def test_named_barriers_order_the_warps_that_meet_at_them() -> None:
    body = (
        TILE + PAIR + "shr.u32 %r22, %r0, 6; add.u32 %r23, %r22, 1; st.shared.u32 [%r5], %r0; "
        "{} ld.shared.u32 %r9, [%r21];" + OUT
    )
    assert go(body.replace("{}", "bar.sync %r23, 64;"), block=128).clean
    assert kinds(go(body.replace("{}", "bar.sync %r22, 32;"), block=64)) == ["race"]


def test_arrive_orders_only_what_came_before_it() -> None:
    body = (
        TILE + PAIR + "mov.u32 %r9, 0; @!%p1 bra TAKE; {} bra END;\nTAKE: bar.sync 3, 64; "
        "ld.shared.u32 %r9, [%r21];\nEND: " + OUT
    )
    store, arrive = "st.shared.u32 [%r5], %r0;", "bar.arrive 3, 64;"
    assert go(body.replace("{}", store + arrive)).clean
    assert "race" in kinds(go(body.replace("{}", arrive + store))) or "uninitialised" in kinds(
        go(body.replace("{}", arrive + store))
    )


def test_a_warp_barrier_orders_its_warp_and_no_other() -> None:
    body = TILE + PAIR + "st.shared.u32 [%r5], %r0; bar.warp.sync -1; ld.shared.u32 %r9, [{}];" + OUT
    assert go(body.replace("{}", "%r6")).clean
    assert kinds(go(body.replace("{}", "%r21"))) == ["race"]


def test_barrier_reductions_count_all_threads_of_the_block() -> None:
    body = (
        START + "setp.lt.u32 %p1, %r0, 21; barrier.red.popc.u32 %r9, 0, %p1; "
        "barrier.red.and.pred %p2, 0, %p1; barrier.red.or.pred %p3, 0, !%p1;"
    )
    report = go(
        body + "selp.u32 %r10, 100, 0, %p2; selp.u32 %r11, 1000, 0, %p3; "
        "add.u32 %r9, %r9, %r10; add.u32 %r9, %r9, %r11;" + OUT
    )
    assert report.clean
    assert set(report.buffers["c"].tolist()) == {1021}


MBARRIER = (
    TILE
    + """
  .shared .align 8 .b8 bar[8];
  mov.u32 %r30, bar; setp.eq.u32 %p4, %r0, 0; setp.lt.u32 %p1, %r0, 32; mov.u32 %r9, 0;
  @%p4 mbarrier.init.shared.b64 [%r30], 32; bar.sync 0; @!%p1 bra TAKE;
  {} bra END;
TAKE: mbarrier.test_wait.parity.shared.b64 %p5, [%r30], 0; @!%p5 bra TAKE;
  add.u32 %r31, %r5, -128; ld.shared.u32 %r9, [%r31];
END: """
)


def test_an_mbarrier_orders_its_arrivals_before_who_waits() -> None:
    store, arrive = "st.shared.u32 [%r5], %r0;", "mbarrier.arrive.shared.b64 %rd9, [%r30];"
    report = go(MBARRIER.replace("{}", store + arrive) + OUT)
    assert report.clean
    assert report.buffers["c"].tolist() == ([0] * 32 + list(range(32))) * 2
    assert not go(MBARRIER.replace("{}", arrive + store) + OUT).clean
    assert kinds(go(MBARRIER.replace("{}", store) + OUT)) == ["endless"]


FLAG = (
    TILE
    + """
  .shared .align 4 .b8 flag[4];
  mov.u32 %r30, flag; setp.eq.u32 %p4, %r0, 0; setp.eq.u32 %p5, %r0, 32; mov.u32 %r9, 0;
  @%p4 st.shared.u32 [%r30], 0; bar.sync 0; @%p4 bra GIVE; @%p5 bra TAKE; bra END;
GIVE: st.shared.u32 [%r4], 77; {release} bra END;
TAKE: {acquire} setp.eq.u32 %p6, %r10, 0; @%p6 bra TAKE; {after} ld.shared.u32 %r9, [%r4];
END: """
)


@pytest.mark.parametrize(
    ("release", "acquire", "after", "clean"),
    [
        ("st.release.cta.shared.u32 [%r30], 1;", "ld.acquire.cta.shared.u32 %r10, [%r30];", "", True),
        (
            "membar.cta; st.volatile.shared.u32 [%r30], 1;",
            "ld.volatile.shared.u32 %r10, [%r30];",
            "membar.cta;",
            True,
        ),
        ("st.volatile.shared.u32 [%r30], 1;", "ld.volatile.shared.u32 %r10, [%r30];", "membar.cta;", False),
        ("membar.cta; st.volatile.shared.u32 [%r30], 1;", "ld.volatile.shared.u32 %r10, [%r30];", "", False),
    ],
)
def test_flags_in_shared_memory_need_release_and_acquire(
    release: str, acquire: str, after: str, clean: bool
) -> None:
    body = FLAG.replace("{release}", release).replace("{acquire}", acquire).replace("{after}", after)
    report = go(body + OUT)
    assert report.clean == clean
    if not clean:
        assert kinds(report) == ["race"]


# -- between blocks --


def test_blocks_that_write_one_address_race() -> None:
    body = START + "setp.eq.u32 %p1, %r0, 3; @%p1 st.global.u32 [%rd1], %r3; ret;"
    report = go(body)
    assert kinds(report) == ["race"]
    assert report.faults[0].other_block != report.faults[0].block


def test_a_block_that_reads_what_another_writes_races() -> None:
    body = (
        START + "st.global.u32 [%rd3], %r3; bar.sync 0; xor.b32 %r7, %r3, {}; "
        "mad.wide.u32 %rd5, %r7, 4, %rd1; ld.global.u32 %r8, [%rd5];"
    )
    assert kinds(go(body.replace("{}", "64") + "ret;")) == ["race"]
    assert go(body.replace("{}", "1") + "ret;").clean
    assert kinds(go(body.replace("bar.sync 0;", "").replace("{}", "1") + "ret;")) == ["race"]


def test_launches_are_ordered() -> None:
    text = entry(
        START + "xor.b32 %r7, %r3, 64; mad.wide.u32 %rd5, %r7, 4, %rd0; "
        "ld.global.u32 %r8, [%rd5]; st.global.u32 [%rd3], %r8; ret;"
    )
    steps = [Launch("k", (2, 1, 1), (64, 1, 1), 0, names) for names in (("a", "c"), ("c", "d"))]
    a = np.arange(128, dtype=np.uint32)
    report = simulate(text, steps, {"a": a, "c": np.zeros_like(a), "d": np.zeros_like(a)}, outputs=("c", "d"))
    assert report.clean
    assert np.array_equal(report.buffers["d"], a)
    assert len(report.counters) == 2


GRID = """
  st.global.u32 [%rd3], %r3; {first} bar.sync 0; setp.ne.u32 %p1, %r0, 0; @%p1 bra MET;
  {release} atom.global.add.u32 %r7, [%rd0], 1;
WAIT: ld.volatile.global.u32 %r7, [%rd0]; setp.lt.u32 %p2, %r7, 6; @%p2 bra WAIT; {acquire}
MET: bar.sync 0; xor.b32 %r7, %r3, 32; mad.wide.u32 %rd5, %r7, 4, %rd1; ld.global.u32 %r8, [%rd5]; ret;
"""


@pytest.mark.parametrize(
    ("release", "acquire", "clean"),
    [
        ("membar.gl;", "membar.gl;", True),
        ("fence.acq_rel.gpu;", "fence.acq_rel.gpu;", True),
        ("", "membar.gl;", False),
        ("membar.gl;", "", False),
        ("membar.cta;", "membar.gl;", False),
    ],
)
def test_a_barrier_of_the_grid_needs_fences_of_gpu_scope(release: str, acquire: str, clean: bool) -> None:
    body = START + GRID.replace("{release}", release).replace("{acquire}", acquire).replace("{first}", "")
    steps = [Memset("a", 0), Launch("k", (6, 1, 1), (32, 1, 1), 0, ("a", "c"))]
    report = simulate(entry(body), steps, {"a": np.zeros(1, np.uint32), "c": np.zeros(192, np.uint32)})
    assert kinds(report) == ([] if clean else ["race"])


def test_spin_waits_end_where_blocks_run_in_many_batches() -> None:
    body = START + GRID.replace("{release}", "membar.gl;").replace("{acquire}", "membar.gl;").replace(
        "{first}", ""
    )
    blocks = 1500  # more lanes than a batch holds
    steps = [Memset("a", 0), Launch("k", (blocks, 1, 1), (32, 1, 1), 0, ("a", "c"))]
    text = entry(body.replace("%r7, 6;", f"%r7, {blocks};"))
    report = simulate(text, steps, {"a": np.zeros(1, np.uint32), "c": np.zeros(32 * blocks, np.uint32)})
    assert report.clean
