"""Which of the kept trials a person means."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from emitters import KERNELS, UnknownKernelError, kernel_named
from results.comparable import MixedParametersError, RecordedSpace, recorded_spaces
from results.store import TrialStore
from results.trial import Outcome, Trial
from tuner.names import hint
from tuner.task import RequestError


def trials_in(
    out: Path,
    kernel: str | None = None,
    study: str | None = None,
    problem: str | None = None,
    arch: str | None = None,
    device: str | None = None,
    one_study: bool = False,
) -> list[Trial]:
    """Finished trials in a directory.

    Args:
        out: The directory.
        kernel: Only of this one, by id or alias, or as a recording that was replayed calls it.
        study, problem, arch, device: Only of these.
        one_study: Refuse trials of more than one study.

    Raises:
        UnknownKernelError, StoreError: There is no such kernel or directory. The first also names kernels of
            recordings in the directory.
        RequestError: There is no such study, or more than one where one is wanted.
    """
    store = TrialStore(out, read_only=True)
    trials = [trial for trial in store.trials() if trial.outcome is not Outcome.STARTED]
    studies = {trial.study for trial in trials}
    if study is not None and study not in studies:
        known = hint(study, sorted(studies)) if studies else "there are none"
        raise RequestError(f"no study {study!r} in {out}; {known}")
    wanted = None if kernel is None else _kernel_id(kernel, trials)
    kept = [
        trial
        for trial in trials
        if study in (None, trial.study)
        and wanted in (None, trial.key.kernel)
        and problem in (None, trial.key.problem)
        and arch in (None, trial.key.arch)
        and device in (None, trial.key.device)
    ]
    found = sorted({trial.study for trial in kept})
    if one_study and len(found) > 1:
        raise RequestError(f"--study has to name one of the {len(found)} studies, as {found[0]}")
    return kept


def spaces_in(trials: Iterable[Trial]) -> list[RecordedSpace]:
    """A recorded space of each group of comparable trials.

    Raises:
        RequestError: Trials of a group differ in their parameters.
    """
    try:
        return recorded_spaces(trials)
    except MixedParametersError as error:
        raise RequestError(f"{error}; choose a --study") from None


def _kernel_id(name: str, trials: Sequence[Trial]) -> str:
    recorded = {trial.key.kernel for trial in trials}
    if name in recorded:
        return name
    try:
        return kernel_named(name).id
    except UnknownKernelError as error:
        foreign = sorted(kernel for kernel in recorded if kernel not in KERNELS)
        there = f"; recorded there: {', '.join(foreign)}" if foreign else ""
        raise UnknownKernelError(f"{error}{there}") from None
