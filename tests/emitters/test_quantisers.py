"""The int8 backward pass's host side against float64 products."""

import numpy as np
import pytest

from emitters.quantisers import (
    SMALLEST_SCALE,
    QuantiserError,
    dw_error_bound,
    dx_error_bound,
    quantise_columns,
    quantise_rows,
)


def test_rows_have_one_scale_each_and_reach_127() -> None:
    values = np.array([[1.0, -2.54, 0.5], [0.0, 0.0, 0.0], [1e-3, 0.0, -1e-3]])
    quantised = quantise_rows(values)
    np.testing.assert_allclose(quantised.scale, [0.02, 1.0, 1e-3 / 127])
    assert quantised.code.tolist() == [[50, -127, 25], [0, 0, 0], [127, 0, -127]]


def test_columns_are_rows_of_the_transpose() -> None:
    values = np.random.default_rng(0).standard_normal((7, 5))
    columns, rows = quantise_columns(values), quantise_rows(values.T.copy())
    assert (columns.code == rows.code.T).all()
    assert (columns.scale == rows.scale).all()
    assert (columns.values == rows.values.T).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_line_that_is_not_finite_is_named(value: float) -> None:
    values = np.zeros((4, 3))
    values[2, 1] = value
    with pytest.raises(QuantiserError, match="row 2 must be finite"):
        quantise_rows(values)
    with pytest.raises(QuantiserError, match="column 1 must be finite"):
        quantise_columns(values)


def test_a_scale_that_would_underflow_is_the_smallest_normal() -> None:
    quantised = quantise_rows(np.array([[5e-324, -1e-310]]))
    assert quantised.scale[0] == SMALLEST_SCALE
    assert np.abs(quantised.values - [[5e-324, -1e-310]]).max() <= SMALLEST_SCALE / 2


@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_dx_is_within_its_bound(spread: float) -> None:
    rng = np.random.default_rng(1)
    dy = rng.standard_normal((60, 256)) * 10.0 ** rng.uniform(-spread, spread, (60, 1))
    weights = rng.integers(-1, 2, (96, 256)).astype(np.int8)
    weights[3] = 0
    quantised = quantise_rows(dy)
    exact_integers = quantised.code.astype(np.int64) @ weights.T.astype(np.int64)
    error = np.abs(quantised.scale[:, None] * exact_integers - dy @ weights.T)
    bound = dx_error_bound(quantised, weights)
    assert (error <= bound).all()
    assert (error > bound / 100).any(), "the worst case is not orders of magnitude away"


def test_dx_bound_is_reached_by_the_worst_rounding() -> None:
    dy = np.full((1, 256), 0.5)
    dy[0, 0] = 127.0
    weights = np.ones((1, 256), np.int8)
    quantised = quantise_rows(dy)
    error = abs(float(quantised.code.astype(np.int64).sum()) - dy.sum())
    assert error == 255 * 0.5
    assert error <= dx_error_bound(quantised, weights)[0, 0] <= error * 1.01


def test_dw_is_within_its_bound() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((1782, 64)) * 10.0 ** rng.uniform(-3, 3, (1, 64))
    dy = rng.standard_normal((1782, 48)) * 10.0 ** rng.uniform(-3, 3, (1, 48))
    qx, qy = quantise_columns(x), quantise_columns(dy)
    exact_integers = qx.code.astype(np.int64).T @ qy.code.astype(np.int64)
    error = np.abs(np.outer(qx.scale, qy.scale) * exact_integers - x.T @ dy)
    bound = dw_error_bound(x, dy, qx, qy)
    assert (error <= bound).all()
    assert (error > bound / 1000).any()
