"""Which of the kept trials a person means."""

from pathlib import Path

from emitters import kernel_named
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
    one_study: bool = False,
) -> list[Trial]:
    """Finished trials in a directory.

    Args:
        out: The directory.
        kernel: Only of this one, by id or alias.
        study, problem, arch: Only of these.
        one_study: Refuse trials of more than one study.

    Raises:
        UnknownKernelError, StoreError: There is no such kernel or directory.
        RequestError: There is no such study, or more than one where one is wanted.
    """
    store = TrialStore(out, read_only=True)
    trials = [trial for trial in store.trials() if trial.outcome is not Outcome.STARTED]
    studies = {trial.study for trial in trials}
    if study is not None and study not in studies:
        known = hint(study, sorted(studies)) if studies else "there are none"
        raise RequestError(f"no study {study!r} in {out}; {known}")
    wanted = kernel_named(kernel).id if kernel is not None else None
    kept = [
        trial
        for trial in trials
        if study in (None, trial.study)
        and wanted in (None, trial.key.kernel)
        and problem in (None, trial.key.problem)
        and arch in (None, trial.key.arch)
    ]
    found = sorted({trial.study for trial in kept})
    if one_study and len(found) > 1:
        raise RequestError(f"--study has to name one of the {len(found)} studies, as {found[0]}")
    return kept
