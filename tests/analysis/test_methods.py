"""Analyses as methods, as commands, and where a dataset has moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from typer.testing import CliRunner

import factorflow
from factorflow import analysis, fit, open_posterior, write_dataset
from factorflow.cli import app
from factorflow.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((40, 2))
    rna = pd.DataFrame(scores @ rng.standard_normal((2, 12)) + 0.3 * rng.standard_normal((40, 12)))
    rna = rna.set_axis([f"gene{i}" for i in range(12)], axis=1).set_axis([f"s{i}" for i in range(40)])
    obs = pd.DataFrame({"age": scores[:, 0], "sex": ["a", "b"] * 20}, index=rna.index)
    write_dataset(path / "data", {"rna": rna}, obs=obs)
    for seed in (0, 1):
        model = {"model": "sparse_gfa", "n_factors": 2, "start": "random"}
        fit(path / "data", model, seed=seed, out=path / f"fit{seed}", max_iter=8)
    (path / "sets.gmt").write_text("first\t-\t" + "\t".join(f"gene{i}" for i in range(6)) + "\n")
    return path


def run(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.mark.thorough
def test_methods_are_the_functions(folder: Path) -> None:
    one, two = (open_posterior(folder / f"fit{seed}") for seed in (0, 1))
    pd.testing.assert_frame_equal(one.associate(), analysis.associate(one))
    pd.testing.assert_frame_equal(
        one.enrich("rna", folder / "sets.gmt"), analysis.enrich(one, "rna", folder / "sets.gmt")
    )
    found = one.match(two, by="loadings")
    pd.testing.assert_frame_equal(found.table, analysis.match_factors([one, two], "loadings").table)
    assert {"associate", "enrich", "match"} <= set(dir(one))


@pytest.mark.thorough
def test_commands_have_the_same_tables(folder: Path, tmp_path: Path) -> None:
    one, two = (open_posterior(folder / f"fit{seed}") for seed in (0, 1))
    found = run("associate", folder / "fit0", "--column", "age")["rows"]
    assert [row["column"] for row in found] == ["age"] * len(one.factors)
    assert np.isclose(found[0]["p_value"], one.associate(["age"])["p_value"][0])
    out = tmp_path / "sets.tsv"
    assert len(run("enrich", folder / "fit0", "rna", folder / "sets.gmt", "--out", out)["rows"]) == len(
        one.factors
    )
    written = pd.read_csv(out, sep="\t")
    pd.testing.assert_frame_equal(written, one.enrich("rna", folder / "sets.gmt"), check_dtype=False)
    run("enrich", folder / "fit0", "rna", folder / "sets.gmt", "--out", out, code=2)
    stability = run("match", folder / "fit0", folder / "fit1")["stability"]
    assert stability == pytest.approx(one.match(two).stability.to_dict())
    assert len(run("anomalies", folder / "fit0", "--n", 3)["rows"]) == 3
    assert "variational" in run("diagnostics", folder / "fit0", code=2)["error"]["message"]


@pytest.mark.thorough
def test_diagnostics_of_a_sampler(tmp_path: Path) -> None:
    factorflow.simulate("probit", tmp_path / "bits", 30, n_features=6, n_factors=1)
    small = factorflow.models.ProbitFactors(n_factors=1, n_burn_in=2, n_draws=10, chains=2)
    fit(tmp_path / "bits", small, out=tmp_path / "fit")
    rows = run("diagnostics", tmp_path / "fit")["rows"]
    known = [row["r_hat"] for row in rows if row["r_hat"] is not None]
    assert known == sorted(known, reverse=True)
    assert {"variable", "ess_bulk", "ess_tail"} <= set(rows[0])


@pytest.mark.thorough
def test_a_dataset_that_has_moved(folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(folder, tmp_path / "there")
    (tmp_path / "there" / "data").rename(tmp_path / "moved")
    tree = open_posterior(tmp_path / "there" / "fit0")
    tree.tree.attrs["dataset"] = str(tmp_path / "there" / "data")
    tree.save(tmp_path / "fit")
    impute = ["predict", tmp_path / "fit", "rna", "--impute", "--out", tmp_path / "rna.csv"]
    assert "add --dataset" in run(*impute, code=2)["error"]["message"]
    run(*impute, "--dataset", tmp_path / "moved")
    factorflow.simulate("sparse_gfa", tmp_path / "other", 30, views={"a": ("gaussian", 4)})
    assert "The dataset differs" in run(*impute, "--dataset", tmp_path / "other", code=2)["error"]["message"]


def test_draws_of_a_variational_posterior(folder: Path) -> None:
    posterior = open_posterior(folder / "fit0")
    with pytest.raises(InputError, match=r"posterior.sample\(100\).draws\('scores'\)"):
        posterior.draws("scores")
    with pytest.raises(InputError, match="variable = nothing: expected one of"):
        posterior.draws("nothing")
    assert posterior.sample(3).draws("scores").sizes["draw"] == 3
    with pytest.raises(InputError, match="start = -1"):
        posterior.predict("rna", -1)


def test_what_is_public_is_listed() -> None:
    for module in (factorflow, factorflow.analysis, factorflow.report, factorflow.data):
        assert set(module.__all__) <= set(dir(module))
    assert factorflow.posterior.__name__ == "factorflow.posterior"


WRONG: dict[str, tuple[Any, str]] = {
    "metadata": (lambda p: p.associate(metadata={"age": [1, 2]}), "metadata = dict: expected a DataFrame"),
    "a path for a posterior": (lambda p: p.match("fit1"), "posteriors = str: expected posteriors"),
    "a table for AnnData": (lambda p: analysis.annotate_anndata(p, pd.DataFrame()), "adata = DataFrame"),
    "a table for a dataset": (lambda p: fit(pd.DataFrame(), {"model": "sparse_gfa"}), "data = a DataFrame"),
    "a table to project": (lambda p: p.project(pd.DataFrame()), "data = a DataFrame without"),
    "nothing to open": (lambda p: open_posterior(None), "posterior = NoneType: expected a path"),  # type: ignore[arg-type]
    "a name for a model": (lambda p: fit(p.dataset, "sparse_gfa"), "model = sparse_gfa: expected a config"),  # type: ignore[arg-type]
    "a class for a model": (lambda p: fit(p.dataset, factorflow.models.SparseGFA), "model = SparseGFA: exp"),  # type: ignore[arg-type]
    "features below none": (lambda p: p.top_features("rna", 1, n=-1), "n = -1"),
    "identities": (lambda p: p.identities(), "model = sparse_gfa: expected a model of sequences"),
    "attributes": (lambda p: p.attributes(), "model = sparse_gfa: expected a model of sequences"),
    "inputs": (lambda p: p.inputs(), "model = sparse_gfa: expected a model whose samples"),
    "new samples": (lambda p: p.generate(3), "generate = SparseGFA: expected a family that can"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_methods_cannot_take_is_refused(folder: Path, case: str) -> None:
    call, told = WRONG[case]
    with pytest.raises(InputError) as error:
        call(open_posterior(folder / "fit0"))
    assert told in str(error.value)


def test_one_name_does_for_a_list_of_names(folder: Path) -> None:
    posterior = open_posterior(folder / "fit0")
    assert set(posterior.associate("age")["column"]) == {"age"}
    assert list(posterior.predict("rna", obs="s7")["obs"].values) == ["s7"]


def test_anomalies_are_the_smallest_p_values_of_all_blocks(given: Any) -> None:
    """Entry by entry: whose row and feature they are, and what was predicted there."""
    posterior, dataset = given.posterior, given.dataset
    assert dataset.n_blocks > 1
    found = analysis.find_anomalies(posterior, "rna", n=25)
    values, predicted = dataset.values("rna"), posterior.predict("rna")
    p = 2.0 * stats.norm.sf(np.abs(values - predicted["mean"].values) / predicted["sd"].values)
    order = np.argsort(np.where(np.isnan(p), 2.0, p), axis=None, kind="stable")[:25]
    rows, columns = np.unravel_index(order, p.shape)
    assert found["obs"].tolist() == np.asarray(posterior.obs_names)[rows].tolist()
    assert found["feature"].tolist() == np.asarray(posterior.features("rna"))[columns].tolist()
    np.testing.assert_allclose(found["p_value"], p[rows, columns], rtol=1e-6)
    np.testing.assert_allclose(found["value"], values[rows, columns])
    np.testing.assert_allclose(found["sd"], predicted["sd"].values[rows, columns])
