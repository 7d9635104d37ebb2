"""Smooth scores of a posterior: their courses, at the samples and at other places."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.places import Places
from factorflow.data.covariates import CodedColumns, numbers_of, plain_times, projected_columns
from factorflow.errors import InputError
from factorflow.posterior.align import align_draws
from factorflow.posterior.course_model import CourseModel, course_model
from factorflow.posterior.finding import Finding, naming_option
from factorflow.posterior.labels import group_labels, sample_metadata
from factorflow.posterior.new_samples import in_pieces, predict_from_scores, scores_at

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from factorflow.posterior.stored_posterior import StoredPosterior

AT_LIMIT = 1.02
"""Shortest length scales up to which one counts as the shortest."""


def check_places(posterior: StoredPosterior) -> Places:
    """Return where the samples of a fit lie.

    Raises
    ------
    InputError
        When its scores are no functions of places.
    """
    places = posterior.meta.places
    if places is None:
        remedy = "Fit with {smooth_covariates}: columns of the sample metadata."
        raise InputError(
            "model", "one without smooth scores", "one with them", remedy, smooth_covariates=["time"]
        )
    return places


def intraclass_correlation(posterior: StoredPosterior) -> xr.DataArray:
    """Return the share of the variance of each factor between levels (`Posterior.intraclass_correlation`)."""
    levels = posterior.meta.levels
    if levels is None:
        expected, remedy = "one with them", "Fit with {random_intercepts}: a column of the sample metadata."
        raise InputError(
            "model", "one without random intercepts", expected, remedy, random_intercepts="subject"
        )
    column = levels.columns[0]
    share = posterior.variable("smooth_part_share").sel(smooth_part=column, drop=True)
    share = share.expand_dims(random_intercept=[column])
    share.attrs = {"long_name": "Share of the variance of a factor between levels."}
    return share.rename("intraclass_correlation")


def smooth_scores(posterior: StoredPosterior) -> xr.Dataset:
    """Return ``mean`` and ``sd`` of the courses at the samples (`Posterior.smooth_scores`)."""
    if not posterior.meta.score_inputs:
        check_places(posterior)
    mean = posterior.variable("smooth_scores")
    sd = posterior.variable("smooth_scores_variance") ** 0.5
    scores: xr.Dataset = mean.to_dataset(name="mean").assign(sd=sd)
    scores["mean"].attrs = {"long_name": "Course of the factor at the place of the sample."}
    scores["sd"].attrs = {"long_name": "Its standard deviation."}
    return scores


def smoothness(posterior: StoredPosterior) -> pd.DataFrame:
    """Return how smooth each factor is (`Posterior.smoothness`)."""
    import pandas as pd

    if not posterior.meta.score_inputs:
        check_places(posterior)
    share, places = posterior.variable("smooth_share").values, posterior.meta.places
    lengths = np.where(share[:, None] > 0.0, posterior.variable("length_scale").values, np.nan)
    parts = posterior.variable("smooth_part_share")
    names = [str(name) for name in parts["smooth_part"].values]
    columns = dict(zip(names, parts.values.T, strict=True)) | {"rest": 1.0 - share}
    if places is not None:
        columns |= {f"length_scale_{name}": lengths[:, r] for r, name in enumerate(places.labels)}
    columns["evidence"] = posterior.variable("smooth_evidence").values
    return pd.DataFrame(columns, index=pd.Index(posterior.factors, name="factor"))


def unresolved(posterior: StoredPosterior) -> Iterator[Finding]:
    """Find courses that change as fast as their functions can."""
    model = posterior.model
    limits = model.shortest_lengths() if isinstance(model, CourseModel) else None
    if limits is None or not posterior.has("length_scale"):
        return
    shortest, number = limits
    lengths, share = posterior.variable("length_scale").values, posterior.variable("smooth_share").values
    short = (share > 0.0) & (lengths[:, : len(shortest)] <= AT_LIMIT * shortest).any(axis=1)
    if short.any():
        names = ", ".join(np.asarray(posterior.factors)[short])
        yield Finding(
            "resolution",
            f"The course of {names} changes as fast as its functions can, and may be faster: in holes "
            "between the samples it is too smooth.",
            naming_option("Fit with {option}.", f"n_functions={2 * number}"),
        )


def warped(posterior: StoredPosterior, covariate: str | None) -> xr.DataArray:
    """Return the time of each sample on the common clock (`Posterior.warped`)."""
    import xarray as xr

    places = check_places(posterior)
    if covariate not in (None, *places.columns):
        expected = f"one of {', '.join(places.columns)}"
        raise InputError("covariate", covariate, expected, "Leave it out.")
    values, name = warped_numbers(posterior), places.columns[0]
    own = sample_metadata(posterior).get(name)
    obs = posterior.array("scores")["obs"]
    return xr.DataArray(_as_times(values, own), dims=("obs",), coords={"obs": obs}, name=name)


def warped_numbers(posterior: StoredPosterior) -> NDArray[np.float64]:
    """Return the time of each sample on the common clock, (N,); days of dates and durations."""
    places, labels = check_places(posterior), group_labels(posterior)
    number = {name: i for i, name in enumerate(places.groups)}
    names = [""] * len(posterior.obs_names) if labels is None else labels.tolist()
    codes = np.array([number.get(name, -1) for name in names], np.int64)
    times = np.where(codes[:, None] >= 0, _own_times(posterior, places), np.nan)
    return np.asarray(course_model(posterior.model).warped(posterior.global_variables(), times, codes))


def _own_times(posterior: StoredPosterior, places: Places) -> NDArray[np.float64]:
    """Return the places of the samples as a fit or a projection was given them, (N, p)."""
    dataset = posterior.dataset
    if posterior.run["status"] != "projected":
        return CodedColumns(places).read(dataset)
    for source in (None, False):  # columns of the dataset, or none; a table is not kept
        columns = projected_columns(places, dataset, source)
        assert columns is not None
        if f"places:{columns.digest}" in posterior.record.identity.covariates:
            return columns.read(dataset)
    expected = "columns of the sample metadata"
    remedy = "Write the new samples with {obs}, which has the times, and project them again."
    raise InputError("times", "those of a table given to a projection", expected, remedy, obs=...)


def _as_times(numbers: NDArray[np.float64], own: pd.Series[Any] | None) -> NDArray[Any]:
    """Return days as dates or durations where a column has these, to the millisecond."""
    import pandas as pd

    times = None if own is None else plain_times(own)
    if times is None:
        return numbers
    durations = pd.to_timedelta(np.round(8.64e7 * numbers), unit="ms")
    is_date = pd.api.types.is_datetime64_dtype(times.dtype)
    return (durations + pd.Timestamp(0) if is_date else durations).to_numpy()


def group_correlation(posterior: StoredPosterior) -> xr.DataArray:
    """Return the prior correlation of the courses of groups (`Posterior.group_correlation`)."""
    import xarray as xr

    places = check_places(posterior)
    if not places.groups:
        remedy = "Write the dataset with {groups}, and fit with {smooth_groups}."
        raise InputError("groups", "none", "groups of samples with courses of their own", remedy,
                         groups=..., smooth_groups=True)  # fmt: skip
    sharing = posterior.variable("group_sharing").values
    sharing = np.where(posterior.variable("smooth_share").values[:, None] > 0.0, sharing, np.nan)
    correlation = sharing[:, :, None] * sharing[:, None, :]
    index = np.arange(correlation.shape[1])
    correlation[:, index, index] = np.where(np.isnan(sharing), np.nan, 1.0)
    names = list(places.groups)
    coords = {"factor": posterior.factors, "group": names, "other_group": names}
    return xr.DataArray(correlation, dims=tuple(coords), coords=coords, name="group_correlation")


def interpolate(
    posterior: StoredPosterior, at: Any, groups: str | Sequence[str] | None, view: str | None, share: float
) -> xr.Dataset:
    """Return courses and scores, or the data of a view, at any places (`Posterior.interpolate`)."""
    places = check_places(posterior)
    if not isinstance(share, float | int) or not 0.0 < share < 1.0:
        raise InputError("interval", share, "a share between 0 and 1", "For example 0.9.")
    columns, codes = _points(places, at, groups)
    numbers = np.column_stack([numbers_of(*column) for column in columns.items()])
    if not len(numbers) or not np.isfinite(numbers).all():
        raise InputError("at", "no places, or some that are not finite", "finite numbers", "Leave them out.")
    _warn_of_distance(posterior, places, numbers)
    name, record = None if view is None else posterior.check_view(view), posterior.global_variables()

    def at_points(rows: slice) -> xr.Dataset:
        scores = scores_at(posterior, record, numbers[rows], codes[rows])
        if name is None:
            return _curves(posterior, *scores, share)
        values = predict_from_scores(posterior, record, name, *scores, share, first=rows.start)
        return values.rename(obs="point")

    coords: dict[str, Any] = {}
    for (label, column), values in zip(columns.items(), numbers.T, strict=True):
        times = plain_times(column)
        coords[label] = "point", values if times is None else times.to_numpy()
    if places.groups:
        coords["group"] = "point", np.asarray(places.groups)[codes]
    return in_pieces(posterior, len(numbers), at_points).assign_coords(coords)


def _curves(
    posterior: StoredPosterior,
    mean: NDArray[np.float64],
    variance: NDArray[np.float64],
    noise: NDArray[np.float64],
    share: float,
) -> xr.Dataset:
    """Return courses, and scores about them, given `new_samples.scores_at`; of draws by moments of all."""
    import xarray as xr

    dims, labels = ("point", "factor"), {"factor": posterior.factors}
    if posterior.kind != "variational":
        parts = {"course": mean, "variance": variance, "noise": noise}  # a course has a sign
        each = {name: np.broadcast_to(part, mean.shape) for name, part in parts.items()}
        of_draws = dict.fromkeys(parts, ("chain", "draw", *dims))
        mean, variance, noise = align_draws(each, of_draws, "sign", posterior.alignment).values()
        over = 0, 1
        mean, variance, noise = (
            mean.mean(axis=over),
            variance.mean(axis=over) + mean.var(axis=over),
            noise.mean(axis=over),
        )
    curves = _with_interval("f", mean, variance, share) | _with_interval("z", mean, variance + noise, share)
    return xr.Dataset({name: (dims, values) for name, values in curves.items()}, labels)


def _with_interval(
    word: str, mean: NDArray[np.float64], variance: NDArray[np.float64], share: float
) -> dict[str, NDArray[np.float64]]:
    from scipy.special import ndtri

    sd = np.sqrt(variance)
    reach = float(ndtri(0.5 + 0.5 * share)) * sd
    return {
        f"{word}_mean": mean,
        f"{word}_sd": sd,
        f"{word}_lower": mean - reach,
        f"{word}_upper": mean + reach,
    }


def _points(
    places: Places, at: Any, groups: str | Sequence[str] | None
) -> tuple[dict[str, pd.Series[Any]], NDArray[np.int64]]:
    """Return the columns of the places asked for, as they are given, and the number of the group of each."""
    import pandas as pd

    own = None
    names = list(places.columns)
    if isinstance(at, Mapping) or hasattr(at, "columns"):
        lacking = [name for name in names if name not in at]
        if lacking:
            raise InputError("at", f"no {lacking[0]}", f"columns {', '.join(names)}", "Add the column.")
        given = [at[name] for name in names]
        own = None if "group" not in at else np.asarray(at["group"]).astype(str)
    else:
        array = np.asarray(at)
        given = list(array.T) if array.ndim > 1 else [at if array.ndim else [at]]
        if len(given) != len(names):
            expected = f"places of {len(names)} numbers each: {', '.join(names)}"
            remedy = "A frame has them as columns."
            raise InputError("at", f"an array of shape {array.shape}", expected, remedy)
    columns = {name: pd.Series(values) for name, values in zip(names, given, strict=True)}
    n_places = len(columns[names[0]])
    lengths = [len(values) for values in columns.values()] + ([] if own is None else [len(own)])
    if len(set(lengths)) > 1:
        found = f"columns of {', '.join(map(str, lengths))} places"
        raise InputError("at", found, "as many in each", "Give each place all of its numbers.")
    if not n_places:
        raise InputError("at", "no places", "at least one place", "Add one.")
    if not places.groups:
        if groups is not None:
            raise InputError("groups", groups, "None where the model has one course for all", "Leave it out.")
        return columns, np.zeros(n_places, np.int64)
    group_names = list(places.groups)
    if groups is None and own is not None:
        chosen = own
    else:
        requested = group_names if groups is None else [groups] if isinstance(groups, str) else list(groups)
        chosen = np.repeat(np.asarray(requested, str), n_places)
        index = np.tile(np.arange(n_places), len(requested))
        columns = {name: values.iloc[index] for name, values in columns.items()}
    unknown = [name for name in dict.fromkeys(chosen.tolist()) if name not in group_names]
    if unknown:
        raise InputError("groups", unknown[0], f"groups among {', '.join(group_names)}", "Correct the name.")
    number = {name: i for i, name in enumerate(group_names)}
    return columns, np.array([number[name] for name in chosen.tolist()], np.int64)


def _warn_of_distance(posterior: StoredPosterior, places: Places, numbers: NDArray[np.float64]) -> None:
    """Warn of places that lie more than a length scale beyond the samples."""
    share = posterior.variable("smooth_share").values
    lengths = posterior.variable("length_scale").values[share > 0.0, : places.n_covariates]
    if not len(lengths):
        return
    beyond = np.maximum(np.asarray(places.low) - numbers, numbers - np.asarray(places.high))
    longest = lengths.max(axis=0)[np.asarray(places.covariate)]
    far = (beyond > longest).any(axis=1)
    if far.any():
        warnings.warn(
            f"{int(far.sum())} of {len(far)} places lie more than a length scale beyond the samples: there "
            "only the prior speaks, and where levels drift its intervals are too narrow.",
            UserWarning,
            stacklevel=4,
        )
