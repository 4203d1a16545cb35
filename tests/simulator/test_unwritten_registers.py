"""A register that no path has written is found where it is read, also by what then writes it."""

import numpy as np
import pytest

from tuner.simulator import Launch, simulate

KERNEL = """
.version 7.8
.target sm_89
.address_size 64
.visible .entry k(.param .u64 out)
{{
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    .reg .pred %p<2>;
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    setp.gt.u32 %p0, %r0, 3;
    @%p0 add.u32 %r2, %r0, 1;
    {body}
    mul.wide.u32 %rd1, %r0, 4;
    add.s64 %rd1, %rd1, %rd0;
    st.global.u32 [%rd1], %r1;
    ret;
}}
"""


def faults(body: str) -> list[tuple[str, str]]:
    launch = Launch("k", (1, 1, 1), (32, 1, 1), 0, ("out",))
    report = simulate(KERNEL.format(body=body), [launch], {"out": np.zeros(32, np.uint32)}, outputs=("out",))
    return [(fault.kind, fault.text) for fault in report.faults]


@pytest.mark.parametrize(
    "body",
    [
        "shr.u32 %r1, %r1, 5;",
        "add.u32 %r1, %r3, 1;",
        "@%p0 add.u32 %r1, %r1, 1;",
        "mad.lo.u32 %r1, %r0, 2, %r1;",
    ],
)
def test_read_of_an_unwritten_register_is_found(body: str) -> None:
    assert faults(body)[:1] == [("uninitialised", body)]


@pytest.mark.parametrize(
    "body",
    [
        "add.u32 %r1, %r2, 1;",  # some lanes have written it
        "mov.u32 %r1, 0; LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 5; @%p1 bra LOOP;",
        "@%p0 mov.u32 %r1, 1; @!%p0 mov.u32 %r1, 2;",
    ],
)
def test_a_register_that_some_path_has_written_is_no_fault(body: str) -> None:
    assert faults(body) == []
