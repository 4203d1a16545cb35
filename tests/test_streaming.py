"""Kernels whose warps run freely: memory as a server that batches of loads take turns at."""

import heapq
from dataclasses import replace
from fractions import Fraction
from math import factorial

import numpy as np
import pytest

from emitters.gpus import target_named
from tuner import cost_model as model
from tuner.cost_model import Prediction, predict
from tuner.streaming import Stream, utilisation
from tuner.work import PlanWork, Work

RTX4090 = target_named("rtx4090")
CLOCK = 2520.0
# Eight blocks an SM, all resident: 64 KB to read on each SM, in 8 turns, by 32 warps.
STREAM = Work(
    blocks=1024.0,
    threads=128.0,
    registers=32.0,
    shared_bytes=0.0,
    steps=8.0,
    instructions=3200.0,
    other_instructions=100.0,
    read_bytes=8192.0,
    free=1.0,
    own_cycles=400.0,
    outside_cycles=80.0,
)


def one(work: Work, cold: bool = False, inputs: float = 8e6) -> Prediction:
    return predict(PlanWork((work,), 1e7, inputs), RTX4090, cold)


def cycles(prediction: Prediction) -> float:
    return (float(prediction.time_us) - model.LAUNCH_US) * CLOCK


def repairman(batches: int, away: int, service: int) -> float:
    """Share of time in which the server of the machine-repairman model is busy, from its states."""
    ratio = Fraction(service, away)
    weights = [factorial(batches) / Fraction(factorial(batches - k)) * ratio**k for k in range(batches + 1)]
    return float(1 - 1 / sum(weights))


@pytest.mark.parametrize(
    ("batches", "away", "service"), [(1, 300, 30), (4, 300, 30), (12, 631, 45), (40, 280, 9)]
)
def test_utilisation_is_that_of_the_machine_repairman(batches: int, away: int, service: int) -> None:
    assert float(utilisation(batches, away, service)) == pytest.approx(repairman(batches, away, service))


def test_utilisation_is_what_a_simulated_server_has() -> None:
    """Fixed latencies, exponential service: 12 batches take turns for 60,000 services."""
    batches, away, service = 12, 400.0, 40.0
    rng = np.random.default_rng(1)
    arrivals = [float(start) for start in rng.uniform(0, away, batches)]
    heapq.heapify(arrivals)
    free_at, busy = 0.0, 0.0
    for taken in rng.exponential(service, 60_000):
        begin = max(heapq.heappop(arrivals), free_at)
        free_at = begin + taken
        busy += taken
        heapq.heappush(arrivals, free_at + away)
    assert busy / free_at == pytest.approx(float(utilisation(batches, away, service)), rel=0.02)


def test_few_batches_follow_littles_law_and_many_keep_memory_busy() -> None:
    assert float(utilisation(1, 270, 30)) == pytest.approx(0.1)
    assert float(utilisation(2, 27_000, 3)) == pytest.approx(2 * 3 / 27_003, rel=1e-3)
    assert float(utilisation(200, 280, 15)) > 0.9999


def test_a_lone_block_waits_once_and_is_served() -> None:
    stream = Stream(warps=4, steps=1, lookahead=1, own=20, outside=50, latency=280, drain=280)
    one_block = stream.cycles(np.float64(1), np.float64(1), np.float64(500))
    assert float(one_block) == pytest.approx(280 + 500)


def test_blocks_that_come_one_after_the_other_wait_each() -> None:
    stream = Stream(warps=4, steps=1, lookahead=1, own=20, outside=50, latency=280, drain=280)
    alone = float(stream.cycles(np.float64(10), np.float64(1), np.float64(500)))
    assert alone == pytest.approx(280 + 500 + 9 * (500 + 280 + 50 + 280))
    crowded = float(stream.cycles(np.float64(10), np.float64(10), np.float64(500)))
    assert crowded < 0.65 * alone


def test_bytes_in_flight_hide_the_latency() -> None:
    """The same bytes in half as many turns: twice as many under way."""
    few = replace(STREAM, threads=32.0, steps=32.0, instructions=0.0)
    assert cycles(one(few)) > cycles(one(replace(few, steps=16.0))) > cycles(one(replace(few, steps=8.0)))
    assert cycles(one(replace(few, lookahead=4.0))) < 0.7 * cycles(one(few))


def test_enough_in_flight_takes_what_l2_needs() -> None:
    busy = replace(STREAM, read_bytes=65536.0)
    served = 8 * 65536 / 15.2
    ends = model.L2_LATENCY * 2 + float(busy.outside_cycles)
    assert served + ends <= cycles(one(busy)) < 1.05 * served + ends


def test_cold_reads_come_from_dram_and_warm_ones_do_not() -> None:
    busy = replace(STREAM, read_bytes=65536.0)
    inputs = 65536.0 * 1024
    warm, cold = one(busy, inputs=inputs), one(busy, cold=True, inputs=inputs)
    dram_us = inputs / (1008e3 * model.DRAM_EFFICIENCY)
    assert float(warm.breakdown_us["dram"]) == 0
    assert float(cold.breakdown_us["dram"]) == pytest.approx(dram_us)
    assert dram_us + model.LAUNCH_US < float(cold.time_us) < 1.05 * dram_us + model.LAUNCH_US + 1
    assert cold.limiter == "dram"


def test_the_latency_of_dram_counts_for_what_misses_l2() -> None:
    lone = replace(
        STREAM, blocks=1.0, threads=32.0, steps=10.0, read_bytes=320.0, own_cycles=80.0, instructions=0.0
    )
    all_missed = cycles(one(lone, cold=True, inputs=320.0)) - cycles(one(lone))
    assert all_missed == pytest.approx(10 * (model.DRAM_LATENCY - model.L2_LATENCY), rel=0.1)


def test_what_all_blocks_read_is_fetched_once_an_sm_if_it_stays_in_l1() -> None:
    alike = replace(STREAM, read_bytes=65536.0, common_bytes=32768.0)
    apart = replace(alike, common_bytes=0.0)
    assert float(one(alike).breakdown_us["l2"]) == pytest.approx(8 * 32768 / 15.2 / CLOCK * (1 + 1 / 8))
    assert float(one(apart).breakdown_us["l2"]) == pytest.approx(8 * 65536 / 15.2 / CLOCK)
    crowded = replace(alike, shared_bytes=12000.0, common_bytes=49152.0)  # leaves 39 KB of L1
    assert float(one(crowded).breakdown_us["l2"]) == float(one(apart).breakdown_us["l2"])


def test_loads_that_hit_l1_take_its_wavefronts() -> None:
    again = replace(STREAM, load_wavefronts=20_000.0)
    assert float(one(again).breakdown_us["shared"]) == pytest.approx(8 * 20_000 / CLOCK)
    assert cycles(one(again)) >= 8 * 20_000
    assert one(again).limiter == "shared"


def test_fewer_blocks_than_sms_share_the_bandwidth_of_all() -> None:
    wide = replace(STREAM, blocks=64.0, read_bytes=1e6)
    assert cycles(one(wide)) == pytest.approx(0.5 * 1e6 / 15.2, rel=0.05)
    lone = replace(wide, blocks=1.0)
    assert cycles(one(lone)) >= 1e6 / model.SM_READ_BYTES
