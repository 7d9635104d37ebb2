"""Settings of a run of Poisson factors: views, size factors, batches, from options and data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from factorflow.core.block import SIZES
from factorflow.core.covariates import COVARIATES, Covariates
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.models.contract import Array, Block


@dataclass(frozen=True)
class ViewSettings:
    """A view of counts.

    Parameters
    ----------
    n_features : int
        Features that the model is fitted to (D).
    gaps : bool
        Whether entries may be missing in rows that have others.
    size_factors : str
        "none", "total", "median", or a column of the sample metadata.
    chosen : tuple of int or None
        Positions of the features; None: all of the view.
    """

    name: str
    n_features: int
    gaps: bool
    size_factors: str
    chosen: tuple[int, ...] | None = field(default=None, repr=False)
    n_all: int = 0

    def rows(self, block: Block) -> SparseRows:
        """Return the counts of a block, of the features that the model is fitted to."""
        rows: SparseRows = block.data[self.name]
        if self.chosen is None:
            return rows
        theirs = np.asarray(self.chosen)
        return block.once(
            ("chosen", self.name, self.chosen[0]),
            (theirs,),
            lambda: rows.reindex(np.arange(theirs.size), theirs, theirs.size),
        )

    def others(self) -> ViewSettings | None:
        """Return the view with the features that the model is not fitted to; None: there are none."""
        if self.chosen is None:
            return None
        left = np.setdiff1d(np.arange(self.n_all), self.chosen)
        return replace(self, n_features=left.size, chosen=tuple(left.tolist()))

    def join(self, chosen: Array, others: Array | None, axis: int = 0) -> Array:
        """Return values of fitted and other features in the order of the view; 0 where there are none."""
        if self.chosen is None:
            return chosen
        shape = list(chosen.shape)
        shape[axis] = self.n_all
        out = np.zeros(shape, chosen.dtype)
        places: list[Any] = [slice(None)] * axis
        out[(*places, np.asarray(self.chosen))] = chosen
        if others is not None:
            left = self.others()
            assert left is not None
            out[(*places, np.asarray(left.chosen))] = others
        return out


@dataclass(frozen=True)
class Settings:
    """Choices of a run.

    Parameters
    ----------
    views : tuple of ViewSettings
        The views that are explained.
    n_factors : int
        Programs (K).
    batch : str or None
        Column of the sample metadata with the batches.
    covariates : Covariates or None
        How columns of the sample metadata reach a block.
    drop : float
        Programs with a smaller share of the counts are left out of the results.
    """

    views: tuple[ViewSettings, ...]
    n_factors: int
    batch: str | None = None
    covariates: Covariates | None = field(default=None, repr=False)
    n_starts: int = 1
    drop: float = 0.0
    size_columns: tuple[str, ...] = ()

    def others(self) -> Settings:
        """Return the settings of the features that the model is not fitted to, of views that have such."""
        return replace(self, views=tuple(left for view in self.views if (left := view.others()) is not None))

    @property
    def batches(self) -> tuple[str, ...]:
        """Names of the batches."""
        if self.batch is None or self.covariates is None:
            return ()
        return next(c.levels for c in self.covariates.columns if c.name == self.batch)

    @property
    def n_codes(self) -> int:
        """Batches, and one more code for rows whose batch is not known."""
        return len(self.batches) + 1

    def codes(self, block: Block) -> Int64[np.ndarray, " B"]:
        """Return the batch of each row; the number of batches where it is not known."""
        if self.batch is None:
            return np.zeros(block.n_rows, np.int64)
        one = self._column(block, self.batch)
        has_batch = one.max(axis=1) > 1.0 - 1e-9
        return np.where(has_batch, one.argmax(axis=1), len(self.batches))

    def sizes(self, block: Block, name: str) -> Float64[np.ndarray, " B"]:
        """Return a column of size factors."""
        return np.asarray(block.columns[SIZES])[:, self.size_columns.index(name)]

    def _column(self, block: Block, name: str) -> Float64[np.ndarray, "B J"]:
        """Return what a column is coded as, before it was centred."""
        assert self.covariates is not None
        place = self.covariates.names.index(name)
        mine = self.covariates.groups == place
        values = np.asarray(block.columns[COVARIATES])[:, mine]
        return np.asarray(np.nan_to_num(values) + np.asarray(self.covariates.terms[place].means))


def by_view(option: str | Mapping[str, str], name: str, default: str) -> str:
    """Return the value of an option for a view."""
    return option if isinstance(option, str) else option.get(name, default)
