"""Text that ptxas refuses: such a fault never comes as far as the gate."""

import pytest
from planting import Fault, planted

from tuner.ptxas import AssembleError, Assembler

FAULTS = [
    Fault(
        "undeclared register",
        "ring",
        "main loop",
        r"sub\.u32 (%r\d+), \1, 1;",
        "sub.u32 %r999, %r999, 1;",
        "assemble",
    ),
    Fault(
        "matrices without a register",
        "ring",
        "prologue",
        r"(ldmatrix\S+) \{(%r\d+), (%r\d+), .*\}, (.*)",
        r"\1 {\2, \3}, \4",
        "assemble",
        of=3,
    ),
    Fault(
        "copy of 12 bytes",
        "ring",
        "main loop",
        r"(cp\.async\.cg\S+ \S+ \S+) 16, (.*)",
        r"\1 12, \2",
        "assemble",
        of=4,
    ),
    Fault(
        "label that is not there", "ring", "main loop", r"(@%p\d+ bra) MAIN_LOOP;", r"\1 LOOP;", "assemble"
    ),
    Fault(
        "predicate for a number",
        "ring",
        "epilogue",
        r"setp\.gt\.s32 (%p\d+), (%r\d+), 8;",
        r"setp.gt.s32 \2, \2, 8;",
        "assemble",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_is_found(fault: Fault, tmp_path) -> None:
    with pytest.raises(AssembleError, match="PTX line"):
        Assembler(cache_dir=tmp_path).assemble(planted(fault).ptx, "sm_89")
