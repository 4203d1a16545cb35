"""The cost model beside published times: `python benchmarks/published.py`.

Prints every row of `published/rtx4090.csv` with the prediction and its error, and ends with exit code 1 if an
error exceeds its limit. The hand-written kernel is rebuilt in `hand_written.py`. CUTLASS's s8 kernels are
`gemm_s8` at the schedules that CUTLASS has for them; the faster one counts, as it does for their profiler.
The bf16 rows are context: no kernel here computes bf16.
"""

import csv
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import hand_written

from emitters.gemm import GEMM_S8, TERNARY_GEMM_S8, DenseSchedule
from emitters.gpus import target_named
from emitters.kernel import EmittedKernel, Inputs, Problem
from tuner.cost_model import predict
from tuner.cubin import Binary
from tuner.devices.sampling import operands_for, plan_work
from tuner.ptxas import Assembler

FIGURES = Path(__file__).parent / "published" / "rtx4090.csv"
TARGET = target_named("rtx4090")
LIMITS = {"ternary_gemm_s8_v1": 0.15, "cutlass_3.5.1_s8": 0.25}


def _cutlass(tile_n: int, stages: int) -> DenseSchedule:
    """CUTLASS's 128 x tile_n x 64 kernel: warp tiles of 64x64, swizzled rows, blocks rastered by 8."""
    return DenseSchedule(
        tile_m=128,
        tile_n=tile_n,
        tile_k=64,
        warps_m=2,
        warps_n=tile_n // 64,
        stages=stages,
        stride_pad=0,
        swizzle=True,
        copy_bytes=16,
        fragment_load="ldmatrix",
        split_k=1,
        raster=8,
        min_blocks=1,
    )


CUTLASS = {"128x128x64, 5 stages": _cutlass(128, 5), "128x256x64, 3 stages": _cutlass(256, 3)}


@dataclass(frozen=True)
class Row:
    """One published time and what the model says.

    Attributes:
        kernel: As published.
        problem: m x n x k.
        published_us: The published time.
        predicted_us: None where it is not modelled.
        remark: The schedule that was modelled, or why none was.
    """

    kernel: str
    problem: str
    published_us: float
    predicted_us: float | None
    remark: str

    @property
    def error(self) -> float | None:
        """Of the prediction, as a share of the published time."""
        return None if self.predicted_us is None else self.predicted_us / self.published_us - 1

    @property
    def within_limit(self) -> bool:
        return self.error is None or abs(self.error) <= LIMITS[self.kernel]


@cache
def _assembled(name: str) -> tuple[EmittedKernel, Binary]:
    emitted = hand_written.emit() if name == "hand-written" else GEMM_S8.emit(CUTLASS[name], TARGET)
    return emitted, Assembler().assemble(emitted.ptx, TARGET.arch.name)


def _predicted_us(name: str, problem: Problem, operands: Inputs) -> float:
    emitted, binary = _assembled(name)
    return float(predict(plan_work(emitted, binary, problem, operands), TARGET).time_us)


@cache
def rows() -> tuple[Row, ...]:
    """Every row of the published figures, in their order."""
    with FIGURES.open() as file:
        figures = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return tuple(_row(f["kernel"], (int(f["m"]), int(f["n"]), int(f["k"])), f["ms"]) for f in figures)


def _row(kernel: str, sizes: tuple[int, int, int], published_ms: str) -> Row:
    predicted_us, remark = None, "not modelled: no kernel here computes bf16"
    if kernel == "ternary_gemm_s8_v1":
        problem = TERNARY_GEMM_S8.spec.problem(*sizes)
        # The hand-written kernel takes operands as the baseline does, in the plain layout.
        baseline = TERNARY_GEMM_S8.emit(TERNARY_GEMM_S8.baseline, TARGET)
        operands = operands_for(TERNARY_GEMM_S8, baseline, problem)
        predicted_us, remark = _predicted_us("hand-written", problem, operands), "128x128x32, 1 stage"
    elif kernel == "cutlass_3.5.1_s8":
        problem = GEMM_S8.spec.problem(*sizes)
        operands = operands_for(GEMM_S8, _assembled(next(iter(CUTLASS)))[0], problem)
        predicted_us, remark = min((_predicted_us(name, problem, operands), name) for name in CUTLASS)
    return Row(kernel, "x".join(map(str, sizes)), 1e3 * float(published_ms), predicted_us, remark)


def main() -> int:
    print(f"{'kernel':<20} {'m x n x k':<16} {'published':>10} {'predicted':>10} {'error':>7}")
    outside = 0
    for row in rows():
        predicted = "-" if row.predicted_us is None else f"{row.predicted_us:.1f} us"
        error = "-" if row.error is None else f"{row.error:+.1%}"
        figures = f"{row.published_us:>7.1f} us {predicted:>10} {error:>7}"
        print(f"{row.kernel:<20} {row.problem:<16} {figures}  {row.remark}")
        outside += not row.within_limit
    for kernel, limit in LIMITS.items():
        print(f"limit for {kernel}: {limit:.0%}")
    print("every error is within its limit" if not outside else f"{outside} errors exceed their limit")
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
