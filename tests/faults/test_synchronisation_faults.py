"""Missing and misplaced barriers, waits and commits. None of them shows on a patient machine."""

import pytest
from planting import SCHEDULES, Fault, emitted, found_as, planted

LOOP, PROLOGUE, DRAIN = "main loop", "prologue", "drain"
BARRIER = r"bar\.sync 0;"
WAIT = r"cp\.async\.wait_group (\d);"
COMMIT = r"cp\.async\.commit_group;"

FAULTS = [
    Fault("barrier of the prologue deleted", "ring", PROLOGUE, BARRIER, "", "race"),
    Fault("barrier of the main loop deleted", "ring", LOOP, BARRIER, "", "race"),
    Fault("barrier before the copies are read deleted", "synchronous", LOOP, BARRIER, "", "race", of=2),
    Fault(
        "barrier after the copies are read deleted", "synchronous", LOOP, BARRIER, "", "race", of=2, number=1
    ),
    Fault("barrier before the first tile is decoded deleted", "decoded", PROLOGUE, BARRIER, "", "race", of=2),
    Fault(
        "barrier after the first tile is decoded deleted",
        "decoded",
        PROLOGUE,
        BARRIER,
        "",
        "race",
        of=2,
        number=1,
    ),
    Fault("barrier of the main loop deleted", "decoded", LOOP, BARRIER, "", "race"),
    Fault("barrier of the main loop deleted", "packed", LOOP, BARRIER, "", "race"),
    Fault("barrier of the main loop deleted", "records", LOOP, BARRIER, "", "race"),
    Fault("barrier of the main loop deleted", "split", LOOP, BARRIER, "", "race"),
    Fault("barrier for one warp only", "ring", LOOP, BARRIER, "bar.sync 0, 32;", "race"),
    Fault(
        "barrier that only some warps' lanes reach", "ring", LOOP, BARRIER, "@%p0 bar.sync 0;", "divergence"
    ),
    Fault("mma of some lanes", "ring", LOOP, r"(mma.*)", r"@%p0 \1", "divergence", of=8),
    Fault("ldmatrix of some lanes", "ring", PROLOGUE, r"(ldmatrix.*)", r"@%p0 \1", "divergence", of=3),
    Fault("wait one too large in the prologue", "ring", PROLOGUE, WAIT, "cp.async.wait_group 3;", "race"),
    Fault("wait one too large in the main loop", "ring", LOOP, WAIT, "cp.async.wait_group 2;", "race"),
    Fault("wait one too large in the main loop", "packed", LOOP, WAIT, "cp.async.wait_group 2;", "race"),
    Fault("wait one too large in the main loop", "decoded", LOOP, WAIT, "cp.async.wait_group 1;", "race"),
    Fault("wait of the main loop deleted", "records", LOOP, WAIT, "", "race"),
    Fault("wait after the barrier", "ring", LOOP, rf"({WAIT})\n({BARRIER})", r"\3\n\1", "race"),
    Fault(
        "barrier behind the first copy",
        "ring",
        LOOP,
        rf"({BARRIER})\n((?:.*\n)*?cp\.async\.cg.*)",
        r"\2\n\1",
        "race",
    ),
    Fault("commit of the first slot dropped", "ring", PROLOGUE, COMMIT, "", "race", of=3),
    Fault("commit of the last slot dropped", "packed", PROLOGUE, COMMIT, "", "race", of=3, number=2),
    Fault("commit of the main loop dropped", "ring", LOOP, COMMIT, "", "race"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_is_found(fault: Fault) -> None:
    assert found_as(fault.schedule, planted(fault)) == fault.found_as


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_kernel_without_a_fault_is_clean(schedule: str) -> None:
    assert found_as(schedule, emitted(schedule)) == "clean"
