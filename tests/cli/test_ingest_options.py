"""`factorflow ingest` takes what `write_dataset` does: several files of a view, layers and marks by view."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from factorflow import open_dataset
from factorflow.cli import app
from factorflow.cli.options import value_of

pytestmark = pytest.mark.filterwarnings("default")  # AnnData warns of its own future


def ingest(out: Path, *arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["ingest", "--out", str(out), *map(str, arguments)])
    assert result.exit_code == code, result.output
    return open_dataset(out) if code == 0 else result.output


@pytest.mark.thorough
def test_several_files_of_a_view(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, first, columns in (("one", 0, "abc"), ("two", 10, "bcd")):
        index = [f"c{i}" for i in range(first, first + 10)]
        frame = pd.DataFrame(rng.normal(size=(10, 3)), index=index, columns=list(columns))
        frame.to_csv(tmp_path / f"{name}.csv")
    files = [f"rna={tmp_path / 'one.csv'}", f"rna={tmp_path / 'two.csv'}"]
    dataset = ingest(tmp_path / "a", *files, "--groups", "file")
    assert dataset.features("rna").tolist() == ["a", "b", "c", "d"]
    assert dataset.groups == ("one.csv", "two.csv")
    dataset = ingest(tmp_path / "b", *files, "--join", "inner")
    assert dataset.features("rna").tolist() == ["b", "c"]
    assert "--join left: expected 'outer' or 'inner'" in ingest(
        tmp_path / "c", *files, "--join", "left", code=2
    )


@pytest.fixture
def cells(tmp_path: Path) -> list[str]:
    anndata = pytest.importorskip("anndata")
    rng = np.random.default_rng(0)
    rna, prot = (anndata.AnnData(rng.normal(size=(12, d)).astype("f4")) for d in (6, 3))
    rna.layers["counts"] = rng.poisson(2.0, (12, 6)).astype("f4")
    rna.var["highly_variable"] = [True, True, False, False, False, True]
    for name, data in (("rna", rna), ("prot", prot)):
        data.obs_names = [f"c{i}" for i in range(12)]
        data.write_h5ad(tmp_path / f"{name}.h5ad")
    return [f"{name}={tmp_path / name}.h5ad" for name in ("rna", "prot")]


@pytest.mark.parametrize(
    "order",
    [
        ["--highly-variable", "*"],
        ["*", "--highly-variable"],
        ["--highly-variable", "rna", "*"],
        ["--highly-variable=rna", "*"],
        ["--highly-variable", "--overwrite", "*"],
    ],
)
def test_highly_variable_features_by_view(tmp_path: Path, cells: list[str], order: list[str]) -> None:
    arguments = [part for word in order for part in (cells if word == "*" else [word])]
    dataset = ingest(tmp_path / "s", *arguments)
    assert {name: view.n_features for name, view in dataset.views.items()} == {"rna": 3, "prot": 3}
    assert "--highly-variable prot" in ingest(tmp_path / "t", *cells, "--highly-variable", "prot", code=2)


@pytest.mark.thorough
def test_layers_by_view(tmp_path: Path, cells: list[str]) -> None:
    dataset = ingest(tmp_path / "a", *cells, "--layer", "rna=counts")
    assert dataset.views["rna"].likelihood == "poisson"
    dataset = ingest(tmp_path / "b", cells[0], "--layer", "counts")
    assert dataset.views["rna"].likelihood == "poisson"
    assert "a layer of 'prot'" in ingest(tmp_path / "c", *cells, "--layer", "counts", code=2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--likelihood", "foo"], "--likelihood foo: expected a mapping by view; or, for the response of a"),
        (["--likelihood", "poisson"], "--likelihood poisson: expected a mapping by view"),
        (["--likelihood", "y=foo"], "likelihood of view 'y' = foo: expected one of gaussian"),
        (["--holdout", "0.2"], "--holdout 0.2: expected nothing: it is for long tables"),
        (["--part", "held-out"], "--part held out: expected nothing: it is for long tables"),
        (["--block-rows", "7"], "--block-rows 7: expected a power of two"),
        (["--transpose", "z"], "--transpose z: expected views among y"),
        (["--transpose", "y", "--layer", "counts"], "--layer counts: expected None"),
    ],
)
def test_wrong_options_are_named_as_they_were_typed(tmp_path: Path, options: list[str], told: str) -> None:
    (tmp_path / "y.csv").write_text("id,a,b\nx,1.5,0\ny,0,1.5\nz,2.5,3\n")
    assert told in ingest(tmp_path / "s", f"y={tmp_path / 'y.csv'}", *options, code=2)


def test_features_in_rows_of_a_view(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.csv").write_text("id,s0,s1,s2\na,1.5,0,1\nb,0,1.5,3\n")
    files = [f"{name}={tmp_path / name}.csv" for name in ("one", "two")]
    for flags in (["--transpose"], ["--transpose", "one", "--transpose", "two"]):
        dataset = ingest(tmp_path / "s", *files, *flags, "--overwrite")
        assert (dataset.n_rows, dataset.features("two").tolist()) == (3, ["a", "b"])


def test_options_of_a_recurring_run(tmp_path: Path, cells: list[str]) -> None:
    """Layers and marks by view can be said in the file of a flow."""
    from factorflow.settings import MatrixOptions, parse_config

    options = parse_config(MatrixOptions, {"layer": {"rna": "counts"}, "highly_variable": ["rna"]})
    assert json.loads(options.model_dump_json())["highly_variable"] == ["rna"]
    help_text = CliRunner().invoke(app, ["refresh", "--help"]).output
    assert "--layer" in help_text
    assert "--highly-variable" in help_text


def test_layouts_by_view(tmp_path: Path) -> None:
    counts = np.random.default_rng(0).poisson(0.1, (40, 30)).astype(np.uint8)
    np.save(tmp_path / "a.npy", counts)
    np.save(tmp_path / "b.npy", counts)
    files = [f"{view}={tmp_path / view}.npy" for view in "ab"]
    dataset = ingest(tmp_path / "d", *files, "--layout", "a=dense")
    assert [view.layout for view in dataset.manifest.views] == ["dense", "sparse"]
    output = ingest(tmp_path / "e", *files, "--layout", "a=csr", code=2)
    assert "--layout" in output
    assert "'auto', 'dense' or 'sparse'" in output


def test_numbers_may_begin_or_end_with_a_point() -> None:
    found = [value_of(text) for text in (".6", "1.", "-.5", "+2.5", "2", "a.5", ".", "1.2.3")]
    assert found == [0.6, 1.0, -0.5, 2.5, 2, "a.5", ".", "1.2.3"]
