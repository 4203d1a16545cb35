"""What becomes of one mutant: killed by the gate, equivalent for a reason, missed by the gate, or alive."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from emitters import kernel_named
from emitters.kernel import Problem, ProblemError
from results.trial import Verdict
from tuner.devices.device import Candidate
from tuner.gate import prove, prove_on
from tuner.mutation.equivalence import Context, reason
from tuner.mutation.mutant import Mutant
from tuner.ptxas import AssembleError, Assembler
from tuner.simulator import PtxError

STEP_BUDGET = 100_000  # of a batch of blocks: ten times what the edge problems of a usual schedule take
MORE_PROBLEMS = 100
NO_PROBLEM_TELLS = f"{MORE_PROBLEMS} problems do not tell them apart"
_SEED = 1


class Fate(StrEnum):
    """What became of a mutant.

    `MISSED` is one that the gate let through and another problem found wrong: the edge problems lack
    something. `ALIVE` is one that could not be judged.
    """

    KILLED = "killed"
    EQUIVALENT = "equivalent"
    MISSED = "missed"
    ALIVE = "alive"


@dataclass(frozen=True, slots=True)
class Judged:
    """One mutant, and what became of it.

    Attributes:
        mutant: Itself.
        fate: What became of it.
        why: For a killed or missed one the detector (a kind of fault, ``mismatch``, ``refused`` by the
            simulator, ``assemble``, ``timeout``), else the reason.
        detail: For a person.
    """

    mutant: Mutant
    fate: Fate
    why: str
    detail: str = ""


class Judge:
    """Judges the mutants of one kernel. Picklable.

    Args:
        candidate: The kernel as emitted and assembled; the gate must have found it right.
        assembler: Assembles mutants that live.
    """

    def __init__(self, candidate: Candidate, assembler: Assembler) -> None:
        self.candidate, self.assembler = candidate, assembler
        spec = kernel_named(candidate.kernel).spec
        self.context = Context(candidate.emitted, spec)
        self._more = more_problems(candidate, np.random.default_rng(_SEED))

    def fault_of_kernel(self) -> str:
        """What is wrong with the kernel itself, on its edge problems or on others; empty for nothing."""
        for verdict in (prove(self.candidate, 0), prove_on(self.candidate, self._more, _SEED)):
            if not verdict.is_right:
                return ": ".join(_detected(verdict))
        return ""

    def __call__(self, mutant: Mutant) -> Judged:
        """Judge one mutant."""
        candidate = replace(self.candidate, emitted=mutant.of(self.candidate.emitted))
        try:
            verdict = prove(candidate, 0, STEP_BUDGET)
            if not verdict.is_right:
                return Judged(mutant, Fate.KILLED, *_detected(verdict))
            known = self._same_code(candidate) if mutant.plan is None else None
            known = known or reason(self.context, mutant)
            if known is not None:
                return Judged(mutant, Fate.EQUIVALENT, known)
            verdict = prove_on(candidate, self._more, _SEED, step_budget=STEP_BUDGET)
        except PtxError as error:
            return Judged(mutant, Fate.KILLED, "refused", str(error))
        except AssembleError as error:
            return Judged(mutant, Fate.KILLED, "assemble", str(error))
        if not verdict.is_right:
            return Judged(mutant, Fate.MISSED, *_detected(verdict))
        return Judged(mutant, Fate.EQUIVALENT, NO_PROBLEM_TELLS)

    def _same_code(self, candidate: Candidate) -> str | None:
        binary = self.assembler.assemble(candidate.emitted.ptx, candidate.emitted.arch)
        return (
            "ptxas makes the same code of it" if binary.code_hash == self.candidate.binary.code_hash else None
        )


def more_problems(candidate: Candidate, rng: np.random.Generator) -> Sequence[Problem]:
    """Problems drawn at random up to a little more than the largest of the edge problems, along each size."""
    kernel = kernel_named(candidate.kernel)
    edges = kernel.edge_problems(kernel.schedule(candidate.schedule))
    most = {size: max(edge[size] for edge in edges) for size in kernel.spec.sizes}
    steps = {size: int(np.gcd.reduce([edge[size] for edge in edges])) for size in kernel.spec.sizes}
    found: dict[Problem, None] = {}
    for _ in range(20 * MORE_PROBLEMS):
        sizes = [
            int(rng.integers(1, most[size] // steps[size] + 2)) * steps[size] for size in kernel.spec.sizes
        ]
        try:
            problem = kernel.spec.problem(*sizes)
        except ProblemError:
            continue
        if candidate.emitted.plan.is_valid(problem.sizes):
            found[problem] = None
        if len(found) == MORE_PROBLEMS:
            break
    return tuple(found)


def _detected(verdict: Verdict) -> tuple[str, str]:
    if verdict.fault is not None:
        return verdict.fault, verdict.fault_message
    return "mismatch", verdict.first_bad
