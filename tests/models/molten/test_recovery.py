"""Simulated truth: components found again, intervals that cover what they say, held-out rows as truth does.

Predictions from N rows and P parameters lose P / (2 N) nats a row on average, or P / N of the noise variance:
0.012 and 0.024 here; the tests allow about twice as much. The mark ``slow`` has more levels and components.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linear_sum_assignment

import factorflow
from factorflow.models import MoltenNormal, MoltenPoisson
from factorflow.posterior.predictive import tails

SHARE, SEED = 0.25, 11


def fitted(path: Path, response: str, config: Any, n: int, variables: dict[str, int], **settings: Any) -> Any:
    """Return the posterior, and truth and predictions of the hidden rows."""
    data = factorflow.simulate(
        "table", path, n_samples=n, seed=3, response=response, variables=variables, **settings
    )
    posterior = factorflow.fit(data, config, seed=SEED, holdout=SHARE)
    hidden = factorflow.data.Holdout(SHARE, SEED).mask(0, 0, n, 1)[:, 0]
    found = posterior.predict("y")
    y, mean, sd = data.values("y")[:, 0], found["mean"].values[:, 0], found["sd"].values[:, 0]
    true = np.asarray(data.tree["truth/mean"].values)[:, 0]
    return posterior, data, *(x[hidden].astype(float) for x in (y, mean, sd, true))


def coverage(likelihood: Any, y: Any, mean: Any, sd: Any) -> Any:
    """Return the shares of values inside the central 50, 90 and 95 % intervals, counts spread at random."""
    first, _, at = tails(likelihood, y, mean, sd)
    u = first + np.random.default_rng(0).random(len(y)) * at
    return np.array([(np.abs(u - 0.5) < 0.5 * level).mean() for level in (0.5, 0.9, 0.95)])


def cosines(posterior: Any, data: Any, variables: dict[str, int]) -> Any:
    """Return by true component the smallest cosine, over variables, with the factors matched to it."""
    alike = []
    for name in variables:
        found, true = posterior.loadings(name).values, np.asarray(data.tree[f"truth/loadings_{name}"].values)
        found, true = (x / np.linalg.norm(x, axis=0) for x in (found, true))
        alike.append(np.abs(found.T @ true))
    least = np.min(alike, axis=0)
    return least[linear_sum_assignment(-least)]


VARIABLES = {"site": 30, "species": 12, "year": 8}


@pytest.mark.thorough
def test_counts(tmp_path: Path) -> None:
    config = MoltenPoisson(n_components=3, n_starts=3, max_iter=150)
    posterior, data, y, mean, sd, true = fitted(
        tmp_path / "d.zarr", "poisson", config, 8000, VARIABLES, rate=8.0
    )
    assert np.abs(coverage("poisson", y, mean, sd) - [0.5, 0.9, 0.95]).max() < 0.03
    assert stats.poisson.logpmf(y, mean).mean() > stats.poisson.logpmf(y, true).mean() - 0.03
    assert cosines(posterior, data, VARIABLES).min() > 0.95
    scores = posterior.holdout_scores().loc["y"]
    assert scores["log_likelihood"] == pytest.approx(stats.poisson.logpmf(y, mean).mean(), rel=1e-6)
    assert scores["deviance_explained"] == pytest.approx(1 - scores["deviance"] / scores["baseline_deviance"])
    assert scores["deviance_explained"] > 0.5


def test_measurements(tmp_path: Path) -> None:
    config = MoltenNormal(n_components=3, n_starts=3, max_iter=150)
    posterior, data, y, mean, sd, true = fitted(tmp_path / "d.zarr", "gaussian", config, 8000, VARIABLES)
    assert np.abs(coverage("gaussian", y, mean, sd) - [0.5, 0.9, 0.95]).max() < 0.03
    assert np.sqrt(((mean - true) ** 2).mean()) < 0.11
    assert float(posterior.variable("noise_variance")) == pytest.approx(0.25, rel=0.06)
    assert cosines(posterior, data, VARIABLES).min() > 0.95


@pytest.mark.thorough
@pytest.mark.parametrize("response", ["poisson", pytest.param("gaussian", marks=pytest.mark.thorough)])
def test_linear_groups(response: str, tmp_path: Path) -> None:
    make: Any = MoltenPoisson if response == "poisson" else MoltenNormal
    config = make(n_components=2, n_starts=2, max_iter=60, linear=("cover",))
    variables = {"site": 20, "year": 8}
    posterior, data, y, mean, sd, true = fitted(
        tmp_path / "d.zarr", response, config, 6000, variables, linear={"cover": 3}, n_components=2
    )
    assert np.abs(coverage(response, y, mean, sd) - [0.5, 0.9, 0.95]).max() < 0.03
    assert ((mean - true) ** 2).mean() < 0.02 * true.var()
    assert cosines(posterior, data, {**variables, "cover": 3}).min() > 0.95


@pytest.mark.slow
def test_counts_of_many_levels(tmp_path: Path) -> None:
    variables = {"site": 200, "species": 60, "year": 20}
    config = MoltenPoisson(n_components=10)
    _, _, y, mean, sd, true = fitted(
        tmp_path / "d.zarr", "poisson", config, 100_000, variables, n_components=10, rate=3.0, exposure=False
    )
    assert np.abs(coverage("poisson", y, mean, sd) - [0.5, 0.9, 0.95]).max() < 0.03
    assert stats.poisson.logpmf(y, mean).mean() > stats.poisson.logpmf(y, true).mean() - 0.02
