"""The cost model on made-up work whose time follows from the model's definition by hand."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emitters.gpus import GPUS, target_named
from emitters.kernel import Demand
from emitters.target import Gpu, Target
from tuner import cost_model as model
from tuner.cost_model import Bound, NoGpuError, Prediction, bound, predict
from tuner.work import Fill, PlanWork, Work

RTX4090 = target_named("rtx4090")
CLOCK = 2520.0
# One block on each of 128 SMs: four warps, 1,000 mma's each, so 16,000 tensor cycles, and little else.
TENSOR = Work(
    blocks=128.0,
    threads=128.0,
    registers=128.0,
    shared_bytes=60000.0,
    steps=20.0,
    mma_s8=4000.0,
    instructions=8000.0,
    shared_reads=1000.0,
    read_bytes=32000.0,
    lookahead=3.0,
)
PHASED = replace(TENSOR, phased=1.0, shared_writes=5000.0, fill_instructions=4000.0, lookahead=1.0)


def one(work: Work, *more: Work | Fill, footprint_bytes: float = 1e6, target: Target = RTX4090) -> Prediction:
    return predict(PlanWork((work, *more), footprint_bytes), target)


def cycles(prediction: Prediction, steps: int = 1) -> float:
    return (float(prediction.time_us) - steps * model.LAUNCH_US) * CLOCK


def test_lone_pipelined_block_takes_its_pipe_and_its_barriers() -> None:
    assert cycles(one(TENSOR)) == pytest.approx(16000 + 20 * model.BARRIER_LATENCY + model.L2_LATENCY)
    assert one(TENSOR).limiter == "tensor"


def test_phases_of_a_synchronous_kernel_add_up() -> None:
    turn = model.L2_LATENCY + model.SHARED_LATENCY + model.MMA_LATENCY + 2 * model.BARRIER_LATENCY
    assert cycles(one(PHASED)) == pytest.approx(16000 + 5000 + 20 * turn + model.L2_LATENCY)


def test_co_resident_blocks_of_a_synchronous_kernel_share_only_the_latency() -> None:
    small = replace(PHASED, shared_bytes=40000.0, blocks=256.0)
    turn = model.L2_LATENCY + model.SHARED_LATENCY + model.MMA_LATENCY + 2 * model.BARRIER_LATENCY
    prediction = one(small)
    assert (prediction.resident, prediction.rounds) == (2, 1)
    assert cycles(prediction) == pytest.approx(2 * (16000 + 5000) + 20 * turn + model.L2_LATENCY)


def test_one_block_too_many_costs_a_round() -> None:
    full, over = one(TENSOR), one(replace(TENSOR, blocks=129.0))
    assert (full.rounds, over.rounds) == (1, 2)
    assert cycles(over) == pytest.approx(2 * cycles(full))
    assert full.breakdown_us["tail"] == pytest.approx(0)
    assert over.breakdown_us["tail"] == pytest.approx((cycles(over) / CLOCK) * (1 - 129 / 256))


def test_second_block_hides_the_barriers_of_the_first() -> None:
    both = one(replace(TENSOR, blocks=256.0, shared_bytes=40000.0))
    assert cycles(both) == pytest.approx(2 * 16000 + model.L2_LATENCY)


def test_two_warps_reach_half_of_the_tensor_cores() -> None:
    half = replace(TENSOR, threads=64.0)
    assert one(half).breakdown_us["tensor"] == pytest.approx(2 * one(TENSOR).breakdown_us["tensor"])


def test_f16_mma_goes_at_its_own_rate() -> None:
    f16 = replace(TENSOR, mma_s8=0.0, mma_f16=4000.0)
    assert one(f16).breakdown_us["tensor"] == pytest.approx(2 * one(TENSOR).breakdown_us["tensor"])


def test_bank_conflicts_slow_once_they_outweigh_the_tensor_cores() -> None:
    hidden = replace(TENSOR, shared_reads=15000.0)
    exposed = replace(TENSOR, shared_reads=30000.0)
    assert cycles(one(hidden)) == cycles(one(TENSOR))
    assert cycles(one(exposed)) - cycles(one(TENSOR)) == pytest.approx(30000 - 16000)
    assert one(exposed).limiter == "shared"


def test_integer_instructions_go_at_half_rate() -> None:
    busy = replace(TENSOR, instructions=80000.0, alu_instructions=60000.0)
    assert one(busy).breakdown_us["issue"] == pytest.approx(60000 * 2 / 4 / CLOCK)


def test_a_chain_of_dependent_mmas_waits_for_each() -> None:
    chained = replace(TENSOR, chains=1.0)
    assert cycles(one(chained)) == pytest.approx(1000 * model.MMA_LATENCY + model.L2_LATENCY)
    in_phases = cycles(one(replace(PHASED, chains=1.0))) - cycles(one(PHASED))
    assert in_phases == pytest.approx(1000 * model.MMA_LATENCY - 16000)


def test_scattered_loads_take_the_pipe_of_shared_memory() -> None:
    scattered = replace(PHASED, scattered_sectors=700.0)
    assert cycles(one(scattered)) - cycles(one(PHASED)) == pytest.approx(700)


def test_short_lookahead_exposes_the_latency_of_loads() -> None:
    light = replace(TENSOR, mma_s8=100.0, instructions=200.0, read_bytes=1000.0)
    far, near = one(replace(light, lookahead=5.0)), one(replace(light, lookahead=1.0))
    assert cycles(near) == pytest.approx(20 * model.L2_LATENCY + model.L2_LATENCY)
    assert cycles(far) < cycles(near) / 3


def test_l2_serves_few_blocks_faster_than_all() -> None:
    heavy = replace(TENSOR, read_bytes=1e6)
    full, few = one(heavy), one(replace(heavy, blocks=16.0))
    assert full.breakdown_us["l2"] == pytest.approx(1e6 / 15.2 / CLOCK)
    assert few.breakdown_us["l2"] == pytest.approx(1e6 / model.SM_READ_BYTES / CLOCK)


def test_epilogue_is_exposed_and_atomics_cost_more_than_stores() -> None:
    stores, atomics = one(replace(TENSOR, write_bytes=65536.0)), one(replace(TENSOR, atomic_bytes=65536.0))
    assert cycles(stores) - cycles(one(TENSOR)) == pytest.approx(65536 / 8)
    assert cycles(atomics) - cycles(one(TENSOR)) == pytest.approx(2 * 65536 / 8)


def test_what_exceeds_l2_moves_at_the_speed_of_dram() -> None:
    l2 = RTX4090.gpu.l2_bytes.value if RTX4090.gpu else 0.0
    inside, beyond = one(TENSOR, footprint_bytes=l2), one(TENSOR, footprint_bytes=2 * l2)
    assert inside.breakdown_us["dram"] == 0
    assert beyond.breakdown_us["dram"] == pytest.approx(2 * l2 / (1008e3 * model.DRAM_EFFICIENCY))
    assert (inside.limiter, beyond.limiter) == ("tensor", "dram")
    assert float(beyond.time_us) == pytest.approx(model.LAUNCH_US + float(beyond.breakdown_us["dram"]))


def test_memset_pays_for_its_launch_and_its_bytes() -> None:
    with_memset = one(TENSOR, Fill(1e6))
    assert float(with_memset.breakdown_us["memset"]) == pytest.approx(1e6 / (8 * 128) / CLOCK)
    extra = float(with_memset.time_us) - float(one(TENSOR).time_us)
    assert extra == pytest.approx(model.LAUNCH_US + float(with_memset.breakdown_us["memset"]))


def test_block_that_does_not_fit_never_ends() -> None:
    assert np.isinf(one(replace(TENSOR, shared_bytes=200000.0)).time_us)


def test_explanation_names_what_limits() -> None:
    lines = one(TENSOR, Fill(1e6)).explain()
    assert "limited by tensor; filling and computing overlap" in lines[0]
    assert lines[1] == "128 blocks, 1 at once on an SM, 1 rounds on the busiest one"
    assert [line.split()[0] for line in lines[2:]] == [
        "launch", "tensor", "issue", "shared", "l2", "latency", "epilogue", "memset",
    ]  # fmt: skip
    assert "take turns" in one(PHASED).explain()[0]


counts = st.floats(0, 1e6)
works = st.builds(
    Work,
    blocks=st.floats(1, 5000).map(np.ceil),
    threads=st.sampled_from([32.0, 64.0, 128.0, 256.0, 512.0]),
    registers=st.floats(16, 128),
    shared_bytes=st.floats(0, 99 * 1024),
    steps=st.floats(1, 200),
    mma_s8=counts,
    mma_f16=counts,
    chains=st.floats(1, 64),
    instructions=counts,
    fill_instructions=counts,
    alu_instructions=counts,
    other_instructions=counts,
    shared_reads=counts,
    shared_writes=counts,
    scattered_sectors=counts,
    read_bytes=counts,
    write_bytes=counts,
    atomic_bytes=counts,
    phased=st.sampled_from([0.0, 1.0]),
    lookahead=st.floats(1, 6),
    free=st.sampled_from([0.0, 1.0]),
    common_bytes=counts,
    load_wavefronts=counts,
    own_cycles=counts,
    outside_cycles=counts,
)
COUNTS = [
    field.name
    for field in fields(Work)
    if field.name not in ("phased", "lookahead", "blocks", "threads", "chains", "free", "common_bytes")
]


@settings(max_examples=60, deadline=None)
@given(st.lists(works, min_size=1, max_size=5))
def test_arrays_give_what_numbers_give(many: list[Work]) -> None:
    arrays = Work(**{f.name: np.array([getattr(work, f.name) for work in many]) for f in fields(Work)})
    whole = predict(PlanWork((arrays, Fill(1e5)), 1e8), RTX4090)
    each = [predict(PlanWork((work, Fill(1e5)), 1e8), RTX4090) for work in many]
    assert whole.time_us.tolist() == [float(p.time_us) for p in each]
    for name, values in whole.breakdown_us.items():
        assert values.tolist() == [float(p.breakdown_us[name]) for p in each]


@settings(max_examples=100, deadline=None)
@given(works, st.sampled_from(COUNTS), st.floats(1, 10), st.sampled_from(sorted(GPUS)))
def test_more_work_never_takes_less_time(work: Work, name: str, factor: float, gpu: str) -> None:
    if name in ("registers", "shared_bytes") or (work.free and name in ("steps", "outside_cycles")):
        return  # they change how many blocks share an SM, or what a step is, which may go either way
    more = replace(work, **{name: getattr(work, name) * factor})
    target = target_named(gpu)
    before, after = (float(one(w, target=target).time_us) for w in (work, more))
    assert after >= before * (1 - 1e-12)


def test_target_without_a_gpu_is_refused() -> None:
    with pytest.raises(NoGpuError, match="target sm_89 names none"):
        one(TENSOR, target=Target.of("sm_89"))


# --- the physical bound ---

GEMM = Demand(
    operations=2 * 4096 * 3456 * 1280,
    unit="mma_s8",
    read_bytes=4096 * 1280 + 3456 * 1280 // 4,
    write_bytes=4 * 4096 * 3456,
)


def _bound_us(demand: Demand, gpu: Gpu) -> float:
    return bound(demand, gpu).time_us


def test_a_rate_is_in_the_unit_of_what_bounds() -> None:
    peak = bound(GEMM, GPUS["rtx4090"])
    assert (peak.of, peak.rate(GEMM.operations / 431e6)) == ("operations", "431.0 T ops/s")


def test_bound_is_the_peak_at_the_highest_clock() -> None:
    peak = 660.6e12 * 3105 / 2520  # the vendor's TOPS, at the highest clock
    assert _bound_us(GEMM, GPUS["rtx4090"]) == pytest.approx(GEMM.operations / peak * 1e6, rel=1e-3)


def test_bound_uses_the_specified_peak_where_mma_sync_is_slower() -> None:
    peak = 1978.9e12 * 1980 / 1830
    assert _bound_us(GEMM, GPUS["h100"]) == pytest.approx(GEMM.operations / peak * 1e6, rel=2e-3)


def test_bound_counts_bytes_beyond_l2_cold_reads_and_ports() -> None:
    stream = Demand(operations=1, unit="fp32", read_bytes=10**9, write_bytes=10**9)
    gpu = GPUS["rtx4090"]
    assert _bound_us(stream, gpu) == pytest.approx((2e9 - gpu.l2_bytes.value) / 1008e3)
    small = Demand(operations=1, unit="fp32", read_bytes=10**6, write_bytes=10**6)
    assert _bound_us(small, gpu) == pytest.approx(1e6 / (64 * 128 * 3105))
    cold = bound(small, gpu, cold=True)
    assert cold == Bound(pytest.approx(1e6 / 1008e3), 1e6, "bytes from DRAM")
    assert cold.rate(2 * cold.time_us) == "504 GB/s"
    assert bound(small, gpu).of == "bytes from L2"


def test_bound_of_fp32_work() -> None:
    demand = Demand(operations=10**12, unit="fp32", read_bytes=0, write_bytes=0)
    assert _bound_us(demand, GPUS["rtx4090"]) == pytest.approx(1e12 / (82.6e12 * 3105 / 2520) * 1e6, rel=1e-3)


def test_unknown_unit_is_named() -> None:
    with pytest.raises(ValueError, match="unit must be fp32 or one of mma_s8, mma_f16, got 'fp8'"):
        _bound_us(replace(GEMM, unit="fp8"), GPUS["rtx4090"])
