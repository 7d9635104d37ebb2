"""Results in files that other programs open: MOFA's HDF5, AnnData and MuData, CSV and Parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.checks import usable_names
from factorflow.errors import ExportWarning, InputError
from factorflow.extras import require
from factorflow.posterior.labels import group_labels, sample_metadata
from factorflow.storage.local import disk_errors, sync_directory
from factorflow.storage.location import Location, output_location
from factorflow.storage.publish import new_file, write_file
from factorflow.storage.remote import RemotePath

if TYPE_CHECKING:
    from anndata import AnnData
    from mudata import MuData

    from factorflow.surface import Posterior

__all__ = ["annotate_anndata", "annotate_mudata", "export_mofa", "export_tables"]

INCOMPLETE = "export.incomplete"
"""Name of the file that says, beside tables, that some of them are missing."""
SINGLE_GROUP = "group1"
"""MOFA's name of the group when there are no groups."""


def export_mofa(
    posterior: Posterior,
    path: str | os.PathLike[str] | RemotePath,
    *,
    data: bool = True,
    overwrite: bool = False,
) -> Location:
    """Write a model file in the layout of mofapy2 0.7, which mofax (and MOFA2) read.

    Gaussian data are written with our intercepts subtracted, as MOFA's are centred; missing entries as NaN.
    Samples without groups are in ``group1``. Names of groups and columns that HDF5 cannot have, such as those
    with "/", are changed, which a warning says (`ExportWarning`). Of the data mofax 0.3.7 reads one view at
    a time, ``get_data(views="rna")``: with several, of files by mofapy2 too, it looks for the features of
    each view at positions counted over all views, and raises IndexError.

    Parameters
    ----------
    posterior : Posterior
        With scores and loadings.
    path : path
        The file.
    data : bool
        Write the data too, block by block.
    overwrite : bool
        Replace what is at ``path``.
    """
    h5py = require("h5py", "writes HDF5 files")
    target = _target(path, overwrite)
    with new_file(target) as unfinished, h5py.File(unfinished, "w") as file:
        groups = _Groups.of(posterior)
        _names(file, posterior, groups)
        _expectations(file, posterior, groups)
        if posterior.has("variance_explained") or posterior.kind == "variational":
            _explained(file, posterior, groups)
        _record(file, posterior)
        for view in posterior.views:
            intercept = posterior.intercept(view).values
            for group in groups.keys:
                file.create_dataset(f"intercepts/{view}/{group}", data=intercept)
        if data:
            for view in posterior.views:
                _data(file, posterior, view, groups)
    return target


def annotate_anndata(posterior: Posterior, adata: AnnData, view: str | None = None) -> AnnData:
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
    """
    if view is None:
        if len(posterior.views) > 1:
            raise InputError(
                "view",
                "nothing",
                f"one of {', '.join(posterior.views)}",
                "Say which view the variables belong to.",
            )
        view = posterior.views[0]
    if not hasattr(adata, "obsm"):
        remedy = "Make one of a table: anndata.AnnData(table)."
        raise InputError("adata", type(adata).__name__, "an AnnData object", remedy)
    scores = _matched(posterior.scores().values, posterior.obs_names, adata.obs_names, "samples")
    adata.obsm["X_factorflow"] = scores
    _annotate_variables(posterior, adata, view)
    adata.uns["factorflow"] = _record_of(posterior)
    return adata


def annotate_mudata(posterior: Posterior, mdata: MuData) -> MuData:
    """Put scores in ``obsm["X_factorflow"]``, each view's loadings in its ``varm``, the run in ``uns``."""
    called = usable_names(mdata.mod)  # as at ingest
    known = {name: view for name, view in called.items() if view in posterior.views}
    if not known:
        raise InputError(
            "mdata",
            ", ".join(mdata.mod),
            f"some of the views {', '.join(posterior.views)}",
            "Name the modalities as the views are named.",
        )
    scores = _matched(posterior.scores().values, posterior.obs_names, mdata.obs_names, "samples")
    mdata.obsm["X_factorflow"] = scores
    for name, view in known.items():
        _annotate_variables(posterior, mdata.mod[name], view)
    mdata.uns["factorflow"] = _record_of(posterior)
    return mdata


def export_tables(
    posterior: Posterior,
    folder: str | os.PathLike[str] | RemotePath,
    file_format: Literal["csv", "parquet"] = "csv",
    *,
    overwrite: bool = False,
) -> list[Location]:
    """Write scores, loadings, inclusion probabilities, variance explained and held-out scores as tables.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    folder : path
        Made when it is not there.
    file_format : {"csv", "parquet"}
        Ending and format of the files.
    overwrite : bool
        Replace files of the same names. When the process is killed, all old tables are there, or all new
        ones, or the file ``export.incomplete`` says that some are missing: export again. Tables of two
        posteriors are never there together.

    Returns
    -------
    list of Path or Remote
        The files.
    """
    import pandas as pd

    if file_format not in ("csv", "parquet"):
        raise InputError("file_format", file_format, "csv or parquet", "Choose one of these.")
    tables: dict[str, Any] = {"scores": posterior.scores().to_pandas()}
    for view in posterior.views:
        for kind in ("loadings", "inclusion", "intercept"):
            if posterior.has(f"{kind}_{view}"):
                found: Any = posterior.variable(f"{kind}_{view}").to_pandas()
                tables[f"{kind}_{view}"] = found.to_frame(kind) if isinstance(found, pd.Series) else found
    if posterior.has("variance_explained"):
        tables["variance_explained"] = posterior.variance_explained().transpose("factor", "view").to_pandas()
    if posterior.was_scored:
        tables["holdout_scores"] = posterior.holdout_scores()
    out = output_location(folder, "folder")
    with disk_errors(out, "folder"):
        out.mkdir(parents=True, exist_ok=True)
    paths = [_target(out / f"{name}.{file_format}", overwrite) for name in tables]
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
            for path in paths:
                path.unlink(missing_ok=True)
            if isinstance(out, Path):
                sync_directory(out)
    with disk_errors(out, "folder"):
        marker.unlink()
    return paths


def _target(path: str | os.PathLike[str] | RemotePath, overwrite: bool) -> Location:
    target = output_location(path, "path")
    if target.exists() and not overwrite:
        expected, remedy = "a file that does not exist yet", "Use {overwrite} or another path."
        raise InputError("path", str(path), expected, remedy, overwrite=True)
    if isinstance(target, Path) and not target.absolute().parent.is_dir():
        raise InputError("path", str(path), "a file in a folder that exists", "Make the folder first.")
    return target


@dataclass(frozen=True)
class _Groups:
    """The sample groups of a MOFA file.

    Parameters
    ----------
    names : list of str
        As they were given; `SINGLE_GROUP` alone where there are none.
    keys : list of str
        As the file has them.
    codes : (N,) int array
        Group of each sample.
    """

    names: list[str]
    keys: list[str]
    codes: NDArray[Any]

    @classmethod
    def of(cls, posterior: Posterior) -> _Groups:
        """Return those of a posterior; of a projection, those that its samples are in."""
        labels = group_labels(posterior)
        if labels is None:
            return cls([SINGLE_GROUP], [SINGLE_GROUP], np.zeros(posterior.meta.n_rows, int))
        names = list(dict.fromkeys(labels.tolist()))
        if posterior.run["status"] != "projected":
            names = list(posterior.meta.groups)
        number = {name: code for code, name in enumerate(names)}
        keys = list(_hdf5_names(names, "group").values())
        return cls(names, keys, np.array([number[label] for label in labels.tolist()], int))


def _hdf5_names(names: Iterable[str], what: str) -> dict[str, str]:
    """Return by name what stands for it in a path of an HDF5 file, which "/" would cut; a warning tells."""
    given, found = list(names), dict[str, str]()
    used = set(given)
    for name in given:
        key = name.replace("/", "_").replace("\0", "_")
        key = "_" * max(1, len(key)) if not key.strip(".") else key
        while key != name and key in used:
            key += "_"
        used.add(key)
        found[name] = key
    changed = [f"{name!r} is called {key!r}" for name, key in found.items() if name != key]
    if changed:
        warn(f"HDF5 cannot have such a name of a {what}: {', '.join(changed)}", ExportWarning, stacklevel=4)
    return found


def _names(file: Any, posterior: Posterior, groups: _Groups) -> None:
    import h5py

    text = h5py.string_dtype(encoding="utf-8")
    file.create_dataset("groups/groups", data=np.array(groups.keys, dtype=text))
    file.create_dataset("views/views", data=np.array(posterior.views, dtype=text))
    metadata = sample_metadata(posterior, typed=False)
    columns = _hdf5_names(map(str, metadata.columns), "column")
    for g, group in enumerate(groups.keys):
        mine = groups.codes == g
        file.create_dataset(f"samples/{group}", data=np.array(posterior.obs_names[mine], dtype=text))
        for name, column in metadata.items():
            values = column.to_numpy()[mine]
            plain = values if values.dtype.kind in "biuf" else np.array([str(v) for v in values], dtype=text)
            file.create_dataset(f"samples_metadata/{group}/{columns[str(name)]}", data=plain)
    for view in posterior.views:
        file.create_dataset(f"features/{view}", data=np.array(posterior.features(view), dtype=text))


def _expectations(file: Any, posterior: Posterior, groups: _Groups) -> None:
    scores = posterior.scores().values
    for g, group in enumerate(groups.keys):
        file.create_dataset(f"expectations/Z/{group}", data=scores[groups.codes == g].T, compression="gzip")
    for view in posterior.views:
        file.create_dataset(
            f"expectations/W/{view}", data=posterior.loadings(view).values.T, compression="gzip"
        )


def _explained(file: Any, posterior: Posterior, groups: _Groups) -> None:
    """Write shares in percent: by group, view and factor, and by group and view; NaN: not measured."""
    by_group = bool(posterior.meta.groups) and groups.names != [SINGLE_GROUP]
    share = posterior.variance_explained(by_group=by_group)
    total = posterior.variance_explained_total(by_group=by_group)
    if by_group:
        share, total = share.reindex(group=groups.names), total.reindex(group=groups.names)
    for g, group in enumerate(groups.keys):
        here, everything = (share[g], total[g]) if by_group else (share, total)
        file.create_dataset(f"variance_explained/r2_per_factor/{group}", data=100.0 * here.values)
        file.create_dataset(f"variance_explained/r2_total/{group}", data=100.0 * everything.values)


def _record(file: Any, posterior: Posterior) -> None:
    """Write options and training statistics, as far as MOFA has a place for them."""
    run, trace = posterior.run, posterior.trace
    spike = any(posterior.has(f"inclusion_{view}") for view in posterior.views)
    options = {
        "likelihoods": [view.likelihood for view in posterior.meta.views],
        "spikeslab_factors": str(posterior.has("scores_inclusion")),
        "spikeslab_weights": str(spike),
        "ard_factors": str(posterior.has("score_precision")),
        "ard_weights": "True",
    }
    for name, value in options.items():
        file.create_dataset(f"model_options/{name}", data=np.asarray(value).astype("S"))
    file["model_options/ard_weights"].attrs["names"] = np.array(list(options), dtype="S")
    n = trace.sizes["iteration"]
    training = {
        "maxiter": n,
        "freqELBO": 1,
        "start_elbo": 0,
        "gpu_mode": 0,
        "stochastic": 0,
        "seed": run.get("seed", 0),
    }
    file.create_dataset("training_opts", data=np.array(list(training.values()), dtype=float))
    file["training_opts"].attrs["names"] = np.array(list(training), dtype="S")
    seconds = np.diff(trace["seconds"].values, prepend=0.0)
    if "objective" in trace:
        objective = np.atleast_2d(trace["objective"].values).mean(axis=0)
        file.create_dataset("training_stats/elbo", data=objective)
    file.create_dataset("training_stats/time", data=seconds)
    file.create_dataset("training_stats/number_factors", data=np.full(n, len(posterior.factors), float))
    file.attrs["factorflow"] = json.dumps(_record_of(posterior))


def _data(file: Any, posterior: Posterior, view: str, of_samples: _Groups) -> None:
    """Write the data of a view, group by group, as blocks come."""
    dataset, codes = posterior.data, of_samples.codes
    groups, d = of_samples.keys, len(posterior.features(view))
    likelihood = next(v.likelihood for v in posterior.meta.views if v.name == view)
    centre = posterior.intercept(view).values if likelihood == "gaussian" else 0.0
    sizes = np.bincount(codes, minlength=len(groups))
    out = [
        file.create_dataset(
            f"data/{view}/{group}",
            (size, d),
            "float32",
            chunks=(max(1, min(size, dataset.block_rows)), d),
            compression="gzip",
            compression_opts=1,
        )
        for group, size in zip(groups, sizes, strict=True)
    ]
    filled = np.zeros(len(groups), int)
    for number in range(dataset.n_blocks):
        block = dataset.block(number, [view])
        values = block.data[view].astype(np.float64)
        if likelihood == "bernoulli":
            values[values < 0] = np.nan
        mine = codes[block.start : block.start + block.n_rows]
        for g in range(len(groups)):
            part = values[mine == g] - centre
            out[g][filled[g] : filled[g] + len(part)] = part
            filled[g] += len(part)


def _annotate_variables(posterior: Posterior, adata: AnnData, view: str) -> None:
    names = posterior.features(view)
    adata.varm["factorflow"] = _matched(posterior.loadings(view).values, names, adata.var_names, "features")
    if posterior.has(f"inclusion_{view}"):
        inclusion = posterior.inclusion(view).values
        adata.varm["factorflow_inclusion"] = _matched(inclusion, names, adata.var_names, "features")


def _matched(values: NDArray[Any], names: Any, wanted: Any, what: str) -> NDArray[np.float64]:
    """Return the rows of ``values`` in the order of other names, NaN where a name is not known."""
    import pandas as pd

    sought = pd.Index(np.asarray(wanted, dtype=object))
    if not sought.is_unique:
        repeated = str(sought[sought.duplicated()][0])
        raise InputError(what, repeated, "every name once", "Rename the duplicates in the file.")
    index = pd.Index(np.asarray(names, dtype=object)).get_indexer(sought)
    if not (index >= 0).any():
        raise InputError(
            what,
            f"{len(wanted)} names like {wanted[0]!r}" if len(wanted) else "none",
            f"names of the posterior, like {names[0]!r}",
            "Name them as in the dataset.",
        )
    out = np.full((len(wanted), values.shape[1]), np.nan)
    out[index >= 0] = values[index[index >= 0]]
    return out


def _record_of(posterior: Posterior) -> dict[str, Any]:
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
        record["variance_explained"] = posterior.variance_explained().values.tolist()
    return record
