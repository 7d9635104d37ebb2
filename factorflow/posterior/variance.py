"""Variance explained on the data scale: as the model recorded it, or from one pass over the dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from factorflow.errors import InputError
from factorflow.posterior.prediction import Predictor

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.posterior.posterior import Posterior

__all__ = ["variance_explained"]


def variance_explained(posterior: Posterior, *, by_group: bool = False) -> xr.Dataset:
    """Return ``variance_explained`` by each factor (view, factor), and ``variance_explained_total`` (view,).

    1 - sum (y - yhat)^2 / sum (y - mean of the feature)^2 over the observed entries of a view, where yhat is
    predicted from one factor alone (and the intercepts), or from all. For groups the sums run over their
    samples; the mean of a feature is always that over all samples.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    by_group : bool
        Separately in every sample group.

    Raises
    ------
    InputError
        When the family has no factors with loadings, or the dataset has no groups.
    """
    if by_group and not posterior.meta.groups:
        raise InputError("by_group", True, "a dataset with sample groups", "Give write_dataset the groups.")
    if posterior.has("variance_explained"):
        share = posterior.variable("variance_explained")
        if ("group" in share.dims) == by_group:
            total = posterior.variable("variance_explained_total")
            return share.to_dataset(name="variance_explained").assign(variance_explained_total=total)
    return _from_data(posterior, by_group)


def _from_data(posterior: Posterior, by_group: bool) -> xr.Dataset:
    """Compute the shares in one pass over the dataset."""
    import xarray as xr

    dataset, factors = posterior.dataset, posterior.factors
    if posterior.kind != "variational" or not factors:
        raise InputError(
            "variance_explained",
            posterior.run["config"].get("model"),
            "a family that records it, or a variational one with factors",
            "Compare held-out scores instead.",
        )
    groups = list(posterior.meta.groups) if by_group else [""]
    residual = np.zeros((len(groups), len(posterior.views), 1 + len(factors)))
    total = np.zeros((len(groups), len(posterior.views)))
    for m, view in enumerate(posterior.views):
        predictors = [Predictor(posterior, view)]
        predictors += [_alone(predictors[0], posterior, view, k) for k in range(len(factors))]
        mean = dataset.moments(view)["mean"]
        for number in range(dataset.n_blocks):
            block = dataset.block(number, [view])
            values = block.data[view]
            seen = np.asarray(values >= 0 if values.dtype.kind == "i" else ~np.isnan(values))
            rows = block.start + np.arange(block.n_rows)
            codes = block.columns["group"] if by_group else np.zeros(block.n_rows, int)
            fits = [np.broadcast_to(mean, values.shape), *(predictor(rows)[0] for predictor in predictors)]
            squares = np.stack([(np.where(seen, values - fit, 0.0) ** 2).sum(1) for fit in fits], axis=1)
            sums = np.stack([squares[codes == g].sum(0) for g in range(len(groups))])
            total[:, m] += sums[:, 0]
            residual[:, m] += sums[:, 1:]
    share = 1.0 - residual / np.maximum(total, 1e-300)[:, :, None]
    result = xr.Dataset(
        {
            "variance_explained": (("group", "view", "factor"), share[:, :, 1:]),
            "variance_explained_total": (("group", "view"), share[:, :, 0]),
        },
        coords={"group": groups, "view": list(posterior.views), "factor": factors},
    )
    return result if by_group else result.isel(group=0, drop=True)


def _alone(predictor: Predictor, posterior: Posterior, view: str, k: int) -> Predictor:
    """Return predictions from factor k alone."""
    changes = {}
    for name in (f"loadings_{view}", f"loadings_variance_{view}"):
        if posterior.has(name):
            values = np.zeros_like(posterior.variable(name).values)
            values[:, k] = posterior.variable(name).values[:, k]
            changes[name] = values
    return predictor.with_record(changes)
