"""Spaces of the float kernels: every constraint rules something out and says why; the emitters agree."""

from dataclasses import replace
from typing import Any

import pytest

from emitters import KERNELS
from emitters.kernel import EmitError, ParameterValue, schedule_values
from emitters.target import ARCHS, Target
from search_spaces import space_for
from search_spaces.space import Space, SpaceError

FLOAT_KERNELS = (
    "affine_f32",
    "rmsnorm",
    "q4k_gemv",
    "q4k_soa_wmma",
    "q6k_soa_gemv",
    "wmma_gemv",
    "sdpa_decode",
)


def space_of(kernel: str, arch: str = "sm_89") -> Space:
    return space_for(kernel, Target.of(arch))


@pytest.mark.parametrize("kernel", FLOAT_KERNELS)
def test_parameters_are_the_fields_of_the_schedule(kernel: str) -> None:
    assert set(space_of(kernel).names) == set(schedule_values(KERNELS[kernel].baseline))


@pytest.mark.parametrize("kernel", FLOAT_KERNELS)
def test_hash_is_the_same_for_the_same_space_and_another_for_another_kernel(kernel: str) -> None:
    assert space_of(kernel).hash == space_of(kernel).hash
    assert len({space_of(other).hash for other in FLOAT_KERNELS}) == len(FLOAT_KERNELS)


@pytest.mark.parametrize("kernel", FLOAT_KERNELS)
def test_every_constraint_rules_something_out(kernel: str) -> None:
    for arch in ("sm_80", "sm_89"):
        space = space_of(kernel, arch)
        for constraint in space.constraints:
            without = replace(space, constraints=tuple(c for c in space.constraints if c is not constraint))
            assert len(without) > len(space), f"{constraint.name} on {arch}"


BROKEN: list[tuple[str, dict[str, ParameterValue], str]] = [
    ("affine_f32", {"vector": 4, "unroll": 8, "threads": 1024, "turns": 8}, "constraint share: .*idle"),
    ("rmsnorm", {"warps": 4, "warps_per_row": 8}, "constraint whole-groups: .*got warps=4, warps_per_row=8"),
    ("rmsnorm", {"hold": 2, "splits": 2}, "constraint hold-in-one-launch: registers do not outlive a launch"),
    (
        "rmsnorm",
        {"warps": 1, "warps_per_row": 1},
        "constraint chain: above 256 additions .* hides a lost term",
    ),
    ("q4k_gemv", {"unroll": 2, "stages": 2}, "constraint one-way-ahead: .*got unroll=2, stages=2"),
    ("q4k_gemv", {"warps": 16, "warps_per_row": 16, "splits": 8}, "constraint walkers: "),
    ("q6k_soa_gemv", {"quad": 2, "load": "window"}, "constraint whole-words: .*at least 4"),
    ("q6k_soa_gemv", {"stages": 2}, "constraint ring-of-windows: cp.async copies 4 bytes or more"),
    ("q4k_soa_wmma", {"warps": 8, "warps_per_row": 8, "x_chunk": 1024}, "constraint chunk-for-every-warp: "),
    ("wmma_gemv", {"stages": 2}, "constraint wmma-ring: "),
    ("wmma_gemv", {"x_chunk": 0}, "constraint wmma-vector: "),
    ("sdpa_decode", {"splits": 1}, "constraint chain: above 288 roundings"),
    ("sdpa_decode", {"lanes": 4, "heads": 8}, "constraint registers: "),
    ("sdpa_decode", {"lanes": 5}, "lanes must be one of 4, 8, 16, 32, got 5"),
]


@pytest.mark.parametrize(("kernel", "changed", "message"), BROKEN)
def test_an_impossible_schedule_names_its_constraint(
    kernel: str, changed: dict[str, ParameterValue], message: str
) -> None:
    values = schedule_values(KERNELS[kernel].baseline) | changed
    with pytest.raises(SpaceError, match=message):
        space_of(kernel).index(values)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("rmsnorm", {"warps": 3, "warps_per_row": 2}, r"warps must be a multiple of warps_per_row \(2\), got 3"),
    ("rmsnorm", {"hold": 1, "splits": 2}, "hold must be 0 where a row is split over blocks, got 1"),
    ("q4k_gemv", {"unroll": 2, "stages": 2}, "unroll must be 1 where stages copy ahead, got 2"),
    (
        "q4k_gemv",
        {"warps": 16, "rows_per_warp": 4, "stages": 4},
        "shared memory must fit 101376 bytes on sm_89",
    ),
    ("q4k_gemv", {"warps_per_row": 3}, r"warps must be a multiple of warps_per_row \(3\), got 4"),
    ("q6k_soa_gemv", {"quad": 2, "load": "window"}, "quad must be at least 4 for loads by window, got 2"),
    ("q6k_soa_gemv", {"stages": 2}, "stages must be 1 unless unroll is 1 and load is window"),
    ("q4k_soa_wmma", {"x_chunk": 100}, "x_chunk must be a multiple of 256, got 100"),
    ("q4k_soa_wmma", {"unroll": 2, "stages": 2}, "unroll must be 1 where stages copy ahead, got 2"),
    ("wmma_gemv", {"x_chunk": 0}, "wmma takes stages 1, load_bytes 4 and a chunk of x, got 1, 4 and 0"),
    ("wmma_gemv", {"x_chunk": 100}, "x_chunk must be a multiple of 64, got 100"),
    ("wmma_gemv", {"stages": 2, "unroll": 2}, "unroll must be 1 where stages copy ahead, got 2"),
    ("sdpa_decode", {"warps": 16, "stages": 4, "keys": 8}, "shared memory must fit 101376 bytes on sm_89"),
]


@pytest.mark.parametrize(("kernel", "changed", "message"), REFUSED)
def test_the_emitter_refuses_what_it_cannot_express(
    kernel: str, changed: dict[str, Any], message: str
) -> None:
    entry = KERNELS[kernel]
    with pytest.raises(EmitError, match=message):
        entry.emit(replace(entry.baseline, **changed), Target.of("sm_89"))


def test_archs_with_less_shared_memory_have_smaller_rings() -> None:
    sizes = {arch: len(space_of("wmma_gemv", arch)) for arch in ARCHS}
    assert sizes["sm_86"] < sizes["sm_80"] < sizes["sm_90"]
