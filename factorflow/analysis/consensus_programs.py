"""Programs that several fits of the same features agree on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from factorflow.errors import InputError
from factorflow.kernels.consensus import THRESHOLD
from factorflow.posterior.consensus import consensus_dataset

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.posterior.stored_posterior import StoredPosterior


def consensus(posteriors: Sequence[StoredPosterior], threshold: float = THRESHOLD) -> xr.Dataset:
    """Return the programs that several fits agree on: with other seeds, or other parts of the cells.

    Parameters
    ----------
    posteriors : sequence of Posterior
        Fits of the same features and number of programs, with loadings >= 0.
    threshold : float
        Mean distance to the nearest programs of other fits, above which a program is left out.

    Returns
    -------
    Dataset
        As of `Posterior.consensus`; the fits are the starts.

    Raises
    ------
    InputError
        When there are fewer than two, features or numbers of programs differ, or loadings are negative.
    """
    if len(posteriors) < 2:
        raise InputError("posteriors", len(posteriors), "at least two fits", "Fit with other seeds.")
    first = posteriors[0]
    views, k = first.loaded_views, len(first.factors)
    parts = []
    for number, posterior in enumerate(posteriors):
        same = posterior.loaded_views == views and all(
            np.array_equal(posterior.features(view), first.features(view)) for view in views
        )
        if not same or len(posterior.factors) != k or not views:
            difference = (
                f"fit {number + 1} of {len(posterior.factors)} programs of {', '.join(views) or 'no view'}"
            )
            expected = f"{k} programs of the same features as fit 1"
            raise InputError(
                "posteriors", difference, expected, "Leave it out, or set {drop} to 0.", drop=0.0
            )
        loadings = {view: posterior.loadings(view).values for view in views}
        if min(values.min() for values in loadings.values()) < 0.0:
            expected = "loadings >= 0: a consensus is of programs"
            raise InputError("posteriors", f"fit {number + 1}", expected, "Use match_factors.")
        total = np.sum([values.sum(axis=0) for values in loadings.values()], axis=0)
        parts.append({view: (values / total).T for view, values in loadings.items()})
    stacked = {view: np.stack([part[view] for part in parts]) for view in views}
    starts = [f"fit{i + 1}" for i in range(len(posteriors))]
    return consensus_dataset(stacked, {view: first.features(view) for view in views}, starts, threshold)
