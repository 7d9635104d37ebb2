"""Sample metadata, groups and sequences, matched to the rows of a dataset."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest import checks
from factorflow.data.ingest.tables import read_metadata
from factorflow.data.store.rows import Columns, ReadCodes, RowNames
from factorflow.errors import InputError, counted

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["describe_rows"]

MANY = 10
"""From so many samples on, groups or sequences of one each are a mistake; fewer may be new samples."""


def _metadata(obs: Any, names: RowNames) -> pd.DataFrame | None:
    """Return the sample metadata in the order of the samples."""
    if obs is None:
        return None
    import pandas as pd

    if isinstance(obs, str | os.PathLike):
        obs = read_metadata(Path(os.path.expanduser(obs)))
    frame = obs if isinstance(obs, pd.DataFrame) else _frame(obs)
    columns = frame.columns.map(str)
    repeated = columns[columns.duplicated()].to_numpy(dtype=str)
    if repeated.size:
        raise InputError(
            "columns of obs", checks.listed(repeated), "every name once", "Rename or remove the duplicates."
        )
    if isinstance(frame.index, pd.RangeIndex) and frame.index.name is None:
        if len(frame) != names.n_rows:
            raise InputError(
                "obs",
                f"{len(frame)} rows",
                f"{names.n_rows}, one for every sample",
                "Index it by sample name.",
            )
        return frame
    index = frame.index.map(str)
    checks.check_unique("sample names of obs", np.asarray(index, dtype=str))
    whole = names.whole()
    if not index.isin(whole).any():
        raise InputError(
            "index of obs",
            checks.listed(index.to_numpy()),
            f"sample names such as {checks.listed(whole, 3)}",
            "Index it by sample name.",
        )
    unknown = whole[~np.isin(whole, index)]
    if unknown.size:
        of_all = counted(whole.size, "sample")
        checks.warn(f"obs lacks {unknown.size} of {of_all} ({checks.listed(unknown)})")
    return frame.set_axis(index).reindex(whole)


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


def describe_rows(names: RowNames, obs: Any, groups: Any, sequences: Any) -> Columns:
    """Return what is known of every row.

    Parameters
    ----------
    names : RowNames
        Of the samples.
    obs, groups, sequences
        As for `factorflow.data.write_dataset`.

    Raises
    ------
    InputError
        When they do not match the samples, or a sequence is not in one piece.
    """
    frame = _metadata(obs, names)
    codes: dict[str, NDArray[Any]] = {}
    labels: tuple[str, ...] = ()
    n_sequences = 0
    if groups is not None:
        labels, codes["group"] = _codes("groups", groups, names, frame)
        if len(labels) == names.n_rows >= MANY:
            checks.warn("every sample is a group of its own: groups say which samples belong together")
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
            known = "none" if frame is None else ", ".join(str(c) for c in frame.columns)
            raise InputError(
                what,
                labels,
                f"a column of the sample metadata ({known})",
                "Or give a label for every sample.",
            )
        labels = frame[labels]
    elif isinstance(labels, pd.Series) and not isinstance(labels.index, pd.RangeIndex):
        labels = labels.set_axis(labels.index.map(str)).reindex(names.whole())
    shape = np.shape(labels)
    if len(shape) != 1 or shape[0] != names.n_rows:
        given = f"{shape[0]} labels" if len(shape) == 1 else f"{type(labels).__name__} of shape {shape}"
        raise InputError(what, given, f"{names.n_rows} labels, one for every sample", "Check their number.")
    codes, levels = pd.factorize(pd.Series(list(labels)))
    if (codes < 0).any():
        raise InputError(
            what,
            f"no label for {checks.listed(names.whole()[codes < 0])}",
            "a label for every sample",
            "Fill them in.",
        )
    return tuple(str(level) for level in levels), codes.astype(np.int32)
