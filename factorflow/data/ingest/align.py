"""Matching the rows of views by sample name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest import checks
from factorflow.data.ingest.checks import join_names
from factorflow.data.ingest.sources import Source, labels
from factorflow.data.ingest.spelling import warn_of_names
from factorflow.data.store.rows import RowNames
from factorflow.errors import InputError

StrArray = NDArray[np.str_]
Names = Sequence[str]


def align(
    sources: Mapping[str, Source], samples: Names | Mapping[str, Names] | None
) -> tuple[RowNames, dict[str, NDArray[np.int64] | None]]:
    """Match the rows of all views by sample name.

    Returns
    -------
    names : RowNames
        The union of all samples, in the order of ``samples``, then of first appearance; numbered when
        nothing names them.
    positions : dict of str to (N,) int64 array or None
        For every view the row of each sample (-1: absent); None: the rows are in order already.
    """
    if isinstance(samples, Mapping):
        check_by_view("samples", samples, sources)
    own = {view: _sample_names(view, source, samples) for view, source in sources.items()}
    name_lists = [names for names in own.values() if names is not None]
    if samples is not None and not isinstance(samples, Mapping):
        name_lists.insert(0, labels(samples))
    if not name_lists:
        return _enough(RowNames(_one_length(sources))), dict.fromkeys(sources)
    unnamed = next((view for view, names in own.items() if names is None), None)
    if unnamed is not None:
        others = [view for view, names in own.items() if names is not None]
        raise InputError(
            f"samples of view {unnamed!r}",
            f"{sources[unnamed].shape[0]} rows without names",
            f"names, as {join_names(others, 3)} {'has' if len(others) == 1 else 'have'} them: rows are not "
            "matched by position then",
            f"Give the names of {unnamed!r} as {{samples}}; of a table {{index_col}} names their column.",
            samples=...,
            index_col=...,
        )
    warn_of_names({view: names for view, names in own.items() if names is not None}, sources)
    union = np.asarray(
        list(dict.fromkeys(name for names in name_lists for name in names.tolist())), dtype=str
    )
    where = {name: i for i, name in enumerate(union.tolist())}
    positions: dict[str, NDArray[np.int64] | None] = {}
    for view, names in own.items():
        positions[view] = None
        if names is not None and not np.array_equal(names, union):
            rows = np.full(union.size, -1, np.int64)
            rows[[where[name] for name in names.tolist()]] = np.arange(names.size)
            positions[view] = rows
    return _enough(RowNames(union.size, union)), positions


def _sample_names(view: str, source: Source, samples: Any) -> StrArray | None:
    """Return the names of the rows of one view, or None."""
    names = source.samples
    if isinstance(samples, Mapping) and view in samples:
        names = labels(samples[view])
        check_own_names("samples", view, source.samples, names)
    if names is None:
        if samples is None or isinstance(samples, Mapping):
            return None
        names = labels(samples)
    if names.size != source.shape[0]:
        raise InputError(
            f"samples of view {view!r}",
            f"{names.size} names",
            f"{source.shape[0]}, one for every row",
            "Check the order and number.",
        )
    checks.check_unique(f"sample names of view {view!r}", names)
    checks.warn_of_spelling(f"sample names of view {view!r}", names.tolist())
    return names


def check_own_names(what: str, view: str, own: StrArray | None, names: StrArray) -> None:
    """Refuse names for a view that has names of its own: which of the two are meant is ambiguous."""
    if own is not None and own.size == names.size and not np.array_equal(own, names):
        at = int(np.argmax(own != names))
        raise InputError(
            f"{what} of view {view!r}",
            f"{str(names[at])!r}, where the view has {str(own[at])!r} (number {at + 1})",
            "names for views that bring none",
            f"Leave {what} out; rename or reorder what the view itself has.",
        )


def _one_length(sources: Mapping[str, Source]) -> int:
    sizes = {view: source.shape[0] for view, source in sources.items()}
    if len(set(sizes.values())) > 1:
        columns = {view: source.shape[1] for view, source in sources.items()}
        turned = next((a for a in sizes for b in sizes if sizes[a] != sizes[b] == columns[a]), None)
        hint = "" if turned is None else "If features are in rows, say {transpose}. "
        raise InputError(
            "rows of the views",
            ", ".join(f"{view}: {size}" for view, size in sizes.items()),
            "the same number in every view that has no sample names",
            f"{hint}Give the names of the samples, of a table in its first column (in Python: samples), and "
            "views are matched by them.",
            transpose=[turned],
        )
    return next(iter(sizes.values()))


def number_names(prefix: str, size: int) -> StrArray:
    """Return ``prefix0``, ``prefix1``, ..."""
    return np.char.add(prefix, np.arange(size).astype(f"U{len(str(size))}"))


def _enough(names: RowNames) -> RowNames:
    if names.n_rows < 1:
        raise InputError("samples", 0, "at least 1; 2 for a fit", "A factor model needs several samples.")
    return names


def check_by_view(what: str, values: Any, sources: Mapping[str, Source]) -> None:
    """Refuse an argument that is not a mapping by view, or names a view that does not exist."""
    available = ", ".join(sources)
    if not isinstance(values, Mapping):
        raise InputError(what, values, "a mapping by view", f"The views are {available}.")
    unknown = [str(view) for view in values if view not in sources]
    if unknown:
        raise InputError(what, ", ".join(unknown), f"views among {available}", "Check the names.")
