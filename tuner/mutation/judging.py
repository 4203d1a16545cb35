"""What becomes of one mutant: killed by the gate, equivalent for a reason, missed by the gate, or alive."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from emitters import kernel_named
from emitters.kernel import Problem
from results.trial import Verdict
from tuner.devices.device import Candidate
from tuner.gate import Posed
from tuner.mutation.context import Context
from tuner.mutation.equivalence import reason
from tuner.mutation.mutant import Mutant
from tuner.mutation.problems import MORE_PROBLEMS, more_problems
from tuner.ptxas import AssembleError, Assembler
from tuner.simulator import PtxError, Report

NO_PROBLEM_TELLS = f"{MORE_PROBLEMS} problems do not tell them apart"
WITHIN_BOUND = f"rounds otherwise, within the derived bound on {MORE_PROBLEMS} problems"
_KERNEL_WRONG = "the kernel itself is wrong on one of the other problems"
_SAME_CODE = "ptxas makes the same code of it"
_LONGER = 20  # times the instructions that the kernel itself takes: more is called endless
_FEWEST_STEPS = 1000
_MOST_STEPS = 1 << 24
_EDGE_SEED, _MORE_SEED = 0, 1


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
    """Judges the mutants of one kernel. Picklable; data and right answers are made once in each process.

    Args:
        candidate: The kernel as emitted and assembled; the gate must have found it right.
        assembler: Assembles mutants that live.
    """

    def __init__(self, candidate: Candidate, assembler: Assembler) -> None:
        self.candidate, self.assembler = candidate, assembler
        self.context = Context(candidate.emitted, kernel_named(candidate.kernel).spec)

    def fault_of_kernel(self) -> str:
        """What is wrong with the kernel itself on its edge problems; empty for nothing."""
        return _fault(self._edges)

    def __call__(self, mutant: Mutant | None) -> Judged | str:
        """Judge one mutant; None is the kernel itself, as `fault_of_kernel`."""
        return self.fault_of_kernel() if mutant is None else self.judge(mutant)

    def judge(self, mutant: Mutant) -> Judged:
        """What becomes of a mutant."""
        candidate = replace(self.candidate, emitted=mutant.of(self.candidate.emitted))
        try:
            wrong, rounds = _tried(candidate, self._edges)
            if wrong is not None:
                return Judged(mutant, Fate.KILLED, *_detected(wrong))
            known = self._same_code(candidate) if mutant.plan is None else None
            known = known or reason(self.context, mutant)
            if known is not None:
                return Judged(mutant, Fate.EQUIVALENT, known)
            fault = _fault(self._more)
            if fault:
                return Judged(mutant, Fate.ALIVE, _KERNEL_WRONG, fault)
            wrong, rounds_more = _tried(candidate, self._more)
        except PtxError as error:
            return Judged(mutant, Fate.KILLED, "refused", str(error))
        except AssembleError as error:
            return Judged(mutant, Fate.KILLED, "assemble", str(error))
        if wrong is not None:
            return Judged(mutant, Fate.MISSED, *_detected(wrong))
        return Judged(mutant, Fate.EQUIVALENT, WITHIN_BOUND if rounds or rounds_more else NO_PROBLEM_TELLS)

    def _same_code(self, candidate: Candidate) -> str | None:
        binary = self.assembler.assemble(candidate.emitted.ptx, candidate.emitted.arch)
        return _SAME_CODE if binary.code_hash == self.candidate.binary.code_hash else None

    @cached_property
    def _edges(self) -> tuple["_Trial", ...]:
        kernel = kernel_named(self.candidate.kernel)
        edges = kernel.edge_problems(kernel.schedule(self.candidate.schedule))
        return tuple(self._trials(edges, _EDGE_SEED, _FEWEST_STEPS))

    @cached_property
    def _more(self) -> tuple["_Trial", ...]:
        steps = max(trial.steps for trial in self._edges) // _LONGER
        problems = more_problems(self.candidate, np.random.default_rng(_MORE_SEED))
        return tuple(self._trials(problems, _MORE_SEED, steps))

    def _trials(self, problems: Iterable[Problem], seed: int, steps: int) -> Iterator["_Trial"]:
        for problem in problems:
            yield _Trial.of(self.candidate, Posed(self.candidate, problem, seed), steps)


@dataclass(frozen=True)
class _Trial:
    """A problem that mutants are tried on, and what the kernel makes of it.

    Attributes:
        posed: The problem with data and right answers.
        steps: Instructions a batch of blocks of a mutant may run: `_LONGER` times what the kernel takes, or
            more.
        outputs: Bytes of what the kernel gives.
        verdict: Of the kernel.
    """

    posed: Posed
    steps: int
    outputs: Mapping[str, bytes]
    verdict: Verdict

    @classmethod
    def of(cls, candidate: Candidate, posed: Posed, steps: int) -> "_Trial":
        """Try the kernel itself, with so many steps at first."""
        while True:
            report = posed.run(candidate, step_budget=steps)
            endless = any(fault.kind == "endless" for fault in report.faults)
            if not endless or steps > _MOST_STEPS:
                break
            steps *= 2
        return cls(posed, _LONGER * steps, _outputs(candidate, report), posed.verdict(report))


def _fault(trials: Iterable[_Trial]) -> str:
    """The first fault of the kernel itself; empty for none."""
    wrong = (trial.verdict for trial in trials if not trial.verdict.is_right)
    return next((": ".join(_detected(verdict)) for verdict in wrong), "")


def _outputs(candidate: Candidate, report: Report) -> dict[str, bytes]:
    return {name: report.buffers[name].tobytes() for name in kernel_named(candidate.kernel).spec.outputs}


def _tried(candidate: Candidate, trials: Iterable[_Trial]) -> tuple[Verdict | None, bool]:
    """The first verdict that is not right, and whether any output differs from the kernel's in a bit."""
    differs = False
    for trial in trials:
        report = trial.posed.run(candidate, step_budget=trial.steps)
        verdict = trial.posed.verdict(report)
        if not verdict.is_right:
            return verdict, True
        differs = differs or _outputs(candidate, report) != trial.outputs
    return None, differs


def _detected(verdict: Verdict) -> tuple[str, str]:
    if verdict.fault is not None:
        return verdict.fault, verdict.fault_message
    return "mismatch", verdict.first_bad
