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
    features, intercepts : float
        Number of features, sum of the intercepts.
    likelihood : float
        Log-likelihood of Gaussian entries.
    coefficient_squares : array
        Sum of b^2 of each given column, the intercept first.
    gram, reading, total : array
        Of the loadings w: sum w w', sum b w', sum w.
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
    likelihood: float
    coefficient_squares: Float64[np.ndarray, " C"]
    gram: Float64[np.ndarray, "K K"]
    reading: Float64[np.ndarray, "C K"]
    total: Float64[np.ndarray, " K"]
    noise: NoiseSums | None
    steps: Float64[np.ndarray, " four"] | None = None

    @classmethod
    def of(
        cls,
        w: Float64[Array, "D K"],
        b: Float64[Array, "D C"],
        likelihood: float,
        noise: NoiseSums | None,
    ) -> DrawnSums:
        """Return the sums over some features."""
        included = (w != 0.0).sum(axis=0).astype(np.float64)
        squares, products = (b**2).sum(axis=0), (w.T @ w, b.T @ w, w.sum(axis=0))
        of_intercepts = float(len(b)), float(b[:, 0].sum())
        return cls(included, (w**2).sum(axis=0), *of_intercepts, likelihood, squares, *products, noise)

    def shifted(self, shift: Float64[Array, "C K"]) -> DrawnSums:
        """Return the sums after b -> b - shift w."""
        moved = shift @ self.gram
        squares = self.coefficient_squares - (shift * (2.0 * self.reading - moved)).sum(axis=1)
        intercepts = self.intercepts - float(shift[0] @ self.total)
        return replace(self, intercepts=intercepts, coefficient_squares=squares, reading=self.reading - moved)


@dataclass(frozen=True)
class TryStats:
    """Log-likelihoods of the features of views with Metropolis steps, at each of their tries."""

    views: Mapping[str, Float64[np.ndarray, "D J"]] = field(metadata=wide())


@dataclass(frozen=True)
class DrawnStats(Stats):
    """Statistics of a block, or of all.

    Parameters
    ----------
    first, design : array
        Sums of a (z - f)' and of a a' by group, a the given columns. ``rows``, ``number`` and ``second`` are
        of the same groups, those of the prior of the scores (`score_prior`), and about its mean f.
    functions : array
        Sums of phi (z, a)', by function of the courses.
    slices : float
        Places that slices of scores tried, of all rows.
    """

    first: Float64[np.ndarray, "G C K"] | None = None
    design: Float64[np.ndarray, "G C C"] | None = None
    functions: Float64[np.ndarray, "M L"] | None = None
    slices: float = 0.0

    @classmethod
    def of(
        cls,
        stats: Stats,
        left: Float64[Array, "B K"],
        design: Float64[Array, "B C"],
        codes: Integer[Array, " B"],
        n_groups: int,
        functions: Float64[Array, "M L"],
        slices: float = 0.0,
    ) -> DrawnStats:
        """Return statistics with the sums of scores, less their prior means, beside them."""
        parts = [(design[codes == g], left[codes == g]) for g in range(n_groups)]
        first, products = (np.stack([a.T @ b for a, b in p]) for p in (parts, [(a, a) for a, _ in parts]))
        rows = np.array([float(len(a)) for a, _ in parts])
        second = np.stack([(z**2).sum(axis=0) for _, z in parts])
        number = np.tile(rows[:, None], (1, left.shape[1]))
        own = {f.name: getattr(stats, f.name) for f in fields(Stats)}
        own |= {"rows": rows, "number": number, "second": second}
        return cls(**own, first=first, design=products, functions=functions, slices=slices)
