"""Write a dataset from sources of any kind."""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.data.ingest import checks
from factorflow.data.ingest.align import Names, align, check_by_view
from factorflow.data.ingest.by_feature import of_likelihood, of_parts, split_by_likelihood
from factorflow.data.ingest.collect import collect
from factorflow.data.ingest.columns import describe_rows
from factorflow.data.ingest.conversions import is_of
from factorflow.data.ingest.dialect import TableFormat
from factorflow.data.ingest.entry_arrays import Limits, Trials
from factorflow.data.ingest.events import as_times
from factorflow.data.ingest.marked import read_marked
from factorflow.data.ingest.missing import MissingCodes, warn_of_codes
from factorflow.data.ingest.reading import AnnDataOptions, Reading
from factorflow.data.ingest.sources import Source
from factorflow.data.ingest.sticks import as_sticks
from factorflow.data.ingest.view_sources import entry_arrays, lookup, named_kinds, view_sources, with_defaults
from factorflow.data.store.dataset import Dataset, open_dataset
from factorflow.data.store.layout import choose_block_rows, read_root
from factorflow.data.store.view_source import is_long_table
from factorflow.data.store.writer import write_store
from factorflow.errors import InputError, OptionError
from factorflow.settings import MatrixOptions, document_options, parse_config
from factorflow.storage.download import as_local_source
from factorflow.storage.local import check_space
from factorflow.storage.location import as_location
from factorflow.storage.publish import new_directory

if TYPE_CHECKING:
    import pandas as pd


@document_options(MatrixOptions)
def write_dataset(
    path: str | os.PathLike[str],
    views: Any,
    likelihoods: Mapping[str, str | Mapping[str, str]] | None = None,
    samples: Names | Mapping[str, Names] | None = None,
    features: Mapping[str, Names] | None = None,
    groups: str | Sequence[Any] | None = None,
    sequences: str | Sequence[Any] | None = None,
    obs: pd.DataFrame | Mapping[str, Sequence[Any]] | str | os.PathLike[str] | None = None,
    block_rows: int | None = None,
    overwrite: bool = False,
    drop_empty_features: bool = False,
    inputs: Mapping[str, str] | None = None,
    limits: Mapping[str, Any] | None = None,
    trials: Mapping[str, Any] | None = None,
    index_col: str | int | bool | None = None,
    transpose: bool | str | Sequence[str] = False,
    sep: str | None = None,
    decimal: str | None = None,
    na_values: Any = None,
    encoding: str | None = None,
    layer: str | Mapping[str, str] | None = None,
    obsm: str | Sequence[str] = (),
    spatial: str | None = None,
    highly_variable: bool | str | Sequence[str] = False,
    join: str = "outer",
    layout: Mapping[str, str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    **unknown: Any,
) -> Dataset:
    """Write a multi-view dataset, block by block, and open it.

    Nothing appears at ``path`` before the whole dataset is written and checked. ``groups`` and ``sequences``
    may be a label for every sample; of ``obs`` a DataFrame is matched by its index, a mapping by position;
    ``na_values`` may be a mapping by view, with the key ``obs`` for sample metadata. ``limits`` by view are
    pairs (lower, upper), each None, a number, a Series by feature, or an array or DataFrame of all entries;
    ``trials`` integers, arrays, DataFrames, files, or layers.

    Parameters
    ----------
    path : path-like, or URL
        Directory to make.
    views : mapping, path-like, URL or xarray Dataset
        ``{name: array | sparse matrix | DataFrame | DataArray | Dask array | path}``, samples x features, or
        a list of such parts, whose features are matched by name; or
        one file that holds several views (.npz, .h5mu, .zarr, .h5ad), or a folder with one file a view
        (.csv, .tsv, .parquet, .npy); or a DataFrame in long form, with columns sample, feature, view, value
        (and group). What is at a URL is downloaded first, beside the dataset.
        ``docs/ingest.md`` has the details.
    likelihoods : mapping of str to str or to mapping, optional
        By view: "gaussian", "bernoulli" or "poisson" values; "categorical", one label a sample, which becomes
        a binary feature for each level but the first. What is left out is taken from the file, else guessed:
        values 0 and 1 are bernoulli, other whole numbers from 0 on poisson, all else gaussian.
        ``Dataset.describe()`` tells which it was. A likelihood of `factorflow.models.SparseGFA` ("gamma",
        "ordinal", ...) is that of its fits by default; "survival" of a view with columns ``time`` and
        ``event`` (1, or 0 where the sample was seen last). A mapping by feature cuts the view: `lab` into
        `lab_gamma`, ... and what is left.
    samples : sequence of str, or mapping of view to sequence of str, optional
        Names of the rows of views that bring none; given once for all views they also set the order.
    features : mapping of str to sequence of str, optional
        Names of the columns of views that bring none; of a categorical view its levels, in order (by default
        those of a pandas Categorical in its own order, else sorted).
    <options>
    overwrite : bool
        Replace a dataset that lies at ``path``, once the new one is complete.
    attributes : mapping of str to value or array, optional
        What else belongs to the dataset, `Dataset.attributes`: plain values (as JSON has them) and NumPy
        arrays. No model sees them, and the fingerprint does not depend on them.
    **unknown
        Refused, with the option that is meant.

    Returns
    -------
    Dataset

    Raises
    ------
    InputError
        When something cannot be used as it is; nothing is left at ``path`` then.

    Warns
    -----
    DataWarning
        Of constant or dropped features and of samples without any value.

    Examples
    --------
    >>> import numpy as np, tempfile, factorflow.data
    >>> y = np.random.default_rng(0).standard_normal((50, 4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dataset = factorflow.data.write_dataset(f"{folder}/toy", {"rna": y})
    ...     dataset.n_rows, dataset.views["rna"].likelihood
    (50, 'gaussian')
    """
    target = as_location(path)
    with new_directory(target, overwrite, read_root, "of the views") as partial, ExitStack() as opened:
        for name, value in unknown.items():
            raise _unknown_option(name, value)
        checks.check_attributes(attributes or {})
        matrix_options = parse_config(MatrixOptions, {"join": join, "layout": layout})
        requested_kinds = named_kinds(likelihoods, inputs)
        table, codes = TableFormat(index_col, sep, decimal, encoding), MissingCodes(na_values)
        annotated, turned = _anndata_options(layer, obsm, spatial, highly_variable), _transposes(transpose)
        spool, kinds = partial / "spool", lookup(requested_kinds)
        reading = Reading(
            spool, table, kinds, opened, annotated, matrix_options.join, transpose=turned, codes=codes
        )
        views = _on_disk(views, partial, opened)
        obs = opened.enter_context(as_local_source(obs, partial, "obs"))
        views, sides = read_marked(views, reading, turned)
        sources, obs_frames = collect(views, reading)
        of_samples = obs if obs is not None else obs_frames
        reading.check_used(has_metadata_table=isinstance(of_samples, str | os.PathLike))
        _check_named_views(transpose, codes, sources)
        features = features or {}
        sources, chosen, parts = split_by_likelihood(sources, likelihoods or {}, features)
        if parts:
            requested_kinds, codes = named_kinds(chosen, inputs), MissingCodes(of_parts(na_values, parts))
            features = {view: of for view, of in features.items() if view not in parts.values()}
        names, positions = align(sources, of_parts(samples, parts))
        layouts = of_parts(matrix_options.layout or {}, parts)
        described = view_sources(
            sources, positions, requested_kinds, features, codes, layouts, drop_empty=drop_empty_features
        )
        described = [as_sticks(v) if chosen.get(v.name) == "categorical" else v for v in described]
        described = [as_times(v) if chosen.get(v.name) == "survival" else v for v in described]
        limits = of_likelihood(limits or {}, parts, Limits.likelihood)
        trials = of_likelihood(trials or {}, parts, Trials.likelihood)
        for what, by_view in (("limits", limits), ("trials", trials)):
            check_by_view(what, by_view, sources)
        views = of_parts(views, parts)
        of_views = entry_arrays(
            described, limits, trials, of_parts(sides, parts), views, names, positions, reading
        )
        described = with_defaults(described, chosen, of_views)
        row_bytes = sum(view.work_bytes for view in described)
        check_space(partial, names.n_rows * row_bytes)
        own, of_samples = _groups(groups, reading, obs, of_samples)
        of_obs = replace(table, na_values=codes.texts("obs"))
        columns = describe_rows(names, of_samples, own, sequences, of_obs, alone=not reading.tables)
        _warn_of_codes(columns.obs)
        rows = choose_block_rows(names.n_rows, row_bytes, block_rows, table=is_long_table(described))
        write_store(partial, described, columns, rows, drop_empty_features, attributes=attributes)
        shutil.rmtree(spool, ignore_errors=True)
    return open_dataset(target)


def _groups(groups: Any, reading: Reading, obs: Any, of_samples: Any) -> tuple[Any, Any]:
    """Return the groups and the metadata of the samples, given what came with the values."""
    if not reading.groups:
        return groups, of_samples
    if groups is None:
        return reading.groups[0], of_samples
    return groups, reading.groups[0].to_frame() if obs is None else obs  # a column like any other


def _anndata_options(layer: Any, obsm: Any, spatial: str | None, highly_variable: Any) -> AnnDataOptions:
    """Return the options for AnnData."""
    if not isinstance(layer, str | Mapping | None):
        raise InputError("layer", layer, "a name, or a mapping by view", "For example {'rna': 'counts'}.")
    marked = (highly_variable,) if isinstance(highly_variable, str) else highly_variable
    if not isinstance(marked, bool):
        if not isinstance(marked, Sequence):
            raise InputError("highly_variable", marked, "True, False or names of views", "Name the views.")
        marked = tuple(map(str, marked))
    return AnnDataOptions(layer, (obsm,) if isinstance(obsm, str) else tuple(obsm or ()), marked, spatial)


def _on_disk(views: Any, near: Path, opened: ExitStack) -> Any:
    """Return the views with files of a disk in place of URLs, of a view of several files as well."""
    views = opened.enter_context(as_local_source(views, near, "views"))
    if not isinstance(views, Mapping) or is_of("xarray", views):
        return views
    return {
        name: opened.enter_context(as_local_source(value, near, "views"))
        if isinstance(value, list | tuple)
        else value
        for name, value in views.items()
    }


def _unknown_option(name: str, value: Any) -> InputError:
    parameters = tuple(inspect.signature(write_dataset).parameters)[:-1]
    return OptionError(name, value, None, "factorflow.write_dataset", parameters)


def _transposes(transpose: bool | str | Sequence[str]) -> Callable[[str], bool]:
    """Return a predicate: whether the features of a view are in rows."""
    if isinstance(transpose, bool | np.bool_):
        return lambda view: bool(transpose)
    transposed = {transpose} if isinstance(transpose, str) else set(transpose)
    return lambda view: view in transposed or checks.usable_name(view) in transposed


def _check_named_views(transpose: Any, codes: MissingCodes, sources: Mapping[str, Source]) -> None:
    """Refuse views that do not exist in options by view."""
    if not isinstance(transpose, bool | np.bool_):
        check_by_view(
            "transpose", dict.fromkeys([transpose] if isinstance(transpose, str) else transpose), sources
        )
    check_by_view("na_values", {view: None for view in codes.by_view if view != "obs"}, sources)


def _warn_of_codes(obs: pd.DataFrame | None) -> None:
    """Warn of columns of numbers of the sample metadata with codes that stand for missing entries."""
    if obs is None:
        return
    columns = [i for i, dtype in enumerate(obs.dtypes) if getattr(dtype, "kind", "O") in "iuf"]
    if columns and len(obs):
        values = obs.iloc[:, columns].to_numpy(dtype=np.float64, na_value=np.nan)
        low, high = np.fmin.reduce(values), np.fmax.reduce(values)
        warn_of_codes(
            "obs",
            [str(obs.columns[i]) for i in columns],
            low,
            high,
            lambda some: [values[:, some]],
            one_unit=False,
        )
