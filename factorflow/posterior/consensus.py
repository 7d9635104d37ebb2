"""Programs that several starts, or several fits, agree on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.errors import InputError
from factorflow.kernels.consensus import find_consensus

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.posterior.stored_posterior import StoredPosterior


def consensus_of_starts(posterior: StoredPosterior, threshold: float) -> xr.Dataset:
    """Return what the starts of a fit agree on (`Posterior.consensus`)."""
    views = [view for view in posterior.views if posterior.has(f"start_loadings_{view}")]
    if not views:
        remedy = "Fit with {n_starts}."
        expected = "a fit of several starts that stores them"
        raise InputError("model", posterior.run["config"].get("model"), expected, remedy, n_starts=20)
    stored = {view: posterior.variable(f"start_loadings_{view}").values for view in views}
    if np.isnan(stored[views[0]]).all():  # or there are none
        raise InputError("run", "one that ended before its starts did", "one that went on", "Resume it.")
    starts = [str(name) for name in posterior.coordinate("start").values]
    return consensus_dataset(stored, {view: posterior.features(view) for view in views}, starts, threshold)


def consensus_dataset(
    programs: Mapping[str, Any], features: Mapping[str, Any], starts: Sequence[str], threshold: float
) -> xr.Dataset:
    """Return a consensus with labels.

    Parameters
    ----------
    programs : mapping of str to array
        By view, (S, K, D): together they sum to 1 over the features; or loadings of either sign, NaN where a
        start has fewer factors. Of these each view counts as its size says, whatever its units.
    threshold : float
        Distance above which a program is left out.
    """
    import xarray as xr

    if not 0.0 < threshold <= 2.0:
        raise InputError("threshold", threshold, "a distance above 0 and up to 2", "For example 0.5.")
    signed = any(bool((array < 0.0).any()) for array in programs.values())
    scales = {
        view: float(np.sqrt(np.nanmean(array**2))) if signed else 1.0 for view, array in programs.items()
    }
    scales = {view: scale if scale > 0.0 else 1.0 for view, scale in scales.items()}
    joined = np.concatenate([array / scales[view] for view, array in programs.items()], axis=2)
    n_factors = int(np.median((~np.isnan(joined[:, :, 0])).sum(axis=1)))
    agreement = find_consensus(joined, n_factors, threshold, signed=signed)
    edges = np.cumsum([0, *(array.shape[2] for array in programs.values())])
    names = [f"Factor{k + 1}" for k in range(joined.shape[1])]
    result: dict[str, Any] = {
        f"loadings_{view}": (
            ("consensus_factor", f"feature_{view}"),
            agreement.programs[:, a:b] * scales[view],
        )
        for view, a, b in zip(programs, edges, edges[1:], strict=False)
    }
    result["stability"] = (("consensus_factor",), agreement.stability)
    result["label"] = (("start", "factor"), agreement.labels + 1)
    result["distance"] = (("start", "factor"), agreement.distance)
    coords = {
        "consensus_factor": [f"Consensus{k + 1}" for k in range(len(agreement.programs))],
        "start": list(starts),
        "factor": names,
        **{f"feature_{view}": np.asarray(features[view]) for view in programs},
    }
    shares = {
        "share_kept": float((agreement.labels >= 0).sum() / max(1, (~np.isnan(agreement.distance)).sum())),
        "threshold": float(threshold),
    }
    return xr.Dataset(result, coords, shares)
