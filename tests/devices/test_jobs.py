"""What a worker does with its jobs, looked at in this process: answers, phases, and the jobs themselves."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import pytest
from cuda_standin import OpenStandIn, StandInGpu, opened_machines
from device_samples import BEHIND, GEMM, ILLEGAL, SMALL, emitted, main_step, with_plan, written
from fake_libraries import CALL_US, FakeLibraries
from hostile_jobs import (
    Add,
    AnswerNonsense,
    Fault,
    OnlyForTheParent,
    OpenPlain,
    OpenUnavailable,
    Unpicklable,
)

from emitters import KERNELS
from results.plan import MemsetStep
from tuner.baselines import BASELINES, TimeBaseline
from tuner.devices import serving
from tuner.devices.channel import Channel, ChannelClosedError, ChannelTimeoutError
from tuner.devices.errors import StickyFaultError
from tuner.devices.jobs import AskFacts, Bench, Compare, Measure, Verify
from tuner.devices.serving import Broke, Done, Faulted, Phase, Ready, Taken, Unavailable
from tuner.devices.stopwatch import TimingPolicy
from tuner.devices.timing import StoppingRule

POLICY = TimingPolicy(
    rule=StoppingRule(most_repeats=20), group_us=60.0, warmup_ms=0.1, budget_s=2.0, warm_s=0.5, energy_s=0.01
)


@dataclass
class Heard:
    """Phases that were reported."""

    phases: list[str] = field(default_factory=list)

    def __call__(self, name: str, limit_s: float) -> None:
        assert limit_s > 0
        self.phases.append(name)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def bench(heard: Heard) -> Iterator[Bench]:
    opened_machines.clear()
    yield OpenStandIn(StandInGpu(noise=0.002))(heard)
    opened_machines.clear()


def test_facts_are_those_of_the_gpu(bench: Bench) -> None:
    opened = AskFacts().run(bench)
    assert (opened.facts.name, opened.driver_version, opened.count) == (
        "NVIDIA Stand-in 9000",
        "580.95.05",
        1,
    )
    assert opened.max_sm_mhz == 1980


def test_verifying_says_what_it_does(bench: Bench, heard: Heard) -> None:
    assert Verify(emitted(), SMALL, 1).run(bench).is_right
    assert heard.phases == [
        "making data and its reference",
        "laying out data and loading the code",
        "running the candidate",
        "comparing",
    ]


def test_exact_references_are_made_once(bench: Bench) -> None:
    first = bench.expected(GEMM, SMALL, 1, GEMM.baseline)
    assert bench.expected(GEMM, SMALL, 1, GEMM.baseline) is first
    assert bench.inputs(GEMM, SMALL, 1) is bench.inputs(GEMM, SMALL, 1)
    for seed in (2, 3, 4):
        bench.inputs(GEMM, SMALL, seed)
    assert len(bench._inputs) == 2


def test_stray_writes_are_no_mismatch(bench: Bench) -> None:
    assert Verify(written(BEHIND), SMALL, 1).run(bench).fault == "out_of_bounds"


def test_a_lost_context_stays_lost(bench: Bench) -> None:
    for candidate in (written(ILLEGAL), emitted()):
        with pytest.raises(StickyFaultError):
            Verify(candidate, SMALL, 1).run(bench)


def test_measuring_and_comparing(bench: Bench, heard: Heard) -> None:
    candidate = emitted()
    measured = Measure(candidate, SMALL, None, POLICY).run(bench)
    assert measured.energy_j == pytest.approx(6e-3, rel=0.15)
    assert heard.phases[-1] == "timing"
    zeroing = with_plan(candidate, MemsetStep("C", 0, "4 * m * n"), main_step(candidate))
    finalists = Compare((zeroing, candidate), SMALL, 20, 0, POLICY).run(bench)
    assert finalists.comparison.winner == 1
    assert finalists.chosen((zeroing, candidate)) == 1
    assert Measure(candidate, SMALL, 1.0, POLICY).run(bench).details["ended"] == "slower"


@pytest.mark.parametrize(
    ("kernel", "name"), [(kernel, baseline.name) for kernel in KERNELS for baseline in BASELINES[kernel]]
)
def test_baselines_run_as_jobs(bench: Bench, kernel: str, name: str) -> None:
    entry = KERNELS[kernel]
    problem = max(entry.edge_problems(entry.baseline), key=lambda problem: min(problem.sizes.values()))
    timed = TimeBaseline(kernel, problem, name, POLICY, FakeLibraries()).run(bench)
    assert timed.reason == ""
    assert timed.measurement is not None
    assert timed.measurement.time_us == pytest.approx(CALL_US, rel=0.01)
    missing = FakeLibraries(missing=("torch", "cupy", "cublas"))
    reason = TimeBaseline(kernel, problem, name, POLICY, missing).run(bench).reason
    assert "does not import" in reason or "does not load" in reason


@pytest.fixture
def parent() -> Iterator[Channel]:
    """The parent's end of a channel to a worker that is a thread."""
    ours, theirs = socket.socketpair()
    channel, served = Channel(ours), Channel(theirs)

    def serve() -> None:
        with suppress(ChannelClosedError):
            serving._serve(served)
        served.close()

    thread = Thread(target=serve, daemon=True)
    thread.start()
    yield channel
    channel.close()
    thread.join(timeout=10)
    assert not thread.is_alive()


def ask(parent: Channel, value: Any) -> Any:
    parent.send(value, 10.0)
    return parent.receive(10.0)


def do(parent: Channel, job: Any) -> list[Any]:
    """All that a worker says about a job."""
    said = [ask(parent, job)]
    while isinstance(said[-1], Taken | Phase):
        said.append(parent.receive(10.0))
    return said


def test_a_worker_answers_each_job_in_its_way(parent: Channel) -> None:
    assert ask(parent, OpenPlain()) == Ready()
    assert do(parent, Add(2, 3)) == [Taken(), Done(5)]
    assert isinstance(do(parent, AnswerNonsense())[-1], Broke)
    assert "cannot be pickled" in do(parent, Unpicklable())[-1].message
    *before, refused = do(parent, Fault(sticky=False))
    assert before == [Taken(), Phase("running the candidate", 10.0)]
    assert isinstance(refused, Faulted)
    assert (refused.kind, refused.leaving) == ("misaligned", False)
    assert isinstance(ask(parent, OnlyForTheParent()), Broke)
    assert do(parent, Add(2, 3))[-1] == Done(5)
    assert do(parent, Fault(sticky=True))[-1].leaving
    with pytest.raises(ChannelClosedError):
        parent.receive(10.0)


def test_a_worker_without_a_device_says_why_and_leaves(parent: Channel) -> None:
    answer = ask(parent, OpenUnavailable())
    assert isinstance(answer, Unavailable)
    assert "no CUDA-capable device is detected" in answer.message
    with pytest.raises(ChannelClosedError):
        parent.receive(10.0)


def test_silence_is_a_timeout_and_half_a_message_too() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    with pytest.raises(ChannelTimeoutError):
        channel.receive(0.05)
    theirs.sendall(b"tune\x09\0\0\0\0\0\0\0half")
    with pytest.raises(ChannelTimeoutError):
        channel.receive(0.05)
    channel.close()
    theirs.close()


def test_an_end_that_does_not_read_is_a_timeout() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    with pytest.raises(ChannelTimeoutError, match=r"were not taken within 0\.1 s"):
        channel.send(bytes(32 << 20), 0.1)
    channel.close()
    theirs.close()
