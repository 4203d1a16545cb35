"""The queue before a device with several lanes: each candidate once, whichever lane ends when."""

import threading
from pathlib import Path
from typing import Any

from fake_device import FakeDevice

from emitters import kernel_named
from emitters.kernel import schedule_values
from emitters.target import Target
from results.store import TrialStore
from results.trial import Outcome, StudyKey, Trial
from tuner.devices.device import Candidate
from tuner.line import DeviceLine
from tuner.pipeline import BuildJob, Proven, build
from tuner.ptxas import Assembler

LANES, EACH = 4, 50


def candidate() -> Candidate:
    kernel = kernel_named("toy")
    job = BuildJob("toy", schedule_values(kernel.baseline), Target.of("sm_89"), None, Assembler())
    built = build(job).candidate
    assert built is not None
    return built


class FourLanes(FakeDevice):
    lanes = LANES


def test_lanes_mark_measure_and_ring_at_once(tmp_path: Path) -> None:
    """Marks go to one store from all lanes, while the study's own thread adds the rows of what is done."""
    numbers = range(LANES * EACH)
    key = StudyKey("toy", "0" * 64, "64", "sm_89", "fake", "fake", "time", "0" * 64)
    together = threading.Barrier(LANES)

    def meet(schedule: Any) -> None:
        together.wait(30)  # every lane has one at this moment

    built, problem = candidate(), kernel_named("toy").spec.problem(64)
    with TrialStore(tmp_path) as store:

        def mark(number: int) -> None:
            store.append(Trial("s", number, key, built.schedule, Outcome.STARTED, started_at=1.0))

        line = DeviceLine(FourLanes(act=meet), problem, 0, mark)
        for number in numbers:
            line.submit(number, built, None)
        done: list[int] = []
        while len(done) < len(numbers):
            assert line.bell.poll(30), f"only {len(done)} of {len(numbers)} came back"
            for timed in line.collect():
                assert isinstance(timed.result, Proven)
                measured = timed.result.measurement
                row = Trial("s", timed.number, key, built.schedule, Outcome.OK, measurement=measured)
                store.append(row)
                done.append(timed.number)
        assert not line.bell.poll(0)
        line.close()
        assert sorted(done) == list(numbers)
        kept = store.trials("s")
    assert [(row.number, row.outcome) for row in kept] == [(number, Outcome.OK) for number in numbers]
