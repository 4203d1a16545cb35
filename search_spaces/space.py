"""A search space: parameters, named constraints with reasons, and the enumerated set of valid schedules.

The valid set is built a parameter at a time; a constraint is asked as soon as its last parameter has a value,
so impossible branches are never entered. What comes out is a matrix of level indices that samplers work on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from emitters.kernel import ParameterValue, canonical_json
from emitters.target import Target
from results.expression import evaluate
from search_spaces.outline import Columns, Outliner


class SpaceError(ValueError):
    """A schedule outside its space. The message names the constraint and gives its reason."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One schedule parameter.

    Attributes:
        name: A field of the kernel's schedule type.
        values: Levels, in order.
        kind: ``power`` (compare by log2), ``ordinal`` (by index) or ``nominal`` (equal or not).
        meaning: For a person.
    """

    name: str
    values: tuple[ParameterValue, ...]
    kind: str
    meaning: str

    def __post_init__(self) -> None:
        if self.kind not in ("power", "ordinal", "nominal"):
            raise ValueError(f"kind must be power, ordinal or nominal, got {self.kind!r}")
        if len(set(self.values)) != len(self.values) or not self.values:
            raise ValueError(f"the levels of {self.name} must differ and be at least one, got {self.values}")


@dataclass(frozen=True, slots=True)
class Constraint:
    """A named rule.

    Attributes:
        name: Short and stable, e.g. ``shared-memory``.
        parameters: The parameters it looks at.
        holds: Called with their values in that order and the target.
        reason: Why a schedule that breaks it is ruled out.
    """

    name: str
    parameters: tuple[str, ...]
    holds: Callable[..., bool]
    reason: str


@dataclass(frozen=True, slots=True)
class Service:
    """Which problems a schedule may serve, where that is not all.

    Attributes:
        parameters: The parameters that decide it.
        formula: Called with their values in that order: what the plan of such a schedule has as `valid`.
    """

    parameters: tuple[str, ...]
    formula: Callable[..., str]


@dataclass(frozen=True)
class Space:
    """The schedules of one kernel for one target.

    Attributes:
        kernel: Kernel id.
        parameters: In the order in which the enumeration binds them.
        constraints: All must hold.
        target: Its limits are what constraints look at.
        service: Which problems its schedules may serve; None where every one serves every problem.
        outliner: What its schedules ask of a GPU, in closed form; None where nobody has written that.
    """

    kernel: str
    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...]
    target: Target
    service: Service | None = field(default=None, kw_only=True)
    outliner: Outliner | None = field(default=None, kw_only=True)

    def serving(self, sizes: Mapping[str, int]) -> "Space":
        """This space without the schedules that cannot serve a problem; itself where all can.

        Args:
            sizes: The problem's, by name.
        """
        if self.service is None:
            return self
        formula = self.service.formula
        levels = [self.parameters[self.names.index(name)].values for name in self.service.parameters]
        if all(evaluate(formula(*values), sizes) for values in product(*levels)):
            return self
        problem = "x".join(map(str, sizes.values()))
        rule = Constraint(
            "problem",
            self.service.parameters,
            lambda *values: bool(evaluate(formula(*values[:-1]), sizes)),
            f"such a schedule cannot serve the problem {problem}, whose rows are not aligned for it",
        )
        return replace(self, constraints=(*self.constraints, rule))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @cached_property
    def levels(self) -> NDArray[np.int16]:
        """Every valid schedule as level indices, shape (valid, parameters), in lexicographic order."""
        rows = np.zeros((1, 0), dtype=np.int16)
        for depth in range(len(self.parameters)):
            rows = self._extended(rows, depth)
        return np.ascontiguousarray(rows)

    def __len__(self) -> int:
        return len(self.levels)

    @property
    def columns(self) -> Columns:
        """Every valid schedule, a column a parameter."""
        return Columns({parameter.name: parameter.values for parameter in self.parameters}, self.levels)

    def values(self, index: int) -> dict[str, ParameterValue]:
        """Valid schedule number `index` by parameter name."""
        row = self.levels[index]
        return {p.name: p.values[level] for p, level in zip(self.parameters, row, strict=True)}

    def index(self, values: Mapping[str, ParameterValue]) -> int:
        """Number of a valid schedule.

        Raises:
            SpaceError: A value is no level, or a constraint is broken (the message names it).
        """
        key = tuple(self._level(parameter, values) for parameter in self.parameters)
        found = self._numbers.get(key)
        if found is None:
            self.check(values)
            raise AssertionError("a schedule that keeps every constraint is in the valid set")
        return found

    def check(self, values: Mapping[str, ParameterValue]) -> None:
        """Refuse a schedule that is not valid, without enumerating those that are.

        Raises:
            SpaceError: A value is no level, or a constraint is broken (the message names it).
        """
        for parameter in self.parameters:
            self._level(parameter, values)
        for constraint in self.constraints:
            arguments = [values[name] for name in constraint.parameters]
            if not constraint.holds(*arguments, self.target):
                given = ", ".join(f"{name}={values[name]}" for name in constraint.parameters)
                raise SpaceError(f"constraint {constraint.name}: {constraint.reason}, got {given}")

    @cached_property
    def hash(self) -> str:
        """blake3 of parameters, levels, constraint names and the valid set, hex."""
        named = [[p.name, list(p.values), p.kind] for p in self.parameters]
        head = canonical_json([self.kernel, named, [c.name for c in self.constraints]])
        return blake3(head.encode() + self.levels.tobytes()).hexdigest()

    @cached_property
    def _numbers(self) -> dict[tuple[int, ...], int]:
        return {tuple(row): number for number, row in enumerate(self.levels.tolist())}

    def _level(self, parameter: Parameter, values: Mapping[str, ParameterValue]) -> int:
        if parameter.name not in values:
            raise SpaceError(f"{self.kernel} needs a value for {parameter.name!r}")
        try:
            return parameter.values.index(values[parameter.name])
        except ValueError:
            known = ", ".join(map(str, parameter.values))
            raise SpaceError(
                f"{parameter.name} must be one of {known}, got {values[parameter.name]}"
            ) from None

    @cached_property
    def _due(self) -> tuple[tuple[tuple[Constraint, tuple[int, ...]], ...], ...]:
        """For each depth, the constraints whose last parameter is bound there, with their positions."""
        due: list[list[tuple[Constraint, tuple[int, ...]]]] = [[] for _ in self.parameters]
        for constraint in self.constraints:
            positions = tuple(self.names.index(name) for name in constraint.parameters)
            due[max(positions)].append((constraint, positions))
        return tuple(tuple(constraints) for constraints in due)

    def _extended(self, rows: NDArray[np.int16], depth: int) -> NDArray[np.int16]:
        """Every row with each level of the next parameter, less what a constraint due there rules out.

        A constraint is asked once for each combination of values that occurs, not once a row.
        """
        count = len(self.parameters[depth].values)
        last = np.tile(np.arange(count, dtype=np.int16), len(rows))
        rows = np.column_stack([np.repeat(rows, count, axis=0), last])
        for constraint, positions in self._due[depth]:
            values = [self.parameters[p].values for p in positions]
            shape = tuple(map(len, values))
            keys = np.ravel_multi_index(tuple(rows[:, p] for p in positions), shape)
            holds = np.zeros(int(np.prod(shape)), dtype=bool)
            asked = np.flatnonzero(np.bincount(keys, minlength=1))
            for key, levels in zip(asked, np.column_stack(np.unravel_index(asked, shape)), strict=True):
                arguments = [value[level] for value, level in zip(values, levels, strict=True)]
                holds[key] = constraint.holds(*arguments, self.target)
            rows = rows[holds[keys]]
        return rows
