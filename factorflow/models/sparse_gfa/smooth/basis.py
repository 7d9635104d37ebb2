"""Functions that a smooth course is made of: f(n) = phi_n' c, c ~ N(0, s T), phi free of what is learned.

`points`, where samples share few places, and `cosines`, elsewhere. Covariates of the scores, and sums of all
these, stand in `composite`.

Functions are centred, phi - mean phi: levels belong to the intercepts. T is scaled so that the average prior
variance of f over the samples is 1: a length scale without end then is a straight trend, not a constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from factorflow.core.places import Places
from factorflow.kernels.linalg import pack, unpack
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.smooth.processes import LEVELS

NEIGHBOURS = 1.01
"""Distances of neighbouring places up to which a length scale is at the shortest there may be."""


Rows = Float64[Array, "B p"]
"""Numbers that functions are read from."""
Codes = Int64[Array, " B"]
"""Groups of the rows."""
Lengths = Float64[Array, " R"]
"""Length scales of a course."""
Sharing = Float64[Array, " G"]
"""a, how groups share it."""
Second = Float64[Array, "M M"]
"""S, the average product of the centred functions."""
At = tuple[Float64[Array, "B M"], Float64[Array, " B"], Float64[Array, " B"]]
Covariance = tuple[Float64[Array, "M ..."], list[Float64[Array, "M ..."]]]


class Basis:
    """The functions of a run."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that may have courses of their own; empty: all have one."""
        return ()

    @property
    def n_groups(self) -> int:
        """Number of groups that may have courses of their own (G), at least 1."""
        return max(1, len(self.groups))

    @property
    def labels(self) -> list[str]:
        """Names of the length scales."""
        raise NotImplementedError

    @property
    def part_names(self) -> list[str]:
        """Names of the parts that a course is a sum of."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Numbers that functions are read from, of each row (p)."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Number of functions (M)."""
        raise NotImplementedError

    @property
    def shortest(self) -> Float64[Array, " R"]:
        """Shortest length scale of each covariate: below it, noise does what the course would."""
        raise NotImplementedError

    @property
    def longest(self) -> Float64[Array, " R"]:
        """Longest length scale of each covariate."""
        return self.shortest

    @property
    def n_parameters(self) -> int:
        """Parameters of a course: its share, length scales, how groups share it."""
        lengths = int((self.longest > self.shortest).sum())
        return 1 + lengths + (self.n_groups if self.n_groups > 1 else 0)

    def covariance(self, lengths: Lengths, sharing: Sharing) -> Covariance:
        """Return T before it is scaled, and its slopes: by the logarithm of each length scale, by each a.

        Their diagonals alone, where T is diagonal.
        """
        raise NotImplementedError

    def functions(self, places: Rows, codes: Codes) -> Float64[Array, "B M"]:
        """Return functions of rows of the fit, not centred."""
        raise NotImplementedError

    def product_sums(self, places: Rows, codes: Codes) -> Float64[Array, " P"]:
        """Return what sums of products of two functions over rows follow from (`products_from`)."""
        functions = self.functions(places, codes)
        return pack(functions.T @ functions)

    def products_from(self, sums: Float64[Array, " P"]) -> Float64[Array, "M M"]:
        """Return sum_n phi_n phi_n' from the sums of the rows (`product_sums`)."""
        return unpack(sums, self.size)

    def at(
        self, places: Rows, codes: Codes, lengths: Lengths, sharing: Sharing, centre: Float64[Array, " M"]
    ) -> At:
        """Return functions at any places, centred, and the variance of the course beside them, T not scaled.

        And, apart from these, the variance of parts of which a row does not tell.
        """
        raise NotImplementedError

    def inside(self, places: Rows) -> Any:
        """Return which places, (B,), the functions reach."""
        raise NotImplementedError

    def variance(self, lengths: Lengths) -> float:
        """Return the variance of a course at a row of which nothing is known, T not scaled."""
        return 1.0

    def is_noise(self, lengths: Float64[Array, "K R"]) -> Bool[Array, " K"]:
        """Return which courses differ between neighbours as between any rows."""
        return np.zeros(len(lengths), bool)

    def shares(self, lengths: Lengths, sharing: Sharing, second: Second) -> Float64[Array, " parts"]:
        """Return the share of each part in the variance of a course."""
        return np.ones(1)

    def scaled_covariance(self, lengths: Lengths, sharing: Sharing, second: Second) -> Covariance:
        """Return T such that tr(S T) = 1, S the average product of the centred functions; and its slopes."""
        covariance, slopes = self.covariance(lengths, sharing)
        second = second if covariance.ndim == 2 else np.diag(second)
        unit = float((second * covariance).sum())
        scaled = covariance / unit
        return scaled, [one / unit - scaled * (float((second * one).sum()) / unit) for one in slopes]

    def unit(self, lengths: Lengths, sharing: Sharing, second: Second) -> float:
        """Return tr(S T) before T is scaled."""
        covariance = self.covariance(lengths, sharing)[0]
        return float(((second if covariance.ndim == 2 else np.diag(second)) * covariance).sum())


@dataclass(frozen=True)
class PlacesBasis(Basis):
    """Functions of places.

    Parameters
    ----------
    places : Places
        Where the samples lie.
    kernel : str
        One of `processes.KERNELS`.
    """

    places: Places
    kernel: str

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that may have courses of their own; empty: all have one."""
        return self.places.groups

    @property
    def labels(self) -> list[str]:
        """Names of the length scales."""
        return self.places.labels

    @property
    def part_names(self) -> list[str]:
        """Names of the parts that a course is a sum of."""
        return list(self.places.columns) if self.places.levels else ["smooth"]

    @property
    def width(self) -> int:
        """Numbers that functions are read from, of each row (p)."""
        return len(self.places)

    @property
    def longest(self) -> Float64[Array, " R"]:
        """Longest length scale of each covariate."""
        return self.shortest if self.kernel == LEVELS else 2.0 * self.places.spans

    def is_noise(self, lengths: Float64[Array, "K R"]) -> Bool[Array, " K"]:
        """Return which courses differ between neighbours as between any rows."""
        near = lengths <= NEIGHBOURS * np.asarray(self.places.nearest)
        return np.asarray(near.all(axis=1) & (self.kernel != LEVELS))

    @cached_property
    def owner(self) -> Int64[Array, " p"]:
        """The covariate that each column belongs to."""
        return np.asarray(self.places.covariate, np.int64)

    def _squares(self, differences: Float64[Array, "... p"]) -> Float64[Array, "R ..."]:
        """Return squared lengths in each covariate."""
        return np.stack(
            [(differences[..., self.owner == r] ** 2).sum(axis=-1) for r in range(self.places.n_covariates)]
        )
