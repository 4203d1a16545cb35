"""The kernel `hslm_dw_s8` (`gemm_dw`), the weight gradient of a layer: dW = X^T * dY, all int8.

Its main loop, epilogue and rules are those of the forward GEMM (`emitters.gemm_emit`); operands with the
reduction as slow axis set it apart (`emitters.gemm_dw_operands`). `emitters.quantisers` makes X and dY.
"""

from functools import partial

import numpy as np

from emitters.gemm_dw_operands import EarlyTransposed, LateTransposed, Side
from emitters.gemm_dw_schedule import DW_RULES, DwGeometry, DwSchedule
from emitters.gemm_emit import emit_product
from emitters.gemm_operands import Block, Operand
from emitters.gemm_problems import demand, depth, random_bytes
from emitters.gemm_rules import check_rules
from emitters.kernel import BufferSpec, EmittedKernel, Expected, Inputs, Kernel, KernelSpec, Limit, Problem
from emitters.ptx import R64
from emitters.references import product_s8
from emitters.target import Target

__all__ = ["HSLM_DW_S8", "DwSchedule"]

_MOST = 32 * 1024 * 1024
_SHORT = "must be at most 2^25, so that offsets within a tile fit 32 bits"

SPEC = KernelSpec(
    id="hslm_dw_s8",
    version=1,
    computes="dW[m,n] = sum_r X[r,m] * dY[r,n]",
    buffers=(
        BufferSpec("X", "in", "int8", ("rows", "m")),
        BufferSpec("dY", "in", "int8", ("rows", "n")),
        BufferSpec("dW", "out", "int32", ("m", "n")),
    ),
    sizes=("m", "n", "rows"),
    limits=(
        Limit("m", "m >= 16 and m % 16 == 0", "must be a multiple of 16"),
        Limit("m", f"m <= {_MOST}", _SHORT),
        Limit("n", "n >= 16 and n % 16 == 0", "must be a multiple of 16"),
        Limit("n", f"n <= {_MOST}", _SHORT),
        Limit("rows", "rows >= 1", "must be at least 1"),
        Limit(
            "rows",
            "rows <= 131071",
            "must be at most 131071, so that sums fit s32 (128 * 128 * 131072 is 2^31)",
        ),
    ),
)

_USUAL = (
    (1280, 3456, 4096),
    (3456, 1280, 4096),
    (1280, 1280, 4096),
    (1280, 3456, 16384),
    (256, 736, 1782),
    (736, 256, 1782),
    (256, 736, 27),
    (736, 256, 27),
)

_BASELINE = DwSchedule(
    tile_m=128,
    tile_n=128,
    tile_k=32,
    warps_m=2,
    warps_n=4,
    stages=1,
    stride_pad=16,
    swizzle=False,
    copy_bytes=4,
    fragment_load="ldmatrix",
    split_k=1,
    raster=1,
    min_blocks=1,
    transpose="copy",
)


def _emit(schedule: DwSchedule, target: Target) -> EmittedKernel:
    check_rules(DW_RULES, schedule, target)
    geometry = DwGeometry(schedule)
    return emit_product(SPEC, geometry, target, partial(_operands, geometry))


def _operands(geometry: DwGeometry, block: Block, x_source: R64, dy_source: R64) -> tuple[Operand, Operand]:
    ptx, schedule, tiles = block.ptx, geometry.schedule, geometry.shared
    assert tiles.b is not None, "dY has a slot in the ring"
    ptx.phase("addresses of X")
    x_side = Side(block, "a")
    if schedule.transpose == "copy":
        x_early = EarlyTransposed(block, geometry, x_side, tiles.a, x_source)
        ptx.phase("addresses of dY")
        return x_early, EarlyTransposed(block, geometry, Side(block, "b"), tiles.b, dy_source)
    x = LateTransposed(block, x_side, tiles.a, x_source, None)
    ptx.phase("addresses of dY")
    shared_reach = x.reach if schedule.tile_m == schedule.tile_n else None
    return x, LateTransposed(block, Side(block, "b"), tiles.b, dy_source, shared_reach)


def _inputs(problem: Problem, rng: np.random.Generator) -> Inputs:
    """Both over all of int8, both extremes included."""
    rows = problem["rows"]
    return Inputs({"X": random_bytes(rng, rows, problem["m"]), "dY": random_bytes(rng, rows, problem["n"])})


def _reference(_problem: Problem, inputs: Inputs, _schedule: DwSchedule) -> Expected:
    return Expected({"dW": product_s8(np.ascontiguousarray(inputs.buffers["X"].T), inputs.buffers["dY"])})


def _edge_problems(schedule: DwSchedule) -> tuple[Problem, ...]:
    """Small problems that reach every guard, at the very values where it turns.

    As for the forward kernel (`emitters.gemm_problems.edge_problems`), but that M ends at sixteens and the
    reduction anywhere: one row, one less than whole k-steps, ends at the first row of each copy that a thread
    makes, or at any row of the patches that it transposes, each of which has a guard of its own.
    """
    s, geometry = schedule, DwGeometry(schedule)
    shapes = [
        (16, 16, 1),
        (2 * s.tile_m - 16, s.tile_n + 16, depth(s, 1, s.tile_k - 1)),
        ((s.raster * s.tile_m if s.raster > 1 else 0) + 16, 2 * s.tile_n + 16, 3),
        (s.tile_m, s.tile_n, depth(s, s.stages + 2, 1)),
    ]
    rows = [depth(s, whole, s.tile_k // 2 + 1) for whole in range(2, s.stages)]
    if s.transpose == "copy":
        patch = max(geometry.patch_rows(across) for across in (s.tile_m, s.tile_n))
        rows += [end + patch * (end % (s.tile_k // patch)) for end in range(1, patch + 1)]
    else:
        copied = geometry.threads * s.copy_bytes // max(s.tile_m, s.tile_n)
        rows += range(copied, s.tile_k + 1, copied)
    across = [range(32, share + 1, 16) for share in (geometry.warp_m, geometry.warp_n)]
    for number, length in enumerate(rows):
        m, n = (sizes[number % len(sizes)] if sizes else 16 for sizes in across)
        shapes.append((s.tile_m + m, n, length))
    return tuple(SPEC.problem(*shape) for shape in shapes)


HSLM_DW_S8: Kernel[DwSchedule] = Kernel(
    spec=SPEC,
    schedule_type=DwSchedule,
    emit=_emit,
    inputs=_inputs,
    reference=_reference,
    edge_problems=_edge_problems,
    demand=partial(demand, b_bits=8),
    usual_problems=tuple(SPEC.problem(*sizes) for sizes in _USUAL),
    baseline=_BASELINE,
    aliases=("gemm_dw",),
)
