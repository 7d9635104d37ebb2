"""Sums of a sweep of the sampler of sparse group factor analysis: over samples, and over features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from jaxtyping import Float64, Integer

from factorflow.models.contract import Array, wide
from factorflow.models.sparse_gfa.sampler.pooled import NoiseSums
from factorflow.models.sparse_gfa.statistics import Stats
from factorflow.trees import replace

__all__ = ["DrawnStats", "DrawnSums", "TryStats"]


@dataclass(frozen=True)
class DrawnSums:
    """Sums over the features of a view, after their draw.

    Parameters
    ----------
    included, squares : array
        Loadings that are not 0, and the sum of their squares, of each factor.
    features, intercepts, intercept_squares : float
        Number of features, sum of b and of b^2.
    likelihood : float
        Log-likelihood of Gaussian entries.
    gram, reading, total : array
        Of the loadings w: sum w w', sum b w, sum w.
    noise : NoiseSums or None
        Of the noise precisions of a Gaussian view.
    steps : array or None
        Of a view with Metropolis steps: features whose loadings took one, those that tried to; the same of
        nuisance parameters.
    """

    included: Float64[np.ndarray, " K"]
    squares: Float64[np.ndarray, " K"]
    features: float
    intercepts: float
    intercept_squares: float
    likelihood: float
    gram: Float64[np.ndarray, "K K"]
    reading: Float64[np.ndarray, " K"]
    total: Float64[np.ndarray, " K"]
    noise: NoiseSums | None
    steps: Float64[np.ndarray, " four"] | None = None

    @classmethod
    def of(
        cls,
        w: Float64[Array, "D K"],
        b: Float64[Array, " D"],
        likelihood: float,
        noise: NoiseSums | None,
    ) -> DrawnSums:
        """Return the sums over some features."""
        included = (w != 0.0).sum(axis=0).astype(np.float64)
        of_intercepts = float(len(b)), float(b.sum()), float((b**2).sum())
        products = w.T @ w, b @ w, w.sum(axis=0)
        return cls(included, (w**2).sum(axis=0), *of_intercepts, likelihood, *products, noise)

    def shifted(self, shift: Float64[Array, " K"]) -> DrawnSums:
        """Return the sums after b -> b - w'shift."""
        squares = self.intercept_squares - 2.0 * shift @ self.reading + shift @ self.gram @ shift
        reading = self.reading - self.gram @ shift
        intercepts = self.intercepts - float(shift @ self.total)
        return replace(self, intercepts=intercepts, intercept_squares=float(squares), reading=reading)


@dataclass(frozen=True)
class TryStats:
    """Log-likelihoods of the features of views with Metropolis steps, at each of their tries."""

    views: Mapping[str, Float64[np.ndarray, "D J"]] = field(metadata=wide())


@dataclass(frozen=True)
class DrawnStats(Stats):
    """Statistics of a block, or of all.

    Parameters
    ----------
    first : array
        Sum of z by group.
    slices : float
        Places that slices of scores tried, of all rows.
    """

    first: Float64[np.ndarray, "G K"] | None = None
    slices: float = 0.0

    @classmethod
    def of(
        cls,
        stats: Stats,
        values: Float64[Array, "B K"],
        codes: Integer[Array, " B"],
        n_groups: int,
        slices: float = 0.0,
    ) -> DrawnStats:
        """Return statistics with the sums of scores beside them."""
        first = np.stack([values[codes == g].sum(axis=0) for g in range(n_groups)])
        return cls(**{f.name: getattr(stats, f.name) for f in fields(Stats)}, first=first, slices=slices)
