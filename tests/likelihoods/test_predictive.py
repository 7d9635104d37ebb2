"""Distributions of new observations: exact where x and y are normal, else by fine nodes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp, ndtri

from factorflow.likelihoods import Likelihood, get_likelihood
from factorflow.likelihoods.predictive import Predictive

MEAN, VARIANCE = np.array([-1.0, 0.3, 2.0]), np.array([0.2, 1.5, 0.6])


def fine(of: Predictive) -> list[tuple[np.ndarray, float]]:
    t = np.linspace(-10.0, 10.0, 801)
    weights = stats.norm.pdf(t) / stats.norm.pdf(t).sum()
    return [(of.mean + np.sqrt(of.variance) * a, w) for a, w in zip(t, weights, strict=True)]


def test_a_normal_entry_of_a_normal_predictor_is_normal() -> None:
    noise = np.array([[0.05, 1.0, 2.0]])
    of = Predictive(get_likelihood("gaussian"), MEAN, VARIANCE, np.log(noise))
    known = stats.norm(MEAN, np.sqrt(VARIANCE + noise[0] ** 2))
    y = np.array([-2.0, 1.0, 2.5])
    np.testing.assert_allclose(of.log_density(y), known.logpdf(y), rtol=1e-4)
    low, high = of.tails(y)
    np.testing.assert_allclose(low, known.cdf(y), rtol=1e-3)
    np.testing.assert_allclose(high, known.sf(y), rtol=1e-3)
    for found, expected in zip(of.interval(0.9), known.interval(0.9), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    mean, sd = of.mean_and_sd()
    np.testing.assert_allclose(mean, MEAN)
    np.testing.assert_allclose(sd, known.std())


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["poisson", "negative_binomial", "binomial(trials=9)", "student_t(nu=3)"])
def test_other_entries_are_mixtures(name: str) -> None:
    density: Likelihood = get_likelihood(name)
    phi = np.array([[0.4, -0.2, 0.1]])[: density.n_phi]
    of = Predictive(density, MEAN, VARIANCE, phi)
    for y in (
        np.zeros(3),
        np.array([1.0, 3.0, 8.0]) if "binomial(" in name else np.array([1.0, 30.0, 400.0]),
    ):
        terms = [np.log(w) + density.log_density(y, x, phi) for x, w in fine(of)]
        np.testing.assert_allclose(of.log_density(y), logsumexp(terms, axis=0), rtol=1e-3)
        tails = [np.stack(density.tails(y, x, phi)) * w for x, w in fine(of)]
        np.testing.assert_allclose(of.tails(y), np.sum(tails, axis=0), atol=5e-4)
    low, high = of.interval(0.8)
    below, above = of.tails(low)[0], of.tails(high)[1]
    assert (below <= 0.1 + 1e-6).all()
    assert (above <= 0.1 + 1e-6).all()
    if density.discrete:  # one less would be too few
        assert (of.tails(high - 1.0)[1] > 0.1).all()
        assert ((low == 0) | (of.tails(low + 1.0)[0] >= 0.1 - 1e-6)).all()
    else:
        np.testing.assert_allclose([below, above], 0.1, atol=1e-5)
    mean, sd = of.mean_and_sd()
    moments = [(w, *density.moments(x, phi)) for x, w in fine(of)]
    centre = sum(w * m for w, m, _ in moments)
    np.testing.assert_allclose(mean, centre, rtol=1e-6)
    np.testing.assert_allclose(sd**2, sum(w * (v + m**2) for w, m, v in moments) - centre**2, rtol=1e-4)


def test_of_some_entries() -> None:
    phi = np.array([[0.4, -0.2, 0.1]])
    of = Predictive(
        get_likelihood("negative_binomial"), np.stack([MEAN, 0.0 * MEAN]), VARIANCE + np.zeros((2, 3)), phi
    )
    rows, columns = np.array([0, 1, 1]), np.array([2, 0, 2])
    y = np.array([1.0, 0.0, 4.0])
    whole = np.zeros((2, 3))
    whole[rows, columns] = y
    np.testing.assert_allclose(of.at((rows, columns)).log_density(y), of.log_density(whole)[rows, columns])
    plain = Predictive(get_likelihood("poisson"), of.mean, of.variance, np.zeros((0, 1)))
    np.testing.assert_allclose(
        plain.at((rows, columns)).log_density(y), plain.log_density(whole)[rows, columns]
    )


@pytest.mark.parametrize("name", ["poisson", "student_t", "binomial(trials=40)"])
def test_an_entry_does_not_depend_on_those_beside_it(name: str) -> None:
    """Bit for bit: what is asked for at once is a matter of blocks and slices."""
    density = get_likelihood(name)
    mean, variance = np.array([-1.0, 6.0, 0.2]), np.array([0.01, 0.9, 2.0])  # of few nodes and of many
    of = Predictive(density, mean, variance, np.full((density.n_phi, 3), -0.5))
    y = np.array([1.0, 30.0, 3.0])
    together = [of.log_density(y), *of.tails(y), *of.interval(0.9)]
    for i in range(3):
        one = of.at(np.array([i]))
        alone = [one.log_density(y[i : i + 1]), *one.tails(y[i : i + 1]), *one.interval(0.9)]
        assert [float(part[0]) for part in alone] == [float(part[i]) for part in together]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    ["poisson", "negative_binomial", pytest.param("zero_inflated_negative_binomial", marks=pytest.mark.slow)],
)
def test_intervals_of_rates_that_are_hardly_known(name: str) -> None:
    """Where x says little, quantiles are those of e^x; SciPy's of large counts are NaN."""
    likelihood = get_likelihood(name)
    phi = np.array([[9.0], [-40.0]])[: likelihood.n_phi]
    found = Predictive(likelihood, np.array([25.0, 2.0]), np.array([4.0, 900.0]), phi).interval(0.8)
    np.testing.assert_allclose(np.log(np.array(found)[:, 0]), 25.0 + 2.0 * ndtri([0.1, 0.9]), atol=0.02)
    assert np.log(found[1][1]) == pytest.approx(2.0 + 30.0 * ndtri(0.9), abs=0.1)
    assert found[0][1] == 0.0


def test_a_density_of_0_is_no_reason_to_warn() -> None:
    """Of a feature that hardly varies quantiles are found by halves, to the step between nodes."""
    of = Predictive(get_likelihood("lognormal"), np.array([1.0]), np.array([40.0]), np.array([[-9.0]]))
    found = np.log(of.interval(0.8))
    np.testing.assert_allclose(found[:, 0], 1.0 + 40**0.5 * ndtri([0.1, 0.9]), atol=40**0.5 / 32)


def test_a_lognormal_entry_tells_of_its_logarithm() -> None:
    """Not of its mean, of which large noise leaves nothing."""
    phi, x = np.array([[2.0]]), np.array([0.5])
    found = get_likelihood("lognormal").information(x, phi)
    np.testing.assert_allclose(found, np.exp(-4.0))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "phi"), [("logit_normal", 0.0), ("lognormal", 0.0), ("beta", 2.0), ("gamma", 0.0)]
)
def test_intervals_that_reach_where_entries_end(name: str, phi: float) -> None:
    """Numbers that are not told from 0 or 1 have no logarithm or log odds."""
    likelihood = get_likelihood(name)
    low, high = Predictive(likelihood, np.array([0.0]), np.array([9e4]), np.array([[phi]])).interval(0.8)
    assert likelihood.smallest < low[0] < 1e-15
    assert 1.0 - 1e-9 < high[0] < likelihood.largest
