"""Limits of detection and numbers of trials: what a fit makes of them, and what it would make without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import truncnorm
from typer.testing import CliRunner

import factorflow
from factorflow.cli import app
from factorflow.errors import InputError
from factorflow.models import SparseGFA
from factorflow.posterior.prediction import _beyond_limits


def fitted(data: Any, **options: Any) -> Any:
    return factorflow.fit(data, SparseGFA(n_factors=6, **options), holdout=0.1, progress=False)


@pytest.fixture(scope="module")
def censored() -> tuple[Any, ...]:
    """Return scores, loadings, x, and measurements of which 30 % lie below a common limit."""
    rng = np.random.default_rng(3)
    z, w = rng.standard_normal((200, 3)), rng.standard_normal((40, 3)) * (rng.random((40, 3)) < 0.4)
    x = z @ w.T + rng.standard_normal(40)
    y = x + 0.6 * rng.standard_normal(x.shape)
    limit = float(np.quantile(y, 0.3))
    kept = (y < limit).mean(axis=0) < 0.9
    return z, w[kept], x[:, kept], y[:, kept], limit


def slope(posterior: Any, z: Any, w: Any, of: Any) -> float:
    """Return the slope of the loadings found by the true ones, of some features."""
    turn = np.linalg.lstsq(z, posterior.scores().to_numpy(), rcond=None)[0]
    found = posterior.loadings("y").to_numpy() @ turn.T
    return float((found[of] * w[of]).sum() / (w[of] ** 2).sum())


@pytest.mark.thorough
def test_limits_bias_nothing(censored: tuple[Any, ...], tmp_path: Path) -> None:
    """Loadings, noise, and predictions of what lies below; the same values taken for measured bias all."""
    z, w, x, y, limit = censored
    seen, below = np.maximum(y, limit), y < limit
    data = factorflow.write_dataset(tmp_path / "d", {"y": y}, limits={"y": (limit, None)}, block_rows=64)
    plain = factorflow.write_dataset(tmp_path / "p", {"y": seen}, {"y": "gaussian"}, block_rows=64)
    posterior, other = fitted(data), fitted(plain)
    many = below.mean(axis=0) > 0.4
    assert slope(posterior, z, w, many) == pytest.approx(1.0, abs=0.1)
    assert slope(other, z, w, many) < 0.7
    assert np.median(posterior.tree["variational"]["noise_scale_y"].values) == pytest.approx(0.6, rel=0.1)
    means, others = (p.predict("y")["mean"].to_numpy() for p in (posterior, other))
    assert abs((means - x)[below].mean()) < 0.1
    assert (others - x)[below].mean() > 0.5
    scores = posterior.holdout_scores().loc["y"]
    assert scores["log_likelihood"] > scores["baseline_log_likelihood"] + 0.2
    assert scores["rmse"] < scores["baseline_rmse"]
    explained = float(posterior.summary()["variance_explained"]["y"])
    share = 1 - ((np.maximum(means, limit) - seen) ** 2).sum() / (seen.var(axis=0).sum() * len(seen))
    assert share == pytest.approx(explained, abs=0.02)
    by_feature = posterior.variance_explained_total("feature", view="y").to_numpy()
    weights = seen.var(axis=0)
    assert (by_feature * weights).sum() / weights.sum() == pytest.approx(explained, abs=0.02)
    ends = posterior.predict("y", interval=0.9)
    inside = (ends["lower"].to_numpy() <= y) & (y <= ends["upper"].to_numpy())
    assert 0.86 < inside.mean() < 0.94  # of what would have been measured
    filled, open_ = posterior.impute("y"), posterior.predict("y")
    np.testing.assert_array_equal(filled["observed"].to_numpy(), ~below)
    np.testing.assert_allclose(filled["mean"].to_numpy()[~below], y[~below], rtol=1e-6)
    centre, sd = (open_[name].to_numpy()[below] for name in ("mean", "sd"))
    given = truncnorm(-np.inf, (limit - centre) / sd, centre, sd)
    np.testing.assert_allclose(filled["mean"].to_numpy()[below], given.mean(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(filled["sd"].to_numpy()[below], given.std(), rtol=1e-4, atol=1e-5)
    assert abs((filled["mean"].to_numpy() - y)[below].mean()) < 0.1


def test_normal_variables_beyond_limits_of_either_side() -> None:
    mean, sd, limit = np.array([1.0, -2.0, 0.5]), np.array([0.7, 1.5, 2.0]), np.array([1.4, -1.0, 3.0])
    for side, ends in ((-1, (-np.inf, (limit - mean) / sd)), (1, ((limit - mean) / sd, np.inf))):
        found = _beyond_limits(mean, sd, limit, np.full(3, side))
        expected = truncnorm(*ends, mean, sd)
        np.testing.assert_allclose(found, [expected.mean(), expected.std()], rtol=1e-6)


@pytest.mark.thorough
def test_limits_in_draws_and_of_new_samples(censored: tuple[Any, ...], tmp_path: Path) -> None:
    z, _, _, y, limit = censored
    data = factorflow.write_dataset(tmp_path / "d", {"y": y}, limits={"y": (limit, None)}, block_rows=64)
    posterior = fitted(data)
    own = posterior.scores().to_numpy()
    projected = posterior.project(data)
    assert all(finding.kind != "limits" for finding in projected.findings)
    without = factorflow.write_dataset(tmp_path / "w", {"y": np.maximum(y, limit)}, {"y": "gaussian"})
    (finding,) = (each for each in posterior.project(without).findings if each.kind == "limits")
    assert "y was fitted with limits of detection" in str(finding)
    assert "limits=..." in str(finding)
    found = projected.scores().to_numpy()
    assert np.abs(np.corrcoef(found.T, own.T)[:3, 3:]).max(axis=0).min() > 0.97
    drawn = fitted(data, n_draws=10, n_burn_in=10, chains=1)
    assert (
        np.abs(np.corrcoef(drawn.scores().to_numpy().T, z.T)[: len(drawn.factors), -3:]).max(axis=0).min()
        > 0.9
    )
    scores = drawn.holdout_scores().loc["y"]
    assert scores["log_likelihood"] > scores["baseline_log_likelihood"] + 0.2
    with pytest.raises(
        InputError, match="gaussian for view y, which was written with limits: expected censored"
    ):
        fitted(data, likelihoods="gaussian")


@pytest.mark.thorough
def test_numbers_of_trials_that_differ(tmp_path: Path) -> None:
    """Methylated reads of uneven coverage: better than fractions, and than counts."""
    rng = np.random.default_rng(4)
    z, w = rng.standard_normal((200, 3)), rng.standard_normal((40, 3)) * (rng.random((40, 3)) < 0.4)
    n = rng.poisson(rng.gamma(1.0, 12.0, (200, 40)))
    y = rng.binomial(n, expit(z @ w.T)).astype(float)
    data = factorflow.write_dataset(tmp_path / "d", {"y": y}, trials={"y": n}, block_rows=64)
    posterior, counts = fitted(data), fitted(data, likelihoods="poisson")
    assert len(posterior.factors) == 3
    assert "binomial, 40" in repr(posterior)
    found = posterior.scores().to_numpy()
    assert np.abs(np.corrcoef(found.T, z.T)[:3, 3:]).max(axis=0).min() > 0.95
    scores, other = (p.holdout_scores().loc["y"] for p in (posterior, counts))
    assert scores["log_likelihood"] > other["log_likelihood"] + 0.3
    assert scores["log_likelihood"] > scores["baseline_log_likelihood"] + 0.1
    ends = posterior.predict("y", interval=0.9)
    seen = n > 0
    assert (ends["upper"].to_numpy() <= np.maximum(n, 1)).all()
    assert 0.87 < ((ends["lower"].to_numpy() <= y) & (y <= ends["upper"].to_numpy()))[seen].mean() < 0.99
    projected = posterior.project(data).scores().to_numpy()
    assert np.corrcoef(projected.T, found.T)[:3, 3:].diagonal().min() > 0.99
    share, ten = posterior.predict("y", trials=1)["mean"], posterior.predict("y", trials=10, interval=0.9)
    np.testing.assert_allclose(ten["mean"], 10.0 * share, rtol=1e-10)
    np.testing.assert_allclose(posterior.predict("y")["mean"], np.maximum(n, 1) * share.to_numpy(), rtol=1e-6)
    assert float(ten["upper"].max()) == 10.0
    posterior.save(tmp_path / "fit.zarr")
    said = ["predict", str(tmp_path / "fit.zarr"), "y", "--trials", "10", "--out", str(tmp_path / "p.csv")]
    assert CliRunner().invoke(app, said).exit_code == 0
    written = np.genfromtxt(tmp_path / "p.csv", delimiter=",", skip_header=1)[:, 1:]
    np.testing.assert_allclose(written, ten["mean"], rtol=1e-5)
    with pytest.raises(InputError, match="trials = 0: expected an integer from 1"):
        posterior.predict("y", trials=0)
    drawn = fitted(data, n_draws=10, n_burn_in=10, chains=1)
    assert drawn.holdout_scores().loc["y"]["log_likelihood"] > other["log_likelihood"] + 0.3
    plain = factorflow.write_dataset(tmp_path / "p", {"y": y}, {"y": "poisson"})
    with pytest.raises(InputError, match="view y = no numbers of trials: expected as in the fitted model"):
        posterior.project(plain)
