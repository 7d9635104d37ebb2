"""The report is one file with everything in it, for both kinds of posterior."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import bayesian_pca
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import factorflow
from factorflow import report
from factorflow.data import Dataset
from factorflow.errors import InputError
from factorflow.posterior.active_views import active_views
from factorflow.report import drawing, html, write_report
from factorflow.report.factors import associations, describe_factors, rank_by_strength, scatters
from factorflow.report.html import _sampler
from factorflow.report.overview import describe_data, reproduce


class _Page(HTMLParser):
    """Collects headings, links, ids, and checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [v for k in ("href", "src", "xlink:href") if (v := values.get(k))]
        self.ids += [v] if (v := values.get("id")) else []
        if tag not in {"meta", "link", "br", "input"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())


def _page(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    assert page.open == []
    return page


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture
def plain(given: Any, folder: Path) -> Path:
    """The report of the tiny posterior as it is, written once."""
    path = folder / "report.html"
    return path if path.exists() else write_report(given.posterior, path)


@pytest.mark.thorough
def test_a_variational_report(given: Any, plain: Path) -> None:
    given.posterior.variance_explained()
    page = _page(plain)
    for heading in ("Convergence", "Factors", "Scores", "Held-out entries", "Run record"):
        assert heading in page.text
    assert "Associations with sample metadata" in page.text
    assert all(link.startswith(("#", "data:")) for link in page.links), page.links
    assert len(page.ids) == len(set(page.ids))
    assert set(re.findall(r"url\(#([^)]+)\)", plain.read_text())) <= set(page.ids)


@pytest.mark.thorough
def test_a_samplers_report(tmp_path: Path) -> None:
    data = factorflow.simulate(
        "sparse_gfa",
        tmp_path / "data.zarr",
        n_samples=40,
        block_rows=32,
        seed=7,
        **bayesian_pca.BayesianPCA.examples()["default"].data,
    )
    posterior = factorflow.fit(data, bayesian_pca.BayesianPCA(n_draws=20))
    page = _page(write_report(posterior, tmp_path / "report.html"))
    assert "Entries that mix worst" in page.text
    assert any("R-hat above 1.01" in text for text in page.text)
    shown = _sampler(posterior)
    highest = posterior.diagnostics()["r_hat"].nlargest(8)
    assert [row[1] for row in shown["worst"]] == [f"{value:.3g}" for value in highest]
    assert shown["above"] == (posterior.diagnostics()["r_hat"] > 1.01).sum()


@pytest.mark.thorough
@pytest.mark.usefixtures("blank_figures")
def test_names_are_escaped_and_a_partial_run_says_so(given: Any, tmp_path: Path) -> None:
    given.posterior.run |= {"dataset": "<script>alert(1)</script>", "status": "partial"}
    text = write_report(given.posterior, tmp_path / "report.html").read_text()
    assert "<script>" not in text
    assert "The run was ended (converged) after 5 iterations" in text


@pytest.mark.thorough
@pytest.mark.usefixtures("blank_figures")
def test_the_dataset_may_be_gone(given: Any, tmp_path: Path) -> None:
    given.posterior.run["dataset"] = str(tmp_path / "gone.zarr")
    page = _page(write_report(given.posterior, tmp_path / "report.html"))
    assert "Data behind Factor1" not in page.text


@pytest.mark.thorough
@pytest.mark.usefixtures("blank_figures")
def test_a_place_that_cannot_be_written(given: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="path"):
        write_report(given.posterior, tmp_path / "no" / "such" / "folder.html")


@pytest.mark.thorough
@pytest.mark.usefixtures("blank_figures")
def test_a_projected_posterior(given: Any, tmp_path: Path) -> None:
    given.posterior.tree["optimization"] = xr.Dataset(coords={"iteration": np.zeros(0, int)})
    given.posterior.run["status"] = "projected"
    page = _page(write_report(given.posterior, tmp_path / "report.html"))
    assert "Convergence" not in page.text
    assert given.posterior.summary()["objective"] is None
    with pytest.raises(InputError, match="iterations"):
        report.plot_trace(given.posterior)


def _changed(given: Any, **arrays: Any) -> Any:
    """Return the posterior with variables in the place of its own."""
    node = given.posterior.tree["variational"].to_dataset().copy(deep=True)
    for name, values in arrays.items():
        node[name].values[...] = values
    given.posterior.tree["variational"] = node
    return given.posterior


@pytest.mark.thorough
def test_features_of_views_that_a_factor_does_not_touch_are_not_shown(given: Any, tmp_path: Path) -> None:
    """Of those it touches, only features it reaches, with sign and size; a factor of nothing says so."""
    record = {k: v.copy() for k, v in given.record.items() if k.startswith(("loadings_", "inclusion_"))}
    record["inclusion_mutation"][:, 0] = 0.4
    record["inclusion_rna"][:, 0] = 0.0
    record["inclusion_rna"][3, 0] = 0.9
    record["loadings_rna"][:, 0] = 0.01
    record["loadings_rna"][3, 0] = -1.25
    for view in ("rna", "mutation"):
        record[f"inclusion_{view}"][:, 2] = 0.1
    posterior = _changed(given, **record)
    first, second, third = describe_factors(posterior)
    assert [table["view"] for table in first["tables"]] == ["rna"]
    assert first["untouched"] == ["mutation"]
    assert [row[:2] for row in first["tables"][0]["rows"]] == [["rna 3", "-1.25"]]
    assert first["tables"][0]["facts"] == "1 of 12 features"
    assert first["figure"].count("rna 3") == 1
    assert "rna 4" not in first["figure"]
    assert second["untouched"] == []
    assert third["tables"] == []
    assert third["figure"] == ""
    assert "top_features" in posterior.summary()["factors"][0]
    assert list(posterior.summary()["factors"][0]["top_features"]) == ["rna"]
    page = _page(write_report(posterior, tmp_path / "report.html"))
    text = " ".join(page.text)
    assert "Factor3 · touches no view" in text
    assert "Does not touch mutation." in text
    assert "rna 3 (-1.25)" in text
    assert {"Factor1", "Factor2", "Factor3"} <= set(page.ids)


def test_scores_are_drawn_against_what_they_go_with(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The column that was made of the first factor colours it; without associations the strongest factors."""
    drawn: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        "factorflow.report.sample_plots.plot_scores",
        lambda p, factors, color, of, ax: drawn.append((*factors, color)),
    )
    table = associations(given.posterior)
    assert table is not None
    scatters(given.posterior, table)
    assert drawn[0][0] == "Factor1"
    assert drawn[0][2] == "age"
    drawn.clear()
    scatters(given.posterior, None)
    assert [pair[:2] for pair in drawn] == [("Factor1", "Factor2")] * len(drawn)
    assert {pair[2] for pair in drawn} == {"age", "sex", "group"}


@pytest.mark.thorough
def test_the_strongest_factors_come_first(given: Any) -> None:
    node = given.posterior.tree["variational"].to_dataset()
    share = np.array([[0.1, 0.3, 0.2], [0.0, 0.1, 0.5]])
    given.posterior.tree["variational"] = node.assign(
        variance_explained=(("view", "factor"), share),
        variance_explained_total=("view", share.sum(1)),
    ).assign_coords(view=["rna", "mutation"])
    assert rank_by_strength(given.posterior) == ["Factor3", "Factor2", "Factor1"]
    assert active_views(given.posterior, "Factor1") == ["rna"]
    assert describe_factors(given.posterior)[1]["tables"][1]["facts"].startswith("10.0 % of the variance, ")


@pytest.mark.thorough
def test_the_data_are_described(given: Any, plain: Path) -> None:
    page = _page(plain)
    cells = [text for text in page.text if text]
    row = cells[cells.index("missing entries") + 1 :][:5]
    missing = np.isnan(given.dataset.values("rna")).mean()
    assert row == ["rna", "gaussian", "12", "70", f"{100 * missing:.3g} %"]
    assert "Groups: a (35), b (35)." in " ".join(" ".join(page.text).split())
    share = report.plot_presence(given.posterior).images[0].get_array()
    np.testing.assert_allclose(share[0], 1 - np.isnan(given.dataset.values("rna")).mean(1))


def test_samples_that_a_view_lacks_are_not_counted(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known = given.posterior.dataset.describe()
    known["views"][0]["n_missing_samples"] = 9
    monkeypatch.setattr(Dataset, "describe", lambda _: known)
    assert [view["n_samples"] for view in describe_data(given.posterior)["views"]] == [61, 70]


def test_the_data_behind_a_factor_are_those_it_explains_most_of(
    given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        "factorflow.report.data_plots.plot_data", lambda p, view, factor, n, ax: drawn.append((view, factor))
    )
    share = xr.DataArray([[0.1, 0.3, 0.2], [0.2, 0.1, 0.5]], dims=("view", "factor"))
    node = given.posterior.tree["variational"].to_dataset()
    given.posterior.tree["variational"] = node.assign(variance_explained=share).assign_coords(
        view=["rna", "mutation"]
    )
    for factor in ("Factor1", "Factor2"):
        html._data(given.posterior, factor)
    assert drawn == [("mutation", "Factor1"), ("rna", "Factor2")]


def test_rows_are_surprising_among_so_many(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 70 rows: p x 70 / rank, below a tenth (Benjamini and Hochberg)."""
    p = [1e-4, 2.5e-3, 1e-2, 0.02]
    table = pd.DataFrame({"obs": list("abcd"), "value": 1.0, "mean": 0.0, "sd": 1.0, "p_value": p})
    monkeypatch.setattr(html, "_single_response", lambda _: "rna")
    monkeypatch.setattr(html, "find_anomalies", lambda *_: table)
    found = html._anomalies(given.posterior)
    assert found is not None
    assert [(row[0], row[-1]) for row in found] == [("a", "7.0e-03"), ("b", "8.8e-02")]


@pytest.mark.parametrize("name", ["r2", "log_likelihood", "auc"])
def test_which_scores_are_better(name: str) -> None:
    assert [html._cell(name, 0.1, base)[2] for base in (0.0, 0.2, None)] == [False, True, False]
    assert [html._cell("deviance", 0.1, base)[2] for base in (0.0, 0.2)] == [True, False]


def test_the_same_fit_again(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of the report, run, ask for the run that they describe."""
    called: dict[str, Any] = {}

    def fit(dataset: str, model: Any, **options: Any) -> None:
        called.update(dataset=dataset, model=model, **options)

    monkeypatch.setattr(factorflow, "fit", fit, raising=False)
    given.posterior.run |= {"max_iter": 40, "holdout_unit": "row"}
    exec(reproduce(given.posterior), {})
    run = given.posterior.run
    assert called.pop("dataset") == run["dataset"]
    assert type(given.posterior.config)(**called.pop("model")) == given.posterior.config
    assert called == {"seed": run["seed"], "holdout": 0.1, "holdout_unit": "row", "max_iter": 40}


@pytest.mark.thorough
@pytest.mark.usefixtures("blank_figures")
def test_scores_below_those_of_means_are_marked(given: Any, tmp_path: Path) -> None:
    table = given.posterior.tree["holdout"].to_dataset()
    given.posterior.tree["holdout"] = table.assign(
        rmse=table["r2"] * 0 + [1.0, 0.2], baseline_rmse=table["r2"] * 0 + [0.9, 0.3]
    )
    text = write_report(given.posterior, tmp_path / "report.html").read_text()
    assert text.count('class="worse"') == 1
    assert "1.0000<small>0.9000" in text.replace("\n", "")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"n_draws": 8, "n_burn_in": 2, "chains": 2}, marks=pytest.mark.slow)]
)
def test_a_report_does_not_grow_with_the_samples(
    options: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the page nor what is read of the data for it: of ten times the samples no more points."""
    monkeypatch.setattr(drawing, "MAX_POINTS", 200)
    monkeypatch.setattr("factorflow.report.explore.MAX_SAMPLES", 200)
    monkeypatch.setattr(drawing, "MOST_BLOCKS", 3)
    read: list[int] = []
    block = Dataset.block
    monkeypatch.setattr(Dataset, "block", lambda self, n, *rest: (read.append(n), block(self, n, *rest))[1])
    sizes = []
    for n in (600, 6000):
        rng = np.random.default_rng(0)
        scores = rng.normal(size=(n, 2))
        values = scores @ rng.normal(size=(2, 6)) + rng.normal(size=(n, 6))
        values[rng.random((n, 6)) < 0.05] = np.nan
        obs = pd.DataFrame({"site": rng.choice(list("abc"), n), "age": scores[:, 0]})
        data = factorflow.write_dataset(tmp_path / f"{n}.zarr", {"y": values}, obs=obs, block_rows=64)
        model = {"model": "sparse_gfa", "n_factors": 2, "max_iter": 5, "drop": 0.0, **options}
        posterior = factorflow.fit(data, model)
        read.clear()
        sizes.append(write_report(posterior, tmp_path / "report.html").stat().st_size)
        assert len(set(read)) <= 3
    assert sizes[1] < 1.05 * sizes[0]


@pytest.mark.thorough
def test_a_model_with_inputs_and_without_loadings(given: Any, tmp_path: Path) -> None:
    node = given.posterior.tree["variational"].to_dataset()
    node = node.drop_vars([name for name in node.data_vars if "_rna" in name or "_mutation" in name])
    inputs = node["scores"].isel(factor=slice(2)).rename(factor="input").drop_vars("input", errors="ignore")
    given.posterior.tree["variational"] = node.assign(inputs=inputs)
    page = _page(write_report(given.posterior, tmp_path / "report.html"))
    assert {"Inputs", "Scores", "Data"} <= set(page.text)
    assert "Factors" not in page.text


@pytest.mark.thorough
def test_sections_of_ones_own(given: Any, plain: Path, tmp_path: Path) -> None:
    text = write_report(
        given.posterior, tmp_path / "r.html", {"Fields <&>": "<svg id='mine'></svg>"}
    ).read_text()
    assert "<svg id='mine'></svg>" in text
    assert text.count("Fields &lt;&amp;&gt;") == 2  # its heading, and the link to it
    assert 'href="#section-1"' in text
    assert "section-1" not in plain.read_text()
