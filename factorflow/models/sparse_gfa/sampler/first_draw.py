"""The draw that a chain begins with: the means of the variational fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.naming import holds, own_evidence
from factorflow.models.sparse_gfa.sampler.gibbs_state import (
    ChainGlobals,
    DrawnView,
    DrawnWeights,
    FactorSets,
    Names,
    Record,
    Shared,
)
from factorflow.models.sparse_gfa.sampler.metropolis import corrected_views
from factorflow.models.sparse_gfa.sampler.pooled import NoisePrior, SlabPrior
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.smooth.rows import course_units
from factorflow.models.sparse_gfa.state import Fixed, Globals
from factorflow.models.sparse_gfa.weights import expected_weights

NOISE = (1.0, 0.05, 1.0)
"""a, s and gamma of the first sweep: next to nothing is said about the noise."""
SLAB = (1.0, 1.0)
"""c and t of the first sweep."""


def first_draw(settings: Settings, globals_: Globals) -> ChainGlobals:
    """Return the means of the variational fit, as the draw that a chain begins with."""
    weights, views, variances, reference, classes = {}, {}, {}, {}, {}
    for view in settings.views:
        fitted, mine = globals_.weights[view.name], globals_.views[view.name]
        mean, phi = expected_weights(fitted)[0], None
        if view in corrected_views(settings):
            phi = fitted.phi
            reference[view.name] = DrawnWeights(mean, fitted.coefficients, None, phi=phi)
        if fitted.inclusion is not None:
            mean = np.where(fitted.inclusion > 0.5, mean, 0.0)
        precision, noise = None, None
        if view.is_gaussian:
            precision = settings.precision(view.name, fitted)
            variances[view.name], level = _variances(globals_.fixed[view.name])
            noise = NoisePrior(*NOISE, level)
        weights[view.name] = DrawnWeights(mean, fitted.coefficients, precision, phi=phi)
        first = view.prior.first_parameters(mine)
        spread = mine.intercept_shape / mine.intercept_rate
        terms, of_intercepts = mine.coefficient_shape / mine.coefficient_rate, (mine.intercept_mean, spread)
        if not view.density.has_intercept:
            of_intercepts = 0.0, view.density.n_phi / view.density.phi_sd**2
        views[view.name] = DrawnView(first.alpha, first.theta, *of_intercepts, noise, terms, first.shares)
        if fitted.classes is not None:
            classes[view.name] = fitted.classes
    n_factors = globals_.n_factors
    turn = np.eye(n_factors) if globals_.change.transform is None else globals_.change.transform
    sizes = [globals_.views[name] for name in settings.learned_sizes]
    beta, courses = globals_.scores.beta_shape / globals_.scores.beta_rate, globals_.courses
    if courses is not None:
        assert settings.smooth is not None
        units = course_units(settings.smooth.basis, courses)
        none = np.zeros((n_factors, 0, 0))
        courses = replace(courses, covariance=none, values=None, spread=None, units=units)
        beta = np.stack([np.ones(n_factors), 1.0 / courses.noise])
    slab = SlabPrior(*SLAB) if settings.priors.learned_slab else None
    of_scores, psi = globals_.scores, None
    if settings.scores_spike:
        psi = of_scores.psi_on / (of_scores.psi_on + of_scores.psi_off)
    shared = Shared(views, beta, slab, np.array([view.size_shape / view.size_rate for view in sizes]), psi)
    still = np.zeros((settings.n_given, n_factors + len(sizes)))
    record, names = Record(weights, shared, courses), Names.of(weights.values())
    own = variances, turn, still, record, names, globals_.factors.numbers, reference
    sets, assigned = None, globals_.factors.sets
    if settings.sets is not None and assigned is not None:
        sets = FactorSets(assigned, holds(settings, globals_), own_evidence(settings, globals_))
    beside: dict[str, Any] = {"courses": courses, "classes": classes, "sets": sets}
    return ChainGlobals(globals_.fixed, weights, shared, *own, **beside)


def _variances(fixed: Fixed) -> tuple[Float64[Array, " D"], float]:
    """Return the variance of the entries of each feature, and of the view; of constants, that of the view."""
    squares, count = fixed.squares.sum(axis=1), fixed.count.sum(axis=1)
    level = float(squares.sum() / max(1.0, count.sum())) or 1.0
    varied = (count > 0.0) & (squares > 0.0)
    return np.where(varied, squares / np.maximum(count, 1.0), level), level
