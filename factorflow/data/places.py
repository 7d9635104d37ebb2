"""Where the samples of a dataset lie, for smooth scores: from columns of their metadata, block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.places import MOST_CELLS, Places
from factorflow.data.covariates import check_columns, labels_of, numbers_of, rows_by_sample
from factorflow.data.store.fingerprint import digest_column, digest_names
from factorflow.errors import InputError

if TYPE_CHECKING:
    from factorflow.data.store.dataset import Dataset

OPTION = "smooth_covariates"


@dataclass(frozen=True)
class PlaceTable:
    """Where the samples of a run lie, read with its blocks.

    Parameters
    ----------
    table : mapping of str to (N,) array or None
        The columns, where they are not the dataset's own.
    known : bool
        Whether they are known; else they are NaN.
    """

    places: Places
    table: Mapping[str, NDArray[np.float64]] | None = None
    known: bool = True

    @cached_property
    def digest(self) -> str:
        """Of what it reads: equal where the numbers are."""
        parts = [repr(self.places), str(self.known)]
        parts += [f"{name} {digest_column(values)}" for name, values in (self.table or {}).items()]
        return digest_names(parts)

    def read(self, dataset: Dataset, start: int, stop: int) -> NDArray[np.float64]:
        """Return the numbers of some rows, (stop - start, p); NaN where they are not known."""
        if not self.known:
            return np.full((stop - start, len(self.places)), np.nan)
        if self.table is not None:
            return np.column_stack([self.table[name][start:stop] for name in self.places.columns])
        return read_places(dataset, self.places.columns, start, stop, self.places.levels)


def read_places(
    dataset: Any, columns: Sequence[str], start: int = 0, stop: int | None = None, levels: Sequence[str] = ()
) -> NDArray[np.float64]:
    """Return columns of the sample metadata as numbers, NaN where they are missing.

    A row of which one is missing is not known at all. Of a category the numbers of its levels.
    """
    stored = dataset.obs_columns(columns, start, stop)
    numbers = np.column_stack([_coded(name, stored[name], levels) for name in columns])
    return _whole(numbers)


def _coded(name: str, values: Any, levels: Sequence[str]) -> NDArray[np.float64]:
    if not levels:
        return _finite(numbers_of(name, values))
    number = {level: float(i) for i, level in enumerate(levels)}
    return np.array([number.get(label, np.nan) for label in labels_of(values).tolist()])


def code_levels(dataset: Dataset, column: str) -> Places:
    """Return the levels of a column of the sample metadata as places without distances.

    Raises
    ------
    InputError
        When there is no such column, or it has too many levels, or one for each sample.
    """
    check_columns(dataset, [column], "random_intercepts")
    labels = labels_of(dataset.obs_columns([column])[column])
    levels = sorted(set(labels.tolist()) - {""})
    if not 2 <= len(levels) <= MOST_CELLS or len(levels) == int((labels != "").sum()):
        raise InputError(
            "random_intercepts",
            f"{column}, of {len(levels)} levels in {len(labels)} samples",
            f"a column of 2 to {MOST_CELLS} levels, some of several samples",
            "Name the column that says which samples belong together, or leave it out.",
        )
    codes = read_places(dataset, [column], levels=levels)
    return Places(
        columns=(column,),
        covariate=(0,),
        digests=(digest_column(codes[:, 0]),),
        low=(0.0,),
        high=(len(levels) - 1.0,),
        nearest=(1.0,),
        cells=tuple((0.0, float(i)) for i in range(len(levels))),
        n_known=int(np.isfinite(codes).sum()),
        levels=tuple(levels),
    )


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isfinite(values), values, np.nan)


def _whole(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isnan(numbers).any(axis=1, keepdims=True), np.nan, numbers)


def code_places(
    dataset: Dataset, specification: str | Sequence[str | Sequence[str]], *, by_group: bool
) -> Places:
    """Return where the samples lie.

    Parameters
    ----------
    specification : str or sequence of str or of sequences of str
        Columns of the sample metadata; those of an inner sequence are one place: ``["time", ["x", "y"]]``.
    by_group : bool
        Whether groups of samples may have courses of their own.

    Raises
    ------
    InputError
        When there is no such column, one is no number, is the same everywhere, or is known of few samples.
    """
    columns, owner = _columns_of(specification)
    check_columns(dataset, columns, OPTION)
    places = read_places(dataset, columns)
    complete = np.isfinite(places).all(axis=1)
    for name, values in zip(columns, places.T, strict=True):
        if len(np.unique(values[complete])) < 3:
            raise InputError(
                OPTION,
                f"{name}, of {len(np.unique(values[complete]))} distinct numbers",
                "a column of at least 3 distinct numbers: time, place, dose",
                "Leave it out, or use {covariates} for what differs between few kinds of samples.",
                covariates=[name],
            )
    groups = tuple(dataset.groups) if by_group and len(dataset.groups) > 1 else ()
    codes = dataset.codes("group").astype(np.float64) if groups else np.zeros(dataset.n_rows)
    cells = np.unique(np.column_stack([codes, places])[complete], axis=0)
    owners = np.asarray(owner)
    nearest = tuple(_nearest(places[complete][:, owners == r]) for r in range(max(owner) + 1))
    return Places(
        columns=tuple(columns),
        covariate=tuple(owner),
        digests=tuple(digest_column(values) for values in places.T),
        low=tuple(places[complete].min(axis=0).tolist()),
        high=tuple(places[complete].max(axis=0).tolist()),
        nearest=nearest,
        groups=groups,
        cells=tuple(map(tuple, cells.tolist())) if len(cells) <= MOST_CELLS else (),
        n_known=int(complete.sum()),
    )


def places_with_digests(places: Places, dataset: Dataset) -> Places:
    """Return places as they are, with the digests of the columns of a dataset."""
    values = read_places(dataset, places.columns, levels=places.levels)
    return replace(places, digests=tuple(digest_column(column) for column in values.T))


def projected_places(places: Places | None, dataset: Dataset, source: Any = None) -> PlaceTable | None:
    """Return where new samples lie.

    Parameters
    ----------
    source : DataFrame, path, False or None
        As for `projected_covariates`.
    """
    if places is None:
        return None
    if source is False:
        return PlaceTable(places, known=False)
    if source is None:
        has_all = set(places.columns) <= set(dataset.column_names)
        return PlaceTable(places_with_digests(places, dataset) if has_all else places, known=has_all)
    rows = rows_by_sample(dataset, source, list(places.columns))
    table = {name: _coded(name, rows[name].array, places.levels) for name in places.columns}
    return PlaceTable(places, table)


def _columns_of(specification: str | Sequence[str | Sequence[str]]) -> tuple[list[str], list[int]]:
    """Return the columns, and the covariate that each is a dimension of."""
    parts = (
        [name.strip() for name in specification.split(",")]
        if isinstance(specification, str)
        else list(specification)
    )
    columns: list[str] = []
    owner: list[int] = []
    for number, part in enumerate(parts):
        names = [part] if isinstance(part, str) else list(part)
        columns += names
        owner += [number] * len(names)
    if not columns or len(set(columns)) < len(columns) or not all(columns):
        raise InputError(
            OPTION, specification, "names of columns, each once", "For example ['time'] or [['x', 'y']]."
        )
    return columns, owner


def _nearest(places: NDArray[np.float64]) -> float:
    """Return the median distance of distinct places to their nearest neighbours."""
    from scipy.spatial import cKDTree

    distinct = np.unique(places, axis=0)
    return float(np.median(np.asarray(cKDTree(distinct).query(distinct, k=2)[0])[:, 1]))
