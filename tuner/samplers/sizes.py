"""What is believed of any kernel's schedules from their sizes alone: a power of two is rarely a bad choice.

Warps, sectors and banks come in powers of two, and so do the shifts that replace divisions. That is a reason
for extents that reach a warp, and none for what one thread does: 3 results a thread are as natural as 4. The
hint is like any other: evidence makes it fade, or turn round.
"""

import numpy as np

from search_spaces.space import Parameter, Space
from tuner.samplers.coordinates import Floats
from tuner.samplers.hints import Hint

_WEIGHT, _SPREAD = 0.8, 0.4
_WARP = 32


def powers_of_two(space: Space, weight: float = _WEIGHT, spread: float = _SPREAD) -> tuple[Hint, ...]:
    """One hint, high for schedules with many extents that are no powers of two; none where all have as many.

    Args:
        space: Whose valid set is looked at.
        weight, spread: Of the hint.
    """
    odd = np.zeros(len(space))
    for position, parameter in enumerate(space.parameters):
        odd += _is_odd(parameter)[space.levels[:, position]]
    scale = float(odd.std()) if len(odd) else 0.0
    if scale == 0:
        return ()
    values = ((odd - odd.mean()) / scale).astype(np.float32)
    return (Hint("powers of two", values, weight, spread),)


def _is_odd(parameter: Parameter) -> Floats:
    """1 for each level that is a whole size and no power of two, else 0; shape (levels,).

    Parameters that are no sizes, have fewer than three, or never reach a warp tell nothing.
    """
    sizes = [int(v) for v in parameter.values if isinstance(v, int | float) and v >= 1 and v == int(v)]
    if parameter.kind != "power" or not 3 <= len(sizes) == len(parameter.values) or max(sizes) < _WARP:
        return np.zeros(len(parameter.values))
    return np.array([size & (size - 1) != 0 for size in sizes], dtype=np.float64)
