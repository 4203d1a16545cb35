"""The kernels `ternary_gemm_s8` (`gemm`) and `gemm_s8`: what they compute, their data, and how they are
judged."""

from functools import partial
from itertools import zip_longest

import numpy as np

from emitters.gemm_emit import emit_gemm
from emitters.gemm_schedule import DenseSchedule, GemmSchedule, Geometry
from emitters.kernel import (
    BufferSpec,
    Demand,
    Expected,
    Inputs,
    Kernel,
    KernelSpec,
    Limit,
    Problem,
)
from emitters.references import product_s8
from emitters.ternary import decode, prepack
from results.expression import ceil_div, evaluate

__all__ = ["GEMM_S8", "TERNARY_GEMM_S8", "DenseSchedule", "GemmSchedule"]

_LIMITS = (
    Limit("m", "m >= 1", "must be at least 1"),
    Limit("m", "m <= 1024 * 1024 * 1024", "must be at most 2^30, so that rows are counted in 31 bits"),
    Limit("n", "n >= 16 and n % 16 == 0", "must be a multiple of 16"),
    Limit("n", "n <= 128 * 1024 * 1024", "must be at most 2^27, so that offsets within a tile fit 32 bits"),
    Limit("k", "k >= 16 and k % 16 == 0", "must be a multiple of 16"),
    Limit("k", "k <= 131071", "must be at most 131071, so that sums fit s32"),
)
_A = BufferSpec("A", "in", "int8", ("m", "k"))
_C = BufferSpec("C", "out", "int32", ("m", "n"))

TERNARY_SPEC = KernelSpec(
    id="ternary_gemm_s8",
    version=1,
    computes="C[m,n] = sum_k A[m,k] * w[k,n], w ternary",
    buffers=(
        _A,
        BufferSpec(
            "codes",
            "in",
            "uint32",
            ("k * n // 16",),
            "code of w[k,n] is number k * N + n; 2 bits, value (c & 1) - (c >> 1 & 1)",
        ),
        _C,
    ),
    sizes=("m", "n", "k"),
    limits=_LIMITS,
)
DENSE_SPEC = KernelSpec(
    id="gemm_s8",
    version=1,
    computes="C[m,n] = sum_k A[m,k] * B[n,k]",
    buffers=(_A, BufferSpec("B", "in", "int8", ("n", "k")), _C),
    sizes=("m", "n", "k"),
    limits=_LIMITS,
)

_USUAL = (
    (4096, 3456, 1280),
    (4096, 1280, 3456),
    (4096, 1280, 1280),
    (16384, 3456, 1280),
    (16384, 1280, 3456),
    (16384, 1280, 1280),
)

_DENSE_BASELINE = DenseSchedule(
    tile_m=128,
    tile_n=128,
    tile_k=32,
    warps_m=2,
    warps_n=4,
    stages=1,
    stride_pad=16,
    swizzle=False,
    copy_bytes=16,
    fragment_load="ldmatrix",
    split_k=1,
    raster=1,
    min_blocks=1,
)
_TERNARY_BASELINE = GemmSchedule(
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
    decode="shared",
    weight_layout="plain",
)


def _ternary_inputs(problem: Problem, rng: np.random.Generator) -> Inputs:
    """A over all of int8, both extremes included; all four codes."""
    words = rng.integers(0, 1 << 32, problem["k"] * problem["n"] // 16, dtype=np.uint32)
    return Inputs({"A": _bytes(rng, problem["m"], problem["k"]), "codes": words})


def _dense_inputs(problem: Problem, rng: np.random.Generator) -> Inputs:
    return Inputs(
        {"A": _bytes(rng, problem["m"], problem["k"]), "B": _bytes(rng, problem["n"], problem["k"])}
    )


def _bytes(
    rng: np.random.Generator, rows: int, columns: int
) -> np.ndarray[tuple[int, int], np.dtype[np.int8]]:
    """Uniform over -128..127, with both ends at known places of every row."""
    values = rng.integers(-128, 128, (rows, columns), dtype=np.int8)
    values[:, 0], values[:, -1] = -128, 127
    return values


def _ternary_reference(problem: Problem, inputs: Inputs, _schedule: GemmSchedule) -> Expected:
    weights = decode(inputs.buffers["codes"]).reshape(problem["k"], problem["n"])
    return Expected({"C": product_s8(inputs.buffers["A"], weights)})


def _dense_reference(_problem: Problem, inputs: Inputs, _schedule: DenseSchedule) -> Expected:
    return Expected({"C": product_s8(inputs.buffers["A"], inputs.buffers["B"].T)})


def _prepare(schedule: GemmSchedule, problem: Problem, inputs: Inputs) -> Inputs:
    """Prepacked weights where the schedule wants them."""
    if schedule.weight_layout == "plain":
        return inputs
    columns = Geometry(schedule).record_columns
    words = prepack(inputs.buffers["codes"], problem["k"], problem["n"], columns)
    return Inputs({**inputs.buffers, "codes": words}, inputs.scalars)


def _edge_problems(spec: KernelSpec, schedule: DenseSchedule) -> tuple[Problem, ...]:
    """Small problems that reach every guard, at the very values where it turns.

    Mutation of emitted text (`docs/detection.md`) says what they have to be. One row; what only a grid shows:
    a second tile row that lacks seven rows, a second and third tile column, a second group of the raster;
    once round the ring with a whole tile. The rest end in each group of eight rows of a warp, in each sixteen
    columns of it, and half way through each slot of the ring. With a split, 16 leaves blocks without work.
    """
    s, warp_m, warp_n = schedule, Geometry(schedule).warp_m, Geometry(schedule).warp_n
    shapes = [
        (1, 16, 16),
        (2 * s.tile_m - 7, s.tile_n + 16, _depth(s, 1)),
        ((s.raster * s.tile_m if s.raster > 1 else 0) + 9, 2 * s.tile_n + 16, 16),
        (s.tile_m, s.tile_n, _depth(s, s.stages + 2)),
        *zip_longest(
            range(17, warp_m - 8, 8),
            range(32, warp_n + 1, 16),
            [_depth(s, whole) for whole in range(2, s.stages)],
            fillvalue=16,
        ),
    ]
    valid = Geometry(s).valid
    step = next(step for step in (16, 32, 64) if evaluate(valid, {"n": step}))
    return tuple(spec.problem(m, ceil_div(n, step) * step, k) for m, n, k in shapes)


def _depth(schedule: DenseSchedule, whole: int) -> int:
    """A k of which every block has `whole` k-steps and one more, of which the last block has 16."""
    return schedule.tile_k * (schedule.split_k * (whole + 1) - 1) + 16


def _demand(problem: Problem, b_bits: int) -> Demand:
    m, n, k = problem["m"], problem["n"], problem["k"]
    return Demand(2 * m * n * k, "mma_s8", m * k + n * k * b_bits // 8, 4 * m * n)


TERNARY_GEMM_S8: Kernel[GemmSchedule] = Kernel(
    spec=TERNARY_SPEC,
    schedule_type=GemmSchedule,
    emit=partial(emit_gemm, TERNARY_SPEC),
    inputs=_ternary_inputs,
    reference=_ternary_reference,
    edge_problems=partial(_edge_problems, TERNARY_SPEC),
    demand=partial(_demand, b_bits=2),
    usual_problems=tuple(TERNARY_SPEC.problem(*sizes) for sizes in _USUAL),
    baseline=_TERNARY_BASELINE,
    aliases=("gemm",),
    prepare=_prepare,
)

GEMM_S8: Kernel[DenseSchedule] = Kernel(
    spec=DENSE_SPEC,
    schedule_type=DenseSchedule,
    emit=partial(emit_gemm, DENSE_SPEC),
    inputs=_dense_inputs,
    reference=_dense_reference,
    edge_problems=partial(_edge_problems, DENSE_SPEC),
    demand=partial(_demand, b_bits=8),
    usual_problems=tuple(DENSE_SPEC.problem(*sizes) for sizes in _USUAL),
    baseline=_DENSE_BASELINE,
)
