"""Variance explained on the data scale: as the model recorded it, or from one pass over the dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64

from factorflow.errors import InputError
from factorflow.kernels.explained import explained_share, total_squares
from factorflow.posterior.prediction import Predictor

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.data import Dataset
    from factorflow.data.aligned import Aligned
    from factorflow.posterior.stored import Stored

__all__ = ["variance_explained"]


def variance_explained(posterior: Stored, *, by_group: bool = False) -> xr.Dataset:
    """Return ``variance_explained`` by each factor (view, factor), and ``variance_explained_total`` (view,).

    In total 1 - sum (y - yhat)^2 / sum (y - mean of the feature)^2 over the observed entries of a view. By
    one factor: what it takes, with the intercepts, from the residual sum of squares of the intercepts alone,
    as a share of the same denominator, so that a factor without loadings explains nothing. For groups the
    sums run over their samples; the mean of a feature is always that over all samples.

    Parameters
    ----------
    posterior : Stored
        What was fitted.
    by_group : bool
        Separately in every sample group.

    Raises
    ------
    InputError
        When the family has no factors with loadings, or the dataset has no groups.
    """
    if by_group and not posterior.meta.groups:
        expected, remedy = "a dataset with sample groups", "Write the dataset with {groups}."
        raise InputError("by_group", True, expected, remedy, groups=...)
    if posterior.has("variance_explained"):
        share = posterior.variable("variance_explained")
        if ("group" in share.dims) == by_group:
            total = posterior.variable("variance_explained_total")
            return share.to_dataset(name="variance_explained").assign(variance_explained_total=total)
    return _from_data(posterior, by_group)


def _from_data(posterior: Stored, by_group: bool) -> xr.Dataset:
    """Compute the shares in one pass over the dataset."""
    import xarray as xr

    dataset, factors = posterior.data, posterior.factors
    if posterior.kind != "variational" or not factors:
        raise InputError(
            "variance_explained",
            posterior.run["config"].get("model"),
            "a family that records it, or a variational one with factors",
            "Compare held-out scores instead.",
        )
    groups = list(posterior.meta.groups) if by_group else [""]
    views = [view.name for view in posterior.meta.value_views]
    parts = [_squares(posterior, dataset, view, len(groups)) for view in views]
    total = np.stack([part[0] for part in parts], axis=1)
    residual = np.stack([part[1] for part in parts], axis=1)
    single = residual[:, :, 1:-1] + (total[:, :, None] - residual[:, :, -1:])
    share = explained_share(total[:, :, None], single)
    result = xr.Dataset(
        {
            "variance_explained": (("group", "view", "factor"), share),
            "variance_explained_total": (("group", "view"), explained_share(total, residual[:, :, 0])),
        },
        coords={"group": groups, "view": views, "factor": factors},
    )
    return result if by_group else result.isel(group=0, drop=True)


def _squares(
    posterior: Stored, dataset: Dataset | Aligned, view: str, n_groups: int
) -> tuple[Float64[np.ndarray, " G"], Float64[np.ndarray, "G K2"]]:
    """Return sums of squares of a view: about its features' means, and about 2 + K predictions.

    The predictions are those by all factors, by each alone, and by the intercepts alone.
    Entries that were held out of the fit are left out.
    """
    from factorflow.data import Holdout

    holdout = Holdout.of(posterior.run, dataset.design)
    whole = Predictor(posterior, view)
    predictors = [whole, *(whole.with_factors([k]) for k in range(len(posterior.factors)))]
    predictors.append(whole.with_factors([]))
    residual = np.zeros((n_groups, len(predictors)))
    moments = np.zeros((3, n_groups, len(posterior.features(view))))
    shift = np.nan_to_num(dataset.moments(view, "mean")["mean"])
    for number in range(dataset.n_blocks):
        block = dataset.block(number, [view], holdout)
        values = block.data[view]
        y, seen = dataset.views[view].kind.fill_missing(values)
        about = np.where(seen, y - shift, 0.0)
        codes = block.columns["group"] if n_groups > 1 else np.zeros(block.n_rows, int)
        rows = block.rows
        fits = [(np.where(seen, y - predictor(rows)[0], 0.0) ** 2).sum(1) for predictor in predictors]
        for g in range(n_groups):
            mine = codes == g
            residual[g] += [fit[mine].sum() for fit in fits]
            moments[:, g] += [part[mine].sum(0) for part in (seen, about, about * about)]
    by_feature = total_squares(*moments)
    known = ~np.isnan(by_feature).all(axis=1)
    return np.where(known, np.nansum(by_feature, axis=1), np.nan), residual
