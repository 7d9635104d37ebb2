"""The part of the report that is explored, and its first screen: what they are told, and that they work."""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import factorflow
from factorflow.report import explore, write_report
from factorflow.report.answers import answers
from factorflow.report.factors import associations, list_loadings


def unpacked(item: dict[str, Any]) -> Any:
    whole = np.frombuffer(base64.b64decode(item["data"]), "<u2")
    if "levels" in item:
        return np.array(item["levels"])[whole]
    return np.where(whole == explore.MISSING, np.nan, item["low"] + item["step"] * whole)


def payload(path: Path) -> dict[str, Any]:
    found = re.search(r'id="explorer-data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]


@pytest.mark.thorough
@pytest.mark.usefixtures("blank_figures")
def test_what_is_explored(given: Any, tmp_path: Path) -> None:
    """Scores, columns and data are those of the posterior, to a ten-thousandth of their range."""
    data = payload(write_report(given.posterior, tmp_path / "r.html"))
    assert data["samples"] == [f"sample {i}" for i in range(70)]
    assert data["n_samples"] == 70
    assert data["color"] == "age"
    for k, item in enumerate(data["factors"]):
        assert item["name"] == given.posterior.factors[k]
        np.testing.assert_allclose(unpacked(item), given.rows["scores"][:, k], atol=1e-4)
    table = given.posterior.sample_metadata()
    columns = {item["name"]: unpacked(item) for item in data["columns"]}
    assert set(columns) == {"age", "sex", "group"}
    np.testing.assert_allclose(columns["age"], table["age"], atol=1e-3)
    assert columns["sex"].tolist() == table["sex"].tolist()
    features = {item["name"]: unpacked(item) for item in data["features"]}
    assert len(features) == 19
    for j in range(12):
        expected = given.dataset.values("rna")[:, j]
        np.testing.assert_allclose(features[f"rna: rna {j}"], expected, atol=1e-3)  # NaN where missing


def test_of_many_samples_a_part_is_explored(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "MAX_SAMPLES", 30)
    monkeypatch.setattr(explore, "MAX_FEATURES", 4)
    monkeypatch.setattr(explore, "MAX_FACTORS", 2)
    data = explore.explorer_data(given.posterior, given.posterior.factors, None)
    assert data is not None
    assert data["samples"] == [f"sample {i}" for i in range(0, 70, 3)]
    np.testing.assert_allclose(unpacked(data["factors"][1]), given.rows["scores"][::3, 1], atol=1e-4)
    assert (data["n_samples"], len(data["factors"]), len(data["features"])) == (70, 2, 4)
    assert {item["name"].partition(":")[0] for item in data["features"]} == {"rna", "mutation"}


def test_without_the_dataset_there_are_no_features(given: Any, tmp_path: Path) -> None:
    given.posterior.run["dataset"] = str(tmp_path / "gone.zarr")
    data = explore.explorer_data(given.posterior, given.posterior.factors, None)
    assert data is not None
    assert data["features"] == []
    assert len(data["samples"]) == 70


def test_numbers_that_do_not_vary_or_are_missing() -> None:
    for values in ([2.0, 2.0], [np.nan, np.nan], [np.nan, 3.0, -1.0], [1e300, -1e300]):
        np.testing.assert_allclose(unpacked(explore._pack_numbers(np.array(values))), values, rtol=1e-4)


def test_text_cannot_end_the_script() -> None:
    text = explore.as_json({"samples": ["</script><script>alert(1)"]})
    assert "<" not in text
    assert json.loads(text)["samples"] == ["</script><script>alert(1)"]


def test_the_first_screen(given: Any) -> None:
    node = given.posterior.tree["variational"].to_dataset()
    share = np.array([[0.4, 0.2, 0.001], [0.0, 0.1, 0.002]])
    given.posterior.tree["variational"] = node.assign(
        variance_explained=(("view", "factor"), share),
        variance_explained_total=("view", [0.6, np.nan]),
    ).assign_coords(view=["rna", "mutation"])
    found = answers(given.posterior, given.posterior.summary(), associations(given.posterior))
    assert (found["n_factors"], found["n_strong"]) == (3, 2)
    assert found["views"] == [
        {"name": "rna", "percent": "60", "width": "60.0", "named": "Factor1 40.0 %, Factor2 20.0 %"}
    ]
    best = given.posterior.associate(["age"]).iloc[0]
    assert found["columns"][0] == {
        "column": "age",
        "factor": "Factor1",
        "effect": f"rank correlation {best['effect']:.2f}",
    }


@pytest.mark.thorough
def test_what_it_says(
    given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bound is in the run record; a flow's dataset is called by its folder; figures have texts."""
    given.posterior.run["dataset"] = "/runs/digits/dataset.zarr"
    text = write_report(given.posterior, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<h1>digits</h1>" in text
    assert text.index("How many factors") < text.index("What to be careful about") < text.index("<nav>")
    assert "(nats)" not in text[: text.index('id="convergence"')]
    assert "objective (nats)" in text[text.index('id="run"') :]
    svgs = re.findall(r"<svg[^>]*>", text)
    assert svgs
    assert all('aria-label="' in svg for svg in svgs)
    assert 'aria-label="bound (nats) against iteration"' in text
    given.posterior.run["dataset"] = "/home/me/.cache/factorflow/datasets/rna-0123456789ab.zarr"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "<h1>rna</h1>" in given.posterior.write_report(tmp_path / "r.html").read_text(encoding="utf-8")
    assert "drawing the report" in capsys.readouterr().err
    assert "http" not in re.sub(r"http://www\.w3\.org/[\w/]+|https?://[\w./]*(dublincore|w3)[^\"]*", "", text)


def test_the_table_of_features(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = list_loadings(given.posterior, ["Factor2", "Factor1"])
    assert table["columns"] == ["factor", "view", "feature", "loading", "sd", "inclusion"]
    first = given.posterior.top_features("rna", 2, 1)
    assert table["rows"][0][:4] == ["Factor2", "rna", first.index[0], f"{first['loading'].iloc[0]:+.3g}"]
    n = sum(int((given.record[f"inclusion_{view}"][:, :2] > 0.5).sum()) for view in ("rna", "mutation"))
    assert len(table["rows"]) == n
    monkeypatch.setattr("factorflow.report.factors.MAX_LISTED", 3)
    assert len(list_loadings(given.posterior, ["Factor2"])["rows"]) == 3


@pytest.mark.slow
def test_a_report_of_ten_thousand_samples_is_below_8_mb(tmp_path: Path) -> None:
    rng, n = np.random.default_rng(0), 10_000
    names = [f"TCGA-{i:05d}-0123456789-01A" for i in range(n)]
    scores = rng.normal(size=(n, 20))
    views = {
        view: pd.DataFrame(
            scores @ rng.normal(size=(20, d)) + rng.normal(size=(n, d)),
            names,
            [f"ENSG{j:011d}" for j in range(d)],
        )
        for view, d in (("rna", 300), ("protein", 100))
    }
    columns = {f"number {k}": rng.normal(size=n) for k in range(15)}
    columns |= {f"level {k}": rng.choice(list("abcdefgh"), n) for k in range(15)}
    posterior = factorflow.fit(
        views, obs=pd.DataFrame(columns, names), n_factors=20, max_iter=3, drop=0.0, progress=False
    )
    assert write_report(posterior, tmp_path / "r.html").stat().st_size < 8_000_000
