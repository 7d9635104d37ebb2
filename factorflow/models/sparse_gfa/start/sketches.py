"""Sketches of the views, and their sums for the count of components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import wide
from factorflow.models.contract import Array

PRODUCTS = 1
"""Products of a sketch with the data and its transpose, after one with the transpose alone. Four count no
better."""


@dataclass(frozen=True)
class FeatureSketch:
    """Sums over the features of a view (D) for a spectrum; y are entries less their means.

    Parameters
    ----------
    total, noise : array
        Variance without factors; variance that the components leave.
    share : array
        Share of the samples in which the feature is observed.
    sketch : array
        By what y, or what is left of y, is multiplied: for the data and each draw of signs (S of L columns).
    scores, fitted : array
        U and T of the components: their scores are y U, and they leave y - y U T'.
    scale : array
        By what that is multiplied to have a variance of 1.
    """

    total: Float64[np.ndarray, " D"]
    noise: Float64[np.ndarray, " D"]
    share: Float64[np.ndarray, " D"]
    sketch: Float64[np.ndarray, "D S L"]
    scores: Float64[np.ndarray, "D K"]
    fitted: Float64[np.ndarray, "D K"]
    scale: Float64[np.ndarray, " D"]


@dataclass(frozen=True)
class Spectrum:
    """Components of some views, largest first.

    Parameters
    ----------
    views : mapping of view to FeatureSketch
        See there. Once ``values`` are known, ``scores`` are those of all columns of the sketch.
    n_components : int
        How many of them signs do not show.
    values : array or None
        Squared singular values, once the count is over.
    """

    views: Mapping[str, FeatureSketch] = field(metadata=wide())
    n_components: int = 0
    values: Float64[np.ndarray, " L"] | None = None

    @property
    def scores(self) -> dict[str, Float64[Array, "D K"]]:
        """By what the views are multiplied to give the scores of the components."""
        return {name: view.scores for name, view in self.views.items()}

    @property
    def has_sketch(self) -> bool:
        """Whether sketches have been multiplied with the data in this round."""
        return any(view.sketch.size for view in self.views.values())


@dataclass(frozen=True)
class Counting:
    """Where the count is: of all views together, then of each alone; products of the round so far."""

    spectra: tuple[Spectrum, ...]
    product: int = 0

    @property
    def is_last(self) -> bool:
        """Whether the next product ends a round."""
        return self.product == PRODUCTS

    @property
    def is_over(self) -> bool:
        """Whether all spectra are known."""
        return all(spectrum.values is not None for spectrum in self.spectra)


@dataclass(frozen=True)
class SketchStats:
    """X'A of each view, and A'A, for the data and every draw of signs (in a last product X'A of the data)."""

    views: Mapping[str, Float64[np.ndarray, "D S L"]] = field(metadata=wide())
    gram: Float64[np.ndarray, "draws L L"]


@dataclass(frozen=True)
class CountStats:
    """What blocks add up: for every spectrum (None: it is known); in the last pass products of all scores."""

    spectra: tuple[SketchStats | None, ...]
    joint: Float64[np.ndarray, "C C"] | None = None


def inverse_root(variance: Float64[Array, " D"]) -> Float64[Array, " D"]:
    """Return 1 / sqrt(variance); 0 where there is none."""
    return np.where(variance > 0.0, 1.0 / np.sqrt(np.maximum(variance, 1e-300)), 0.0)
