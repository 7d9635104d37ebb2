"""Programs, or factors, that several fits of the same features agree on."""

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
    """Return the programs or factors that several fits agree on: with other seeds, or parts of the samples.

    Parameters
    ----------
    posteriors : sequence of Posterior
        Fits of the same features; of programs (loadings >= 0) the same number.
    threshold : float
        Mean distance to the nearest programs of other fits, above which a program is left out.

    Returns
    -------
    Dataset
        As of `Posterior.consensus`; the fits are the starts.

    Raises
    ------
    InputError
        When there are fewer than two, or features or numbers of programs differ.
    """
    if len(posteriors) < 2:
        raise InputError("posteriors", len(posteriors), "at least two fits", "Fit with other seeds.")
    first = posteriors[0]
    views, most = first.loaded_views, max(len(posterior.factors) for posterior in posteriors)
    parts = []
    for number, posterior in enumerate(posteriors):
        same = posterior.loaded_views == views and all(
            np.array_equal(posterior.features(view), first.features(view)) for view in views
        )
        if not same or not views:
            difference = f"fit {number + 1} of {', '.join(views) or 'no view'}"
            raise InputError("posteriors", difference, "the features of fit 1", "Leave it out.")
        loadings = {view: posterior.loadings(view).values for view in views}
        if not any((values < 0.0).any() for values in loadings.values()):
            if len(posterior.factors) != most:
                actual = f"fit {number + 1} of {len(posterior.factors)} programs"
                remedy = "Leave it out, or set {drop} to 0."
                raise InputError("posteriors", actual, f"{most} programs, as of others", remedy, drop=0.0)
            total = np.sum([values.sum(axis=0) for values in loadings.values()], axis=0)
            loadings = {view: values / total for view, values in loadings.items()}
        lacking = (0, most - len(posterior.factors)), (0, 0)
        parts.append({view: np.pad(w.T, lacking, constant_values=np.nan) for view, w in loadings.items()})
    stacked = {view: np.stack([part[view] for part in parts]) for view in views}
    starts = [f"fit{i + 1}" for i in range(len(posteriors))]
    return consensus_dataset(stacked, {view: first.features(view) for view in views}, starts, threshold)
