"""Golden figures of the text of one schedule of each kernel, and its determinism."""

import dataclasses
import subprocess
import sys
from collections import Counter

import pytest

from emitters.gemm import GEMM_S8, TERNARY_GEMM_S8
from emitters.target import ARCHS, Target

BOTH = pytest.mark.parametrize("kernel", [TERNARY_GEMM_S8, GEMM_S8], ids=lambda kernel: kernel.id)

PIPELINED = {"tile_k": 64, "stages": 3, "warps_m": 2, "warps_n": 2, "copy_bytes": 16}
GOLDEN = {
    "ternary_gemm_s8": dataclasses.replace(TERNARY_GEMM_S8.baseline, decode="register", **PIPELINED),
    "gemm_s8": dataclasses.replace(GEMM_S8.baseline, **PIPELINED),
}


def opcodes(ptx: str) -> Counter[str]:
    """How often each opcode is written, guards and operands taken off."""
    counted: Counter[str] = Counter()
    for line in ptx.splitlines():
        words = line.split()
        if len(words) > 1 and line.startswith("    ") and line.endswith(";") and not words[0].startswith("."):
            counted[words[1] if words[0].startswith("@") else words[0]] += 1
    return counted


def guarded(ptx: str, opcode: str) -> int:
    return sum(line.strip().startswith("@") and f" {opcode}" in line for line in ptx.splitlines())


@pytest.mark.parametrize(
    ("kernel", "length", "source_hash", "counts"),
    [
        (
            TERNARY_GEMM_S8,
            47950,
            "7aefd0e9629c8d0acbdb2e9f7417bcdec842caa8ea847efb7f1d3bf92fe28252",
            {
                "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32": 64,
                "ldmatrix.sync.aligned.m8n8.x4.shared.b16": 12,
                "ld.shared.u16": 24,
                "cp.async.cg.shared.global": 20,
                "bar.sync": 2,
            },
        ),
        (
            GEMM_S8,
            29103,
            "3f9a05deabafbbd39906be4d329b855664ccffdbd76fb19d2ecbc76fe27808b3",
            {
                "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32": 64,
                "ldmatrix.sync.aligned.m8n8.x4.shared.b16": 24,
                "cp.async.cg.shared.global": 32,
                "bar.sync": 2,
            },
        ),
    ],
    ids=["ternary_gemm_s8", "gemm_s8"],
)
def test_golden_text(kernel, length, source_hash, counts):
    emitted = kernel.emit(GOLDEN[kernel.id], Target.of("sm_89"))
    found = opcodes(emitted.ptx)
    assert {opcode: found[opcode] for opcode in counts} == counts
    assert guarded(emitted.ptx, "st.global.v4.b32") == found["st.global.v4.b32"] == 32
    assert (len(emitted.ptx), emitted.source_hash) == (length, source_hash)


@BOTH
def test_another_process_emits_the_same_bytes(kernel):
    code = (
        "import sys; from emitters import KERNELS; from emitters.target import Target; "
        f"kernel = KERNELS[{kernel.id!r}]; "
        "print(kernel.emit(kernel.baseline, Target.of('sm_90')).source_hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert hashes == {kernel.emit(kernel.baseline, Target.of("sm_90")).source_hash}


@BOTH
@pytest.mark.parametrize("arch", ARCHS)
def test_the_header_says_what_the_text_is(kernel, arch):
    schedule = GOLDEN[kernel.id]
    lines = kernel.emit(schedule, Target.of(arch)).ptx.splitlines()
    head = [line for line in lines if line.startswith("//")]
    assert any(kernel.id in line and kernel.spec.computes in line for line in head)
    assert any(kernel.spec.semantic_hash in line for line in head)
    assert all(
        any(f"{field.name}={getattr(schedule, field.name)}" in line for line in head)
        for field in dataclasses.fields(schedule)
    )
    assert f".target {arch}" in lines


@BOTH
def test_entry_parameters_are_in_the_order_of_the_contract(kernel):
    ptx = kernel.emit(kernel.baseline, Target.of("sm_80")).ptx
    declared = [
        line.split()[-1].rstrip(",").removeprefix("param_") for line in ptx.splitlines() if ".param ." in line
    ]
    assert tuple(declared) == kernel.spec.arguments


@BOTH
def test_every_phase_has_a_comment(kernel):
    ptx = kernel.emit(GOLDEN[kernel.id], Target.of("sm_89")).ptx
    for phase in ("operands and sizes", "addresses of A", "prologue", "main loop", "epilogue"):
        assert f"// --- {phase}" in ptx
