"""Courses that are linear in covariates, and sums of courses: smooth ones, random intercepts, covariates.

`Linear`: f(n) = g_n'c with one variance for the coefficients of each term, g the covariates as they are
coded. `Sum`: f = f_1 + f_2 + ..., independent courses of one factor, with a variance each. "Length scales" of
these are standard deviations, of terms and of parts; a common factor of all of them has no effect, since T is
scaled (`basis`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy.linalg import block_diag

from factorflow.core.covariates import Covariates
from factorflow.kernels.linalg import unpack
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.smooth.basis import (
    At,
    Basis,
    Codes,
    Covariance,
    Lengths,
    PlacesBasis,
    Rows,
    Second,
    Sharing,
)

LEAST_SD = 0.03
"""Least standard deviation of a term, or of a part, beside the largest: a thousandth of its variance."""


@dataclass(frozen=True)
class Linear(Basis):
    """The covariates of the scores themselves.

    Parameters
    ----------
    covariates : Covariates
        How they are coded.
    """

    covariates: Covariates

    @property
    def labels(self) -> list[str]:
        """Names of the terms."""
        return list(self.covariates.names)

    @property
    def part_names(self) -> list[str]:
        """Names of the parts that a course is a sum of."""
        return ["covariates"]

    @property
    def width(self) -> int:
        """Numbers that functions are read from, of each row (p)."""
        return len(self.covariates)

    @property
    def size(self) -> int:
        """Number of functions (M)."""
        return len(self.covariates)

    @property
    def shortest(self) -> Float64[Array, " R"]:
        """Least standard deviation of the coefficients of each term."""
        n_terms = len(self.covariates.terms)
        return np.full(n_terms, LEAST_SD if n_terms > 1 else 1.0)

    @property
    def longest(self) -> Float64[Array, " R"]:
        """Largest one."""
        return np.ones(len(self.covariates.terms))

    def covariance(self, lengths: Lengths, sharing: Sharing) -> Covariance:
        """Return the diagonal of T before it is scaled, and its slopes."""
        groups = self.covariates.groups
        each = (lengths**2 / np.bincount(groups))[groups]
        return each, [2.0 * each * (groups == r) for r in range(len(lengths))] + [0.0 * each]

    def functions(self, places: Rows, codes: Codes) -> Float64[Array, "B M"]:
        """Return the covariates of rows."""
        return places

    def at(
        self, places: Rows, codes: Codes, lengths: Lengths, sharing: Sharing, centre: Float64[Array, " M"]
    ) -> At:
        """Return the covariates of any rows, 0 where one is not known; they are the whole course."""
        is_known = np.isfinite(places)
        unknown = ~is_known @ (self._average_squares * self.covariance(lengths, sharing)[0])
        return np.where(is_known, places - centre, 0.0), np.zeros(len(places)), unknown

    def effects(self) -> Float64[Array, "M M"]:
        """Return what gives the effect of a number, or of a level against the average, of coefficients.

        Indicators of all levels are centred: the average coefficient of a category has no effect.
        """
        matrix, groups = np.eye(self.size), self.covariates.groups
        columns = {column.name: column for column in self.covariates.columns}
        for number, term in enumerate(self.covariates.terms):
            if len(term.columns) == 1 and columns[term.columns[0]].levels:
                own = np.flatnonzero(groups == number)
                matrix[np.ix_(own, own)] -= np.asarray(term.means)
        return matrix

    def inside(self, places: Rows) -> Any:
        """Return which rows have known covariates."""
        return np.isfinite(places).any(axis=1)

    def variance(self, lengths: Lengths) -> float:
        """Return the variance of a course at a row of which nothing is known, T not scaled."""
        return float(self._average_squares @ self.covariance(lengths, np.zeros(1))[0])

    @property
    def _average_squares(self) -> Float64[Array, " M"]:
        return np.diag(unpack(np.asarray(self.covariates.second), self.size))


@dataclass(frozen=True)
class Sum(Basis):
    """Courses that are sums of several.

    Parameters
    ----------
    parts : tuple of Basis
        Smooth ones first. Only these may have groups.
    """

    parts: tuple[Basis, ...]

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that may have courses of their own; empty: all have one."""
        return self.parts[0].groups

    @property
    def labels(self) -> list[str]:
        """Names of the length scales, and of the standard deviations of the parts."""
        return [name for part in self.parts for name in part.labels] + [f"sd_{n}" for n in self.part_names]

    @property
    def part_names(self) -> list[str]:
        """Names of the parts that a course is a sum of."""
        return [name for part in self.parts for name in part.part_names]

    @property
    def width(self) -> int:
        """Numbers that functions are read from, of each row (p)."""
        return sum(part.width for part in self.parts)

    @property
    def size(self) -> int:
        """Number of functions (M)."""
        return sum(part.size for part in self.parts)

    @property
    def shortest(self) -> Float64[Array, " R"]:
        """Shortest length scales, and least standard deviation of each part."""
        return np.concatenate([*(part.shortest for part in self.parts), np.full(len(self.parts), LEAST_SD)])

    @property
    def longest(self) -> Float64[Array, " R"]:
        """Longest length scales, and largest standard deviation of each part."""
        return np.concatenate([*(part.longest for part in self.parts), np.ones(len(self.parts))])

    @property
    def n_parameters(self) -> int:
        """Parameters of a course: those of its parts."""
        return sum(part.n_parameters for part in self.parts)

    def part_slices(self) -> list[tuple[Basis, slice, slice]]:
        """Return each part, with its columns of the places and its functions."""
        slices, column, function = [], 0, 0
        for part in self.parts:
            slices.append((part, slice(column, column + part.width), slice(function, function + part.size)))
            column, function = column + part.width, function + part.size
        return slices

    def covariance(self, lengths: Lengths, sharing: Sharing) -> Covariance:
        """Return T before it is scaled, and its slopes."""
        blocks, by_length, by_sd = [], [], []
        by_sharing = [np.zeros((self.size, self.size)) for _ in range(self.n_groups)]
        for (part, _, own), mine, shared, sd in self._with_parameters(lengths, sharing):
            value, slopes = part.covariance(mine, shared)
            block, *others = (sd**2 * (one if one.ndim == 2 else np.diag(one)) for one in (value, *slopes))
            blocks.append(block)
            by_length += [self._whole(one, own) for one in others[: len(mine)]]
            by_sd.append(self._whole(2.0 * block, own))
            if part.n_groups > 1:
                by_sharing = [self._whole(one, own) for one in others[len(mine) :]]
        return block_diag(*blocks), [*by_length, *by_sd, *by_sharing]

    def functions(self, places: Rows, codes: Codes) -> Float64[Array, "B M"]:
        """Return functions of rows of the fit, not centred."""
        none = np.zeros_like(codes)
        return np.concatenate(
            [
                part.functions(places[:, columns], codes if part.n_groups > 1 else none)
                for part, columns, _ in self.part_slices()
            ],
            axis=1,
        )

    def at(
        self, places: Rows, codes: Codes, lengths: Lengths, sharing: Sharing, centre: Float64[Array, " M"]
    ) -> At:
        """Return functions at any places, centred; 0 for parts that are unknown for a row."""
        functions = np.zeros((len(places), self.size))
        beside, unknown = np.zeros(len(places)), np.zeros(len(places))
        for (part, columns, own), mine, shared, sd in self._with_parameters(lengths, sharing):
            known_rows = np.asarray(part.inside(places[:, columns]))
            rows = places[known_rows][:, columns]
            groups = codes[known_rows] if part.n_groups > 1 else np.zeros(len(rows), np.int64)
            values, around, lacking = part.at(rows, groups, mine, shared, centre[own])
            functions[known_rows, own] = values
            beside[known_rows] += sd**2 * around
            unknown[known_rows] += sd**2 * lacking
            unknown[~known_rows] += sd**2 * part.variance(mine)
        return functions, beside, unknown

    def inside(self, places: Rows) -> Any:
        """Return which rows have a known part."""
        return np.any([part.inside(places[:, columns]) for part, columns, _ in self.part_slices()], axis=0)

    def shares(self, lengths: Lengths, sharing: Sharing, second: Second) -> Float64[Array, " parts"]:
        """Return the share of each part in the variance of a course."""
        products = second * self.covariance(lengths, sharing)[0]
        each = np.array([products[own, own].sum() for _, _, own in self.part_slices()])
        return each / each.sum()

    def _with_parameters(
        self, lengths: Lengths, sharing: Sharing
    ) -> Iterator[tuple[tuple[Basis, slice, slice], Float64[Array, " r"], Float64[Array, " g"], float]]:
        """Yield each part with its columns and functions, length scales, sharing and standard deviation."""
        sds, begin = lengths[len(lengths) - len(self.parts) :], 0
        for slices, sd in zip(self.part_slices(), sds, strict=True):
            end = begin + len(slices[0].shortest)
            yield slices, lengths[begin:end], sharing[: slices[0].n_groups], float(sd)
            begin = end

    def _whole(self, block: Float64[Array, "m m"], own: slice) -> Float64[Array, "M M"]:
        whole = np.zeros((self.size, self.size))
        whole[own, own] = block
        return whole


def smooth_part(basis: Basis) -> tuple[PlacesBasis, slice] | None:
    """Return the part of the functions that is smooth, and its columns of the places; None: there is none."""
    for part, columns, _ in _parts_of(basis):
        if isinstance(part, PlacesBasis) and not part.places.levels:
            return part, columns
    return None


def linear_part(basis: Basis) -> tuple[Linear, slice] | None:
    """Return the part that is linear in covariates, and which functions are its; None: there is none."""
    for part, _, own in _parts_of(basis):
        if isinstance(part, Linear):
            return part, own
    return None


def _parts_of(basis: Basis) -> list[tuple[Basis, slice, slice]]:
    """Return the parts, with their columns of the places and their functions."""
    return basis.part_slices() if isinstance(basis, Sum) else Sum((basis,)).part_slices()
