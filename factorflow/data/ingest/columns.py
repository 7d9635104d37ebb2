"""Sample metadata, groups and sequences, matched to the rows of a dataset."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest import checks
from factorflow.data.ingest.dialect import DEFAULT_FORMAT, NAME_HEADERS, TableFormat
from factorflow.data.ingest.levels import text_of
from factorflow.data.ingest.metadata import keep_integers, read_metadata, with_exact_integers, without_codes
from factorflow.data.ingest.sources import COMPLEX, counts_rows
from factorflow.data.ingest.sources import labels as as_names
from factorflow.data.ingest.spelling import spelling_examples
from factorflow.data.store.rows import Columns, ReadCodes, RowNames
from factorflow.errors import InputError, OptionText, pluralize

if TYPE_CHECKING:
    import pandas as pd

MANY = 10
"""From so many samples on, groups or sequences of one each are a mistake; fewer may be new samples."""


def _metadata(obs: Any, names: RowNames, table_format: TableFormat, *, alone: bool) -> pd.DataFrame | None:
    """Return the sample metadata in the order of the samples."""
    if obs is None:
        return None
    import pandas as pd

    if isinstance(obs, str | os.PathLike):
        samples = np.array([], str) if names.stored is None else names.stored
        with checks.readable(f"file {obs}"):
            obs = read_metadata(Path(os.path.expanduser(obs)), "obs", table_format, samples, alone=alone)
        if names.stored is not None and isinstance(obs.index, pd.RangeIndex):
            raise InputError(
                "obs",
                f"no column of sample names among {checks.join_names([str(c) for c in obs.columns])}",
                f"names such as {checks.join_names(names.stored, 3)} in the first column",
                "Or name the column: index_col.",
            )
    if hasattr(obs, "to_pandas"):
        frame = obs.to_pandas()
        table = obs.to_arrow() if hasattr(obs, "to_arrow") else obs
        if hasattr(table, "column_names"):  # of Arrow and Polars
            frame = with_exact_integers(frame, table)
        obs = _named_by_column(frame, names)
    frame = obs if isinstance(obs, pd.DataFrame) else _frame(obs)
    frame = without_codes(frame, table_format.na_values)
    columns = frame.columns.map(str)
    repeated = columns[columns.duplicated()].to_numpy(dtype=str)
    if repeated.size:
        raise InputError(
            "columns of obs",
            checks.join_names(repeated),
            "every name once",
            "Rename or remove the duplicates.",
        )
    wrong = columns[[getattr(dtype, "kind", "") == "c" for dtype in frame.dtypes]].to_numpy(dtype=str)
    if wrong.size:
        raise InputError(
            f"columns of obs {checks.join_names(wrong)}", "complex numbers", "real ones, or text", COMPLEX
        )
    if counts_rows(frame.index):
        if len(frame) != names.n_rows:
            raise InputError(
                "obs",
                f"{len(frame)} rows",
                f"{names.n_rows}, one for every sample",
                "Index it by sample name.",
            )
        _check_order(frame, names)
        return frame
    row_names = as_names(frame.index)
    checks.check_unique("sample names of obs", row_names)
    whole = names.whole()
    unknown = whole[~np.isin(whole, row_names)]
    _, examples = spelling_examples(unknown, row_names) if unknown.size else (0, "")
    if unknown.size == whole.size:
        remedy = "Index it by sample name."
        if names.stored is None:
            text = "The views have no sample names: give them ({samples}), or obs by position."
            remedy = OptionText(text, samples=...)
        elif examples:
            remedy = f"Only the spelling differs: {examples}."
        expected = f"sample names such as {checks.join_names(whole, 3)}"
        raise InputError("index of obs", checks.join_names(row_names), expected, remedy)
    if unknown.size:
        of_all = pluralize(whole.size, "sample")
        spelled = f"; some differ in spelling alone: {examples}" if examples else ""
        checks.warn(f"obs lacks {unknown.size} of {of_all} ({checks.join_names(unknown)}){spelled}")
    whole_numbers = keep_integers(frame) if unknown.size else frame
    return whole_numbers.set_axis(pd.Index(row_names.astype(object))).reindex(whole)


def _named_by_column(frame: pd.DataFrame, names: RowNames) -> pd.DataFrame:
    """Return a frame of a library without row names, indexed by its first column where samples have names."""
    import pandas as pd

    if names.stored is None or not isinstance(frame.index, pd.RangeIndex) or not frame.shape[1]:
        return frame
    first = as_names(frame.iloc[:, 0])
    if not np.isin(first, names.stored).any():
        expected = f"sample names such as {checks.join_names(names.stored, 3)}"
        remedy = "Put the names first, or give a DataFrame of pandas indexed by them."
        raise InputError("first column of obs", checks.join_names(first), expected, remedy)
    return frame.set_index(frame.columns[0])


def _check_order(frame: pd.DataFrame, names: RowNames) -> None:
    """Refuse metadata by position if a column of theirs has the names of the samples in another order."""
    if names.stored is None:
        return
    sample_names = names.whole()
    for place, column in enumerate(frame.columns):
        own = as_names(frame.iloc[:, place])
        if np.array_equal(own, sample_names):
            return
        if frame.dtypes.iloc[place].kind in "biufmM" and str(column).lower() not in NAME_HEADERS:
            continue
        if 2 * np.isin(own, sample_names).sum() > own.size:
            raise InputError(
                f"column {str(column)!r} of obs",
                f"the names of the samples in another order ({checks.join_names(own, 3)})",
                f"that of the samples ({checks.join_names(sample_names, 3)}) where no index names the rows",
                f"Index it by them: obs.set_index({str(column)!r}).",
            )


def _frame(obs: Any) -> pd.DataFrame:
    """Return a mapping of columns as a table."""
    import pandas as pd

    try:
        return pd.DataFrame(dict(obs))
    except (TypeError, ValueError) as error:
        sizes = {str(name): np.shape(column) for name, column in getattr(obs, "items", dict)()}
        raise InputError(
            "obs",
            ", ".join(f"{name} of shape {size}" for name, size in sizes.items()) or type(obs).__name__,
            "a DataFrame, the path of a table, or a mapping of column names to one value for every sample",
            "For example {'batch': ['a', 'b', 'a']}.",
        ) from error


def describe_rows(
    names: RowNames,
    obs: Any,
    groups: Any,
    sequences: Any,
    table_format: TableFormat = DEFAULT_FORMAT,
    *,
    alone: bool = False,
) -> Columns:
    """Return names, codes and metadata of all rows.

    Parameters
    ----------
    obs, groups, sequences
        As for `factorflow.data.write_dataset`.
    table_format : TableFormat
        How a table of metadata is laid out, as far as it was said.
    alone : bool
        Whether it was said of the metadata alone, since no view is a table.

    Raises
    ------
    InputError
        When they do not match the samples, or a sequence is not in one piece.
    """
    frame = _metadata(obs, names, table_format, alone=alone)
    codes: dict[str, NDArray[Any]] = {}
    labels: tuple[str, ...] = ()
    n_sequences = 0
    if groups is not None:
        labels, codes["group"] = _codes("groups", groups, names, frame)
        checks.warn_of_spelling("groups", labels)
        if len(labels) == names.n_rows >= MANY:
            checks.warn("every sample is a group of its own: groups say which samples belong together")
    if sequences is not None:
        _, sequence = _codes("sequences", sequences, names, frame)
        starts = np.flatnonzero(np.diff(sequence, prepend=-1))
        n_sequences = starts.size
        if np.unique(sequence).size < n_sequences:
            raise InputError(
                "sequences",
                "a sequence label in one run of rows",
                "all rows of a sequence next to each other",
                "Sort the rows by sequence and time.",
            )
        if n_sequences == names.n_rows >= MANY:
            checks.warn("every sample is a sequence of its own: there is nothing to follow in time")
        lengths = np.diff(np.append(starts, sequence.size))
        codes["sequence"] = np.repeat(np.arange(n_sequences, dtype=np.int32), lengths)
        codes["time"] = (np.arange(sequence.size) - np.repeat(starts, lengths)).astype(np.int32)
    return Columns(names, {name: _pieces(code) for name, code in codes.items()}, labels, n_sequences, frame)


def _pieces(codes: NDArray[Any]) -> ReadCodes:
    return lambda start, stop: codes[start:stop]


def _codes(what: str, labels: Any, names: RowNames, frame: Any) -> tuple[tuple[str, ...], NDArray[Any]]:
    """Return the names of the levels in order of first appearance, and the code of every sample."""
    import pandas as pd

    if isinstance(labels, str):
        if frame is None or labels not in frame.columns:
            available = "none" if frame is None else ", ".join(str(c) for c in frame.columns)
            raise InputError(
                what,
                labels,
                f"a column of the sample metadata ({available})",
                "Or give a label for every sample.",
            )
        labels = frame[labels]
    elif isinstance(labels, pd.Series) and not counts_rows(labels.index):
        labels = labels.set_axis(pd.Index(as_names(labels.index).astype(object))).reindex(names.whole())
    try:
        shape = np.shape(labels)
    except ValueError as error:  # lists in it, of different lengths
        expected = f"{names.n_rows} labels, one for every sample"
        raise InputError(what, "lists of several lengths", expected, "Give texts or numbers.") from error
    if len(shape) != 1 or shape[0] != names.n_rows:
        actual = f"{shape[0]} labels" if len(shape) == 1 else f"{type(labels).__name__} of shape {shape}"
        raise InputError(what, actual, f"{names.n_rows} labels, one for every sample", "Check their number.")
    try:
        codes, levels = pd.factorize(pd.Series(list(labels)))
    except TypeError as error:  # mappings, sets
        raise InputError(what, str(error), "texts or numbers", "Give each sample one label.") from error
    if (codes < 0).any():
        raise InputError(
            what,
            f"no label for {checks.join_names(names.whole()[codes < 0])}",
            "a label for every sample",
            "Fill them in.",
        )
    return tuple(text_of(level) for level in levels), codes.astype(np.int32)
