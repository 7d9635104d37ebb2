"""New samples under a fitted model: matched by name, with views, features and entries missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow
from factorflow.errors import InputError


@pytest.fixture
def fitted(family: str, config: Any, datasets: Any) -> tuple[Any, Any]:
    dataset = datasets(family)
    return factorflow.fit(dataset, config, seed=3), dataset


def observed(dataset: Any, view: str) -> Any:
    """Return the values of the first 40 samples, NaN where they are missing."""
    values = dataset.values(view, 0, 40)
    return np.where(values < 0, np.nan, values) if dataset.views[view].likelihood == "bernoulli" else values


def new_samples(path: Path, dataset: Any, views: list[str], columns: Any) -> Any:
    """Write the first 40 samples again under other names, columns chosen and in another order."""
    return factorflow.write_dataset(
        path,
        {view: observed(dataset, view)[:, columns[view]] for view in views},
        likelihoods={view: dataset.views[view].likelihood for view in views},
        features={view: dataset.features(view)[columns[view]] for view in views},
        samples=[f"new{i}" for i in range(40)],
    )


def test_names_match_features(fitted: tuple[Any, Any], tmp_path: Path) -> None:
    posterior, dataset = fitted
    views = list(posterior.views)
    same = {view: np.arange(dataset.views[view].n_features) for view in views}
    turned = {view: order[::-1] for view, order in same.items()}
    straight = posterior.project(new_samples(tmp_path / "a.zarr", dataset, views, same))
    again = posterior.project(new_samples(tmp_path / "b.zarr", dataset, views, turned))
    for view in views:
        assert list(again.features(view)) == list(posterior.features(view))
    assert list(again.obs_names) == [f"new{i}" for i in range(40)]
    np.testing.assert_allclose(again.scores(), straight.scores(), atol=1e-6)


def test_what_is_missing_is_predicted(fitted: tuple[Any, Any], tmp_path: Path) -> None:
    posterior, dataset = fitted
    views = list(posterior.views)
    few = {view: np.arange(dataset.views[view].n_features)[::2] for view in views}
    projected = posterior.project(new_samples(tmp_path / "a.zarr", dataset, views[:1], few))
    projected.save(tmp_path / "p.zarr")
    stored = factorflow.open_posterior(tmp_path / "p.zarr")
    for view in views:
        predicted = stored.predict(view)
        assert predicted["mean"].shape == (40, dataset.views[view].n_features)
        assert np.isfinite(predicted["mean"].to_numpy()).all()
    assert repr(stored)


def test_nothing_in_common_is_refused(fitted: tuple[Any, Any], tmp_path: Path) -> None:
    posterior, _ = fitted
    other = factorflow.write_dataset(
        tmp_path / "o.zarr", {"other": np.random.default_rng(0).normal(size=(9, 4))}
    )
    with pytest.raises(InputError, match="fitted views"):
        posterior.project(other)
