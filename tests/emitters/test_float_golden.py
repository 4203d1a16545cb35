"""The text of one schedule of every float kernel, pinned: a change of it is meant, or it is a mistake."""

import re
from typing import Any

import pytest
from blake3 import blake3
from float_proof import FLOAT_KERNELS, kernel_of

from emitters.kernel import ParameterValue
from emitters.target import Target

COUNTED = {
    "mma": r"mma\.sync",
    "fragment loads": r"wmma\.load",
    "global loads": r"ld\.global",
    "copies": r"cp\.async\.c[ag]",
    "fma": r"fma\.rn\.f32",
    "guarded stores": r"@!?%p\d+ st\.global",
    "barriers": r"bar\.sync",
}

SCHEDULES: dict[str, dict[str, ParameterValue]] = {
    "affine_f32": {"threads": 256, "vector": 4, "unroll": 2, "turns": 2, "load": "nc", "store": "cs"},
    "rmsnorm": {"warps": 8, "warps_per_row": 8, "vector": 4, "unroll": 2, "hold": 4, "splits": 1},
    "q4k_gemv": {
        **{"warps": 4, "warps_per_row": 2, "splits": 2, "rows_per_warp": 2, "load_bytes": 16},
        **{"unroll": 1, "stages": 3, "dequant": "group", "convert": "prmt"},
    },
    "q4k_soa_wmma": {
        **{"warps": 4, "warps_per_row": 4, "splits": 1, "tiles": 1, "x_chunk": 2048},
        **{"unroll": 2, "stages": 1, "accumulators": 2},
    },
    "q6k_soa_gemv": {
        **{"warps": 4, "warps_per_row": 4, "splits": 1, "rows_per_warp": 1, "quad": 8, "load": "window"},
        **{"unroll": 1, "stages": 2, "dequant": "weight", "convert": "prmt"},
    },
    "wmma_gemv": {
        **{"instruction": "wmma_m32n8k16", "warps": 4, "warps_per_row": 4, "splits": 1, "tiles": 1},
        **{"load_bytes": 4, "x_chunk": 2048, "unroll": 1, "stages": 1, "accumulators": 2},
    },
    "sdpa_decode": {"lanes": 16, "heads": 4, "warps": 4, "keys": 2, "stages": 2, "splits": 8},
}

GOLDEN: dict[str, tuple[int, str, dict[str, int]]] = {
    "affine_f32": (3185, "807341faea82f399", {"global loads": 9, "fma": 15, "guarded stores": 6}),
    "rmsnorm": (
        10829,
        "99cf6215c92c25cd",
        {"global loads": 14, "fma": 24, "guarded stores": 6, "barriers": 1},
    ),
    "q4k_gemv": (22846, "4c8e715d8efa31da", {"global loads": 10, "copies": 12, "fma": 66, "barriers": 1}),
    "q4k_soa_wmma": (32061, "b8befb55d6f28cce", {"mma": 32, "global loads": 18, "barriers": 3}),
    "q6k_soa_gemv": (17443, "f44dbbd2a5030a2c", {"global loads": 12, "copies": 26, "fma": 28, "barriers": 1}),
    "wmma_gemv": (
        7875,
        "01494305727198f5",
        {"mma": 4, "fragment loads": 8, "global loads": 1, "barriers": 4},
    ),
    "sdpa_decode": (
        41795,
        "9ac5a8d6d09c4a5a",
        {"global loads": 24, "copies": 16, "fma": 168, "guarded stores": 4, "barriers": 1},
    ),
}


def seen(kernel: str) -> tuple[int, str, dict[str, int]]:
    """Length, first 16 digits of the hash, and how often each class of instructions occurs."""
    entry = kernel_of(kernel)
    ptx = entry.emit(entry.schedule(SCHEDULES[kernel]), Target.of("sm_89")).ptx
    counts: dict[str, Any] = {name: len(re.findall(pattern, ptx)) for name, pattern in COUNTED.items()}
    return len(ptx), blake3(ptx.encode()).hexdigest()[:16], {name: n for name, n in counts.items() if n}


@pytest.mark.parametrize("kernel", FLOAT_KERNELS)
def test_text_is_the_pinned_one(kernel: str) -> None:
    assert seen(kernel) == GOLDEN[kernel]
