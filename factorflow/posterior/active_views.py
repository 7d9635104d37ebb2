"""Views in which a factor is active; tables and figures of others would show noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from factorflow.posterior.stored_posterior import StoredPosterior

LEAST_SHARE = 0.001
"""Share of a view's variance below which a factor does not touch it."""

LEAST_INCLUSION = 0.5
"""A view is touched by a factor if one of its loadings differs from 0 with at least this probability."""


def active_views(posterior: StoredPosterior, factor: str) -> list[str]:
    """Return the views in which a factor is active, in order.

    It explains a thousandth of the view's variance, in one sample group at least, where that was recorded;
    and a loading differs from 0 more likely than not, where the model has such probabilities. Of a model that
    knows neither, a view of which a loading is not 0.
    """
    return [view for view in posterior.loaded_views if _touches(posterior, factor, view)]


def n_active_features(posterior: StoredPosterior, factor: str, view: str) -> int | None:
    """Return the number of features of a view with inclusion above 1/2; None if inclusion is not known."""
    name = f"inclusion_{view}"
    if not posterior.has(name) or "factor" not in posterior.array(name).dims:
        return None
    return int((posterior.variable(name).sel(factor=factor).values >= LEAST_INCLUSION).sum())


def _touches(posterior: StoredPosterior, factor: str, view: str) -> bool:
    if posterior.has("variance_explained"):
        share = posterior.variable("variance_explained")
        if {"view", "factor"} <= set(share.dims) and view in share["view"].values:
            largest = float(share.sel(view=view, factor=factor).max())
            if largest < LEAST_SHARE:  # NaN: nothing was measured by which to tell
                return False
    n_reached = n_active_features(posterior, factor, view)
    if n_reached is not None:
        return n_reached > 0
    loadings = posterior.loadings(view)
    if "factor" not in loadings.dims:
        return True
    return bool(np.any(loadings.sel(factor=factor).values != 0.0))
