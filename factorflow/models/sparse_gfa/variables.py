"""The variables that fits and chains store: names, dimensions and meaning.

Values are in `results`, `view_results` and `intervals`, and of chains in `sampler.drawn_results`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from factorflow.models.contract import Variable

TABLE = {
    "scores": ("obs factor", "Expected score of a sample on a factor, E[z]."),
    "scores_variance": ("obs factor", "Variance of a score, Var z."),
    "scores_draws": ("obs factor", "z, every draw."),
    "scores_inclusion": ("obs factor", "Probability that a score is not 0."),
    "sample_precision": ("obs view", "Noise precision of a sample, rho."),
    "size_factors": ("obs view", "Size factor of a sample in a view; 1 where the view has none."),
    "log_size_factors": ("obs view", "Logarithm of the size factor of a sample in a view, every draw."),
    "log_size_factors_variance": (
        "obs view",
        "Variance of the logarithm of a learned size factor; 0 in views without.",
    ),
    "covariates": ("obs covariate", "Covariates of the model: centred, numbers by their standard deviation."),
    "covariates_draws": ("obs covariate", "Covariates, drawn where they are not known, every draw."),
    "scores_covariance": (
        "obs score_pair",
        "Covariance of scores and covariates, packed, where these are not known; 0 where they are.",
    ),
    "smooth_scores": (
        "obs factor",
        "Course of a factor at the place of a sample, E f; NaN where the place is not known.",
    ),
    "smooth_scores_variance": ("obs factor", "Its variance."),
    "noise_group": ("obs", "Group whose noise precision holds."),
    "alpha": ("view factor", "Precision of the loadings that are not 0, on the model's scale."),
    "variance_explained": ("group view factor", "Share of the variance of a view that a factor explains."),
    "variance_explained_total": ("group view", "Share that all factors explain together."),
    "variance_explained_term": ("group view term", "Share that each term of covariates explains alone."),
    "variance_explained_covariates": ("group view", "Share that all covariates explain together."),
    "intercept_mean": ("view", "Mean of the intercepts of a view, m, on the model's scale."),
    "intercept_precision": ("view", "Precision of the intercepts about it, lambda."),
    "coefficient_precision": ("view term", "Precision of the coefficients of a term, on the model's scale."),
    "score_regression": ("covariate factor", "Regression of the scores on the covariates, by least squares."),
    "n_factors_counted": ("", "Components counted before the fit, by random signs; -1: they were not."),
    "worth": ("factor", "Nats by which the bound is higher with a factor than without; NaN: not known."),
    "theta": ("view factor", "Share of loadings that are not 0."),
    "set_of_factor": ("factor", "Number of the feature set that a factor has; -1: none."),
    "set_evidence": ("view factor", "Nats by which the bound of a fit is higher with the set of a factor."),
    "set_theta": ("view factor", "Share of loadings in the set of a factor that are not 0."),
    "score_precision": ("group factor", "Prior precision of scores, beta."),
    "score_theta": ("group factor", "Share of scores that are not 0, psi."),
    "start_objective": ("start", "Bound that each start reached."),
    "start_stability": (
        "start factor",
        "Largest absolute correlation of a factor's scores with those of a start.",
    ),
    "stability": ("factor", "Its mean over the starts that were not kept; NaN: none."),
    "course_unit": ("factor", "Average prior variance of a course before it is scaled to 1."),
    "loadings": ("feature factor", "Expected loading in data units, E[w]."),
    "loadings_variance": ("feature factor", "Variance of a loading, Var w."),
    "corrected_loadings": ("feature factor", "Loading in data units, of inclusion above one half."),
    "corrected_loadings_sd": (
        "feature factor",
        "Its standard deviation, with what scores and loadings of other factors leave open.",
    ),
    "inclusion": ("feature factor", "Probability that a loading is not 0."),
    "intercept": ("feature", "Intercept in data units, b (with the mean subtracted first)."),
    "intercept_variance": ("feature", "Variance of the intercept, v_b."),
    "scale": ("feature", "Data units in one unit of the model."),
    "coefficients": ("feature covariate", "Coefficient of a covariate in data units."),
    "coefficients_variance": ("feature covariate", "Its variance."),
    "coefficients_covariance": (
        "feature coefficient_pair",
        "Covariances of intercept and coefficients, packed: rows of the lower triangle.",
    ),
    "noise_precision": ("group feature", "Noise precision in data units, E[tau]."),
    "noise_degrees": ("group feature", "Degrees of freedom of the noise variance, 2 a of q(tau) = Ga(a, b)."),
    "start_loadings": ("start start_factor feature", "Loadings of each start; NaN: it has fewer factors."),
}
"""By name dimensions, and what it is."""


def variable(
    name: str, value: Callable[[Any], object], *, view: str = "", grouped: bool = False, **options: Any
) -> Variable:
    """Return a variable of the table.

    Parameters
    ----------
    name : str
        Its name there.
    value : callable
        As of `Variable`.
    view : str
        The view whose features it is of; empty: none.
    grouped : bool
        Whether there is one for each sample group, where the table has such a dimension.
    **options
        Others of `Variable`; ``doc`` in place of that of the table.
    """
    dims, doc = TABLE[name]
    named = (f"feature_{view}" if dim == "feature" else dim for dim in dims.split())
    own = tuple(dim for dim in named if grouped or dim != "group")
    given = {"doc": doc, "value": value, "rows": own[:1] == ("obs",), **options}
    return Variable(f"{name}_{view}" if view else name, own, **given)
