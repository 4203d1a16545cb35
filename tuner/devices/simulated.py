"""A GPU that is not there: the gate proves, the cost model predicts.

The gate has run the candidate in full on its edge problems; what is added here is that blocks from the middle
of the real problem run without a fault. Their traffic is what the prediction is made from. Nothing here is
measured, and every row says so.
"""

from typing import Any

from emitters import kernel_named
from emitters.gpus import UnknownGpuError, target_named
from emitters.kernel import Kernel, Problem
from emitters.target import Target
from results.trial import Measurement, Source, Verdict
from tuner.cost_model import Bound, Prediction, bound, predict
from tuner.cubin import Binary
from tuner.devices.device import Candidate, DeviceError
from tuner.devices.sampling import operands_for, plan_work
from tuner.work import PlanWork


class SimulatedDevice:
    """The device ``sim:GPU``.

    Args:
        gpu: Name of a GPU in `emitters.gpus`.

    Raises:
        DeviceError: No such GPU.
    """

    source = Source.MODEL
    policy = "model"
    parallel = True

    def __init__(self, gpu: str) -> None:
        try:
            self.target: Target = target_named(gpu)
        except UnknownGpuError as error:
            raise DeviceError(str(error)) from None
        self.name = f"sim:{gpu}"

    def verify(self, candidate: Candidate, problem: Problem, seed: int) -> Verdict:
        """What the gate has shown, which is all that there is without a GPU: right on the edge problems."""
        kernel = kernel_named(candidate.kernel)
        edges = kernel.edge_problems(kernel.schedule(candidate.schedule))
        return Verdict(0, tuple(str(edge) for edge in edges), where="simulator")

    def predict(self, candidate: Candidate, problem: Problem) -> Prediction:
        """Predicted time with a cold L2, and what it is made of.

        Raises:
            CandidateFaultError: A sampled block of the real problem faulted.
        """
        return predict(_work(candidate, problem), self.target, cold=True)

    def measure(self, candidate: Candidate, problem: Problem, best_us: float | None) -> Measurement:
        """The prediction for a cold L2, as a GPU is timed, as a measurement that says it is one; beside it
        that for a warm one.

        Raises:
            CandidateFaultError: A sampled block of the real problem faulted.
        """
        work = _work(candidate, problem)
        prediction = predict(work, self.target, cold=True)
        time_us = float(prediction.time_us)
        gpu = self.target.gpu
        return Measurement(
            time_us=time_us,
            source=self.source,
            times_us=(time_us,),
            policy=self.policy,
            other_us={"warm": float(predict(work, self.target).time_us)},
            bound_us=self.bound(kernel_named(candidate.kernel), problem).time_us,
            breakdown_us={name: float(value) for name, value in prediction.breakdown_us.items()},
            clock_mhz=gpu.clock_mhz.value if gpu else None,
            details={
                "limiter": prediction.limiter,
                "resident_blocks": float(prediction.resident),
                "rounds": float(prediction.rounds),
                **_loop_figures(candidate.binary),
            },
        )

    def bound(self, kernel: Kernel[Any], problem: Problem) -> Bound:
        """The physical bound of the problem on this GPU: what is read comes from DRAM."""
        assert self.target.gpu is not None
        return bound(kernel.demand(problem), self.target.gpu, cold=True)

    def close(self) -> None:
        """Nothing is held."""


def _work(candidate: Candidate, problem: Problem) -> PlanWork:
    operands = operands_for(kernel_named(candidate.kernel), candidate.emitted, problem)
    return plan_work(candidate.emitted, candidate.binary, problem, operands)


def _loop_figures(binary: Binary) -> dict[str, float]:
    """What a person asks first about the main loop of the main entry, as far as there is one with mma's."""
    loop = binary.functions[0].code.loop
    if loop is None or loop.instructions_per_mma is None:
        return {}
    return {
        "loop_instructions": float(loop.instructions),
        "loop_mma": float(loop.mma),
        "loop_instructions_per_mma": loop.instructions_per_mma,
    }
