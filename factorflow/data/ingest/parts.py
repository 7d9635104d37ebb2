"""Several files of one view: rows below each other, columns matched by the names of the features."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.checks import check_unique, join_names, warn
from factorflow.data.ingest.metadata import keep_integers
from factorflow.data.ingest.reading import Reading
from factorflow.data.ingest.sources import FrameSource, Source, labels
from factorflow.errors import InputError
from factorflow.kernels.sparse_rows import SparseRows, join_rows

if TYPE_CHECKING:
    import pandas as pd

FILE = "file"
"""Column of the metadata that says where a sample comes from."""


def has_parts(value: Any) -> bool:
    """Whether a list is one of files or tables, not of rows or labels."""
    return isinstance(value, list | tuple) and any(_is_part(part) for part in value)


def _is_part(value: Any) -> bool:
    if isinstance(value, str):
        return os.path.exists(os.path.expanduser(value)) or Path(value).suffix != ""
    return isinstance(value, os.PathLike) or len(getattr(value, "shape", ())) == 2


def names_of_parts(parts: Sequence[Any]) -> list[str]:
    """Return what the parts of a view are called: files by their names, objects by their numbers."""
    paths = [str(part) if isinstance(part, str | os.PathLike) else "" for part in parts]
    short = [Path(path).name for path in paths]
    if len(set(short)) < len(short):
        short = paths
    return [name or str(number) for number, name in enumerate(short)]


def join_parts(
    view: str, names: Sequence[str], parts: Sequence[tuple[Source, pd.DataFrame | None]], reading: Reading
) -> tuple[Source, pd.DataFrame]:
    """Return the parts of a view as one source, and their metadata with the column ``file``.

    Parameters
    ----------
    reading : Reading
        ``reading.join``: "outer" keeps the features of any part, "inner" those of all.

    Raises
    ------
    InputError
        When a sample is in two parts, or features cannot be matched.
    """
    kind = reading.kinds(view)
    sources = _select_features(_number_rows([source for source, _ in parts]), reading.join)
    sources = _prefix_barcodes(view, names, sources)
    samples = _samples(view, names, sources)
    coded = kind is not None and kind.coded
    features, where = (None, None) if coded else _features(view, names, sources, reading.join)
    array = StackedRows(sources, where, sources[0].shape[1] if features is None else features.size)
    likelihoods = {source.likelihood for source in sources}
    likelihood = likelihoods.pop() if len(likelihoods) == 1 else None
    joined = Source(array, samples, features, likelihood, sources[0].dtype)
    joined.about = _about(features, sources)
    joined.read_as = "; ".join(dict.fromkeys(source.read_as for source in sources if source.read_as))
    return joined, _metadata(view, names, sources, [frame for _, frame in parts], samples)


@dataclass(frozen=True)
class StackedRows:
    """Rows of several sources below each other, read by slicing.

    Parameters
    ----------
    where : list of int array, or None
        For every part the place of each of its columns (-1: it is left out); None: all have the same.
    """

    sources: list[Source]
    where: list[NDArray[np.int64]] | None
    n_columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""
        return sum(source.shape[0] for source in self.sources), self.n_columns

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        dtype = self.sources[0].dtype
        out = np.full((max(0, stop - start), self.n_columns), None if dtype == "object" else np.nan, dtype)
        first = 0
        for number, source in enumerate(self.sources):
            low, high = max(start, first), min(stop, first + source.shape[0])
            if low < high:
                block = source.read(low - first, high - first)
                columns = np.arange(block.shape[1]) if self.where is None else self.where[number]
                is_there = columns >= 0
                out[low - start : high - start, columns[is_there]] = (
                    block if is_there.all() else block[:, is_there]
                )
            first += source.shape[0]
        return out

    @property
    def by_entries(self) -> bool:
        """Whether rows can be had by their entries: all parts hold them so."""
        return all(getattr(source.array, "by_entries", False) for source in self.sources)

    def read_entries(self, start: int, stop: int) -> SparseRows | None:
        """Return rows by their entries that are not zero; None: some are NaN."""
        first, parts = 0, list[SparseRows]()
        for number, source in enumerate(self.sources):
            low, high = max(start, first), min(stop, first + source.shape[0])
            if low < high:
                rows = source.read_entries(low - first, high - first)
                if rows is None:
                    return None
                if self.where is not None:
                    kept = np.flatnonzero(self.where[number] >= 0)
                    rows = rows.reindex(self.where[number][kept], kept, self.n_columns)
                parts.append(rows)
            first += source.shape[0]
        return join_rows(parts) if parts else None


def _select_features(sources: list[Source], join: str) -> list[Source]:
    """Return the sources with the features that are marked in any of them, or in all."""
    marked = [set(s.features[s.marked]) for s in sources if s.marked is not None and s.features is not None]
    if not marked:
        return sources
    selected = list(set.union(*marked) if join == "outer" else set.intersection(*marked))
    return [
        source
        if source.features is None
        else replace(source, marked=np.isin(source.features, selected)).select()
        for source in sources
    ]


def _number_rows(sources: list[Source]) -> list[Source]:
    """Return parts that were cut from one counted frame with the numbers of their rows as names."""
    import pandas as pd

    counted = all(isinstance(s, FrameSource) and isinstance(s.array.index, pd.RangeIndex) for s in sources)
    if not counted or all(source.samples is None for source in sources):
        return sources
    return [replace(source, samples=labels(source.array.index)) for source in sources]


def _prefix_barcodes(view: str, names: Sequence[str], sources: list[Source]) -> list[Source]:
    """Return files of barcodes with their names in front of these, if some are in several of them."""
    if not all(source.barcodes and source.samples is not None for source in sources):
        return sources
    every = np.concatenate([source.samples for source in sources if source.samples is not None])
    if np.unique(every).size == every.size:
        return sources
    warn(f"view {view!r}: barcodes are in several files, whose names are put in front of all of them")
    return [
        replace(source, samples=np.char.add(f"{name}_", source.samples))
        for name, source in zip(_short_names(names), sources, strict=True)
        if source.samples is not None
    ]


def _short_names(names: Sequence[str]) -> list[str]:
    """Return the last part of paths in which all of them differ, without its ending; else their numbers."""
    paths = [Path(name).with_suffix("").parts[::-1] for name in names]
    distinct = next(
        (list(level) for level in zip(*paths, strict=False) if len(set(level)) == len(paths)), None
    )
    return distinct or [str(number) for number in range(len(paths))]


def _samples(view: str, names: Sequence[str], sources: list[Source]) -> NDArray[np.str_] | None:
    """Return the names of all samples; None if no part has any."""
    sample_names = [source.samples for source in sources]
    unnamed = [name for name, samples in zip(names, sample_names, strict=True) if samples is None]
    if len(unnamed) == len(names):
        return None
    if unnamed:
        raise InputError(
            f"samples of view {view!r}",
            f"no names in {join_names(unnamed)}",
            "names of the samples in every part, or in none",
            "Add them to the file.",
        )
    where: dict[str, str] = {}
    for name, samples in zip(names, sample_names, strict=True):
        assert samples is not None
        check_unique(f"sample names of {name!r}", samples)
        for sample in samples.tolist():
            if sample in where:
                raise InputError(
                    f"samples of view {view!r}",
                    f"{sample!r}, in {where[sample]!r} and in {name!r}",
                    "every sample in one part",
                    "Rename it if these are two samples, for example with the name of the file in front.",
                )
            where[sample] = name
    return np.asarray(list(where), dtype=str)


def _features(
    view: str, names: Sequence[str], sources: list[Source], join: str
) -> tuple[NDArray[np.str_] | None, list[NDArray[np.int64]] | None]:
    """Return the features of the whole, and the place of the columns of every part in it."""
    feature_names = [source.features for source in sources]
    if any(features is None for features in feature_names):
        widths = {source.shape[1] for source in sources}
        if len(widths) > 1 or any(features is not None for features in feature_names):
            without = [name for name, features in zip(names, feature_names, strict=True) if features is None]
            raise InputError(
                f"features of view {view!r}",
                f"no names in {join_names(without)}",
                "names of the features in every part, which match its columns to the others",
                "Give the values as a DataFrame, or a table with a header.",
            )
        return None, None
    of_parts = [features.tolist() for features in feature_names if features is not None]
    for name, features in zip(names, feature_names, strict=True):
        assert features is not None
        check_unique(f"feature names of {name!r}", features)
    every = dict.fromkeys(feature for features in of_parts for feature in features)
    common = set(of_parts[0]).intersection(*of_parts[1:])
    if not common:
        what = f"no feature that is in all of {join_names(list(names))}"
        if join == "inner":
            raise InputError(f"features of view {view!r}", what, "features in common", "Compare their names.")
        warn(f"view {view!r}: {what}: are they named differently?")
    whole = [feature for feature in every if join == "outer" or feature in common]
    place = {feature: number for number, feature in enumerate(whole)}
    where = [np.array([place.get(feature, -1) for feature in features], np.int64) for features in of_parts]
    return np.asarray(whole, dtype=str), where


def _about(features: NDArray[np.str_] | None, sources: list[Source]) -> pd.DataFrame | None:
    """Return the metadata of the features: of each those of the first part that has it."""
    import pandas as pd

    frames = [
        source.about.set_axis(source.features.astype(object))
        for source in sources
        if source.about is not None and source.features is not None
    ]
    if features is None or not frames:
        return None
    whole = pd.concat(frames)
    return whole[~whole.index.duplicated()].reindex(features.astype(object))


def _metadata(
    view: str,
    names: Sequence[str],
    sources: list[Source],
    frames: list[pd.DataFrame | None],
    samples: NDArray[np.str_] | None,
) -> pd.DataFrame:
    import pandas as pd

    parts = []
    for name, source, frame in zip(names, sources, frames, strict=True):
        index = pd.RangeIndex(source.shape[0]) if source.samples is None else pd.Index(source.samples)
        part = (
            pd.DataFrame(index=index)
            if frame is None
            else keep_integers(frame).set_axis(labels(frame.index).astype(object))
        )
        part = part.reindex(index) if frame is not None and source.samples is not None else part
        if FILE in part:
            warn(f"view {view!r}: {name!r} has a column {FILE!r} of its own: it is kept")
            parts.append(part)
        else:
            parts.append(part.assign(**{FILE: name}))
    whole = pd.concat(parts)
    return whole.reset_index(drop=True) if samples is None else whole
