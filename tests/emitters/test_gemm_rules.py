import dataclasses

import pytest

from emitters.gemm import GEMM_S8, TERNARY_GEMM_S8
from emitters.gemm_rules import rules
from emitters.gemm_schedule import DenseSchedule, GemmSchedule, Geometry
from emitters.kernel import EmitError
from emitters.target import Target

SM_89 = Target.of("sm_89")
REGISTER = {"decode": "register"}
FRAGMENT = {"decode": "register", "weight_layout": "fragment", "copy_bytes": 16}


def ternary(**change):
    return dataclasses.replace(TERNARY_GEMM_S8.baseline, **change)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"tile_k": 48}, "k-step: tile_k must be 32, 64 or 128, got tile_k=48"),
        ({"stages": 0}, "stages: "),
        ({"stages": 7}, "stages: "),
        ({"split_k": 0}, "split: "),
        ({"raster": 0}, "raster: "),
        ({"min_blocks": 0}, "min-blocks: "),
        ({"stride_pad": 8}, "pad: stride_pad must be a multiple of 16"),
        ({"copy_bytes": 2}, "copy-width: "),
        ({"fragment_load": "ld.global"}, "fragment-load: "),
        ({"warps_m": 3, "tile_m": 96}, "warps: "),
        ({"tile_m": 40}, "warp-tile-m: .* got tile_m=40, warps_m=2"),
        ({"tile_n": 16}, "warp-tile-n: "),
        ({"warps_m": 8, "warps_n": 8, "tile_m": 128, "tile_n": 64}, "threads: "),
        ({"swizzle": True}, "pad-or-swizzle: "),
        ({"tile_m": 256, "tile_n": 256, "warps_m": 2, "warps_n": 2}, "registers: "),
        ({"stages": 6, "tile_k": 128}, "shared-memory: "),
        ({"min_blocks": 4}, "resident-blocks: "),
        ({"decode": "global"}, "decode: "),
        ({"weight_layout": "tiled"}, "weight-layout: "),
        ({"tile_n": 96, "warps_n": 1}, "code-rows: "),
        ({"weight_layout": "fragment"}, "fragment-decode: "),
        ({**FRAGMENT, "copy_bytes": 8}, "fragment-copy: "),
        ({**FRAGMENT, "tile_n": 32, "warps_n": 4}, "fragment-warp: "),
        ({**REGISTER, "tile_n": 64}, "packed-warp: "),
        ({**REGISTER, "tile_n": 32, "warps_n": 1, "copy_bytes": 16}, "code-copy: "),
    ],
    ids=str,
)
def test_a_broken_rule_is_named_with_its_reason(change, rule):
    with pytest.raises(EmitError, match=rule):
        TERNARY_GEMM_S8.emit(ternary(**change), SM_89)


def test_every_rule_has_a_schedule_here_that_breaks_it():
    marks = test_a_broken_rule_is_named_with_its_reason.pytestmark
    broken = {case[1].split(":")[0] for case in marks[0].args[1]}
    assert broken == {rule.name for rule in rules(GemmSchedule)}


@pytest.mark.parametrize("kernel", [TERNARY_GEMM_S8, GEMM_S8], ids=lambda kernel: kernel.id)
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_the_baseline_keeps_every_rule(kernel, arch):
    kernel.emit(kernel.baseline, Target.of(arch))


def test_a_dense_schedule_has_no_parameters_of_codes():
    with pytest.raises(EmitError, match="gemm_s8 has no parameter 'decode'"):
        GEMM_S8.schedule({**dataclasses.asdict(TERNARY_GEMM_S8.baseline)})
    assert "decode" not in {name for rule in rules(DenseSchedule) for name in rule.parameters}


def test_the_limit_of_shared_memory_is_that_of_the_arch():
    schedule = ternary(stages=5, tile_k=128, **FRAGMENT)
    nbytes = Geometry(schedule).shared.nbytes
    assert 99 * 1024 < nbytes <= 163 * 1024
    TERNARY_GEMM_S8.emit(schedule, Target.of("sm_80"))
    with pytest.raises(EmitError, match="shared-memory"):
        TERNARY_GEMM_S8.emit(schedule, SM_89)


def test_shared_bytes_of_the_baseline_are_two_tiles_of_padded_rows():
    # As published for the hand-written kernel: 128 rows of 48 bytes, twice.
    assert Geometry(TERNARY_GEMM_S8.baseline).shared.nbytes == 2 * 128 * 48


@pytest.mark.parametrize(
    ("layout", "copy_bytes", "valid"),
    [("plain", 4, "1"), ("plain", 8, "n % 32 == 0"), ("plain", 16, "n % 64 == 0"), ("fragment", 16, "1")],
)
def test_wide_copies_of_code_rows_carry_their_alignment(layout, copy_bytes, valid):
    schedule = ternary(decode="register", warps_n=1, warps_m=4, weight_layout=layout, copy_bytes=copy_bytes)
    assert TERNARY_GEMM_S8.emit(schedule, SM_89).plan.valid == valid
