"""The spaces of both kernels of the backward pass."""

import dataclasses
from functools import cache

import numpy as np
import pytest

from emitters.gemm_dw import HSLM_DW_S8
from emitters.gemm_dw_schedule import DW_RULES, DwGeometry
from emitters.gemm_dx import HSLM_DX_S8
from emitters.gemm_dx_schedule import DX_RULES, DxGeometry
from emitters.gemm_rules import check_rules
from emitters.kernel import Kernel, schedule_values
from emitters.target import ARCHS, Target
from search_spaces import space_for
from search_spaces.space import SpaceError

space_of = cache(lambda kernel, arch: space_for(kernel, Target.of(arch)))

BOTH = pytest.mark.parametrize("kernel", [HSLM_DX_S8, HSLM_DW_S8], ids=lambda kernel: kernel.id)
RULES = {HSLM_DX_S8.id: DX_RULES, HSLM_DW_S8.id: DW_RULES}
FEW_COLUMNS = {"tile_m": 256, "tile_n": 32, "warps_m": 4, "warps_n": 2}
GEOMETRY = {HSLM_DX_S8.id: DxGeometry, HSLM_DW_S8.id: DwGeometry}


@BOTH
@pytest.mark.parametrize("arch", ARCHS)
def test_there_are_thousands_of_schedules_with_every_value(kernel, arch):
    space = space_of(kernel.id, arch)
    assert 10_000 <= len(space) <= 120_000
    for position, parameter in enumerate(space.parameters):
        assert set(space.levels[:, position].tolist()) == set(range(len(parameter.values))), parameter.name


@BOTH
def test_parameters_are_the_fields_of_the_schedule(kernel):
    space = space_of(kernel.id, "sm_89")
    assert set(space.names) == {field.name for field in dataclasses.fields(kernel.schedule_type)}


@BOTH
@pytest.mark.parametrize("arch", ARCHS)
def test_the_baseline_is_inside(kernel, arch):
    space = space_of(kernel.id, arch)
    values = schedule_values(kernel.baseline)
    assert space.values(space.index(values)) == values


@BOTH
@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_the_emitter_takes_everything_in_the_space(kernel, arch):
    target = Target.of(arch)
    space = space_of(kernel.id, arch)
    for index in np.random.default_rng(0).integers(len(space), size=300):
        schedule = kernel.schedule(space.values(int(index)))
        check_rules(RULES[kernel.id], schedule, target)
        assert GEOMETRY[kernel.id](schedule).shared.nbytes <= target.arch.shared_per_block


@BOTH
def test_every_constraint_has_a_name_of_its_own_and_a_reason(kernel):
    constraints = space_of(kernel.id, "sm_89").constraints
    assert len({constraint.name for constraint in constraints}) == len(constraints)
    assert all(len(constraint.reason) > 20 for constraint in constraints)


@BOTH
def test_every_preference_rules_out_a_neighbour_of_what_is_left(kernel):
    space = space_of(kernel.id, "sm_89")
    rng = np.random.default_rng(1)
    broken = set()
    for index in rng.integers(len(space), size=1500):
        values = space.values(int(index))
        parameter = space.parameters[rng.integers(len(space.parameters))]
        values[parameter.name] = parameter.values[rng.integers(len(parameter.values))]
        for constraint in space.constraints:
            if not constraint.holds(*(values[name] for name in constraint.parameters), space.target):
                broken.add(constraint.name)
                break
    preferences = {constraint.name for constraint in space.constraints} - {r.name for r in RULES[kernel.id]}
    assert preferences <= broken


@pytest.mark.parametrize(
    ("kernel", "change", "name"),
    [
        (HSLM_DX_S8, {"stride_pad": 0}, "bank-conflicts"),
        (HSLM_DX_S8, FEW_COLUMNS | {"copy_bytes": 8}, "copies-a-thread"),
        (HSLM_DX_S8, {"min_blocks": 2, "tile_n": 64, "warps_n": 2}, "occupancy"),
        (HSLM_DW_S8, {"copy_bytes": 16}, "copies-a-thread"),
        (HSLM_DW_S8, {"transpose": "fragment", "copy_bytes": 8}, "copies-a-thread"),
        (HSLM_DW_S8, {"stages": 2}, "transposed-copy"),
        (HSLM_DW_S8, {"tile_m": 32, "tile_n": 64}, "block-area"),
    ],
    ids=lambda value: value.id if isinstance(value, Kernel) else str(value),
)
def test_what_is_not_worth_trying_says_why(kernel, change, name):
    space = space_of(kernel.id, "sm_80")
    with pytest.raises(SpaceError, match=f"constraint {name}: "):
        space.index(schedule_values(kernel.baseline) | change)


def test_narrow_layers_keep_schedules_that_can_serve_them():
    """736 is no multiple of 64: plain codes of a layer that wide cannot be copied by 16 bytes."""
    space = space_of(HSLM_DX_S8.id, "sm_89")
    left = space.serving({"m": 27, "n": 256, "k": 736})
    assert 1000 < len(left) < len(space)
    assert space.serving({"m": 27, "n": 736, "k": 256}) is space
    dw = space_of(HSLM_DW_S8.id, "sm_89")
    assert dw.serving({"m": 256, "n": 736, "rows": 27}) is dw
