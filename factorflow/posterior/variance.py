"""Variance explained on the data scale: as the model recorded it, or from one pass over the dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float64

from factorflow.errors import InputError
from factorflow.kernels.explained import explained_share, total_squares
from factorflow.posterior.prediction import Predictor

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.data import Dataset
    from factorflow.data.aligned_dataset import AlignedDataset
    from factorflow.posterior.stored_posterior import StoredPosterior

By = Literal["group", "sample", "feature"]


def variance_explained(
    posterior: StoredPosterior, by: By | None = None, view: str | None = None
) -> xr.Dataset:
    """Return ``variance_explained`` by each factor (view, factor), and ``variance_explained_total`` (view,).

    In total 1 - sum (y - yhat)^2 / sum (y - mean of the feature)^2 over the observed entries of a view. By
    one factor: what it takes, with the intercepts, from the residual sum of squares of the intercepts alone,
    as a share of the same denominator, so that a factor without loadings explains nothing (other
    factors are at their mean: 0, but of scores that may not be negative). For groups and samples the sums run
    over their entries; the mean of a feature is always that over all samples.

    Parameters
    ----------
    by : {"group", "sample", "feature"}, optional
        Separately in every sample group or sample, or of every feature.
    view : str, optional
        One view alone, without the dimension.

    Raises
    ------
    InputError
        When the family has no factors with loadings, or shares by feature are asked for of several views.
    """
    if by in (None, "group") and posterior.has("variance_explained"):
        share = posterior.variable("variance_explained")
        if ("group" in share.dims) == (by == "group"):
            total = posterior.variable("variance_explained_total")
            explained = share.to_dataset(name="variance_explained").assign(variance_explained_total=total)
            return explained if view is None else explained.sel(view=view, drop=True)
    return _from_data(posterior, by, view)


def contribution_scores(
    posterior: StoredPosterior, by_sample: xr.DataArray, total: xr.DataArray
) -> xr.DataArray:
    """Return the contribution of each view to the scores of a sample (`Posterior.contribution_scores`).

    Parameters
    ----------
    by_sample, total : DataArray
        The variance that all factors explain: (obs, view), and (view,).
    """
    if len(posterior.meta.value_views) < 2:
        names = ", ".join(view.name for view in posterior.meta.value_views)
        remedy = "Use variance_explained_total(by='sample')."
        raise InputError("views", names, "at least two views that are explained", remedy)
    relative = (by_sample / total.where(total > 0)).clip(min=0.0)
    return relative / relative.sum("view").where(lambda whole: whole > 0)


def _from_data(posterior: StoredPosterior, by: By | None, view: str | None) -> xr.Dataset:
    """Compute the shares of factors in one pass over the dataset; by sample in two."""
    alone: list[list[int]] = [*([k] for k in range(len(posterior.factors))), []]

    def predictors(whole: Predictor) -> list[Predictor]:
        return [whole, *(whole.with_factors(factors, others_at_mean=True) for factors in alone)]

    squares = _squares_of_views(posterior, by, view, predictors)
    total, residual = squares.total, squares.residual
    single = residual[:, :, 1:-1] + (total[:, :, None] - residual[:, :, -1:])
    shares = explained_share(total[:, :, None], single)
    of_all = explained_share(total, residual[:, :, 0])
    return squares.labelled(
        {"variance_explained": ("factor", shares), "variance_explained_total": ("", of_all)},
        {"factor": posterior.factors},
    )


def terms_from_data(posterior: StoredPosterior, by: By | None, view: str | None) -> xr.DataArray:
    """Return the shares that each term of covariates explains alone, then all, as `_from_data` does.

    That is what a term takes from the residual of the intercepts: nothing, if it has no coefficients.
    """
    covariates = posterior.meta.covariates
    assert covariates is not None
    masks = [covariates.groups == number for number in range(len(covariates.terms))]
    masks += [np.ones(len(covariates), bool), np.zeros(len(covariates), bool)]

    def predictors(whole: Predictor) -> list[Predictor]:
        none = whole.with_factors([], others_at_mean=True)
        return [none.with_covariates(columns) for columns in masks]

    squares = _squares_of_views(posterior, by, view, predictors)
    total, residual = squares.total[:, :, None], squares.residual
    shares = explained_share(total, residual[:, :, :-1] + (total - residual[:, :, -1:]))
    labels = [*covariates.names, "covariates"]
    return squares.labelled({"variance_explained": ("term", shares)}, {"term": labels})["variance_explained"]


@dataclass(frozen=True)
class _Squares:
    """Sums of squares of views about their features' means, and about some predictions.

    Parameters
    ----------
    dim, labels : str, sequence of str
        What the sums are by; "": nothing.
    views : list of str
        Names of the views.
    one : bool
        Whether there is no dimension of views.
    total, residual : array
        See `_squares`.
    """

    dim: str
    labels: Any
    views: list[str]
    one: bool
    total: Float64[np.ndarray, "G M"]
    residual: Float64[np.ndarray, "G M P"]

    def labelled(
        self, shares: Mapping[str, tuple[str, Float64[np.ndarray, "G M ..."]]], coords: Mapping[str, Any]
    ) -> xr.Dataset:
        """Return shares with their dimensions and labels, given the last dimension of each, "": none."""
        import xarray as xr

        lead = (self.dim or "all", "view")
        variables = {
            name: ((*lead, last) if last else lead, values) for name, (last, values) in shares.items()
        }
        result = xr.Dataset(variables, {"view": self.views, **coords})
        result = result.assign_coords({self.dim: self.labels}) if self.dim else result.isel(all=0)
        return result.isel(view=0, drop=True) if self.one else result


def _squares_of_views(
    posterior: StoredPosterior,
    by: By | None,
    view: str | None,
    predictors: Callable[[Predictor], list[Predictor]],
) -> _Squares:
    """Return the sums of squares of one view, or of all, about some predictions."""
    if not posterior.predicts_by_factors:
        raise InputError(
            "variance_explained",
            posterior.run["config"].get("model"),
            "a family that records it, or that predicts by factors with loadings",
            "Compare held-out scores instead.",
        )
    views = [value_view.name for value_view in posterior.meta.value_views if view in (None, value_view.name)]
    if by == "feature" and len(views) > 1:
        expected = "one of them: each view has features of its own"
        raise InputError("view", ", ".join(views), expected, f"For example view={views[0]!r}.")
    parts = [
        _squares(posterior, posterior.data, name, by, predictors(Predictor(posterior, name, seen=True)))
        for name in views
    ]
    total = np.stack([part[0] for part in parts], axis=1)
    residual = np.stack([part[1] for part in parts], axis=1)
    dim, labels = {
        None: ("", []),
        "group": ("group", list(posterior.meta.groups)),
        "sample": ("obs", posterior.coordinate("obs")),
        "feature": (f"feature_{views[0]}", posterior.coordinate(f"feature_{views[0]}")),
    }[by]
    return _Squares(dim, labels, views, view is not None or by == "feature", total, residual)


def _squares(
    posterior: StoredPosterior,
    dataset: Dataset | AlignedDataset,
    view: str,
    by: By | None,
    predictors: Sequence[Predictor],
) -> tuple[Float64[np.ndarray, " G"], Float64[np.ndarray, "G P"]]:
    """Return sums of squares of a view: about its features' means, and about each of P predictions.

    The sums are over groups, or by sample or feature. Entries that were held out of the fit are left out.
    """
    from factorflow.data import Holdout

    holdout = Holdout.of(posterior.run, dataset.design)
    density = posterior.model.likelihood(view)
    n_features = len(posterior.features(view))
    n_groups = len(posterior.meta.groups) if by == "group" else 1
    n_sums = {"sample": dataset.n_rows, "feature": n_features}.get(by or "", n_groups)
    residual = np.zeros((n_sums, len(predictors)))
    moments = np.zeros((3, n_groups, n_features))
    shift = 0.0 if density.is_time else np.nan_to_num(dataset.moments(view, "mean")["mean"])
    aux_key = dataset.views[view].aux_key

    def blocks() -> Iterator[tuple[Any, Any, Any]]:
        for number in range(dataset.n_blocks):
            block = dataset.block(number, [view], holdout)
            y, observed = dataset.views[view].kind.fill_missing(block.data[view])
            if density.is_time:  # what is explained of a time is its score, as where it is recorded
                phi = predictors[0].distribution(block.rows).phi
                y = density.response(y, phi, block.data.get(aux_key))
            yield block, y, observed

    def expected(predictor: Predictor, rows: Any) -> Any:
        if not density.is_time:
            return predictor(rows)[0]
        distribution = predictor.distribution(rows)
        return density.expected_response(distribution.mean, distribution.phi)

    for block, y, observed in blocks():
        about, rows = np.where(observed, y - shift, 0.0), block.rows
        codes = block.columns["group"] if n_groups > 1 else np.zeros(block.n_rows, int)
        for g in range(n_groups):
            mine = codes == g
            moments[:, g] += [part[mine].sum(0) for part in (observed, about, about * about)]
        for i, predictor in enumerate(predictors):
            difference = density.residual(y - expected(predictor, rows), block.data.get(aux_key))
            squares = np.where(observed, difference, 0.0) ** 2
            if by == "sample":
                residual[rows, i] = squares.sum(1)
            elif by == "feature":
                residual[:, i] += squares.sum(0)
            else:
                residual[:, i] += [squares[codes == g].sum() for g in range(n_groups)]
    by_feature = total_squares(*moments)
    if by == "feature":
        return by_feature[0], residual
    if by == "sample":
        usable, center = by_feature[0] > 0, shift + moments[1, 0] / np.maximum(moments[0, 0], 1.0)
        total = np.zeros(dataset.n_rows)
        for block, y, observed in blocks():
            usable_entries = (observed > 0) & usable
            squares = np.where(usable_entries, y - center, 0.0) ** 2
            total[block.rows] = np.where((observed > 0).any(1), squares.sum(1), np.nan)
        return total, residual
    has_value = ~np.isnan(by_feature).all(axis=1)
    return np.where(has_value, np.nansum(by_feature, axis=1), np.nan), residual
