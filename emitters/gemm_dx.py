"""The kernel `hslm_dx_s8` (`gemm_dx`), the input gradient of a ternary layer: dX = dY * w^T, all int8.

Its main loop, epilogue and rules are those of the forward GEMM (`emitters.gemm_emit`); codes that lie along k
set it apart (`emitters.gemm_dx_codes`). `emitters.quantisers` makes dY.
"""

from functools import partial

import numpy as np

from emitters.gemm_codes import Records
from emitters.gemm_dx_codes import DecodedAlongK, WordsAlongK
from emitters.gemm_dx_schedule import DX_RULES, DxGeometry, DxSchedule
from emitters.gemm_emit import emit_product
from emitters.gemm_operands import Block, Operand, Rows
from emitters.gemm_problems import LIMITS, demand, edge_problems, random_bytes
from emitters.gemm_rules import check_rules
from emitters.kernel import BufferSpec, EmittedKernel, Expected, Inputs, Kernel, KernelSpec, Problem
from emitters.ptx import R64
from emitters.references import product_s8
from emitters.target import Target
from emitters.ternary import decode, prepack, transpose_codes

__all__ = ["HSLM_DX_S8", "DxSchedule"]

SPEC = KernelSpec(
    id="hslm_dx_s8",
    version=1,
    computes="dX[m,n] = sum_k dY[m,k] * w[n,k], w ternary",
    buffers=(
        BufferSpec("dY", "in", "int8", ("m", "k")),
        BufferSpec(
            "codes",
            "in",
            "uint32",
            ("n * k // 16",),
            "code of w[n,k] is number n * K + k; 2 bits, value (c & 1) - (c >> 1 & 1)",
        ),
        BufferSpec("dX", "out", "int32", ("m", "n")),
    ),
    sizes=("m", "n", "k"),
    limits=LIMITS,
)

_USUAL = (
    (4096, 1280, 3456),
    (4096, 3456, 1280),
    (4096, 1280, 1280),
    (16384, 1280, 3456),
    (1782, 256, 736),
    (1782, 736, 256),
    (27, 256, 736),
    (27, 736, 256),
)

_BASELINE = DxSchedule(
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


def _emit(schedule: DxSchedule, target: Target) -> EmittedKernel:
    check_rules(DX_RULES, schedule, target)
    return emit_product(SPEC, DxGeometry(schedule), target, _operands)


def _operands(block: Block, dy_source: R64, codes_source: R64) -> tuple[Operand, Operand]:
    ptx, geometry, tiles = block.ptx, block.geometry, block.geometry.shared
    ptx.phase("addresses of dY")
    dy = Rows(block, tiles.a, geometry.a_width, operand="a", source=dy_source)
    ptx.phase("addresses of codes")
    if tiles.rows is not None:
        return dy, DecodedAlongK(block, tiles.rows, tiles.codes, codes_source)
    assert tiles.b is not None, "codes that are not decoded to rows have a slot in the ring"
    kind = WordsAlongK if geometry.b_kind == "words" else Records
    return dy, kind(block, tiles.b, codes_source)


def _inputs(problem: Problem, rng: np.random.Generator) -> Inputs:
    """dY over all of int8, both extremes included; all four codes."""
    words = rng.integers(0, 1 << 32, problem["n"] * problem["k"] // 16, dtype=np.uint32)
    return Inputs({"dY": random_bytes(rng, problem["m"], problem["k"]), "codes": words})


def _reference(problem: Problem, inputs: Inputs, _schedule: DxSchedule) -> Expected:
    weights = decode(inputs.buffers["codes"]).reshape(problem["n"], problem["k"])
    return Expected({"dX": product_s8(inputs.buffers["dY"], weights.T)})


def prepare(schedule: DxSchedule, problem: Problem, inputs: Inputs) -> Inputs:
    """Prepacked weights where the schedule wants them: those of the forward kernel, for w transposed."""
    if schedule.weight_layout == "plain":
        return inputs
    n, k = problem["n"], problem["k"]
    along_n = transpose_codes(inputs.buffers["codes"], n, k)
    words = prepack(along_n, k, n, DxGeometry(schedule).record_columns)
    return Inputs({**inputs.buffers, "codes": words}, inputs.scalars)


def _edge_problems(schedule: DxSchedule) -> tuple[Problem, ...]:
    return edge_problems(SPEC, DxGeometry(schedule))


HSLM_DX_S8: Kernel[DxSchedule] = Kernel(
    spec=SPEC,
    schedule_type=DxSchedule,
    emit=_emit,
    inputs=_inputs,
    reference=_reference,
    edge_problems=_edge_problems,
    demand=partial(demand, b_bits=2),
    usual_problems=tuple(SPEC.problem(*sizes) for sizes in _USUAL),
    baseline=_BASELINE,
    aliases=("gemm_dx",),
    prepare=prepare,
)
