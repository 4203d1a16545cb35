"""What was tried, and the space that it is part of: where the two are laid over each other."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from emitters import KERNELS
from emitters.target import ARCHS, Target
from results.comparable import RecordedSpace
from results.trial import Trial
from search_spaces import space_for
from search_spaces.listed import ListedSpace
from search_spaces.space import Space, SpaceError
from tuner.reading import spaces_in


@dataclass(frozen=True)
class Explored:
    """Comparable trials with the space of their kernel.

    Attributes:
        recorded: The trials, one a schedule.
        space: The kernel's valid schedules for the problem; those of a kernel that is not ours are not known,
            and then it holds what was tried and all that differs from it in one parameter.
        is_whole: Whether it is the former.
    """

    recorded: RecordedSpace
    space: Space
    is_whole: bool

    @cached_property
    def inside(self) -> list[tuple[int, Trial]]:
        """Trials in the space with their schedule's number; others are of another version of it."""
        found = []
        for trial in self.recorded.trials:
            try:
                found.append((self.space.index(trial.schedule), trial))
            except SpaceError:
                continue
        return found

    @cached_property
    def tried(self) -> NDArray[np.int64]:
        """Numbers of the schedules that were tried, in the order of `inside`."""
        return np.array([number for number, _ in self.inside], dtype=np.int64)


def explored(trials: Iterable[Trial], objective: str | None = None) -> list[Explored]:
    """Every group of comparable trials with its space.

    Args:
        trials: Finished ones.
        objective: Only of studies that seek this; None for all.

    Raises:
        RequestError: Trials of one group have different parameters.
    """
    wanted = [trial for trial in trials if objective in (None, trial.key.objective)]
    return [_explored(recorded) for recorded in spaces_in(wanted)]


def _explored(recorded: RecordedSpace) -> Explored:
    key = recorded.trials[0].key
    if key.kernel in KERNELS and key.arch in ARCHS:
        space = space_for(key.kernel, Target.of(key.arch))
        if set(space.names) == set(recorded.names):
            sizes = _sizes(key.kernel, key.problem)
            found = Explored(recorded, space.serving(sizes) if sizes else space, True)
            if found.inside:
                return found
    return Explored(recorded, _around(recorded), False)


def _sizes(kernel: str, problem: str) -> dict[str, int]:
    """Of a problem by name; empty where it is not written as the kernel's."""
    try:
        return KERNELS[kernel].spec.parse_problem(problem).sizes
    except ValueError:
        return {}


def _around(recorded: RecordedSpace) -> Space:
    """What was tried, and all that differs from it in one parameter."""
    places = [{value: level for level, value in enumerate(values)} for values in recorded.values]
    tried = np.array(
        [
            [place[trial.schedule[name]] for name, place in zip(recorded.names, places, strict=True)]
            for trial in recorded.trials
        ],
        dtype=np.int16,
    )
    rows = [tried]
    for column, values in enumerate(recorded.values):
        for level in range(len(values)):
            changed = tried.copy()
            changed[:, column] = level
            rows.append(changed)
    kernel, found = recorded.trials[0].key.kernel, np.unique(np.concatenate(rows), axis=0)
    return ListedSpace.of(kernel, recorded.names, recorded.values, found)
