"""Every likelihood: messages, bounds, probabilities, moments and draws agree with its log density.

``entries.json`` has messages and predictions of an independent implementation in double precision.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorflow.errors import InputError
from factorflow.kernels.random import Step
from factorflow.likelihoods import Likelihood, Message, get_likelihood, likelihood_names, quadrature
from factorflow.likelihoods.base import REACH
from factorflow.likelihoods.binomial import Binomial
from factorflow.likelihoods.gaussian import Gaussian
from factorflow.likelihoods.ordinal import Ordinal
from factorflow.likelihoods.survival import Survival, baseline_hazard, event_intervals

ENTRIES = json.loads((Path(__file__).parent / "entries.json").read_text())
M, V = np.array([ENTRIES["mean"]]), np.array([ENTRIES["variance"]])
NAMES = likelihood_names()
BOUNDED = tuple(name for name in NAMES if get_likelihood(name).has_bound)


def arrays(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    aux = None if case["aux"] is None else np.array([case["aux"]])
    return np.array([case["y"]]), np.array(case["phi"]), aux


def example(name: str, n: int, seed: int = 0) -> tuple[Likelihood, np.ndarray, np.ndarray, np.ndarray | None]:
    """Return a likelihood with x, phi and trials of n entries."""
    rng = np.random.default_rng(seed)
    text = "survival(times=0.4:1.5, hazards=0.5:1:2)" if name == "survival" else name
    density = get_likelihood(text).for_entries(4.0)
    phi = rng.normal(0.3, 0.5, (density.n_phi, n))
    aux = rng.integers(1, 12, n).astype(float) if name == "binomial" else None
    x = rng.normal(0.0, 1.5, n)
    if name.startswith("zero"):  # not far from where fits begin
        phi[-1] -= 2.3
    if density.largest == 1.0 and not density.discrete:  # not so near the ends that numbers round to them
        x, phi = 0.4 * x, phi + (2.0 if name == "beta" else 0.0)
    return density, x, phi, aux


def integral(density: Likelihood, x: float) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers that an entry may be, and the lengths between them, evenly where x is."""
    if density.largest == 1.0:
        t, step = np.linspace(-60.0, 60.0, 1_000_001, retstep=True)
        return 1.0 / (1.0 + np.exp(-t)), step / (2.0 + np.exp(t) + np.exp(-t))
    if density.smallest == 0.0:
        t, step = np.linspace(x - 60.0, x + 60.0, 1_000_001, retstep=True)
        return np.exp(t), step * np.exp(t)
    y, step = np.linspace(x - 4000.0, x + 4000.0, 4_000_001, retstep=True)
    return y, np.full(len(y), step)


def support(name: str, aux: float | None) -> np.ndarray:
    if name == "bernoulli":
        return np.arange(2.0)
    if name == "binomial":
        return np.arange(aux + 1.0) if aux is not None else np.arange(2.0)
    if name == "ordinal":
        return np.arange(5.0)
    return np.arange(20_000.0)


@pytest.mark.parametrize("case", ENTRIES["cases"], ids=lambda case: f"{case['likelihood']} {case['how']}")
def test_messages_and_predictions_of_another_implementation(case: dict[str, Any]) -> None:
    density, (y, phi, aux) = get_likelihood(case["likelihood"]), arrays(case)
    found = (
        density.bound(y, M, V, phi, aux) if case["how"] == "bound" else quadrature(density, y, M, V, phi, aux)
    )
    assert found is not None
    found = found._replace(value=found.value + density.log_factor(y, phi, aux))
    for name in Message._fields:
        np.testing.assert_allclose(getattr(found, name)[0], case[name], rtol=1e-10, atol=1e-10)
    mean, variance = density.predict(M, V, phi, aux)
    np.testing.assert_allclose(mean[0], case["predicted_mean"], rtol=1e-5)
    np.testing.assert_allclose(variance[0], case["predicted_variance"], rtol=1e-5)


def test_ordinal_messages_of_another_implementation() -> None:
    """It has a cutpoint c_0 in place of an intercept: x less c_0 is the same."""
    case = ENTRIES["ordinal"]
    y, cuts, _ = arrays(case)
    density, m = Ordinal(levels=4), M - cuts[0]
    phi = density.phi_from_report({"cutpoint_1": cuts[1] - cuts[0], "cutpoint_2": cuts[2] - cuts[0]})
    for tolerance, form in ((1e-10, quadrature), (2e-4, Ordinal.terms)):
        message = form(density, y, m, V, phi)
        message = message._replace(value=message.value + density.log_factor(y, phi))
        for name in Message._fields:
            np.testing.assert_allclose(getattr(message, name)[0], case[name], rtol=tolerance, atol=tolerance)
    mean, variance = density.predict(m, V, phi)
    np.testing.assert_allclose(mean[0], case["predicted_mean"], rtol=1e-5)
    np.testing.assert_allclose(variance[0], case["predicted_variance"], rtol=1e-5)


def test_censored_messages_of_another_implementation() -> None:
    case = ENTRIES["censored"]
    y, phi, side = arrays(case)
    density = get_likelihood("censored")
    found = density.terms(y, M, V, phi, side)
    for name in Message._fields:
        np.testing.assert_allclose(getattr(found, name)[0], case[name], rtol=1e-10, atol=1e-10)
    mean, variance = density.predict(M, V, phi, side)
    np.testing.assert_allclose(mean[0], case["predicted_mean"], rtol=1e-10)
    np.testing.assert_allclose(variance[0], case["predicted_variance"], rtol=1e-10)
    for s in (-1.0, 1.0):  # the probability of an entry on its side
        log_p = density.log_density(y, M, phi, np.full_like(y, s))
        np.testing.assert_allclose(np.exp(log_p), density.tails(y, M, phi)[int(s > 0)], rtol=1e-12)


def test_two_levels_are_a_binary_entry() -> None:
    y, m, v, phi = np.array([0.0, 1.0]), np.array([-1.0, 0.4]), np.array([0.3, 2.0]), np.zeros((0, 2))
    two, binary = Ordinal(levels=2), get_likelihood("bernoulli")
    for a, b in zip(two.message(y, m, v, phi), binary.message(y, m, v, phi), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_closed_forms_are_those_of_many_nodes(name: str) -> None:
    density, m, phi, aux = example(name, 400)
    v = np.random.default_rng(1).uniform(0.01, 1.0, 400)
    y = density.draw(np.random.default_rng(2).random(400), m, phi, aux)
    if name != "student_t" and not name.startswith("zero"):  # messages of the bound, or of few nodes
        for a, b in zip(
            density.terms(y, m, v, phi, aux), quadrature(density, y, m, v, phi, aux, 101), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5 * np.abs(b).max())
    mean, variance = density.predict(m, v, phi, aux)
    expected = Likelihood.predict(density, m, v, phi, aux)
    np.testing.assert_allclose(mean, expected[0], rtol=1e-5)
    np.testing.assert_allclose(variance, expected[1], rtol=1e-3 if name == "logit_normal" else 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_slope_and_curvature_are_derivatives_of_the_value(name: str) -> None:
    """g by m, and -u / 2 by v: what makes one tangent serve means and variances."""
    density, m, phi, aux = example(name, 200)
    v, h = np.full(200, 0.7), 1e-4
    y = density.draw(np.random.default_rng(2).random(200), m, phi, aux)
    forms = []
    if name != "student_t":  # sums over nodes converge slowly for heavy tails
        forms.append(lambda m, v: quadrature(density, y, m, v, phi, aux, 41))
    if name in BOUNDED:
        forms.append(lambda m, v: density.bound(y, m, v, phi, aux))  # type: ignore[arg-type,return-value]
    for form in forms:
        _, slope, curvature = form(m, v)
        scale = 1.0 + np.abs(slope).max()
        by_m = (form(m + h, v)[0] - form(m - h, v)[0]) / (2 * h)
        by_v = (form(m, v + h)[0] - form(m, v - h)[0]) / (2 * h)
        np.testing.assert_allclose(by_m, slope, atol=1e-6 * scale)
        np.testing.assert_allclose(-2.0 * by_v, curvature, atol=2e-5 * scale)


@pytest.mark.parametrize("name", ["negative_binomial", "student_t"])
def test_derivatives_in_phi_are_those_of_the_log_density(name: str) -> None:
    """By smaller steps, in double precision; of three parameters crosswise, too."""
    density, x, phi, _ = example(name, 200)
    y, h = density.draw(np.random.default_rng(2).random(200), x, phi), 1e-3
    if name == "negative_binomial":  # x known: the table is of single precision
        forms = [density.phi_derivatives, lambda *a: Likelihood.phi_derivatives(density, *a)]
        v = np.full(200, 0.3)

        def value(moved: np.ndarray) -> np.ndarray:
            return quadrature(density, y, x, v, moved, None, 41).value + density.log_factor(y, moved)
    else:
        forms, v = [density.phi_derivatives], 0.0 * x

        def value(moved: np.ndarray) -> np.ndarray:
            return density.log_density(y, x, moved)

    up, here, down = value(phi + h), value(phi), value(phi - h)
    for form in forms:
        found = form(y, x, v, phi)
        np.testing.assert_allclose(found[0], (up - down) / (2 * h), atol=3e-3 * (1 + np.abs(y).max() ** 0.5))
        np.testing.assert_allclose(found[1], (up - 2 * here + down) / h**2, atol=2e-2 * (1 + y.max() ** 0.5))


def test_derivatives_in_phi_of_a_bound_are_those_of_its_value() -> None:
    density, m, phi, _ = example("negative_binomial", 200)
    y, v, h = density.draw(np.random.default_rng(2).random(200), m, phi), np.full(200, 0.3), 1e-3

    def value(moved: np.ndarray) -> np.ndarray:
        return density.bound(y, m, v, moved).value + density.log_factor(y, moved)

    up, here, down = value(phi + h), value(phi), value(phi - h)
    found = density.phi_derivatives(y, m, v, phi, bounded=True)
    np.testing.assert_allclose(found[0], (up - down) / (2 * h), atol=3e-3 * (1 + y.max() ** 0.5))
    np.testing.assert_allclose(found[1], (up - 2 * here + down) / h**2, atol=2e-2 * (1 + y.max() ** 0.5))
    assert np.abs(found[0] - density.phi_derivatives(y, m, v, phi)[0]).max() > 0.05  # not of E log p


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_are_below_the_expectation(name: str) -> None:
    density, m, phi, aux = example(name, 10_000)
    v = np.random.default_rng(3).exponential(1.0, 10_000)
    y = density.draw(np.random.default_rng(2).random(10_000), m, phi, aux)
    bound = density.bound(y, m, v, phi, aux)
    assert bound is not None
    above = quadrature(density, y, m, v, phi, aux, 101).value - bound.value
    assert above.min() > -1e-6 * (1.0 if name != "student_t" else 1e4)  # nodes of heavy tails err by as much
    assert bound.curvature.min() > 0
    if not isinstance(density, Gaussian):  # of normal noise it is exact
        assert above.max() > 0.01
    exact = density.bound(y, m, 0.0 * v, phi, aux)
    assert exact is not None
    np.testing.assert_allclose(exact.value, density.log_kernel(y, m, phi, aux), atol=1e-8)


def test_survival_is_a_poisson_entry_with_an_offset_and_breslows_baseline() -> None:
    """Of an independent implementation; and times of 0, between intervals, beyond all events."""
    case = json.loads((Path(__file__).parent / "survival.json").read_text())
    time, event, rate = (np.array(case[name]) for name in ("time", "event", "rate"))
    edges = case["edges"][1:-1]
    hazard = baseline_hazard(edges, time, event, rate)
    np.testing.assert_allclose(hazard, case["hazard"], rtol=1e-10)
    density = Survival(":".join(map(repr, edges)), "1")
    phi = np.log(hazard)[:, None]
    np.testing.assert_allclose(density.cumulative_hazard(time, phi[:, 0]), case["cumulative"], rtol=1e-10)
    m, v = np.log(rate) - 0.2, np.full(len(time), 0.4)
    poisson, level = get_likelihood("poisson"), np.log(case["cumulative"])
    found = density.message(time, m, v, phi[:, 0], 1.0 - event)
    expected = poisson.message(event, m + level, v, np.empty((0, 1)))
    for name in ("slope", "curvature"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.value + event * level, expected.value, rtol=1e-10)
    start = np.zeros((1, 3))  # any estimate: one update is exact
    sums = density.phi_derivatives(time[:, None], m[:, None], v[:, None], start.T, 1.0 - event[:, None])
    np.testing.assert_allclose(density.update_phi(start, sums.sum(axis=1).T), phi.T, rtol=1e-10)
    odd = np.array([0.0, 0.4, 1.0, 50.0])
    inside = np.array(density.within(odd))
    np.testing.assert_array_equal(inside.argmax(axis=0), [0, 0, 1, 2])
    np.testing.assert_array_equal(inside.sum(axis=0), 1)
    assert np.isfinite(density.log_density(odd, odd, phi[:, 0], np.zeros(4))).all()


def test_intervals_are_quintiles_of_events_and_ties_join_them() -> None:
    time, event = np.arange(1.0, 21.0), np.resize([1.0, 0.0], 20)
    assert event_intervals(time, event) == [3.0, 7.0, 11.0, 15.0]
    assert event_intervals(np.resize([2.0, 5.0], 20), np.ones(20)) == [2.0]
    assert event_intervals(np.zeros(3), np.ones(3)) == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_probabilities_sum_to_one_and_have_the_moments(name: str) -> None:
    density, x, phi, aux = example(name, 12)
    for i in range(12):
        x_i, phi_i = x[i : i + 1], phi[:, i : i + 1]
        n = None if aux is None else aux[i : i + 1]
        if density.discrete:
            y, step = support(name, None if n is None else float(n[0])), 1.0
        else:
            y, step = integral(density, x[i])
            y, step = y[inside := (density.smallest < y) & (y < density.largest)], step[inside]
        p = np.exp(density.log_density(y, x_i, phi_i, n)) * step
        mean, variance = (float(a[0]) for a in density.moments(x_i, phi_i, n))
        jumps = 1e-3 * (name == "survival")  # of the density, between intervals
        assert p.sum() == pytest.approx(1.0, abs=1e-8 + jumps)
        assert (p * y).sum() == pytest.approx(mean, rel=1e-7 + jumps, abs=1e-8)
        tolerance = 2e-3 if name == "student_t" else 1e-6 + jumps  # its tails go on beyond 4000
        assert (p * (y - mean) ** 2).sum() == pytest.approx(variance, rel=tolerance)
        at = y[np.abs(y - mean).argmin() + np.array([0, 1])] if len(y) > 2 else y
        low, high = density.tails(at, x_i, phi_i, n)
        for value, first, last in zip(at, low, high, strict=True):
            half = 0.0 if density.discrete else 0.5 * float(p[y == value].sum())
            assert first == pytest.approx(p[y < value].sum() + half, abs=1e-7 + jumps)
            assert last == pytest.approx(p[y > value].sum() + half, abs=1e-7 + jumps)


@pytest.mark.parametrize("name", NAMES)
def test_draws_have_the_moments_and_invert_the_distribution(name: str) -> None:
    """Means within four standard errors; a draw is the smallest value with as much below it."""
    density, x, phi, aux = example(name, 6)
    n = 40_000
    uniform = Step(7).uniform(3, np.arange(n), 6)
    y = density.draw(uniform, x, phi, aux)
    mean, variance = density.moments(x, phi, aux)
    np.testing.assert_array_less(np.abs(y.mean(axis=0) - mean), 4.0 * np.sqrt(variance / n))
    low, high = density.tails(y, x, phi, aux)
    if density.discrete:
        assert (low < uniform).all()
        assert (uniform <= 1.0 - high + 1e-12).all()
    else:
        np.testing.assert_allclose(low, uniform, atol=1e-9)
    np.testing.assert_array_equal(density.draw(uniform[5:9], x, phi, aux), y[5:9])


def test_a_binary_entry_is_one_trial_and_many_trials_are_as_many_entries() -> None:
    bernoulli, binomial = get_likelihood("bernoulli"), get_likelihood("binomial")
    m, v, phi = np.array([[-1.0, 0.5]]), np.array([[0.4, 2.0]]), np.empty((0, 2))
    y, n = np.array([[3.0, 5.0]]), np.array([[7.0, 5.0]])
    one = [bernoulli.message(np.full((1, 2), k), m, v, phi) for k in (0.0, 1.0)]
    all_ = binomial.message(y, m, v, phi, n)
    np.testing.assert_allclose(all_.slope, (n - y) * one[0].slope + y * one[1].slope, atol=1e-12)
    np.testing.assert_allclose(all_.curvature, n * one[0].curvature, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_messages_of_missing_entries_are_0_and_steps_are_limited(name: str) -> None:
    density, m, phi, aux = example(name, 50)
    y = density.draw(np.random.default_rng(2).random(50), m, phi, aux)
    y[::7] = np.nan
    far = 8.0 * np.ones(50)
    found = density.message(y, m - far, 0.1 * np.ones(50), phi, aux)
    for part in found:
        assert not part[::7].any()
        assert np.isfinite(part).all()
    seen = ~np.isnan(y)
    assert (found.curvature[seen] > 0).all()
    if density.limited:
        reach = np.abs(found.slope[seen]) / found.curvature[seen]
        assert reach.max() <= REACH * (1 + 1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if get_likelihood(name).has_intercept])
def test_start_and_intercept_are_near_the_truth(name: str) -> None:
    """Of features that differ in nothing but noise."""
    density, x, phi, _ = example(name, 5)
    aux = np.full((4000, 5), 9.0) if name == "binomial" else None
    y = density.draw(Step(1).uniform(3, np.arange(4000), 5), x, phi, aux)
    n = np.full(5, 4000.0 if aux is None else 36_000.0)
    seen = np.asarray(density.start(y), float)
    assert np.isfinite(seen).all()
    mean, square = y.mean(axis=0), (y**2).mean(axis=0)
    if not density.discrete or density.levels:  # roots of counts, of trials that differ
        mean, variance = density.start_moments(seen.mean(axis=0), seen.var(axis=0))
        square = variance + mean**2
    x_start = density.intercept(np.full(5, n[0]), 4000.0 * mean)
    np.testing.assert_allclose(x_start, x, atol=1.5 if density.levels else 0.25)  # of gaps that differ
    start = density.phi_start(np.full(5, 4000.0), 4000.0 * mean, 4000.0 * square)
    assert start.shape == phi.shape
    if not density.discrete:
        np.testing.assert_allclose(start, phi, atol=0.3)


@pytest.mark.parametrize("name", ["beta", "censored", "zero_inflated_negative_binomial"])
def test_messages_of_single_precision_are_those_of_double(name: str) -> None:
    """Curvatures of nearly known predictors are small differences."""
    density, m, phi, _ = example(name, 200)
    y, v = density.draw(np.random.default_rng(2).random(200), m, phi), np.full(200, 1e-4)
    aux = np.resize([0.0, -1.0, 1.0], 200) if name == "censored" else None
    single = [None if a is None else a.astype(np.float32) for a in (y, m, v, phi, aux)]
    double = [None if a is None else a.astype(np.float64) for a in single]
    for a, b in zip(density.terms(*single), density.terms(*double), strict=True):  # type: ignore[arg-type]
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max())


def test_names() -> None:
    assert {"bernoulli", "binomial", "gaussian", "negative_binomial", "poisson", "student_t"} <= set(NAMES)
    assert get_likelihood("student_t(nu=7)").nu == 7.0  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="poisson"):
        get_likelihood("posson")


def test_the_strict_namespace_equals_numpy() -> None:
    import array_api_strict as strict

    for name in NAMES:
        density, m, phi, aux = example(name, 30)
        y = density.draw(np.random.default_rng(2).random(30), m, phi, aux)
        arguments = (y, m, np.full(30, 0.5), phi, aux)
        device = [None if a is None else strict.asarray(a) for a in arguments]
        for a, b in zip(quadrature(density, *device), quadrature(density, *arguments), strict=True):  # type: ignore[arg-type]
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("trials", [1, 12])
def test_moments_of_binomial_entries_are_those_before_the_start(trials: int) -> None:
    """The start sees entries of about one noise variance."""
    density = Binomial(trials=trials)
    y = np.random.default_rng(0).binomial(trials, 0.3, 400).astype(float)
    seen = np.asarray(density.start(y), float)
    mean, variance = density.start_moments(seen.mean(), seen.var())
    assert mean == pytest.approx(y.mean(), rel=1e-6)
    assert variance == pytest.approx(y.var(), rel=1e-6)
    assert seen.var() == pytest.approx(0.3 * 0.7, rel=0.2)


def test_information_of_positive_measurements_is_the_precision_of_their_noise() -> None:
    """However large the noise is: the mean of the entries then says next to nothing of x."""
    phi, x = np.array([[-1.0, 3.0]]), np.zeros((4, 2))
    information = get_likelihood("lognormal").information(x, phi)
    np.testing.assert_allclose(information, np.broadcast_to(np.exp(-2.0 * phi), (4, 2)))
