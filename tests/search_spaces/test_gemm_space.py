import dataclasses
from functools import cache

import numpy as np
import pytest

from emitters.gemm import GEMM_S8, TERNARY_GEMM_S8
from emitters.gemm_rules import check
from emitters.gemm_schedule import Geometry
from emitters.kernel import schedule_values
from emitters.target import ARCHS, Target
from search_spaces import space_for
from search_spaces.space import SpaceError

space_of = cache(lambda kernel, arch: space_for(kernel, Target.of(arch)))

BOTH = pytest.mark.parametrize("kernel", [TERNARY_GEMM_S8, GEMM_S8], ids=lambda kernel: kernel.id)


@BOTH
@pytest.mark.parametrize("arch", ARCHS)
def test_there_are_tens_of_thousands_of_schedules_with_every_value(kernel, arch):
    space = space_of(kernel.id, arch)
    assert 20_000 <= len(space) <= 120_000
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
        check(schedule, target)
        assert Geometry(schedule).shared.nbytes <= target.arch.shared_per_block


@BOTH
def test_every_constraint_has_a_name_of_its_own_and_a_reason(kernel):
    constraints = space_of(kernel.id, "sm_89").constraints
    assert len({constraint.name for constraint in constraints}) == len(constraints)
    assert all(len(constraint.reason) > 20 for constraint in constraints)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"stride_pad": 0}, "bank-conflicts"),
        ({"tile_m": 32, "tile_n": 64}, "block-area"),
        ({"tile_m": 64, "tile_n": 64, "warps_m": 4}, "warp-area"),
        ({"tile_m": 16, "tile_n": 256, "warps_m": 1, "warps_n": 2}, "warp-shape"),
        ({"tile_m": 64, "tile_n": 64, "warps_m": 1, "warps_n": 1}, "block-warps"),
        ({"fragment_load": "ld.shared"}, "word-loads"),
        ({"stages": 4, "tile_k": 128}, "depth"),
        ({"copy_bytes": 16, "tile_n": 64, "warps_n": 2, "warps_m": 4}, "copies-a-thread"),
        ({"min_blocks": 2, "tile_n": 64, "warps_n": 2}, "occupancy"),
        ({"split_k": 2, "raster": 8}, "split-or-raster"),
    ],
    ids=str,
)
def test_what_is_not_worth_trying_says_why(change, name):
    space = space_of("ternary_gemm_s8", "sm_80")
    with pytest.raises(SpaceError, match=f"constraint {name}: "):
        space.index(schedule_values(TERNARY_GEMM_S8.baseline) | change)
