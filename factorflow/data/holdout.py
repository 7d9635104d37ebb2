"""Entries held out of a fit: chosen by a counter-based generator, so no copy of the data is ever made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from factorflow.errors import InputError

__all__ = ["Holdout"]

HOLDOUT_SITE = 1024
"""Noise site of the first view; that of view ``i`` of the dataset is ``HOLDOUT_SITE + i``."""


@dataclass(frozen=True)
class Holdout:
    """A random part of the observed entries.

    Entry (row, column) of a view is held out when the uniform number of (seed, view, row, column) is below
    ``fraction``: the same entries under any block size, any sharding and any selection of views.

    Parameters
    ----------
    fraction : float
        Share of the entries, in (0, 1).
    seed : int
        Key of the generator, 0 ... 2^64 - 1.

    Raises
    ------
    InputError
        When ``fraction`` does not lie between 0 and 1, or the seed is out of range.
    """

    fraction: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.fraction < 1.0:
            raise InputError(
                "holdout",
                self.fraction,
                "a share between 0 and 1",
                "0.1 hides a tenth of the observed entries.",
            )

        if not 0 <= self.seed < 2**64:
            raise InputError(
                "holdout seed", self.seed, "a whole number from 0 to 2^64 - 1", "Any of them will do."
            )

    def mask(self, view_index: int, start: int, n_rows: int, n_features: int) -> NDArray[np.bool_]:
        """Return where entries are held out, observed or not.

        Parameters
        ----------
        view_index : int
            Position of the view in the dataset.
        start : int
            Global index of the first row.
        n_rows, n_features : int
            Shape of the result (B, D).

        Returns
        -------
        (B, D) bool array
        """
        from factorflow.kernels.compile import compiled
        from factorflow.kernels.scalar.entries import mark_entries

        out = np.empty((n_rows, n_features), np.bool_)
        place = np.uint64(HOLDOUT_SITE + view_index)
        compiled(mark_entries)(np.uint64(self.seed), place, start, self.fraction, out)
        return out
