"""A likelihood that is one class: options, fits, scores, intervals, projections and draws find it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import factorflow
from factorflow.likelihoods import Likelihood, get_likelihood
from factorflow.likelihoods.base import REGISTRY
from factorflow.models import SparseGFA


@dataclass(frozen=True)
class Gamma(Likelihood):
    """Positive numbers of mean e^x and shape e^phi."""

    name, kinds, limited, n_phi, loading_size = "test_gamma", ("gaussian",), True, 1, 0.05
    phi_variables = {"size": "Its shape."}

    def log_kernel(self, y: Any, x: Any, phi: Any, aux: Any = None) -> Any:
        return -np.exp(phi[0, ...]) * (x + y * np.exp(-x))

    def log_factor(self, y: Any, phi: Any, aux: Any = None) -> Any:
        k = np.exp(phi[0, ...])
        return k * phi[0, ...] - special.gammaln(k) + (k - 1.0) * np.log(y)

    def moments(self, x: Any, phi: Any, aux: Any = None) -> tuple[Any, Any]:
        return np.exp(x), np.exp(2.0 * x - phi[0, ...])

    def tails(self, y: Any, x: Any, phi: Any, aux: Any = None) -> tuple[Any, Any]:
        known = stats.gamma(np.exp(phi[0, ...]), scale=np.exp(x - phi[0, ...]))
        return known.cdf(y), known.sf(y)

    def draw(self, uniform: Any, x: Any, phi: Any, aux: Any = None) -> Any:
        return stats.gamma.ppf(uniform, np.exp(phi[0, ...]), scale=np.exp(x - phi[0, ...]))

    def start(self, y: Any) -> Any:
        return np.log(y)

    def start_moments(self, mean: Any, variance: Any) -> tuple[Any, Any]:
        return np.exp(mean + 0.5 * variance), np.exp(2.0 * mean + variance) * np.expm1(variance)

    def intercept(self, n: Any, total: Any) -> Any:
        return np.log(total / n)


del REGISTRY["test_gamma"]  # tests of all likelihoods do not know it


@pytest.fixture(scope="module")
def truth() -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    z, w = rng.standard_normal((200, 2)), 0.4 * rng.standard_normal((30, 2)) * (rng.random((30, 2)) < 0.5)
    return z, rng.gamma(4.0, np.exp(1.0 + z @ w.T) / 4.0)


@pytest.mark.thorough
def test_a_class_is_all_that_it_takes(
    truth: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REGISTRY, "test_gamma", Gamma)
    z, y = truth
    data = factorflow.write_dataset(tmp_path / "d", {"y": y}, {"y": "gaussian"}, block_rows=64)
    model = SparseGFA(n_factors=5, likelihoods="test_gamma")
    posterior = factorflow.fit(data, model, holdout=0.1, progress=False)
    assert len(posterior.factors) == 2
    scores = posterior.scores().to_numpy()
    assert np.abs(np.corrcoef(scores.T, z.T)[:2, 2:]).max(axis=0).min() > 0.9
    shape = posterior.tree["variational"]["size_y"].values
    assert np.median(shape) == pytest.approx(4.0, rel=0.15)
    normal = factorflow.fit(data, SparseGFA(n_factors=5), holdout=0.1, progress=False)
    found, other = (p.holdout_scores()["log_likelihood"]["y"] for p in (posterior, normal))
    assert found > other + 0.05
    ends = posterior.predict("y", interval=0.9)
    inside = (ends["lower"].to_numpy() <= y) & (y <= ends["upper"].to_numpy())
    assert 0.87 < inside.mean() < 0.95
    assert ends["lower"].to_numpy().min() > 0.0
    projected = posterior.project(data).scores().to_numpy()
    assert np.corrcoef(projected.T, scores.T)[:2, 2:].diagonal().min() > 0.95
    drawn = factorflow.fit(
        data, model.model_copy(update={"n_draws": 5, "n_burn_in": 5, "chains": 1}), progress=False
    )
    get_likelihood.cache_clear()
    assert np.corrcoef(drawn.scores().to_numpy().T, scores.T)[:2, 2:].diagonal().min() > 0.8


def test_the_likelihood_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class that the page writes, word for word: a bound of heavy-tailed noise."""
    page = (Path(factorflow.__file__).parents[1] / "docs" / "add-a-likelihood.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "guide"}
    REGISTRY.pop("laplace", None)  # of a test that ran the page in this process
    before = dict(REGISTRY)
    monkeypatch.setitem(sys.modules, "guide", ModuleType("guide"))
    exec(page.split("```python\n")[1].split("```")[0], names)
    laplace = REGISTRY.pop("laplace")
    assert REGISTRY == before
    monkeypatch.setitem(REGISTRY, "laplace", laplace)
    rng = np.random.default_rng(3)
    z, w = rng.standard_normal((200, 2)), rng.standard_normal((30, 2)) * (rng.random((30, 2)) < 0.5)
    y = 2.0 + 5.0 * (z @ w.T + 0.6 * rng.laplace(size=(200, 30)))
    data = factorflow.write_dataset(tmp_path / "d", {"y": y}, {"y": "gaussian"}, block_rows=64)
    found, normal = (
        factorflow.fit(data, SparseGFA(n_factors=5, likelihoods=name), holdout=0.1, progress=False)
        for name in ("laplace", "gaussian")
    )
    get_likelihood.cache_clear()
    assert len(found.factors) == 2
    assert np.abs(np.corrcoef(found.scores().to_numpy().T, z.T)[:2, 2:]).max(axis=0).min() > 0.9
    assert np.median(found.tree["variational"]["noise_scale_y"].values) == pytest.approx(3.0, rel=0.15)
    scores = [p.holdout_scores().loc["y"] for p in (found, normal)]
    assert scores[0]["log_likelihood"] > scores[1]["log_likelihood"] + 0.02
    assert scores[0]["log_likelihood"] > scores[0]["baseline_log_likelihood"] + 0.1
