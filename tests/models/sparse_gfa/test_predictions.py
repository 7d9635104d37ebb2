"""Predictions against Monte Carlo from q, as the stored variables describe it, and against their formulas.

Means and variances of x = b + w'z are exact, so they are held to Monte-Carlo error: |z| < 6, normal, is a
false alarm of 2e-9 a comparison, 1e-5 for the some thousand comparisons of this file. E[sigma(x)] and E[e^x]
are those of a normal x, held to what they reach where it is nearly so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.special import expit

import factorflow
from factorflow.api import Posterior
from factorflow.models import SparseGFA

LIKELIHOODS = {"rna": "gaussian", "mutation": "bernoulli", "count": "poisson"}
WIDTHS = {"rna": 6, "mutation": 5, "count": 4}
N_ROWS, N_DRAWS = 30, 20_000
ROWS = np.array([0, 7, 14, 15, 22, 29])

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "dense": {"loadings": "ard"},
    "horseshoe": {"loadings": "horseshoe"},
    "factorised": {"scores_posterior": "factorised"},
    "grouped noise": {"grouped_noise": True},
    "sample noise": {"noise": "sample"},
    "both noises": {"noise": "both"},
    "spike scores": {"scores": "spike"},
    "scaled features": {"scale_features": True},
    "no intercepts": {"intercepts": False},
    "negative binomial": {"likelihoods": "negative_binomial"},
}


def views(rng: Any) -> dict[str, Any]:
    """Return three views of few samples, half of the entries missing: q stays wide."""
    z = rng.standard_normal((N_ROWS, 3))
    out = {}
    for name, width in WIDTHS.items():
        x = z @ rng.standard_normal((width, 3)).T + rng.standard_normal(width)
        if name == "rna":
            values = 20.0 + (x + rng.standard_normal(x.shape)) * np.geomspace(1, 30, width)
        elif name == "mutation":
            values = (rng.random(x.shape) < expit(x)).astype(float)
        else:
            values = rng.poisson(np.exp(0.5 * x + 0.5)).astype(float)
        out[name] = np.where(rng.random(x.shape) < 0.5, np.nan, values)
    return out


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Posterior]:
    """Return what fits a case, once."""
    data = views(np.random.default_rng(0))
    groups = ["a"] * (N_ROWS // 2) + ["b"] * (N_ROWS - N_ROWS // 2)
    stores = {
        grouped: factorflow.write_dataset(
            tmp_path_factory.mktemp("data") / "d.zarr",
            data,
            LIKELIHOODS,
            groups=groups if grouped else None,
            block_rows=32,
        )
        for grouped in (False, True)
    }
    made: dict[str, Posterior] = {}

    def fit(case: str) -> Posterior:
        if case not in made:
            options = {"n_factors": 3, "warmup_iter": 3, "max_iter": 3, "drop": 0.0, **CASES[case]}
            made[case] = factorflow.fit(stores[case == "grouped noise"], SparseGFA(**options), seed=2)
        return made[case]

    return fit


def slab(rng: Any, shape: Any, share: Any, width: Any) -> tuple[Any, Any, Any]:
    """Return mean, variance and inclusion of spike-and-slab variables of given shares and slab variances."""
    centre = rng.choice([-1.0, 1.0], shape) * rng.uniform(0.5, 1.5, shape)
    share, width = np.broadcast_to(share, shape), np.broadcast_to(width, shape)
    return share * centre, share * width + share * (1 - share) * centre**2, share


def widened(posterior: Posterior, seed: int = 0, *, normal: bool = False) -> Posterior:
    """Return the posterior with variables of known, large variances; ``normal``: such that x is nearly so."""
    rng = np.random.default_rng(seed)
    tree = {n.path: n.to_dataset(inherit=False).load().copy(deep=True) for n in posterior.tree.subtree}
    group = tree["/variational"]
    spread = (0.9, 1.8) if normal else (0.3, 1.5)
    shape = group["scores"].shape
    share = rng.uniform(0.3, 1.0, shape) if "scores_inclusion" in group and not normal else np.ones(shape)
    mean, variance, share = slab(rng, shape, share, rng.uniform(*spread, shape))
    group["scores"].values[...], group["scores_variance"].values[...] = mean, variance
    if "scores_inclusion" in group:
        group["scores_inclusion"].values[...] = share
    if "sample_precision" in group:
        group["sample_precision"].values[...] = rng.uniform(0.2, 3.0, group["sample_precision"].shape)
    for view in posterior.views:
        shape = group[f"loadings_{view}"].shape
        spiky = f"inclusion_{view}" in group and not normal
        share = rng.uniform(0.2, 1.0, shape) if spiky else np.ones(shape)
        width = rng.uniform(0.01, 0.02, shape) if normal else rng.uniform(0.1, 1.0, shape)
        mean, variance, share = slab(rng, shape, share, width)
        if view == "count":
            mean, variance = 0.2 * mean, 0.04 * variance
        group[f"loadings_{view}"].values[...] = mean
        group[f"loadings_variance_{view}"].values[...] = variance
        if f"inclusion_{view}" in group:
            group[f"inclusion_{view}"].values[...] = share
        for name, low, high in (("intercept", -1.0, 1.0), ("intercept_variance", 0.1, 0.5)):
            values = group[f"{name}_{view}"].values
            values[...] = rng.uniform(low, high, values.shape)
    return Posterior(xr.DataTree.from_dict(tree))


def predictor_draws(posterior: Posterior, view: str, seed: int = 1) -> Any:
    """Return draws of x = b + w'z of some rows, (N_DRAWS, rows, D), from the stored moments of q."""
    rng = np.random.default_rng(seed)
    group = posterior.tree["variational"]

    def draw(name: str, partner: str, inclusion: str | None, rows: Any = slice(None)) -> Any:
        mean, variance = group[name].values[rows], group[partner].values[rows]
        share = group[inclusion].values[rows] if inclusion is not None else np.ones_like(mean)
        safe = np.maximum(share, 1e-9)
        centre = mean / safe
        width = np.sqrt(np.maximum((variance + mean**2) / safe - centre**2, 0.0))
        on = rng.random((N_DRAWS, *mean.shape)) < share
        return on * (centre + width * rng.standard_normal((N_DRAWS, *mean.shape)))

    z = draw("scores", "scores_variance", "scores_inclusion" if "scores_inclusion" in group else None, ROWS)
    inclusion = f"inclusion_{view}" if f"inclusion_{view}" in group else None
    w = draw(f"loadings_{view}", f"loadings_variance_{view}", inclusion)
    b = draw(f"intercept_{view}", f"intercept_variance_{view}", None)
    return np.einsum("snk,sdk->snd", z, w) + b[:, None]


def noise_variance(posterior: Posterior, view: str) -> Any:
    """Return the noise variance of the entries of some rows, (rows, D) or broadcastable, entry by entry."""
    group, out = posterior.tree["variational"], np.zeros((len(ROWS), WIDTHS[view]))
    for i, n in enumerate(ROWS):
        for d in range(WIDTHS[view]):
            precision = 1.0 / float(group[f"scale_{view}"][d]) ** 2
            if f"noise_precision_{view}" in group:
                stored = group[f"noise_precision_{view}"]
                freedom = group[f"noise_degrees_{view}"]
                if stored.ndim > 1:
                    mine = "a" if n < N_ROWS // 2 else "b"
                    stored, freedom = stored.sel(group=mine), freedom.sel(group=mine)
                # E[1 / tau] of Ga(a, b) is b / (a - 1), and a / b is stored
                precision = float(stored[d]) * (float(freedom[d]) - 2.0) / float(freedom[d])
            if "sample_precision" in group:
                precision *= float(group["sample_precision"].sel(view=view)[n])
            out[i, d] = 1.0 / precision
    return out


def moments(draws: Any) -> tuple[Any, Any, Any, Any]:
    """Return mean and variance over draws, each with its standard error."""
    mean, centred = draws.mean(0), draws - draws.mean(0)
    variance = (centred**2).mean(0)
    fourth = (centred**4).mean(0)
    n = len(draws)
    return mean, np.sqrt(variance / n), variance, np.sqrt(np.maximum(fourth - variance**2, 0.0) / n)


def prediction(posterior: Posterior, view: str) -> tuple[Any, Any]:
    predicted = posterior.predict(view)
    return predicted["mean"].values[ROWS], predicted["sd"].values[ROWS]


def parts(posterior: Posterior, view: str) -> tuple[Any, Any]:
    """Return E[x] and Var x of some rows from the stored variables, entry by entry."""
    group = posterior.tree["variational"]
    z, zz = group["scores"].values[ROWS], group["scores_variance"].values[ROWS]
    w, ww = group[f"loadings_{view}"].values, group[f"loadings_variance_{view}"].values
    mean, variance = np.zeros((len(ROWS), len(w))), np.zeros((len(ROWS), len(w)))
    for n in range(len(ROWS)):
        for d in range(len(w)):
            mean[n, d] = float(group[f"intercept_{view}"][d]) + sum(z[n] * w[d])
            second = sum((z[n] ** 2 + zz[n]) * (w[d] ** 2 + ww[d]) - (z[n] * w[d]) ** 2)
            variance[n, d] = float(group[f"intercept_variance_{view}"][d]) + second
    return mean, variance


def dispersion(posterior: Posterior) -> Any:
    """Return delta of the counts, 0 where they are Poisson's."""
    group = posterior.tree["variational"]
    return group["dispersion_count"].values if "dispersion_count" in group else 0.0


CHANGES = {"as fitted": lambda posterior: posterior, "widened": widened}


@pytest.mark.parametrize("change", ["widened"])
@pytest.mark.parametrize("case", CASES)
def test_gaussian_predictions_have_the_moments_of_q(fitted: Any, case: str, change: str) -> None:
    """Mean and sd of a new observation: b + w'z of q, and noise of the entry's own precision."""
    posterior = CHANGES[change](fitted(case))
    mean, sd = prediction(posterior, "rna")
    drawn, error, variance, variance_error = moments(predictor_draws(posterior, "rna"))
    assert (np.abs(mean - drawn) < 6 * error).all()
    assert (np.abs(sd**2 - noise_variance(posterior, "rna") - variance) < 6 * variance_error).all()
    assert variance.max() > 0.02 * (sd**2).min()  # else the test would say nothing


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("case", CASES)
def test_predictions_are_their_formulas(fitted: Any, case: str, change: str) -> None:
    """The same, x taken for normal: E sigma(x) by many nodes, E e^x = e^(x + v / 2)."""
    posterior = CHANGES[change](fitted(case))
    for view in WIDTHS:
        (x, v), (mean, sd) = parts(posterior, view), prediction(posterior, view)
        if view == "rna":
            expected, spread = x, v + noise_variance(posterior, view)
        elif view == "mutation":
            nodes, weights = np.polynomial.hermite_e.hermegauss(101)
            expected = expit(x[..., None] + np.sqrt(v)[..., None] * nodes) @ (weights / weights.sum())
            spread = expected * (1 - expected)
        else:
            expected = np.exp(x + v / 2)
            spread = expected + expected**2 * (np.expm1(v) + dispersion(posterior) * np.exp(v))
        near = 3e-4 if view == "mutation" else 1e-9
        np.testing.assert_allclose(mean, expected, rtol=near)
        np.testing.assert_allclose(sd, np.sqrt(spread), rtol=near)


@pytest.mark.parametrize("case", ["plain", "dense", "spike scores"])
def test_binary_predictions_are_near_monte_carlo(fitted: Any, case: str) -> None:
    """E[sigma(x)] within 0.01; that at the mean of x alone is off by 0.04."""
    posterior = widened(fitted(case), normal=True)
    mean, sd = prediction(posterior, "mutation")
    probability = expit(predictor_draws(posterior, "mutation")).mean(0)
    assert np.abs(mean - probability).max() < 0.01
    assert np.abs(expit(parts(posterior, "mutation")[0]) - probability).max() > 0.04
    np.testing.assert_allclose(sd, np.sqrt(probability * (1 - probability)), atol=0.03)


@pytest.mark.parametrize("case", ["plain", "dense", "spike scores", "negative binomial"])
def test_counts_are_near_monte_carlo(fitted: Any, case: str) -> None:
    """E[e^x] within 4 %, the standard deviation of a count within 6 %."""
    posterior = widened(fitted(case), normal=True)
    mean, sd = prediction(posterior, "count")
    rate = np.exp(predictor_draws(posterior, "count"))
    np.testing.assert_allclose(mean, rate.mean(0), rtol=0.04)
    more = dispersion(posterior) * (rate**2).mean(0)
    np.testing.assert_allclose(sd**2, rate.mean(0) + rate.var(0) + more, rtol=0.12)
    x, _ = parts(posterior, "count")
    assert (np.exp(x) / rate.mean(0)).min() < 0.9  # without the variance it would be far off
