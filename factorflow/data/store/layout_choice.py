"""Whether a view is stored by all entries or by those that are not zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from factorflow.core.block import SPARSE_BELOW
from factorflow.data.store.moments import MOST_PATTERNS, Survey
from factorflow.errors import InputError
from factorflow.kernels.sparse_rows import column_type

if TYPE_CHECKING:
    from factorflow.data.store.view_source import ViewSource


def may_be_sparse(view: ViewSource, n_rows: int) -> bool:
    """Return whether measurements are sparse in their first rows: all of them are worth a look then."""
    if view.kind is None or not view.kind.rounded or view.layout != "auto" or view.split is not None:
        return False
    first = view.read(0, n_rows)
    return bool(np.count_nonzero(first) <= SPARSE_BELOW * np.size(first))


def choose_layout(
    view: ViewSource, survey: Survey | None, dtype: np.dtype[Any], block_rows: int
) -> Literal["dense", "sparse"]:
    """Return the layout of a view whose kind is settled.

    Parameters
    ----------
    view : ViewSource
        The view; its own choice holds, but for "auto": counts and measurements are stored sparse where at
        most a quarter of them are not zero, few sets of features are missing together, and that takes fewer
        bytes.

    Raises
    ------
    InputError
        When the view cannot be stored sparse, and is to be.
    """
    assert view.kind is not None
    is_requested = view.layout == "sparse"
    reason = ""
    if not view.kind.is_values:
        reason = "of a view that is an input"
    elif view.split is not None:
        reason = f"of a view with {view.split.aux}"
    elif survey is not None and len(survey.patterns) > MOST_PATTERNS:
        reason = "of a view with missing entries that differ from row to row"
    if is_requested and reason:
        expected = f"values, and at most {MOST_PATTERNS} sets of features that are missing together"
        remedy = f"Leave it out, or name layout={{{view.name!r}: 'dense'}}."
        raise InputError("layout", f"sparse, {reason} ({view.name!r})", expected, remedy)
    is_numeric = view.kind.by_size or view.kind.rounded
    if is_requested or view.layout == "dense" or reason or survey is None or not is_numeric:
        return "sparse" if is_requested else "dense"
    sparse = (
        survey.most_nonzero * (column_type(view.features.size).itemsize + dtype.itemsize) + 4 * block_rows
    )
    sparse += len(survey.patterns) * view.features.size
    fewer_bytes = sparse < block_rows * view.features.size * dtype.itemsize
    return "sparse" if fewer_bytes and survey.density <= SPARSE_BELOW else "dense"
