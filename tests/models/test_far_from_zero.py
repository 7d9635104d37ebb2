"""Features far from 0: rounding does not hide what they vary by, in any family and under any cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import factorflow as ff

OFFSETS = np.array([1e7, -1e9, 3e10])


def measurements(n: int = 120, seed: int = 0) -> Any:
    """Return values (n, 9) of two factors, multiples of 2^-10: far from 0 they are exact in double."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, 2)) @ rng.normal(size=(2, 9)) + 0.5 * rng.normal(size=(n, 9))
    return np.round(values * 1024) / 1024


def fitted(folder: Path, values: Any, model: Any, block_rows: int = 64, **more: Any) -> Any:
    folder.mkdir()
    data = ff.write_dataset(folder / "d", {"y": values}, {"y": "gaussian"}, block_rows=block_rows, **more)
    return ff.fit(data, model, progress=False)


@pytest.mark.thorough
@pytest.mark.parametrize("block_rows", [32, 64])
def test_offsets_change_nothing(block_rows: int, tmp_path: Path) -> None:
    values, offsets = measurements(), np.repeat(OFFSETS, 3)
    near, far = (
        fitted(tmp_path / str(i), values + place, ff.models.SparseGFA(n_factors=2), block_rows)
        for i, place in enumerate((0.0 * offsets, offsets))
    )
    assert far.dataset.manifest.views[0].dtype == "float64"
    assert far.factors == near.factors
    expected = near.predict("y")["mean"].values
    found = far.predict("y")["mean"].values.astype(float) - offsets
    left = ((values - found) ** 2).mean() / ((values - expected) ** 2).mean()
    assert left == pytest.approx(1.0, abs=0.05)
    assert far.variance_explained().values == pytest.approx(near.variance_explained().values, abs=0.02)
    cut = fitted(tmp_path / "more", values + 2 * offsets, ff.models.SparseGFA(n_factors=2), block_rows)
    np.testing.assert_allclose(cut.scores().values, far.scores().values, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gplvm_cmf", "identity_attribute"])
def test_other_families(name: str, tmp_path: Path) -> None:
    values, offsets = measurements(), np.repeat(OFFSETS, 3)
    if name == "gplvm_cmf":
        pytest.importorskip("torch")
        model, groups = ff.models.GPLVMCMF(n_factors=2, n_inducing=8, max_iter=40), {}
    else:
        model = ff.models.IdentityAttribute(n_identities=2, n_attributes=2, max_iter=5)
        groups = {"sequences": np.repeat([0, 1], 60)}
    near, far = (
        fitted(tmp_path / str(i), values + place, model, **groups)
        for i, place in enumerate((0.0 * offsets, offsets))
    )
    expected = near.predict("y")["mean"].values
    found = far.predict("y")["mean"].values.astype(float) - offsets
    left = ((values - found) ** 2).mean() / ((values - expected) ** 2).mean()
    assert left == pytest.approx(1.0, abs=0.05)
