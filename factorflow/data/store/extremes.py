"""Single entries far from all others of their feature: lost decimal points, codes, damaged cells.

The two largest and the two smallest entries of every feature are followed while the blocks of a view pass by.
They do not depend on how the rows are cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

ReadColumns = Callable[[NDArray[np.intp]], NDArray[Any]]

FAR = 300.0
"""An entry so many times as far from the middle of the others as the farthest of them stands alone.

Of features with Cauchy tails one in 150 has such an entry; of log-normal ones (sd of the log 1.5) one in 1e4.
"""

AMONG_ALL = 10.0
"""Where the others of a feature are (mostly) equal, a single large entry may be right (a rare gene, a rare
species): it must exceed the entries of all other features as many times, too."""

LEAST_OTHERS = 9
"""With fewer others their range says little."""


@dataclass(frozen=True)
class Outlier:
    """An outlying entry.

    Parameters
    ----------
    low, high : float
        The others of the feature lie between these.
    """

    sample: str
    feature: str
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        others = f"{self.low:.6g} to {self.high:.6g}" if self.low < self.high else f"{self.low:.6g}"
        return f"{self.value:.10g} of sample {self.sample!r}, feature {self.feature!r} (all others: {others})"


class _End:
    """The largest and the second largest entry of every feature, and the row of the largest."""

    def __init__(self, n_features: int) -> None:
        self.first = np.full(n_features, -np.inf)
        self.second = np.full(n_features, -np.inf)
        self.row = np.full(n_features, -1, np.int64)

    def update(self, columns: ReadColumns, highest: FloatArray, start: int, sign: float) -> None:
        """Add a block of ``sign`` times values whose largest are ``highest`` (-inf where all is missing)."""
        self.second = np.maximum(self.second, np.minimum(self.first, highest))
        new = np.flatnonzero(highest > self.first)
        if not new.size:
            return
        part = sign * columns(new).astype(np.float64)
        part[np.isnan(part)] = -np.inf
        at, each = part.argmax(axis=0), np.arange(new.size)
        self.first[new], self.row[new] = part[at, each], start + at
        part[at, each] = -np.inf
        self.second[new] = np.maximum(self.second[new], part.max(axis=0))


class Extremes:
    """The outermost two entries of every feature, at both ends.

    Parameters
    ----------
    n_features : int
        Columns of the view (D).
    """

    def __init__(self, n_features: int) -> None:
        self._ends = {1.0: _End(n_features), -1.0: _End(n_features)}

    def update(self, columns: ReadColumns, low: FloatArray, high: FloatArray, start: int) -> None:
        """Add a block that begins with row ``start``, given the extremes of its features.

        Parameters
        ----------
        columns : callable
            Returns the values of some features by their positions, (B, J).
        low, high : (D,) array
            Smallest and largest values.
        """
        self._ends[1.0].update(columns, np.asarray(high, np.float64), start, 1.0)
        self._ends[-1.0].update(columns, -np.asarray(low, np.float64), start, -1.0)

    def alone(
        self, n_observed: NDArray[np.int64], n_zero: NDArray[np.int64]
    ) -> list[tuple[int, int, float, float, float]]:
        """Return (row, feature, value, low, high) of single entries far from all others of their feature.

        Parameters
        ----------
        n_observed, n_zero : (D,) int array
            Observed entries of each feature, and those of them that are 0.
        """
        top, bottom = self._ends[1.0], self._ends[-1.0]
        with np.errstate(invalid="ignore"):
            size = np.fmax(np.abs(top.second), np.abs(bottom.second))
        size[~np.isfinite(size)] = 0.0
        isolated = []
        for sign, end, other in ((1.0, top, bottom), (-1.0, bottom, top)):
            with np.errstate(invalid="ignore"):
                half, middle = (end.second + other.first) / 2.0, (end.second - other.first) / 2.0
                distance = end.first - middle
                far = (n_observed > LEAST_OTHERS) & (distance > FAR * half) & (end.first > end.second)
            for feature in np.flatnonzero(far):
                alike = half[feature] == 0.0 or 2 * n_zero[feature] >= n_observed[feature]
                if alike and not distance[feature] > AMONG_ALL * _largest_but(size, int(feature)) > 0.0:
                    continue
                value, near = sign * end.first[feature], sign * end.second[feature]
                low, high = sorted((float(near), float(-sign * other.first[feature])))
                isolated.append((int(end.row[feature]), int(feature), float(value), low, high))
        return sorted(isolated)


def _largest_but(size: FloatArray, feature: int) -> float:
    return float(np.delete(size, feature).max(initial=0.0))
