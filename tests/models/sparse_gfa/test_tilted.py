"""Binary features that few samples carry: the tilted bound keeps factors that Jaakkola's cannot afford."""

import numpy as np
import pytest

from factorflow import fit, write_dataset
from factorflow.errors import InputError
from factorflow.models import SparseGFA


@pytest.fixture(scope="module")
def rare(tmp_path_factory):
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((600, 2))
    loadings = 1.5 * rng.standard_normal((400, 2)) * (rng.random((400, 2)) < 0.4)
    x = scores @ loadings.T - 4.0
    values = (rng.random(x.shape) < 1.0 / (1.0 + np.exp(-x))).astype(np.int8)
    path = tmp_path_factory.mktemp("rare") / "data.zarr"
    return write_dataset(path, {"v": values}, {"v": "bernoulli"}), scores


@pytest.mark.thorough
def test_factors_of_rare_features_are_kept(rare):
    data, scores = rare
    posterior = fit(data, SparseGFA(n_factors=4, bernoulli="tilted", max_iter=40))
    found = posterior.scores().to_numpy()
    best = np.abs(np.corrcoef(found.T, scores.T)[: found.shape[1], found.shape[1] :]).max(axis=0)
    assert (best > 0.8).all()
    bound = posterior.trace["objective"].to_numpy()
    stage = posterior.trace["stage"].to_numpy()
    within = (stage[1:] == stage[:-1]) & np.isfinite(bound[1:]) & np.isfinite(bound[:-1])
    fall = (bound[:-1] - bound[1:]) / np.abs(bound[1:])
    assert fall[within].max() < 1e-6


@pytest.mark.thorough
def test_stochastic_passes_are_refused(rare):
    with pytest.raises(InputError, match="tilted"):
        fit(rare[0], SparseGFA(n_factors=2, bernoulli="tilted", inference="svi"))
