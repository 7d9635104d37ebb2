"""State of sparse group factor analysis: what is learned, and what is kept per sample.

Shapes: D features of a view, K factors, C given columns a = (1, covariates), G groups of samples, T groups
with a noise precision of their own (1 unless asked for), B rows of a block, L = K + C, Q = L (L + 1) / 2
packed second moments of (z, a) or (w, b), CC = C (C + 1) / 2, J = C - 1 covariates in H terms that share a
precision.
All arrays live on the scale of the model: entries are (data - reference) / scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from factorflow.core.trees import replace
from factorflow.models.contract import Array, wide
from factorflow.models.sparse_gfa.smooth.courses import Courses
from factorflow.models.sparse_gfa.summaries import Closing
from factorflow.models.sparse_gfa.weights import Weights


@dataclass(frozen=True)
class Fixed:
    """What the first pass over the data learned of the features of a view; never changes afterwards.

    Parameters
    ----------
    reference, scale : array
        What is subtracted from Gaussian entries (their mean; 0 for others), less `ViewSettings.location`, and
        data units in one unit of the model.
    location : array
        Mean of the observed entries as the start sees them (`starting_values`); of Gaussian ones all that is
        subtracted.
    count, squares, constant : array
        Observed entries; sum of squares of Gaussian entries about the reference, of others about the
        location; parts of the bound that never change.
    regression, regressed : array or None
        Coefficients of the covariates, and the variance that they explain, of entries as the start sees them;
        None without covariates.
    average : array or None
        What size factors are relative to; None without these.
    """

    reference: Float64[np.ndarray, " D"]
    scale: Float64[np.ndarray, " D"]
    location: Float64[np.ndarray, " D"]
    count: Float64[np.ndarray, "D T"]
    squares: Float64[np.ndarray, "D T"]
    constant: Float64[np.ndarray, "D T"]
    regression: Float64[np.ndarray, "D J"] | None = None
    regressed: Float64[np.ndarray, " D"] | None = None
    average: Float64[np.ndarray, " D"] | None = None


@dataclass(frozen=True)
class View:
    """Parameters that the features of a view share.

    Parameters
    ----------
    alpha_shape, alpha_rate : array
        q(alpha): precision of the slab.
    theta_on, theta_off : array
        q(theta): probability of a weight that is not 0.
    intercept_mean, intercept_mean_variance, intercept_shape, intercept_rate : float
        q(m), q(lambda): mean and precision of the intercepts.
    pairs : array
        sum_d f_d E[(w, b)(w, b)'].
    noise_shape, noise_rate, noise_by_variance : float, float, bool
        Prior of the noise precisions; whether its rate is that of a feature of variance 1.
    coefficient_shape, coefficient_rate : array
        q(lambda) of the other coefficients: their precision, by group of covariates.
    counts : array or None
        Counts of further shares that the prior of the loadings learns, by factor.
    size_mean, size_shape, size_rate : float
        Of learned size factors: mean of their logarithms, q of their precision.
    """

    alpha_shape: Float64[np.ndarray, " K"]
    alpha_rate: Float64[np.ndarray, " K"]
    theta_on: Float64[np.ndarray, " K"]
    theta_off: Float64[np.ndarray, " K"]
    intercept_mean: float
    intercept_mean_variance: float
    intercept_shape: float
    intercept_rate: float
    pairs: Float64[np.ndarray, "T Q"]
    noise_shape: float = 1e-3
    noise_rate: float = 1e-3
    noise_by_variance: bool = False
    coefficient_shape: Float64[np.ndarray, " H"] = field(default_factory=lambda: np.empty(0))
    coefficient_rate: Float64[np.ndarray, " H"] = field(default_factory=lambda: np.empty(0))
    counts: Float64[np.ndarray, "P K"] | None = None
    size_mean: float = 0.0
    size_shape: float = 1.0
    size_rate: float = 1.0

    @property
    def alpha(self) -> Float64[Array, " K"]:
        """Expected precision of the slab."""
        return self.alpha_shape / self.alpha_rate


@dataclass(frozen=True)
class Start:
    """One of several starts, when it is over.

    Parameters
    ----------
    objective : float
        The bound that it reached.
    globals_ : Globals or None
        What it learned, as far as it is still needed, without ``fixed``, which starts share.
    kept : bool
        Whether it is the one that the run went on with.
    loadings : mapping of view to array, or None
        Set by the closing pass: E[w] in data units, of those that are not kept.
    """

    objective: float
    globals_: Globals | None
    kept: bool = False
    loadings: Mapping[str, Float64[np.ndarray, "D L"]] | None = None


@dataclass(frozen=True)
class Iterate:
    """What a pass left, as far as the next ones may go on from it; see `squarem`.

    Parameters
    ----------
    weights : mapping of view to pair of arrays
        Slab means and coefficients.
    views : mapping of view to View
        See there.
    """

    weights: Mapping[str, tuple[Float64[np.ndarray, "D K"], Float64[np.ndarray, "D C"]]]
    views: Mapping[str, View]


@dataclass(frozen=True)
class Snapshot:
    """Globals to go back to.

    Parameters
    ----------
    globals_ : Globals or None
        As they were; None where the blocks are sent what they need.
    objective : float
        What was recorded for them.
    trial : bool
        Whether what follows is the model without a factor; else it is the same, taken further.
    is_lower : bool
        Whether a pass has shown a higher objective since, but a tangent's (`ViewSettings.tangent`): behind a
        long step that is no more than a promise, which the next pass keeps or not.
    """

    globals_: Globals | None
    objective: float
    trial: bool = False
    is_lower: bool = False

    def back(self) -> Globals:
        """Return the globals to go on with if they are the better ones."""
        assert self.globals_ is not None
        return self.globals_


@dataclass(frozen=True)
class Scores:
    """What all samples share of their scores.

    Parameters
    ----------
    beta_shape, beta_rate, psi_on, psi_off : array
        q(beta), q(psi): precision and inclusion of the scores of each group.
    second : array
        Average of E[z z'] over the samples, at the last iteration.
    mean : array or None
        Average of E z over the samples, at the last iteration; None of Gaussian entries alone, which are
        about their means, unless scores may not be negative.
    """

    beta_shape: Float64[np.ndarray, "G K"]
    beta_rate: Float64[np.ndarray, "G K"]
    psi_on: Float64[np.ndarray, "G K"]
    psi_off: Float64[np.ndarray, "G K"]
    second: Float64[np.ndarray, "K K"]
    mean: Float64[np.ndarray, " K"] | None = None


@dataclass(frozen=True)
class Factors:
    """What is known of each factor.

    Parameters
    ----------
    strength : array
        Share of each view's sum of squares (counts: information) that a factor carries: what decides on
        dropping it.
    worth : array or None
        By how much the bound is higher with each factor (`n_factors`); None where it is not known.
    numbers : array or None
        Number of each factor, from 0, in the fit that the first of a row of warm starts began with; None:
        they are numbered by their order.
    sets : array or None
        Number of the feature set that each factor is named by, -1: none; None: they have no names yet.
    n_counted : int or None
        Components that random signs did not show; None: they were not counted.
    """

    strength: Float64[np.ndarray, "M K"]
    worth: Float64[np.ndarray, " K"] | None = None
    numbers: Int64[np.ndarray, " K"] | None = None
    sets: Int64[np.ndarray, " K"] | None = None
    n_counted: int | None = None


@dataclass(frozen=True)
class Change:
    """What the next map does to stored scores before it uses them; see `stored_scores`.

    Parameters
    ----------
    transform : array or None
        A rotation, a selection; None: nothing.
    shift : array or None
        What is added to them behind that; None: nothing.
    restored : bool
        Whether those of before a longer step, or a trial, are taken.
    regained : bool
        Whether they are still those of another start: nothing of them holds.
    """

    transform: Float64[np.ndarray, "K before"] | None = None
    shift: Float64[np.ndarray, " K"] | None = None
    restored: bool = False
    regained: bool = False

    def followed_by(self, transform: Float64[Array, "K between"]) -> Change:
        """Return this change with another behind it."""
        before, shift = self.transform, self.shift
        return replace(
            self,
            transform=transform if before is None else transform @ before,
            shift=None if shift is None else transform @ shift,
        )


@dataclass(frozen=True)
class Progress:
    """How far the passes of a stage have come, and how they go on.

    Parameters
    ----------
    objective : float
        The last that was reported; NaN before the first.
    score : float
        What the last pass found, by which numbers of factors are compared (`n_factors`); NaN: not known.
    trial_failed : bool
        Whether the model without the factor of least worth was tried, and is worse.
    snapshot : Snapshot or None
        The globals before a longer step, or a trial, until it is known whether the bound is higher behind it.
    iterates : tuple of Iterate
        What the last passes left, if they can be taken further.
    step_limit : float
        How long such a step may be at most.
    step_length : float
        Share of the way that scores and weights move in a pass: less after every fall.
    """

    objective: float = float("nan")
    score: float = float("nan")
    trial_failed: bool = False
    snapshot: Snapshot | None = None
    iterates: tuple[Iterate, ...] = ()
    step_limit: float = 4.0
    step_length: float = 1.0


@dataclass(frozen=True)
class Globals:
    """All that travels to the blocks.

    Parameters
    ----------
    fixed, weights, views : mapping of view to Fixed, Weights, View
        See there.
    scores, factors : Scores, Factors
        See there.
    courses : Courses or None
        What factors are as functions of time or place; None: they are no such functions, or not yet.
    change, progress : Change, Progress
        See there.
    basis : mapping of view to array
        The projection that starts z, until the first pass.
    counting : Counting or None
        Set while components are counted; see `start.count`.
    starts : tuple of Start
        Those that are over, of several; in the end all of them.
    closing : Closing or None
        Set by the closing pass.
    """

    fixed: Mapping[str, Fixed] = field(metadata=wide())
    weights: Mapping[str, Weights] = field(metadata=wide())
    views: Mapping[str, View]
    scores: Scores
    factors: Factors
    courses: Courses | None = None
    change: Change = Change()
    progress: Progress = Progress()
    basis: Mapping[str, Float64[np.ndarray, "D L"]] = field(metadata=wide(), default_factory=dict)
    counting: Any = None
    starts: tuple[Start, ...] = ()
    closing: Closing | None = None

    @property
    def n_factors(self) -> int:
        """Number of factors (K)."""
        return int(self.scores.beta_rate.shape[1])

    @property
    def n_given(self) -> int:
        """Number of given columns (C)."""
        return next((weights.coefficients.shape[1] for weights in self.weights.values()), 1)

    @property
    def observed(self) -> float:
        """Entries that are not missing."""
        return sum(float(fixed.count.sum()) for fixed in self.fixed.values())


def replace_part(globals_: Globals, part: str, **changes: Any) -> Globals:
    """Return the globals with some fields of a part, such as their progress, changed."""
    return replace(globals_, **{part: replace(getattr(globals_, part), **changes)})


@dataclass(frozen=True)
class Local:
    """q(z) of the rows of a block, kept where it is not a function of the globals alone.

    Parameters
    ----------
    mean : array
        Mean (of the slab, with a spike).
    variance : array
        Variances (of the slab), V = K, or covariances packed, V = K (K + 1) / 2; one row where all are equal.
    inclusion : array or None
        Probability that a score is not 0, with a spike.
    noise_shape, noise_rate : array or None
        q(rho): precision of each sample in each view.
    before : Local or None
        As it was before a longer step (`Progress.snapshot`).
    covariates, scores_covariance : array or None
        Where some covariates are not known and have a distribution (`unknown_covariates`): what is expected
        of them, and Cov (z, c), packed, 0 of rows whose covariates are known.
    log_sizes, log_sizes_variance : array or None
        q of the logarithms of learned size factors; 0 in views without. None: they are still to be started.
    """

    mean: Float64[np.ndarray, "B K"]
    variance: Float64[np.ndarray, "#B V"]
    inclusion: Float64[np.ndarray, "B K"] | None = None
    noise_shape: Float64[np.ndarray, "B M"] | None = None
    noise_rate: Float64[np.ndarray, "B M"] | None = None
    before: Local | None = None
    covariates: Float64[np.ndarray, "B J"] | None = None
    scores_covariance: Float64[np.ndarray, "B P"] | None = None
    log_sizes: Float64[np.ndarray, "B M"] | None = None
    log_sizes_variance: Float64[np.ndarray, "B M"] | None = None
