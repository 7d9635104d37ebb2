"""Size factors that columns of the sample metadata have: numbers above 0, read with the blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.covariates import Column
from factorflow.data.covariates import numbers_of, plain_numbers, rows_by_sample
from factorflow.data.store.fingerprint import digest_column, digest_names
from factorflow.errors import InputError

if TYPE_CHECKING:
    from factorflow.data.store.dataset import Dataset


@dataclass(frozen=True)
class SizeTable:
    """The size factors of a run, read with its blocks.

    Parameters
    ----------
    columns : tuple of Column
        Their columns; a size factor is relative to the mean of the column.
    table : mapping of str to (N,) array or None
        The columns, where they are not the dataset's own.
    """

    columns: tuple[Column, ...]
    table: Mapping[str, NDArray[Any]] | None = None

    @cached_property
    def digest(self) -> str:
        """Of what it reads: equal where the numbers are."""
        return digest_names([repr(self.columns)])

    def read(self, dataset: Dataset, start: int, stop: int) -> NDArray[np.float64]:
        """Return the size factors of some rows, (stop - start, J)."""
        names = [column.name for column in self.columns]
        part = dataset.obs_columns(names, start, stop) if self.table is None else self.table
        rows = slice(None) if self.table is None else slice(start, stop)
        return np.column_stack([numbers_of(c.name, part[c.name][rows]) / c.mean for c in self.columns])


def code_sizes(
    dataset: Dataset,
    names: Sequence[str],
    methods: Sequence[str] = (),
    like: Sequence[Column] = (),
    source: Mapping[str, Any] | None = None,
) -> tuple[Column, ...]:
    """Return the columns of size factors, with their means and digests.

    Parameters
    ----------
    methods : sequence of str, optional
        What else the option may be, for errors.
    like : sequence of Column, optional
        Of an earlier fit, whose means are taken.
    source : mapping of str to (N,) array, optional
        The columns, where they are not the dataset's own.

    Raises
    ------
    InputError
        When there is no such column, or a sample has no number above 0 in it.
    """
    means = {column.name: column.mean for column in like}
    columns = []
    for name in names:
        if source is None and name not in dataset.column_names:
            there = ", ".join(dataset.column_names) or "there are none"
            expected = ", ".join([*methods, f"a column of the sample metadata ({there})"])
            raise InputError(
                "size_factors", name, expected, "Correct the name, or write the dataset with {obs}.", obs=...
            )
        column = dataset.obs_columns([name])[name] if source is None else source[name]
        numbers = plain_numbers(column)
        values = np.full(len(column), np.nan) if numbers is None else numbers
        wrong = np.flatnonzero(~((values > 0.0) & (values < np.inf)))
        if wrong.size:
            shown = str(np.asarray(column)[wrong[0]]) if numbers is None else f"{values[wrong[0]]:g}"
            what = f"{shown} of sample {dataset.obs_names[wrong[0]]} in column {name}"
            remedy = "Correct the column, leave such samples out, or take those of the counts: 'total'."
            raise InputError("size_factors", what, "a number above 0 for each sample", remedy)
        columns.append(Column(name, means.get(name, float(values.mean())), digest=digest_column(values)))
    return tuple(columns)


def projected_sizes(columns: Sequence[Column], dataset: Dataset, source: Any = None) -> SizeTable | None:
    """Return the size factors of new samples.

    Parameters
    ----------
    source : DataFrame, path, False or None
        Their columns by sample name; else those of the dataset's metadata.

    Raises
    ------
    InputError
        When there is no such column, or a sample has no number above 0 in it.
    """
    if not columns:
        return None
    names = [column.name for column in columns]
    if source is None or source is False:
        return SizeTable(code_sizes(dataset, names, like=columns))
    rows = rows_by_sample(dataset, source, names)
    table = {name: np.asarray(rows[name].array) for name in names}
    return SizeTable(code_sizes(dataset, names, like=columns, source=table), table)
