"""Views in which a factor is active; tables and figures of others would show noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool

if TYPE_CHECKING:
    from factorflow.posterior.stored_posterior import StoredPosterior

LEAST_SHARE = 0.001
"""Share of a view's variance below which a factor does not touch it."""

LEAST_INCLUSION = 0.5
"""A view is touched by a factor if one of its loadings differs from 0 with at least this probability."""


def active_views(posterior: StoredPosterior, factor: str) -> list[str]:
    """Return the views in which a factor is active, in order; see `active_factors`."""
    k = posterior.factors.index(factor)
    return [view for view in posterior.loaded_views if active_factors(posterior, view)[k]]


def active_factors(posterior: StoredPosterior, view: str) -> Bool[np.ndarray, " K"]:
    """Return which factors are active in a view.

    One explains a thousandth of the view's variance, in one sample group at least, where that was recorded;
    and a loading differs from 0 more likely than not, where the model has such probabilities. Of a model that
    knows neither, a loading is not 0.
    """
    active = np.ones(len(posterior.factors), bool)
    if posterior.has("variance_explained"):
        share = posterior.variable("variance_explained")
        if {"view", "factor"} <= set(share.dims) and view in share["view"].values:
            of_view = share.sel(view=view)
            largest = of_view.max([name for name in of_view.dims if name != "factor"])
            active &= ~(largest.values < LEAST_SHARE)  # NaN: nothing was measured by which to tell
    name = f"inclusion_{view}"
    if posterior.has(name) and "factor" in posterior.array(name).dims:
        inclusion = posterior.variable(name).transpose(..., "factor").values
        return active & (inclusion >= LEAST_INCLUSION).reshape(-1, len(active)).any(axis=0)
    loadings = posterior.loadings(view)
    if "factor" in loadings.dims:
        active &= (loadings.transpose(..., "factor").values != 0.0).reshape(-1, len(active)).any(axis=0)
    return active


def n_active_features(posterior: StoredPosterior, factor: str, view: str) -> int | None:
    """Return the number of features of a view with inclusion above 1/2; None if inclusion is not known."""
    name = f"inclusion_{view}"
    if not posterior.has(name) or "factor" not in posterior.array(name).dims:
        return None
    return int((posterior.variable(name).sel(factor=factor).values >= LEAST_INCLUSION).sum())
