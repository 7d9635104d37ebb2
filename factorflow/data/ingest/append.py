"""Rows added to a dataset: a new version of its store, whose first rows are read from the old one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.collect import collect
from factorflow.data.ingest.dialect import TableFormat
from factorflow.data.ingest.ingest import write_dataset
from factorflow.data.ingest.reading import Reading
from factorflow.data.ingest.sources import Source
from factorflow.data.store.dataset import Dataset, open_dataset
from factorflow.errors import InputError
from factorflow.storage.location import as_location
from factorflow.storage.publish import temporary_directory

if TYPE_CHECKING:
    import pandas as pd


def append_rows(
    path: str | os.PathLike[str],
    views: Any,
    index_col: str | int | bool | None = None,
    out: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Add rows to a dataset and open its new version; the old one stays until that is complete.

    The store is written anew, and only the new rows are parsed. The result is the dataset that all rows
    together would have made, its fingerprint included, if the views are of the same kinds then.

    Parameters
    ----------
    views : mapping or path-like
        The new rows of every view, as for `write_dataset`.
    index_col : str, int or False, optional
        As for `write_dataset`.
    out : path-like, or URL, optional
        Where the new version goes; left out: in place of the old one.

    Raises
    ------
    InputError
        When the new rows have other views, features or kinds, or names of samples that are there already; or
        the dataset has more than values by sample and feature: groups, sequences, metadata, inputs, a table.
    """
    target = as_location(path)
    old = open_dataset(target)
    _check(old)
    kinds = {name: view.default_likelihood or view.likelihood for name, view in old.views.items()}
    with temporary_directory(target, "append") as folder, ExitStack() as opened:
        sources, _ = collect(
            views, Reading(folder, TableFormat(index_col), lambda view: _kind(old, view), opened)
        )
        grown = {view: _append_view(old, view, sources) for view in old.views}
        if extra := sorted(set(sources) - set(kinds)):
            raise _append_error("views", ", ".join(extra), f"those of the dataset: {', '.join(kinds)}")
        samples = _samples(old, sources)
        features: dict[str, Any] = {view: old.features(view) for view in kinds}
        place, replaces = (str(target), True) if out is None else (out, False)
        return write_dataset(
            place, grown, kinds, samples=samples, features=features, layout=_layouts(old), overwrite=replaces
        )


@dataclass(frozen=True)
class AppendedView:
    """Rows of a view of a dataset, and new ones behind them: an array of floats that is read by slices."""

    dataset: Dataset
    view: str
    more: Source

    dtype = np.dtype(np.float64)

    @property
    def feature_metadata(self) -> pd.DataFrame | None:
        """Metadata of the features, if there are any."""
        frame = self.dataset.feature_metadata(self.view)
        return frame if frame.shape[1] else None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""
        return self.dataset.n_rows + self.more.shape[0], self.more.shape[1]

    def __getitem__(self, rows: slice) -> NDArray[np.float64]:
        start, stop, _ = rows.indices(self.shape[0])
        n, parts = self.dataset.n_rows, []
        if start < n:
            values = self.dataset.values(self.view, start, min(stop, n))
            observed = self.dataset.views[self.view].kind.observed(values)
            parts.append(np.where(observed, values, np.nan).astype(np.float64))
        if stop > n:
            parts.append(np.asarray(self.more.read(max(start, n) - n, stop - n), np.float64))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _layouts(old: Dataset) -> dict[str, str]:
    """Return the layouts of the views; counts that are stored sparse may no longer be, with the new rows."""
    return {
        entry.name: "auto"
        if entry.layout == "sparse" and (entry.kind.by_size or entry.kind.rounded)
        else entry.layout
        for entry in old.manifest.views
    }


def _check(old: Dataset) -> None:
    manifest = old.manifest
    wrong = {
        "groups": bool(manifest.groups),
        "sequences": bool(manifest.n_sequences),
        "metadata of the samples": bool(manifest.obs_columns),
        "categorical variables or covariates": not all(v.kind.is_values for v in old.views.values()),
        "views computed from others": any(entry.of for entry in manifest.views),
        "limits or numbers of trials": any(entry.aux for entry in manifest.views),
        "recoded values": any(entry.recoded for entry in manifest.views),
        "the design of a table": manifest.design is not None,
        "attributes": bool(old.attributes),
    }
    if any(wrong.values()):
        differences = ", ".join(what for what, there in wrong.items() if there)
        raise _append_error(
            "dataset", f"{old.path}, with {differences}", "one of values by sample and feature alone"
        )


def _kind(old: Dataset, view: str) -> Any:
    return old.views[view].kind if view in old.views else None


def _append_view(old: Dataset, view: str, sources: Mapping[str, Source]) -> AppendedView:
    """Return a view with its new rows, in the same features."""
    if view not in sources:
        raise _append_error("views", ", ".join(sources), f"all of the dataset: {', '.join(old.views)}")
    source, stored_features = sources[view], np.asarray(old.features(view), str)
    names = stored_features if source.features is None else np.asarray(source.features, str)
    if source.shape[1] != len(stored_features) or not np.array_equal(names, stored_features):
        value = f"{source.shape[1]} others"
        if sorted(names) == sorted(stored_features):
            value = "the same, in another order"
        expected = f"the {len(stored_features)} features of the dataset, in the same order"
        raise _append_error(f"features of view {view!r}", value, expected)
    return AppendedView(old, view, source)


def _samples(old: Dataset, sources: Mapping[str, Source]) -> dict[str, Any] | None:
    """Return the names of all samples by view; None where they have none."""
    sample_names = {view: source.samples for view, source in sources.items()}
    unnamed = [view for view, names in sample_names.items() if names is None]
    if bool(unnamed) == old.manifest.named:
        value = "rows without names" if unnamed else "rows with names"
        raise _append_error("samples", value, "names as in the dataset")
    if unnamed:
        return None
    stored_names = np.asarray(old.obs_names, str)
    return {
        view: np.concatenate([stored_names, np.asarray(names, str)]) for view, names in sample_names.items()
    }


def _append_error(parameter: str, value: str, expected: str) -> InputError:
    return InputError(parameter, value, expected, "Write the dataset anew, with all rows.")
