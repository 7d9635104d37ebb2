"""The level of all intercepts of a view at once, where few entries tell of each.

The fewer entries tell of a feature, the more its intercept keeps to their mean m, and m is theirs in turn:
with lambda far above what the entries of a feature tell (U_d), both move by a share U / (lambda + U) of the
way in a pass. So after each pass b and m move together, to where the bound is highest. With b_d at its
maximum the slope of the likelihood along it is lambda (b_d - m), and v_b = 1 / (lambda + U_d)::

    delta = (lambda sum_d (b_d - m) - kappa_0 m') / (sum_d U_d + kappa_0),   m' = what m comes to without it

Nothing else of the bound changes but the likelihood, by delta lambda sum_d (b_d - m) - delta^2 / 2 sum_d U_d.
"""

from __future__ import annotations

from collections.abc import Mapping

from factorflow.models.sparse_gfa.features import precision_pairs
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals, Weights
from factorflow.models.sparse_gfa.sums import FeatureSums
from factorflow.trees import replace

__all__ = ["levelled"]

LEAST = 1e-3
"""Nats that a move gains at least."""


def levelled(
    settings: Settings, before: Globals, parts: Mapping[str, Weights], sums: Mapping[str, FeatureSums]
) -> tuple[Mapping[str, Weights], Mapping[str, FeatureSums]]:
    """Return weights and sums with all intercepts of each view moved by the same, if binary entries are few.

    Parameters
    ----------
    settings, before : Settings, Globals
        Of the run; before the pass.
    parts, sums : mapping of view to Weights, FeatureSums
        Of the pass: intercepts are at their maximum, given what they share.
    """
    if not settings.is_small_binary or settings.inference != "full" or not settings.intercepts:
        return parts, sums
    weights, levelled_sums = dict(parts), dict(sums)
    for name, mine in parts.items():
        view, added = before.views[name], sums[name]
        size, prior = len(mine.intercept), settings.priors.intercept_mean
        precision = view.intercept_shape / view.intercept_rate
        slope = precision * (added.intercepts - size * view.intercept_mean)
        known = float((1.0 / mine.intercept_variance).sum()) - size * precision
        mean = precision * added.intercepts / (prior + size * precision)
        by = (slope - prior * mean) / (known + prior)
        if 0.5 * by * slope < LEAST:
            continue
        weights[name] = replace(mine, intercept=mine.intercept + by)
        levelled_sums[name] = replace(
            added,
            likelihood=added.likelihood + by * slope - 0.5 * by**2 * known,
            intercepts=added.intercepts + size * by,
            intercept_squares=added.intercept_squares + 2.0 * by * added.intercepts + size * by**2,
            pairs=precision_pairs(settings, name, weights[name]),
        )
    return weights, levelled_sums
