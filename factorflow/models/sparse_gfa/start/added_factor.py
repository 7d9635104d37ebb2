"""A factor more than a fit has: what its loadings and all that belongs to it begin with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64, Int8

from factorflow.core.trees import replace
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals, View, replace_part
from factorflow.models.sparse_gfa.weights import Weights, sum_pairs

UNKNOWN, LEAST_SPREAD = 0.05, 0.01
"""Inclusion of loadings that are not known; relative variance of those that are."""


def with_added_factor(
    settings: Settings,
    globals_: Globals,
    loadings: Mapping[str, Float64[Array, " D"]],
    number: int | None = None,
) -> Globals:
    """Return the globals with a factor more, to be learned.

    Parameters
    ----------
    settings, globals_ : Settings, Globals
        Of the run.
    loadings : mapping of view to array
        Its loadings, in units of the noise of each feature; 0 where they are not known. Views that are not
        there have none.
    number : int or None
        Feature set that it is named by; None where factors have no sets.
    """
    weights, views = {}, {}
    for view in settings.views:
        old, shared = globals_.weights[view.name], globals_.views[view.name]
        mean, inside = np.zeros(len(old.mean)), np.zeros(len(old.mean), np.int8)
        if number is not None and settings.sets is not None and view.name in settings.sets.members:
            inside[list(settings.sets.members[view.name][number])] = 1
        if view.name in loadings:
            mean = loadings[view.name] / np.sqrt(settings.precision(view.name, old).mean(axis=1))
        alpha = float(np.median(shared.alpha)) if globals_.n_factors else 1.0
        weights[view.name] = _with_column(old, mean, inside, alpha)
        prior = view.prior
        constants, sums = settings.prior_constants(view), prior.sums(weights[view.name])
        views[view.name] = prior.learn(constants, _with_entry(shared), sums)
    k, of_factors = globals_.n_factors, globals_.factors
    padded: dict[str, Any] = {
        f: np.pad(getattr(globals_.scores, f), ((0, 0), (0, 1)), constant_values=1.0)
        for f in ("beta_shape", "beta_rate", "psi_on", "psi_off")
    }
    second = np.pad(globals_.scores.second, (0, 1))
    second[k, k] = 1.0
    of_scores = None if globals_.scores.mean is None else np.append(globals_.scores.mean, 0.0)
    return replace(
        globals_,
        weights=weights,
        views=views,
        scores=replace(globals_.scores, second=second, mean=of_scores, **padded),
        factors=replace(
            of_factors,
            strength=np.pad(of_factors.strength, ((0, 0), (0, 1)), constant_values=1.0),
            worth=None,
            sets=None if number is None or of_factors.sets is None else np.append(of_factors.sets, number),
        ),
        change=globals_.change.followed_by(np.eye(k + 1, k)),
        progress=replace(globals_.progress, score=float("nan")),
    )


def with_fresh_pairs(settings: Settings, globals_: Globals) -> Globals:
    """Return the globals as a stage begins with them, after factors were added."""
    views = {
        name: replace(
            view, pairs=sum_pairs(globals_.weights[name], settings.precision(name, globals_.weights[name]))
        )
        for name, view in globals_.views.items()
    }
    return replace_part(
        replace(globals_, views=views),
        "progress", objective=float("nan"), snapshot=None, iterates=(), trial_failed=False,
    )  # fmt: skip


def _with_column(
    weights: Weights, mean: Float64[Array, " D"], inside: Int8[Array, " D"], alpha: float
) -> Weights:
    """Return weights with a factor more; ``alpha`` is the precision of loadings that are not known."""

    def beside(array: Any, column: Array) -> Any:
        return None if array is None else np.concatenate([array, column[..., None]], axis=-1)

    non_zero, unknown = mean != 0.0, np.full(len(mean), 1.0 / alpha)
    shares = weights.shares
    return replace(
        weights,
        mean=beside(weights.mean, mean),
        variance=beside(weights.variance, np.where(non_zero, LEAST_SPREAD * mean**2, unknown)),
        inclusion=beside(weights.inclusion, np.where(non_zero, 1.0, UNKNOWN)),
        scaled_square=beside(weights.scaled_square, unknown),
        entropies=beside(weights.entropies, np.zeros(len(mean))),
        classes=beside(weights.classes, inside),
        shares=None if shares is None else beside(shares, np.full(shares.shape[:2], 1.0 / shares.shape[1])),
    )


def _with_entry(view: View) -> View:
    """Return parameters with a factor more, to be learned."""
    names = ("alpha_shape", "alpha_rate", "theta_on", "theta_off")
    padded: dict[str, Any] = {f: np.append(getattr(view, f), 1.0) for f in names}
    counts = None if view.counts is None else np.pad(view.counts, ((0, 0), (0, 1)), constant_values=1.0)
    return replace(view, **padded, counts=counts)
