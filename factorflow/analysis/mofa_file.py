"""The posterior of a run as a model file of MOFA (HDF5)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from factorflow.analysis.export import check_target, run_attributes
from factorflow.core.extras import require
from factorflow.data.covariates import numbers_of
from factorflow.errors import ExportWarning
from factorflow.posterior.covariates import group_effects
from factorflow.posterior.labels import group_labels, sample_metadata
from factorflow.posterior.smooth import group_correlation, interpolate, smoothness, warped_numbers
from factorflow.posterior.variance import variance_explained
from factorflow.storage.location import Location
from factorflow.storage.publish import new_file
from factorflow.storage.remote import RemotePath

if TYPE_CHECKING:
    from factorflow.posterior.stored_posterior import StoredPosterior

SINGLE_GROUP = "group1"
"""MOFA's name of the group when there are no groups."""

GRID = {1: 100, 2: 30}
"""By number of columns, points of each at which courses are written."""


def export_mofa(
    posterior: StoredPosterior,
    path: str | os.PathLike[str] | RemotePath,
    *,
    data: bool = True,
    overwrite: bool = False,
) -> Location:
    """Write a model file in the layout of mofapy2 0.7, which mofax (and MOFA2) read.

    Gaussian data are written with our intercepts subtracted (by group where they are), as MOFA's are centred;
    missing entries as NaN.
    Samples without groups are in ``group1``. Of smooth scores the columns, their clocks, length scales,
    correlations of groups and courses are written as those of MEFISTO. Names of groups and columns that
    HDF5 cannot have, such as those with "/", are changed, which a warning says (`ExportWarning`). Of the
    data mofax 0.3.7 reads one view at a time, ``get_data(views="rna")``: with several, of files by
    mofapy2 too, it looks for the features of each view at positions counted over all views, and raises
    IndexError.

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

    Returns
    -------
    Path or Remote
        The file.

    Raises
    ------
    InputError
        When the file exists, unless it may be replaced, or the family has no scores or loadings.

    Warns
    -----
    ExportWarning
        Of names that were changed.

    Examples
    --------
    >>> factorflow.analysis.export_mofa(posterior, "cohort.hdf5").name
    'cohort.hdf5'
    """
    h5py = require("h5py", "writes HDF5 files")
    target = check_target(path, overwrite)
    with new_file(target) as unfinished, h5py.File(unfinished, "w") as file:
        groups = Groups.of(posterior)
        _write_names(file, posterior, groups)
        _write_expectations(file, posterior, groups)
        if posterior.has("variance_explained") or posterior.predicts_by_factors:
            _write_variance_explained(file, posterior, groups)
        _write_options(file, posterior)
        if posterior.meta.places is not None:
            _write_smooth(file, posterior, groups)
        for view in posterior.views:
            intercepts = _intercepts(posterior, view, groups)
            for group, intercept in zip(groups.keys, intercepts, strict=True):
                file.create_dataset(f"intercepts/{view}/{group}", data=intercept)
            if data:
                _write_data(file, posterior, view, groups, intercepts)
    return target


@dataclass(frozen=True)
class Groups:
    """The sample groups of a MOFA file.

    Parameters
    ----------
    names : list of str
        As they were given; `SINGLE_GROUP` alone where there are none.
    codes : (N,) int array
        Group of each sample.
    """

    names: list[str]
    keys: list[str]
    codes: NDArray[Any]

    @classmethod
    def of(cls, posterior: StoredPosterior) -> Groups:
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
    """Return by name its key in an HDF5 file, where "/" separates groups; warn of keys that differ."""
    keys, names = dict[str, str](), list(names)
    used = set(names)
    for name in names:
        key = name.replace("/", "_").replace("\0", "_")
        key = "_" * max(1, len(key)) if not key.strip(".") else key
        while key != name and key in used:
            key += "_"
        used.add(key)
        keys[name] = key
    changed = [f"{name!r} is called {key!r}" for name, key in keys.items() if name != key]
    if changed:
        warn(f"HDF5 cannot have such a name of a {what}: {', '.join(changed)}", ExportWarning, stacklevel=4)
    return keys


def _write_names(file: Any, posterior: StoredPosterior, groups: Groups) -> None:
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


def _write_expectations(file: Any, posterior: StoredPosterior, groups: Groups) -> None:
    scores = posterior.scores().values
    for g, group in enumerate(groups.keys):
        file.create_dataset(f"expectations/Z/{group}", data=scores[groups.codes == g].T, compression="gzip")
    for view in posterior.views:
        file.create_dataset(
            f"expectations/W/{view}", data=posterior.loadings(view).values.T, compression="gzip"
        )


def _write_variance_explained(file: Any, posterior: StoredPosterior, groups: Groups) -> None:
    """Write shares in percent: by group, view and factor, and by group and view; NaN: not measured."""
    by_group = bool(posterior.meta.groups) and groups.names != [SINGLE_GROUP]
    shares = variance_explained(posterior, by="group" if by_group else None)
    share, total = shares["variance_explained"], shares["variance_explained_total"]
    if by_group:
        share, total = share.reindex(group=groups.names), total.reindex(group=groups.names)
    for g, group in enumerate(groups.keys):
        group_share, group_total = (share[g], total[g]) if by_group else (share, total)
        file.create_dataset(f"variance_explained/r2_per_factor/{group}", data=100.0 * group_share.values)
        file.create_dataset(f"variance_explained/r2_total/{group}", data=100.0 * group_total.values)


def _write_options(file: Any, posterior: StoredPosterior) -> None:
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
    file.attrs["factorflow"] = json.dumps(run_attributes(posterior))


def _write_smooth(file: Any, posterior: StoredPosterior, groups: Groups) -> None:
    """Write what smooth scores are functions of, and what was learned, where MEFISTO has it."""
    import h5py

    places, metadata = posterior.meta.places, sample_metadata(posterior)
    assert places is not None
    columns = np.column_stack([numbers_of(name, metadata[name].to_numpy()) for name in places.columns])
    text = h5py.string_dtype(encoding="utf-8")
    file.create_dataset("covariates/covariates", data=np.array(places.columns, dtype=text))
    is_warped = posterior.has("warp")
    clocks = warped_numbers(posterior)[:, None] if is_warped else columns
    for g, group in enumerate(groups.keys):
        file.create_dataset(f"cov_samples/{group}", data=columns[groups.codes == g])
        file.create_dataset(f"cov_samples_transformed/{group}", data=clocks[groups.codes == g])
    options = {"scale_cov": False, "warping": is_warped, "model_groups": len(places.groups) > 1}
    for name, value in options.items():
        file.create_dataset(f"smooth_opts/{name}", data=np.asarray(str(value)).astype("S"))
    file["smooth_opts/model_groups"].attrs["names"] = np.array(list(options), dtype="S")
    table = smoothness(posterior)
    lengths = table[[f"length_scale_{label}" for label in places.labels]].to_numpy()
    stats = file["training_stats"]
    stats.create_dataset("length_scales", data=lengths[:, 0] if places.n_covariates == 1 else lengths)
    stats.create_dataset("scales", data=table["smooth"].to_numpy())
    stats.create_dataset("Kg", data=_group_kernel(posterior, groups))
    if posterior.kind == "variational" and len(places) in GRID:
        _write_courses(file, posterior, groups)


def _group_kernel(posterior: StoredPosterior, groups: Groups) -> NDArray[np.float64]:
    """Return the correlation of the courses of groups by factor, (K, G, G); 1 where there is one course."""
    places, n = posterior.meta.places, len(groups.names)
    correlation = np.ones((len(posterior.factors), n, n))
    if places is not None and places.groups:
        learned = group_correlation(posterior).sel(group=groups.names, other_group=groups.names).values
        correlation = np.where(np.isnan(learned), np.eye(n), learned)
    return correlation


def _write_courses(file: Any, posterior: StoredPosterior, groups: Groups) -> None:
    """Write mean and variance of the courses of each group on a grid of places."""
    places = posterior.meta.places
    assert places is not None
    axes = [np.linspace(*ends, GRID[len(places)]) for ends in zip(places.low, places.high, strict=True)]
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    file.create_dataset("Z_predictions/new_values", data=grid)
    for name, group in zip(groups.names, groups.keys, strict=True):
        courses = interpolate(posterior, grid, name if places.groups else None, None, 0.9)
        file.create_dataset(f"Z_predictions/{group}/mean", data=courses["f_mean"].values)
        file.create_dataset(f"Z_predictions/{group}/variance", data=courses["f_sd"].values ** 2)


def _intercepts(posterior: StoredPosterior, view: str, groups: Groups) -> NDArray[np.float64]:
    """Return the intercepts of each group, (G, D); 0 where a family has none."""
    has_intercept = posterior.has(f"intercept_{view}")
    whole = posterior.intercept(view).values if has_intercept else np.zeros(len(posterior.features(view)))
    intercepts = np.tile(whole, (len(groups.names), 1))
    present, first = np.unique(groups.codes, return_index=True)
    effects = group_effects(posterior, view, first)
    if effects is not None:
        intercepts[present] += effects
    return intercepts


def _write_data(
    file: Any, posterior: StoredPosterior, view: str, sample_groups: Groups, intercepts: NDArray[np.float64]
) -> None:
    """Write the data of a view, group by group, as blocks come; measurements less the intercepts (G, D)."""
    dataset, codes = posterior.data, sample_groups.codes
    groups, d = sample_groups.keys, len(posterior.features(view))
    centre = intercepts if posterior.model.likelihood(view).is_location else np.zeros_like(intercepts)
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
        observed = dataset.views[view].kind.observed(block.data[view])
        values = np.where(observed, block.data[view], np.nan).astype(np.float64)
        mine = codes[block.start : block.start + block.n_rows]
        for g in range(len(groups)):
            part = values[mine == g] - centre[g]
            out[g][filled[g] : filled[g] + len(part)] = part
            filled[g] += len(part)
