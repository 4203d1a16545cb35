"""Figures of the GEMM main loops: `python benchmarks/main_loop.py [ARCH]`.

Prints, a schedule a row, what ptxas made of the main loop (from the cubin) and the shared-memory wavefronts
of one k-step (from the simulator's counters). `docs/gemm-main-loop.md` holds what it printed, with the
reading of it. No figure is a measurement of time.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from emitters.gemm import GEMM_S8, TERNARY_GEMM_S8
from emitters.gemm_dw import HSLM_DW_S8
from emitters.gemm_dx import HSLM_DX_S8
from emitters.kernel import EmittedKernel, Kernel
from emitters.target import Target
from tuner.ptxas import Assembler
from tuner.simulator import Counters, Launch, simulate

TILE: dict[str, Any] = {
    "tile_m": 128,
    "tile_n": 128,
    "tile_k": 64,
    "warps_m": 2,
    "warps_n": 2,
    "stages": 3,
    "stride_pad": 0,
    "swizzle": True,
    "copy_bytes": 16,
    "fragment_load": "ldmatrix",
    "split_k": 1,
    "raster": 1,
    "min_blocks": 1,
}
EIGHT_WARPS = {"warps_n": 4}
PLAIN = {"decode": "register", "weight_layout": "plain"}
FRAGMENT = {"decode": "register", "weight_layout": "fragment"}
SHARED = {"decode": "shared", "weight_layout": "plain"}
PADDED = {"swizzle": False, "stride_pad": 16}
LATE = {"transpose": "fragment"}
EARLY = {"transpose": "copy", "stages": 1, "copy_bytes": 8}

ROWS: tuple[tuple[str, Kernel[Any], dict[str, Any]], ...] = (
    ("gemm_s8", GEMM_S8, {}),
    ("gemm, fragment", TERNARY_GEMM_S8, FRAGMENT),
    ("gemm, plain, in registers", TERNARY_GEMM_S8, PLAIN),
    ("gemm, plain, to shared", TERNARY_GEMM_S8, SHARED),
    ("gemm_s8, 8 warps", GEMM_S8, EIGHT_WARPS),
    ("gemm, fragment, 8 warps", TERNARY_GEMM_S8, FRAGMENT | EIGHT_WARPS),
    ("gemm, plain, in registers, 8 warps", TERNARY_GEMM_S8, PLAIN | EIGHT_WARPS),
    ("gemm, plain, to shared, 8 warps", TERNARY_GEMM_S8, SHARED | EIGHT_WARPS),
    ("gemm_dx, fragment", HSLM_DX_S8, FRAGMENT),
    ("gemm_dx, plain, in registers", HSLM_DX_S8, PLAIN),
    ("gemm_dx, plain, to shared", HSLM_DX_S8, SHARED),
    ("gemm_dx, fragment, 8 warps", HSLM_DX_S8, FRAGMENT | EIGHT_WARPS),
    ("gemm_dx, plain, in registers, 8 warps", HSLM_DX_S8, PLAIN | EIGHT_WARPS),
    ("gemm_dx, plain, to shared, 8 warps", HSLM_DX_S8, SHARED | EIGHT_WARPS),
    ("gemm_dw, fragment, padded", HSLM_DW_S8, LATE | PADDED),
    ("gemm_dw, fragment", HSLM_DW_S8, LATE),
    ("gemm_dw, fragment, padded, 8 warps", HSLM_DW_S8, LATE | PADDED | EIGHT_WARPS),
    ("gemm_dw, copy, padded", HSLM_DW_S8, EARLY | PADDED),
    ("gemm_dw, copy, padded, 8 warps", HSLM_DW_S8, EARLY | PADDED | EIGHT_WARPS),
)


@dataclass(frozen=True)
class Figures:
    """One row.

    Attributes:
        registers, spill_bytes: Of a thread.
        shared_bytes: Dynamic, of a block.
        mma, ldmatrix, instructions: In one turn of the main loop, which is one k-step, of one warp.
        read, written: Shared-memory wavefronts of a block in one k-step: loads, and stores with copies.
        ideal: Wavefronts of both if no bank conflicted.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int
    mma: int
    ldmatrix: int
    instructions: int
    read: float
    written: float
    ideal: float


def figures(kernel: Kernel[Any], change: dict[str, Any], arch: str, assembler: Assembler) -> Figures:
    """Assemble the schedule and run one block of it on two lengths of k."""
    schedule = kernel.schedule(TILE | change)
    emitted = kernel.emit(schedule, Target.of(arch))
    binary = assembler.assemble(emitted.ptx, arch)
    loop = binary.functions[0].code.loop
    assert loop is not None, "a GEMM has a main loop"
    steps = 8
    short, long = (
        _counters(kernel, schedule, emitted, turns * TILE["tile_k"]) for turns in (steps, 2 * steps)
    )
    return Figures(
        registers=binary.registers,
        spill_bytes=binary.spill_bytes,
        shared_bytes=emitted.plan.kernel_steps[0].shared_bytes,
        mma=loop.mma,
        ldmatrix=loop.ldmatrix,
        instructions=loop.instructions,
        read=(_read(long) - _read(short)) / steps,
        written=(_written(long) - _written(short)) / steps,
        ideal=(_ideal(long) - _ideal(short)) / steps,
    )


def _counters(kernel: Kernel[Any], schedule: Any, emitted: EmittedKernel, k: int) -> Counters:
    problem = kernel.spec.problem(TILE["tile_m"], TILE["tile_n"], k)
    inputs = kernel.prepare(schedule, problem, kernel.inputs(problem, np.random.default_rng(0)))
    (output,) = kernel.spec.outputs
    buffers = {**inputs.buffers, output: np.zeros((problem["m"], problem["n"]), np.int32)}
    step = emitted.plan.kernel_steps[0]
    arguments = tuple(name if name in buffers else problem[name] for name in step.arguments)
    launch = Launch(step.entry, step.grid_for(problem.sizes), step.block, step.shared_bytes, arguments)
    return simulate(emitted.ptx, [launch], buffers, outputs=(output,)).counters[0]


def _read(counters: Counters) -> int:
    return counters.shared_loads.wavefronts + counters.matrix_loads.wavefronts


def _written(counters: Counters) -> int:
    return counters.shared_stores.wavefronts + counters.async_writes.wavefronts


def _ideal(counters: Counters) -> int:
    traffic = (counters.shared_loads, counters.matrix_loads, counters.shared_stores, counters.async_writes)
    return sum(part.ideal for part in traffic)


def main(arch: str = "sm_89") -> None:
    assembler = Assembler()
    print(f"128x128x64, 3 stages, swizzled, {arch}, ptxas {assembler.version}")
    print(
        f"{'kernel':37} {'regs':>4} {'spill':>5} {'shared':>6} {'mma':>4} {'ldmatrix':>8} {'instr.':>6} "
        f"{'an mma':>6} {'mma %':>5} {'read':>5} {'write':>5} {'ideal':>5}"
    )
    for name, kernel, change in ROWS:
        f = figures(kernel, change, arch, assembler)
        print(
            f"{name:37} {f.registers:4} {f.spill_bytes:5} {f.shared_bytes:6} {f.mma:4} {f.ldmatrix:8} "
            f"{f.instructions:6} {f.instructions / f.mma:6.2f} {100 * f.mma / f.instructions:5.1f} "
            f"{f.read:5.0f} {f.written:5.0f} {f.ideal:5.0f}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
