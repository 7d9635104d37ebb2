"""Quality of samples and variability of features, from one pass over the counts of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.store.column_types import text_columns
from factorflow.data.store.sparse import SparseView
from factorflow.errors import InputError
from factorflow.kernels.sparse_rows import ABSENT

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.data.store.layout import ViewEntry

SCORES = ("excess_variance", "deviance")
"""What features are ranked by."""


@dataclass(frozen=True)
class Entries:
    """The counts of a block that are not zero.

    Parameters
    ----------
    start, n_rows : int
        Its first row, and how many there are (B).
    rows, columns, values : (M,) arrays
        Row within the block, feature, and count of each.
    missing : (B, D) bool array or None
        Where entries are missing; None: nowhere.
    absent : (B,) bool array
        Rows that the view lacks.
    """

    start: int
    n_rows: int
    rows: NDArray[np.intp]
    columns: NDArray[Any]
    values: NDArray[np.float64]
    missing: NDArray[np.bool_] | None
    absent: NDArray[np.bool_]


def quality(dataset: Any, sets: Mapping[str, str | Sequence[str]] | None) -> pd.DataFrame:
    """Return measures of quality of each sample; see `StoredViews.qc`."""
    import pandas as pd

    views = [entry for entry in dataset.manifest.views if entry.kind.by_size]
    if not views:
        expected = "a dataset with a view of counts"
        raise InputError("dataset", str(dataset.path), expected, "Write it with likelihoods of counts.")
    members = {entry.name: _members(dataset, entry.name, sets or {}) for entry in views}
    _check_sets(members, sets or {}, views)
    columns: dict[str, NDArray[Any]] = {}
    for entry in views:
        measures = _of_samples(dataset, entry, members[entry.name])
        columns |= {f"{entry.name}_{name}": values for name, values in measures.items()}
    return pd.DataFrame(columns, index=pd.Index(dataset.obs_names, name="obs"))


def variability(dataset: Any, view: str, n: int, batch: str | None, by: str) -> pd.DataFrame:
    """Return the variability of each feature of a view of counts; see `StoredViews.highly_variable`."""
    import pandas as pd

    entry = next((entry for entry in dataset.manifest.views if entry.name == view), None)
    if entry is None or not entry.kind.by_size:
        names = [entry.name for entry in dataset.manifest.views if entry.kind.by_size]
        expected = f"a view of counts ({', '.join(names) or 'there is none'})"
        raise InputError("view", view, expected, "Name one of them.")
    if by not in SCORES:
        raise InputError("by", by, f"one of {', '.join(SCORES)}", "Correct the name.")
    if n < 1:
        raise InputError("n", n, "an integer >= 1", "Say how many features are to be marked.")
    codes = np.zeros(dataset.n_rows, np.intp)
    if batch is not None:
        codes = pd.factorize(dataset.obs_columns([batch])[batch], use_na_sentinel=False)[0]
    table = pd.DataFrame(_of_features(dataset, entry, codes), index=pd.Index(dataset.features(view)))
    order = np.argsort(-table[by].fillna(-np.inf).to_numpy(), kind="stable")
    rank = np.empty(len(table), np.int64)
    rank[order] = np.arange(1, len(table) + 1)
    table["rank"] = rank
    table["highly_variable"] = table["rank"] <= n
    return table.rename_axis("feature")


def _entries(dataset: Any, entry: ViewEntry) -> Iterator[Entries]:
    """Yield the counts of a view, block by block."""
    view = dataset.opened_view(entry.name)
    for number in range(dataset.n_blocks):
        start = number * dataset.block_rows
        if isinstance(view, SparseView):
            block = view.rows(number)
            absent = block.row_nnz == ABSENT
            n_entries = np.where(absent, 0, block.row_nnz)
            rows = np.repeat(np.arange(absent.size), n_entries)
            missing = None
            if absent.any() or (block.row_pattern is not None and block.row_pattern.any()):
                missing = np.isnan(block.dense(entry.kind))
            values = block.entries.astype(np.float64)
            yield Entries(start, absent.size, rows, block.columns, values, missing, absent)
        else:
            dense = view.block(number)
            missing = np.isnan(dense)
            rows, columns = np.nonzero(~missing & (dense != 0))
            values = dense[rows, columns].astype(np.float64)
            absent = missing.all(axis=1)
            yield Entries(
                start, len(dense), rows, columns, values, missing if missing.any() else None, absent
            )


def _members(
    dataset: Any, view: str, sets: Mapping[str, str | Sequence[str]]
) -> dict[str, NDArray[np.bool_]]:
    """Return which features are in each set, by their names, else by a text column of their metadata.

    A text is what the names begin with.
    """
    names = [dataset.features(view), *text_columns(dataset.feature_metadata(view)).values()]
    members = {}
    for name, group in sets.items():
        inside = [
            np.char.startswith(own, group) if isinstance(group, str) else np.isin(own, list(group))
            for own in names
        ]
        members[name] = next((mask for mask in inside if mask.any()), inside[0])
    return members


def _check_sets(
    members: Mapping[str, Mapping[str, NDArray[np.bool_]]],
    sets: Mapping[str, Any],
    views: Sequence[ViewEntry],
) -> None:
    for name in sets:
        if not any(masks[name].any() for masks in members.values()):
            expected = f"features of {', '.join(entry.name for entry in views)}"
            raise InputError("sets", f"{name}: {sets[name]!r}", expected, "Check the names.")


def _of_samples(
    dataset: Any, entry: ViewEntry, members: Mapping[str, NDArray[np.bool_]]
) -> dict[str, NDArray[Any]]:
    n_rows = dataset.n_rows
    total, n_features = np.zeros(n_rows), np.zeros(n_rows)
    parts = {name: np.zeros(n_rows) for name, inside in members.items() if inside.any()}
    for block in _entries(dataset, entry):
        place = slice(block.start, block.start + block.n_rows)
        total[place] = np.bincount(block.rows, block.values, block.n_rows)
        n_features[place] = np.bincount(block.rows, minlength=block.n_rows)
        for name, part in parts.items():
            inside = members[name][block.columns]
            part[place] = np.bincount(block.rows[inside], block.values[inside], block.n_rows)
        for values in (total, n_features, *parts.values()):
            values[place][block.absent] = np.nan
    with np.errstate(invalid="ignore"):
        shares = {f"pct_{name}": 100.0 * part / total for name, part in parts.items()}
    return {"total_counts": total, "n_features": n_features, **shares}


def _of_features(dataset: Any, entry: ViewEntry, batch: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
    """Return the moments of counts over totals within batches, and what exceeds those of Poisson counts."""
    shape = int(batch.max()) + 1, entry.n_features
    sums = {name: np.zeros(shape) for name in ("n", "c", "x", "xx", "clog", "inverse", "size")}
    grand, n_cells = 0.0, 0
    for block in _entries(dataset, entry):
        total = np.bincount(block.rows, block.values, block.n_rows)
        some = total > 0
        grand, n_cells = grand + float(total.sum()), n_cells + int(some.sum())
        inverse = np.divide(1.0, total, out=np.zeros_like(total), where=some)
        own = batch[block.start : block.start + block.n_rows]
        place = own[block.rows] * shape[1] + block.columns.astype(np.intp)
        x = block.values * inverse[block.rows]

        def add(name: str, weights: NDArray[np.float64], place: NDArray[np.intp] = place) -> None:
            sums[name] += np.bincount(place, weights, shape[0] * shape[1]).reshape(shape)

        add("c", block.values)
        add("x", x)
        add("xx", x**2)
        add("clog", block.values * np.log(x))
        observed = some[:, None] if block.missing is None else some[:, None] & ~block.missing
        for number in np.unique(own):
            rows = own == number
            counted = np.broadcast_to(observed[rows], (int(rows.sum()), shape[1]))
            sums["n"][number] += counted.sum(axis=0)
            sums["inverse"][number] += inverse[rows] @ counted
            sums["size"][number] += total[rows] @ counted
    return _scores(sums, grand / max(1, n_cells))


def _scores(sums: Mapping[str, NDArray[np.float64]], size: float) -> dict[str, NDArray[Any]]:
    """Return the scores of features; totals are in units of their mean, ``size``."""
    n, c = sums["n"], sums["c"]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean, square = size * sums["x"] / n, size**2 * sums["xx"] / n
        noise = mean * (size * sums["inverse"] / n)
        variance = np.maximum(square - mean**2, 0.0)
        weights = n / n.sum(axis=0)
        expected = np.where(c > 0, c * np.log(c / sums["size"]), 0.0)
    within = {"mean": mean, "variance": variance, "excess_variance": variance - noise}
    totals = {name: np.nansum(weights * values, axis=0) for name, values in within.items()}
    nothing = n.sum(axis=0) == 0
    totals["deviance"] = 2.0 * np.maximum((sums["clog"] - expected).sum(axis=0), 0.0)
    return {name: np.where(nothing, np.nan, values) for name, values in totals.items()}
