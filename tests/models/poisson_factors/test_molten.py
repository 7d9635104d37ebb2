"""With priors that agree, programs are the molten Poisson components of a grid of cells and genes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import factorflow
from factorflow.models import MoltenPoisson, PoissonFactors

PINNED = 1e9
"""Shape and rate of a Gamma prior that is one number, 1."""


@pytest.mark.parametrize("k", [1, 2])
def test_components_of_a_grid(k: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Usages and programs ~ Gamma(1, 1) on both sides: the same but for the prior of shapes."""
    place = "factorflow.models.poisson_factors"
    for constant in ("programs.RATE_PRIOR", "programs.FEATURE_PRIOR", "start.RATE_PRIOR"):
        monkeypatch.setattr(f"{place}.{constant}", PINNED)
    monkeypatch.setattr(f"{place}.programs.best_shape", lambda shape, *_: shape)
    rng = np.random.default_rng(4)
    n, d = 40, 15
    usage = np.zeros((n, 2))
    usage[: n // 2, 0], usage[n // 2 :, 1] = rng.gamma(4, 1, n // 2), rng.gamma(4, 1, n // 2)
    loadings = np.zeros((d, 2))
    loadings[:8, 0], loadings[7:, 1] = rng.gamma(4, 0.5, 8), rng.gamma(4, 0.5, 8)
    counts = rng.poisson(usage @ loadings.T + 0.1)
    wide = factorflow.write_dataset(tmp_path / "wide.zarr", {"rna": counts}, {"rna": "poisson"})
    cell, gene = np.divmod(np.arange(n * d), d)
    long = factorflow.write_dataset(
        tmp_path / "long.zarr",
        {
            "count": counts.reshape(-1, 1),
            "cell": np.array([f"c{i:02d}" for i in cell]),
            "gene": np.array([f"g{i:02d}" for i in gene]),
        },
        {"count": "poisson"},
        inputs={"cell": "categorical", "gene": "categorical"},
    )
    passes = {"max_iter": 400, "tol": 1e-12, "drop": 0.0}
    programs = PoissonFactors(n_factors=k, size_factors="none", settling_iter=1, **passes)
    fitted = factorflow.fit(wide, programs, progress=False)
    components = MoltenPoisson(n_components=k, shape=1.0, rate=1.0, max_iter=400, tol=1e-12, scale_step=False)
    molten = factorflow.fit(long, components, progress=False)
    bounds = [posterior.trace["objective"].values[-1] for posterior in (fitted, molten)]
    bounds[0] += k + 1  # of Exponential(1) at 1
    np.testing.assert_allclose(*bounds, rtol=1e-6)
    rates = [fitted.predict("rna")["mean"].values, molten.predict("count")["mean"].values.reshape(n, d)]
    np.testing.assert_allclose(*rates, rtol=1e-4)
