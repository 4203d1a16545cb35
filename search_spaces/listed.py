"""A search space with its valid schedules listed by somebody else: recorded spaces, those of other tuners."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from emitters.kernel import ParameterValue
from emitters.target import Target
from search_spaces.space import Parameter, Space

_NO_TARGET = Target.of("sm_80")  # a space has one; here nothing is emitted, and no constraint looks at it


@dataclass(frozen=True)
class ListedSpace(Space):
    """A space with its valid set given, in whatever order.

    Attributes:
        rows: Level indices of every valid schedule, shape (valid, parameters), int16.
    """

    rows: NDArray[np.int16] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int16))

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or self.rows.shape[1] != len(self.parameters):
            raise ValueError(f"rows must have shape (valid, {len(self.parameters)}), got {self.rows.shape}")

    @classmethod
    def of(
        cls,
        kernel: str,
        names: Sequence[str],
        values: Sequence[Sequence[ParameterValue]],
        rows: NDArray[np.int16],
    ) -> "ListedSpace":
        """The space of a kernel of which nothing is known but names and levels of its parameters.

        Args:
            kernel: Its name; ``recorded`` takes the place of an empty one.
            names, values: Of each parameter.
            rows: As the attribute.
        """
        return cls(kernel or "recorded", tuple(map(parameter_from, names, values)), (), _NO_TARGET, rows)

    @cached_property
    def levels(self) -> NDArray[np.int16]:
        return np.ascontiguousarray(self.rows, dtype=np.int16)


def parameter_from(name: str, values: Sequence[ParameterValue]) -> Parameter:
    """A parameter of which nothing but name and values is known.

    Positive numbers are sizes (``power``), other numbers are ordered, texts and truth values are neither.
    """
    if any(isinstance(value, bool | str) for value in values):
        return Parameter(name, tuple(values), "nominal", "recorded")
    positive = len(values) > 2 and all(value > 0 for value in values if not isinstance(value, str))
    return Parameter(name, tuple(values), "power" if positive else "ordinal", "recorded")
