"""Predictions by some factors of draws, and variance explained, whatever their order in a chain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.models.sparse_gfa import SparseGFA

pytestmark = pytest.mark.filterwarnings("ignore:The chains have not mixed", "ignore:The run was ended")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A short run of two chains, the factors of the second exchanged in what is stored."""
    rng = np.random.default_rng(15_300)
    scores, loadings = rng.standard_normal((60, 2)), rng.standard_normal((2, 9))
    values = scores @ loadings + rng.standard_normal((60, 9))
    values[rng.random(values.shape) < 0.1] = np.nan
    counts = rng.poisson(np.exp(0.5 * scores @ rng.standard_normal((2, 6)))).astype(float)
    data = factorflow.write_dataset(
        tmp_path_factory.mktemp("draws") / "d.zarr", {"a": values, "c": counts}, {"c": "poisson"}
    )
    config = SparseGFA(n_factors=3, n_draws=40, n_burn_in=20, chains=2)
    posterior = factorflow.fit(data, config, seed=1, progress=False)
    tree = posterior.tree.copy(deep=True)
    order = np.arange(len(posterior.factors))[::-1]
    for name in ("loadings_a", "loadings_c", "scores_draws"):
        group = next(str(g) for g in tree.children if name in tree[str(g)].data_vars)
        tree[group][name].values[1] = tree[group][name].values[1][..., order]
    exchanged = type(posterior)(tree, posterior.path)
    return SimpleNamespace(posterior=posterior, exchanged=exchanged, values=values)


def test_by_one_factor_they_are_means_over_aligned_draws(given: Any) -> None:
    for posterior in (given.posterior, given.exchanged):
        scores, loadings = posterior.draws("scores_draws").values, posterior.draws("loadings_a").values
        intercept = posterior.draws("intercept_a").values[:, :, None]
        for k in range(len(posterior.factors)):
            each = np.einsum("cmn,cmd->cmnd", scores[..., k], loadings[..., k]) + intercept
            found = posterior.predict("a", factors=[k + 1])["mean"].values
            np.testing.assert_allclose(found, each.mean(axis=(0, 1)), rtol=1e-5, atol=1e-6)


def test_variance_explained_is_the_formula(given: Any) -> None:
    y, posterior = given.values, given.posterior
    total = np.nansum((y - np.nanmean(y, axis=0)) ** 2)
    none = np.broadcast_to(posterior.intercept("a").values, y.shape)
    shares = posterior.variance_explained().sel(view="a").values
    for k, share in enumerate(shares):
        alone = posterior.predict("a", factors=[k + 1])["mean"].values
        gain = np.nansum((y - none) ** 2) - np.nansum((y - alone) ** 2)
        assert share == pytest.approx(gain / total, abs=1e-6)
    whole = np.nansum((y - posterior.predict("a")["mean"].values) ** 2)
    found = posterior.variance_explained_total()
    assert found.sel(view="a") == pytest.approx(1.0 - whole / total, abs=1e-6)
    assert 0.4 < found.sel(view="a") < 0.95
    assert found.sel(view="c") > 0.2


def test_the_order_of_factors_in_a_chain_does_not_matter(given: Any) -> None:
    np.testing.assert_allclose(
        given.exchanged.variance_explained().values, given.posterior.variance_explained().values, atol=1e-6
    )
