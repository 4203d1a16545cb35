import dataclasses

import numpy as np
import pytest

from emitters.gemm import GEMM_S8, TERNARY_GEMM_S8
from emitters.kernel import ProblemError
from emitters.references import product_s8
from emitters.target import Target
from emitters.ternary import decode, unpack

BOTH = pytest.mark.parametrize("kernel", [TERNARY_GEMM_S8, GEMM_S8], ids=lambda kernel: kernel.id)


@BOTH
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 16, 16), "m must be at least 1, got 0"),
        ((2**30 + 1, 16, 16), "m must be at most 2\\^30, .* got 1073741825"),
        ((1, 2**27 + 16, 16), "n must be at most 2\\^27, .* got 134217744"),
        ((128, 100, 32), "n must be a multiple of 16, got 100"),
        ((128, 0, 32), "n must be a multiple of 16, got 0"),
        ((128, 16, 24), "k must be a multiple of 16, got 24"),
        ((1, 16, 131072), "k must be at most 131071, so that sums fit s32, got 131072"),
        ((5,), "a problem of .* is mxnxk"),
    ],
)
def test_problems_outside_the_limits_are_refused(kernel, sizes, message):
    with pytest.raises(ProblemError, match=message):
        kernel.spec.problem(*sizes)


@BOTH
def test_usual_problems_begin_with_the_default(kernel):
    assert str(kernel.default_problem) == "4096x3456x1280"
    assert len(kernel.usual_problems) == 6


def test_inputs_hold_both_extremes_and_every_code():
    inputs = TERNARY_GEMM_S8.inputs(TERNARY_GEMM_S8.spec.problem(3, 16, 16), np.random.default_rng(0))
    assert inputs.buffers["A"].min() == -128
    assert inputs.buffers["A"].max() == 127
    assert set(unpack(inputs.buffers["codes"]).tolist()) == {0, 1, 2, 3}


def test_ternary_reference_is_the_formula():
    problem = TERNARY_GEMM_S8.spec.problem(5, 32, 48)
    inputs = TERNARY_GEMM_S8.inputs(problem, np.random.default_rng(3))
    expected = TERNARY_GEMM_S8.reference(problem, inputs, TERNARY_GEMM_S8.baseline)
    codes = unpack(inputs.buffers["codes"])
    for m, n in ((0, 0), (4, 31), (2, 17)):
        terms = [
            int(inputs.buffers["A"][m, k]) * ((int(c) & 1) - (int(c) >> 1 & 1))
            for k, c in ((k, codes[k * 32 + n]) for k in range(48))
        ]
        assert expected.values["C"][m, n] == sum(terms)


def test_dense_reference_is_the_formula():
    problem = GEMM_S8.spec.problem(5, 32, 48)
    inputs = GEMM_S8.inputs(problem, np.random.default_rng(3))
    expected = GEMM_S8.reference(problem, inputs, GEMM_S8.baseline)
    a, b = inputs.buffers["A"].astype(int), inputs.buffers["B"].astype(int)
    assert expected.values["C"][4, 31] == sum(a[4, k] * b[31, k] for k in range(48))


@pytest.mark.parametrize(("k", "largest"), [(131056, 1), (4999, 128)])
def test_products_are_exact_at_the_extremes(k, largest):
    a = np.full((2, k), -128, np.int8)
    b = np.full((k, 3), -largest, np.int8)
    b[0, 0] = 0
    assert (product_s8(a, b) == a.astype(np.int64) @ b.astype(np.int64)).all()


def test_decoding_is_of_codes_in_row_major_order_of_k():
    words = np.zeros(32, np.uint32)
    words[1] = 1  # code 16: k = 0, n = 16 of a matrix of 32 columns
    assert np.argwhere(decode(words).reshape(16, 32)).tolist() == [[0, 16]]


@BOTH
@pytest.mark.parametrize(
    "change",
    [{}, {"stages": 6}, {"split_k": 8, "tile_k": 128}, {"raster": 8}, {"copy_bytes": 16}],
    ids=str,
)
def test_edge_problems_reach_the_edges(kernel, change):
    schedule = dataclasses.replace(kernel.baseline, **change)
    problems = kernel.edge_problems(schedule)
    plan = kernel.emit(schedule, Target.of("sm_89")).plan
    assert all(plan.is_valid(problem.sizes) for problem in problems)
    sizes = [(p["m"], p["n"], p["k"]) for p in problems]
    assert any(m == 1 for m, _, _ in sizes)
    assert any(m > schedule.tile_m and m % schedule.tile_m for m, _, _ in sizes)
    assert any(n < schedule.tile_n for _, n, _ in sizes)
    assert any(n > schedule.tile_n and n % schedule.tile_n for _, n, _ in sizes)
    assert any(k > schedule.tile_k and k % schedule.tile_k == 16 for _, _, k in sizes)
    steps = [-(-k // schedule.tile_k) for _, _, k in sizes]
    shares = [-(-count // schedule.split_k) for count in steps]
    assert any(share >= schedule.stages + 2 for share in shares)
    assert any(share < schedule.stages or schedule.stages == 1 for share in shares)
    if schedule.split_k > 1:
        working = [-(-count // share) for count, share in zip(steps, shares, strict=True)]
        assert max(working) == schedule.split_k
        assert min(working) == 1
    if schedule.raster > 1:
        assert any(m > schedule.raster * schedule.tile_m for m, _, _ in sizes)


@BOTH
def test_demand_counts_every_operand_once(kernel):
    demand = kernel.demand(kernel.spec.problem(64, 32, 16))
    b_bytes = 16 * 32 // 4 if kernel is TERNARY_GEMM_S8 else 16 * 32
    assert demand.operations == 2 * 64 * 32 * 16
    assert demand.unit == "mma_s8"
    assert (demand.read_bytes, demand.write_bytes) == (64 * 16 + b_bytes, 4 * 64 * 32)
