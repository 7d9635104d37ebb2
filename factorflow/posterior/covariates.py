"""Covariates of a posterior: coefficients, and data without their effect."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.covariates import Covariates
from factorflow.errors import InputError
from factorflow.posterior.labels import as_slice, group_column, rows_of
from factorflow.posterior.prediction import Predictor, lazily, values_of_rows
from factorflow.posterior.variance import By, terms_from_data

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.posterior.stored_posterior import StoredPosterior


def check_covariates(posterior: StoredPosterior) -> Covariates:
    """Return the covariates of the model of a fit."""
    covariates = posterior.meta.covariates
    if covariates is None or not any(posterior.has(f"coefficients_{view}") for view in posterior.views):
        family = posterior.run["config"].get("model")
        remedy = "Fit with {model.covariates}: columns of the sample metadata."
        raise InputError(
            "model",
            f"{family} without covariates",
            "one with covariates",
            remedy,
            **{"model.covariates": ["age"]},
        )
    return covariates


def coefficients(posterior: StoredPosterior, view: str, *, total: bool) -> xr.Dataset:
    """Return ``mean`` and ``sd`` of the coefficients of a view (`Posterior.coefficients`)."""
    units = check_covariates(posterior).units[:, None]
    name = posterior.check_view(view)
    is_drawn = posterior.kind == "monte carlo"
    value = posterior.draws if is_drawn else posterior.variable
    mean = value(f"coefficients_{name}")
    if total:
        mean = mean + value(f"loadings_{name}").dot(value("score_regression"), dim="factor")
    if is_drawn:
        mean, sd = mean.mean(("chain", "draw")), mean.std(("chain", "draw"))
    else:
        sd = posterior.variable(f"coefficients_variance_{name}") ** 0.5
    dims = ("covariate", f"feature_{name}")
    statistics = {"mean": mean.transpose(*dims) / units, "sd": sd.transpose(*dims) / units}
    dataset: xr.Dataset = statistics["mean"].to_dataset(name="mean").assign(sd=statistics["sd"])
    dataset["mean"].attrs = {"long_name": "Total effect." if total else "Effect beside the factors."}
    taken = "over draws" if is_drawn else "factors taken for known"
    dataset["sd"].attrs = {"long_name": f"Its standard deviation, {taken}."}
    return dataset


def _sd(posterior: StoredPosterior, name: str, variance: str) -> xr.DataArray:
    """Return the standard deviation of coefficients: over the draws, where there are any."""
    if posterior.kind == "monte carlo":
        return posterior.draws(name).std(("chain", "draw"))
    return posterior.variable(variance) ** 0.5


def score_coefficients(posterior: StoredPosterior) -> xr.Dataset:
    """Return ``mean`` and ``sd`` of the coefficients of the scores (`Posterior.score_coefficients`)."""
    import xarray as xr

    covariates = posterior.meta.score_covariates
    if covariates is None:
        expected, remedy = "one with them", "Fit with {score_covariates}: columns of the sample metadata."
        raise InputError(
            "model", "one without covariates of the scores", expected, remedy, score_covariates=["age"]
        )
    units = xr.DataArray(covariates.units, dims=("score_covariate",))
    mean = posterior.variable("score_coefficients") / units
    sd = _sd(posterior, "score_coefficients", "score_coefficients_variance") / units
    dataset: xr.Dataset = mean.to_dataset(name="mean").assign(sd=sd)
    dataset["mean"].attrs = {"long_name": "Effect on the score, for each unit of the column."}
    dataset["sd"].attrs = {"long_name": "Its standard deviation, loadings taken for known."}
    return dataset


def adjusted(
    posterior: StoredPosterior, view: str, remove: Sequence[str] | None, start: int | None, stop: int | None
) -> xr.Dataset:
    """Return predictions and data of a view without the effect of covariates (`Posterior.adjusted`)."""
    covariates, name = check_covariates(posterior), posterior.check_view(view)
    kind = posterior.model.likelihood(name)
    if not kind.is_location:
        raise InputError(
            "view", view, "a view of measurements", "Effects on other views do not add to the data."
        )
    terms = covariates.names if remove is None else [remove] if isinstance(remove, str) else list(remove)
    unknown = [term for term in terms if term not in covariates.names]
    if unknown:
        raise InputError(
            "remove", unknown[0], f"terms among {', '.join(covariates.names)}", "Correct the name."
        )
    columns = np.isin(covariates.groups, [covariates.names.index(term) for term in terms])
    slopes = posterior.variable(f"coefficients_{name}").values[:, columns]
    predictor = Predictor(posterior, name)
    rows = rows_of(posterior, start, stop, None)
    parts = {
        "mean": (partial(_predicted, predictor, slopes, columns), np.float64),
        "observed": (partial(_observed, predictor, slopes, columns), np.float64),
    }
    of = f"without the effect of {', '.join(terms)}"
    docs = {"mean": f"Expected value {of}.", "observed": f"Value of the dataset {of}; NaN where missing."}
    return lazily(posterior, name, rows, parts, docs)


def group_effects(
    posterior: StoredPosterior, view: str, rows: NDArray[np.intp]
) -> NDArray[np.float64] | None:
    """Return what the intercepts of the groups of some rows are beyond those of all, (R, D); None without."""
    covariates, column = posterior.meta.covariates, group_column(posterior)
    if not posterior.config.has_group_intercepts or covariates is None or column not in covariates.names:
        return None
    columns = covariates.groups == covariates.names.index(column)
    slopes = posterior.variable(f"coefficients_{view}").values[:, columns]
    return _effect(Predictor(posterior, view), slopes, columns, rows)


def variance_explained(posterior: StoredPosterior, by: By | None, view: str | None) -> xr.DataArray:
    """Return the shares that covariates explain: as the model recorded them, or from the dataset."""
    import xarray as xr

    check_covariates(posterior)
    if posterior.has("variance_explained_term"):
        alone, together = (
            posterior.variable(f"variance_explained_{what}") for what in ("term", "covariates")
        )
        if by in (None, "group") and (by == "group") == ("group" in alone.dims):
            shares = xr.concat([alone, together.expand_dims(term=["covariates"], axis=-1)], dim="term")
            return shares if view is None else shares.sel(view=view, drop=True)
    return terms_from_data(posterior, by, view)


def _effect(
    predictor: Predictor, slopes: NDArray[Any], columns: NDArray[np.bool_], rows: NDArray[np.intp]
) -> NDArray[Any]:
    given = predictor.posterior.array("covariates").isel(obs=as_slice(rows))
    if "chain" in given.dims:  # which they do not depend on, where they are known
        is_drawn = predictor.posterior.has("covariates_draws")
        given = given.mean("chain") if is_drawn else given.isel(chain=0)
    return np.asarray(given.values[:, columns] @ slopes.T)


def _predicted(
    predictor: Predictor, slopes: NDArray[Any], columns: NDArray[np.bool_], rows: NDArray[np.intp]
) -> NDArray[Any]:
    return np.asarray(predictor(rows)[0] - _effect(predictor, slopes, columns, rows))


def _observed(
    predictor: Predictor, slopes: NDArray[Any], columns: NDArray[np.bool_], rows: NDArray[np.intp]
) -> NDArray[Any]:
    values = values_of_rows(predictor.posterior.data, predictor.view, rows)
    return np.asarray(values.astype(np.float64) - _effect(predictor, slopes, columns, rows))
