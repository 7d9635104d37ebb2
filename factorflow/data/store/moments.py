"""Statistics of a view gathered while it is written: moments per feature and the kind of its values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.store.extremes import Extremes

if TYPE_CHECKING:
    from factorflow.kernels.sparse_rows import SparseRows

FloatArray = NDArray[np.float64]

MOST_ROUNDED = 1e-3
"""Standard deviation of the rounding errors of single precision, in those of the feature, that is borne."""

FAR_FROM_ZERO = 1e4
"""Mean of a feature, in standard deviations, beyond which sums of squares about 0 lose too many digits."""

MOST_PATTERNS = 64
"""Sets of features that are missing together, at most, in a view that is stored sparse: about one a file."""

NO_SPREAD = 1e-14
"""Standard deviation of a constant feature, in units of its size: rounding errors of double precision."""


class Survey:
    """Accumulates the blocks of one view, in block order, in float64.

    The moments of two runs of rows are merged by the pairwise formula (Chan, Golub and LeVeque 1979), block
    by block of the store, so they do not depend on how a source was cut when it was read.

    Parameters
    ----------
    n_features : int
        Columns of the view (D).
    rounding : bool
        Whether it is followed what single precision would round off.
    signed_zeros : bool
        Whether -0.0 counts among the entries of `most_nonzero`: its bits are not all zero.

    Attributes
    ----------
    n_observed : (D,) int64 array
        Observed entries per feature.
    mean, minimum, maximum : (D,) float64 arrays
        Of the observed entries; NaN where there are none.
    n_rows : int
        Rows seen.
    n_absent : int
        Rows without any observed entry.
    scattered : bool
        Whether a row has both observed and missing entries.
    integers : bool
        Whether every value is a whole number.
    extremes : Extremes
        The outermost entries of each feature.
    most_nonzero : int
        Most observed entries other than zero of a block.
    patterns : set of bytes
        Which features are missing in rows that have some and lack some, no more than `MOST_PATTERNS` and one.
    """

    def __init__(self, n_features: int, *, rounding: bool = True, signed_zeros: bool = False) -> None:
        self.rounding, self.signed_zeros = rounding, signed_zeros
        self.n_observed = np.zeros(n_features, np.int64)
        self.mean = np.zeros(n_features)
        self.minimum = np.full(n_features, np.inf)
        self.maximum = np.full(n_features, -np.inf)
        self._squares = np.zeros(n_features)
        self.n_rows = 0
        self.n_absent = 0
        self.scattered = False
        self.integers = True
        self.extremes = Extremes(n_features)
        self.n_nonzero_by_feature = np.zeros(n_features, np.int64)
        self.most_nonzero = 0
        self.patterns = set[bytes]()
        self._rounded = np.zeros(n_features)
        self._least_error, self._largest_error = np.full(n_features, np.inf), np.full(n_features, -np.inf)

    @property
    def n_nonzero(self) -> int:
        """Observed entries other than zero."""
        return int(self.n_nonzero_by_feature.sum())

    @property
    def variance(self) -> FloatArray:
        """Mean squared deviation from the mean, (D,); NaN without observed entries."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.n_observed > 0, self._squares / self.n_observed, np.nan)

    @property
    def n_missing(self) -> int:
        """Missing entries."""
        return int(self.n_rows * self.n_observed.size - self.n_observed.sum())

    @property
    def missing(self) -> str:
        """Which entries are: "none", "samples" (whole rows only) or "scattered"."""
        return "scattered" if self.scattered else "samples" if self.n_absent else "none"

    @property
    def n_zero(self) -> int:
        """Observed entries equal to zero."""
        return int(self.n_observed.sum()) - self.n_nonzero

    @property
    def density(self) -> float:
        """Share of the observed entries that are not zero."""
        return self.n_nonzero / max(1, int(self.n_observed.sum()))

    def update(self, values: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Add one block.

        Parameters
        ----------
        values : (B, D) float array
            NaN where an entry is missing.

        Returns
        -------
        (B, D) bool array or None
            Where entries are missing; None when nothing is.
        """
        self.note_rounding(values)
        low, high = values.min(axis=0), values.max(axis=0)
        missing: NDArray[np.bool_] | None = None
        if np.isnan(low).any():
            missing = np.isnan(values)
            per_row = missing.sum(axis=1)
            self.n_absent += int((per_row == values.shape[1]).sum())
            self._note_patterns(missing[(per_row > 0) & (per_row < values.shape[1])])
            count = values.shape[0] - missing.sum(axis=0)
            low = np.where(missing, np.inf, values).min(axis=0)
            high = np.where(missing, -np.inf, values).max(axis=0)
        else:
            count = np.full(values.shape[1], values.shape[0], np.int64)
        self.extremes.update(lambda columns: values[:, columns], low, high, self.n_rows)
        self.n_rows += values.shape[0]
        self.minimum = np.minimum(self.minimum, low)
        self.maximum = np.maximum(self.maximum, high)
        if np.isfinite(low[count > 0]).all() and np.isfinite(high[count > 0]).all():
            self._add(values, missing, count)
        self._kind(values, missing)
        return missing

    def update_by_entries(self, rows: SparseRows) -> None:
        """Add one block by its entries that are not zero.

        Moments are those of `update`, but for the order of additions.

        Parameters
        ----------
        rows : SparseRows
            Its rows, without entries that are missing one by one; -0.0 may be listed, 0 is not.
        """
        n_features, count = rows.n_features, rows.n_observed().astype(np.int64)
        self.n_absent += int(rows.absent.sum())
        for _, features in rows.lacking():
            self._note_patterns(np.isin(np.arange(n_features), features)[None])
        columns, values = rows.columns, rows.entries.astype(np.float64)
        self.note_rounding_by_entries(rows)
        low, high = _ranges(rows)
        self.extremes.update(lambda some: rows.select(some).to_array(np.nan), low, high, self.n_rows)
        self.n_rows += len(rows)
        self.minimum = np.minimum(self.minimum, low)
        self.maximum = np.maximum(self.maximum, high)
        mean = np.bincount(columns, values, n_features) / np.maximum(count, 1)
        n_zero = count - np.bincount(columns, minlength=n_features).astype(np.float64)
        squares = np.bincount(columns, (values - mean[columns]) ** 2, n_features).astype(np.float64)
        squares = squares + n_zero * mean**2
        self._merge(mean, squares, count)
        self.integers = self.integers and bool(np.all(np.floor(values) == values))
        nonzero = np.bincount(columns[values != 0], minlength=n_features)
        self.n_nonzero_by_feature += nonzero
        self.most_nonzero = max(self.most_nonzero, columns.size if self.signed_zeros else int(nonzero.sum()))

    def note_rounding_by_entries(self, rows: SparseRows) -> None:
        """Add up the squares of what single precision would round off rows, as `note_rounding`."""
        if self.rounding and rows.dtype == np.float64:
            error = rows.entries - rows.entries.astype(np.float32)
            low, high = _ranges(replace(rows, entries=error))
            self._least_error = np.fmin(self._least_error, low)
            self._largest_error = np.fmax(self._largest_error, high)
            self._rounded += np.bincount(rows.columns, error**2, rows.n_features)

    def note_rounding(self, values: NDArray[Any]) -> None:
        """Add up the squares of what single precision would round off a block (B, D)."""
        if self.rounding and values.dtype == np.float64:
            with np.errstate(over="ignore", invalid="ignore"):
                error = values - values.astype(np.float32)
            self._least_error = np.fmin(self._least_error, np.fmin.reduce(error))
            self._largest_error = np.fmax(self._largest_error, np.fmax.reduce(error))
            error = np.nan_to_num(error, copy=False, posinf=0.0, neginf=0.0)
            self._rounded += np.einsum("nd,nd->d", error, error)

    @property
    def needs_double(self) -> bool:
        """Whether single precision would round off too much of some feature."""
        with np.errstate(invalid="ignore"):
            size = np.maximum(np.abs(self.minimum), np.abs(self.maximum))
            varies = self.variance > (NO_SPREAD * size) ** 2
            varies |= self._largest_error - self._least_error > NO_SPREAD * size  # of rounded values it is 0
            return bool((varies & (self._rounded > MOST_ROUNDED**2 * self._squares)).any())

    @property
    def location(self) -> tuple[float, ...]:
        """Means of features far from 0, 0 of the others; empty where there are none (`ViewMeta.location`)."""
        with np.errstate(invalid="ignore"):
            size, spread = np.abs(self.mean), np.sqrt(self.variance)
            far = (size > FAR_FROM_ZERO * spread) & (spread > NO_SPREAD * size)
        return tuple(np.where(far, self.mean, 0.0).tolist()) if far.any() else ()

    def _note_patterns(self, missing: NDArray[np.bool_]) -> None:
        """Note which features are missing in rows that have some."""
        self.scattered |= len(missing) > 0
        for row in np.packbits(missing, axis=1) if len(self.patterns) <= MOST_PATTERNS else ():
            self.patterns.add(row.tobytes())
            if len(self.patterns) > MOST_PATTERNS:
                return

    def _add(self, values: Any, missing: Any, count: NDArray[np.int64]) -> None:
        centred = values.astype(np.float64)
        if missing is not None:
            centred[missing] = 0.0
        some = np.maximum(count, 1)
        mean = centred.sum(axis=0) / some
        centred -= mean
        if missing is not None:
            centred[missing] = 0.0
        self._merge(mean, np.einsum("nd,nd->d", centred, centred), count)

    def _merge(self, mean: FloatArray, squares: FloatArray, count: NDArray[Any]) -> None:
        """Merge the means and squared deviations (D,) of so many observed entries with those before."""
        total = self.n_observed + count
        share = count / np.maximum(total, 1)
        delta = mean - self.mean
        self.mean += np.where(count > 0, delta * share, 0.0)
        self._squares += squares + np.where(count > 0, delta**2 * self.n_observed * share, 0.0)
        self.n_observed = total

    def _kind(self, values: Any, missing: Any) -> None:
        if self.integers:
            self.integers = bool(np.all((np.floor(values) == values) | np.isnan(values)))
        nonzero = np.count_nonzero(values, axis=0)
        if missing is not None:
            nonzero -= missing.sum(axis=0)
        self.n_nonzero_by_feature += nonzero
        stored = int(nonzero.sum())
        if self.signed_zeros:
            stored += int(np.count_nonzero(np.signbit(values) & (values == 0)))
        self.most_nonzero = max(self.most_nonzero, stored)

    def alone(self) -> list[tuple[int, int, float, float, float]]:
        """Return (row, feature, value, low, high) of single entries far from all others of their feature."""
        return self.extremes.alone(self.n_observed, self.n_observed - self.n_nonzero_by_feature)

    def finish(self, halved: bool = False) -> dict[str, NDArray[Any]]:
        """Return the arrays (D,) that are stored beside the values.

        With ``halved`` they are those of (value + 1) / 2: binary values given as -1/+1 are stored as 0/1.
        """
        some = self.n_observed > 0
        shift, scale = (1.0, 0.5) if halved else (0.0, 1.0)
        located = {"mean": self.mean, "min": self.minimum, "max": self.maximum}
        return {
            "n_observed": self.n_observed,
            "variance": self.variance * scale**2,
            **{name: np.where(some, (array + shift) * scale, np.nan) for name, array in located.items()},
        }


def _ranges(rows: SparseRows) -> tuple[FloatArray, FloatArray]:
    """Return the smallest and the largest observed value of each feature, zeros that are not listed too."""
    by_feature = rows.to_csr().tocsc()
    listed = np.diff(by_feature.indptr)
    some = np.flatnonzero(listed)
    low, high = np.full(rows.n_features, np.inf), np.full(rows.n_features, -np.inf)
    if some.size:
        low[some] = np.minimum.reduceat(by_feature.data, by_feature.indptr[some])
        high[some] = np.maximum.reduceat(by_feature.data, by_feature.indptr[some])
    has_zeros = listed < rows.n_observed()
    low[has_zeros], high[has_zeros] = np.minimum(low[has_zeros], 0), np.maximum(high[has_zeros], 0)
    return low, high


class LevelCounts:
    """Accumulates the codes of a categorical view: how many samples every level has.

    Parameters
    ----------
    n_levels : int
        Levels of the variable (D).

    Attributes
    ----------
    n_observed : (D,) int64 array
        Samples of each level.
    n_rows, n_absent : int
        Rows seen, and those of them without a level.
    """

    def __init__(self, n_levels: int) -> None:
        self.n_observed = np.zeros(n_levels, np.int64)
        self.n_rows = 0
        self.n_absent = 0

    @property
    def n_missing(self) -> int:
        """Missing entries: a row has one."""
        return self.n_absent

    @property
    def missing(self) -> str:
        """Which entries are: "none" or "samples"."""
        return "samples" if self.n_absent else "none"

    def update(self, codes: NDArray[np.int32]) -> NDArray[np.bool_] | None:
        """Add one block of codes (B,); return where they are missing, None when nothing is."""
        counts = np.bincount(codes + 1, minlength=self.n_observed.size + 1)
        self.n_observed += counts[1:]
        self.n_rows += codes.size
        self.n_absent += int(counts[0])
        return codes < 0 if counts[0] else None

    def finish(self) -> dict[str, NDArray[Any]]:
        """Return the arrays (D,) that are stored beside the codes."""
        return {"n_observed": self.n_observed}
