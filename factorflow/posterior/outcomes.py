"""Risks and survival curves of the samples, of views of times to an event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from factorflow.errors import InputError
from factorflow.likelihoods.survival import Survival
from factorflow.posterior.labels import names_of_rows
from factorflow.posterior.prediction import PIECE_ENTRIES, Predictor

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.posterior.stored_posterior import StoredPosterior


def risk(posterior: StoredPosterior, view: str, rows: NDArray[np.intp]) -> xr.DataArray:
    """Return the expected log hazard of samples beside the baseline (`Posterior.risk`)."""
    import xarray as xr

    _density(posterior, view)
    values = Predictor(posterior, view).distribution(rows).mean[:, 0]
    doc = {"long_name": "Expected log hazard relative to the baseline."}
    return xr.DataArray(values, {"obs": names_of_rows(posterior, rows)}, ("obs",), "risk", doc)


def survival(
    posterior: StoredPosterior, view: str, times: Sequence[float] | None, rows: NDArray[np.intp]
) -> xr.DataArray:
    """Return the probability that samples have no event until each time (`Posterior.survival`)."""
    import xarray as xr

    density = _density(posterior, view)
    at = np.array(density.edges if times is None else times, dtype=float)
    if at.ndim != 1 or not (np.isfinite(at) & (at >= 0.0)).all():
        raise InputError("times", times, "numbers of 0 or more", "For example [12.0, 24.0].")
    predictor, out = Predictor(posterior, view), np.empty((len(rows), len(at)))
    piece = max(1, PIECE_ENTRIES // max(1, len(at)))
    for begin in range(0, len(rows), piece):
        part = slice(begin, begin + piece)
        predictive = predictor.distribution(rows[part])
        for j, time in enumerate(at):
            above = predictive.tails(np.full(predictive.mean.shape, time))[1][:, 0]
            out[part, j] = np.minimum(above, 1.0)  # weights of nodes sum to 1 but for rounding
    coords = {"obs": names_of_rows(posterior, rows), "time": at}
    doc = {"long_name": "Probability of no event until the time."}
    return xr.DataArray(out, coords, ("obs", "time"), "survival", doc)


def _density(posterior: StoredPosterior, view: str) -> Survival:
    density = posterior.model.likelihood(view)
    if not isinstance(density, Survival):
        expected = "a view that was fitted under the likelihood survival"
        raise InputError("view", f"{view} ({density.label})", expected, "Use predict(view).")
    return density
