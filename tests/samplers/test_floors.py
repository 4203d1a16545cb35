"""Valleys of a prediction: what is a floor, and in which order floors are tried."""

import numpy as np

from emitters.target import Target
from search_spaces.space import Parameter, Space
from tuner.samplers.floors import floors, in_turn
from tuner.samplers.neighbourhood import Neighbourhood

LEVELS = 12


def space() -> Space:
    sizes = tuple(Parameter(name, tuple(range(1, LEVELS + 1)), "power", "a size") for name in "ab")
    return Space("grid", sizes, (), Target.of("sm_89"))


def floors_of(values: np.ndarray, most: int = 8) -> list[tuple[int, ...]]:
    """Floors as levels, given values of shape (LEVELS, LEVELS)."""
    grid = space()
    levels = grid.levels
    found = floors(Neighbourhood(levels), values[levels[:, 0], levels[:, 1]].astype(np.float32), most)
    return [tuple(map(int, levels[schedule])) for schedule in found]


def test_a_floor_is_faster_than_whatever_one_change_makes_of_it() -> None:
    a, b = np.indices((LEVELS, LEVELS))
    values = 9.0 + abs(a - 2) + abs(b - 3)
    values[2, 3], values[2, 7], values[8, 5], values[8, 3] = 1.0, 2.0, 3.0, 4.0
    # (2, 7) is in the row of (2, 3), and (8, 3) in that of (8, 5).
    assert floors_of(values) == [(2, 3), (8, 5)]
    assert floors_of(values, most=1) == [(2, 3)]


def test_of_a_plateau_one_schedule_is_a_floor() -> None:
    values = np.full((LEVELS, LEVELS), 9.0)
    values[4, :3] = 1.0
    assert floors_of(values) == [(4, 0)]


def test_slow_valleys_are_left_out() -> None:
    values = np.arange(LEVELS * LEVELS, dtype=np.float64).reshape(LEVELS, LEVELS) + 100
    values[0, :] = np.arange(LEVELS)
    values[11, 11] = 50.0  # below its neighbours but one: 11, at (0, 11)
    values[0, 11] = 60.0
    # A tenth of 144 schedules is 15; 50 is among them, and 60 is no floor.
    assert floors_of(values) == [(0, 0), (11, 11)]
    values[1, :11] = np.arange(11) + 20  # 26 schedules are faster than 50 now
    assert floors_of(values) == [(0, 0)]


def test_sources_take_turns() -> None:
    assert in_turn([[5, 3, 1], [3, 9], []]).tolist() == [5, 3, 9, 1]
    assert in_turn([]).tolist() == []
