"""Bounds against arithmetic that is known: exact rationals, f32 sums, a truncating model of an mma."""

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from emitters.rounding import MMA_K, ULP, chain_error, fma_f32, gamma, mma_chain_error, tree_depth


def round_to_f32(value: Fraction) -> np.float32:
    """Nearest f32, ties to even, of a rational, by exact arithmetic."""
    if value == 0:
        return np.float32(0.0)
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    if Fraction(2) ** exponent > abs(value):
        exponent -= 1
    spacing = Fraction(2) ** max(exponent - 23, -149)
    steps = round(value / spacing)  # Fraction rounds halves to even
    magnitude = steps * spacing
    if abs(magnitude) >= Fraction(2) ** 128:
        return np.float32(np.inf if magnitude > 0 else -np.inf)
    return np.float32(float(magnitude))


def random_f32(rng: np.random.Generator, count: int, exponents: tuple[int, int]) -> NDArray[np.float32]:
    mantissa = rng.uniform(1.0, 2.0, count) * rng.choice([-1.0, 1.0], count)
    with np.errstate(under="ignore"):
        return np.asarray(np.ldexp(mantissa, rng.integers(*exponents, count)), np.float32)


@pytest.mark.parametrize("exponents", [(-1, 2), (-30, 30), (-80, -60), (-149, -100)])
def test_fma_agrees_with_exact_rationals(exponents: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    a, b = random_f32(rng, 3000, exponents), random_f32(rng, 3000, exponents)
    with np.errstate(under="ignore"):
        near = (-(a.astype(np.float64) * b) * (1 + rng.choice([0.0, 2.0**-24, 3e-8, 1e-3], 3000))).astype(
            np.float32
        )
    c = np.where(rng.random(3000) < 0.5, near, random_f32(rng, 3000, exponents)).astype(np.float32)
    expected = [
        round_to_f32(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert (fma_f32(a, b, c) == np.array(expected)).all()


def test_fma_is_not_fooled_by_double_rounding() -> None:
    a, b, c = np.float32(2**-12 * (1 + 2**-23)), np.float32(2**-12 * (1 - 2**-23)), np.float32(1 + 2**-23)
    twice = np.float32(float(a) * float(b) + float(c))
    once = fma_f32(np.array([a]), np.array([b]), np.array([c]))[0]
    assert twice != once
    assert once == round_to_f32(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def test_fma_keeps_infinities_nans_and_signed_zeros() -> None:
    a = np.array([np.inf, 0.0, np.nan, -1.0, 3e38, -0.0], np.float32)
    b = np.array([1.0, np.inf, 1.0, 0.0, 10.0, 1.0], np.float32)
    c = np.array([1.0, 1.0, 1.0, -0.0, 0.0, -0.0], np.float32)
    result = fma_f32(a, b, c)
    assert np.isposinf(result[[0, 4]]).all()
    assert np.isnan(result[[1, 2]]).all()
    assert (result[[3, 5]] == 0.0).all()
    assert np.signbit(result[[3, 5]]).all()


def test_gamma_bounds_a_product_of_roundings() -> None:
    for n in (1, 10, 1000):
        assert (1 + 2.0**-24) ** n - 1 <= gamma(n)
        assert gamma(n) <= n * 2.0**-24 * 1.001


def test_chain_error_covers_a_sequential_f32_sum_and_is_not_loose_for_one_of_a_sign() -> None:
    rng = np.random.default_rng(4)
    terms = rng.uniform(0.5, 1.0, (200, 256)).astype(np.float32)
    total = np.zeros(200, np.float32)
    for column in terms.T:
        total += column
    exact = terms.astype(np.float64).sum(axis=1)
    assert (np.abs(total - exact) <= chain_error(256, exact)).all()


def truncating_mma_chain(products: NDArray[np.float64], per_step: int) -> float:
    """The unkindest hardware that was measured: every addend cut to 24 bits below the largest, sums cut
    too."""
    held = 0.0
    for start in range(0, len(products), per_step):
        addends = np.append(products[start : start + per_step], held)
        grid = 2.0 ** (np.floor(np.log2(np.abs(addends).max())) - 23)
        total = float((np.trunc(addends / grid) * grid).sum())
        grid = 2.0 ** (np.floor(np.log2(abs(total))) - 23) if total else 1.0
        held = float(np.trunc(total / grid) * grid)
    return held


@pytest.mark.parametrize("per_step", [4, 8, 16])
@pytest.mark.parametrize("one_sign", [False, True])
def test_mma_bound_covers_truncating_hardware(per_step: int, one_sign: bool) -> None:
    rng = np.random.default_rng(5)
    for _ in range(30):
        left = rng.standard_normal(4096).astype(np.float16).astype(np.float64)
        right = rng.standard_normal(4096).astype(np.float16).astype(np.float64)
        products = np.abs(left * right) if one_sign else left * right
        error = abs(truncating_mma_chain(products, per_step) - products.sum())
        bound = float(mma_chain_error(products.reshape(-1, MMA_K)))
        assert error <= bound
        if one_sign and per_step == 4:
            assert error > bound / 20, "truncation of one sign adds up: a bound far above it is no bound"


def test_mma_bound_of_one_slice_is_an_alignment_term() -> None:
    products = np.zeros((1, MMA_K))
    products[0, :2] = 1.0, -0.5
    assert MMA_K * ULP < float(mma_chain_error(products)) < 40 * ULP


def test_tree_depth_is_log2_rounded_up() -> None:
    assert [tree_depth(n) for n in (1, 2, 3, 4, 5, 32, 33)] == [0, 1, 2, 2, 3, 5, 6]
