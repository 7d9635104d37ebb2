"""Predictions of new rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from table_model import ProductTable
from typer.testing import CliRunner

from factorflow import Posterior, fit, open_posterior, simulate, write_table
from factorflow.cli import app
from factorflow.data import DataWarning
from factorflow.errors import InputError

MODEL = ProductTable(n_components=2, max_iter=5)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 300
    return pd.DataFrame(
        {
            "site": rng.choice(list("abcde"), n),
            "year": rng.integers(2000, 2004, n),
            "count": rng.poisson(3.0, n),
            "effort": np.exp(rng.standard_normal(n)),
        }
    )


@pytest.fixture(scope="module")
def posterior(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Posterior:
    folder = tmp_path_factory.mktemp("tables")
    formula = "count ~ site + year + offset(log(effort))"
    dataset = write_table(folder / "data", table, formula, merge=False)
    fit(dataset, MODEL, out=folder / "posterior")
    return open_posterior(folder / "posterior")


def test_rows_of_the_fit_are_predicted_as_in_it(
    posterior: Posterior, table: pd.DataFrame, tmp_path: Path
) -> None:
    fitted = posterior.predict("count")
    order = np.random.default_rng(1).permutation(len(table))
    new = table.iloc[order].drop(columns="count")
    new.to_parquet(tmp_path / "new.parquet")
    write_table(tmp_path / "new", table.iloc[order], posterior.meta.design.formula, merge=False)
    for source in (new, tmp_path / "new.parquet", str(tmp_path / "new")):
        found = posterior.predict(source)
        for name in ("mean", "sd"):
            assert found[name].dims == ("obs",)
            np.testing.assert_array_equal(found[name], fitted[name][order, 0])
    assert posterior.predict(new).indexes["obs"].tolist() == new.index.tolist()


def test_exposures_and_levels_that_are_new(posterior: Posterior, table: pd.DataFrame) -> None:
    rows = table[:4].assign(effort=[1.0, 2.0, 0.0, 1.0], site=["a", "a", "a", "new"], year=2001)
    with pytest.warns(DataWarning, match="variable 'site': 1 level that the dataset did not have .'new'"):
        mean = posterior.predict(rows)["mean"].to_numpy()
    assert mean[1] == pytest.approx(2.0 * mean[0])
    assert mean[2] == 0.0
    assert np.isfinite(mean[3])
    assert mean[3] != mean[0]


def test_some_of_the_variables_will_do(table: pd.DataFrame, tmp_path: Path) -> None:
    dataset = write_table(tmp_path / "data", table, "count ~ site + year", merge=False)
    posterior = fit(dataset, ProductTable(n_components=2, max_iter=3, views=("count", "site")))
    found = posterior.predict(table[["site"]])
    np.testing.assert_array_equal(found["mean"], posterior.predict("count")["mean"][:, 0])


def test_no_rows(posterior: Posterior, table: pd.DataFrame) -> None:
    assert posterior.predict(table[:0]).sizes == {"obs": 0}


def test_command(posterior: Posterior, table: pd.DataFrame, tmp_path: Path) -> None:
    table.to_csv(tmp_path / "new.csv", index=False)
    base = ["predict", str(posterior.path), "count", "--table", str(tmp_path / "new.csv")]
    result = CliRunner().invoke(app, [*base, "--out", str(tmp_path / "out.csv")])
    assert result.exit_code == 0, result.output
    written = pd.read_csv(tmp_path / "out.csv", index_col="obs")
    expected = posterior.predict(table)
    np.testing.assert_allclose(written["mean"], expected["mean"], rtol=1e-12)
    np.testing.assert_allclose(written["sd"], expected["sd"], rtol=1e-12)
    for more in (["--start", "3"], ["--impute"]):
        result = CliRunner().invoke(app, [*base, *more, "--out", str(tmp_path / "no.csv")])
        assert result.exit_code == 2
    assert not (tmp_path / "no.csv").exists()


def test_refused(posterior: Posterior, table: pd.DataFrame, tmp_path: Path) -> None:
    refused: dict[str, Any] = {
        "formula = site: expected columns": table.drop(columns="site"),
        "source = nowhere.csv": "nowhere.csv",
    }
    for message, source in refused.items():
        with pytest.raises(InputError, match=message):
            posterior.predict(source)
    for name, value in {"interval": 0.9, "stop": 3, "new_obs": table, "size_factor": 2.0}.items():
        with pytest.raises(InputError, match=rf"(?s){name} = .*left out beside rows of a table"):
            posterior.predict(table, **{name: value})
    with pytest.raises(InputError, match=r"of model product.*predict\(table\)"):
        posterior.predict("count", new_obs=table)
    cached = fit(posterior.dataset, ProductTable(n_components=2, max_iter=2, cached=True))
    with pytest.raises(InputError, match="Project the new rows first"):
        cached.predict(table)
    plain = fit(simulate("table", tmp_path / "sim", 100), MODEL)
    with pytest.raises(InputError, match="view"):
        plain.predict("nowhere.csv")
