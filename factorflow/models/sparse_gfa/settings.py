"""Settings of a run of sparse group factor analysis: options joined with the shape of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from factorflow.core.covariates import COVARIATES, Covariates
from factorflow.core.feature_sets import FeatureSets
from factorflow.core.trees import replace
from factorflow.errors import InputError
from factorflow.likelihoods import Likelihood, get_likelihood
from factorflow.models.contract import Array, Block
from factorflow.models.sparse_gfa.loadings import LoadingsPrior, PriorConstants, get_prior
from factorflow.models.sparse_gfa.smooth.rows import SmoothSettings
from factorflow.models.sparse_gfa.weights import Weights

PARAMETER_TOL = 1e-3
"""Nats a loading or intercept below which a pass gains little: where samples are many and features few, what
is left to gain is little beside the number of entries."""
EARLY_TOLERANCE = 100.0
"""Tolerance of stages that are followed by another of their kind, relative to the last stage's."""


@dataclass(frozen=True)
class Priors:
    """Constants of the priors, as (shape, rate), (on, off), precision, rate; that of alpha is the view's.

    ``learned_slab``: the sampler learns the prior of alpha instead.
    """

    noise: tuple[float, float] = (1e-3, 1e-3)
    sample_noise: tuple[float, float] = (1e-3, 1e-3)
    intercept: tuple[float, float] = (1e-3, 1e-3)
    intercept_mean: float = 1e-6
    theta: tuple[float, float] = (1.0, 1.0)
    beta: tuple[float, float] = (1e-3, 1e-3)
    psi: tuple[float, float] = (1.0, 1.0)
    sizes: tuple[float, float] = (1e-3, 1e-3)
    learned_slab: bool = False


@dataclass(frozen=True)
class ViewSettings:
    """A view, and the likelihood of its entries.

    Parameters
    ----------
    name, kind, n_features
        As in the dataset.
    likelihood : str
        As `get_likelihood` takes it; "gaussian" with the noise precisions of this family.
    bounded : bool
        Whether pseudo-data are those of a bound that holds for any q(x); else of E log p at a Gaussian q(x).
    scattered : bool
        Whether the weight of an entry in the statistics depends on its feature.
    alpha_prior : (float, float)
        Shape and rate of the prior of alpha.
    loadings : str
        Name of the prior of the loadings (`loadings`).
    location : tuple of float
        Of features far from 0, where they lie (`ViewMeta.location`): 0 in the model.
    aux_key : str
        Key of ``Block.data`` of what the likelihood reads beside each entry; empty: nothing.
    size_factors : str
        How those of the rows are computed (`size_factors`), or a column; of learned ones where they start.
    size_column : int or None
        Position of that column in `Meta.sizes`.
    learned_sizes : {"", "learned", "total+learned"}
        Learned size factors: about one mean, or about those that are computed; empty: none.
    """

    name: str
    kind: str
    n_features: int
    likelihood: str
    bounded: bool
    scattered: bool
    alpha_prior: tuple[float, float]
    loadings: str = "spike_slab"
    location: tuple[float, ...] = ()
    aux_key: str = ""
    size_factors: str = "none"
    size_column: int | None = None
    learned_sizes: str = ""

    @property
    def density(self) -> Likelihood:
        """The likelihood itself."""
        return get_likelihood(self.likelihood)

    @property
    def spikes(self) -> bool:
        """Whether loadings may be 0, with a probability each."""
        return self.prior.spikes

    @property
    def prior(self) -> LoadingsPrior:
        """The prior of the loadings."""
        return get_prior(self.loadings)

    @property
    def has_computed_sizes(self) -> bool:
        """Whether size factors are computed, or learned about those that are."""
        return self.size_factors != "none" and self.learned_sizes != "learned"

    @property
    def is_gaussian(self) -> bool:
        """Whether entries are their own pseudo-data."""
        return self.likelihood == "gaussian"

    @property
    def is_scaled(self) -> bool:
        """Whether entries are centred and scaled."""
        return self.density.is_location

    def level(self, reference: Float64[np.ndarray, " D"]) -> Float64[np.ndarray, " D"]:
        """Return in data units what lies at a reference of the model."""
        return reference + np.array(self.location) if self.location else reference

    @property
    def tangent(self) -> bool:
        """Whether pseudo-data are a tangent of the objective, not a bound of it."""
        return not self.is_gaussian and not self.bounded


@dataclass(frozen=True)
class Settings:
    """Options of a run, resolved against the dataset.

    Parameters
    ----------
    views : tuple of ViewSettings
        The views, in the dataset's order.
    n_rows, n_factors : int
        Samples, and factors at the start.
    groups : tuple of str
        Groups of samples that have parameters of their own; empty: none.
    grouped_noise, feature_noise, sample_noise : bool
        tau for each group; learned tau; learned rho.
    intercepts, center, scale_views, scale_features : bool
        How entries are centred and scaled.
    scores_prior : str
        "normal", "ard", "spike" or "nonnegative".
    score_slab : str
        Slab of non-negative scores.
    full_scores : bool
        Full covariance of q(z_n).
    start : str
        "pca", "random" or the path of an array of scores.
    n_starts : int
        Starts of which the best is kept.
    drop : float
        Share (`n_factors.variance_shares`), in its best view, below which a factor is dropped.
    tol : float
        Nats an observed entry below which a pass gains little.
    learns_n_factors : bool
        Whether the number of factors is learned.
    precision_bits : int
        32 or 64: of the data in the matrix products.
    priors : Priors
        Constants.
    covariates : Covariates or None
        What else is given of each sample.
    sets : FeatureSets or None
        Sets of features that factors may be named by.
    smooth : SmoothSettings or None
        Functions that scores may be; None: scores are no functions.
    """

    views: tuple[ViewSettings, ...]
    n_rows: int
    n_factors: int
    groups: tuple[str, ...]
    grouped_noise: bool
    feature_noise: bool
    sample_noise: bool
    intercepts: bool
    center: bool
    scale_views: bool
    scale_features: bool
    scores_prior: str
    full_scores: bool
    start: str
    n_starts: int
    drop: float
    tol: float
    learns_n_factors: bool
    precision_bits: int
    priors: Priors
    score_slab: str = "exponential"
    covariates: Covariates | None = None
    sets: FeatureSets | None = None
    smooth: SmoothSettings | None = None

    @property
    def sized(self) -> bool:
        """Whether rows of a view have size factors."""
        return any(view.size_factors != "none" for view in self.views)

    @property
    def learns_sizes(self) -> bool:
        """Whether size factors of a view are learned."""
        return bool(self.learned_sizes)

    @property
    def learned_sizes(self) -> tuple[str, ...]:
        """Views whose size factors are learned."""
        return tuple(view.name for view in self.views if view.learned_sizes)

    def size_column(self, name: str) -> Float64[Array, " sizes"]:
        """Return what each learned size factor is multiplied by in the predictors of a view: 1, or 0."""
        return np.array([float(name == own) for own in self.learned_sizes])

    @property
    def n_given(self) -> int:
        """Given columns: the intercept and the covariates (C)."""
        return 1 + (len(self.covariates) if self.covariates else 0)

    @property
    def incomplete(self) -> bool:
        """Whether rows may lack covariates, which then have a distribution."""
        return self.covariates is not None and self.covariates.incomplete

    @property
    def n_terms(self) -> int:
        """Groups of covariates whose coefficients share a precision (H)."""
        return len(self.covariates.terms) if self.covariates else 0

    @property
    def term_of_column(self) -> Int64[Array, " J"]:
        """The group of each covariate."""
        return self.covariates.groups if self.covariates else np.empty(0, np.int64)

    def has_intercepts(self, view: ViewSettings) -> bool:
        """Whether the features of a view have intercepts that are learned."""
        return self.intercepts and view.density.has_intercept

    def learned_columns(self, view: ViewSettings) -> slice:
        """Return the columns whose coefficients are learned: without intercepts all but the first."""
        return slice(0 if self.has_intercepts(view) else 1, None)

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Type of blocks in the matrix products."""
        return np.dtype(np.float32) if self.precision_bits == 32 else np.dtype(np.float64)

    @property
    def n_groups(self) -> int:
        """Groups of samples whose scores have a prior of their own (G)."""
        return max(1, len(self.groups))

    @property
    def n_noise_groups(self) -> int:
        """Groups with a noise precision of their own (T)."""
        return self.n_groups if self.grouped_noise else 1

    @property
    def dense(self) -> bool:
        """Whether loadings and scores are normal: loadings keep covariances, and factors are rotated."""
        return all(view.loadings == "ard" for view in self.views) and not self.nonnegative

    @property
    def scores_spike(self) -> bool:
        """Whether scores may be 0, with a probability each."""
        return self.scores_prior in ("spike", "nonnegative")

    @property
    def nonnegative(self) -> bool:
        """Whether scores are 0 or positive."""
        return self.scores_prior == "nonnegative"

    @property
    def score_power(self) -> float:
        """The power of scores whose expectation beta follows from: see `LoadingsPrior.power`."""
        return 1.0 if self.nonnegative and self.score_slab == "exponential" else 2.0

    @property
    def warm_up(self) -> Settings:
        """Settings of the warm-up: loadings are normal there, and scores that later may not be negative."""
        normal = replace(self, scores_prior="normal", full_scores=True) if self.nonnegative else self
        return replace(normal, views=tuple(replace(view, loadings="ard") for view in self.views))

    @property
    def stateful(self) -> bool:
        """Whether q(z) is kept between iterations: it is not a function of the globals alone."""
        gaussian = all(view.is_gaussian for view in self.views)
        return not gaussian or not self.full_scores or self.scores_spike or self.sample_noise

    @property
    def tangent(self) -> bool:
        """Whether pseudo-data of some view are a tangent of the objective: steps may be shortened."""
        return any(view.tangent for view in self.views)

    @property
    def counts(self) -> bool:
        """Whether the number of factors to begin with is counted; a set may name one too weak for that."""
        return self.learns_n_factors and self.start == "pca" and self.sets is None

    def changes_basis(self, iteration: int) -> bool:
        """Whether the pass of this number, from 0, may end with a change of basis: every third does."""
        return not self.scores_spike and iteration % 3 == 2

    @property
    def deletes(self) -> bool:
        """Whether factors are deleted that the bound is higher without."""
        return self.learns_n_factors and self.full_scores and not self.scores_spike and not self.dense

    def prior_constants(self, view: ViewSettings) -> PriorConstants:
        """Return the constants of the prior of the loadings of a view."""
        return PriorConstants(view.n_features, view.alpha_prior, self.priors.theta)

    def view(self, name: str) -> ViewSettings:
        """Return a view by name."""
        return next(v for v in self.views if v.name == name)

    def first_column(self, name: str) -> int:
        """Return the number of features in the views before one."""
        names = [v.name for v in self.views]
        return sum(v.n_features for v in self.views[: names.index(name)])

    def design(self, block: Block, local: Any = None) -> Float64[Array, "B C"]:
        """Return the given columns of each row, a = (1, covariates), with those of q(z) or a draw, ``local``.

        Of covariates that are not known, what is expected of them; at first, and in a fit, 0, the average.
        """
        design = np.ones((block.n_rows, self.n_given))
        if self.covariates is not None:
            values = np.asarray(block.columns[COVARIATES])
            filled = np.zeros(values.shape) if local is None or local.covariates is None else local.covariates
            design[:, 1:] = np.where(np.isnan(values), filled, values)
        return design

    def group_codes(self, block: Block) -> Int64[Array, " B"]:
        """Return the group of each row; zeros without groups.

        Raises
        ------
        InputError
            If a new sample is in none of the groups.
        """
        if not self.groups:
            return np.zeros(block.n_rows, np.int64)
        codes = np.asarray(block.columns.get("group", np.full(block.n_rows, -1)), np.int64)
        if (codes < 0).any():
            raise InputError(
                "groups",
                "new samples without a group that the model was fitted to",
                f"one of {', '.join(self.groups)} for every sample",
                "Write the new samples with {groups}.",
                groups=...,
            )
        return codes

    def precision(self, name: str, weights: Weights) -> Float64[Array, "D T"]:
        """Return f_d, what the statistics of each feature are multiplied by."""
        if weights.noise_shape is not None:
            return weights.noise_shape / weights.noise_rate
        return np.ones((weights.mean.shape[0], self.n_noise_groups))

    def information(self, name: str, weights: Weights) -> Float64[Array, " D"]:
        """Return the information of an observation of each feature about x, at the intercept.

        That of the noise; else the information (dE y / dx)^2 / Var y.
        """
        view = self.view(name)
        if view.is_gaussian:
            return self.precision(name, weights).mean(axis=1)
        return view.density.information(weights.intercept, weights.phi.T)
