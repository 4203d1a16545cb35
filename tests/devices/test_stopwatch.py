"""What is timed and how, on a stand-in GPU whose time is known; and who of several is chosen."""

from dataclasses import replace

import pytest
from cuda_standin import AskCalls
from device_samples import SMALL, emitted, main_step, with_plan, with_step
from local_device import QUICK, ROUNDS, local

from results.plan import MemsetStep
from results.trial import Source
from tuner.devices.timing import StoppingRule


def test_a_measurement_says_how_it_was_obtained() -> None:
    measured = local(noise=0.003).measure(emitted(), SMALL, None)
    assert measured.source is Source.CUDA_EVENTS
    assert measured.policy == "cold-l2"
    assert len(measured.times_us) in (10, 20)
    assert (measured.clock_mhz, measured.memory_clock_mhz, measured.temperature_c) == (1755, 3201, 54)
    assert measured.driver == "580.95.05"
    assert measured.details["gpu"] == "NVIDIA Stand-in 9000"
    assert measured.details["launch"] == "graph"
    assert measured.details["ended"] == "precise"
    assert "throttling" not in measured.details


def test_cold_calls_find_nothing_in_l2_and_warm_ones_all() -> None:
    """20 us a launch and 100 us for every MiB that comes from memory: A, codes and C."""
    measured = local().measure(emitted(), SMALL, None)
    nbytes = 33 * 96 + 96 * 48 // 4 + 33 * 48 * 4
    assert measured.time_us == pytest.approx(20 + 100 * nbytes / 2**20, rel=1e-3)
    assert measured.other_us["warm"] == pytest.approx(20, rel=1e-6)


def test_l2_is_overwritten_before_every_cold_repeat() -> None:
    device = local(l2_bytes=3 << 20)
    measured = device.measure(emitted(), SMALL, None)
    flushes = [nbytes for _, nbytes in device.run(AskCalls("memsetAsync"))]
    assert flushes.count(4 * (3 << 20)) == len(measured.times_us)


def test_every_step_of_the_plan_is_timed() -> None:
    """The stand-in takes 1 us and 1 us a MB for a memset."""
    device, candidate = local(miss_us_per_mib=0.0), emitted()
    alone = device.measure(candidate, SMALL, None)
    zeroing = with_plan(candidate, MemsetStep("C", 0, "4 * m * n"), main_step(candidate))
    zeroed = device.measure(zeroing, SMALL, None)
    assert zeroed.time_us - alone.time_us == pytest.approx(1 + 4 * 33 * 48 / 1e6)


def test_short_work_is_grouped_and_long_work_is_not() -> None:
    short = local(launch_us=3.0, miss_us_per_mib=0.0).measure(emitted(), SMALL, None)
    long = local(launch_us=1000.0, miss_us_per_mib=0.0).measure(emitted(), SMALL, None)
    assert short.details["calls_per_group"] == 20
    assert long.details["calls_per_group"] == 1
    assert [short.time_us, long.time_us] == pytest.approx([3.0, 1000.0])


def test_buffers_of_a_group_stay_within_their_memory() -> None:
    one_set = 33 * 96 + 96 * 48 // 4 + 33 * 48 * 4
    policy = replace(QUICK, most_set_bytes=4 * one_set + 1)
    measured = local(policy, launch_us=3.0).measure(emitted(), SMALL, None)
    assert measured.details["calls_per_group"] == 4


def test_a_small_gpu_keeps_most_of_its_memory_free() -> None:
    """Half of what the flush and the first set leave is for buffers, whether of one group or of several."""
    one_set = 33 * 96 + 96 * 48 // 4 + 33 * 48 * 4
    gpu = {"l2_bytes": 1024, "launch_us": 3.0, "noise": 0.001}
    alone = local(memory_bytes=4096 + (1 + 8) * one_set, **gpu)
    assert alone.measure(emitted(), SMALL, None).details["calls_per_group"] == 4
    two = local(memory_bytes=4096 + (2 + 8) * one_set, **gpu)
    two.compare([emitted(), emitted()], SMALL, seed=0)
    taken = [nbytes for (nbytes,) in two.run(AskCalls("malloc"))]
    assert sum(taken) - 4096 == 2 * 2 * one_set


def test_without_graphs_calls_are_queued_one_by_one() -> None:
    measured = local(has_graphs=False).measure(emitted(), SMALL, None)
    assert measured.details["launch"] == "direct"
    assert measured.other_us["warm"] == pytest.approx(20, rel=1e-6)


def test_a_clearly_slower_candidate_is_stopped_early() -> None:
    device = local(noise=0.01)
    fast = device.measure(emitted(), SMALL, best_us=30.0)
    slow = device.measure(emitted(), SMALL, best_us=10.0)
    assert fast.details["ended"] != "slower"
    assert slow.details["ended"] == "slower"
    assert len(slow.times_us) == 10
    assert not slow.other_us
    assert slow.energy_j is None


def test_a_budget_ends_the_repeats() -> None:
    policy = replace(QUICK, budget_s=0.0, rule=StoppingRule(most_repeats=640))
    measured = local(policy, noise=0.05).measure(emitted(), SMALL, None)
    assert measured.details["ended"] == "exhausted"
    assert len(measured.times_us) < 10
    assert measured.details["precision"] == float("inf")


def test_energy_is_power_times_time() -> None:
    """300 W and 20 us a warm launch are 6 mJ; the counter moves in steps."""
    measured = local().measure(emitted(), SMALL, None)
    assert measured.energy_j == pytest.approx(6e-3, rel=0.1)


def test_without_nvml_its_columns_are_empty() -> None:
    measured = local(has_nvml=False).measure(emitted(), SMALL, None)
    assert (measured.clock_mhz, measured.temperature_c, measured.energy_j) == (None, None, None)
    assert measured.driver == "CUDA 13"


def test_throttling_is_flagged_and_idling_is_not() -> None:
    assert local(throttling=0b1000101).measure(emitted(), SMALL, None).details["throttling"] == (
        "hw_thermal_slowdown,sw_power_cap"
    )
    assert "throttling" not in local(throttling=0b1).measure(emitted(), SMALL, None).details


def test_nothing_is_left_on_the_device() -> None:
    device = local()
    for _ in range(2):
        device.verify(emitted(), SMALL, 1)
        device.measure(emitted(), SMALL, None)
    taken = len(device.run(AskCalls("malloc")))
    assert taken == len([address for (address,) in device.run(AskCalls("free")) if address])
    assert len(device.run(AskCalls("moduleLoadData"))) == len(device.run(AskCalls("moduleUnload")))
    assert len(device.run(AskCalls("eventCreate"))) == len(device.run(AskCalls("eventDestroy"))) > 0
    assert len(device.run(AskCalls("graphInstantiate"))) == len(device.run(AskCalls("graphExecDestroy")))


# Finalists


def test_the_faster_finalist_wins() -> None:
    """One of them zeroes C first, which costs it 1 us of 21: 5 %."""
    device, candidate = local(noise=0.005), emitted()
    slower = with_plan(candidate, MemsetStep("C", 0, "4 * m * n"), main_step(candidate))
    finalists = device.compare([slower, candidate], SMALL, seed=5)
    assert finalists.comparison.winner == 1
    assert finalists.chosen([slower, candidate]) == 1
    assert len(finalists.rounds_us) == ROUNDS


def test_equals_tie_and_the_simplest_is_taken() -> None:
    device, candidate = local(noise=0.005), emitted()
    larger = with_step(candidate, shared_bytes=main_step(candidate).shared_bytes + 16)
    finalists = device.compare([larger, candidate, larger], SMALL, seed=6)
    assert finalists.comparison.winner is None
    assert finalists.comparison.tied == (0, 1, 2)
    assert finalists.chosen([larger, candidate, larger]) == 1
