"""What ptxas makes of the forward GEMM family: it accepts everything, and the main loops are short."""

import numpy as np
import pytest

from emitters.gemm import GEMM_S8, TERNARY_GEMM_S8
from emitters.target import ARCHS, Target
from search_spaces import space_for
from tuner.ptxas import Assembler

BOTH = pytest.mark.parametrize("kernel", [TERNARY_GEMM_S8, GEMM_S8], ids=lambda kernel: kernel.id)

# 128x128x64 with warp tiles of 64x64, as the best known int8 kernels have it.
LONG = {
    "tile_m": 128,
    "tile_n": 128,
    "tile_k": 64,
    "warps_m": 2,
    "warps_n": 2,
    "stages": 3,
    "stride_pad": 16,
    "swizzle": False,
    "copy_bytes": 16,
    "fragment_load": "ldmatrix",
    "split_k": 1,
    "raster": 1,
    "min_blocks": 1,
}


@pytest.fixture(scope="module")
def assembler(tmp_path_factory):
    return Assembler(cache_dir=tmp_path_factory.mktemp("cubins"))


def covering_sample(space, seed, extra):
    """Random schedules that together hold every value of every parameter, and `extra` more."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(space))
    missing = {(p, level) for p, levels in enumerate(space.levels.T) for level in set(levels.tolist())}
    chosen = []
    for index in order:
        found = missing & set(enumerate(space.levels[index].tolist()))
        if found or len(chosen) < extra:
            chosen.append(int(index))
            missing -= found
        if not missing and len(chosen) >= extra:
            return chosen
    raise AssertionError(f"no schedule holds {missing}")


@BOTH
@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
def test_ptxas_accepts_schedules_with_every_value(kernel, arch, assembler):
    target = Target.of(arch)
    space = space_for(kernel.id, target)
    for index in covering_sample(space, seed=1, extra=10):
        emitted = kernel.emit(kernel.schedule(space.values(index)), target)
        assembler.assemble(emitted.ptx, arch)  # a warning is an error


@BOTH
@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_ptxas_accepts_a_large_sample(kernel, arch, assembler):
    target = Target.of(arch)
    space = space_for(kernel.id, target)
    for index in covering_sample(space, seed=2, extra=60):
        emitted = kernel.emit(kernel.schedule(space.values(index)), target)
        assembler.assemble(emitted.ptx, arch)


@pytest.mark.parametrize(
    ("kernel", "change", "most"),
    [
        (TERNARY_GEMM_S8, {"decode": "register", "weight_layout": "plain"}, 4.2),
        (TERNARY_GEMM_S8, {"decode": "register", "weight_layout": "fragment"}, 3.1),
        (GEMM_S8, {}, 2.5),
    ],
    ids=["plain", "fragment", "dense"],
)
def test_instructions_an_mma_in_the_main_loop(kernel, change, most, assembler):
    emitted = kernel.emit(kernel.schedule(LONG | change), Target.of("sm_89"))
    binary = assembler.assemble(emitted.ptx, "sm_89")
    loop = binary.functions[0].code.loop
    assert binary.spill_bytes == 0
    assert loop.mma == 4 * 8 * 2, "one k-step a turn of the loop"
    assert loop.instructions <= most * loop.mma
