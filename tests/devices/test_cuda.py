"""The CUDA device end to end on a stand-in GPU: real worker processes, real plans, real comparison."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from threading import Thread
from typing import Any

import pytest
from cuda_standin import AskCalls, OpenStandIn, StandInGpu
from device_samples import (
    BEHIND,
    ENDLESS,
    GEMM,
    ILLEGAL,
    MISALIGNED,
    ON_INPUT,
    SMALL,
    emitted,
    main_step,
    with_step,
    written,
)
from local_device import QUICK, LocalDevice, local

from emitters import KERNELS
from emitters.gpus import GPUS
from emitters.target import ARCHS
from results.trial import Outcome, Source
from tuner.devices.cuda import CudaDevice, CudaDevices, arch_of, open_cuda
from tuner.devices.device import DeviceError
from tuner.devices.errors import CandidateTimeoutError
from tuner.devices.gpu_figures import gpu_of

Opened = Callable[..., CudaDevice]


@pytest.fixture
def opened() -> Iterator[Callable[..., CudaDevice]]:
    """Opens devices with workers, and closes them afterwards."""
    devices: list[CudaDevice] = []

    def open_device(which: int | str = 0, launch_s: float = 10.0, **gpu: Any) -> CudaDevice:
        devices.append(CudaDevice(OpenStandIn(StandInGpu(**gpu), which), QUICK, launch_s=launch_s))
        return devices[-1]

    yield open_device
    for device in devices:
        device.close()


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    """One device for all tests that need nothing special."""
    device = CudaDevice(OpenStandIn(), QUICK)
    yield device
    device.close()


# Verification


@pytest.mark.parametrize("kernel", list(KERNELS))
def test_every_kernel_is_right_on_its_edge_problems(device: CudaDevice, kernel: str) -> None:
    entry = KERNELS[kernel]
    candidate = emitted(entry)
    for problem in entry.edge_problems(entry.baseline):
        verdict = device.verify(candidate, problem, seed=3)
        assert verdict.is_right, f"{problem}: {verdict}"
        assert verdict.where == "device"
        assert verdict.problems == (str(problem),)


def test_a_wrong_sum_is_counted_and_shown(device: CudaDevice) -> None:
    candidate = emitted()
    arguments = tuple("k - 16" if name == "k" else name for name in main_step(candidate).arguments)
    verdict = device.verify(with_step(candidate, arguments=arguments), SMALL, seed=1)
    assert not verdict.is_right
    assert verdict.fault is None
    assert verdict.mismatches > 33 * 48 // 2
    assert verdict.first_bad.startswith("C[0, ")
    assert verdict.first_bad.count("must be") == 3


def test_elements_that_are_not_written_are_mismatches(device: CudaDevice) -> None:
    verdict = device.verify(written(), SMALL, seed=1)
    assert verdict.mismatches == 33 * 48
    assert "-842150451" in verdict.first_bad  # the poison


def test_another_seed_is_other_data(device: CudaDevice) -> None:
    assert device.verify(written("st.global.u32 [%c], %x;"), SMALL, seed=1).first_bad != (
        device.verify(written("st.global.u32 [%c], %x;"), SMALL, seed=2).first_bad
    )


def test_a_write_behind_an_output_is_found_in_its_guard_zone(device: CudaDevice) -> None:
    verdict = device.verify(written(BEHIND), SMALL, seed=1)
    assert verdict.fault == "out_of_bounds"
    assert verdict.fault_message == "4 bytes written after C, the first at byte 6336 of its 6336"


def test_a_write_to_an_input_is_found(device: CudaDevice) -> None:
    verdict = device.verify(written(ON_INPUT), SMALL, seed=1)
    assert verdict.fault == "out_of_bounds"
    assert verdict.fault_message == "1 bytes of the input A changed, the first at byte 5"


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [(ILLEGAL, "out_of_bounds", "ILLEGAL_ADDRESS"), (MISALIGNED, "misaligned", "MISALIGNED_ADDRESS")],
)
def test_a_lost_context_is_a_verdict_and_the_next_candidate_is_unharmed(
    device: CudaDevice, body: str, kind: str, text: str
) -> None:
    device.verify(emitted(), SMALL, seed=1)
    first = device.worker.pid
    verdict = device.verify(written(body), SMALL, seed=1)
    assert (verdict.fault, verdict.is_right) == (kind, False)
    assert text in verdict.fault_message
    assert "while running the candidate" in verdict.fault_message
    assert device.verify(emitted(), SMALL, seed=1).is_right
    assert device.worker.pid != first


def test_a_hang_is_killed_and_the_next_candidate_is_unharmed(opened: Opened) -> None:
    device = opened(launch_s=0.5)
    with pytest.raises(CandidateTimeoutError, match=r"within 0\.5 s while running the candidate") as caught:
        device.verify(written(ENDLESS), SMALL, seed=1)
    assert caught.value.outcome is Outcome.TIMEOUT
    assert device.verify(emitted(), SMALL, seed=1).is_right


def test_code_that_does_not_load_is_refused_and_costs_no_worker(device: CudaDevice) -> None:
    candidate = emitted()
    assert device.verify(candidate, SMALL, seed=1).is_right
    spawned = device.worker.spawned
    broken = replace(candidate, binary=replace(candidate.binary, cubin=b"no ELF"))
    verdict = device.verify(broken, SMALL, seed=1)
    assert verdict.fault == "launch_refused"
    assert "INVALID_IMAGE" in verdict.fault_message
    assert "`tune doctor` says whether ptxas, driver and GPU fit together" in verdict.fault_message
    assert device.verify(candidate, SMALL, seed=1).is_right
    assert device.worker.spawned == spawned


def test_code_for_another_arch_is_refused(device: CudaDevice) -> None:
    verdict = device.verify(emitted(arch="sm_89"), SMALL, seed=1)
    assert verdict.fault == "launch_refused"
    assert "NO_BINARY_FOR_GPU" in verdict.fault_message


def test_a_problem_larger_than_the_memory_says_so(opened: Opened) -> None:
    device = opened(memory_bytes=9 << 20)
    assert device.verify(emitted(), SMALL, seed=1).is_right
    verdict = device.verify(emitted(), GEMM.spec.problem(2048, 512, 32), seed=1)
    assert verdict.fault == "out_of_memory"
    assert "2048x512x32 needs 4263936 bytes in 3 buffers" in verdict.fault_message
    assert device.verify(emitted(), SMALL, seed=1).is_right


# Shared memory


def set_attributes(device: LocalDevice, number: int) -> list[int]:
    return [value for attribute, value in device.run(AskCalls("funcSetAttribute")) if attribute == number]


@pytest.mark.parametrize(
    ("dynamic", "static", "opt_in"),
    [
        pytest.param(48 * 1024, 0, [], id="48 KB need none"),
        pytest.param(48 * 1024 + 1, 0, [48 * 1024 + 1], id="one above needs it"),
        pytest.param(48 * 1024 - 16, 16, [], id="48 KB with static"),
        pytest.param(48 * 1024 - 15, 16, [48 * 1024 - 15], id="one above with static"),
        pytest.param(227 * 1024, 0, [227 * 1024], id="the maximum"),
        pytest.param(227 * 1024 - 16, 16, [227 * 1024 - 16], id="the maximum with static"),
    ],
)
def test_shared_memory_opt_in(dynamic: int, static: int, opt_in: list[int]) -> None:
    device = local()
    shared = ".shared .align 4 .b8 kept[16];" if static else ""
    use = "st.shared.u32 [kept], %x;" if static else ""
    verdict = device.verify(written(use, shared=shared, shared_bytes=dynamic), SMALL, seed=1)
    assert verdict.fault is None  # launched: it is merely wrong
    assert set_attributes(device, 8) == opt_in
    launched = [arguments[3] for arguments in device.run(AskCalls("launchKernel"))]
    assert launched == [dynamic]


@pytest.mark.parametrize(("dynamic", "static"), [(227 * 1024 + 1, 0), (227 * 1024 - 15, 16)])
def test_more_shared_memory_than_there_is_is_refused(dynamic: int, static: int) -> None:
    device = local()
    shared = ".shared .align 4 .b8 kept[16];" if static else ""
    use = "st.shared.u32 [kept], %x;" if static else ""
    verdict = device.verify(written(use, shared=shared, shared_bytes=dynamic), SMALL, seed=1)
    assert verdict.fault == "launch_refused"
    assert f"must be at most 232448 bytes on NVIDIA Stand-in 9000, written needs {dynamic + static}" in (
        verdict.fault_message
    )
    assert device.run(AskCalls("launchKernel")) == []


@pytest.mark.parametrize(
    ("dynamic", "threads", "percent"),
    [
        pytest.param(0, 32, [], id="none: left alone"),
        pytest.param(227 * 1024, 32, [100], id="one block, all of it"),
        pytest.param(15 * 1024, 512, [15], id="two blocks by registers: 2 * 16 of 228 KB"),
        pytest.param(75 * 1024, 32, [100], id="three blocks: 3 * 76 of 228 KB"),
    ],
)
def test_carve_out_covers_the_resident_blocks(dynamic: int, threads: int, percent: list[int]) -> None:
    device = local()
    device.verify(written(shared_bytes=dynamic, threads=threads), SMALL, seed=1)
    assert set_attributes(device, 9) == percent


def test_a_block_that_fits_nowhere_is_refused(device: CudaDevice) -> None:
    verdict = device.verify(written(threads=1025), SMALL, seed=1)
    assert verdict.fault == "launch_refused"
    assert "no block of written fits on an SM: 1025 threads of 64 registers" in verdict.fault_message


# Devices


def test_too_few_rounds_to_tell_them_apart_are_refused(opened: Opened) -> None:
    with pytest.raises(ValueError, match="rounds must be at least 8 to tell 2 apart, got 7"):
        opened().compare([emitted(), emitted()], SMALL, seed=0, rounds=7)


def test_a_device_is_named_by_its_model(opened: Opened) -> None:
    device = opened()
    assert device.name == "cuda:NVIDIA Stand-in 9000"
    assert device.target.arch.name == "sm_90"
    assert (device.policy, device.source, device.parallel) == ("cold-l2", Source.CUDA_EVENTS, False)


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((8, 0), "sm_80"), ((8, 7), "sm_86"), ((8, 9), "sm_89"), ((9, 0), "sm_90"), ((12, 1), "sm_120")],
)
def test_arch_is_the_newest_that_the_gpu_runs(capability: tuple[int, int], arch: str) -> None:
    assert arch_of(*capability, "a GPU").name == arch


def test_figures_are_the_drivers_and_rates_those_of_the_table(device: CudaDevice) -> None:
    """Two transfers a clock of 3,201 MHz over 6,144 bits; s8 at the 4 cycles of wgmma."""
    gpu = device.target.gpu
    assert gpu is not None
    assert (gpu.name, gpu.arch, gpu.sms.value) == ("NVIDIA Stand-in 9000", "sm_90", 4)
    assert gpu.dram_gb_s.value == pytest.approx(4916.7, abs=0.1)
    assert gpu.max_clock_mhz.value == 1980
    assert gpu.mma_s8_peak_cycles is not None
    assert gpu.mma_s8_peak_cycles.value == 4


def test_every_known_arch_has_figures(device: CudaDevice) -> None:
    for arch in ARCHS.values():
        figures = gpu_of(device.opened, arch)
        assert figures.arch == arch.name
        assert figures.mma_s8_cycles.value > 0


def test_a_driver_without_clocks_leaves_those_of_nvml_or_of_the_table(device: CudaDevice) -> None:
    """Integrated GPUs tell no memory clock, and CUDA may tell none at all."""
    facts = replace(device.opened.facts, clock_khz=0, memory_clock_khz=0)
    by_nvml = gpu_of(replace(device.opened, facts=facts, max_sm_mhz=1980.0), ARCHS["sm_90"])
    assert (by_nvml.clock_mhz.value, by_nvml.max_clock_mhz.value) == (1980, 1980)
    untold = gpu_of(replace(device.opened, facts=facts, max_sm_mhz=0.0), ARCHS["sm_90"])
    assert untold.clock_mhz in {gpu.clock_mhz for gpu in GPUS.values()}
    assert untold.dram_gb_s in {gpu.dram_gb_s for gpu in GPUS.values()}


def test_a_gpu_of_the_table_lends_its_own_rates(device: CudaDevice) -> None:
    named = replace(device.opened, facts=replace(device.opened.facts, name="NVIDIA L4"))
    assert gpu_of(named, ARCHS["sm_89"]).mma_f16_cycles == GPUS["l4"].mma_f16_cycles


def test_the_bound_is_on_the_row_and_holds(device: CudaDevice) -> None:
    """2 * 512^3 operations on 4 SMs of 8,192 operations a clock at 1,980 MHz take 4.14 us."""
    problem = GEMM.spec.problem(512, 512, 512)
    bound_us = device.bound(GEMM, problem).time_us
    assert bound_us == pytest.approx(2 * 512**3 / (4 * 4 * 8192 / 4 * 1980), rel=1e-6)
    measured = device.measure(emitted(), SMALL, None)
    assert measured.bound_us == device.bound(GEMM, SMALL).time_us
    assert measured.time_us > measured.bound_us


def test_a_gpu_that_no_arch_fits_is_refused(opened: Opened) -> None:
    with pytest.raises(DeviceError, match="NVIDIA Stand-in 9000 is sm_75, which no known architecture fits"):
        opened(capability=(7, 5))


@pytest.mark.parametrize(("index", "count"), [(1, 1), (3, 2)])
def test_a_gpu_that_is_not_there_is_refused(opened: Opened, index: int, count: int) -> None:
    with pytest.raises(DeviceError, match=f"cuda:{index} must be one of the {count} GPUs"):
        opened(index, count=count)


def test_a_gpu_is_found_by_its_name(device: CudaDevice) -> None:
    name = device.name.removeprefix("cuda:")
    found = CudaDevice(OpenStandIn(StandInGpu(), name), QUICK)
    assert found.name == device.name
    found.close()


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(DeviceError, match="got cuda:first; here are: NVIDIA Stand-in 9000"):
        CudaDevice(OpenStandIn(StandInGpu(), "first"), QUICK)


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
@pytest.mark.parametrize("index", ["", "1", "all", "NVIDIA H200"])
def test_without_cupy_every_form_says_so(index: str) -> None:
    with pytest.raises(DeviceError, match="needs CuPy"):
        open_cuda(index)


def test_two_gpus_work_at_the_same_time(opened: Opened) -> None:
    both = CudaDevices([opened(count=2), opened(count=2, which=1)])
    assert (both.lanes, both.name) == (2, "cuda:NVIDIA Stand-in 9000")
    candidate, verdicts = emitted(), []

    def work() -> None:
        for seed in range(4):
            verdicts.append(both.verify(candidate, SMALL, seed))
            both.measure(candidate, SMALL, None)

    threads = [Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(verdicts) == 8
    assert all(verdict.is_right for verdict in verdicts)
    assert all(device.run(AskCalls("launchKernel")) for device in both.devices)
    both.close()


def test_gpus_of_two_models_are_no_one_device(opened: Opened) -> None:
    with pytest.raises(DeviceError, match="cuda:all needs GPUs of one model, found cuda:A, cuda:B"):
        CudaDevices([opened(name="A"), opened(name="B")])
