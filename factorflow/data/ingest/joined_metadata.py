"""Sample metadata that comes with the views: one table out of that of every file or modality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.data.ingest.checks import check_unique, join_names, warn
from factorflow.data.ingest.metadata import keep_integers
from factorflow.data.ingest.sources import counts_rows, labels

if TYPE_CHECKING:
    import pandas as pd


def join_metadata(
    frames: Mapping[str, pd.DataFrame | None], *, prefixed: bool = False
) -> pd.DataFrame | None:
    """Return the metadata of all views as one table, matched by sample name.

    A column of several views is filled from all of them. Where two of them disagree, each is called
    ``<view>:<column>``, and a warning says so.

    Parameters
    ----------
    frames : mapping of str to DataFrame or None
        Metadata by view. Without sample names (a RangeIndex) they are matched by position.
    prefixed : bool
        Keep the columns of every view as ``<view>:<column>`` in any case, as MuData does.
    """
    non_empty = {
        v: keep_integers(frame) for v, frame in frames.items() if frame is not None and frame.shape[1]
    }
    if len(non_empty) < 2 and not prefixed:
        return next(iter(non_empty.values()), None)
    import pandas as pd

    unnamed = {view for view, frame in non_empty.items() if counts_rows(frame.index)}
    lengths = {len(non_empty[view]) for view in unnamed}
    if unnamed and (len(unnamed) < len(non_empty) or len(lengths) > 1):
        left = sorted(unnamed)
        warn(f"the metadata of {join_names(left)} have no sample names to be matched by: they are left out")
        non_empty = {view: frame for view, frame in non_empty.items() if view not in unnamed}
        if not non_empty:
            return None
    with_prefix = {view: _prefix_columns(view, frame, unnamed) for view, frame in non_empty.items()}
    index = pd.Index(list(dict.fromkeys(name for frame in with_prefix.values() for name in frame.index)))
    columns: dict[str, Any] = {}
    conflicts: dict[str, str] = {}
    for column in dict.fromkeys(column for frame in with_prefix.values() for column in frame.columns):
        parts = {view: frame[column] for view, frame in with_prefix.items() if column in frame}
        conflict = _conflict(parts)
        if conflict:
            conflicts[str(column)] = conflict
        else:
            columns[str(column)] = _fill_column(list(parts.values()), index)
        if conflict or prefixed:
            columns |= {f"{view}:{column}": _fill_column([part], index) for view, part in parts.items()}
    if conflicts:
        warn(
            f"the metadata of the views disagree in {join_names(list(conflicts))} "
            f"({next(iter(conflicts.values()))}): such columns are called <view>:<column>"
        )
    return pd.DataFrame(columns, index=index)


def _prefix_columns(view: str, frame: pd.DataFrame, unnamed: set[str]) -> pd.DataFrame:
    if view in unnamed:
        return frame
    names = labels(frame.index)
    check_unique(f"sample names of the metadata of {view!r}", names)
    return frame.set_axis(names.astype(object))


def _conflict(parts: Mapping[str, pd.Series[Any]]) -> str:
    """Return where two views disagree on a sample, as text."""
    first, *others = (part.astype(object) for part in parts.values())
    for part in others:
        both = first.index.intersection(part.index)
        ours, theirs = first.loc[both], part.loc[both]
        differ = ours.notna() & theirs.notna() & (ours != theirs)
        if differ.any():
            name = both[int(np.argmax(differ.to_numpy()))]
            return f"sample {name!r}: {ours[name]!r} and {theirs[name]!r}"
        first = first.combine_first(part)
    return ""


def _fill_column(parts: list[pd.Series[Any]], index: pd.Index[Any]) -> pd.Series[Any]:
    """Return a column filled from all views, of the type they share."""
    import pandas as pd

    values = pd.concat([part.dropna().astype(object) for part in parts])
    whole: Any = values[~values.index.duplicated()].reindex(index)
    dtypes: list[Any] = list({part.dtype for part in parts})
    if all(isinstance(dtype, pd.CategoricalDtype) for dtype in dtypes):
        levels = list(dict.fromkeys(level for part in parts for level in part.cat.categories))
        whole = whole.astype(pd.CategoricalDtype(levels, len(dtypes) == 1 and bool(dtypes[0].ordered)))
    elif len(dtypes) == 1 and (pd.api.types.is_extension_array_dtype(dtypes[0]) or not whole.isna().any()):
        whole = whole.astype(dtypes[0])
    elif len(dtypes) == 1 and pd.api.types.is_bool_dtype(dtypes[0]):
        whole = whole.astype("boolean")
    else:
        whole = whole.infer_objects()
    filled: pd.Series[Any] = whole
    return filled
