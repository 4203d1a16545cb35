"""Bounds that bite: on typical data, a result that lacks one median term of its sum is a mismatch."""

from typing import Any

import numpy as np
import pytest
from float_proof import kernel_of, random_schedules
from numpy.typing import NDArray

from emitters.kernel import Inputs
from emitters.quants import decode_q4_k, decode_q6_k, decode_soa

LENGTHS = (4096, 14336)
ROWS = 6


def median_index(terms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Of each row, the term whose size is the median."""
    order: NDArray[np.int64] = np.argsort(np.abs(terms), axis=1)[:, terms.shape[1] // 2]
    return order


def schedules_of(kernel: str) -> list[Any]:
    entry = kernel_of(kernel)
    values = random_schedules(kernel, "sm_80", 60, seed=8)
    return [entry.baseline, *(entry.schedule(one) for one in values)]


def terms_of(kernel: str, inputs: Inputs) -> NDArray[np.float64]:
    x = inputs.buffers["x"]
    match kernel:
        case "q4k_gemv":
            return decode_q4_k(inputs.buffers["W"]) * x
        case "q6k_soa_gemv":
            return decode_q6_k(inputs.buffers["W"]) * x
        case "q4k_soa_wmma":
            halves = x.astype(np.float16).astype(np.float64)
            return decode_soa(inputs.buffers["W"]).astype(np.float16) * halves
        case "wmma_gemv":
            return inputs.buffers["A"].astype(np.float64) * x
    raise AssertionError(kernel)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("kernel", ["q4k_gemv", "q4k_soa_wmma", "q6k_soa_gemv", "wmma_gemv"])
def test_a_product_that_lacks_one_term_is_a_mismatch(kernel: str, n: int) -> None:
    entry = kernel_of(kernel)
    problem = entry.spec.problem(ROWS, n)
    inputs = entry.inputs(problem, np.random.default_rng(9))
    terms = terms_of(kernel, inputs)
    lacking = terms.sum(axis=1) - terms[np.arange(ROWS), median_index(terms)]
    for schedule in schedules_of(kernel):
        expected = entry.reference(problem, inputs, schedule)
        assert not expected.mismatched("y", expected.values["y"].astype(np.float32)).any()
        assert expected.mismatched("y", lacking.astype(np.float32)).all(), schedule


@pytest.mark.parametrize("n", LENGTHS)
def test_a_norm_that_lacks_one_square_is_a_mismatch(n: int) -> None:
    entry = kernel_of("rmsnorm")
    problem = entry.spec.problem(ROWS, n)
    rng = np.random.default_rng(10)
    x = rng.standard_normal((ROWS, n), dtype=np.float32)
    inputs = Inputs({"x": x, "w": np.ones(n, np.float32)}, {"eps": 1e-5})
    squares = x.astype(np.float64) ** 2
    total = squares.sum(axis=1) - squares[np.arange(ROWS), median_index(squares)]
    lacking = (x / np.sqrt(total / n + 1e-5)[:, None]).astype(np.float32)
    for schedule in schedules_of("rmsnorm"):
        expected = entry.reference(problem, inputs, schedule)
        assert not expected.mismatched("y", expected.values["y"].astype(np.float32)).any()
        assert expected.mismatched("y", lacking).all(), schedule


@pytest.mark.parametrize("n", LENGTHS)
def test_attention_that_lacks_one_key_is_a_mismatch(n: int) -> None:
    entry = kernel_of("sdpa_decode")
    heads, d = 3, 128
    problem = entry.spec.problem(heads, 1, d, n, n)
    inputs = entry.inputs(problem, np.random.default_rng(11))
    inputs.buffers["q"][:] = np.random.default_rng(12).standard_normal((heads, d), dtype=np.float32)
    q, k, v = (inputs.buffers[name].astype(np.float64) for name in ("q", "K", "V"))
    weights = np.exp(inputs.scalars["scale"] * q @ k[:, 0].T)
    missing = median_index(weights)
    weights[np.arange(heads), missing] = 0.0
    lacking = (weights / weights.sum(axis=1, keepdims=True) @ v[:, 0]).astype(np.float32)
    for schedule in schedules_of("sdpa_decode")[:10]:
        expected = entry.reference(problem, inputs, schedule)
        assert not expected.mismatched("out", expected.values["out"].astype(np.float32)).any()
        assert expected.mismatched("out", lacking).any(axis=1).all(), schedule


def test_an_affine_result_that_lacks_its_bias_or_rounds_twice_is_a_mismatch() -> None:
    entry = kernel_of("affine_f32")
    problem = entry.spec.problem(4096)
    inputs = entry.inputs(problem, np.random.default_rng(12))
    product = inputs.buffers["in"].astype(np.float64) * inputs.scalars["scale"]
    twice = (product + inputs.scalars["bias"]).astype(np.float32)
    expected = entry.reference(problem, inputs, entry.baseline)
    small = np.abs(product) < 1e20
    with np.errstate(under="ignore"):
        assert expected.mismatched("out", product.astype(np.float32))[small].all()
    wrong = expected.mismatched("out", twice)
    assert wrong[0]
    assert wrong.mean() < 0.1
