"""Results in objects and files that other programs read: AnnData and MuData, CSV and Parquet."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.checks import usable_names
from factorflow.errors import InputError
from factorflow.posterior.covariates import coefficients
from factorflow.posterior.variance import variance_explained
from factorflow.storage.local import disk_errors, sync_directory
from factorflow.storage.location import Location, output_location
from factorflow.storage.publish import new_file, write_file
from factorflow.storage.remote import RemotePath

if TYPE_CHECKING:
    from anndata import AnnData
    from mudata import MuData

    from factorflow.posterior.stored_posterior import StoredPosterior

TABLES_OF_VIEW = "loadings", "inclusion", "intercept"
"""Variables of a view that have a table each."""

INCOMPLETE = "export.incomplete"
"""Name of the file that says, beside tables, that some of them are missing."""


def annotate_anndata(posterior: StoredPosterior, adata: AnnData, view: str | None = None) -> AnnData:
    """Put scores in ``obsm["X_factorflow"]``, loadings in ``varm["factorflow"]``, the run in ``uns``.

    Rows are matched by name: samples and features that the posterior does not know get NaN.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    adata : AnnData
        Changed in place.
    view : str, optional
        The view that the variables belong to; needed when the posterior has several.

    Returns
    -------
    AnnData
        ``adata``.

    Raises
    ------
    InputError
        When no sample or no feature has the name of one of the posterior, or the view is not clear.

    Examples
    --------
    >>> from anndata import AnnData
    >>> adata = factorflow.analysis.annotate_anndata(posterior, AnnData(rna), view="rna")
    >>> adata.obsm["X_factorflow"].shape, adata.varm["factorflow"].shape
    ((80, 3), (30, 3))
    """
    if view is None:
        if len(posterior.views) > 1:
            raise InputError(
                "view",
                "not given",
                f"one of {', '.join(posterior.views)}",
                "Name the view whose features the variables of this AnnData are.",
            )
        view = posterior.views[0]
    if not hasattr(adata, "obsm"):
        remedy = "Make one of a table: anndata.AnnData(table)."
        raise InputError("adata", type(adata).__name__, "an AnnData object", remedy)
    scores = _reindex(posterior.scores().values, posterior.obs_names, adata.obs_names, "samples")
    of_variables, attributes = _of_variables(posterior, adata, view), run_attributes(posterior)
    adata.obsm["X_factorflow"] = scores
    _annotate_variables(adata, of_variables)
    adata.uns["factorflow"] = attributes
    return adata


def annotate_mudata(posterior: StoredPosterior, mdata: MuData) -> MuData:
    """Put scores in ``obsm["X_factorflow"]``, each view's loadings in its ``varm``, the run in ``uns``.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    mdata : MuData
        Changed in place; its modalities are named as the views are.

    Returns
    -------
    MuData
        ``mdata``.

    Raises
    ------
    InputError
        When no modality is a view, or no name of a sample or feature is one of the posterior.
    """
    view_names = usable_names(mdata.mod)  # as at ingest
    modalities = {name: view for name, view in view_names.items() if view in posterior.views}
    if not modalities:
        raise InputError(
            "mdata",
            ", ".join(mdata.mod),
            f"some of the views {', '.join(posterior.views)}",
            "Name the modalities as the views are named.",
        )
    scores = _reindex(posterior.scores().values, posterior.obs_names, mdata.obs_names, "samples")
    of_variables = {
        name: _of_variables(posterior, mdata.mod[name], view) for name, view in modalities.items()
    }
    attributes = run_attributes(posterior)
    mdata.obsm["X_factorflow"] = scores
    for name, values in of_variables.items():
        _annotate_variables(mdata.mod[name], values)
    mdata.uns["factorflow"] = attributes
    return mdata


def export_tables(
    posterior: StoredPosterior,
    folder: str | os.PathLike[str] | RemotePath,
    file_format: Literal["csv", "parquet"] = "csv",
    *,
    overwrite: bool = False,
) -> list[Location]:
    """Write scores, loadings, inclusion probabilities, coefficients, variance explained and held-out scores.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    folder : path
        Made when it is not there.
    file_format : {"csv", "parquet"}
        Ending and format of the files.
    overwrite : bool
        Replace files of the same names; tables of these views that this posterior lacks (say, of held-out
        scores) are removed. When the process is killed, all old tables are there, or all new
        ones, or the file ``export.incomplete`` says that some are missing: export again. Tables of two
        posteriors are never there together.

    Returns
    -------
    list of Path or Remote
        The files.

    Raises
    ------
    InputError
        When a file exists, unless it may be replaced, or cannot be written.

    Examples
    --------
    >>> files = factorflow.analysis.export_tables(posterior, "tables")
    >>> files[0].name, len(files)
    ('scores.csv', 9)
    """
    import pandas as pd

    if file_format not in ("csv", "parquet"):
        raise InputError("file_format", file_format, "csv or parquet", "Choose one of these.")
    tables: dict[str, Any] = {"scores": posterior.scores().to_pandas()}
    for view in posterior.views:
        for kind in TABLES_OF_VIEW:
            if posterior.has(f"{kind}_{view}"):
                table: Any = posterior.variable(f"{kind}_{view}").to_pandas()
                tables[f"{kind}_{view}"] = table.to_frame(kind) if isinstance(table, pd.Series) else table
        if posterior.has(f"coefficients_{view}"):  # a unit of the column
            weights = coefficients(posterior, view, total=False)["mean"]
            tables[f"coefficients_{view}"] = weights.transpose(f"feature_{view}", "covariate").to_pandas()
    if posterior.has("variance_explained"):
        tables["variance_explained"] = (
            variance_explained(posterior)["variance_explained"].transpose("factor", "view").to_pandas()
        )
    if posterior.was_scored:
        tables["holdout_scores"] = posterior.holdout_scores()
    out = output_location(folder, "folder")
    with disk_errors(out, "folder"):
        out.mkdir(parents=True, exist_ok=True)
    paths = [check_target(out / f"{name}.{file_format}", overwrite) for name in tables]
    every = [f"{kind}_{view}" for view in posterior.views for kind in (*TABLES_OF_VIEW, "coefficients")]
    every += ["variance_explained", "holdout_scores"]
    old = [out / f"{name}.{file_format}" for name in every if name not in tables] if overwrite else []
    marker = out / INCOMPLETE
    with ExitStack() as stack:  # all are written, then the old ones go, then the new ones take their place
        for path, table in zip(paths, tables.values(), strict=True):
            unfinished = stack.enter_context(new_file(path))
            if file_format == "csv":
                table.to_csv(unfinished)
            else:
                table.to_parquet(unfinished)
        write_file(marker, "Tables are missing: the export was not finished. Export again.\n")
        with disk_errors(out, "folder"):
            for path in [*paths, *old]:
                path.unlink(missing_ok=True)
            if isinstance(out, Path):
                sync_directory(out)
    with disk_errors(out, "folder"):
        marker.unlink()
    return paths


def check_target(path: str | os.PathLike[str] | RemotePath, overwrite: bool) -> Location:
    """Return the location of a new file, refusing one that exists unless it may be replaced."""
    target = output_location(path, "path")
    if target.exists() and not overwrite:
        expected, remedy = "a file that does not exist yet", "Use {overwrite} or another path."
        raise InputError("path", str(path), expected, remedy, overwrite=True)
    if isinstance(target, Path) and not target.absolute().parent.is_dir():
        raise InputError("path", str(path), "a file in a folder that exists", "Make the folder first.")
    return target


def _of_variables(posterior: StoredPosterior, adata: AnnData, view: str) -> dict[str, NDArray[np.float64]]:
    """Return what there is of variables, by key of varm."""
    values = {"factorflow": posterior.loadings(view).values}
    if posterior.has(f"inclusion_{view}"):
        values["factorflow_inclusion"] = posterior.inclusion(view).values
    names = posterior.features(view)
    return {key: _reindex(of_all, names, adata.var_names, "features") for key, of_all in values.items()}


def _annotate_variables(adata: AnnData, values: dict[str, NDArray[np.float64]]) -> None:
    """Put what there is of variables in varm, and take away that of another posterior."""
    adata.varm.pop("factorflow_inclusion", None)
    for key, of_variables in values.items():
        adata.varm[key] = of_variables


def _reindex(values: NDArray[Any], names: Any, target: Any, what: str) -> NDArray[np.float64]:
    """Return the rows of ``values`` in the order of other names, NaN for a name without a row."""
    import pandas as pd

    targets = pd.Index(np.asarray(target, dtype=object))
    if not targets.is_unique:
        repeated = str(targets[targets.duplicated()][0])
        raise InputError(what, repeated, "every name once", "Rename the duplicates in the file.")
    index = pd.Index(np.asarray(names, dtype=object)).get_indexer(targets)
    if not (index >= 0).any():
        raise InputError(
            what,
            f"{len(target)} names like {target[0]!r}" if len(target) else "none",
            f"names of the posterior, like {names[0]!r}",
            f"Give the data that were fitted, or rename the {what} there: they are matched by name.",
        )
    out = np.full((len(target), values.shape[1]), np.nan)
    out[index >= 0] = values[index[index >= 0]]
    return out


def run_attributes(posterior: StoredPosterior) -> dict[str, Any]:
    """Return the run record and variance explained as what AnnData can store."""
    run = posterior.run
    record: dict[str, Any] = {
        "factors": posterior.factors,
        "views": list(posterior.views),
        "config": json.dumps(run["config"]),
        "seed": run.get("seed", 0),
        "status": run["status"],
        "fingerprint": run.get("fingerprint", ""),
        "version": run.get("inference_library_version", ""),
    }
    if posterior.has("variance_explained"):
        record["variance_explained"] = variance_explained(posterior)["variance_explained"].values.tolist()
    return record
