"""Quality of samples and variability of features, against plain sums over the whole matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from factorflow import write_dataset
from factorflow.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::factorflow.data.DataWarning")

N, D = 150, 24
GENES = ["MT-A", "MT-B", *(f"G{i}" for i in range(D - 2))]


def counts(gaps: bool) -> np.ndarray:
    rng = np.random.default_rng(3)
    rate = rng.gamma(2.0, 0.2, (N, 1)) * rng.gamma(0.5, 1.0, D) * rng.gamma(1.0, 1.0, (N, D))
    values = rng.poisson(rate).astype(float)
    values[11] = 0
    if gaps:
        values[[5, 149]] = np.nan
        values[80:, 3:6] = np.nan
    return values


@pytest.fixture(params=["dense", "sparse"])
def layout(request: Any) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["complete", "gaps"])
def values(request: Any) -> np.ndarray:
    return counts(request.param)


def dataset_of(values: np.ndarray, layout: str, path: Path) -> Any:
    donor = pd.Categorical(np.where(np.arange(N) % 3 == 0, "a", "b"))
    frame = pd.DataFrame(values, columns=GENES, index=[f"c{i}" for i in range(N)])
    views = {"rna": frame, "other": frame.iloc[:, :2] * 0.5 + 0.25}
    obs = pd.DataFrame({"donor": donor}, index=frame.index)
    return write_dataset(path / "d", views, obs=obs, layout={"rna": layout}, block_rows=32)


def test_quality(values: np.ndarray, layout: str, tmp_path: Path) -> None:
    dataset = dataset_of(values, layout, tmp_path)
    found = dataset.qc({"mt": "MT-", "two": ["G0", "G7", "not there"]})
    columns = ["rna_total_counts", "rna_n_features", "rna_pct_mt", "rna_pct_two"]
    assert found.columns.tolist() == columns
    assert found.index.tolist() == dataset.obs_names.tolist()
    absent = np.isnan(values).all(axis=1)
    total = np.where(absent, np.nan, np.nansum(values, axis=1))
    with np.errstate(invalid="ignore"):
        share = 100 * np.nansum(values[:, :2], axis=1) / total
        two = 100 * np.nansum(values[:, [2, 9]], axis=1) / total
    np.testing.assert_array_equal(found["rna_total_counts"], total)
    np.testing.assert_array_equal(found["rna_n_features"], np.where(absent, np.nan, (values > 0).sum(axis=1)))
    np.testing.assert_allclose(found["rna_pct_mt"], share)
    np.testing.assert_allclose(found["rna_pct_two"], two)
    assert dataset.qc().columns.tolist() == columns[:2]


def expected(values: np.ndarray, batch: np.ndarray) -> dict[str, np.ndarray]:
    total = np.nansum(values, axis=1)
    some = total > 0
    y, batch = values[some], batch[some]
    s = total[some] / total[some].mean()
    x = y / s[:, None]
    weights, moments, deviance = [], [], np.zeros(D)
    for name in np.unique(batch):
        rows = batch == name
        seen = ~np.isnan(y[rows])
        mean = np.nanmean(x[rows], axis=0)
        noise = mean * np.array([np.mean((1 / s[rows])[seen[:, d]]) for d in range(D)])
        variance = np.nanvar(x[rows], axis=0)
        weights.append(seen.sum(axis=0))
        moments.append([mean, variance, variance - noise])
        rate = np.array([np.nansum(y[rows, d]) / s[rows][seen[:, d]].sum() for d in range(D)])
        m = rate * s[rows][:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.where(y[rows] > 0, y[rows] * np.log(y[rows] / m), 0.0) - (y[rows] - m)
        deviance += 2 * np.nansum(each, axis=0)
    share = np.array(weights) / np.sum(weights, axis=0)
    names = ("mean", "variance", "excess_variance")
    found = {name: sum(w * m[i] for w, m in zip(share, moments, strict=True)) for i, name in enumerate(names)}
    return {**found, "deviance": deviance}


@pytest.mark.parametrize("batch", [None, "donor"])
@pytest.mark.parametrize("by", ["excess_variance", "deviance"])
def test_variability(values: np.ndarray, layout: str, batch: str | None, by: str, tmp_path: Path) -> None:
    dataset = dataset_of(values, layout, tmp_path)
    found = dataset.highly_variable("rna", n=5, batch=batch, by=by)
    of_rows = np.zeros(N) if batch is None else (np.arange(N) % 3 == 0).astype(int)
    for name, wanted in expected(values, of_rows).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-9, atol=1e-9, err_msg=name)
    assert found.index.tolist() == GENES
    best = found.sort_values("rank").index[:5]
    assert sorted(found.index[found["highly_variable"]]) == sorted(best)
    assert found[by].sort_values(ascending=False).index[:5].tolist() == best.tolist()


def test_differences_between_batches_do_not_count(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rate = np.full((300, 40), 3.0)
    rate[:, 0] *= rng.gamma(2.0, 0.5, 300)  # varies within batches
    rate[150:, 1] *= 6  # and this one between them
    batch = ["a"] * 150 + ["b"] * 150
    dataset = write_dataset(tmp_path / "d", {"rna": rng.poisson(rate)}, obs={"batch": batch})
    features = dataset.features("rna")
    alone, within = dataset.highly_variable("rna", 1), dataset.highly_variable("rna", 1, batch="batch")
    assert features[alone["highly_variable"].to_numpy()].tolist() == ["feature1"]
    assert features[within["highly_variable"].to_numpy()].tolist() == ["feature0"]


def test_refused(tmp_path: Path) -> None:
    dataset = dataset_of(counts(False), "sparse", tmp_path)
    for call, said in (
        (lambda: dataset.qc({"none": "XX"}), "sets = none: 'XX': expected features of rna"),
        (lambda: dataset.highly_variable("other"), r"view = other: expected a view of counts \(rna\)"),
        (lambda: dataset.highly_variable("rna", by="fano"), "by = fano"),
        (lambda: dataset.highly_variable("rna", n=0), "n = 0"),
        (lambda: dataset.highly_variable("rna", batch="site"), "names = site"),
    ):
        with pytest.raises(InputError, match=said):
            call()
    plain = write_dataset(tmp_path / "e", {"x": np.random.default_rng(0).standard_normal((20, 3))})
    with pytest.raises(InputError, match="a dataset with a view of counts"):
        plain.qc()


def test_sets_by_symbols(tmp_path: Path) -> None:
    """Files of 10x call features by identifiers, and "MT-" is of the symbols beside them."""
    anndata = pytest.importorskip("anndata")
    symbols = pd.DataFrame({"gene_name": pd.Categorical(GENES[:-1] + [None])}, [f"E{i}" for i in range(D)])
    values = counts(False)
    dataset = write_dataset(tmp_path / "d", {"rna": anndata.AnnData(values, var=symbols)})
    with np.errstate(invalid="ignore"):
        of_symbols, of_names = (100 * values[:, columns].sum(1) / values.sum(1) for columns in ([0, 1], [2]))
    found = dataset.qc({"mt": "MT-", "one": ["E2"]})
    np.testing.assert_allclose(found["rna_pct_mt"], of_symbols)
    np.testing.assert_allclose(found["rna_pct_one"], of_names)
    with pytest.raises(InputError, match="sets = none"):
        dataset.qc({"none": "XY-"})
