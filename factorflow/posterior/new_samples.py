"""Predictions of new samples from covariates, times and groups alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.block import Block
from factorflow.core.covariates import Covariates
from factorflow.data.covariates import labels_of, numbers_of, prepare_columns, warn_of_groups, warn_of_levels
from factorflow.errors import InputError
from factorflow.kernels.linalg import block_places, n_pairs, pack
from factorflow.kernels.random import Step
from factorflow.kernels.sites import DRAWS
from factorflow.posterior.course_model import course_model
from factorflow.posterior.prediction import PIECE_ENTRIES, exposure_of_all_counts
from factorflow.posterior.predictive import interval as ends_of
from factorflow.posterior.predictive import with_exposure

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from factorflow.posterior.stored_posterior import StoredPosterior


def predict_new(
    posterior: StoredPosterior, view: str, new_obs: Any, share: float | None, size_factor: float
) -> xr.Dataset:
    """Return predictions of samples of which only metadata are known (`Posterior.predict`)."""
    if not posterior.model.predicts_new:
        family = posterior.run["config"].get("model")
        expected = "a family that predicts samples by metadata alone"
        remedy = (
            "Project new samples first." if posterior.meta.design is None else "Give rows: predict(table)."
        )
        raise InputError("new_obs", f"of model {family}", expected, remedy)
    if not isinstance(size_factor, int | float) or not np.isfinite(size_factor) or size_factor <= 0.0:
        raise InputError("size_factor", size_factor, "a number above 0", "For example 1.0.")
    if share is not None and not 0.0 < share < 1.0:
        raise InputError("interval", share, "a share between 0 and 1", "For example 0.9.")
    frame = _frame_of(new_obs)
    _check_columns(posterior, frame)
    if size_factor != 1.0 and not _has_size_factors(posterior, view):
        expected = f"1 where the model has no size factors of the view ({view})"
        remedy = "Leave it out, or fit with {model.size_factors}."
        raise InputError("size_factor", size_factor, expected, remedy, **{"model.size_factors": "total"})
    sizes = _size_factors_of(posterior, view, frame, float(size_factor))
    numbers, codes = _places_of(posterior, frame), _group_codes(posterior, frame)
    covariates, record = posterior.meta.covariates, posterior.global_variables()
    design = None if covariates is None else _encode_covariates(covariates, frame)

    def of_rows(rows: slice) -> xr.Dataset:
        scores = scores_at(posterior, record, numbers[rows], codes[rows])
        given = share, None if design is None else design[rows], sizes[rows]
        return predict_from_scores(posterior, record, view, *scores, *given, first=rows.start)

    predicted = in_pieces(posterior, len(frame), of_rows)
    return predicted.assign_coords(obs=frame.index.astype(str).to_numpy(object))


def in_pieces(posterior: StoredPosterior, n_rows: int, compute: Callable[[slice], xr.Dataset]) -> xr.Dataset:
    """Return what is computed of runs of rows, along the first dimension: few rows where there are draws."""
    import xarray as xr

    per_row = 1 if posterior.kind == "variational" else posterior.array("scores_draws")[:, :, 0].size
    size = max(1, PIECE_ENTRIES // max(1, per_row))
    parts = [compute(slice(first, min(first + size, n_rows))) for first in range(0, n_rows, size)]
    return parts[0] if len(parts) == 1 else xr.concat(parts, dim=next(iter(parts[0]["mean"].dims)))


def _frame_of(new_obs: Any) -> pd.DataFrame:
    """Return a table of samples: of a frame, a mapping of columns, or a file."""
    import pandas as pd

    if isinstance(new_obs, str | os.PathLike):
        from pathlib import Path

        from factorflow.data.ingest.metadata import read_metadata

        frame: pd.DataFrame = read_metadata(Path(new_obs), "new_obs")
    elif isinstance(new_obs, pd.DataFrame):
        frame = new_obs
    elif isinstance(new_obs, Mapping) and new_obs:
        scalars = all(np.ndim(value) == 0 for value in new_obs.values())
        lengths = {np.shape(value)[0] for value in new_obs.values() if np.ndim(value)}
        if len(lengths) > 1:
            actual = f"columns of {' and '.join(map(str, sorted(lengths)))} rows"
            raise InputError("new_obs", actual, "columns of one length", "A value for each sample.")
        frame = pd.DataFrame(dict(new_obs), index=[0] if scalars else None)
    else:
        remedy = "A row for each sample, a column for each covariate."
        raise InputError(
            "new_obs", type(new_obs).__name__, "a frame, a mapping or the path of a table", remedy
        )
    if not len(frame):
        raise InputError("new_obs", "no rows", "at least one sample", "Add a row.")
    return frame


def _check_columns(posterior: StoredPosterior, frame: pd.DataFrame) -> None:
    """Refuse a table without a column that the features need, or with none of the model's."""
    meta = posterior.meta
    of_features = [] if meta.covariates is None else [column.name for column in meta.covariates.columns]
    of_scores = [column.name for one in meta.score_inputs for column in one.sources]
    if meta.places is not None and meta.places.groups:
        of_scores.append("group")
    available = list(dict.fromkeys([*of_features, *of_scores]))
    if not available:
        expected = "a model with covariates, of features or scores, or with smooth scores"
        option = {"model.covariates": ["age"]}
        raise InputError("new_obs", "a table", expected, "Fit with {model.covariates}.", **option)
    lacking = [name for name in of_features if name not in frame]
    if lacking or not any(name in frame for name in available):
        expected = f"columns {', '.join(of_features or available)}"
        remedy = "Add it; leave cells empty where it is not known."
        raise InputError("new_obs", f"no column {(lacking or available)[0]}", expected, remedy)


def _has_size_factors(posterior: StoredPosterior, view: str) -> bool:
    """Return whether rates of a view are multiplied by size factors: all views, or those that are named."""
    choices = getattr(posterior.config, "size_factors", "none")
    choice = choices.get(view, "none") if isinstance(choices, Mapping) else choices
    return choice != "none" and posterior.model.likelihood(view).log_link


def _size_factors_of(
    posterior: StoredPosterior, view: str, frame: pd.DataFrame, size_factor: float
) -> NDArray[np.float64]:
    """Return the size factors of a view: by its column, where the table has it, else one for all."""
    choices = getattr(posterior.config, "size_factors", "none")
    choice = choices.get(view) if isinstance(choices, Mapping) else choices
    column = next((one for one in posterior.meta.sizes if one.name == choice and one.name in frame), None)
    if column is None:
        return np.full(len(frame), size_factor)
    if size_factor != 1.0:
        remedy = "Leave one of the two out."
        raise InputError(
            "size_factor", size_factor, f"left out beside column {column.name} of new_obs", remedy
        )
    values = numbers_of(column.name, frame[column.name])
    wrong = np.flatnonzero(~((values > 0.0) & (values < np.inf)))
    if wrong.size:
        what = f"{values[wrong[0]]:g} of sample {frame.index[wrong[0]]} in column {column.name}"
        remedy = "Correct it, or leave the column out: samples are of average size then."
        raise InputError("new_obs", what, "a number above 0 for each sample", remedy)
    return values / column.mean


def _encode_covariates(covariates: Covariates, frame: pd.DataFrame) -> NDArray[np.float64]:
    """Return covariates as they are coded, NaN where they, or columns of them, are not there."""
    lacking = {column.name for column in covariates.columns if column.name not in frame}
    for column in covariates.columns:
        if column.name not in lacking:
            warn_of_levels(column, frame[column.name])
    columns = prepare_columns([column for column in covariates.columns if column.name not in lacking], frame)
    for column in covariates.columns:
        if column.name in lacking:
            columns[column.name] = np.full(len(frame), "" if column.levels else np.nan)
    return covariates.encode_known(columns)


def _places_of(posterior: StoredPosterior, frame: pd.DataFrame) -> NDArray[np.float64]:
    """Return what scores are functions of, (n, p), from the columns of a table; p is 0 where they are not."""
    meta = posterior.meta
    if not meta.score_inputs:
        scores = posterior.run["config"].get("scores", "auto")
        if scores in ("spike", "nonnegative") or (scores != "normal" and meta.groups):
            expected = "scores of which the prior is N(0, 1), or that have covariates"
            remedy = "Fit with {scores}."
            raise InputError("new_obs", f"scores={scores!r}", expected, remedy, scores="normal")
    parts = [np.zeros((len(frame), 0))]
    for one in meta.score_inputs:
        if isinstance(one, Covariates):
            parts.append(_encode_covariates(one, frame))
        elif any(name not in frame for name in one.columns):
            parts.append(np.full((len(frame), len(one)), np.nan))
        else:
            parts.append(one.encode(prepare_columns(one.sources, frame)))
    return np.hstack(parts)


def scores_at(
    posterior: StoredPosterior,
    record: Mapping[str, NDArray[Any]],
    numbers: NDArray[np.float64],
    codes: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and variance of courses, and the variance of scores about them (`CourseModel.interpolate`).

    0, 0 and 1 where scores are no functions: their prior.
    """
    if posterior.meta.score_inputs:
        return course_model(posterior.model).interpolate(record, numbers, codes)
    none = np.zeros((len(numbers), len(posterior.factors)))
    return none, none, none + 1.0


def _group_codes(posterior: StoredPosterior, frame: pd.DataFrame) -> NDArray[np.int64]:
    """Return the number of the group of each sample, -1 where it is not known."""
    places = posterior.meta.places
    if places is None or not places.groups:
        return np.zeros(len(frame), np.int64)
    labels = labels_of(frame["group"]).tolist() if "group" in frame else None
    if all(name in frame for name in places.columns):
        warn_of_groups(places, labels, "new_obs")
    number = {name: i for i, name in enumerate(places.groups)}
    return np.array([number.get(label, -1) for label in labels or [""] * len(frame)], np.int64)


def predict_from_scores(
    posterior: StoredPosterior,
    record: Mapping[str, NDArray[Any]],
    view: str,
    mean: NDArray[np.float64],
    variance: NDArray[np.float64],
    noise: NDArray[np.float64],
    share: float | None,
    covariates: NDArray[np.float64] | None = None,
    size_factors: NDArray[np.float64] | None = None,
    first: int = 0,
) -> xr.Dataset:
    """Return the distribution of new observations of a view, given `scores_at`; of draws by a score of each.

    Parameters
    ----------
    record : mapping of str to array
        See `StoredVariables.global_variables`.
    share : float or None
        Of new observations that ``lower`` and ``upper`` are to hold; None: without these.
    covariates : (n, P) array or None
        Of the features, as they are coded, NaN where they are not known; None: all at their average.
    size_factors : (n,) array or None
        Of the counts of the samples; None: 1.
    first : int
        Number of the first of these rows among all that are asked for, which noise is keyed by.

    Returns
    -------
    Dataset
        ``mean``, ``sd``, ``lower``, ``upper``, (obs, feature_<view>).
    """
    import xarray as xr

    n_rows, model = mean.shape[-2], posterior.model
    rows: dict[str, Any] = {"scores": mean, "scores_variance": variance + noise}
    if posterior.kind != "variational":
        normals = _normals(posterior, first, n_rows, len(posterior.factors))
        rows = {"scores_draws": mean + np.sqrt(variance + noise) * normals}
    if posterior.has("covariates"):
        average = np.zeros((n_rows, posterior.array("covariates").shape[-1]))
        rows["covariates"] = average if covariates is None else covariates
        if np.isnan(rows["covariates"]).any():
            rows |= _unknown_covariates(posterior, rows, first)
    if posterior.has("size_factors"):
        of_rows = np.ones(n_rows) if size_factors is None else size_factors
        sizes = np.tile(of_rows[:, None], posterior.array("size_factors").shape[-1])
        rows["size_factors"] = sizes
        if posterior.kind != "variational":  # of a sampler learned ones have draws
            leading = rows["scores_draws"].shape[:2]
            rows["log_size_factors"] = np.broadcast_to(np.log(sizes), (*leading, *sizes.shape))
    block = Block(0, 0, n_rows, 1, {})
    times = exposure_of_all_counts(posterior, view)
    moments = with_exposure(*model.predict(block, rows, record, view), times)
    values = dict(zip(("mean", "sd"), moments, strict=True))
    if share is not None:
        predictive = model.predictive(block, rows, record, view)
        if predictive is not None:
            ends = predictive.with_exposure(times).interval(share)
        else:
            degrees = model.degrees_of_freedom(block, rows, record, view)
            ends = ends_of(model.likelihood(view), share, values["mean"], values["sd"], degrees)
        values |= dict(zip(("lower", "upper"), ends, strict=True))
    dims = ("obs", f"feature_{view}")
    labels = {dims[1]: posterior.features(view)}
    return xr.Dataset({key: (dims, np.asarray(value)) for key, value in values.items()}, labels)


def _unknown_covariates(
    posterior: StoredPosterior, rows: Mapping[str, NDArray[Any]], first: int
) -> dict[str, NDArray[np.float64]]:
    """Return the distribution of covariates, NaN where they are not known, given those that are.

    That is means and covariances beside independent scores, or draws.
    """
    covariates = posterior.meta.covariates
    assert covariates is not None
    is_incomplete = np.isnan(rows["covariates"]).any(axis=1)
    mean, covariance = covariates.given_known(rows["covariates"])
    if posterior.kind != "variational":
        size, basis = np.linalg.eigh(covariance)
        root = (basis * np.sqrt(np.maximum(size, 0.0))[:, None, :]) @ basis.transpose(0, 2, 1)
        normals = _normals(posterior, first, len(mean), len(covariates), DRAWS[1])
        moved = np.einsum("nij,cmnj->cmni", root, normals)
        return {"covariates": mean, "covariates_draws": mean + moved}
    k = rows["scores"].shape[1]
    packed = np.zeros((len(mean), n_pairs(k + len(covariates))))
    packed[:, block_places(k, len(covariates))] = pack(covariance)
    diagonal = np.arange(k) * (np.arange(k) + 3) // 2
    packed[:, diagonal] = np.where(is_incomplete[:, None], rows["scores_variance"], 0.0)
    return {"covariates": mean, "scores_covariance": packed}


def _normals(
    posterior: StoredPosterior, first: int, n_rows: int, size: int, site: int = DRAWS[0]
) -> NDArray[np.float64]:
    """Return normals of each draw and row, (chain, draw, n, size), whatever the rows are cut into.

    Those of a row and column are one of each of as many parts of equal probability as there are draws.
    """
    from scipy.special import ndtri

    n_chains, n_draws, *_ = posterior.array("scores_draws").shape
    rows = np.arange(first, first + n_rows)
    each = [Step(0, chain, draw) for chain in range(n_chains) for draw in range(n_draws)]
    uniform = np.array([step.uniform(site, rows, 2 * size) for step in each])
    part = uniform[..., :size].argsort(axis=0).argsort(axis=0)
    normals = ndtri((part + uniform[..., size:]) / len(each))
    return np.asarray(normals.reshape(n_chains, n_draws, n_rows, size))
