"""Factors that follow depth or a batch are named, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow as ff
from factorflow.posterior import confounders
from factorflow.posterior.confounders import BATCH, DEPTH, batch, depth

N, D = 240, 40
RNG = np.random.default_rng(5)
Z = RNG.normal(size=N)
BATCHES = np.repeat(["a", "b", "c"], N // 3)
EFFECT = RNG.normal(size=D)
MODEL = ff.models.SparseGFA(n_factors=3, max_iter=40)


def fitted(path: Path, values: Any, obs: Any = None, **options: Any) -> Any:
    data = ff.write_dataset(path / "d.zarr", {"x": values}, obs=obs, **options)
    return ff.fit(data, MODEL, progress=False)


def counts(depths: Any, signs: Any) -> Any:
    rng = np.random.default_rng(1)
    rates = np.exp(0.7 + 0.7 * np.outer(Z, signs) + np.log(depths)[:, None] + 0.3 * rng.normal(size=D))
    return rng.poisson(rates).astype(float)


def test_total_counts(tmp_path: Path) -> None:
    signs = np.where(np.arange(D) % 2, 1.0, -1.0)
    depths = np.exp(0.8 * np.random.default_rng(2).normal(size=N))
    posterior = fitted(tmp_path, counts(depths, signs), likelihoods={"x": "poisson"})
    found = list(depth(posterior))
    assert len(found) == 1
    assert "the total count of x explains" in found[0].message
    assert found[0] in posterior.findings
    label = found[0].message.split()[0]
    r = abs(np.corrcoef(posterior.scores().sel(factor=label), np.log(depths))[0, 1])
    assert r > 0.7
    (tmp_path / "equal").mkdir()
    even = fitted(tmp_path / "equal", counts(np.ones(N), signs), likelihoods={"x": "poisson"})
    assert even.factors
    assert not list(depth(even))


@pytest.mark.thorough
def test_successes_and_levels_are_no_depths(tmp_path: Path) -> None:
    """Nothing has size factors of them; as Poisson counts the same entries are a depth."""
    common = np.random.default_rng(2).normal(size=N)
    trials = np.full((N, D), 6)
    chance = 1.0 / (1.0 + np.exp(-2.0 * common[:, None] - 0.5 * RNG.normal(size=D)))
    values = np.random.default_rng(3).binomial(trials, chance).astype(float)
    data = ff.write_dataset(tmp_path / "d.zarr", {"x": values}, {"x": "poisson"})
    assert list(depth(ff.fit(data, MODEL, progress=False)))
    for likelihood in ("binomial(trials=6)", "ordinal"):
        model = ff.models.SparseGFA(n_factors=3, max_iter=40, likelihoods={"x": likelihood})
        posterior = ff.fit(data, model, progress=False)
        assert posterior.factors
        assert not list(depth(posterior))


def test_size_factors_of_another_view(tmp_path: Path) -> None:
    signs = np.where(np.arange(D) % 2, 1.0, -1.0)
    depths = np.exp(0.8 * np.random.default_rng(2).normal(size=N))
    views = {"x": counts(depths, signs), "y": counts(depths, -signs)}
    obs = {"n_counts": depths}
    data = ff.write_dataset(tmp_path / "d.zarr", views, dict.fromkeys(views, "poisson"), obs=obs)
    options = {"n_factors": 3, "max_iter": 40}
    one = ff.fit(data, ff.models.SparseGFA(size_factors={"y": "total"}, **options), progress=False)
    assert [finding.message.split(": ")[1][:20] for finding in depth(one)] == ["the total count of x"]
    both = ff.fit(data, ff.models.SparseGFA(size_factors="total", **options), progress=False)
    assert not list(depth(both))


def test_columns_of_depths_and_batches(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    lead = (BATCHES == "b").astype(float) - (BATCHES == "c")
    values = np.outer(lead * 1.5, EFFECT) + np.outer(Z, rng.normal(size=D)) + 0.5 * rng.normal(size=(N, D))
    obs = {
        "plate": BATCHES,
        "tissue": BATCHES,
        "n_counts": np.exp(Z + 0.1 * rng.normal(size=N)).round(3) * 1000,
        "batch": np.array(["u", "v"])[rng.integers(0, 2, N)],
        "run": [f"run{i}" for i in range(N)],
    }
    posterior = fitted(tmp_path, values, obs)
    (found,) = batch(posterior)
    assert "the column plate: its 3 values explain" in found.message
    (found,) = depth(posterior)
    assert "the column n_counts explains" in found.message
    kinds = [finding.kind for finding in posterior.findings]
    assert (kinds.count("depth"), kinds.count("batch")) == (1, 1)


def test_gaps_and_other_types_of_columns(tmp_path: Path) -> None:
    values = np.outer((BATCHES == "a") * 3.0, EFFECT) + 0.5 * RNG.normal(size=(N, D))
    plate = pd.Series(pd.Categorical(np.where(BATCHES == "a", 1, 2)))
    plate[5] = None
    obs = pd.DataFrame({"Plate ID": BATCHES, "plate_id": plate, "umis": pd.array([None] * N, dtype="Int64")})
    (found,) = batch(fitted(tmp_path, values, obs))
    assert "the column plate_id: its 2 values" in found.message


def test_of_many_samples_some_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = fitted(tmp_path, np.outer(Z, EFFECT) + 0.5 * RNG.normal(size=(N, D)), {"n_umis": np.exp(Z)})
    assert len(list(depth(posterior))) == 1
    monkeypatch.setattr(confounders, "MOST_ROWS", 50)
    assert len(list(depth(posterior))) == 1
    assert confounders._rows(posterior).tolist() == [*range(0, N, 5)]


def test_few_samples_say_nothing(tmp_path: Path) -> None:
    values = np.outer(Z[:8], EFFECT) + 0.5 * RNG.normal(size=(8, D))
    posterior = fitted(tmp_path, values, {"batch": ["a", "b"] * 4, "lane": list("aabbccdd")})
    assert not list(batch(posterior))


def test_names_of_columns() -> None:
    depths = [
        "n_counts",
        "total_counts",
        "rna:n_counts",
        "nCount_RNA",
        "library_size",
        "size_factor",
        "depth",
    ]
    assert all(DEPTH.search(name.replace(":", "_")) for name in depths)
    batches = ["batch", "Batch", "seq_batch", "plate_2", "lane", "run_id", "flowcell", "center", "batch2"]
    assert all(BATCH.search(name) for name in batches)
    others = [
        "age",
        "tissue",
        "water_depth",
        "site",
        "collaborator",
        "n_siblings",
        "running",
        "counts_per_day",
    ]
    assert not any(DEPTH.search(name) or BATCH.search(name) for name in others)
