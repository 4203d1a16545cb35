"""Who takes part in the search benchmark, and one run of each: what it evaluates, and how long it thinks.

Ours and Optuna's are asked and told through an Optuna study in memory, so their milliseconds are a user's.
They stop once they have found the optimum: nothing after that changes what is reported.
"""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
import search_kernel_tuner
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial

from search_spaces.listed import ListedSpace
from tuner.devices.recorded import Recording
from tuner.samplers import SAMPLERS
from tuner.samplers.base import Subject, ValidSetSampler

OURS = tuple(SAMPLERS)
OPTUNA_TPE = "optuna-tpe"
KERNEL_TUNER = "kernel-tuner:"


@dataclass(frozen=True)
class Run:
    """What one run did.

    Attributes:
        evaluated: Schedules in order, by their number in the recording.
        ask_tell_ms: Milliseconds of each ask and tell; empty where it was not measured.
    """

    evaluated: list[int]
    ask_tell_ms: list[float]


def contestants() -> tuple[str, ...]:
    """Names of all."""
    theirs = (KERNEL_TUNER + strategy for strategy in search_kernel_tuner.STRATEGIES)
    return (*OURS, OPTUNA_TPE, *theirs)


def run(name: str, recording: Recording, seed: int, budget: int, workers: int = 1) -> Run:
    """One run.

    Args:
        name: Of a contestant.
        recording: Answers, at once.
        seed: Of all randomness.
        budget: Unique evaluations.
        workers: How many trials are in flight, for ours.

    Raises:
        ValueError: Nobody has that name.
    """
    budget = min(budget, len(recording))
    if name.startswith(KERNEL_TUNER):
        return Run(search_kernel_tuner.run(recording, name.removeprefix(KERNEL_TUNER), seed, budget), [])
    if name == OPTUNA_TPE:
        return _run_optuna_tpe(recording, seed, budget)
    if name not in OURS:
        raise ValueError(f"unknown contestant {name!r}; there are {', '.join(contestants())}")
    return _run_ours(name, recording, seed, budget, workers)


def space_of(recording: Recording) -> ListedSpace:
    """The recorded schedules as a search space."""
    return ListedSpace.of(recording.kernel, recording.names, recording.values, recording.levels)


def _run_ours(name: str, recording: Recording, seed: int, budget: int, workers: int) -> Run:
    space = space_of(recording)
    sampler = ValidSetSampler(name, SAMPLERS[name].make(Subject(space)), space, seed, workers)
    study = optuna.create_study(sampler=sampler)
    distributions = {p.name: CategoricalDistribution(p.values) for p in space.parameters}
    evaluated, ask_tell_ms = [], []
    flying: deque[optuna.Trial] = deque()
    best = int(np.nanargmin(recording.times_us))
    for _ in range(budget):
        begun = time.perf_counter()
        trial = study.ask(distributions)
        asked = time.perf_counter()
        flying.append(trial)
        evaluated.append(space.index(trial.params))
        told = 0.0
        if len(flying) == workers:
            first = flying.popleft()
            time_us = float(recording.times_us[evaluated[first.number]])
            told = time.perf_counter()
            if np.isnan(time_us):
                study.tell(first, state=TrialState.PRUNED)
            else:
                study.tell(first, time_us)
            told = time.perf_counter() - told
        ask_tell_ms.append((asked - begun + told) * 1e3)
        if evaluated[-1] == best:
            break
    return Run(evaluated, ask_tell_ms)


def _run_optuna_tpe(recording: Recording, seed: int, budget: int) -> Run:
    """Optuna's own TPE over categoricals; a proposal that is invalid or known becomes the nearest new one.

    It is the snapped schedule that the study remembers. A failure is told as pruned: Optuna ignores failed
    trials, and would propose them again.
    """
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    pairs = list(zip(recording.names, recording.values, strict=True))
    distributions = {name: CategoricalDistribution(values) for name, values in pairs}
    levels = recording.levels.astype(np.int64)
    free = np.ones(len(levels), dtype=np.bool_)
    best = int(np.nanargmin(recording.times_us))
    evaluated, ask_tell_ms = [], []
    for _ in range(budget):
        begun = time.perf_counter()
        trial = study.ask(distributions)
        wanted = _levels_of(trial.params, pairs)
        away = np.abs(levels - wanted).sum(axis=1)
        away[~free] = np.iinfo(np.int64).max
        nearest = int(np.argmin(away))
        time_us = float(recording.times_us[nearest])
        failed = np.isnan(time_us)
        free[nearest] = False
        study.tell(trial, state=TrialState.FAIL)
        study.add_trial(
            create_trial(
                params=recording.schedule(nearest),
                distributions=distributions,
                state=TrialState.PRUNED if failed else TrialState.COMPLETE,
                value=None if failed else time_us,
            )
        )
        ask_tell_ms.append((time.perf_counter() - begun) * 1e3)
        evaluated.append(nearest)
        if nearest == best:
            break
    return Run(evaluated, ask_tell_ms)


def _levels_of(values: Mapping[str, Any], pairs: list[tuple[str, tuple[Any, ...]]]) -> np.ndarray:
    return np.array([levels.index(values[name]) for name, levels in pairs])
