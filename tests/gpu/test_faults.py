"""Isolation with real faults: each is the candidate's, the worker is replaced, the next one is unharmed."""

import pytest
from device_samples import BEHIND, ENDLESS, GEMM, MISALIGNED, ON_INPUT, SMALL, emitted, written

from tuner.devices.cuda import CudaDevice
from tuner.devices.errors import CandidateTimeoutError
from tuner.devices.serving import Opener

pytestmark = pytest.mark.gpu

UNMAPPED = "mov.u64 %end, 16; st.global.u32 [%end], %x;"
TRAP = "trap;"


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        pytest.param(UNMAPPED, {"out_of_bounds"}, id="illegal address"),
        pytest.param(MISALIGNED, {"misaligned"}, id="misaligned address"),
        pytest.param(TRAP, {"launch_failure", "illegal_instruction"}, id="trap"),
    ],
)
def test_a_lost_context_is_the_candidates(gpu: CudaDevice, arch: str, body: str, kinds: set[str]) -> None:
    assert gpu.verify(emitted(arch=arch), SMALL, seed=1).is_right
    before = gpu.worker.pid
    verdict = gpu.verify(written(body, arch=arch), SMALL, seed=1)
    assert verdict.fault in kinds, verdict
    assert gpu.verify(emitted(arch=arch), SMALL, seed=1).is_right
    assert gpu.worker.pid != before


def test_a_hang_is_killed(opener: Opener, arch: str) -> None:
    device = CudaDevice(opener, launch_s=2.0)
    with pytest.raises(CandidateTimeoutError, match="while running the candidate"):
        device.verify(written(ENDLESS, arch=arch), SMALL, seed=1)
    assert device.verify(emitted(arch=arch), SMALL, seed=1).is_right
    device.close()


@pytest.mark.parametrize(
    ("body", "message"), [(BEHIND, "4 bytes written after C"), (ON_INPUT, "1 bytes of the input A changed")]
)
def test_stray_writes_are_found(gpu: CudaDevice, arch: str, body: str, message: str) -> None:
    verdict = gpu.verify(written(body, arch=arch), SMALL, seed=1)
    assert verdict.fault == "out_of_bounds"
    assert message in verdict.fault_message


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_shared_memory_up_to_the_opt_in_maximum(gpu: CudaDevice, arch: str, over: int) -> None:
    most = gpu.opened.facts.shared_bytes_per_block_optin
    for shared_bytes, is_refused in ((48 * 1024 + over, False), (most + over, over > 0)):
        verdict = gpu.verify(written(shared_bytes=shared_bytes, arch=arch), SMALL, seed=1)
        assert (verdict.fault == "launch_refused") is is_refused, (shared_bytes, verdict)


def test_code_for_another_arch_is_refused(gpu: CudaDevice, arch: str) -> None:
    other = "sm_90" if arch.startswith("sm_8") else "sm_80"
    verdict = gpu.verify(emitted(arch=other), SMALL, seed=1)
    assert verdict.fault == "launch_refused"
    assert gpu.verify(emitted(arch=arch), GEMM.spec.problem(128, 128, 32), seed=1).is_right
