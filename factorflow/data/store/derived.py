"""Views that are computed from the counts of another view when a block is read: the layout "derived".

| transform | value of a count c of row n, feature d | largest size | likelihood |
|---|---|---|---|
| log1p | log(1 + target_sum c / t_n) | mean of the feature + max_value sd | gaussian |
| binarize | whether c > 0 | | bernoulli |
| pearson | (c - m) / sqrt(m + m^2 / 100), m = t_n p_d | max_value, sqrt(N) by default | gaussian |

t_n is the total of the row over all features of the other view, p_d the share of the feature in all counts.
Pearson residuals are those of Lause, Berens and Kobak (Genome Biology 2021). Missing entries stay missing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from factorflow.data.store.chunks import DenseView
    from factorflow.data.store.sparse import SparseView
    from factorflow.kernels.sparse_rows import SparseRows

DISPERSION = 100.0
"""Inverse overdispersion of the negative binomial that Pearson residuals are about."""

LIKELIHOODS = {"log1p": "gaussian", "binarize": "bernoulli", "pearson": "gaussian"}
"""Likelihood of the view, by transform."""

OF_FEATURES = "of_features"
"""Array of the view with what the transform needs of each feature."""

COLUMNS = "columns"
"""Array of the view with the positions of its features in the other view."""

COPIES = 3
"""Blocks of counts, and of what is computed of them, that a transform needs at once."""


@dataclass(frozen=True)
class Transform:
    """What is computed of counts.

    Parameters
    ----------
    target_sum : float
        Of log1p: what the counts of a row are scaled to.
    max_value : float or None
        Of pearson: largest size of a value; of log1p: standard deviations above the mean of a feature.
    """

    name: str
    target_sum: float = 1e4
    max_value: float | None = None

    @property
    def kind(self) -> Kind:
        """The kind of the view."""
        return KINDS[LIKELIHOODS[self.name]]

    @property
    def has_zeros(self) -> bool:
        """Whether a count of 0 has the value 0: what the view is can be looked at by its other entries."""
        return self.name != "pearson"

    @property
    def keeps_zeros(self) -> bool:
        """Whether rows are also read by their other entries: of measurements."""
        return self.has_zeros and self.kind.name == "gaussian"

    def apply_by_entries(
        self, counts: SparseRows, totals: NDArray[np.float64], of_features: NDArray[np.float64] | None
    ) -> SparseRows:
        """Return the values of some rows by their entries, where a count of 0 has the value 0: as `apply`."""
        if self.name == "binarize":
            return replace(counts, entries=(counts.entries > 0).astype(np.float32))
        scale = np.divide(self.target_sum, totals, out=np.zeros_like(totals), where=totals > 0)
        values = counts.entries.astype(np.float32)
        values *= np.repeat(scale.astype(np.float32), counts.counts)
        np.log1p(values, out=values)
        if of_features is not None:
            np.minimum(values, of_features.astype(np.float32)[counts.columns], out=values)
        return replace(counts, entries=values)

    def apply(
        self,
        counts: NDArray[np.float32],
        totals: NDArray[np.float64],
        of_features: NDArray[np.float64] | None,
    ) -> NDArray[Any]:
        """Return the values of some rows.

        Parameters
        ----------
        counts : (B, D) float32 array
            As a block of counts has them; is changed.
        totals : (B,) array
            Of the rows, over all features of the view of counts.
        of_features : (D,) array or None
            Of pearson the share of each feature in all counts, of log1p the largest value, if there is one.
        """
        if self.name == "binarize":
            values = (counts > 0).astype(np.int8)
            values[np.isnan(counts)] = self.kind.missing
            return values
        if self.name == "log1p":
            scale = np.divide(self.target_sum, totals, out=np.zeros_like(totals), where=totals > 0)
            counts *= scale.astype(np.float32)[:, None]
            np.log1p(counts, out=counts)
            if of_features is not None:
                np.minimum(counts, of_features.astype(np.float32), out=counts)
            return counts
        assert of_features is not None
        mean = (totals[:, None] * of_features).astype(np.float32)
        counts -= mean
        mean += mean**2 / np.float32(DISPERSION)
        np.divide(counts, np.sqrt(mean, out=mean), out=counts, where=mean > 0)
        most = np.float32(self.max_value)
        return np.clip(counts, -most, most, out=counts)


@dataclass(frozen=True)
class DerivedView:
    """The values of a view that is computed from another, by blocks of rows.

    Parameters
    ----------
    read : callable
        Returns an array of the view by its name, or None: `OF_FEATURES`, what the transform needs of each
        feature, (D,), and `COLUMNS`, which features of the other view are its own, (D,), ascending.
    """

    counts: DenseView | SparseView | DerivedView
    transform: Transform
    read: Callable[[str], NDArray[Any] | None]

    @cached_property
    def _of_features(self) -> NDArray[np.float64] | None:
        return self.read(OF_FEATURES)

    @cached_property
    def columns(self) -> NDArray[np.int32] | None:
        """Which features of the other view are its own; None: all."""
        return self.read(COLUMNS)

    def rows(self, number: int) -> SparseRows:
        """Return the rows of block ``number`` by their entries; the counts are stored so, and zeros kept."""
        rows = cast("SparseView", self.counts).rows(number)
        own = rows if self.columns is None else rows.select(self.columns)
        return self.transform.apply_by_entries(own, rows.totals, self._of_features)

    def block(self, number: int) -> NDArray[Any]:
        """Return block ``number`` as `Block` holds it, (B, D), still writeable."""
        return self._apply(self.counts.block(number))

    def part(self, first: int, last: int) -> NDArray[Any]:
        """Return rows ``first`` to ``last``, (B, D)."""
        return self._apply(self.counts.part(first, last))

    def _apply(self, counts: NDArray[Any]) -> NDArray[Any]:
        totals = np.asarray(np.nansum(counts, axis=1, dtype=np.float64))
        own = counts if self.columns is None else np.ascontiguousarray(counts[:, self.columns])
        return self.transform.apply(own, totals, self._of_features)
