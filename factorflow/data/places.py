"""Where the samples of a dataset lie, for smooth scores: from columns of their metadata, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from factorflow.core.places import MOST_CELLS, Places
from factorflow.data.covariates import CodedColumns, check_columns, labels_of
from factorflow.data.store.fingerprint import digest_column
from factorflow.errors import InputError

if TYPE_CHECKING:
    from factorflow.data.store.dataset import Dataset

OPTION = "smooth_covariates"


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
    places = Places((column,), (0,), levels=tuple(levels))
    codes = CodedColumns(places).read(dataset)
    return replace(
        places,
        digests=(digest_column(codes[:, 0]),),
        low=(0.0,),
        high=(len(levels) - 1.0,),
        nearest=(1.0,),
        cells=tuple((0.0, float(i)) for i in range(len(levels))),
        n_known=int(np.isfinite(codes).sum()),
    )


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
    places = CodedColumns(Places(tuple(columns), tuple(owner))).read(dataset)
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
