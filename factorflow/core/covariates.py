"""Columns of the sample metadata as numbers that a model is given, and how they are coded: `Covariates`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

COVARIATES = "covariates"
"""Name under which they travel with a block, in ``Block.columns``."""

RIDGE = 1e-6
"""Added to variances: the indicators of all levels of a category are singular."""


@dataclass(frozen=True)
class Column:
    """A column of the sample metadata: numbers, or categories.

    Parameters
    ----------
    mean, sd : float
        Of its numbers; (x - mean) / sd is what a model is given.
    levels : tuple of str
        Of categories, each with an indicator of its own; empty: numbers.
    """

    name: str
    mean: float = 0.0
    sd: float = 1.0
    levels: tuple[str, ...] = ()
    digest: str = ""

    @property
    def labels(self) -> list[str]:
        """A label for each number that it becomes."""
        return [f"{self.name}[{level}]" for level in self.levels] if self.levels else [self.name]

    @property
    def units(self) -> NDArray[np.float64]:
        """How much of the column is one of a number that it becomes."""
        return np.full(len(self.labels), self.sd)

    def is_missing(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which values are missing, or of no level."""
        if self.levels:
            return ~np.isin(np.asarray(values, str), self.levels)
        return ~np.isfinite(np.asarray(values, np.float64))

    def encode(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return numbers of variance 1, or indicators, (B, J); NaN where missing, or of no level."""
        if not self.levels:
            scaled = ((np.asarray(values, np.float64) - self.mean) / self.sd)[:, None]
            return np.where(np.isfinite(scaled), scaled, np.nan)
        matches = np.asarray(values, str)[:, None] == np.asarray(self.levels, str)
        return np.where(matches.any(axis=1, keepdims=True), matches.astype(np.float64), np.nan)


@dataclass(frozen=True)
class Term:
    """A column, or the products of several: an interaction.

    Parameters
    ----------
    means : tuple of float
        Means over the samples, which are subtracted.
    """

    columns: tuple[str, ...]
    means: tuple[float, ...] = ()


@dataclass(frozen=True)
class Covariates:
    """What a model is given of each sample: centred numbers, one or several for each term.

    Numbers are scaled to variance 1. Categories have an indicator for every level; shrinkage, not a level of
    reference, tells them apart. What is missing, or of a level that was not there, is 0: the average.

    Parameters
    ----------
    terms : tuple of Term
        What is made of them; the coefficients of a term share a precision.
    second : tuple of float
        Average products of the numbers over the samples, packed.
    incomplete : bool
        Whether some sample lacks some of them. A model may give these a distribution: `given_known`.
    observed : tuple of float
        Share of the samples that have each number, where some lack one.
    """

    columns: tuple[Column, ...]
    terms: tuple[Term, ...]
    second: tuple[float, ...] = ()
    incomplete: bool = field(default=False, repr=False)  # digests, by which runs are known, are of the rest
    observed: tuple[float, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        """Return how many numbers a sample has (P)."""
        return len(self.labels)

    @property
    def sources(self) -> tuple[Column, ...]:
        """The columns, as they are read."""
        return self.columns

    @property
    def labels(self) -> list[str]:
        """Their labels: ``age``, ``batch[A]``, ``age:sex[F]``."""
        return [label for term in self.terms for label in self._interaction_names(term, "labels")]

    @property
    def coords(self) -> dict[str, list[str]]:
        """Labels of what a fit stores by covariate and by term."""
        return {"covariate": self.labels, "term": self.names}

    @property
    def units(self) -> NDArray[np.float64]:
        """How much of a covariate is one of its number: a standard deviation of columns of numbers."""
        parts = [
            np.prod(np.meshgrid(*self._parts(term, "units"), indexing="ij"), axis=0) for term in self.terms
        ]
        return np.concatenate([part.ravel() for part in parts])

    @property
    def groups(self) -> NDArray[np.int64]:
        """The term that each number belongs to."""
        return np.repeat(
            np.arange(len(self.terms)), [len(self._interaction_names(term, "labels")) for term in self.terms]
        )

    @property
    def names(self) -> list[str]:
        """The terms: ``age``, ``batch``, ``age:sex``."""
        return [":".join(term.columns) for term in self.terms]

    @property
    def covariance(self) -> NDArray[np.float64]:
        """Covariance of the numbers over the samples that have them, (P, P)."""
        full, (rows, columns) = np.zeros((len(self), len(self))), np.tril_indices(len(self))
        full[rows, columns] = full[columns, rows] = self.second
        sd = np.sqrt(self.observed or np.ones(len(self)))
        return np.asarray(full / np.outer(sd, sd) + RIDGE * np.eye(len(self)))

    def given_known(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and covariance of numbers of some samples given those that are known, of normal ones.

        Parameters
        ----------
        values : (B, P) array
            As `encode_known` returns them.

        Returns
        -------
        (B, P), (B, P, P) array
            The covariance is 0 of what is known.
        """
        mean, covariance = np.nan_to_num(values), np.zeros((*values.shape, len(self)))
        prior = self.covariance
        patterns, pattern_of = np.unique(np.isnan(values), axis=0, return_inverse=True)
        for number, unknown in enumerate(patterns):
            rows = np.flatnonzero(pattern_of.ravel() == number)
            between = prior[np.ix_(unknown, ~unknown)]
            gain = between @ np.linalg.inv(prior[np.ix_(~unknown, ~unknown)])
            mean[np.ix_(rows, unknown)] = values[np.ix_(rows, ~unknown)] @ gain.T
            left = prior[np.ix_(unknown, unknown)] - gain @ between.T
            covariance[np.ix_(rows, unknown, unknown)] = left
        return mean, covariance

    def encode(self, table: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Return the numbers of some samples.

        Parameters
        ----------
        table : mapping of str to (B,) array
            The columns: numbers, NaN where missing, or text, "" where missing.
        """
        return np.nan_to_num(self.encode_known(table))

    def encode_known(self, table: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Return what `encode` does, NaN where it is not known."""
        coded = {column.name: column.encode(table[column.name]) for column in self.columns}
        parts = []
        for term in self.terms:
            first, *others = (coded[name] for name in term.columns)
            for other in others:
                first = (first[:, :, None] * other[:, None, :]).reshape(len(first), -1)
            parts.append(first - np.asarray(term.means) if term.means else first)
        return np.concatenate(parts, axis=1)

    def with_missing(self, table: Mapping[str, NDArray[Any]]) -> Covariates:
        """Return these with whether a table of all samples, as `encode` takes it, lacks values."""
        missing = (column.is_missing(table[column.name]).any() for column in self.columns)
        return replace(self, incomplete=bool(any(missing)))

    def sample(self, generator: np.random.Generator, n_rows: int) -> NDArray[np.float64]:
        """Return numbers as there may be, (n_rows, P), with the average products of those of the samples."""
        size = len(self)
        products = np.eye(size)
        if self.second:
            products[np.tril_indices(size)] = self.second
        values, vectors = np.linalg.eigh(products)
        root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
        return np.asarray(generator.standard_normal((n_rows, size)) @ root)

    def _parts(self, term: Term, what: str) -> list[Any]:
        columns = {column.name: column for column in self.columns}
        return [getattr(columns[name], what) for name in term.columns]

    def _interaction_names(self, term: Term, what: str) -> list[str]:
        first, *others = self._parts(term, what)
        for other in others:
            first = [f"{a}:{b}" for a in first for b in other]
        return list(first)
