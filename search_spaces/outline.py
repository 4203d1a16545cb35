"""What schedules ask of a GPU, in closed form: a search is seeded by it before anything is emitted.

An outline is rough by nature. It orders schedules for a first look; nothing is decided by it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from emitters.kernel import ParameterValue

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Columns:
    """The schedules of a space, a column a parameter.

    Attributes:
        values: Levels of each parameter by name.
        levels: Level indices, shape (schedules, parameters), in the order of `values`.
    """

    values: Mapping[str, tuple[ParameterValue, ...]]
    levels: NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.levels)

    def numbers(self, name: str) -> Floats:
        """Values of a parameter that has numbers or truth values, shape (schedules,)."""
        return np.array(self.values[name], dtype=np.float64)[self._of(name)]

    def are(self, name: str, value: ParameterValue) -> NDArray[np.bool_]:
        """Where a parameter has that value, shape (schedules,)."""
        return np.array([level == value for level in self.values[name]])[self._of(name)]

    def each(self, names: tuple[str, ...], formula: Callable[..., float]) -> Floats:
        """A formula of some parameters, called once for each combination of values that occurs."""
        positions = [list(self.values).index(name) for name in names]
        levels = [self.values[name] for name in names]
        shape = tuple(map(len, levels))
        keys = np.ravel_multi_index(tuple(self.levels[:, p] for p in positions), shape)
        table = np.zeros(int(np.prod(shape)))
        for key in np.flatnonzero(np.bincount(keys, minlength=1)):
            places = np.unravel_index(key, shape)
            arguments: list[Any] = [level[at] for level, at in zip(levels, places, strict=True)]
            table[key] = formula(*arguments)
        return table[keys]

    def _of(self, name: str) -> NDArray[np.int16]:
        return self.levels[:, list(self.values).index(name)]


@dataclass(frozen=True)
class Outline:
    """What one call asks of a GPU, for many schedules.

    Attributes:
        launch: The kernel's launch, by the field names of `tuner.work.Work`; a number, or one a schedule.
        footprint_bytes: Distinct bytes of global memory that the call touches.
        zeroed_bytes: Bytes that a memset before the launch zeroes; 0 where there is none.
    """

    launch: Mapping[str, float | Floats]
    footprint_bytes: float | Floats
    zeroed_bytes: float | Floats = 0.0


Outliner: TypeAlias = Callable[[Columns, Mapping[str, int]], Outline]
"""Called with the schedules and the problem's sizes by name."""
