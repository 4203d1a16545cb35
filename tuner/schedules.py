"""Schedules as people write them: ``name=value`` on top of the hand-written one, checked by the space."""

from collections.abc import Mapping, Sequence
from typing import Any

from emitters.kernel import Kernel, ParameterValue, schedule_values
from search_spaces.space import Parameter, Space, SpaceError
from tuner.names import hint


def schedule_from(kernel: Kernel[Any], space: Space, settings: Sequence[str]) -> dict[str, ParameterValue]:
    """A valid schedule.

    Args:
        kernel: Whose hand-written schedule has the values that are not set.
        space: For the target.
        settings: As ``tile_m=128``.

    Raises:
        SpaceError: No such parameter or level, or a constraint is broken; the message names it.
    """
    schedule = {**schedule_values(kernel.baseline), **parse_settings(space, settings)}
    space.check(schedule)
    return schedule


def parse_settings(space: Space, settings: Sequence[str]) -> Mapping[str, ParameterValue]:
    """Values by parameter.

    Raises:
        SpaceError: A setting is no ``name=value``, has no such parameter or level, or is given twice.
    """
    parameters = {parameter.name: parameter for parameter in space.parameters}
    values: dict[str, ParameterValue] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise SpaceError(f"a setting is name=value, got {setting!r}")
        if name not in parameters:
            raise SpaceError(f"{space.kernel} has no parameter {name!r}; {hint(name, parameters)}")
        if name in values:
            raise SpaceError(f"{name} must be set once, got {setting!r} again")
        values[name] = _level(parameters[name], text)
    return values


def level_text(value: ParameterValue) -> str:
    """A level as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def schedule_text(schedule: Mapping[str, ParameterValue]) -> str:
    """A schedule as ``--set`` takes it, a setting after the other."""
    return " ".join(f"{name}={level_text(value)}" for name, value in schedule.items())


def _level(parameter: Parameter, text: str) -> ParameterValue:
    for value in parameter.values:
        if level_text(value) == text.lower():
            return value
    known = ", ".join(map(level_text, parameter.values))
    raise SpaceError(f"{parameter.name} must be one of {known}, got {text}")
