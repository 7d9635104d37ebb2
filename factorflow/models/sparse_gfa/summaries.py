"""Summaries of the closing pass: variance explained, intervals of loadings, agreement of starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64

from factorflow.models.contract import wide


@dataclass(frozen=True)
class Explained:
    """Sums of squares on the data scale, per group and view.

    Parameters
    ----------
    total : array
        About the mean of each feature.
    residual : array
        About the prediction by all factors.
    single : array
        About the prediction by one factor alone; less by how much that by what is beside factors is beyond
        ``total``.
    terms : array or None
        About the prediction by the covariates of one term, and, last, by all of them; less by how much that
        by the intercepts is beyond ``total``.
    """

    total: Float64[np.ndarray, "G M"]
    residual: Float64[np.ndarray, "G M"]
    single: Float64[np.ndarray, "G M K"]
    terms: Float64[np.ndarray, "G M H1"] | None = None


@dataclass(frozen=True)
class Corrected:
    """Loadings of a view with what q(z) leaves open, inclusion in it; see `intervals`."""

    mean: Float64[np.ndarray, "D K"]
    variance: Float64[np.ndarray, "D K"]


@dataclass(frozen=True)
class Closing:
    """What the closing pass finds.

    Parameters
    ----------
    explained : Explained
        See there.
    corrected : mapping of view to Corrected
        See there.
    regression : array or None
        With covariates: slopes of the scores on them, by least squares.
    similarity : array or None
        After several starts: the largest correlation of the scores of each factor with those of any factor of
        each start, in absolute value.
    """

    explained: Explained
    corrected: Mapping[str, Corrected] = field(default_factory=dict, metadata=wide())
    regression: Float64[np.ndarray, "J K"] | None = None
    similarity: Float64[np.ndarray, "starts K"] | None = None
