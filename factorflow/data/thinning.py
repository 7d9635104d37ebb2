"""Counts split in two, to hold out a part of each (`holdout_unit="count"`).

Of a count y the fit sees y - r, and r ~ Binomial(y, h) is held out. A Poisson count of rate m is split into
two independent ones of rates (1 - h) m and h m. Parts of other counts with a rate (negative binomial,
zero-inflated) keep their likelihood, but share what is theirs beside the rate: a score of r is optimistic
then, for all models equally. All that a fit learns, size factors among it, is of the counts that it sees: r
has the rate that is predicted for these times h / (1 - h), and y that times 1 / (1 - h). A zero stays a zero,
and rows by their entries stay so.

r comes by inversion from uniforms of (seed, view, row, feature), one for `TRIALS` trials: it does not depend
on blocks, workers or layout. All observed entries are scored, zeros too; of a view with more than
`MOST_SCORED` so many of each row as come to that, evenly spaced from a random start.

References
----------
Neufeld, Gao, Popp, Battle and Witten (2024), Biostatistics 25, 270-287 (count splitting).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.kernels.random import entry_uniform
from factorflow.kernels.sites import HOLDOUT_ENTRIES, HOLDOUT_UNITS
from factorflow.kernels.sparse_rows import SparseRows

if TYPE_CHECKING:
    from factorflow.core.kinds import Kind

Where = tuple[NDArray[np.int32], NDArray[np.int32]]
"""Rows and features of entries."""

MOST_SCORED = 1 << 22
"""Entries of a view that are scored, about; at least one of each row."""

SCORED_SITE = HOLDOUT_UNITS[2]


def split_counts(
    seed: int, fraction: float, view_index: int, start: int, n_rows: int, values: Any, kind: Kind
) -> tuple[Any, Where, NDArray[np.float32]]:
    """Return the counts that a fit sees, and the entries that are scored with what is held out of them.

    Parameters
    ----------
    fraction : float
        Share h that is held out.
    start : int
        Global index of the first row.
    values : (B, D) array or SparseRows
        The counts of a block; an array is changed in place.

    Returns
    -------
    (B, D) array or SparseRows, ((H,) int32 array, (H,) int32 array), (H,) float32 array
        As `Dataset.read` hands them over.
    """
    from factorflow.kernels.compile import compile_scalar
    from factorflow.kernels.scalar.entries import thin_matrix, thin_rows

    where = scored_entries(seed, view_index, start, n_rows, *values.shape)
    key = np.uint64(seed), np.uint64(HOLDOUT_ENTRIES[view_index]), start, fraction
    if isinstance(values, SparseRows):
        entries, rest = np.ascontiguousarray(values.entries), np.empty_like(values.entries)
        compile_scalar(thin_rows)(*key, values.counts, np.ascontiguousarray(values.columns), entries, rest)
        where = _some(where, values.is_observed(*where))
        truth = replace(values, entries=rest).at(*where)
        return replace(values, entries=entries - rest).without_zeros(), where, truth
    where = _some(where, kind.observed(values)[where])
    rest = np.empty_like(values)
    compile_scalar(thin_matrix)(*key, values, rest)
    return values, where, rest[where]


def scored_entries(
    seed: int, view_index: int, start: int, n_rows: int, n_block_rows: int, n_features: int
) -> Where:
    """Return the entries of a block of which the rest is scored, missing ones among them, row by row.

    Parameters
    ----------
    start, n_rows, n_block_rows : int
        Global index of the first row; rows of the dataset, and of the block (B).
    n_features : int
        Features of the view (D).
    """
    of_row = min(n_features, max(1, MOST_SCORED // n_rows))
    places = np.arange(n_features)[None]
    if of_row < n_features:
        first = entry_uniform(seed, SCORED_SITE, np.arange(start, start + n_block_rows), view_index)
        places = (np.arange(of_row) + first[:, None]) * (n_features / of_row)
        places = np.minimum(places.astype(np.int64), n_features - 1)
    columns = np.broadcast_to(places, (n_block_rows, of_row)).reshape(-1)
    return np.repeat(np.arange(n_block_rows, dtype=np.int32), of_row), columns.astype(np.int32)


def _some(where: Where, chosen: NDArray[np.bool_]) -> Where:
    return where if chosen.all() else (where[0][chosen], where[1][chosen])
