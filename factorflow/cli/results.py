"""summary, predict, project, export, report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from factorflow.cli.options import Overwrite, path
from factorflow.cli.output import DisplayedResult, command, describe_posterior, report_findings
from factorflow.core.extras import require
from factorflow.errors import InputError
from factorflow.settings import ProjectOptions
from factorflow.storage.location import Location, output_location
from factorflow.storage.publish import new_directory, new_file

if TYPE_CHECKING:
    import xarray as xr

    from factorflow import api

Posterior = Annotated[
    Path,
    typer.Argument(
        help="A posterior, as `factorflow fit` writes it, a .zip file of one, or an https:// URL of either.",
        parser=path,
    ),
]
Moved = Annotated[
    Path | None, typer.Option(help="Where the dataset of the fit is now, if it has moved.", parser=path)
]


def register(app: typer.Typer) -> None:
    """Add the commands that use a posterior."""
    for function in (summary, predict, project, export, report):
        command(app)(function)


def summary(posterior: Posterior) -> DisplayedResult:
    """Show factors, variance explained, held-out scores and the record of the run."""
    return describe_posterior(open_posterior(posterior), {}, {})


def predict(
    posterior: Posterior,
    view: Annotated[str, typer.Argument(help="View to predict.")],
    out: Annotated[
        Path, typer.Option(help="File to write: .zarr (mean and sd), .csv, .tsv or .parquet.", parser=path)
    ],
    what: Annotated[str, typer.Option(help="Text tables and Parquet hold one of them: mean or sd.")] = "mean",
    start: Annotated[int | None, typer.Option(help="First row.")] = None,
    stop: Annotated[int | None, typer.Option(help="Row after the last.")] = None,
    impute: Annotated[
        bool, typer.Option("--impute", help="Keep observed entries, predict the rest.")
    ] = False,
    table: Annotated[
        Path | None, typer.Option(help="New rows of the table that was fitted, or a dataset of them.")
    ] = None,
    factor: Annotated[
        list[str] | None,
        typer.Option("--factor", help="Predict by this factor alone, as often as needed; else by all."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Number of trials of new observations, else that of each entry.")
    ] = None,
    new_obs: Annotated[
        Path | None,
        typer.Option(
            help="Table of samples that are not there, known by columns of metadata alone (covariates, "
            "times, groups), the first column their names."
        ),
    ] = None,
    size_factor: Annotated[float, typer.Option(help="Of the counts of these.")] = 1.0,
    dataset: Moved = None,
    overwrite: Overwrite = False,
) -> dict[str, Any]:
    """Write mean and standard deviation of the entries of a view, on the data's scale."""
    opened, target = open_with_dataset(posterior, dataset), output_location(out)
    _check_table(what, target)
    check_free(target, overwrite)
    if factor and (impute or table is not None):
        remedy = "Leave out --impute and --table, or --factor."
        raise InputError("factor", ", ".join(factor), "predictions of fitted rows", remedy)
    if new_obs is not None:
        if impute or table is not None or factor:
            remedy = "Leave out --impute, --table and --factor, or --new-obs."
            raise InputError("new_obs", str(new_obs), "left out beside these", remedy)
        of_fit: dict[str, Any] = {"start": start, "stop": stop, "trials": trials}
        predicted = opened.predict(view, **of_fit, new_obs=new_obs, size_factor=size_factor)
    elif table is not None:
        _check_new(opened, view, table, start, stop, impute)
        predicted = opened.predict(str(table))
    elif impute:
        predicted = opened.impute(view, start, stop)
    else:
        by = [int(name) if name.isdecimal() else name for name in factor or ()]
        predicted = opened.predict(
            view, start, stop, factors=by or None, trials=trials, size_factor=size_factor
        )
    if not predicted.sizes["obs"]:
        rows = f"rows of the {opened.meta.n_rows} samples, start < stop"
        raise InputError("start, stop", f"{start}, {stop}", rows, "Change them, or leave them out.")
    _write_table(predicted, what, target, overwrite)
    return {"written": str(out), "view": view, "n_samples": predicted.sizes["obs"]}


def project(
    posterior: Posterior,
    dataset: Annotated[
        Path, typer.Argument(help="New samples, with the features of the model.", parser=path)
    ],
    out: Annotated[Path, typer.Option(help="Posterior of the new samples to write.", parser=path)],
    options: ProjectOptions,
    covariates: Annotated[
        Path | None, typer.Option(help="Table of the model's covariates by sample name.", parser=path)
    ] = None,
    no_covariates: Annotated[
        bool, typer.Option("--no-covariates", help="Integrate over the covariates: they are not known.")
    ] = False,
) -> DisplayedResult:
    """Find the scores of new samples, the model fixed."""
    from factorflow import api

    opened = open_posterior(posterior)
    if covariates is not None and no_covariates:
        raise InputError(
            "covariates", str(covariates), "one of the two options", "Leave out --no-covariates."
        )
    covariate_source = False if no_covariates else covariates
    projected = api.project(opened, dataset, out=out, covariates=covariate_source, **options.arguments())
    findings = [asdict(finding) for finding in projected.findings]
    return report_findings(
        {"posterior": str(out), "n_samples": len(projected.obs_names), "findings": findings},
        projected.run["config"],
    )


def export(
    posterior: Posterior,
    out: Annotated[Path, typer.Option(help="File to write; a folder for csv and parquet.", parser=path)],
    form: Annotated[
        str, typer.Option("--format", help="mofa (HDF5), csv, parquet, h5ad (AnnData) or h5mu (MuData).")
    ],
    into: Annotated[Path | None, typer.Option(help="h5ad, h5mu: the file that OUT is a copy of.")] = None,
    view: Annotated[str | None, typer.Option(help="h5ad: the view that its variables belong to.")] = None,
    dataset: Moved = None,
    overwrite: Overwrite = False,
) -> dict[str, Any]:
    """Write scores, loadings and the run's record in a format of other programs."""
    from factorflow.analysis import export_mofa, export_tables

    opened = open_with_dataset(posterior, dataset)
    if form == "mofa":
        export_mofa(opened, out, overwrite=overwrite)
    elif form in {"csv", "parquet"}:
        export_tables(opened, out, "csv" if form == "csv" else "parquet", overwrite=overwrite)
    elif form in {"h5ad", "h5mu"}:
        target = output_location(out)
        check_free(target, overwrite)
        _export_annotated(opened, form, into, view, target)
    else:
        raise InputError("format", form, "mofa, csv, parquet, h5ad or h5mu", "Choose one of them.")
    return {"written": str(out), "format": form}


def report(
    posterior: Posterior,
    out: Annotated[Path, typer.Option(help="HTML file to write.", parser=path)],
    dataset: Moved = None,
    overwrite: Overwrite = False,
) -> dict[str, Any]:
    """Write a self-contained HTML report with figures."""
    from factorflow.report import write_report

    opened, target = open_with_dataset(posterior, dataset), output_location(out)
    if target.suffix.lower() not in {".html", ".htm"}:
        raise InputError("out", str(out), "a name that ends in .html", "Rename it.")
    check_free(target, overwrite)
    write_report(opened, target)
    return {"report": str(out)}


def open_posterior(posterior: Path | str) -> api.Posterior:
    """Return the posterior at a path, or one that was shared: at a URL, or in a .zip file."""
    from factorflow import api

    text = str(posterior)
    if text.startswith(("http://", "https://")) or (text.endswith(".zip") and not Path(text).is_dir()):
        return api.load(text)
    return api.open_posterior(posterior)


def open_with_dataset(posterior: Path, dataset: Path | None) -> Any:
    """Return the posterior at a path, and see to it that it finds its dataset where that is now."""
    from factorflow.data import open_dataset

    opened = open_posterior(posterior)
    if dataset is not None:
        opened.dataset = open_dataset(dataset)
    return opened


def check_free(out: Location, overwrite: bool) -> None:
    """Refuse a path where something is, unless it may be replaced."""
    if out.exists() and not overwrite:
        raise InputError(
            "out", str(out), "a path that does not exist", "Choose another path or use --overwrite."
        )


def _export_annotated(opened: Any, form: str, into: Path | None, view: str | None, out: Location) -> None:
    """Copy an AnnData or MuData file with scores and loadings added."""
    expected, remedy = f"an .{form} file with the same samples", "Give the file that was fitted."
    if into is None or not into.is_file():
        raise InputError("into", "nothing" if into is None else str(into), expected, remedy)
    if into.suffix.lower() != f".{form}":
        raise InputError("into", str(into), expected, remedy)
    from factorflow.analysis.export import annotate_anndata, annotate_mudata

    if form == "h5ad":
        anndata = require("anndata", "reads and writes such a file")
        with _read_errors(into):
            adata = anndata.read_h5ad(into)
        annotate_anndata(opened, adata, view)
        with new_file(out, "out") as unfinished:
            adata.write_h5ad(unfinished)
    else:
        mudata = require("mudata", "reads and writes such a file")
        with _read_errors(into):
            mdata = mudata.read_h5mu(into)
        annotate_mudata(opened, mdata)
        with new_file(out, "out") as unfinished:
            mdata.write_h5mu(unfinished)


@contextmanager
def _read_errors(into: Path) -> Iterator[None]:
    """Convert errors of the readers of AnnData and MuData into an InputError that names the file."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            "into", str(into), f"a file that can be read ({first})", "Write it again."
        ) from error


def _check_new(
    posterior: Any, view: str, table: Path, start: int | None, stop: int | None, impute: bool
) -> None:
    """Check that ``--table`` is used with a model of tables, and without a selection of fitted rows."""
    posterior.check_explained(view)
    if posterior.meta.design is None:
        expected = "a posterior of a table that `ingest --table` wrote"
        raise InputError("table", str(table), expected, "Use `project` for new samples.")
    if impute or start is not None or stop is not None:
        raise InputError(
            "table", str(table), "all of its rows", "--start, --stop and --impute are for fitted rows."
        )


def _check_table(what: str, out: Location) -> None:
    if what not in {"mean", "sd"}:
        raise InputError("what", what, "mean or sd", "Choose one of them.")
    if out.suffix not in {".zarr", ".csv", ".tsv", ".parquet"}:
        raise InputError("out", str(out), "a name that ends in .zarr, .csv, .tsv or .parquet", "Rename it.")


def _write_table(predicted: xr.Dataset, what: str, out: Location, overwrite: bool) -> None:
    """Write predictions in the format given by the suffix; ``out`` appears when it is complete."""
    if out.suffix == ".zarr":
        with new_directory(out, overwrite, _prediction) as folder:
            predicted.to_zarr(folder, mode="w", zarr_format=3, consolidated=False)
        return
    with new_file(out, "out") as file:
        table = predicted.to_dataframe() if predicted["mean"].ndim == 1 else predicted[what].to_pandas()
        if out.suffix == ".parquet":
            table.to_parquet(file)
        else:
            table.to_csv(file, sep="," if out.suffix == ".csv" else "\t")


def _prediction(path: Location) -> None:
    """Check that a path is a prediction: a Zarr group of values, not a dataset or posterior."""
    try:
        attributes = json.loads((path / "zarr.json").read_text(encoding="utf-8"))["attributes"]
        is_prediction = "schema" not in attributes and (path / "mean" / "zarr.json").exists()
    except (OSError, ValueError, KeyError, TypeError):
        is_prediction = False
    if not is_prediction:
        raise InputError("out", str(path), "a prediction to overwrite", "Choose another path, or remove it.")
