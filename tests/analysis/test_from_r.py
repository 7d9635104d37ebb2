"""The lines of docs/from-r.md, in R: objects of Bioconductor and Seurat in, results back into them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import factorflow as ff
from factorflow.cli import app

pytestmark = pytest.mark.thorough

PAGE = Path(__file__).parents[2] / "docs" / "from-r.md"

PACKAGES = ("MultiAssayExperiment", "SingleCellExperiment", "Seurat")

STUDY = """
set.seed(1)
people <- paste0("p", 1:40)
z <- matrix(rnorm(80), 2)
assay_of <- function(n, who, prefix) {
  values <- matrix(rnorm(n * 2), n) %*% z[, who] + 0.3 * matrix(rnorm(n * length(who)), n)
  dimnames(values) <- list(paste0(prefix, 1:n), paste0(prefix, "_", people[who]))
  values
}
rna <- assay_of(12, 1:40, "rna")
protein <- assay_of(6, 5:40, "protein")
map <- rbind(data.frame(assay = "rna", primary = people, colname = colnames(rna)),
             data.frame(assay = "protein", primary = people[5:40], colname = colnames(protein)))
map$assay <- factor(map$assay)
clinic <- DataFrame(age = 50 + 10 * z[1, ], sex = rep(c("f", "m"), 20), row.names = people)
mae <- MultiAssayExperiment(list(rna = rna, protein = protein), clinic, DataFrame(map))
"""

CELLS = """
set.seed(1)
y <- matrix(rpois(60 * 30, exp(0.3 + rnorm(30) %o% rnorm(60))), 30, 60,
            dimnames = list(paste0("gene", 1:30), paste0("cell", 1:60)))
y[1, ] <- 1:60
about <- data.frame(batch = rep(c("a", "b"), 30), row.names = colnames(y))
seurat <- suppressWarnings(Seurat::CreateSeuratObject(as(y, "dgCMatrix"), meta.data = about))
"""


def block(start: str) -> str:
    """Return the block of R that begins with a line."""
    (found,) = (
        text for text in re.findall(r"```r\n(.*?)```", PAGE.read_text(), re.S) if text.startswith(start)
    )
    return str(found)


@pytest.fixture
def in_r(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder, where R has the packages."""
    if shutil.which("Rscript") is None:
        pytest.skip("needs R")
    loads = " && ".join(f"requireNamespace('{name}', quietly = TRUE)" for name in PACKAGES)
    command = ["Rscript", "-e", f"quit(status = !({loads}))"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"needs {', '.join(PACKAGES)} in R")
    monkeypatch.chdir(tmp_path)


def run_r(*parts: str) -> None:
    Path("script.R").write_text("\n".join(parts))
    done = subprocess.run(["Rscript", "script.R"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run_command(line: str) -> None:
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 0, done.output


@pytest.mark.usefixtures("in_r")
def test_multiassayexperiment() -> None:
    """Its assays are views, patients the samples; scores come back as columns of colData."""
    out = block("library(MultiAssayExperiment)")
    load = "suppressPackageStartupMessages(library(MultiAssayExperiment))"
    run_r(load, STUDY, out, "saveRDS(mae, 'mae.rds')", "write.csv(rna, 'whole.csv')")
    run_command("ingest rna=rna.csv protein=protein.csv --transpose --obs obs.csv --out study.zarr")
    dataset = ff.open_dataset("study.zarr")
    assert [dataset.views[view].n_features for view in ("rna", "protein")] == [12, 6]
    assert sorted(dataset.obs_names) == sorted(f"p{i}" for i in range(1, 41))
    whole = pd.read_csv("whole.csv", index_col=0).T
    whole.index = whole.index.str.removeprefix("rna_")
    values = pd.DataFrame(dataset.values("rna"), dataset.obs_names, dataset.features("rna"))
    np.testing.assert_allclose(values.loc[whole.index], whole, rtol=1e-5)
    assert np.isnan(dataset.values("protein")).all(axis=1).sum() == 4
    run_command("fit study.zarr --set n_factors=2 --max-iter 20 --out fit.zarr")
    run_command("export fit.zarr --format csv --out tables")
    back = block("scores <- read.csv").split("# SingleCellExperiment")[0]
    run_r(load, "mae <- readRDS('mae.rds')", back, "write.csv(as.data.frame(colData(mae)), 'back.csv')")
    found = pd.read_csv("back.csv", index_col=0)
    scores = ff.open_posterior("fit.zarr").scores().to_pandas()
    assert list(found) == ["age", "sex", *scores.columns]
    np.testing.assert_allclose(found[scores.columns].loc[scores.index], scores, rtol=1e-6)


@pytest.mark.usefixtures("in_r")
def test_seurat_and_singlecellexperiment() -> None:
    """Counts of a Seurat object, with what is known of the cells; scores come back as reductions of both."""
    out = block("library(SingleCellExperiment)").replace(
        "library(S", "suppressPackageStartupMessages(library(S"
    )
    out = out.replace("Experiment)\n", "Experiment))\n", 1)
    run_r(CELLS, out, "saveRDS(list(sce, seurat), 'cells.rds')")
    run_command("ingest rna=cells --obs cells.csv --out cells.zarr")
    dataset = ff.open_dataset("cells.zarr")
    assert dataset.features("rna").tolist() == [f"gene{i}" for i in range(1, 31)]
    assert dataset.obs_names.tolist() == [f"cell{i}" for i in range(1, 61)]
    assert dataset.values("rna")[:, 0].tolist() == list(range(1, 61))
    assert dataset.obs_columns(["batch"])["batch"].tolist() == ["a", "b"] * 30
    run_command("fit cells.zarr --set n_factors=2 --max-iter 20 --out fit.zarr")
    run_command("export fit.zarr --format csv --out tables")
    back = "# SingleCellExperiment" + block("scores <- read.csv").split("# SingleCellExperiment")[1]
    run_r(
        "suppressPackageStartupMessages({library(SingleCellExperiment); library(Seurat)})",
        "cells <- readRDS('cells.rds'); sce <- cells[[1]]; seurat <- cells[[2]]",
        "scores <- read.csv('tables/scores.csv', row.names = 1)",
        back,
        "write.csv(reducedDim(sce, 'factorflow'), 'sce.csv')",
        "write.csv(Embeddings(seurat, 'factorflow'), 'seurat.csv')",
    )
    scores = ff.open_posterior("fit.zarr").scores()
    for name in ("sce", "seurat"):
        found = pd.read_csv(f"{name}.csv", index_col=0)
        assert found.index.tolist() == dataset.obs_names.tolist()
        np.testing.assert_allclose(found, scores.values, rtol=1e-6)
