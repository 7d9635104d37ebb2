"""Lazy predictions on the data scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.block import Block
from factorflow.errors import InputError
from factorflow.kernels.linalg import triangle
from factorflow.kernels.special import log_ndtr
from factorflow.posterior.draws import check_seed
from factorflow.posterior.labels import as_slice, names_of_rows
from factorflow.posterior.lazy import lazy_array
from factorflow.posterior.open import LAZY_LABELS, load_variable
from factorflow.posterior.predictive import interval, tails, with_exposure

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.data import Dataset
    from factorflow.data.aligned_dataset import AlignedDataset
    from factorflow.likelihoods.predictive import Predictive
    from factorflow.posterior.stored_posterior import StoredPosterior

PIECE_ENTRIES = 1 << 22
"""Entries predicted at a time: the working memory of a prediction, whatever is asked for."""

Compute = Callable[[NDArray[np.intp]], NDArray[Any]]


class Predictor:
    """Mean and standard deviation of a view's entries for any rows.

    Parameters
    ----------
    trials : int, optional
        Number of trials of all entries, in place of those of the dataset.
    seen : bool
        Whether counts that were split are predicted as the fit saw them; else all of them.
    """

    def __init__(
        self, posterior: StoredPosterior, view: str, trials: int | None = None, *, seen: bool = False
    ) -> None:
        self.posterior, self.view, self.trials = posterior, view, trials
        self._exposure = 1.0 if seen else exposure_of_all_counts(posterior, view)
        table = posterior.model.table
        self._rows = tuple(v for v in table if v.rows)
        self._record = {v.name: self._read(v, None) for v in table if not v.rows}
        self._last: tuple[bytes, tuple[NDArray[Any], NDArray[Any]]] | None = None
        self._ends: tuple[tuple[float, bytes], tuple[NDArray[Any], NDArray[Any]]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Omit the tables of variables, which hold functions and are rebuilt."""
        return {
            "posterior": self.posterior,
            "view": self.view,
            "trials": self.trials,
            "_exposure": self._exposure,
            "_record": self._record,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the tables of variables."""
        self.__dict__.update(state)
        self._rows, self._last = tuple(v for v in self.posterior.model.table if v.rows), None

    def __call__(self, rows: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return mean and sd, (B, D) each, of the given rows."""
        key = rows.tobytes()
        if self._last is None or self._last[0] != key:
            local = {v.name: self._read(v, rows) for v in self._rows}
            mean, sd = self.posterior.model.predict(self.block(rows), local, self._record, self.view)
            self._last = key, with_exposure(np.asarray(mean), np.asarray(sd), self._exposure)
        return self._last[1]

    def of_values(self, rows: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return mean and sd, (B, D) each, of what the given rows hold: of merged ones, means of several."""
        mean, sd = self(rows)
        return mean, self.posterior.model.sd_of_values(self.block(rows), self._record, self.view, sd)

    def interval(self, rows: NDArray[np.intp], share: float) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the ends of central intervals of new observations, (B, D) each, of the given rows."""
        key = share, rows.tobytes()
        if self._ends is None or self._ends[0] != key:
            self._ends = key, self._interval(rows, share)
        return self._ends[1]

    def predictive(self, rows: NDArray[np.intp]) -> Predictive | None:
        """Return the distribution of new observations of the given rows (`Model.predictive`)."""
        local = {v.name: self._read(v, rows) for v in self._rows}
        predictive = self.posterior.model.predictive(self.block(rows), local, self._record, self.view)
        return predictive if predictive is None else predictive.with_exposure(self._exposure)

    def distribution(self, rows: NDArray[np.intp]) -> Predictive:
        """Return `predictive` of a view that is not Gaussian, which has one."""
        predictive = self.predictive(rows)
        assert predictive is not None
        return predictive

    def _interval(self, rows: NDArray[np.intp], share: float) -> tuple[NDArray[Any], NDArray[Any]]:
        predictive = self.predictive(rows)
        if predictive is not None:
            return predictive.interval(share)
        model, block = self.posterior.model, self.block(rows)
        local = {v.name: self._read(v, rows) for v in self._rows}
        degrees = model.degrees_of_freedom(block, local, self._record, self.view)
        return interval(model.likelihood(self.view), share, *self(rows), degrees)

    def tails(
        self, rows: NDArray[np.intp], y: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return P(Y < y), P(Y > y) and P(Y = y), (B, D) each, of new values such as the given rows hold.

        All that lies beyond the limit of a censored entry counts as equal to it.
        """
        predictive = self.predictive(rows)
        if predictive is None:
            return tails(self.posterior.model.likelihood(self.view), y, *self.of_values(rows))
        if predictive.likelihood.aux == "censored" and predictive.aux is not None:
            (low, high), side = predictive.tails(y), predictive.aux
            at = np.where(side < 0, low, np.where(side > 0, high, 0.0 * low))
            return np.where(side < 0, 0.0, low), np.where(side > 0, 0.0, high), at
        at = np.exp(predictive.log_density(y)) if predictive.likelihood.discrete else np.where(y == y, 0.0, y)
        return *predictive.tails(y), at

    def of_block(self, block: Block) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return mean and sd, (B, D) each, of unfitted rows, from their inputs alone."""
        if self._rows:
            raise InputError(
                "rows",
                "new ones",
                f"rows of which the model has {', '.join(v.name for v in self._rows)}",
                "Project the new rows first: posterior.project(dataset).predict(view).",
            )
        mean, sd = self.posterior.model.predict(block, {}, self._record, self.view)
        return with_exposure(np.asarray(mean), np.asarray(sd), self._exposure)

    def with_record(self, changes: Mapping[str, Any]) -> Predictor:
        """Return a predictor with some of the global variables replaced."""
        other = Predictor.__new__(Predictor)
        other.posterior, other.view, other._rows = self.posterior, self.view, self._rows
        other.trials, other._exposure = self.trials, self._exposure
        other._last = other._ends = None
        other._record = self._record | dict(changes)
        return other

    def with_factors(self, factors: Sequence[int], *, others_at_mean: bool = False) -> Predictor:
        """Return predictions by some factors, by their positions, and the intercepts.

        Of a table, whose response has no loadings, those of its variables make up a factor.
        ``others_at_mean``: where scores may not be negative, other factors have their average over the
        samples instead of 0.
        """
        posterior, changes = self.posterior, {}
        order = None if posterior.alignment is None else posterior.alignment.order  # (C, M, K)
        mask = np.zeros(len(posterior.factors) if order is None else order.shape, bool)
        chosen = np.array(factors, int)
        np.put_along_axis(mask, chosen if order is None else order[..., chosen], True, axis=-1)
        views = (self.view,) if posterior.has(f"loadings_{self.view}") else posterior.loaded_views
        words = ("loadings", "loadings_variance", "missing", "missing_variance")
        for name in (f"{word}_{each}" for each in views for word in words):
            if name in self._record:
                changes[name] = np.where(mask[..., None, :], self._record[name], 0.0)
        intercept, positive = (
            f"intercept_{self.view}",
            any(v.name == "scores" and v.positive for v in self._rows),
        )
        if others_at_mean and positive and intercept in self._record:  # programs of counts have none
            name, mean = f"loadings_{self.view}", posterior.variable("scores").values.mean(axis=0)
            if order is not None:  # as the factors of each draw are numbered
                mean = np.take_along_axis(np.broadcast_to(mean, order.shape), np.argsort(order, axis=-1), -1)
            level = ((self._record[name] - changes[name]) * mean[..., None, :]).sum(axis=-1)
            changes[intercept] = self._record[intercept] + level
        return self.with_record(changes)

    def with_covariates(self, columns: NDArray[np.bool_]) -> Predictor:
        """Return predictions that know some covariates alone; of the others no effect."""
        name, packed = f"coefficients_{self.view}", f"coefficients_covariance_{self.view}"
        changes = {name: np.where(columns, self._record[name], 0.0)}
        if packed in self._record:
            known = np.append(True, columns)
            first, second = triangle(len(known))
            changes[packed] = np.where(known[first] & known[second], self._record[packed], 0.0)
        return self.with_record(changes)

    def block(self, rows: NDArray[np.intp]) -> Block:
        """Return the rows as the model sees them: with codes and covariates, of which it may have none."""
        meta, data = self.posterior.meta, {}
        for view in meta.input_views:
            data[view.name] = values_of_rows(self.posterior.data, view.name, rows)
        for view in meta.views:
            if self.trials is not None and view.name == self.view:
                data[view.aux_key] = np.full((len(rows), view.n_features), self.trials, np.uint32)
            elif view.aux and view.name == self.view:
                data[view.aux_key] = values_of_rows(self.posterior.data, view.name, rows, view.aux_key)
        return Block(0, int(rows[0]) if len(rows) else 0, len(rows), meta.n_blocks, data)

    def _read(self, variable: Any, rows: NDArray[np.intp] | None) -> NDArray[Any]:
        array = self.posterior.array(variable.name)
        if rows is not None:
            array = array.isel(obs=as_slice(rows))
        return np.asarray(
            load_variable(array, f"{variable.group}/{variable.name}", self.posterior.path).values
        )


def exposure_of_all_counts(posterior: StoredPosterior, view: str) -> float:
    """Return what rates of a view are multiplied by where a part of each count was held out, else 1."""
    from factorflow.data import Holdout
    from factorflow.data.held_out_counts import exposure_of_all

    kind = next(v.kind for v in posterior.meta.views if v.name == view)
    return exposure_of_all(Holdout.of(posterior.run), kind)


def predict(
    posterior: StoredPosterior,
    view: str,
    rows: NDArray[np.intp],
    share: float | None = None,
    factors: Sequence[Any] | None = None,
    trials: int | None = None,
) -> xr.Dataset:
    """Return ``mean`` and ``sd`` of the given rows of a view, lazily (`Posterior.predict`)."""
    if trials is not None:
        if next(v.aux for v in posterior.meta.views if v.name == view) != "trials":
            remedy = "Leave it out: the view was written without numbers of trials."
            raise InputError("trials", trials, "left out", remedy)
        if not isinstance(trials, int | np.integer) or not 1 <= trials < 2**32:
            raise InputError("trials", trials, "an integer from 1 to 2^32 - 1", "For example 10.")
    predictor = Predictor(posterior, view, trials)
    if factors is not None:
        if not posterior.predicts_by_factors:
            expected = "left out: predictions of this family are no sums over factors with loadings"
            raise InputError("factors", factors, expected, "Predict by all factors.")
        chosen = [factors] if isinstance(factors, str) else list(factors)
        predictor = predictor.with_factors([posterior.factors.index(posterior.factor(f)) for f in chosen])
    parts: dict[str, tuple[Compute, Any]] = {
        "mean": (partial(_moment, predictor, 0), np.float64),
        "sd": (partial(_moment, predictor, 1), np.float64),
    }
    docs = {"mean": "Expected value, on the data scale.", "sd": "Standard deviation of a new observation."}
    if share is not None:
        if not 0.0 < share < 1.0:
            raise InputError("interval", share, "a share between 0 and 1", "For example 0.9.")
        of = f"that holds {share:.6g} of new observations."
        docs |= {
            "lower": f"Lower end of the central interval {of}",
            "upper": f"Upper end of the interval {of}",
        }
        parts["lower"] = partial(_end, predictor, share, 0), np.float64
        parts["upper"] = partial(_end, predictor, share, 1), np.float64
    return lazily(posterior, view, rows, parts, docs)


def impute(posterior: StoredPosterior, view: str, rows: NDArray[np.intp]) -> xr.Dataset:
    """Return a view with its missing entries predicted, lazily (`Posterior.impute`)."""
    predictor = Predictor(posterior, view)
    return lazily(
        posterior,
        view,
        rows,
        {
            "mean": (partial(_fill_observed, predictor, 0), np.float64),
            "sd": (partial(_fill_observed, predictor, 1), np.float64),
            "observed": (partial(_is_observed, predictor), np.bool_),
        },
        {
            "mean": "The value where it was observed, else the expected one: given the limit it lies beyond.",
            "sd": "0 where the value was observed, else the standard deviation of the prediction.",
            "observed": "Whether the dataset has the value, not a limit that it lies beyond.",
        },
    )


def generate(posterior: StoredPosterior, n_samples: int, seed: int) -> dict[str, xr.DataArray]:
    """Return new samples of the model by view (`Posterior.generate`)."""
    import xarray as xr

    if not isinstance(n_samples, int | np.integer) or n_samples < 1:
        raise InputError("n_samples", n_samples, "an integer >= 1", "For example 100.")
    check_seed(seed)
    model = posterior.model
    record = {v.name: posterior.variable(v.name).values for v in model.table if not v.rows}
    arrays = {}
    for name, values in model.generate(record, n_samples, seed).items():
        dim, labels = ("factor", posterior.factors)
        if name != "scores":
            dim, labels = f"feature_{name}", posterior.features(name)
        arrays[name] = xr.DataArray(values, dims=("obs", dim), coords={dim: labels}, name=name)
    return arrays


def lazily(
    posterior: StoredPosterior,
    view: str,
    rows: NDArray[np.intp],
    parts: Mapping[str, tuple[Compute, Any]],
    docs: Mapping[str, str],
) -> xr.Dataset:
    """Return a dataset whose variables are computed when values are asked for."""
    import xarray as xr

    feature = f"feature_{view}"
    features = posterior.features(view)
    variables, shape = {}, (len(rows), len(features))
    for name, (compute, dtype) in parts.items():
        values = lazy_array(partial(_compute_pieces, compute, rows, shape[1], dtype), shape, dtype)
        variables[name] = xr.Variable(("obs", feature), values, {"long_name": docs[name]})
    dataset = xr.Dataset(variables, coords={feature: features})
    if len(rows) <= LAZY_LABELS:
        return dataset.assign_coords(obs=names_of_rows(posterior, rows))
    names = posterior.coordinate("obs")[as_slice(rows)]
    return dataset.assign_coords(xr.Coordinates({"obs": names}, indexes={}))


def _compute_pieces(
    compute: Compute, rows: NDArray[np.intp], n_features: int, dtype: Any, key: tuple[Any, ...]
) -> NDArray[Any]:
    piece = max(1, PIECE_ENTRIES // max(1, n_features))
    one_row = isinstance(key[0], int | np.integer)
    rows_of_piece = rows[[key[0]] if one_row else key[0]]
    parts = [compute(rows_of_piece[i : i + piece])[:, key[1]] for i in range(0, len(rows_of_piece), piece)]
    out = np.concatenate(parts) if parts else np.empty((0, n_features), dtype)[:, key[1]]
    return out[0] if one_row else out


def _moment(predictor: Predictor, which: int, rows: NDArray[np.intp]) -> NDArray[Any]:
    return predictor(rows)[which]


def _end(predictor: Predictor, share: float, which: int, rows: NDArray[np.intp]) -> NDArray[Any]:
    return predictor.interval(rows, share)[which]


def _fill_observed(predictor: Predictor, which: int, rows: NDArray[np.intp]) -> NDArray[Any]:
    values, observed = _observed_values(predictor, rows)
    predicted, sides = predictor(rows)[which], _sides(predictor, rows)
    if sides is not None:
        ends = np.where(sides != 0, values, 0.0)
        if predictor.posterior.model.likelihood(predictor.view).is_time:
            beyond = predictor.distribution(rows).mean_and_sd_after(ends)
        else:
            beyond = _beyond_limits(*predictor(rows), ends, sides)
        predicted = np.where(sides != 0, beyond[which], predicted)
    return np.where(observed, values if which == 0 else 0.0, predicted)


def _is_observed(predictor: Predictor, rows: NDArray[np.intp]) -> NDArray[Any]:
    return _observed_values(predictor, rows)[1]


def _observed_values(predictor: Predictor, rows: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return values of the dataset, and which of them were measured: not those beyond a limit."""
    dataset = predictor.posterior.data
    values = values_of_rows(dataset, predictor.view, rows)
    observed, sides = np.asarray(dataset.views[predictor.view].kind.observed(values)), _sides(predictor, rows)
    return values, observed if sides is None else observed & (sides == 0)


def _sides(predictor: Predictor, rows: NDArray[np.intp]) -> NDArray[Any] | None:
    """Return -1 or 1 of entries below or above what stands there, a limit or the time last seen, else 0."""
    if predictor.posterior.model.likelihood(predictor.view).aux != "censored":
        return None
    view = next(v for v in predictor.posterior.meta.views if v.name == predictor.view)
    return values_of_rows(predictor.posterior.data, view.name, rows, view.aux_key) if view.aux else None


def _beyond_limits(
    mean: NDArray[Any], sd: NDArray[Any], limit: NDArray[Any], sides: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return mean and sd of normal variables of which it is known on which side of a limit they lie."""
    distance = np.where(sides != 0, sides * (mean - limit) / sd, 0.0)  # inwards, in standard deviations
    ratio = np.exp(-0.5 * distance**2 - 0.5 * np.log(2.0 * np.pi) - log_ndtr(distance))
    share = np.clip(1.0 - ratio * (ratio + distance), 0.0, 1.0)
    return mean + sides * sd * ratio, sd * np.sqrt(share)


def values_of_rows(
    dataset: Dataset | AlignedDataset, view: str, rows: NDArray[np.intp], key: str = ""
) -> NDArray[Any]:
    """Return some rows of a view, or of what lies beside it (a key of `Block.data`), reading blocks once."""
    number = rows // dataset.block_rows
    parts = [(np.flatnonzero(number == block), int(block)) for block in np.unique(number)]
    values = {block: dataset.block(block, [view]).data[key or view] for _, block in parts}
    meta = dataset.views[view]
    dtype = next((array.dtype for array in values.values()), np.dtype(meta.kind.dtype))
    out = np.empty(meta.kind.shape(len(rows), meta.n_features), dtype)
    for where, block in parts:
        out[where] = values[block][rows[where] - block * dataset.block_rows]
    return out
