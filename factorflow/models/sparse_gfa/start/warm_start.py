"""A start from an earlier fit to other rows: what it learned, in the units of the data as they are now."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.likelihoods import Likelihood
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Change, Globals, Progress, View
from factorflow.models.sparse_gfa.weights import Weights, sum_pairs


def warm_globals(settings: Settings, globals_: Globals, fitted: Globals) -> Globals:
    """Return the globals of an earlier fit, with weights that mean the same on the scale of the data.

    Reference and scale of a Gaussian feature change as rows come: entries are (data - reference) / scale.
    With r = old scale / new scale, weights become r w, their variances r^2 times as large, noise precisions
    1 / r^2 times, and b becomes (b old scale + old reference - new reference) / new scale.

    Parameters
    ----------
    settings : Settings
        Of the model.
    globals_ : Globals
        As the pass for the moments left them.
    fitted : Globals
        Of the earlier fit.
    """
    weights, views = {}, {}
    for view in settings.views:
        name = view.name
        now, before = globals_.fixed[name], fitted.fixed[name]
        moved = before.location - now.location if view.is_scaled else 0.0 * now.scale
        old = fitted.weights[name]
        old = old if view.prior.guides else replace(old, classes=None)
        weights[name] = _in_units(view.density, old, before.scale, now.scale, moved)
        views[name] = _view(settings, name, fitted.views[name], weights[name], before.scale / now.scale)
    numbers = fitted.factors.numbers
    numbers = np.arange(fitted.n_factors) if numbers is None else numbers
    return replace(
        fitted,
        fixed=globals_.fixed,
        weights=weights,
        views=views,
        factors=replace(fitted.factors, worth=None, sets=None, numbers=numbers),
        change=Change(),
        progress=Progress(objective=fitted.progress.objective),
        basis={},
        starts=(),
        closing=None,
    )


def _in_units(
    density: Likelihood,
    weights: Weights,
    before: Float64[np.ndarray, " D"],
    now: Float64[np.ndarray, " D"],
    moved: Float64[np.ndarray, " D"],
) -> Weights:
    """Return weights of the scale ``before`` as those of another; ``moved``: old less new reference."""
    ratio = before / now
    coefficients = weights.coefficients * ratio[:, None]
    coefficients[:, 0] += moved / now
    rate, squared, phi = weights.noise_rate, weights.scaled_square, weights.phi
    if phi.size:
        phi = density.phi_from_report(density.report_phi(phi.T, ratio)).T
    return replace(
        weights,
        mean=weights.mean * ratio[:, None],
        variance=weights.variance * ratio[:, None] ** 2,
        coefficients=coefficients,
        coefficients_spread=weights.coefficients_spread * ratio[:, None] ** 2,
        noise_rate=None if rate is None else rate * ratio[:, None] ** 2,
        phi=phi,
        scaled_square=None if squared is None else squared * ratio[:, None] ** 2,
    )


def _view(settings: Settings, name: str, view: View, weights: Weights, ratio: Float64[Array, " D"]) -> View:
    """Return what the features of a view share, as it is for weights ``ratio`` times as large."""
    grown = float(np.mean(ratio ** settings.view(name).prior.power))
    return replace(
        view,
        alpha_rate=view.alpha_rate * grown,
        pairs=sum_pairs(weights, settings.precision(name, weights)),
    )
