"""Simulated data: the same under any block size, and made from the truth that lies beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from factorflow.data import DataWarning, simulate
from factorflow.errors import InputError

VIEWS = {"rna": ("gaussian", 60), "mutation": ("bernoulli", 40), "counts": ("poisson", 30)}


def test_same_data_under_any_block_size(tmp_path: Path) -> None:
    made = [
        simulate(
            "sparse_gfa",
            tmp_path / f"{rows}",
            300,
            views=VIEWS,
            n_factors=3,
            missing={"rna": 0.1},
            groups=2,
            missing_samples=0.2,
            seed=3,
            block_rows=rows,
        )
        for rows in (8, 64, 512)
    ]
    for view in VIEWS:
        for other in made[1:]:
            np.testing.assert_array_equal(made[0].values(view), other.values(view))
    np.testing.assert_array_equal(made[0].truth["scores"], made[2].truth["scores"])
    other = simulate("sparse_gfa", tmp_path / "other", 300, views=VIEWS, n_factors=3, seed=4)
    assert not np.array_equal(other.values("rna"), made[0].values("rna"))


def test_data_follow_the_truth(tmp_path: Path) -> None:
    dataset = simulate("sparse_gfa", tmp_path / "s", 4000, views=VIEWS, n_factors=4, r2=0.4, seed=1)
    truth = dataset.truth.load()
    scores = truth["scores"].values
    assert abs(scores.mean()) < 0.05
    predictor = {v: scores @ truth[f"loadings_{v}"].values.T + truth[f"intercept_{v}"].values for v in VIEWS}
    residual = (dataset.values("rna") - predictor["rna"]) / truth["noise_deviation_rna"].values
    assert abs(residual.mean()) < 5 / np.sqrt(residual.size)
    assert abs(residual.var() - 1) < 5 * np.sqrt(2 / residual.size)
    variance = predictor["rna"].var(axis=0)
    explained = variance / (variance + truth["noise_deviation_rna"].values ** 2)
    assert 0.2 < np.median(explained[variance > 0.01]) < 0.6
    probability = 1 / (1 + np.exp(-predictor["mutation"]))
    error = (dataset.values("mutation") - probability).mean() / np.sqrt(
        (probability * (1 - probability)).mean()
    )
    assert abs(error) < 5 / np.sqrt(probability.size)
    rate = np.logaddexp(0, predictor["counts"])
    assert abs((dataset.values("counts") - rate).mean()) < 5 * np.sqrt(rate.mean() / rate.size)
    active = truth["active"].values
    assert active.any(axis=0).all()
    assert active.any(axis=1).all()
    assert not truth["loadings_rna"].values[:, ~active[0]].any()


def test_missing_and_groups(tmp_path: Path) -> None:
    dataset = simulate(
        "sparse_gfa",
        tmp_path / "s",
        2000,
        views=VIEWS,
        n_factors=6,
        missing=0.1,
        missing_samples={"mutation": 0.5, "rna": 0.5},
        groups=3,
        seed=5,
    )
    absent = np.isnan(dataset.values("rna")).all(axis=1)
    assert abs(absent.mean() - 0.5) < 0.06
    assert abs(np.isnan(dataset.values("rna")[~absent]).mean() - 0.1) < 0.01
    assert dataset.groups == ("group0", "group1", "group2")
    codes = dataset.codes("group")
    assert (np.diff(codes) >= 0).all()
    truth = dataset.truth.load()
    for group in range(3):
        on = truth["scores"].values[codes == group].any(axis=0)
        np.testing.assert_array_equal(on, truth["active_groups"].values[group])


@pytest.mark.parametrize("factors", ["binary", "spike_slab", "nonnegative"])
def test_binary(tmp_path: Path, factors: str) -> None:
    made = [
        simulate(
            "binary",
            tmp_path / f"{rows}",
            3000,
            n_features=20,
            n_factors=3,
            factors=factors,
            on=0.3,
            missing=0.1,
            seed=2,
            block_rows=rows,
        )
        for rows in (64, 1024)
    ]
    np.testing.assert_array_equal(made[0].values("binary"), made[1].values("binary"))
    truth = made[0].truth.load()
    scores = truth["scores"].values
    assert abs((scores != 0).mean() - 0.3) < 0.03
    assert (scores.min() < 0) is np.True_ if factors == "spike_slab" else scores.min() == 0
    from scipy.special import ndtr

    probability = ndtr(scores @ truth["loadings_binary"].values.T + truth["intercept_binary"].values)
    values = made[0].values("binary")
    seen = values >= 0
    assert abs((~seen).mean() - 0.1) < 0.01
    variance = (probability * (1 - probability))[seen]
    assert abs((values[seen] - probability[seen]).sum()) < 5 * np.sqrt(variance.sum())


def test_refusals(tmp_path: Path) -> None:
    cases: list[tuple[str, str, dict]] = [
        ("sparsegfa", "simulator = sparsegfa", {}),
        ("sparse_gfa", "n_factor", {"views": VIEWS, "n_factor": 3}),
        ("sparse_gfa", "r2 = 1.5", {"views": VIEWS, "r2": 1.5}),
        ("sparse_gfa", "missing = 1.0", {"views": VIEWS, "missing": 1.0}),
        ("sparse_gfa", "normal", {"views": {"a": ("normal", 3)}}),
        ("sparse_gfa", "view name", {"views": {"a b": ("gaussian", 3)}}),
        ("sparse_gfa", "seed = -1", {"views": VIEWS, "seed": -1}),
        ("sparse_gfa", "view 'a' = gaussian", {"views": {"a": "gaussian"}}),
        ("sparse_gfa", "views = ", {"views": "gaussian"}),
        ("sparse_gfa", "n_factors = 0", {"n_factors": 0}),
        ("sparse_gfa", "features of view 'a' = 2.5", {"views": {"a": ("gaussian", 2.5)}}),
        ("binary", "factors = ternary", {"factors": "ternary"}),
    ]
    for kind, message, settings in cases:
        with pytest.raises(InputError, match=message):
            simulate(kind, tmp_path / "s", 100, **settings)
    with pytest.raises(InputError, match="n_samples = 1"):
        simulate("binary", tmp_path / "s", 1)
    with pytest.raises(InputError, match="room for"):
        simulate("sparse_gfa", tmp_path / "s", 10**7, views={"a": ("gaussian", 10**5)})
    assert list(tmp_path.iterdir()) == []


def test_one_view_may_lack_samples(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match="no value in any view"):
        simulate("sparse_gfa", tmp_path / "s", 100, views={"a": ("gaussian", 5)}, missing_samples=0.3)
