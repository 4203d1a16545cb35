"""Resident blocks, against values of NVIDIA's occupancy calculator."""

import numpy as np
import pytest

from emitters.target import arch_named
from tuner.occupancy import resident_blocks

KIB = 1024


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared_bytes", "blocks"),
    [
        ("sm_89", 256, 32, 0, 6),  # 1,536 threads an SM
        ("sm_80", 256, 32, 0, 8),  # 2,048
        ("sm_80", 256, 64, 0, 4),  # all registers
        ("sm_89", 256, 105, 12288, 2),
        ("sm_89", 128, 220, 0, 2),  # 7,168 registers a warp: two warps a sub-partition
        ("sm_89", 384, 168, 0, 1),  # three warps of 5,376 a sub-partition, all of them one block
        ("sm_80", 32, 16, 0, 32),  # most blocks
        ("sm_86", 32, 16, 0, 16),
        ("sm_89", 128, 32, 49 * KIB, 2),  # with 1 KiB reserved, twice 50 of 100
        ("sm_89", 128, 32, 49 * KIB + 1, 1),
        ("sm_89", 128, 32, 99 * KIB, 1),
        ("sm_89", 128, 32, 99 * KIB + 1, 0),
        ("sm_90", 128, 32, 227 * KIB, 1),
        ("sm_89", 1024, 255, 0, 0),  # 261,120 registers
        ("sm_89", 33, 32, 0, 24),  # two warps
    ],
)
def test_resident_blocks(arch: str, threads: int, registers: int, shared_bytes: int, blocks: int) -> None:
    assert resident_blocks(arch_named(arch), threads, registers, shared_bytes) == blocks


def test_arrays_give_what_numbers_give() -> None:
    arch = arch_named("sm_89")
    threads, registers = np.array([64.0, 128.0, 256.0]), np.array([[40.0], [128.0]])
    whole = resident_blocks(arch, threads, registers, 20000.0)
    assert whole.shape == (2, 3)
    for i, j in np.ndindex(whole.shape):
        assert whole[i, j] == resident_blocks(arch, threads[j], registers[i, 0], 20000.0)
