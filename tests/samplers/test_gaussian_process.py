import numpy as np
import pytest
from scipy.stats import multivariate_normal

from search_spaces.space import Parameter
from tuner.samplers.acquisition import expected_improvement
from tuner.samplers.coordinates import Coordinates, distance
from tuner.samplers.covariance import Covariance
from tuner.samplers.gaussian_process import JITTER, Beliefs, Hints, Points, Prior, fit
from tuner.samplers.neighbourhood import Neighbourhood
from tuner.samplers.target import ranked

NONE = Hints(np.zeros(0), np.zeros(0))


def covariance(columns: int) -> Covariance:
    return Covariance(np.linspace(0.5, 2.0, columns), main=0.5, pair=0.7, whole=0.3, noise=0.05)


def by_definition(of: Covariance, x: np.ndarray, y: np.ndarray) -> float:
    """The formula of the module's docstring, written out."""
    each = np.exp(-np.minimum(np.abs(x - y), 1) / of.lengths)
    columns = len(each)
    pairs = [each[d] * each[e] for d in range(columns) for e in range(d)]
    pair = of.pair * float(np.mean(pairs)) if pairs else 0.0
    return float(of.main * each.mean() + pair + of.whole * each.prod())


def points(coordinates: np.ndarray, features: int = 0) -> Points:
    rng = np.random.default_rng(5)
    return Points(coordinates.astype(np.float32), rng.normal(size=(len(coordinates), features)).astype("f4"))


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_covariance_is_its_definition(columns: int) -> None:
    of = covariance(columns)
    places = np.random.default_rng(0).random((6, columns)).astype(np.float32)
    expected = [[by_definition(of, x, y) for y in places] for x in places]
    for row, place in enumerate(places):
        np.testing.assert_allclose(of.with_point(places, place), expected[row], rtol=1e-5)
    rows, others = np.tril_indices(6, -1)
    apart = distance(places[rows], places[others]).T.astype(np.float64)
    np.testing.assert_allclose(of.of_pairs(apart).covariances, np.array(expected)[rows, others], rtol=1e-5)
    assert of.variance == pytest.approx(expected[0][0])


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_slopes_are_those_of_finite_differences(columns: int) -> None:
    rng = np.random.default_rng(1)
    apart, weights, diagonal = rng.random((columns, 20)), rng.normal(size=20), 0.7
    logs = 0.5 * rng.normal(size=columns + 4)

    def total(at: np.ndarray) -> float:
        of = Covariance.unpack(at)
        return float(weights @ of.of_pairs(apart).covariances + diagonal * (of.variance + of.noise))

    of = Covariance.unpack(logs)
    steps = 1e-6 * np.eye(columns + 4)
    expected = [(total(logs + step) - total(logs - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(of.slopes(of.of_pairs(apart), weights, diagonal), expected, atol=1e-7)


def test_beliefs_are_the_conditional_gaussian() -> None:
    """Against the textbook formula on the joint covariance, hints included."""
    rng = np.random.default_rng(2)
    everything = points(rng.random((12, 3)), features=2)
    hints = Hints(np.array([0.4, -0.2]), np.array([0.3, 0.6]))
    of = covariance(3)
    places, features = everything.coordinates.astype(float), everything.features.astype(float)
    joint = np.array([[by_definition(of, x, y) for y in places] for x in places])
    joint += (features * hints.spreads) @ (features * hints.spreads).T
    mean = features @ hints.weights
    seen, targets = np.arange(5), rng.normal(size=5)
    inside = joint[np.ix_(seen, seen)] + (of.noise + JITTER) * np.eye(5)
    gain = joint[:, seen] @ np.linalg.inv(inside)
    expected = mean + gain @ (targets - mean[seen])
    spread = np.sqrt(np.diag(joint - gain @ joint[seen]))

    at_once = Beliefs(of, hints, everything)
    at_once.observe(everything[seen])
    one_by_one = Beliefs(of, hints, everything)
    for number in seen:
        one_by_one.observe(everything[number : number + 1])
    for beliefs in (at_once, one_by_one):
        np.testing.assert_allclose(beliefs.means(targets), expected, atol=2e-4)
        np.testing.assert_allclose(beliefs.spreads(), spread, atol=2e-4)


def test_forgetting_undoes_observing() -> None:
    rng = np.random.default_rng(3)
    everything = points(rng.random((20, 4)))
    beliefs = Beliefs(covariance(4), NONE, everything)
    beliefs.observe(everything[:6])
    means, spreads = beliefs.means(np.arange(6.0)), beliefs.spreads()
    beliefs.observe(everything[6:15])
    assert not np.allclose(beliefs.spreads(), spreads)
    beliefs.forget(9)
    np.testing.assert_allclose(beliefs.spreads(), spreads, atol=1e-4)
    np.testing.assert_allclose(beliefs.means(np.arange(6.0)), means, atol=1e-4)
    assert len(beliefs) == 6


def test_pending_observations_narrow_spreads_and_leave_means() -> None:
    everything = points(np.random.default_rng(4).random((20, 3)))
    beliefs = Beliefs(covariance(3), NONE, everything)
    beliefs.observe(everything[:6])
    means, spreads = beliefs.means(np.arange(6.0)), beliefs.spreads()
    beliefs.observe(everything[6:7])
    np.testing.assert_allclose(beliefs.means(np.arange(6.0)), means, atol=1e-5)
    assert np.all(beliefs.spreads() <= spreads + 1e-6)
    assert beliefs.spreads()[6] < spreads[6] / 2


def test_fitting_finds_the_parameter_that_matters() -> None:
    rng = np.random.default_rng(5)
    places = rng.random((60, 3))
    targets = ranked(np.abs(places[:, 1] - 0.3) + 0.01 * rng.random(60))
    lengths = fit(points(places), targets, NONE, Prior()).covariance.lengths
    assert lengths[1] < 0.5 * min(lengths[0], lengths[2])


def test_fitting_reaches_the_maximum_it_claims() -> None:
    """No step from the fitted numbers raises likelihood times prior, computed by SciPy's own Gaussian."""
    rng = np.random.default_rng(6)
    places, prior = rng.random((15, 2)).astype(np.float32), Prior()
    targets = ranked(places[:, 0] + 0.2 * rng.random(15))
    fitted = fit(points(places), targets, NONE, prior).covariance
    found = np.log([*fitted.lengths, fitted.main, fitted.pair, fitted.whole, fitted.noise])

    def log_posterior(logs: np.ndarray) -> float:
        of = Covariance.unpack(logs)
        matrix = np.array([[by_definition(of, x, y) for y in places] for x in places])
        off = (logs - prior.logs(2)) / prior.log_spread
        gaussian = multivariate_normal(np.zeros(15), matrix + (of.noise + JITTER) * np.eye(15))
        return float(gaussian.logpdf(targets) - 0.5 * off @ off)

    best = log_posterior(found)
    for step in 0.2 * np.concatenate([np.eye(6), -np.eye(6)]):
        assert log_posterior(found + step) < best


def test_a_wrong_hint_fades_and_a_right_one_stays() -> None:
    rng = np.random.default_rng(7)
    truth = rng.normal(size=200)
    places = rng.random((200, 2)).astype(np.float32)
    hints = Hints(np.array([0.7]), np.array([0.5]))
    seen = np.arange(60)
    for sign in (1.0, -1.0):
        everything = Points(places, (sign * truth[:, None]).astype(np.float32))
        beliefs = Beliefs(fit(everything[seen], truth[seen], hints, Prior()).covariance, hints, everything)
        before = np.corrcoef(beliefs.means(truth[:0]), truth)[0, 1]
        beliefs.observe(everything[seen])
        after = np.corrcoef(beliefs.means(truth[seen])[60:], truth[60:])[0, 1]
        assert before * sign > 0.99
        assert after > 0.9


def test_expected_improvement_against_an_integral() -> None:
    rng = np.random.default_rng(8)
    drawn = 0.3 + 0.8 * rng.standard_normal(2_000_000)
    expected = np.maximum(0.1 - drawn, 0).mean()
    found = expected_improvement(np.array([0.3]), np.array([0.8]), 0.1)
    assert found[0] == pytest.approx(expected, rel=0.01)


def test_ranks_put_failures_last_and_share_ties() -> None:
    targets = ranked(np.array([3.0, np.nan, 1.0, 3.0, np.nan]))
    assert targets.argmin() == 2
    assert targets[0] == targets[3] < targets[1] == targets[4]
    np.testing.assert_allclose(ranked(np.array([9.0, 2.0, 5.0])), [0.967, -0.967, 0.0], atol=1e-3)


def coordinates_of(kind: str, *values: int | str | bool) -> np.ndarray:
    coordinates = Coordinates.of([Parameter("p", values, kind, "")])
    return coordinates.at(np.arange(len(values))[:, None])


def test_coordinates_follow_the_kind_of_a_parameter() -> None:
    np.testing.assert_allclose(coordinates_of("power", 16, 32, 64, 128)[:, 0], [0, 1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(coordinates_of("ordinal", 0, 8, 128)[:, 0], [0, 0.5, 1])
    text = coordinates_of("nominal", "wide", "narrow", "split")
    assert [distance(text, row)[:, 0].tolist() for row in text] == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert coordinates_of("power", 64).shape == (1, 0)


def test_sizes_that_are_no_powers_of_two_tell_how_often_two_divides_them() -> None:
    columns = coordinates_of("power", 32, 48, 64, 96)
    assert columns.shape == (4, 2)
    np.testing.assert_allclose(columns[:, 1], [0.5, 0, 1, 0.5])  # 2^5, 2^4, 2^6, 2^5
    assert coordinates_of("power", 32, 64, 128).shape == (3, 1)


def test_neighbours_are_the_schedules_that_differ_in_one_parameter() -> None:
    rng = np.random.default_rng(9)
    every = np.stack(np.unravel_index(np.arange(4 * 3 * 5 * 2), (4, 3, 5, 2)), axis=1).astype(np.int16)
    levels = rng.permutation(every)[:70]
    neighbourhood = Neighbourhood(levels)
    for schedule in range(70):
        differing = np.count_nonzero(levels != levels[schedule], axis=1)
        assert sorted(neighbourhood.of(schedule)) == np.flatnonzero(differing == 1).tolist()


def test_neighbours_are_found_where_there_are_more_combinations_than_integers() -> None:
    levels = np.random.default_rng(9).integers(8, size=(300, 30)).astype(np.int16)
    levels[7] = levels[200]
    levels[7, 11] = (levels[200, 11] + 3) % 8
    neighbourhood = Neighbourhood(levels)
    assert [neighbourhood.of(schedule).tolist() for schedule in (7, 200, 0)] == [[200], [7], []]
