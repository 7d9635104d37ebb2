"""The skeleton of a family in poisson_nmf.py: short, and its updates are those of its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import poisson_nmf
import pytest

import factorflow
from factorflow.errors import InputError


def test_a_family_takes_at_most_110_lines() -> None:
    assert len(Path(poisson_nmf.__file__).read_text(encoding="utf-8").splitlines()) <= 110


def fitted(path: Path, **options: Any) -> tuple[np.ndarray, Any]:
    rng = np.random.default_rng(0)
    rates = rng.gamma(1.0, 2.0, (60, 2)) @ rng.gamma(1.0, 2.0, (2, 11))
    values = rng.poisson(rates).astype(float)
    values[rng.random(values.shape) < 0.1] = np.nan
    views = {"a": pd.DataFrame(values[:, :6]), "b": pd.DataFrame(values[:, 6:])}
    dataset = factorflow.write_dataset(path / "d.zarr", views, likelihoods=dict.fromkeys(views, "poisson"))
    model = poisson_nmf.PoissonNMF(**options)
    return values, factorflow.fit(dataset, model, progress=False)


def test_one_iteration_is_that_of_plain_arrays(tmp_path: Path) -> None:
    """The second z follows from z and w of the first iteration, by observed entries of all views."""
    values, first = fitted(tmp_path / "1", max_iter=1)
    _, second = fitted(tmp_path / "2", max_iter=2)
    seen = np.isfinite(values)
    w = np.vstack([first.loadings(view).values for view in "ab"])
    z, y = first.scores().values, np.where(seen, values, 0.0)
    expected = z * ((y / (z @ w.T)) @ w) / (1 + seen @ w) + 1e-12
    np.testing.assert_allclose(second.scores().values, expected, rtol=1e-8, atol=1e-10)
    ratio = y / (expected @ w.T)
    updated = w * (ratio.T @ expected) / (1 + seen.T @ expected)
    np.testing.assert_allclose(
        np.vstack([second.loadings(view).values for view in "ab"]), updated, rtol=1e-8, atol=1e-10
    )


def test_the_means_are_found(tmp_path: Path) -> None:
    values, posterior = fitted(tmp_path, max_iter=200)
    objective = posterior.tree["optimization/objective"].values
    assert (np.diff(objective) > -1e-8 * abs(objective[-1])).all()
    mean = np.hstack([posterior.predict(view)["mean"].values for view in "ab"])
    residual = np.nansum((values - mean) ** 2) / np.nansum((values - np.nanmean(values, 0)) ** 2)
    assert residual < 0.4


def test_other_views_are_refused(tmp_path: Path) -> None:
    dataset = factorflow.write_dataset(
        tmp_path / "d.zarr", {"y": np.random.default_rng(0).normal(size=(9, 3))}
    )
    with pytest.raises(InputError, match="views = y: expected views of counts"):
        factorflow.fit(dataset, poisson_nmf.PoissonNMF(), progress=False)
