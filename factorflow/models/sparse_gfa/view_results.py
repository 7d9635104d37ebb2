"""What a fit stores of each view: loadings, intercepts, noise, parameters of the likelihood."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float64

from factorflow.kernels.linalg import diagonal
from factorflow.models.contract import Array, Variable
from factorflow.models.sparse_gfa.intervals import corrected_table
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals
from factorflow.models.sparse_gfa.variables import variable
from factorflow.models.sparse_gfa.weights import Weights, expected_weights


def view_table(settings: Settings, name: str) -> Iterator[Variable]:
    """Yield the variables of a view, on the data's own scale."""
    of_view = partial(variable, view=name)

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

    def phi(name_shown: str, g: Globals) -> Float64[Array, " D"]:
        return np.asarray(settings.view(name).density.report_phi(weights(g).phi.T, scale(g))[name_shown])

    def degrees(g: Globals) -> Float64[Array, " D"] | Float64[Array, "T D"]:
        shape = weights(g).noise_shape
        assert shape is not None
        return 2.0 * (shape[:, 0] if shape.shape[1] == 1 else shape.T)

    options: dict[str, Any] = {"positive": not settings.view(name).prior.signed}
    if settings.view(name).bounded:
        options["doc"] = "Expected loading in data units, E[w]: made too small by the bound (option bound)."
    yield of_view("loadings", loadings, **options)
    yield of_view("loadings_variance", spread)
    yield from corrected_table(name)
    yield of_view(
        "intercept",
        lambda g: (
            (weights(g).intercept + g.views[name].size_mean) * scale(g)
            + settings.view(name).level(g.fixed[name].reference)
        ),
    )
    yield of_view("intercept_variance", lambda g: weights(g).intercept_variance * scale(g) ** 2)
    yield of_view("scale", scale)
    if settings.covariates is not None:
        yield from _coefficients_table(settings, name)
    if settings.view(name).spikes:
        yield of_view("inclusion", inclusion)
    for parameter, doc in settings.view(name).density.phi_variables.items():
        yield Variable(f"{parameter}_{name}", (f"feature_{name}",), doc, partial(phi, parameter))
    if settings.view(name).is_gaussian and settings.feature_noise:
        yield of_view("noise_precision", precision, grouped=settings.n_noise_groups > 1)
        yield of_view("noise_degrees", degrees, grouped=settings.n_noise_groups > 1)


def _coefficients_table(settings: Settings, name: str) -> Iterator[Variable]:
    """Yield the variables of the covariates of a view, in data units a unit of the model's covariate."""
    of_view = partial(variable, view=name)

    def scale(g: Globals) -> Float64[Array, "D 1"]:
        return g.fixed[name].scale[:, None]

    def covariances(g: Globals) -> Float64[Array, "D CC"]:
        return g.weights[name].coefficients_spread * scale(g) ** 2

    yield of_view("coefficients", lambda g: g.weights[name].coefficients[:, 1:] * scale(g))
    yield of_view("coefficients_variance", lambda g: diagonal(covariances(g), settings.n_given)[:, 1:])
    yield of_view("coefficients_covariance", covariances)
