"""Predictions over the draws of chains: moments of a mixture."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from factorflow.likelihoods import get_likelihood
from factorflow.models.sparse_gfa.sampler.sampled import SampledGFAModel


@pytest.mark.parametrize("covariates", [False, True])
def test_measurements_have_the_moments_of_the_mixture(covariates: bool) -> None:
    """Mean over draws; variance of the means of draws, and the mean of their noise variances."""
    rng = np.random.default_rng(0)
    z, w, b = rng.normal(size=(2, 3, 5, 2)), rng.normal(size=(2, 3, 4, 2)), 100.0 + rng.normal(size=(2, 3, 4))
    tau = rng.uniform(0.2, 5.0, (2, 3, 4))
    view = SimpleNamespace(
        is_gaussian=True, is_scaled=True, density=get_likelihood("gaussian"), size_factors="none", aux_key=""
    )
    settings: Any = SimpleNamespace(view=lambda name: view, covariates=covariates or None)
    record = {"loadings_v": w, "intercept_v": b, "noise_precision_v": tau}
    rows, x = {"scores_draws": z}, np.einsum("cmnk,cmdk->cmnd", z, w) + b[:, :, None]
    if covariates:
        given, slopes = rng.normal(size=(5, 3)), rng.normal(size=(2, 3, 4, 3))
        rows["covariates"], record["coefficients_v"] = np.stack([given, given]), slopes
        x = x + np.einsum("nj,cmdj->cmnd", given, slopes)
    model, block = SimpleNamespace(settings=settings), SimpleNamespace(data={})
    mean, sd = SampledGFAModel.predict(model, block, rows, record, "v")  # type: ignore[arg-type]
    np.testing.assert_allclose(mean, x.mean((0, 1)))
    np.testing.assert_allclose(sd**2, x.var((0, 1)) + (1.0 / tau).mean((0, 1)))


def test_averages_of_a_chain_are_over_its_kept_draws() -> None:
    draws = np.random.default_rng(0).normal(2.0, 1.0, (7, 5, 2))
    local = _drawn(draws)
    model: Any = SimpleNamespace(
        settings=SimpleNamespace(
            views=(),
            design=lambda block, local: np.ones((5, 3)),
            incomplete=False,
            learned_sizes=(),
            learns_sizes=False,
            smooth=None,
            scores_spike=False,
        )
    )
    block: Any = SimpleNamespace(n_rows=5)
    globals_: Any = SimpleNamespace(fixed={})
    step: Any = None
    found = SampledGFAModel.finish(model, block, local, globals_, step)
    np.testing.assert_allclose(found.means[0], draws.mean(0))
    np.testing.assert_allclose(found.variances[0], draws.var(0))


def _drawn(draws: Any) -> Any:
    from factorflow.models.sparse_gfa.sampler.gibbs_state import DrawnScores

    return DrawnScores(draws[-1], len(draws), draws.sum(0), (draws**2).sum(0))
