"""Each likelihood on data of its own: factors, phi, held-out scores above a wrong one's, intervals, draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import factorflow
from factorflow.api import Posterior
from factorflow.errors import InputError
from factorflow.models import SparseGFA

CASES: dict[str, tuple[str, str, dict[str, float]]] = {
    "gamma": ("gaussian", "lognormal", {"shape": 2.0}),
    "lognormal": ("gaussian", "gamma", {"noise_scale": 0.7}),
    "beta": ("gaussian", "logit_normal", {"precision": 10.0}),
    "logit_normal": ("gaussian", "beta", {"noise_scale": 0.7}),
    "zero_inflated_poisson": ("poisson", "poisson", {"zero_inflation": 0.3}),
    "zero_inflated_negative_binomial": (
        "poisson",
        "negative_binomial",
        {"zero_inflation": 0.3, "dispersion": 0.25},
    ),
    "ordinal": ("poisson", "poisson", {"cutpoint_1": 1.0, "cutpoint_2": 2.0, "cutpoint_3": 3.0}),
}
"""By likelihood: how entries are stored, one that is wrong, and nuisance parameters."""


def simulate(name: str) -> tuple[Any, Any]:
    """Return scores (N, 3) and entries (N, 40)."""
    rng = np.random.default_rng(5)
    z, w = rng.standard_normal((250, 3)), 0.8 * rng.standard_normal((40, 3)) * (rng.random((40, 3)) < 0.4)
    x = z @ w.T + 0.5 * rng.standard_normal(40)
    noisy = x + 0.7 * rng.standard_normal(x.shape)
    some, cuts = rng.random(x.shape) > 0.3, np.array([-1.5, -0.5, 0.5, 1.5])[:, None, None]
    y = {
        "gamma": lambda: rng.gamma(2.0, np.exp(x) / 2.0),
        "lognormal": lambda: np.exp(noisy),
        "beta": lambda: rng.beta(10.0 * expit(x), 10.0 * expit(-x)).clip(1e-5, 1 - 1e-5),
        "logit_normal": lambda: expit(noisy),
        "ordinal": lambda: (2.0 * x + rng.logistic(size=x.shape) > cuts).sum(axis=0),
        "zero_inflated_poisson": lambda: rng.poisson(np.exp(x + 1.5)) * some,
        "zero_inflated_negative_binomial": lambda: rng.poisson(rng.gamma(4.0, np.exp(x + 2.0) / 4.0)) * some,
    }[name]()
    return z, y.astype(np.float32)


def fitted(data: Any, name: str, **options: Any) -> Posterior:
    model = SparseGFA(n_factors=6, likelihoods=name, **options)
    return factorflow.fit(data, model, holdout=0.1, progress=False)


def recovered(posterior: Posterior, z: Any) -> float:
    """Return the lowest correlation of a true factor with the nearest one found."""
    found = posterior.scores().to_numpy()
    return float(np.abs(np.corrcoef(found.T, z.T)[: found.shape[1], found.shape[1] :]).max(axis=0).min())


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_factors_scores_and_intervals(name: str, tmp_path: Path) -> None:
    stored, wrong, known = CASES[name]
    z, y = simulate(name)
    data = factorflow.write_dataset(tmp_path / "d", {"y": y}, {"y": stored}, block_rows=64)
    posterior = fitted(data, name)
    assert len(posterior.factors) == 3
    assert recovered(posterior, z) > 0.88
    for variable, value in known.items():
        found = posterior.tree["variational"][f"{variable}_y"].values
        assert np.median(found) == pytest.approx(value, rel=0.15)
    scores, other = (p.holdout_scores().loc["y"] for p in (posterior, fitted(data, wrong)))
    assert scores["log_likelihood"] > other["log_likelihood"] + 0.01
    assert scores["log_likelihood"] > scores["baseline_log_likelihood"] + 0.1
    if name == "ordinal":
        assert str(posterior.model.likelihood("y")) == "ordinal(levels=5)"  # as many as there are
        assert scores["accuracy"] > scores["baseline_accuracy"] + 0.05
        assert "deviance" not in scores.dropna()
    ends = posterior.predict("y", interval=0.9).isel(obs=slice(60))
    inside = (ends["lower"].to_numpy() <= y[:60]) & (y[:60] <= ends["upper"].to_numpy())
    # Entries of the fit are among them, and ends of counts are inclusive
    assert 0.87 < inside.mean() < (0.95 if stored == "gaussian" else 1.001)
    projected = posterior.project(data).scores().to_numpy()
    own = posterior.scores().to_numpy()
    assert np.corrcoef(projected.T, own.T)[:3, 3:].diagonal().min() > 0.97


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        "gamma",
        "ordinal",
        "zero_inflated_poisson",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("lognormal", "beta", "logit_normal", "zero_inflated_negative_binomial")
        ),
    ],
)
def test_draws_find_the_same_factors(name: str, tmp_path: Path) -> None:
    z, y = simulate(name)
    data = factorflow.write_dataset(tmp_path / "d", {"y": y}, {"y": CASES[name][0]}, block_rows=64)
    drawn = fitted(data, name, n_draws=10, n_burn_in=10, chains=1)
    assert recovered(drawn, z) > 0.85
    scores = drawn.holdout_scores().loc["y"]
    assert scores["log_likelihood"] > scores["baseline_log_likelihood"] + 0.1


def test_entries_outside_are_refused_by_name(tmp_path: Path) -> None:
    y = np.random.default_rng(0).gamma(2.0, 1.0, (30, 4))
    data = factorflow.write_dataset(tmp_path / "d", {"y": y}, {"y": "gaussian"})
    expected = (
        r"beta for view y, feature feature\d, with an entry of .*: expected entries above 0 and below 1"
    )
    with pytest.raises(InputError, match=expected):
        factorflow.fit(data, SparseGFA(n_factors=2, likelihoods="beta"), progress=False)
    posterior = factorflow.fit(data, SparseGFA(n_factors=2, likelihoods="gamma", drop=0), progress=False)
    y[3, 2] = 0.0
    new = factorflow.write_dataset(tmp_path / "n", {"y": y}, {"y": "gaussian"})
    for refused in (
        lambda: posterior.project(new),
        lambda: factorflow.fit(new, SparseGFA(n_factors=2, likelihoods="lognormal"), progress=False),
    ):
        with pytest.raises(
            InputError, match="feature feature2, with an entry of 0: expected entries above 0"
        ):
            refused()
