"""From sources of any kind to a store on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest import checks
from factorflow.data.ingest.collect import collect
from factorflow.data.ingest.sources import Source
from factorflow.data.ingest.tables import read_metadata
from factorflow.data.store.dataset import Dataset, open_dataset
from factorflow.data.store.layout import choose_block_rows, read_manifest
from factorflow.data.store.writer import Columns, ViewSource, write_store
from factorflow.errors import InputError
from factorflow.files import check_space, fresh_directory

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["write_dataset"]

StrArray = NDArray[np.str_]
Names = Sequence[str]


def write_dataset(
    path: str | os.PathLike[str],
    views: Any,
    likelihoods: Mapping[str, str] | None = None,
    samples: Names | Mapping[str, Names] | None = None,
    features: Mapping[str, Names] | None = None,
    groups: str | Sequence[Any] | None = None,
    sequences: str | Sequence[Any] | None = None,
    obs: pd.DataFrame | Mapping[str, Sequence[Any]] | str | os.PathLike[str] | None = None,
    block_rows: int | None = None,
    overwrite: bool = False,
    drop_empty_features: bool = False,
    sample_column: str | bool | None = None,
) -> Dataset:
    """Write a multi-view dataset, block by block, and open it.

    Nothing appears at ``path`` before the whole dataset is written and checked.

    Parameters
    ----------
    path : path-like
        Directory to make.
    views : mapping, path-like or xarray Dataset
        ``{name: array | sparse matrix | DataFrame | DataArray | Dask array | path}``, samples x features; or
        one file that holds several views (.npz, .h5mu, .zarr, .h5ad), or a folder with one file a view
        (.csv, .tsv, .parquet, .npy). ``docs/ingest.md`` has the details.
    likelihoods : mapping of str to {"gaussian", "bernoulli", "poisson"}, optional
        By view. What is left out is taken from the file, else guessed: values 0 and 1 are bernoulli, other
        whole numbers from 0 on poisson, all else gaussian. ``Dataset.describe()`` tells which it was.
    samples : sequence of str, or mapping of view to sequence of str, optional
        Names of the rows of views that bring none; given once for all views they also set the order.
    features : mapping of str to sequence of str, optional
        Names of the columns of views that bring none.
    groups, sequences : str or sequence of length N, optional
        A label for every sample, or the name of a column of ``obs``. Rows of one sequence must be neighbours
        and in order of time.
    obs : DataFrame, mapping or path, optional
        Sample metadata; a DataFrame is matched by its index, others by position.
    block_rows : int, optional
        Rows of a block, a power of two; chosen from the width of the views when left out.
    overwrite : bool
        Replace a dataset that lies at ``path``, once the new one is complete.
    drop_empty_features : bool
        Leave out features without any observed value instead of refusing them.
    sample_column : str or bool, optional
        Text tables: the column with the sample names; False: there is none. By default the first column,
        unless its values are numbers that cannot be names.

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
    target = Path(os.path.abspath(os.fspath(path)))
    with fresh_directory(target, overwrite, read_manifest) as partial, ExitStack() as opened:
        sources, found = collect(views, partial / "spool", sample_column)
        for source in sources.values():
            opened.callback(source.close)
        names, positions = align(sources, samples)
        frame = _metadata(obs if obs is not None else found, names)
        sized = [s.shape[1] for s in sources.values()]
        check_space(partial, 4 * names.size * sum(sized))
        write_store(
            partial,
            _view_sources(sources, positions, likelihoods or {}, features or {}),
            _columns(names, frame, groups, sequences),
            choose_block_rows(names.size, sized, block_rows),
            drop_empty_features,
        )
        shutil.rmtree(partial / "spool", ignore_errors=True)
    return open_dataset(target)


def align(
    sources: Mapping[str, Source], samples: Names | Mapping[str, Names] | None
) -> tuple[StrArray, dict[str, NDArray[np.int64] | None]]:
    """Match the rows of all views by sample name.

    Returns
    -------
    names : (N,) str array
        The union of all samples, in the order of ``samples``, then of first appearance.
    positions : dict of str to (N,) int64 array or None
        For every view the row of each sample (-1: absent); None: the rows are in order already.
    """
    if isinstance(samples, Mapping):
        _check_by_view("samples", samples, sources)
    own = {view: _sample_names(view, source, samples) for view, source in sources.items()}
    named = [names for names in own.values() if names is not None]
    if samples is not None and not isinstance(samples, Mapping):
        named.insert(0, np.asarray(samples, dtype=str))
    if not named:
        return _numbered(sources), dict.fromkeys(sources)
    first = named[0]
    for view, names in own.items():
        if names is None:
            alike = all(np.array_equal(first, other) for other in named)
            if not alike or sources[view].shape[0] != first.size:
                raise InputError(
                    f"samples of view {view!r}",
                    f"{sources[view].shape[0]} rows without names",
                    "sample names, since other views have their own",
                    f"Give them as samples={{{view!r}: [...]}}.",
                )
    union = np.asarray(list(dict.fromkeys(name for names in named for name in names.tolist())), dtype=str)
    where = {name: i for i, name in enumerate(union.tolist())}
    positions: dict[str, NDArray[np.int64] | None] = {}
    for view, names in own.items():
        positions[view] = None
        if names is not None and not np.array_equal(names, union):
            rows = np.full(union.size, -1, np.int64)
            rows[[where[name] for name in names.tolist()]] = np.arange(names.size)
            positions[view] = rows
    return _enough(union), positions


def _sample_names(view: str, source: Source, samples: Any) -> StrArray | None:
    """Return the names of the rows of one view, or None."""
    names = source.samples
    if names is None and isinstance(samples, Mapping) and view in samples:
        names = np.asarray(samples[view], dtype=str)
    if names is None:
        if samples is None or isinstance(samples, Mapping):
            return None
        names = np.asarray(samples, dtype=str)
    if names.size != source.shape[0]:
        raise InputError(
            f"samples of view {view!r}",
            f"{names.size} names",
            f"{source.shape[0]}, one for every row",
            "Check the order and number.",
        )
    checks.check_unique(f"sample names of view {view!r}", names)
    return names


def _numbered(sources: Mapping[str, Source]) -> StrArray:
    sizes = {view: source.shape[0] for view, source in sources.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(
            "rows of the views",
            ", ".join(f"{view}: {size}" for view, size in sizes.items()),
            "the same number in every view that has no sample names",
            "Give the names of the samples (samples={view: [...]}), and views are matched by them.",
        )
    return _enough(numbered("sample", next(iter(sizes.values()))))


def numbered(prefix: str, size: int) -> StrArray:
    """Return ``prefix0``, ``prefix1``, ..."""
    return np.char.add(prefix, np.arange(size).astype(f"U{len(str(size))}"))


def _enough(names: StrArray) -> StrArray:
    if names.size < 2:
        raise InputError("samples", names.size, "at least 2", "A factor model needs several samples.")
    return names


def _view_sources(
    sources: Mapping[str, Source],
    positions: Mapping[str, NDArray[np.int64] | None],
    likelihoods: Mapping[str, str],
    features: Mapping[str, Names],
) -> list[ViewSource]:
    for what, given in (("likelihoods", likelihoods), ("features", features)):
        _check_by_view(what, given, sources)
    found = []
    for view, source in sources.items():
        names = source.features
        if view in features:
            names = np.asarray(features[view], dtype=str)
        if names is None:
            names = numbered("feature", source.shape[1])
        if names.size != source.shape[1]:
            raise InputError(
                f"features of view {view!r}",
                f"{names.size} names",
                f"{source.shape[1]}, one for every column",
                "Check their number.",
            )
        checks.check_unique(f"feature names of view {view!r}", names)
        out = ViewSource(view, names, _reader(source, positions[view]))
        if view in likelihoods:
            out = replace(out, likelihood=checks.check_likelihood_name(view, likelihoods[view]))
        elif source.likelihood is not None:
            out = replace(
                out, likelihood=checks.check_likelihood_name(view, source.likelihood), likelihood_from="file"
            )
        found.append(out)
    return found


def _check_by_view(what: str, given: Any, sources: Mapping[str, Source]) -> None:
    """Refuse an argument that is no mapping by view, or names a view that does not exist."""
    known = ", ".join(sources)
    if not isinstance(given, Mapping):
        raise InputError(what, given, "a mapping by view", f"The views are {known}.")
    unknown = [str(view) for view in given if view not in sources]
    if unknown:
        raise InputError(what, ", ".join(unknown), f"views among {known}", "Check the names.")


def _reader(source: Source, positions: NDArray[np.int64] | None) -> Any:
    if positions is None:
        return source.read
    return lambda start, stop: source.take(positions[start:stop])


def _metadata(obs: Any, names: StrArray) -> pd.DataFrame | None:
    """Return the sample metadata in the order of the samples."""
    if obs is None:
        return None
    import pandas as pd

    if isinstance(obs, str | os.PathLike):
        obs = read_metadata(Path(obs))
    frame = obs if isinstance(obs, pd.DataFrame) else pd.DataFrame(dict(obs))
    if isinstance(frame.index, pd.RangeIndex) and frame.index.name is None:
        if len(frame) != names.size:
            raise InputError(
                "obs", f"{len(frame)} rows", f"{names.size}, one for every sample", "Index it by sample name."
            )
        return frame.set_index(pd.Index(names))
    index = frame.index.map(str)
    checks.check_unique("sample names of obs", np.asarray(index, dtype=str))
    if not index.isin(names).any():
        raise InputError(
            "index of obs",
            checks.listed(index.to_numpy()),
            f"sample names such as {checks.listed(names, 3)}",
            "Index it by sample name.",
        )
    return frame.set_axis(index).reindex(names)


def _columns(names: StrArray, frame: pd.DataFrame | None, groups: Any, sequences: Any) -> Columns:
    codes: dict[str, NDArray[Any]] = {}
    labels: tuple[str, ...] = ()
    n_sequences = 0
    if groups is not None:
        labels, codes["group"] = _codes("groups", groups, names, frame)
    if sequences is not None:
        _, sequence = _codes("sequences", sequences, names, frame)
        starts = np.flatnonzero(np.diff(sequence, prepend=-1))
        n_sequences = starts.size
        if np.unique(sequence).size < n_sequences:
            raise InputError(
                "sequences",
                "labels that come back later",
                "all rows of a sequence next to each other",
                "Sort the rows by sequence and time.",
            )
        lengths = np.diff(np.append(starts, sequence.size))
        codes["sequence"] = np.repeat(np.arange(n_sequences, dtype=np.int32), lengths)
        codes["time"] = (np.arange(sequence.size) - np.repeat(starts, lengths)).astype(np.int32)
    return Columns(names, codes, labels, n_sequences, frame)


def _codes(what: str, labels: Any, names: StrArray, frame: Any) -> tuple[tuple[str, ...], NDArray[Any]]:
    """Return the names of the levels in order of first appearance, and the code of every sample."""
    import pandas as pd

    if isinstance(labels, str):
        if frame is None or labels not in frame.columns:
            known = "none" if frame is None else ", ".join(str(c) for c in frame.columns)
            raise InputError(
                what,
                labels,
                f"a column of the sample metadata ({known})",
                "Or give a label for every sample.",
            )
        labels = frame[labels]
    elif isinstance(labels, pd.Series) and not isinstance(labels.index, pd.RangeIndex):
        labels = labels.set_axis(labels.index.map(str)).reindex(names)
    if len(labels) != names.size:
        raise InputError(
            what, f"{len(labels)} labels", f"{names.size}, one for every sample", "Check their number."
        )
    codes, levels = pd.factorize(pd.Series(list(labels)))
    if (codes < 0).any():
        raise InputError(
            what,
            f"no label for {checks.listed(names[codes < 0])}",
            "a label for every sample",
            "Fill them in.",
        )
    return tuple(str(level) for level in levels), codes.astype(np.int32)
