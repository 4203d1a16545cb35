"""Promotion: the best trial of each kernel, arch and problem, proven anew in a fresh process, is pinned.

Where the fastest of a study were timed again side by side, the best is whom that final chose.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from emitters import kernel_named
from emitters.kernel import Kernel, Problem
from emitters.target import Target
from results.analysis import Ranking, time_of, winners
from results.entry import Contract, Limit, Operand
from results.errors import FrozenError
from results.finals import Final, finals_in
from results.frozen import FrozenEntry, RunnerUp, freeze
from results.trial import Trial, Verdict
from tuner.devices import device_named
from tuner.devices.device import Candidate, Device, DeviceError
from tuner.devices.replay import is_replay
from tuner.fresh import Fresh
from tuner.pipeline import Failure
from tuner.ptxas import Assembler
from tuner.schedules import schedule_text

SEED = 20_231  # other data than a run has had, unless it was given this very seed
_TRIES = 5


@dataclass(frozen=True)
class Promotion:
    """What became of one kernel, arch and problem.

    Attributes:
        best: The trial that was to be pinned last.
        place: Where it is pinned; None where it is not.
        why_not: Why nothing was pinned; empty where something was.
        is_failed: Whether that is a defect; a better entry that stays is none.
    """

    best: Trial
    place: Path | None
    why_not: str = ""
    is_failed: bool = False

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        key = self.best.key
        return {
            "kernel": key.kernel,
            "arch": key.arch,
            "problem": key.problem,
            "study": self.best.study,
            "number": self.best.number,
            "time_us": time_of(self.best),
            "pinned": None if self.place is None else str(self.place),
            "why_not": self.why_not,
        }


def promote_best(
    out: Path, trials: Sequence[Trial], assembler: Assembler, say: Callable[[str], None]
) -> list[Promotion]:
    """Pin the best of each kernel, arch and problem.

    A candidate that does not prove right again is passed over, and the next one is tried.

    Args:
        out: Directory of the frozen set.
        trials: Finished ones; those of another meaning of their kernel are left out.
        assembler: Assembles anew.
        say: Is given one line about each thing that happens.
    """
    ours = [trial for trial in trials if not is_replay(trial.key.device)]
    if len(ours) < len(trials):
        say(f"{len(trials) - len(ours)} trials are of recordings, and are left out")
    current = [trial for trial in ours if _means_the_same(trial)]
    if len(current) < len(ours):
        say(f"{len(ours) - len(current)} trials are of another version of their kernel, and are left out")
    found = winners(current)
    if not found:
        say("nothing to promote: no trial has a time; `tune run` makes some")
    finals = finals_in(out)
    with Fresh(assembler) as fresh:
        return [_promote(out, as_final_says(ranking, finals, say), fresh, say) for ranking in found]


def as_final_says(ranking: Ranking, finals: Mapping[str, Final], say: Callable[[str], None]) -> Ranking:
    """The ranking with its best study's finalists in the order of their final, whom it chose first.

    A final of which the best trial was none is out of date, and changes nothing: a faster one came after it.
    """
    study = ranking.best.study
    final = finals.get(study)
    if final is None or ranking.best.number not in final.numbers:
        return ranking
    say(f"{study}: {final}")
    finalists = [trial for trial in ranking.trials if trial.study == study and trial.number in final.numbers]
    finalists.sort(key=lambda trial: (trial.number != final.chosen, final.median_us(trial.number)))
    others = [trial for trial in ranking.trials if trial not in finalists]
    return Ranking((*finalists, *others))


def contract_of(kernel: Kernel[Any]) -> Contract:
    """What a frozen entry says of its kernel."""
    spec = kernel.spec
    return Contract(
        kernel=spec.id,
        aliases=kernel.aliases,
        version=spec.version,
        computes=spec.computes,
        semantic_hash=spec.semantic_hash,
        buffers=tuple(Operand(b.name, b.role, b.dtype, b.shape, b.layout) for b in spec.buffers),
        sizes=spec.sizes,
        scalars=spec.scalars,
        limits=tuple(Limit(limit.size, limit.formula, limit.rule) for limit in spec.limits),
    )


def prepack_of(kernel: Kernel[Any], candidate: Candidate) -> str | None:
    """Name of the function that brings inputs into the order a schedule loads them in; None for as given."""
    schedule = kernel.schedule(candidate.schedule)
    problem = kernel.edge_problems(schedule)[0]
    given = kernel.inputs(problem, np.random.default_rng(0))
    prepared = kernel.prepare(schedule, problem, given)
    if all(prepared.buffers[name] is array for name, array in given.buffers.items()):
        return None
    return f"{kernel.prepare.__module__}.{kernel.prepare.__qualname__}"


def _means_the_same(trial: Trial) -> bool:
    return kernel_named(trial.key.kernel).spec.semantic_hash == trial.key.semantic_hash


def _promote(out: Path, ranking: Ranking, fresh: Fresh, say: Callable[[str], None]) -> Promotion:
    key = ranking.best.key
    what = f"{key.kernel} {key.problem} on {key.arch}"
    kernel = kernel_named(key.kernel)
    problem = kernel.spec.parse_problem(key.problem)
    why_not = ""
    for place, trial in enumerate(ranking.trials[:_TRIES]):
        assert trial.measurement is not None
        word = trial.measurement.source.word
        say(f"{what}: proving trial {trial.number} anew, {time_of(trial):.2f} us {word} by {key.device}")
        proven = _prove(trial, problem, fresh, say)
        if isinstance(proven, Failure):
            why_not = f"trial {trial.number} is not right: {proven.message}"
            say(f"{what}: {why_not}")
            continue
        candidate, verdict = proven
        runner_up = ranking.trials[place + 1] if place + 1 < len(ranking.trials) else None
        entry = _entry(kernel, problem, trial, candidate, verdict, runner_up)
        try:
            pinned = freeze(out, entry)
        except FrozenError as error:
            say(f"{what}: kept as it is: {error}")
            return Promotion(trial, None, str(error))
        say(f"{what}: pinned at {pinned}, {time_of(trial):.2f} us {word}, {_margin(entry.margin)}")
        say(f"  {schedule_text(trial.schedule)}")
        return Promotion(trial, pinned)
    return Promotion(ranking.best, None, why_not, is_failed=True)


def _margin(margin: float | None) -> str:
    if margin is None:
        return "alone"
    if margin < 0:
        return f"{-100 * margin:.2f} % behind the next where each was timed alone"
    return f"{100 * margin:.2f} % before the next"


def _prove(
    trial: Trial, problem: Problem, fresh: Fresh, say: Callable[[str], None]
) -> tuple[Candidate, Verdict] | Failure:
    candidate = fresh.build(trial.key.kernel, dict(trial.schedule), Target.of(trial.key.arch), problem)
    if isinstance(candidate, Failure):
        return candidate
    for name, now, then in (
        ("PTX", candidate.emitted.source_hash, trial.source_hash),
        ("machine code", candidate.binary.code_hash, trial.code_hash),
    ):
        if now != then:
            made = trial.versions.get("ptx-tuner"), trial.versions.get("ptxas")
            return Failure(
                trial.outcome,
                f"its {name} is not what was timed, by ptx-tuner {made[0]} with ptxas {made[1]}; tune again",
            )
    device = _device_of(trial, say)
    try:
        return fresh.prove(candidate, problem, SEED, device)
    finally:
        if device is not None:
            device.close()


def _device_of(trial: Trial, say: Callable[[str], None]) -> Device | None:
    """The device that measured a trial; None for a predicted one, and where that device is not here."""
    assert trial.measurement is not None
    if not trial.measurement.source.is_measured:
        return None
    try:
        device = device_named(trial.key.device)
    except DeviceError as error:
        say(f"  without {trial.key.device} the whole problem is simulated instead ({error})")
        return None
    if device.name != trial.key.device:
        say(f"  {device.name} is not {trial.key.device}: the whole problem is simulated instead")
        device.close()
        return None
    return device


def _entry(
    kernel: Kernel[Any],
    problem: Problem,
    trial: Trial,
    candidate: Candidate,
    verdict: Verdict,
    runner_up: Trial | None,
) -> FrozenEntry:
    assert trial.measurement is not None
    second = None
    if runner_up is not None:
        second = RunnerUp(runner_up.study, runner_up.number, runner_up.schedule, time_of(runner_up))
    return FrozenEntry(
        contract=contract_of(kernel),
        arch=trial.key.arch,
        device=trial.key.device,
        sizes=problem.sizes,
        schedule=trial.schedule,
        ptx=candidate.emitted.ptx,
        cubin=candidate.binary.cubin,
        plan=candidate.emitted.plan,
        source_hash=candidate.emitted.source_hash,
        code_hash=candidate.binary.code_hash,
        resources=candidate.resources,
        verdict=verdict,
        measurement=trial.measurement,
        study=trial.study,
        number=trial.number,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=trial.versions,
        runner_up=second,
        prepack=prepack_of(kernel, candidate),
    )
