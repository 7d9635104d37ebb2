"""Sums of a sweep of the sampler of sparse group factor analysis: over samples, and over features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from jaxtyping import Float64, Integer

from factorflow.core.trees import replace
from factorflow.models.contract import Array, wide
from factorflow.models.sparse_gfa.loadings import LoadingSums
from factorflow.models.sparse_gfa.sampler.pooled import NoiseSums
from factorflow.models.sparse_gfa.statistics import Stats


@dataclass(frozen=True)
class DrawnSums:
    """Sums over the features of a view, after their draw.

    Parameters
    ----------
    of_loadings : LoadingSums
        What loadings add up for the parameters that they share.
    features, likelihood : float
        Number of features; log-likelihood of Gaussian entries.
    coefficients, coefficient_squares : array
        Sums of b and b^2 of each given column, the intercept first.
    gram, reading, total : array
        Of the loadings w: sum w w', sum b w', sum w.
    noise : NoiseSums or None
        Of the noise precisions of a Gaussian view.
    steps : array or None
        Of a view with Metropolis steps: features whose loadings took one, those that tried to; the same of
        nuisance parameters.
    """

    of_loadings: LoadingSums
    features: float
    likelihood: float
    coefficients: Float64[np.ndarray, " C"]
    coefficient_squares: Float64[np.ndarray, " C"]
    gram: Float64[np.ndarray, "L L"]
    reading: Float64[np.ndarray, "C L"]
    total: Float64[np.ndarray, " L"]
    noise: NoiseSums | None
    steps: Float64[np.ndarray, " four"] | None = None

    @classmethod
    def of(
        cls,
        of_loadings: LoadingSums,
        w: Float64[Array, "D K"],
        b: Float64[Array, "D C"],
        likelihood: float,
        noise: NoiseSums | None,
    ) -> DrawnSums:
        """Return the sums over some features."""
        of_coefficients, products = (b.sum(axis=0), (b**2).sum(axis=0)), (w.T @ w, b.T @ w, w.sum(axis=0))
        counts = float(len(b)), likelihood
        return cls(of_loadings, *counts, *of_coefficients, *products, noise)

    def with_sizes(self, column: Float64[Array, " sizes"]) -> DrawnSums:
        """Return the sums with products of the loadings of learned size factors, the same of all features."""
        if not len(column):
            return self
        beside = np.outer(self.total, column)
        gram = np.block([[self.gram, beside], [beside.T, self.features * np.outer(column, column)]])
        reading = np.concatenate([self.reading, np.outer(self.coefficients, column)], axis=1)
        return replace(self, gram=gram, reading=reading, total=np.append(self.total, self.features * column))

    def shifted(self, shift: Float64[Array, "C L"]) -> DrawnSums:
        """Return the sums after b -> b - shift w."""
        moved = shift @ self.gram
        squares = self.coefficient_squares - (shift * (2.0 * self.reading - moved)).sum(axis=1)
        totals = self.coefficients - shift @ self.total
        return replace(self, coefficients=totals, coefficient_squares=squares, reading=self.reading - moved)


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
        Sums of a (z - f)' and of a a' by group: a the given columns, f prior means, behind the scores z what
        is learned of size factors. ``rows``, ``number`` and ``second`` are of the same groups, those of the
        prior (`score_prior`), of the same columns, and about f.
    functions : array
        Sums of phi (z, a)', by function of the courses.
    slices : float
        Places that slices of scores tried, of all rows.
    """

    first: Float64[np.ndarray, "G C L"] | None = None
    design: Float64[np.ndarray, "G C C"] | None = None
    functions: Float64[np.ndarray, "M S"] | None = None
    slices: float = 0.0

    @classmethod
    def of(
        cls,
        stats: Stats,
        left: Float64[Array, "B L"],
        design: Float64[Array, "B C"],
        codes: Integer[Array, " B"],
        n_groups: int,
        functions: Float64[Array, "M S"],
        slices: float = 0.0,
    ) -> DrawnStats:
        """Return statistics with the sums of scores, less their prior means, beside them."""
        parts = [(design[codes == g], left[codes == g]) for g in range(n_groups)]
        first, products = (np.stack([a.T @ b for a, b in p]) for p in (parts, [(a, a) for a, _ in parts]))
        rows = np.array([float(len(a)) for a, _ in parts])
        second = np.stack([(z**2).sum(axis=0) for _, z in parts])
        number = np.tile(rows[:, None], (1, left.shape[1]))
        own = {f.name: getattr(stats, f.name) for f in fields(Stats)}
        own |= {"rows": rows, "number": number, "second": second, "precision": 0.0 * number[0]}
        return cls(**own, first=first, design=products, functions=functions, slices=slices)
