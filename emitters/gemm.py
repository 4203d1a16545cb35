"""The kernels `ternary_gemm_s8` (`gemm`) and `gemm_s8`: what they compute, their data, and how they are
judged."""

from functools import partial

import numpy as np

from emitters.gemm_emit import emit_gemm
from emitters.gemm_problems import LIMITS, demand, edge_problems, random_bytes
from emitters.gemm_schedule import DenseSchedule, GemmSchedule, Geometry
from emitters.kernel import (
    BufferSpec,
    Expected,
    Inputs,
    Kernel,
    KernelSpec,
    Problem,
)
from emitters.references import product_s8
from emitters.ternary import decode, prepack

__all__ = ["GEMM_S8", "TERNARY_GEMM_S8", "DenseSchedule", "GemmSchedule"]

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
    limits=LIMITS,
)
DENSE_SPEC = KernelSpec(
    id="gemm_s8",
    version=1,
    computes="C[m,n] = sum_k A[m,k] * B[n,k]",
    buffers=(_A, BufferSpec("B", "in", "int8", ("n", "k")), _C),
    sizes=("m", "n", "k"),
    limits=LIMITS,
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
    return Inputs({"A": random_bytes(rng, problem["m"], problem["k"]), "codes": words})


def _dense_inputs(problem: Problem, rng: np.random.Generator) -> Inputs:
    return Inputs(
        {
            "A": random_bytes(rng, problem["m"], problem["k"]),
            "B": random_bytes(rng, problem["n"], problem["k"]),
        }
    )


def _ternary_reference(problem: Problem, inputs: Inputs, _schedule: GemmSchedule) -> Expected:
    weights = decode(inputs.buffers["codes"]).reshape(problem["k"], problem["n"])
    return Expected({"C": product_s8(inputs.buffers["A"], weights)})


def _dense_reference(_problem: Problem, inputs: Inputs, _schedule: DenseSchedule) -> Expected:
    return Expected({"C": product_s8(inputs.buffers["A"], inputs.buffers["B"].T)})


def prepare(schedule: GemmSchedule, problem: Problem, inputs: Inputs) -> Inputs:
    """Prepacked weights where the schedule wants them."""
    if schedule.weight_layout == "plain":
        return inputs
    columns = Geometry(schedule).record_columns
    words = prepack(inputs.buffers["codes"], problem["k"], problem["n"], columns)
    return Inputs({**inputs.buffers, "codes": words}, inputs.scalars)


def _edge_problems(spec: KernelSpec, schedule: DenseSchedule) -> tuple[Problem, ...]:
    return edge_problems(spec, Geometry(schedule))


TERNARY_GEMM_S8: Kernel[GemmSchedule] = Kernel(
    spec=TERNARY_SPEC,
    schedule_type=GemmSchedule,
    emit=partial(emit_gemm, TERNARY_SPEC),
    inputs=_ternary_inputs,
    reference=_ternary_reference,
    edge_problems=partial(_edge_problems, TERNARY_SPEC),
    demand=partial(demand, b_bits=2),
    usual_problems=tuple(TERNARY_SPEC.problem(*sizes) for sizes in _USUAL),
    baseline=_TERNARY_BASELINE,
    aliases=("gemm",),
    prepare=prepare,
)

GEMM_S8: Kernel[DenseSchedule] = Kernel(
    spec=DENSE_SPEC,
    schedule_type=DenseSchedule,
    emit=partial(emit_gemm, DENSE_SPEC),
    inputs=_dense_inputs,
    reference=_dense_reference,
    edge_problems=partial(_edge_problems, DENSE_SPEC),
    demand=partial(demand, b_bits=8),
    usual_problems=tuple(DENSE_SPEC.problem(*sizes) for sizes in _USUAL),
    baseline=_DENSE_BASELINE,
)
