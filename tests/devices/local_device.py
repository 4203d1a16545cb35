"""The jobs of a CUDA device on a stand-in GPU in this process, without a worker."""

from collections.abc import Sequence
from typing import Any

from cuda_standin import OpenStandIn, StandInGpu

from emitters.kernel import Problem
from results.trial import Measurement, Verdict
from tuner.devices.device import Candidate
from tuner.devices.errors import CandidateFaultError
from tuner.devices.jobs import Compare, Finalists, Measure, Verify
from tuner.devices.stopwatch import TimingPolicy
from tuner.devices.timing import StoppingRule

QUICK = TimingPolicy(
    rule=StoppingRule(most_repeats=20), group_us=60.0, warmup_ms=0.1, budget_s=5.0, warm_s=1.0, energy_s=0.01
)
ROUNDS = 40  # fewer than a device takes by itself: the stand-in's noise is small


class LocalDevice:
    """The same jobs on a bench of this process, without a worker: most of what is tested is in them."""

    def __init__(self, policy: TimingPolicy, gpu: StandInGpu) -> None:
        self._policy = policy
        self._bench = OpenStandIn(gpu)(lambda name, limit_s: None)

    def run(self, job: Any) -> Any:
        return job.run(self._bench)

    def verify(self, candidate: Candidate, problem: Problem, seed: int) -> Verdict:
        try:
            verdict: Verdict = self.run(Verify(candidate, problem, seed))
        except CandidateFaultError as fault:
            return Verdict(0, (str(problem),), fault=fault.kind, fault_message=str(fault), where="device")
        return verdict

    def measure(self, candidate: Candidate, problem: Problem, best_us: float | None) -> Measurement:
        measured: Measurement = self.run(Measure(candidate, problem, best_us, self._policy))
        return measured

    def compare(self, candidates: Sequence[Candidate], problem: Problem, seed: int) -> Finalists:
        finalists: Finalists = self.run(Compare(tuple(candidates), problem, ROUNDS, seed, self._policy))
        return finalists


def local(policy: TimingPolicy = QUICK, **gpu: Any) -> LocalDevice:
    """A fresh stand-in GPU in this process."""
    return LocalDevice(policy, StandInGpu(**gpu))
