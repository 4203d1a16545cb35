"""Building and proving single schedules in a process that has seen nothing of the run that found them."""

from dataclasses import replace

from emitters.kernel import ParameterValue, Problem
from emitters.target import Target
from results.trial import Outcome, Verdict
from tuner.devices.device import Candidate, Device
from tuner.pipeline import (
    BuildJob,
    Built,
    Failure,
    Halted,
    HaltedError,
    Job,
    ProveJob,
    Proven,
    WholeJob,
    perform,
    verify_on,
)
from tuner.pool import Died, Done, Late, Pool
from tuner.ptxas import Assembler

_LIMIT_S = 1800.0


class Fresh:
    """A process of its own, for one schedule after the other. Used with `with`.

    Args:
        assembler: Assembles them.
    """

    def __init__(self, assembler: Assembler) -> None:
        self._assembler = assembler
        self._pool = Pool(perform, 1, ("tuner.pipeline",))

    def __enter__(self) -> "Fresh":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def build(
        self, kernel: str, schedule: dict[str, ParameterValue], target: Target, problem: Problem
    ) -> Candidate | Failure:
        """Emit and assemble a schedule."""
        sizes = tuple(problem.sizes.values())
        built = self._do(BuildJob(kernel, schedule, target, sizes, self._assembler))
        if isinstance(built, Built) and built.candidate is not None:
            return built.candidate
        assert built.failure is not None
        return built.failure

    def prove(
        self, candidate: Candidate, problem: Problem, seed: int, device: Device | None
    ) -> tuple[Candidate, Verdict] | Failure:
        """Prove a candidate on its edge problems and on the whole problem, every element of it.

        Args:
            candidate: As built.
            problem: The whole one.
            seed: Of the data.
            device: Where the whole problem runs; None simulates every block.
        """
        sizes = tuple(problem.sizes.values())
        edges = self.prove_edges(candidate, problem, seed)
        if isinstance(edges, Failure):
            return edges
        if device is None:
            whole = self._verdict(WholeJob(candidate, sizes, seed))
        else:
            whole = _verdict_of(verify_on(device, candidate, problem, seed))
        if isinstance(whole, Failure):
            return whole
        return candidate, replace(whole, problems=(*edges.problems, *whole.problems))

    def prove_edges(self, candidate: Candidate, problem: Problem, seed: int) -> Verdict | Failure:
        """Prove a candidate on its edge problems."""
        return self._verdict(ProveJob(candidate, tuple(problem.sizes.values()), seed, None))

    def _verdict(self, job: ProveJob | WholeJob) -> Verdict | Failure:
        proven = self._do(job)
        assert isinstance(proven, Proven)
        return _verdict_of(proven)

    def _do(self, job: Job) -> Built | Proven:
        self._pool.submit(0, job, _LIMIT_S)
        while not (reports := self._pool.wait(_LIMIT_S)):
            pass
        match reports[0]:
            case Done(result=Built() | Proven() as result):
                return result
            case Done(result=Halted(message)):
                raise HaltedError(message)
            case Late(limit_s=limit_s):
                return Proven(failure=Failure(Outcome.TIMEOUT, f"it took longer than {limit_s:g} s"))
            case Died(reason=reason):
                return Proven(failure=Failure(Outcome.CRASH, f"the process ended: {reason}"))
            case other:
                raise TypeError(f"no such answer: {other!r}")


def _verdict_of(proven: Proven) -> Verdict | Failure:
    if proven.failure is not None:
        return proven.failure
    assert proven.verdict is not None
    return proven.verdict
