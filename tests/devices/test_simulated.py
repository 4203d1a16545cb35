"""The device sim:GPU: predictions that say they are, and the schedules that they tell apart."""

import math
from dataclasses import replace
from typing import Any

import pytest

from emitters import KERNELS
from emitters.gemm import GEMM_S8, TERNARY_GEMM_S8
from emitters.gpus import GPUS
from emitters.kernel import Kernel, schedule_values
from results.plan import MemsetStep
from results.trial import Source
from tuner.devices.device import Candidate, DeviceError
from tuner.devices.errors import CandidateFaultError
from tuner.devices.sampling import UnknownMmaError, operands_for, plan_work, work_of
from tuner.devices.simulated import SimulatedDevice
from tuner.ptxas import Assembler
from tuner.simulator import Counters, Launch
from tuner.work import Fill, Work

PIPELINED = replace(TERNARY_GEMM_S8.baseline, tile_k=64, stages=4, decode="register")


@pytest.fixture(scope="module")
def assembler(tmp_path_factory: pytest.TempPathFactory) -> Assembler:
    return Assembler(cache_dir=tmp_path_factory.mktemp("cubins"))


@pytest.fixture(scope="module")
def device() -> SimulatedDevice:
    return SimulatedDevice("rtx4090")


def built(kernel: Kernel[Any], schedule: Any, device: SimulatedDevice, assembler: Assembler) -> Candidate:
    emitted = kernel.emit(schedule, device.target)
    binary = assembler.assemble(emitted.ptx, device.target.arch.name)
    return Candidate(kernel.id, schedule_values(schedule), emitted, binary)


def time_us(
    schedule: Any,
    device: SimulatedDevice,
    assembler: Assembler,
    sizes: tuple[int, int, int] = (4096, 1280, 1280),
    kernel: Kernel[Any] = TERNARY_GEMM_S8,
) -> float:
    candidate = built(kernel, schedule, device, assembler)
    return device.measure(candidate, kernel.spec.problem(*sizes), None).time_us


@pytest.mark.parametrize("gpu", GPUS)
def test_prediction_says_that_it_is_one_and_lies_above_the_bound(gpu: str, assembler: Assembler) -> None:
    device = SimulatedDevice(gpu)
    problem = TERNARY_GEMM_S8.spec.problem(1000, 512, 512)
    measured = device.measure(
        built(TERNARY_GEMM_S8, TERNARY_GEMM_S8.baseline, device, assembler), problem, None
    )
    assert (measured.source, measured.policy) == (Source.MODEL, "model")
    assert measured.times_us == (measured.time_us,)
    assert measured.bound_us == device.bound(TERNARY_GEMM_S8, problem).time_us
    assert measured.bound_us is not None
    assert measured.time_us > measured.bound_us > 0
    assert measured.clock_mhz == GPUS[gpu].clock_mhz.value
    assert {"launch", "tensor", "shared", "l2", "epilogue"} <= measured.breakdown_us.keys()
    assert max(measured.breakdown_us.values()) <= measured.time_us
    assert measured.details["limiter"] in ("tensor", "issue", "shared", "l2")
    assert measured.details["loop_mma"] == 16


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda kernel: kernel.id)
def test_every_kernel_of_the_table_is_predicted(
    kernel: Kernel[Any], device: SimulatedDevice, assembler: Assembler
) -> None:
    problem = kernel.edge_problems(kernel.baseline)[-1]
    measured = device.measure(built(kernel, kernel.baseline, device, assembler), problem, None)
    assert math.isfinite(measured.time_us)
    assert measured.time_us > device.bound(kernel, problem).time_us > 0


def test_device_is_named_after_its_gpu_and_pure(device: SimulatedDevice) -> None:
    assert (device.name, device.source, device.parallel) == ("sim:rtx4090", Source.MODEL, True)
    assert device.target.arch.name == "sm_89"
    device.close()
    device.close()


def test_unknown_gpu_lists_the_near_ones() -> None:
    with pytest.raises(DeviceError, match="unknown GPU 'h20'; did you mean h200"):
        SimulatedDevice("h20")


def test_verdict_names_the_problems_of_the_gate(device: SimulatedDevice, assembler: Assembler) -> None:
    candidate = built(TERNARY_GEMM_S8, PIPELINED, device, assembler)
    verdict = device.verify(candidate, TERNARY_GEMM_S8.default_problem, 0)
    assert verdict.is_right
    assert verdict.problems == tuple(str(p) for p in TERNARY_GEMM_S8.edge_problems(PIPELINED))
    assert verdict.where == "simulator"


def test_same_candidate_gets_the_same_time(device: SimulatedDevice, assembler: Assembler) -> None:
    assert len({time_us(PIPELINED, device, assembler) for _ in range(3)}) == 1
    assert time_us(PIPELINED, SimulatedDevice("rtx4090"), assembler) == time_us(PIPELINED, device, assembler)


def test_stray_access_on_the_real_problem_is_a_fault(device: SimulatedDevice, assembler: Assembler) -> None:
    candidate = built(TERNARY_GEMM_S8, PIPELINED, device, assembler)
    (step,) = candidate.emitted.plan.kernel_steps
    # Rows of C twice as far apart: the middle of the grid lands behind its end.
    arguments = tuple({"n": "n * 2"}.get(name, name) for name in step.arguments)
    plan = replace(candidate.emitted.plan, steps=(replace(step, arguments=arguments),))
    stray = replace(candidate, emitted=replace(candidate.emitted, plan=plan))
    with pytest.raises(CandidateFaultError, match="out_of_bounds") as caught:
        device.measure(stray, TERNARY_GEMM_S8.spec.problem(1024, 512, 256), None)
    assert caught.value.kind == "out_of_bounds"


# --- what the model tells apart ---


def test_padding_against_bank_conflicts_pays(device: SimulatedDevice, assembler: Assembler) -> None:
    conflicted = replace(PIPELINED, decode="shared", stride_pad=0, swizzle=False)
    padded = replace(conflicted, stride_pad=16)
    assert time_us(padded, device, assembler) < time_us(conflicted, device, assembler)


def test_pipelining_pays(device: SimulatedDevice, assembler: Assembler) -> None:
    synchronous = replace(PIPELINED, stages=1)
    assert time_us(PIPELINED, device, assembler) < 0.8 * time_us(synchronous, device, assembler)


def test_splitting_along_k_pays_only_for_few_blocks(device: SimulatedDevice, assembler: Assembler) -> None:
    split = replace(PIPELINED, split_k=8)
    tall, wide = (128, 128, 32768), (4096, 3456, 1280)
    assert time_us(split, device, assembler, tall) < 0.5 * time_us(PIPELINED, device, assembler, tall)
    assert time_us(split, device, assembler, wide) > time_us(PIPELINED, device, assembler, wide)


def test_tiny_tiles_lose_to_the_bandwidth_of_l2(device: SimulatedDevice, assembler: Assembler) -> None:
    large = replace(GEMM_S8.baseline, tile_k=64, stages=4)
    tiny = replace(large, tile_m=32, tile_n=32, warps_m=1, warps_n=2)
    times = [time_us(s, device, assembler, kernel=GEMM_S8) for s in (large, tiny)]
    assert times[0] < 0.6 * times[1]


# --- the work that is counted ---


def test_work_of_a_plan_is_what_the_schedule_implies(device: SimulatedDevice, assembler: Assembler) -> None:
    schedule = replace(PIPELINED, split_k=2)
    candidate = built(TERNARY_GEMM_S8, schedule, device, assembler)
    m, n, k = 512, 256, 1024
    problem = TERNARY_GEMM_S8.spec.problem(m, n, k)
    operands = operands_for(TERNARY_GEMM_S8, candidate.emitted, problem)
    plan = plan_work(candidate.emitted, candidate.binary, problem, operands)
    memset, work = plan.steps
    assert isinstance(candidate.emitted.plan.steps[0], MemsetStep)
    assert memset == Fill(4.0 * m * n)
    assert isinstance(work, Work)
    assert plan.footprint_bytes == m * k + k * n // 4 + 4 * m * n
    assert work.blocks == (m // 128) * (n // 128) * 2
    # Every block has half of k; a k32 mma is 16 x 8 x 32 products.
    assert work.mma_s8 * work.blocks * 16 * 8 * 32 == m * n * k
    assert work.steps == k / 2 / 64
    assert work.lookahead == schedule.stages - 1
    assert work.phased == 0
    assert work.chains == (128 / 2 / 16) * (128 / 4 / 8)  # accumulators of a 64 x 32 warp tile
    assert (work.threads, work.registers) == (256, candidate.binary.registers)
    # Tiles of A and of codes are copied for every step, those of the ring past the end not at all.
    assert work.read_bytes == (128 * k + 128 * k / 4) / 2
    assert work.write_bytes == 0
    assert float(work.atomic_bytes) >= 4 * 128 * 128
    loop = candidate.binary.functions[0].code.loop
    assert loop is not None
    assert work.instructions == loop.instructions * work.steps * 8


def test_synchronous_kernels_are_phased(device: SimulatedDevice, assembler: Assembler) -> None:
    candidate = built(TERNARY_GEMM_S8, TERNARY_GEMM_S8.baseline, device, assembler)
    problem = TERNARY_GEMM_S8.spec.problem(256, 256, 256)
    operands = operands_for(TERNARY_GEMM_S8, candidate.emitted, problem)
    (work,) = plan_work(candidate.emitted, candidate.binary, problem, operands).steps
    assert isinstance(work, Work)
    assert work.phased == 1
    mix = candidate.binary.functions[0].code.loop
    assert mix is not None
    assert work.instructions == (mix.mma + mix.ldmatrix) * work.steps * 8
    total = float(work.instructions) + float(work.fill_instructions)
    assert total == mix.instructions * float(work.steps) * 8
    assert work.write_bytes == 4 * 128 * 128


def test_mma_without_a_known_rate_is_refused(device: SimulatedDevice, assembler: Assembler) -> None:
    code = built(TERNARY_GEMM_S8, PIPELINED, device, assembler).binary.functions[0].code
    counters = Counters(blocks=1, threads=32)
    counters.instructions["mma.m16n8k64.s4.s4"] = 1
    with pytest.raises(UnknownMmaError, match=r"no rate is known for mma\.m16n8k64\.s4\.s4"):
        work_of(Launch("k", (1, 1, 1), (32, 1, 1), 0, ()), counters, 32, 0, code)


@pytest.mark.parametrize(
    ("name", "unit", "share"),
    [
        ("mma.m16n8k32.s8.s8", "mma_s8", 1.0),
        ("mma.m16n8k16.s8.u8", "mma_s8", 0.5),
        ("mma.m16n8k16.f16.f16", "mma_f16", 1.0),
        ("mma.m16n8k8.bf16.bf16", "mma_f16", 0.5),
        ("wmma.m16n16k16.f32", "mma_f16", 2.0),
        ("wmma.m16n16k16.s8", "mma_s8", 1.0),
    ],
)
def test_mma_units(name: str, unit: str, share: float, device: SimulatedDevice, assembler: Assembler) -> None:
    code = built(TERNARY_GEMM_S8, PIPELINED, device, assembler).binary.functions[0].code
    counters = Counters(blocks=2, threads=32)
    counters.instructions[name] = 200
    work = work_of(Launch("k", (2, 1, 1), (32, 1, 1), 0, ()), counters, 32, 0, code)
    assert math.isclose(float(getattr(work, unit)), 100 * share)


# --- the work of kernels that stream ---


def works(
    kernel: Kernel[Any], device: SimulatedDevice, assembler: Assembler, sizes: Any, **changes: Any
) -> Work:
    """The first launch of a kernel's hand-written schedule with changes."""
    candidate = built(kernel, replace(kernel.baseline, **changes), device, assembler)
    problem = kernel.spec.problem(*sizes)
    operands = operands_for(kernel, candidate.emitted, problem)
    work = plan_work(candidate.emitted, candidate.binary, problem, operands).steps[0]
    assert isinstance(work, Work)
    return work


def test_a_vector_that_all_rows_need_is_read_once_a_block(
    device: SimulatedDevice, assembler: Assembler
) -> None:
    n_in = 4096
    work = works(KERNELS["q4k_gemv"], device, assembler, (256, n_in), warps=8, rows_per_warp=2)
    rows, vector = 16 * n_in // 256 * 144, 4 * n_in
    assert work.free == 1
    assert work.read_bytes == rows + vector  # eight warps read it
    assert work.common_bytes == vector  # and so do the other blocks
    assert float(work.load_wavefronts) >= (rows + 8 * vector) / 128


def test_asynchronous_copies_are_no_hits_of_l1(device: SimulatedDevice, assembler: Assembler) -> None:
    work = works(KERNELS["q4k_gemv"], device, assembler, (256, 4096), stages=3)
    rows, vector = 4 * 4096 // 256 * 144, 4 * 4096
    assert (
        rows + vector < work.read_bytes < 1.3 * rows + vector
    )  # copies share some sectors of 144-byte blocks
    assert work.common_bytes == vector
    assert work.lookahead == 3
    assert work.steps == 4096 / 256 / 4  # 16 bytes a lane: eight lanes have the codes of a block, a warp four


@pytest.mark.parametrize("turns", [1, 2, 8])
def test_turns_that_load_and_store_are_waited_for_though_unrolled(
    turns: int, device: SimulatedDevice, assembler: Assembler
) -> None:
    assert works(KERNELS["affine_f32"], device, assembler, (1 << 16,), turns=turns).steps == turns


def test_the_main_loop_of_attention_is_the_one_over_keys(
    device: SimulatedDevice, assembler: Assembler
) -> None:
    kernel = KERNELS["sdpa_decode"]
    candidate = built(kernel, replace(kernel.baseline, splits=4, warps=8), device, assembler)
    loop = candidate.binary.functions[0].code.loop
    assert loop is not None
    assert loop.mix.get("LDG", 0) + loop.mix.get("LDGSTS", 0) > 0


def test_idle_blocks_of_a_split_do_not_stand_for_all(device: SimulatedDevice, assembler: Assembler) -> None:
    """Of 4 splits x 16 warps of a row only the first split has units of a row of 4096."""
    changes = {"warps": 16, "warps_per_row": 16, "splits": 4, "load_bytes": 4, "rows_per_warp": 1}
    work = works(KERNELS["q4k_gemv"], device, assembler, (256, 4096), **changes)
    assert float(work.read_bytes) >= 4096 // 256 * 144 / 4


def test_times_are_of_a_cold_l2_and_the_warm_one_stands_beside(
    device: SimulatedDevice, assembler: Assembler
) -> None:
    kernel = KERNELS["q4k_gemv"]
    candidate = built(kernel, kernel.baseline, device, assembler)
    problem = kernel.spec.problem(4096, 4096)
    measured = device.measure(candidate, problem, None)
    weights = 4096 * 4096 // 256 * 144
    assert measured.bound_us == pytest.approx((weights + 4 * 4096) / 1008e3)
    assert measured.time_us > measured.bound_us
    assert measured.other_us["warm"] < measured.time_us
