"""State of the sampler of sparse group factor analysis: one draw of all that is shared, scores of a block.

Shapes as in `state`. Everything lives on the scale of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float64, Int8, Int64

from factorflow.core.trees import replace
from factorflow.kernels.linalg import n_pairs
from factorflow.models.contract import Array, wide
from factorflow.models.sparse_gfa.loadings.drawn import LoadingParameters
from factorflow.models.sparse_gfa.sampler.drawn_sums import DrawnStats, DrawnSums
from factorflow.models.sparse_gfa.sampler.pooled import NoisePrior, SlabPrior
from factorflow.models.sparse_gfa.settings import Settings, ViewSettings
from factorflow.models.sparse_gfa.smooth.courses import Courses
from factorflow.models.sparse_gfa.state import Factors, Fixed, Globals, Scores, View
from factorflow.models.sparse_gfa.weights import Weights, sum_pairs

LEADING = 16
"""Features that a factor is known by."""


@dataclass(frozen=True)
class Plane:
    """Equations of the loadings of two factors, others and intercept integrated out.

    See `kernels.plane_moves`.

    Parameters
    ----------
    square, linear : array
        Precision and linear term of the two, of the data alone.
    follow : array
        The others go by minus this times the change of the two.
    change : array
        By what residuals go with the two.
    """

    square: Float64[np.ndarray, "D 3"]
    linear: Float64[np.ndarray, "D 2"]
    follow: Float64[np.ndarray, "D L 2"]
    change: Float64[np.ndarray, "D 7"]


@dataclass(frozen=True)
class ResidualSums:
    """Sums of residuals about intercept and noise of each feature of a view, given scores and loadings.

    Parameters
    ----------
    count, slope, squares : array
        Number of entries (of binary ones the sum of omega); sum of what they are off the predictors, and of
        its squares (0 of binary ones).
    plane : Plane or None
        Of the two factors that the sweep turns.
    """

    count: Float64[np.ndarray, " D"]
    slope: Float64[np.ndarray, " D"]
    squares: Float64[np.ndarray, " D"]
    plane: Plane | None = None

    def shifted(self, shift: Float64[np.ndarray, " D"]) -> ResidualSums:
        """Return this after b -> b + shift."""
        squares = self.squares - shift * (2.0 * self.slope - shift * self.count)
        return ResidualSums(self.count, self.slope - shift * self.count, np.maximum(squares, 0.0))


@dataclass(frozen=True)
class DrawnWeights:
    """A draw of what belongs to the features of a view.

    Parameters
    ----------
    loadings : array
        w, 0 where s = 0.
    coefficients : array
        Of the given columns: the intercept less the reference, then those of the covariates.
    precision : array or None
        tau of Gaussian entries.
    residual_sums : ResidualSums or None
        What entries say beside, until the root has made its moves.
    phi : array or None
        Nuisance parameters of a view that takes Metropolis steps.
    tries : array or None
        Of such a view, until one of them is taken; see `metropolis.propose`.
    """

    loadings: Float64[np.ndarray, "D K"]
    coefficients: Float64[np.ndarray, "D C"]
    precision: Float64[np.ndarray, "D T"] | None
    residual_sums: ResidualSums | None = None
    phi: Float64[np.ndarray, "D P"] | None = None
    tries: Float64[np.ndarray, "D J S"] | None = None

    @property
    def whole(self) -> Float64[np.ndarray, "D L"]:
        """Loadings and coefficients side by side."""
        return np.concatenate([self.loadings, self.coefficients], axis=1)

    def extended(self, column: Float64[Array, " sizes"]) -> Float64[np.ndarray, "D L"]:
        """Return the loadings with those of learned size factors, the same of all features."""
        return np.concatenate([self.loadings, np.tile(column, (len(self.loadings), 1))], axis=1)

    def on_scale(self, fixed: Fixed) -> Float64[np.ndarray, "D C"]:
        """Return the coefficients, with the intercepts on the scale of the model."""
        out = self.coefficients.copy()
        out[:, 0] += fixed.reference / fixed.scale
        return out

    def levels(self, settings: Settings, view: ViewSettings, fixed: Fixed) -> Float64[np.ndarray, "D C"]:
        """Return `on_scale`, with the level of phi in place of intercepts where it is there (`DrawnView`)."""
        out = self.on_scale(fixed)
        if not view.density.has_intercept:
            assert self.phi is not None
            out[:, 0] = (self.phi - np.asarray(view.density.phi_mean)).mean(axis=1)
        return out

    def off_scale(self, fixed: Fixed) -> DrawnWeights:
        """Return this with intercepts less the reference, given intercepts on the scale of the model."""
        out = self.coefficients.copy()
        out[:, 0] -= fixed.reference / fixed.scale
        return replace(self, coefficients=out)


@dataclass(frozen=True)
class DrawnView:
    """A draw of what the features of a view share.

    Parameters
    ----------
    alpha, theta : array
        Precision of the loadings that are not 0, and the share of them.
    intercept_mean, intercept_precision : float
        m and lambda; of a likelihood whose phi has the level of the entries that of the mean of phi, given.
    noise : NoisePrior or None
        Prior of the noise precisions of a Gaussian view.
    term_precision : array
        lambda of the coefficients of each term of covariates.
    shares : array or None
        As `LoadingParameters.shares`.
    """

    alpha: Float64[np.ndarray, " K"]
    theta: Float64[np.ndarray, " K"]
    intercept_mean: float
    intercept_precision: float
    noise: NoisePrior | None
    term_precision: Float64[np.ndarray, " H"] = field(default_factory=lambda: np.empty(0))
    shares: Float64[np.ndarray, "P K"] | None = None

    @property
    def of_loadings(self) -> LoadingParameters:
        """What the loadings share."""
        return LoadingParameters(self.alpha, self.theta, self.shares)

    def column_precision(self, settings: Settings) -> Float64[np.ndarray, " C"]:
        """Return the prior precision of the coefficient of each given column, the intercept first."""
        return np.append(self.intercept_precision, self.term_precision[settings.term_of_column])


@dataclass(frozen=True)
class Shared:
    """A draw of what features and samples share.

    Parameters
    ----------
    views : mapping of view to DrawnView
        See there.
    beta : array
        Prior precision of the scores; where these have courses, of rows whose place is not known, then of
        others.
    slab : SlabPrior or None
        Prior of alpha of all views; None where it is given.
    sizes : array
        Prior precision of the logarithms of learned size factors, by view that has them.
    psi : array or None
        Share of scores that are not 0; None: scores have no spikes.
    """

    views: Mapping[str, DrawnView]
    beta: Float64[np.ndarray, "G K"]
    slab: SlabPrior | None
    sizes: Float64[np.ndarray, " sizes"] = field(default_factory=lambda: np.empty(0))
    psi: Float64[np.ndarray, "G K"] | None = None


@dataclass(frozen=True)
class Record:
    """Record of a draw: loadings and shared parameters that belong to the scores of the sweep.

    A chain goes on from where turns, places and scales of the factors were changed after that.
    ``regression``: of the scores on the covariates of the features.
    """

    weights: Mapping[str, DrawnWeights] = field(metadata=wide())
    shared: Shared
    courses: Courses | None = None
    regression: Float64[np.ndarray, "J K"] | None = None


@dataclass(frozen=True)
class Halfway:
    """What the first pass of a sweep leaves to the second: sums over rows, and of the views that are done."""

    stats: DrawnStats
    sums: Mapping[str, DrawnSums]


@dataclass(frozen=True)
class Names:
    """Signature of the factors of a chain, by which its draws are aligned.

    Parameters
    ----------
    features : array
        Of all views side by side, those that load most on one of the factors.
    loadings : array
        Theirs, where the chain began.
    """

    features: Int64[np.ndarray, " L"]
    loadings: Float64[np.ndarray, "L K"]

    @classmethod
    def of(cls, weights: Iterable[DrawnWeights]) -> Names:
        """Return the signature of the factors of these weights."""
        loadings = np.concatenate([mine.loadings for mine in weights])
        features = np.unique(np.argsort(-np.abs(loadings), axis=0, kind="stable")[:LEADING])
        return cls(features, loadings[features])


@dataclass(frozen=True)
class FactorSets:
    """Feature sets of the factors, as the fit assigned them.

    Parameters
    ----------
    numbers : array
        Number of the set of each factor; -1: none.
    holds : array
        Whether the factor is named by it.
    evidence : array
        Nats by which the bound is higher with the set than without, by view.
    """

    numbers: Int64[np.ndarray, " K"]
    holds: Bool[np.ndarray, " K"]
    evidence: Float64[np.ndarray, "M K"]


@dataclass(frozen=True)
class ChainGlobals:
    """Globals of a chain.

    Parameters
    ----------
    fixed, weights : mapping of view to Fixed, DrawnWeights
        See there.
    shared : Shared
        What features and samples share.
    variances : mapping of view to array
        Variance of the entries of each feature of a Gaussian view, which the prior of its noise refers to.
    transform, shift : array
        What the next map applies to stored scores first, T z + t'a: order and signs of the fit, then turns
        and moves of scale and place; those of learned size factors, which move in place alone, last.
    record : Record
        The draw that goes with the stored scores as they are.
    names : Names
        What the factors are known by.
    numbers : array or None
        As in `Globals`.
    reference : mapping of view to DrawnWeights
        Of views that take Metropolis steps what the fit found: their stand-ins are taken there.
    halfway : Halfway or None
        Between the two passes of a sweep with such views.
    courses : Courses or None
        Courses of the factors: `Courses.mean` are the coefficients of the draw, which have no covariance.
    classes : mapping of view to array
        Of loadings whose prior has classes those that the fit found (`Weights.classes`).
    sets : FactorSets or None
        None: no factor has a set.
    """

    fixed: Mapping[str, Fixed] = field(metadata=wide())
    weights: Mapping[str, DrawnWeights] = field(metadata=wide())
    shared: Shared
    variances: Mapping[str, Float64[np.ndarray, " D"]] = field(metadata=wide())
    transform: Float64[np.ndarray, "K before"]
    shift: Float64[np.ndarray, "C L"]
    record: Record
    names: Names
    numbers: Int64[np.ndarray, " K"] | None = None
    reference: Mapping[str, DrawnWeights] = field(default_factory=dict, metadata=wide())
    halfway: Halfway | None = None
    courses: Courses | None = None
    classes: Mapping[str, Int8[np.ndarray, "D K"]] = field(default_factory=dict, metadata=wide())
    sets: FactorSets | None = None

    @property
    def n_factors(self) -> int:
        """Number of factors (K)."""
        return int(self.shared.beta.shape[1])


@dataclass(frozen=True)
class DrawnScores:
    """Scores of the rows of a block, and what is averaged over draws.

    Parameters
    ----------
    values : array
        z, and what is learned of size factors: a score with a loading of 1, for each view that has them.
    n_kept : int
        Draws in the sums.
    total, squares : array or None
        Sums over draws, of z and z^2 and, where there are any, of courses, of s of scores with spikes, of
        logarithms of size factors, and of covariates that are drawn.
    reference : array or None
        Values of the fit, which go with `ChainGlobals.reference`; None: where a sample begins.
    log_sizes : array or None
        Logarithms of the size factors of all views, where some are learned.
    covariates : array or None
        Covariates of the features, where some rows lack some: those are drawn.
    """

    values: Float64[np.ndarray, "B L"]
    n_kept: int = 0
    total: Float64[np.ndarray, "B kept"] | None = None
    squares: Float64[np.ndarray, "B kept"] | None = None
    reference: Float64[np.ndarray, "B L"] | None = None
    log_sizes: Float64[np.ndarray, "B M"] | None = None
    covariates: Float64[np.ndarray, "B J"] | None = None

    def scores(self, settings: Settings) -> Float64[np.ndarray, "B K"]:
        """Return z."""
        return self.values[:, : self.values.shape[1] - len(settings.learned_sizes)]


def as_globals(settings: Settings, sample: ChainGlobals) -> Globals:
    """Return a draw as globals without variance, as `pseudo_data` and `e_step` read them."""
    k, ones = sample.shift.shape[1], np.ones(sample.n_factors)
    weights, views = {}, {}
    for view in settings.views:
        mine, shared = sample.weights[view.name], sample.shared.views[view.name]
        mean, coefficients = mine.extended(settings.size_column(view.name)), mine.coefficients
        rates = None if mine.precision is None else np.ones_like(mine.precision)
        point = Weights(
            mean=mean,
            variance=np.zeros(mean.shape),
            inclusion=None,
            coefficients=coefficients,
            coefficients_spread=np.zeros((len(mean), n_pairs(settings.n_given))),
            noise_shape=mine.precision,
            noise_rate=rates,
            phi=np.empty((len(mean), 0)) if mine.phi is None else mine.phi,
        )
        weights[view.name] = point
        pairs = sum_pairs(point, settings.precision(view.name, point))
        views[view.name] = View(
            shared.alpha, ones, shared.theta, 1.0 - shared.theta, shared.intercept_mean, 0.0,
            shared.intercept_precision, 1.0, pairs,
        )  # fmt: skip
    nothing: Array = np.zeros((len(settings.views), k))
    beta = sample.shared.beta
    beta = np.concatenate([beta, np.tile(sample.shared.sizes, (len(beta), 1))], axis=1)
    group_ones = np.ones(beta.shape)
    scores = Scores(beta, group_ones, group_ones, group_ones, np.eye(k))
    return Globals(sample.fixed, weights, views, scores, Factors(nothing))
