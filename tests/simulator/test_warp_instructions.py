"""Shuffles, votes, matches, reductions: against the definitions of the PTX ISA, lane by lane."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_harness import entry, run

from tuner.simulator import Report

START = """mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [c];
mad.wide.u32 %rd2, %r0, 4, %rd0;
mad.wide.u32 %rd3, %r0, 8, %rd1; ld.global.u32 %r1, [%rd2]; mov.u32 %r11, 0; setp.ne.u32 %p2, %r11, 0;
"""
END = "selp.u32 %r11, 1, 0, %p2; st.global.v2.u32 [%rd3], {%r10, %r11}; ret;"


def go(body: str, a: np.ndarray, block: int = 64) -> Report:
    report = run(entry(START + body + END), {"a": a, "c": np.zeros((block, 2), np.uint32)}, block=block)
    assert report.clean, [str(fault) for fault in report.faults]
    return report


def source_lane(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """The pseudo-code of `shfl.sync` in the PTX ISA."""
    bval, cval, mask = b & 31, c & 31, c >> 8 & 31
    maximum, minimum = (lane & mask) | (cval & ~mask), lane & mask
    if mode == "up":
        j = lane - bval
        valid = j >= maximum
    elif mode == "down":
        j = lane + bval
        valid = j <= maximum
    elif mode == "bfly":
        j = lane ^ bval
        valid = j <= maximum
    else:
        j = minimum | (bval & ~mask)
        valid = j <= maximum
    return (j if valid else lane), valid


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("b", [0, 1, 5, 16, 31])
@pytest.mark.parametrize("c", [0, 31, 0x1800, 0x181F, 0x1C07])
def test_shuffles(mode: str, b: int, c: int) -> None:
    a = np.random.default_rng(b).integers(0, 1 << 32, 64, dtype=np.uint32)
    found = go(f"shfl.sync.{mode}.b32 %r10|%p2, %r1, {b}, {c}, -1;", a).buffers["c"]
    for thread in range(64):
        lane, valid = source_lane(mode, thread % 32, b, c)
        assert found[thread].tolist() == [a[thread - thread % 32 + lane], valid]


def test_shuffle_by_a_register_takes_each_lanes_own_choice() -> None:
    a = np.random.default_rng(0).permutation(64).astype(np.uint32)
    found = go("shfl.sync.idx.b32 %r10, %r1, %r1, 31, -1;", a).buffers["c"][:, 0]
    assert found.tolist() == [int(a[t - t % 32 + a[t] % 32]) for t in range(64)]


def test_value_of_a_lane_that_is_not_there_is_poison() -> None:
    body = "mov.u32 %r10, 0; setp.lt.u32 %p3, %r0, 8; @%p3 shfl.sync.idx.b32 %r10, %r1, 20, 31, 0xff;"
    found = go(body, np.arange(32, dtype=np.uint32), block=32).buffers["c"][:, 0]
    assert 20 not in found[:8].tolist()


def test_votes() -> None:
    a = np.random.default_rng(1).integers(0, 5, 64, dtype=np.uint32)
    a[32:] = 1
    truth = (a > 0).reshape(2, 32)
    ballots = go("setp.gt.u32 %p3, %r1, 0; vote.sync.ballot.b32 %r10, %p3, -1;", a).buffers["c"][:, 0]
    assert (
        ballots.tolist()
        == np.repeat([sum(int(bit) << i for i, bit in enumerate(row)) for row in truth], 32).tolist()
    )
    for mode, result in (("all", truth.all(1)), ("any", truth.any(1)), ("uni", truth.all(1) | ~truth.any(1))):
        text = f"mov.u32 %r10, 0; setp.gt.u32 %p3, %r1, 0; vote.sync.{mode}.pred %p2, %p3, -1;"
        assert go(text, a).buffers["c"][:, 1].tolist() == np.repeat(result, 32).tolist()
    negated = go("setp.gt.u32 %p3, %r1, 0; vote.sync.ballot.b32 %r10, !%p3, -1;", a).buffers["c"][:, 0]
    assert np.array_equal(negated, ~ballots)


def test_matches() -> None:
    a = np.random.default_rng(2).integers(0, 4, 64, dtype=np.uint32)
    a[32:] = 3
    found = go("match.any.sync.b32 %r10, %r1, -1;", a).buffers["c"][:, 0]
    for thread in range(64):
        warp = a[thread - thread % 32 :][:32]
        assert int(found[thread]) == sum(1 << i for i in range(32) if warp[i] == a[thread])
    found = go("match.all.sync.b32 %r10|%p2, %r1, -1;", a).buffers["c"]
    assert found.tolist() == [[0, 0]] * 32 + [[0xFFFFFFFF, 1]] * 32


@pytest.mark.parametrize("operation", ["add", "min", "max", "and", "or", "xor"])
@pytest.mark.parametrize("members", [0xFFFFFFFF, 0x0F0F00FF])
def test_reductions_over_members(operation: str, members: int) -> None:
    a = np.random.default_rng(3).integers(-(2**31), 2**31, 32, dtype=np.int64).astype(np.int32)
    kind = "b32" if operation in ("and", "or", "xor") else "s32"
    body = f"mov.u32 %r10, 0; shr.u32 %r12, {members}, %r0; and.b32 %r12, %r12, 1; setp.ne.u32 %p3, %r12, 0;"
    found = go(body + f"@%p3 redux.sync.{operation}.{kind} %r10, %r1, {members};", a, block=32).buffers["c"][
        :, 0
    ]
    chosen = [bool(members >> i & 1) for i in range(32)]
    functions = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }
    expected = functions[operation].reduce(a[chosen], dtype=np.int32)
    assert found.view(np.int32).tolist() == [int(expected) if taken else 0 for taken in chosen]


def test_one_lane_is_elected_and_it_need_not_be_the_first() -> None:
    found = go("elect.sync %r10|%p2, 0xffffffff;", np.zeros(64, np.uint32)).buffers["c"]
    for warp in range(2):
        leaders = np.nonzero(found[32 * warp : 32 * warp + 32, 1])[0]
        assert len(leaders) == 1
        assert set(found[32 * warp : 32 * warp + 32, 0].tolist()) == {int(leaders[0])}
        assert leaders[0] != 0


def test_active_mask_and_lane_masks() -> None:
    body = (
        "mov.u32 %r10, 0; mov.u32 %r5, %lanemask_lt; mov.u32 %r6, %lanemask_ge; "
        "not.b32 %r6, %r6; setp.eq.u32 %p2, %r5, %r6;"
    )
    found = go(
        body + "setp.lt.u32 %p3, %r0, 40; @!%p3 bra E; activemask.b32 %r10;\nE:", np.zeros(64, np.uint32)
    ).buffers["c"]
    assert found[:, 0].tolist() == [0xFFFFFFFF] * 32 + [0xFF] * 8 + [0] * 24
    assert found[:, 1].all()
