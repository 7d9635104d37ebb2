"""Commands as a user runs them: output, JSON, exit codes."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from factorflow import open_dataset, open_posterior, simulate
from factorflow.cli import app
from factorflow.engine.events import IterationDone

EXAMPLE = Path(__file__).parents[2] / "examples" / "multiple_features.npz"


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def run_json(*arguments: object, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((60, 2))
    path = tmp_path_factory.mktemp("source") / "source.npz"
    views = {f"Y_{v}": scores @ rng.standard_normal((2, 10)) + rng.standard_normal((60, 10)) for v in "ab"}
    np.savez(path, view_names=["a", "b"], likelihoods=["gaussian", "gaussian"], **views)
    return path


@pytest.fixture(scope="module")
def dataset(source: Path) -> Path:
    path = source.with_name("data.zarr")
    run("ingest", source, "--out", path)
    return path


@pytest.fixture(scope="module")
def posterior(dataset: Path) -> Path:
    path = dataset.with_name("posterior.zarr")
    run("fit", dataset, "--out", path, "--set", "n_factors=2", "--max-iter", 30, "--holdout", 0.1)
    return path


def test_ingest_and_inspect_agree(source: Path, tmp_path: Path) -> None:
    written = run_json("ingest", f"only={EXAMPLE.with_name('one.csv')}", "--out", tmp_path / "x.zarr", code=2)
    assert "one.csv" in written["error"]["message"]
    written = run_json("ingest", source, "--out", tmp_path / "data.zarr", "--likelihood", "a=gaussian")
    assert run_json("inspect", tmp_path / "data.zarr") == written
    assert run_json("inspect", tmp_path / "data.zarr", "--verify")["verified"] is True
    assert [view["name"] for view in written["views"]] == ["a", "b"]


def test_the_example_ingests(tmp_path: Path) -> None:
    written = run_json("ingest", EXAMPLE, "--out", tmp_path / "digits.zarr")
    assert written["n_samples"] == 2000
    sizes = {view["name"]: view["n_features"] for view in written["views"]}
    assert sizes == {"fac": 216, "fou": 76, "kar": 64, "mor": 6, "pix": 240, "zer": 47}
    assert written["obs_columns"] == ["digit"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["inspect", "nowhere.zarr"], "nowhere.zarr"),
        (
            ["ingest", "nowhere.npz", "--out", "x.zarr"],
            "SOURCE nowhere.npz: expected a file or folder that exists",
        ),
        (["ingest", "a=1", "a=2", "--out", "x.zarr"], "SOURCE 1: expected a file or folder that exists"),
        (["fit", "nowhere.zarr", "--out", "x.zarr"], "nowhere.zarr"),
        (["resume", "nowhere.zarr"], "nowhere.zarr"),
        (
            ["refresh", "nowhere.npz", "--out", "x"],
            "SOURCE nowhere.npz: expected a file or folder that exists",
        ),
        (
            ["refresh", "nowhere.npz", "--out", "x", "--accept", "y"],
            "--accept y: expected package.module:function",
        ),
        (["summary", "nowhere.zarr"], "nowhere.zarr"),
    ],
)
def test_bad_input_exits_with_2(arguments: list[str], named: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    error = run_json(*arguments, code=2)["error"]
    assert named in error["message"]
    assert error["remedy"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--set", "no_such_option=1"], "no_such_option"),
        (["--set", "n_factors"], "n_factors"),
        (["--set", "n_factors=0"], "n_factors"),
        (["--model", "no_such_model"], "no_such_model"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--executor", "nonsense"], "nonsense"),
        (["--holdout", "2"], "holdout"),
        (["--holdout", "0.1", "--holdout-unit", "sequence"], "a dataset with sequences"),
        (["--max-iter", "0"], "--max-iter 0"),
        (["--set", "n_factor=2"], "Did you mean n_factors?"),
        (["--set", "n_factors=many"], "--set n_factors=many"),
        (["--executor", "dask", "--memory-limit", "much"], "--memory-limit much"),
        (["--executor", "tcp://127.0.0.1:9"], "tcp://127.0.0.1:9"),
    ],
)
def test_bad_options_exit_with_2(
    options: list[str], named: str, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("factorflow.engine.executors.clusters.CONNECT_SECONDS", 1)
    error = run_json("fit", dataset, "--out", tmp_path / "out.zarr", *options, code=2)["error"]
    assert named in error["message"]
    assert list(tmp_path.iterdir()) == []


MISTAKES: dict[str, tuple[list[str], str]] = {
    "a file is no posterior": (
        ["summary", "a.csv"],
        "It is a file. Make one with factorflow.fit or `factorflow fit`.",
    ),
    "nothing to resume": (["resume", "data.zarr"], "Begin the run with a fit, without --resume."),
    "decimals with a comma": (["ingest", "comma.csv", "--out", "x.zarr"], "or write decimals with a point"),
    "a file of text": (["ingest", "text", "--out", "x.zarr"], "take it out of the folder"),
    "another setting": (["simulate", "sparse_gfa", "--out", "x.zarr", "--set", "n_sample=5"], "n_samples?"),
    "results into a dataset": (
        ["refresh", "a.csv", "--out", "data.zarr"],
        "a folder for results. It is a dataset",
    ),
    "results into a file": (["refresh", "a.csv", "--out", "a.csv"], "It is a file: choose another path."),
    "trials into a dataset": (
        ["select", "data.zarr", "--grid", "n_factors=1", "--out", "data.zarr"],
        "--out",
    ),
    "a value twice": (
        ["select", "data.zarr", "--grid", "n_factors=2,1,2", "--out", "x"],
        "n_factors = 2: expected every value once",
    ),
    "a seed twice": (
        ["select", "data.zarr", "--grid", "n_factors=1", "--seeds", "0,1,0", "--out", "x"],
        "seeds 0: expected every value once",
    ),
    "a column of names where no table is": (
        ["ingest", "a.npy", "--index-col", "id", "--out", "x.zarr"],
        "--index-col id: expected nothing: it is for text tables and Parquet files",
    ),
    "a folder that lacks": (["ingest", "a.csv", "--out", "/proc/none/x.zarr"], "--out /proc/none/x.zarr"),
}
"""What new users got wrong, and what they are told."""


@pytest.mark.thorough
@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_answered(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("id,x,y\na,1,2\nb,3,4\nc,5,7\n")
    (tmp_path / "comma.csv").write_text("id;x;y\na;1,500;2\nb;3;4\n")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "readme.txt").write_text("hello\n")
    np.save(tmp_path / "a.npy", np.eye(4))
    run("ingest", "a.csv", "--out", "data.zarr", "--likelihood", "a=gaussian")
    before = sorted(tmp_path.rglob("*"))
    arguments, told = MISTAKES[case]
    assert told in run_json(*arguments, code=2)["error"]["message"]
    assert sorted(tmp_path.rglob("*")) == before


def test_usage_errors_exit_with_2() -> None:
    run("fit", code=2)
    run("no-such-command", code=2)


@pytest.mark.thorough
def test_fit_refuses_an_existing_output(dataset: Path, posterior: Path) -> None:
    before = sorted(path.stat().st_mtime_ns for path in posterior.rglob("*"))
    error = run_json("fit", dataset, "--out", posterior, code=2)["error"]
    assert error["parameter"] == "out"
    assert sorted(path.stat().st_mtime_ns for path in posterior.rglob("*")) == before


def test_fit_overwrites_nothing_but_posteriors(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("text")
    for other in (dataset, tmp_path):
        error = run_json("fit", dataset, "--out", other, "--overwrite", code=2)["error"]
        assert "not a factorflow result" in error["message"]
    assert (tmp_path / "letter.txt").exists()
    assert open_dataset(dataset).n_rows == 60


def test_options_of_a_file_are_overruled(dataset: Path, tmp_path: Path) -> None:
    config = tmp_path / "model.yaml"
    config.write_text("model: sparse_gfa\nn_factors: 3\nviews: [a]\n")
    out = tmp_path / "out.zarr"
    run("fit", dataset, "--out", out, "--config", config, "--set", "n_factors=2", "--max-iter", 5)
    from factorflow import open_posterior

    assert open_posterior(out).config.n_factors == 2
    assert tuple(open_posterior(out).config.views) == ("a",)


@pytest.mark.thorough
def in_shell(summary: dict[str, Any]) -> Any:
    """Return a summary as the shell words it: with flags in place of options."""
    return json.loads(json.dumps(summary).replace("with max_iter=", "with --set max_iter="))


@pytest.mark.thorough
def test_select_and_refresh(dataset: Path, source: Path, tmp_path: Path) -> None:
    chosen = run_json("select", dataset, "--grid", "n_factors=1,2", "--out", tmp_path / "s", "--max-iter", 20)
    assert len(chosen["table"]) == 2
    assert chosen["findings"] == in_shell(open_posterior(tmp_path / "s" / "best.zarr").summary())["findings"]
    assert {path.name for path in (tmp_path / "s").glob("[!t]*")} == {
        "best.zarr",
        "selection.json",
        "selection.png",
    }
    best = open_posterior(tmp_path / "s" / "best.zarr")
    assert best.config.n_factors == chosen["best"]["n_factors"]
    assert not best.was_scored
    arguments = ["refresh", source, "--out", tmp_path / "r", "--set", "n_factors=2", "--max-iter", 2]
    found = run_json(*arguments)
    assert found["done"] == "ingested, fitted"
    assert [finding["kind"] for finding in found["findings"]] == ["budget"]
    again = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert "nothing to do" in again.stdout
    assert "findings" not in again.stdout
    assert again.stderr.startswith("warning: The run was ended by max_iter after 2 iterations")


@pytest.mark.thorough
def test_what_select_prints(dataset: Path, tmp_path: Path) -> None:
    """The table comes first, and no option that all combinations share."""
    grid = ["--grid", "n_factors=1,2", "--seeds", "0,1", "--no-refit", "--max-iter", 5]
    lines = run("select", dataset, *grid, "--out", tmp_path / "s").splitlines()
    assert lines[0] == "held-out log-likelihood, nats an entry, mean of 2 seeds"
    assert lines[1].split("  ")[1] == "options"
    assert "below the best" in lines[1]
    assert {line.split()[0] for line in lines[2:]} == {"n_factors=1", "n_factors=2"}


def test_select_refuses_before_the_first_trial(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "s"
    error = run_json("select", dataset, "--grid", "n_factors=1,2000", "--out", out, code=2)["error"]
    assert error["parameter"] == "n_factors"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_results(posterior: Path, tmp_path: Path) -> None:
    assert run_json("summary", posterior)["factors"]
    run("report", posterior, "--out", tmp_path / "report.html")
    assert "<html" in (tmp_path / "report.html").read_text().lower()


@pytest.mark.thorough
def test_numbers_are_those_of_the_library(posterior: Path, dataset: Path, tmp_path: Path) -> None:
    """Summaries, predictions (mean and sd, some rows), imputations, tables."""
    from factorflow import open_posterior

    opened = open_posterior(posterior)
    assert run_json("summary", posterior) == in_shell(opened.summary())
    for what in ("mean", "sd"):
        run("predict", posterior, "b", "--out", tmp_path / "b.tsv", "--what", what, "--overwrite",
            "--start", 5, "--stop", 15)  # fmt: skip
        table = pd.read_csv(tmp_path / "b.tsv", sep="\t", index_col=0)
        np.testing.assert_allclose(table, opened.predict("b", 5, 15)[what].values, rtol=1e-12)
        assert list(table.index) == list(opened.obs_names[5:15])
        assert list(table.columns) == list(opened.features("b"))
    run("predict", posterior, "a", "--out", tmp_path / "a.parquet", "--impute")
    values = open_dataset(dataset).values("a")
    np.testing.assert_allclose(pd.read_parquet(tmp_path / "a.parquet"), values, rtol=1e-6)
    run("export", posterior, "--format", "csv", "--out", tmp_path / "tables")
    for name, expected in (("loadings_a", opened.loadings("a")), ("intercept_b", opened.intercept("b"))):
        table = pd.read_csv(tmp_path / "tables" / f"{name}.csv", index_col=0)
        np.testing.assert_allclose(table.to_numpy().reshape(expected.shape), expected, rtol=1e-12)
    shares = pd.read_csv(tmp_path / "tables" / "variance_explained.csv", index_col=0)
    np.testing.assert_allclose(shares, opened.variance_explained().values.T, rtol=1e-12)


@pytest.mark.thorough
def test_predictions_by_some_factors(posterior: Path, tmp_path: Path) -> None:
    opened = open_posterior(posterior)
    for chosen in (["1"], [opened.factors[0]]):
        options = [part for name in chosen for part in ("--factor", name)]
        run("predict", posterior, "b", "--out", tmp_path / "b.csv", "--overwrite", *options)
        table = pd.read_csv(tmp_path / "b.csv", index_col=0)
        np.testing.assert_allclose(table, opened.predict("b", factors=[1])["mean"].values, rtol=1e-12)
    run("predict", posterior, "b", "--out", tmp_path / "c.csv", "--factor", "9", code=2)
    run("predict", posterior, "b", "--out", tmp_path / "c.csv", "--factor", "1", "--impute", code=2)


@pytest.mark.thorough
def test_predict_and_project(posterior: Path, dataset: Path, tmp_path: Path) -> None:
    written = run_json("predict", posterior, "b", "--out", tmp_path / "b.csv", "--start", 5, "--stop", 15)
    assert written["n_samples"] == 10
    lines = (tmp_path / "b.csv").read_text().splitlines()
    assert len(lines) == 11
    assert len(lines[0].split(",")) == 11
    run("predict", posterior, "b", "--out", tmp_path / "b.csv", code=2)
    run("predict", posterior, "c", "--out", tmp_path / "c.csv", code=2)
    run("predict", posterior, "b", "--out", tmp_path / "nowhere" / "b.csv", code=2)
    run("predict", posterior, "b", "--out", tmp_path / "late.csv", "--start", 60, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["b.csv"]
    run("predict", posterior, "a", "--out", tmp_path / "a.zarr", "--impute")
    assert run_json("project", posterior, dataset, "--out", tmp_path / "new.zarr")["n_samples"] == 60
    assert run_json("summary", tmp_path / "new.zarr")["n_samples"] == 60


@pytest.mark.thorough
def test_export(posterior: Path, dataset: Path, tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    run("export", posterior, "--format", "csv", "--out", tmp_path / "tables")
    assert (tmp_path / "tables" / "scores.csv").exists()
    run("export", posterior, "--format", "mofa", "--out", tmp_path / "model.hdf5")
    fitted = open_dataset(dataset)
    source = anndata.AnnData(np.zeros((60, 10), np.float32))
    source.obs_names, source.var_names = list(fitted.obs_names), list(fitted.features("a"))
    source.write_h5ad(tmp_path / "in.h5ad")
    into = ["--into", tmp_path / "in.h5ad", "--view", "a"]
    run("export", posterior, "--format", "h5ad", "--out", tmp_path / "out.h5ad", *into)
    assert anndata.read_h5ad(tmp_path / "out.h5ad").obsm["X_factorflow"].shape == (60, 2)
    run("export", posterior, "--format", "mofa", "--out", "/proc/model.hdf5", code=2)
    run("export", posterior, "--format", "csv", "--out", "/proc/tables", code=2)
    run("project", posterior, dataset, "--out", "/proc/new.zarr", code=2)
    shown = run_json("project", posterior, dataset, "--out", posterior, "--overwrite", code=2)
    assert "be lost" in shown["error"]["remedy"]
    assert open_posterior(posterior).run["status"] == "complete"  # it is there still, and the fit
    run("export", posterior, "--format", "pdf", "--out", tmp_path / "out.pdf", code=2)
    run("export", posterior, "--format", "h5ad", "--out", tmp_path / "x.h5ad", code=2)


@pytest.mark.thorough
def test_outputs_and_sources_of_another_kind(posterior: Path, dataset: Path, tmp_path: Path) -> None:
    def said(*arguments: object) -> str:
        return str(run_json(*arguments, code=2)["error"]["message"])

    for command in (["fit", dataset], ["project", posterior, dataset], ["simulate", "probit"]):
        assert f"a path that is not within {dataset}, a factorflow.dataset" in said(
            *command, "--out", dataset / "x.zarr"
        )
    assert "ends in .html" in said("report", posterior, "--out", tmp_path / "report.pdf")
    export = ["export", posterior, "--format", "h5ad", "--out", tmp_path / "x.h5ad"]
    assert "--into nothing: expected an .h5ad file" in said(*export)
    other = tmp_path / "other.csv"
    other.write_text("id,a\n")
    assert f"--into {other}: expected an .h5ad file" in said(*export, "--into", other)
    broken = other.rename(tmp_path / "broken.h5ad")
    assert "expected a file that can be read" in said(*export, "--into", broken)
    select = ["select", dataset, "--out", tmp_path / "s", "--grid", "n_factors=1,2"]
    assert "--grid n_factors: expected an option in --set" in said(*select, "--set", "n_factors=3")
    shown = run_json("doctor", "--dataset", tmp_path / "nowhere", code=1)["checks"][-1]
    assert (shown["check"], shown["ok"]) == ("dataset", "NO")


def test_doctor() -> None:
    found = run_json("doctor")
    assert found["ok"], found
    assert {row["check"] for row in found["checks"]} > {"python", "dask", "extra flows", "gpu"}


@pytest.mark.thorough
def test_an_interrupt_says_where_the_run_is_and_how_it_goes_on(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(event: Any) -> None:
        if isinstance(event, IterationDone) and event.iteration == 4:
            raise KeyboardInterrupt

    out = tmp_path / "out put.zarr"
    options = ["--set", "n_factors=2", "--executor", "threads", "--workers", "1", "--max-iter", "9"]
    with monkeypatch.context() as patched:
        patched.setattr("factorflow.cli.fitting.progress_bar", lambda: nullcontext(interrupt))
        result = CliRunner().invoke(app, ["fit", str(dataset), "--out", str(out), *options])
    assert result.exit_code == 130
    first, left, command = result.stderr.splitlines()
    assert first == "interrupted"
    assert str(out) in left
    assert f"{out}.run" in left
    words = shlex.split(command.removeprefix("To go on: "))
    assert words[:2] == ["factorflow", "resume"]
    assert words[3:] == ["--executor", "threads", "--workers", "1", "--max-iter", "9"]
    assert run_json(*words[1:])["status"] == "complete"


@pytest.mark.slow
def test_sigterm_ends_in_order_and_resume_goes_on(source: Path, tmp_path: Path) -> None:
    run("simulate", "sparse_gfa", "--out", tmp_path / "big.zarr", "--set", "n_samples=20000")
    out = tmp_path / "out.zarr"
    command = [
        "fit",
        str(tmp_path / "big.zarr"),
        "--out",
        str(out),
        "--set",
        "n_factors=8",
        "--checkpoint-every",
        "1",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "factorflow", *command], stderr=subprocess.PIPE, text=True
    )
    limit = time.monotonic() + 60
    while not (tmp_path / "out.zarr.run" / "manifest.json").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    shown = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert shown.splitlines()[-1] == f"To go on: factorflow resume {out} --checkpoint-every 1"
    run("resume", out)
    assert out.exists()
    assert not (tmp_path / "out.zarr.run").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "how", ["config", *(pytest.param(how, marks=pytest.mark.thorough) for how in ("json", "file"))]
)
def test_a_cluster_by_one_setting(how: str, tmp_path: Path) -> None:
    """In a file of its own, as JSON, or beside the options of the model."""
    arguments = {"n_workers": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}
    cluster = {"class": "distributed.LocalCluster", "kwargs": arguments}
    data, out, file = tmp_path / "d.zarr", tmp_path / "p.zarr", tmp_path / "given.yaml"
    simulate("sparse_gfa", data, n_samples=60, seed=1)
    file.write_text(json.dumps({"cluster": cluster, "n_factors": 2} if how == "config" else cluster))
    given = {"json": ["--cluster", json.dumps(cluster)], "file": ["--cluster", file]}
    options = ["fit", data, "--out", out, "--max-iter", 2, *given.get(how, ["--config", file])]
    run(*options)
    assert open_posterior(out).run["executor"] == "distributed.LocalCluster"
    refused = run_json(*options, "--workers", 2, "--overwrite", code=2)
    assert "None with cluster" in refused["error"]["expected"]
