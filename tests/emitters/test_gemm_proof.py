"""Schedules of the forward GEMM family, run in the simulator."""

import dataclasses

import gemm_proof
import numpy as np
import pytest

from emitters.gemm import GEMM_S8, TERNARY_GEMM_S8
from emitters.gemm_rules import check
from emitters.kernel import EmitError, Inputs
from emitters.target import Target
from results.plan import KernelStep, MemsetStep
from search_spaces import space_for

SM_80 = Target.of("sm_80")
BOTH = pytest.mark.parametrize("kernel", [TERNARY_GEMM_S8, GEMM_S8], ids=lambda kernel: kernel.id)
SMALL = {"tile_m": 32, "tile_n": 64, "warps_m": 1, "warps_n": 2}
PIPELINED = {"stages": 3, "copy_bytes": 16}
WAYS = {
    "decoded": {"decode": "shared", "copy_bytes": 4},
    "packed": {"decode": "register", "copy_bytes": 8},
    "records": {"decode": "register", "weight_layout": "fragment", "copy_bytes": 16},
}


def assert_right(kernel, schedule, problems=None, blocks=None):
    assert gemm_proof.findings(kernel, schedule, SM_80, problems, blocks) == []


def two_problems(kernel, schedule):
    """One row and half an mma of k; partial tiles behind whole ones, and a k that goes round the ring."""
    round_the_ring = (schedule.stages + 2) * schedule.tile_k
    return [
        kernel.spec.problem(1, 64, 16),
        kernel.spec.problem(2 * schedule.tile_m - 7, schedule.tile_n + 64, round_the_ring + 16),
    ]


@BOTH
@pytest.mark.parametrize("shape", ["1x16x16", "128x128x32", "300x272x96"])
def test_the_baseline_is_right(kernel, shape):
    assert_right(kernel, kernel.baseline, [kernel.spec.parse_problem(shape)])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fragment_load", ["ldmatrix", "ld.shared"])
@pytest.mark.parametrize("swizzle", [False, True], ids=["pad", "swizzle"])
@pytest.mark.parametrize("tile_k", [32, 64, 128])
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_every_way_of_b_is_right(way, fragment_load, swizzle, tile_k, stages):
    change = {"fragment_load": fragment_load, "swizzle": swizzle, "tile_k": tile_k, "stages": stages}
    change |= {"stride_pad": 0 if swizzle else 16} | SMALL | WAYS[way]
    schedule = dataclasses.replace(TERNARY_GEMM_S8.baseline, **change)
    assert_right(TERNARY_GEMM_S8, schedule, two_problems(TERNARY_GEMM_S8, schedule))


@pytest.mark.parametrize("fragment_load", ["ldmatrix", "ld.shared"])
@pytest.mark.parametrize("swizzle", [False, True], ids=["pad", "swizzle"])
@pytest.mark.parametrize("tile_k", [32, 64, 128])
@pytest.mark.parametrize(("stages", "copy_bytes"), [(1, 4), (1, 16), (2, 8), (4, 16)])
def test_every_dense_way_is_right(fragment_load, swizzle, tile_k, stages, copy_bytes):
    change = {"fragment_load": fragment_load, "swizzle": swizzle, "tile_k": tile_k, "stages": stages}
    change |= {"stride_pad": 0 if swizzle else 16, "copy_bytes": copy_bytes} | SMALL
    schedule = dataclasses.replace(GEMM_S8.baseline, **change)
    assert_right(GEMM_S8, schedule, two_problems(GEMM_S8, schedule))


@BOTH
@pytest.mark.parametrize(
    "change",
    [
        {"split_k": 2},
        {"split_k": 3},
        {"split_k": 8, "raster": 2},
        {"raster": 3},
        {"raster": 8},
        {"min_blocks": 3},
        {"tile_m": 48, "warps_m": 1},
        {"stride_pad": 48},
        {"tile_m": 16, "tile_n": 128, "warps_m": 1, "warps_n": 4},
        {"tile_m": 16, "tile_n": 16, "warps_m": 1, "warps_n": 1, "copy_bytes": 4},
        {"tile_m": 16, "tile_n": 16, "warps_m": 1, "warps_n": 2, "copy_bytes": 4, "stages": 1},
        {"tile_m": 128, "tile_n": 32, "warps_m": 8, "warps_n": 1, "copy_bytes": 8},
    ],
    ids=str,
)
def test_single_parameters_are_right(kernel, change):
    assert_right(kernel, dataclasses.replace(kernel.baseline, **SMALL | PIPELINED | change))


@pytest.mark.parametrize("warp_n", [32, 64, 128])
@pytest.mark.parametrize("layout", ["plain", "fragment"])
def test_every_width_of_a_warp_decodes_in_registers(warp_n, layout):
    change = {"tile_m": 16, "tile_n": 2 * warp_n, "warps_m": 1, "warps_n": 2, "copy_bytes": 16}
    change |= {"decode": "register", "weight_layout": layout, "stages": 2}
    assert_right(TERNARY_GEMM_S8, dataclasses.replace(TERNARY_GEMM_S8.baseline, **change))


@pytest.mark.parametrize("tile_n", [48, 96, 144])
def test_dense_tiles_need_not_be_powers_of_two(tile_n):
    change = {"tile_m": 96, "tile_n": tile_n, "warps_m": 2, "warps_n": 2, "stages": 2}
    assert_right(GEMM_S8, dataclasses.replace(GEMM_S8.baseline, **change))


@BOTH
def test_schedules_drawn_from_the_space_are_right(kernel):
    space = space_for(kernel.id, SM_80)
    for index in np.random.default_rng(2024).integers(len(space), size=10):
        assert_right(kernel, kernel.schedule(space.values(int(index))))


@BOTH
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_many_schedules_beyond_the_space_are_right(kernel, seed):
    levels = {
        "tile_m": (16, 32, 48, 64, 96, 128, 192, 256),
        "tile_n": (16, 32, 48, 64, 96, 128, 192, 256),
        "tile_k": (32, 64, 128),
        "warps_m": (1, 2, 4, 8),
        "warps_n": (1, 2, 4, 8),
        "stages": (1, 2, 3, 4, 5, 6),
        "stride_pad": (0, 16, 32, 48),
        "swizzle": (False, True),
        "copy_bytes": (4, 8, 16),
        "fragment_load": ("ldmatrix", "ld.shared"),
        "split_k": (1, 2, 3, 4, 8),
        "raster": (1, 2, 3, 8),
        "min_blocks": (1, 2),
        "decode": ("shared", "register"),
        "weight_layout": ("plain", "fragment"),
    }
    rng = np.random.default_rng(seed)
    names = [field.name for field in dataclasses.fields(kernel.schedule_type)]
    tried = 0
    while tried < 100:
        schedule = kernel.schedule({name: levels[name][rng.integers(len(levels[name]))] for name in names})
        try:
            check(schedule, SM_80)
        except EmitError:
            continue
        tried += 1
        assert_right(kernel, schedule)


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way == "records" else pytest.mark.slow) for way in WAYS]
)
def test_the_longest_reduction_of_extremes_does_not_overflow(way):
    """Decoded weights are 64 times the real ones: 64 * 128 * K must stay below 2^31 at the largest K."""
    change = SMALL | {"tile_k": 128, "stages": 2} | WAYS[way]
    schedule = dataclasses.replace(TERNARY_GEMM_S8.baseline, **change)
    kernel = dataclasses.replace(TERNARY_GEMM_S8, inputs=_extremes)
    assert_right(kernel, schedule, [kernel.spec.problem(1, 64, 131056)])


def _extremes(problem, _rng):
    """A is -128 throughout; even columns are -1, odd ones +1."""
    words = np.full(problem["k"] * problem["n"] // 16, 0x66666666, np.uint32)
    return Inputs({"A": np.full((problem["m"], problem["k"]), -128, np.int8), "codes": words})


@BOTH
def test_a_split_zeroes_c_first(kernel):
    schedule = dataclasses.replace(kernel.baseline, split_k=4)
    plan = kernel.emit(schedule, SM_80).plan
    memset, launch = plan.steps
    assert isinstance(memset, MemsetStep)
    assert (memset.buffer, memset.byte, memset.nbytes) == ("C", 0, "4 * m * n")
    assert isinstance(launch, KernelStep)
    assert launch.grid[2] == "4"


@BOTH
@pytest.mark.slow
@pytest.mark.parametrize("shape", ["4096x3456x1280", "4096x1280x3456", "4096x1280x1280"])
def test_the_baseline_is_right_in_every_row_of_the_usual_problems(kernel, shape):
    assert_right(kernel, kernel.baseline, [kernel.spec.parse_problem(shape)])
