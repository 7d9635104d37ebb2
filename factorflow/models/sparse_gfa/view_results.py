"""What a fit stores of each view: loadings, intercepts, noise, parameters of the likelihood."""

from __future__ import annotations

from functools import partial

import numpy as np
from jaxtyping import Float64

from factorflow.kernels.linalg import diagonal
from factorflow.models.contract import Array, Variable
from factorflow.models.sparse_gfa.intervals import corrected_table
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals
from factorflow.models.sparse_gfa.weights import Weights, expected_weights


def view_table(settings: Settings, name: str) -> list[Variable]:
    """Return the variables of a view, on the data's own scale."""
    feature = f"feature_{name}"

    def scale(g: Globals) -> Float64[Array, " D"]:
        return g.fixed[name].scale

    def weights(g: Globals) -> Weights:
        return g.weights[name]

    def loadings(g: Globals) -> Float64[Array, "D K"]:
        return expected_weights(weights(g))[0] * scale(g)[:, None]

    def spread(g: Globals) -> Float64[Array, "D K"]:
        return diagonal(expected_weights(weights(g))[1], g.n_factors) * scale(g)[:, None] ** 2

    def inclusion(g: Globals) -> Float64[Array, "D K"]:
        gamma = weights(g).inclusion
        return np.ones(weights(g).mean.shape) if gamma is None else gamma

    def precision(g: Globals) -> Float64[Array, " D"] | Float64[Array, "T D"]:
        precision = settings.precision(name, weights(g)) / scale(g)[:, None] ** 2
        return precision[:, 0] if precision.shape[1] == 1 else precision.T.copy()

    expected = "Expected loading in data units, E[w]."
    if settings.view(name).bounded:
        expected = "Expected loading in data units, E[w]: made too small by the bound (option bound)."

    def phi(name_shown: str, g: Globals) -> Float64[Array, " D"]:
        return np.asarray(settings.view(name).density.report_phi(weights(g).phi.T, scale(g))[name_shown])

    positive = not settings.view(name).prior.signed

    def degrees(g: Globals) -> Float64[Array, " D"] | Float64[Array, "T D"]:
        shape = weights(g).noise_shape
        assert shape is not None
        return 2.0 * (shape[:, 0] if shape.shape[1] == 1 else shape.T)

    table = [
        Variable(f"loadings_{name}", (feature, "factor"), expected, loadings, positive=positive),
        Variable(f"loadings_variance_{name}", (feature, "factor"), "Variance of a loading, Var w.", spread),
        *corrected_table(name, (feature, "factor")),
        Variable(
            f"intercept_{name}",
            (feature,),
            "Intercept in data units, b (with the mean subtracted first).",
            lambda g: (
                (weights(g).intercept + g.views[name].size_mean) * scale(g)
                + settings.view(name).level(g.fixed[name].reference)
            ),
        ),
        Variable(
            f"intercept_variance_{name}",
            (feature,),
            "Variance of the intercept, v_b.",
            lambda g: weights(g).intercept_variance * scale(g) ** 2,
        ),
        Variable(f"scale_{name}", (feature,), "Data units in one unit of the model.", scale),
    ]
    if settings.covariates is not None:
        table += _coefficients_table(settings, name)
    if settings.view(name).spikes:
        doc = "Probability that a loading is not 0."
        table.append(Variable(f"inclusion_{name}", (feature, "factor"), doc, inclusion))
    for variable, doc in settings.view(name).density.phi_variables.items():
        table.append(Variable(f"{variable}_{name}", (feature,), doc, partial(phi, variable)))
    if settings.view(name).is_gaussian and settings.feature_noise:
        dims = ("group", feature) if settings.n_noise_groups > 1 else (feature,)
        doc = "Noise precision in data units, E[tau]."
        table.append(Variable(f"noise_precision_{name}", dims, doc, precision))
        doc = "Degrees of freedom of the noise variance, 2 a of q(tau) = Ga(a, b)."
        table.append(Variable(f"noise_degrees_{name}", dims, doc, degrees))
    return table


def _coefficients_table(settings: Settings, name: str) -> list[Variable]:
    """Return the variables of the covariates of a view, in data units a unit of the model's covariate."""
    dims = (f"feature_{name}", "covariate")

    def scale(g: Globals) -> Float64[Array, "D 1"]:
        return g.fixed[name].scale[:, None]

    def spread(g: Globals) -> Float64[Array, "D J"]:
        return diagonal(g.weights[name].coefficients_spread, settings.n_given)[:, 1:] * scale(g) ** 2

    def joint(g: Globals) -> Float64[Array, "D CC"]:
        return g.weights[name].coefficients_spread * scale(g) ** 2

    return [
        Variable(
            f"coefficients_{name}",
            dims,
            "Coefficient of a covariate in data units.",
            lambda g: g.weights[name].coefficients[:, 1:] * scale(g),
        ),
        Variable(f"coefficients_variance_{name}", dims, "Its variance.", spread),
        Variable(
            f"coefficients_covariance_{name}",
            (f"feature_{name}", "coefficient_pair"),
            "Covariances of intercept and coefficients, packed: rows of the lower triangle.",
            joint,
        ),
    ]
