"""Where a schedule lies: its levels as coordinates that a distance makes sense on.

A schedule differs from another by ``min(|difference|, 1)`` in every column. Numbers lie in 0..1, so that
their distance is graded; levels without order are whole numbers apart, so that any two of them differ by 1.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_spaces.space import Parameter

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Coordinates:
    """The map from levels to columns.

    Attributes:
        tables: For each parameter that varies, its position and the columns of each of its levels, shape
            (levels, columns of that parameter), float32.
        owners: The parameter's name of each column.
    """

    tables: tuple[tuple[int, Singles], ...]
    owners: tuple[str, ...]

    @classmethod
    def of(cls, parameters: Iterable[Parameter]) -> "Coordinates":
        """Columns of all parameters with more than one level."""
        tables: list[tuple[int, Singles]] = []
        owners: list[str] = []
        for position, parameter in enumerate(parameters):
            columns = [column for column in _columns(parameter) if np.ptp(column) > 0]
            if columns:
                tables.append((position, np.stack(columns, axis=1).astype(np.float32)))
                owners += [parameter.name] * len(columns)
        return cls(tuple(tables), tuple(owners))

    def __len__(self) -> int:
        return len(self.owners)

    def at(self, levels: NDArray[np.integer]) -> Singles:
        """Coordinates of schedules.

        Args:
            levels: Level indices, shape (schedules, parameters).

        Returns:
            Shape (schedules, columns), float32, rows contiguous.
        """
        if not self.tables:
            return np.zeros((len(levels), 0), dtype=np.float32)
        return np.concatenate([table[levels[:, position]] for position, table in self.tables], axis=1)


def distance(points: Singles, origin: Singles) -> Singles:
    """By column, between each of `points` (n, columns) and `origin` (columns,) or (n, columns); in 0..1."""
    apart: Singles = np.abs(points - origin)
    return np.minimum(apart, np.float32(1), out=apart)


def _columns(parameter: Parameter) -> list[Floats]:
    """A parameter's columns: where its levels lie, and for sizes how often 2 divides them.

    The second is what lets a model tell 96 from 128: warps, sectors, banks and vector loads all care for the
    power of two in a size at least as much as for the size.
    """
    places = np.arange(len(parameter.values), dtype=np.float64)
    if parameter.kind == "nominal":
        return [places]
    numbers = [
        v for v in parameter.values if isinstance(v, int | float) and not isinstance(v, bool) and v > 0
    ]
    if len(numbers) < len(parameter.values):
        return [_scaled(places)]
    sizes = np.array(numbers, dtype=np.float64)
    first = np.log2(sizes) if parameter.kind == "power" else places
    if len(sizes) < 3 or np.any(sizes != np.floor(sizes)):
        return [_scaled(first)]
    twos = np.array([(int(size) & -int(size)).bit_length() - 1 for size in sizes], dtype=np.float64)
    if np.array_equal(twos, np.log2(sizes)):
        return [_scaled(first)]
    return [_scaled(first), _scaled(twos)]


def _scaled(column: Floats) -> Floats:
    spread = np.ptp(column)
    return (column - column.min()) / spread if spread > 0 else np.zeros_like(column)
