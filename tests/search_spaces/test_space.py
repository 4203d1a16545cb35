import itertools

import numpy as np
import pytest

from emitters.target import Target
from search_spaces.space import Constraint, Parameter, Space, SpaceError

SM_80 = Target.of("sm_80")


def new_space(constraints=(), target=SM_80):
    return Space(
        kernel="toy",
        parameters=(
            Parameter("a", (1, 2, 4), "power", "first"),
            Parameter("b", (0, 1, 2, 3), "ordinal", "second"),
            Parameter("c", ("x", "y"), "nominal", "third"),
        ),
        constraints=tuple(constraints),
        target=target,
    )


SUM = Constraint("sum", ("b", "a"), lambda b, a, _: a + b <= 4, "a + b is at most 4")
LETTER = Constraint("letter", ("a", "c"), lambda a, c, _: c == "x" or a > 1, "y needs more than 1")


def test_the_valid_set_is_every_combination_that_keeps_every_constraint_in_order():
    space = new_space((SUM, LETTER))
    combinations = itertools.product(range(3), range(4), range(2))
    wanted = [(a, b, c) for a, b, c in combinations if (1, 2, 4)[a] + b <= 4 and (c == 0 or (1, 2, 4)[a] > 1)]
    assert [tuple(row) for row in space.levels.tolist()] == wanted
    assert len(space) == len(wanted)


def test_a_constraint_is_asked_once_for_each_combination():
    asked = []

    def holds(a, _):
        asked.append(a)
        return True

    assert len(new_space((Constraint("a", ("a",), holds, "none"),))) == 24
    assert asked == [1, 2, 4]


def test_a_constraint_is_not_asked_about_what_an_earlier_one_ruled_out():
    small = Constraint("small", ("a",), lambda a, _: a < 4, "a is below 4")

    def holds(a, b, _):
        assert a < 4
        return True

    assert len(new_space((Constraint("later", ("a", "b"), holds, "none"), small))) == 16


def test_values_and_index_are_inverse():
    space = new_space((SUM, LETTER))
    assert [space.index(space.values(i)) for i in range(len(space))] == list(range(len(space)))


def test_constraints_see_the_target():
    limit = Constraint("threads", ("a",), lambda a, target: a * 600 <= target.arch.threads_per_sm, "fits")
    assert len(new_space((limit,))) == 16  # 1 and 2 of 2048
    assert len(new_space((limit,), Target.of("sm_89"))) == 16  # 1 and 2 of 1536


def test_a_space_without_a_valid_schedule_is_empty():
    space = new_space((Constraint("none", ("a",), lambda a, _: False, "nothing goes"),))
    assert len(space) == 0
    assert space.levels.shape == (0, 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": 4, "b": 3, "c": "x"}, "constraint sum: a \\+ b is at most 4, got b=3, a=4"),
        ({"a": 1, "b": 0, "c": "y"}, "constraint letter"),
        ({"a": 3, "b": 0, "c": "x"}, "a must be one of 1, 2, 4, got 3"),
        ({"a": 1, "b": 0}, "toy needs a value for 'c'"),
    ],
)
def test_a_schedule_outside_says_why(values, message):
    with pytest.raises(SpaceError, match=message):
        new_space((SUM, LETTER)).index(values)


def test_hash_depends_on_levels_constraints_and_the_valid_set():
    assert new_space((SUM,)).hash == new_space((SUM,)).hash
    looser = Constraint("sum", ("b", "a"), lambda b, a, _: a + b <= 5, "a + b is at most 5")
    assert len({new_space(c).hash for c in ((), (SUM,), (looser,), (LETTER,))}) == 4


def test_levels_are_small_integers_in_a_matrix():
    levels = new_space().levels
    assert levels.dtype == np.int16
    assert levels.shape == (24, 3)
    assert levels.flags.c_contiguous


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [((1, 1), "ordinal", "must differ"), ((), "ordinal", "at least one"), ((1,), "log", "kind must be")],
)
def test_an_impossible_parameter_is_refused(values, kind, message):
    with pytest.raises(ValueError, match=message):
        Parameter("a", values, kind, "bad")
