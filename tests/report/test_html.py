"""The report is one file with everything in it, for both kinds of posterior."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import bayesian_pca
import numpy as np
import pytest
import xarray as xr

import factorflow
from factorflow import report
from factorflow.errors import InputError
from factorflow.report import write_report


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
        if tag not in {"meta", "link", "br"}:
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


def test_a_variational_report(given: Any, tmp_path: Path) -> None:
    given.posterior.variance_explained()
    page = _page(write_report(given.posterior, tmp_path / "report.html"))
    for heading in ("Convergence", "Factors", "Scores", "Held-out entries", "Run record"):
        assert heading in page.text
    assert "Associations with sample metadata" in page.text
    assert all(link.startswith(("#", "data:")) for link in page.links), page.links
    assert len(page.ids) == len(set(page.ids))
    assert set(re.findall(r"url\(#([^)]+)\)", (tmp_path / "report.html").read_text())) <= set(page.ids)


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


def test_names_are_escaped(given: Any, tmp_path: Path) -> None:
    given.posterior.run["dataset"] = "<script>alert(1)</script>"
    text = write_report(given.posterior, tmp_path / "report.html").read_text()
    assert "<script>" not in text


def test_a_partial_run_says_so(given: Any, tmp_path: Path) -> None:
    given.posterior.run["status"] = "partial"
    assert (
        "The run was ended (converged) after 5 iterations"
        in write_report(given.posterior, tmp_path / "report.html").read_text()
    )


def test_the_dataset_may_be_gone(given: Any, tmp_path: Path) -> None:
    given.posterior.run["dataset"] = str(tmp_path / "gone.zarr")
    page = _page(write_report(given.posterior, tmp_path / "report.html"))
    assert "Data behind Factor1" not in page.text


def test_a_place_that_cannot_be_written(given: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="path"):
        write_report(given.posterior, tmp_path / "no" / "such" / "folder.html")


def test_a_projected_posterior(given: Any, tmp_path: Path) -> None:
    given.posterior.tree["optimization"] = xr.Dataset(coords={"iteration": np.zeros(0, int)})
    given.posterior.run["status"] = "projected"
    page = _page(write_report(given.posterior, tmp_path / "report.html"))
    assert "Convergence" not in page.text
    assert given.posterior.summary()["objective"] is None
    with pytest.raises(InputError, match="iterations"):
        report.plot_trace(given.posterior)
