"""Fits that begin with the consensus of their starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import factorflow
from factorflow.analysis import consensus
from factorflow.errors import InputError
from factorflow.models import PoissonFactors

pytestmark = pytest.mark.filterwarnings("ignore::factorflow.data.DataWarning")

SHORT: dict[str, Any] = {"n_factors": 4, "settling_iter": 30, "start_iter": 20, "max_iter": 40}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("cells") / "d.zarr"
    return factorflow.simulate(
        "poisson_factors", path, 600, seed=4, views={"rna": 200, "protein": 40}, n_factors=4, depth=0.6
    )


@pytest.fixture(scope="module")
def posterior(dataset: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("fit") / "p.zarr"
    model = PoissonFactors(n_starts=5, consensus=True, **SHORT)
    return factorflow.fit(dataset, model, seed=1, out=out, progress=False)


@pytest.mark.thorough
def test_the_last_stage_begins_with_it(posterior: Any) -> None:
    """And goes on from it, not from the best start."""
    trace = posterior.tree["optimization"].to_dataset()
    stages = list(dict.fromkeys(trace["stage"].values))
    assert stages == ["settling", "starts", "consensus", "programs"]
    reached = posterior.variable("start_objective").values
    assert trace["objective"].values[-1] > np.median(reached)
    found = posterior.consensus()
    assert found.sizes == {
        "consensus_factor": 4, "start": 5, "factor": 4, "feature_rna": 200, "feature_protein": 40
    }  # fmt: skip
    assert found["start"].values.tolist() == posterior.variable("start_objective")["start"].values.tolist()
    assert found.attrs["share_kept"] > 0.7
    assert np.median(found["stability"]) > 0.5
    total = found["loadings_rna"].sum("feature_rna") + found["loadings_protein"].sum("feature_protein")
    np.testing.assert_allclose(total.values, 1.0)
    between = np.corrcoef(found["loadings_rna"].values, posterior.loadings("rna").values.T)[:4, 4:]
    assert np.median(between.max(axis=1)) > 0.95
    assert (posterior.consensus(0.01)["label"] == 0).mean() > (found["label"] == 0).mean()
    with pytest.raises(InputError, match="threshold = 0: expected a distance above 0"):
        posterior.consensus(0)


def test_in_a_shell(posterior: Any) -> None:
    from factorflow.cli import app

    done = CliRunner().invoke(app, ["consensus", str(posterior.path), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["share_kept"] == posterior.consensus().attrs["share_kept"]
    assert "gene" in done.stdout


def test_several_fits_are_starts(dataset: Any, tmp_path: Path) -> None:
    model = PoissonFactors(**{**SHORT, "max_iter": 20}, drop=0.0)
    fits = [factorflow.fit(dataset, model, seed=seed, progress=False) for seed in range(3)]
    found = consensus(fits)
    assert list(found["start"].values) == ["fit1", "fit2", "fit3"]
    again = consensus([fits[0], fits[0]])
    np.testing.assert_allclose(again["distance"].values, 0.0, atol=1e-6)
    np.testing.assert_allclose(
        np.sort(again["loadings_rna"].values, axis=0), np.sort(fits[0].loadings("rna").values.T, axis=0)
    )
    with pytest.raises(InputError, match="posteriors = 1: expected at least two fits"):
        consensus(fits[:1])
    with pytest.raises(InputError, match="expected a fit of several starts"):
        fits[0].consensus()
    other = factorflow.fit(dataset, model.model_copy(update={"n_factors": 3}), progress=False)
    with pytest.raises(InputError, match="fit 2 of 3 programs"):
        consensus([fits[0], other])


def test_one_start_has_no_consensus(dataset: Any) -> None:
    with pytest.raises(InputError, match="consensus = True: expected False where there is one start"):
        factorflow.fit(dataset, PoissonFactors(consensus=True), progress=False)
