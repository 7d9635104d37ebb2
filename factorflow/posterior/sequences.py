"""Posteriors of sequences: attributes of frames, and predictions from the past."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

    from factorflow.core.block import Block
    from factorflow.data import Dataset
    from factorflow.posterior.stored_posterior import StoredPosterior


def check_identities(posterior: StoredPosterior) -> None:
    """Refuse a posterior of a family without identities."""
    if not posterior.has("present"):
        raise InputError(
            "model",
            posterior.run["config"].get("model"),
            "a model of sequences, whose samples have identities and attributes",
            "Use scores() and loadings(view).",
        )


def attributes(posterior: StoredPosterior) -> xr.Dataset:
    """Return mean and standard deviation of the attributes (`Posterior.attributes`)."""
    import xarray as xr

    check_identities(posterior)
    mean, variance = posterior.variable("attributes"), posterior.variable("attributes_variance")
    return xr.Dataset({"mean": mean, "sd": np.sqrt(variance)})


def one_step(
    posterior: StoredPosterior,
    start: int | None,
    stop: int | None,
    dataset: Dataset | str | os.PathLike[str] | None,
) -> xr.Dataset:
    """Return predictions from the frames before (`Posterior.one_step`)."""
    import xarray as xr

    from factorflow.data import Dataset, open_dataset

    predict = getattr(posterior.model, "one_step", None)
    if predict is None:
        raise InputError(
            "model",
            posterior.run["config"].get("model"),
            "a model of sequences",
            "Use posterior.predict(view): its rows have no order.",
        )
    if dataset is None:
        there = posterior.dataset
    else:
        there = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    _check_features(posterior, there)
    low, high = _rows(there.n_rows, start, stop)
    values, first, skipped = _frames(posterior, there, low, high)
    record = {v.name: posterior.variable(v.name).values for v in posterior.model.table if not v.rows}
    predicted: dict[str, Any] = predict(record, values, first)
    dims = {"present": ("obs", "identity"), "log_density": ("obs",)}
    variables = {
        name: (dims.get(name, ("obs", f"feature_{name.partition('_')[2]}")), array[skipped:])
        for name, array in predicted.items()
    }
    coords: dict[str, Any] = {f"feature_{view}": posterior.features(view) for view in posterior.views}
    coords["identity"] = posterior.coordinate("identity").values
    return xr.Dataset(variables, coords=coords | {"obs": there.obs_names[low:high]})


def _rows(n_rows: int, start: int | None, stop: int | None) -> tuple[int, int]:
    """Return the rows that are meant."""
    low, high, _ = slice(start, stop).indices(n_rows)
    if low >= high:
        raise InputError(
            "rows", f"{start} to {stop}", f"some of the {n_rows} rows", "Leave both out for all."
        )
    return low, high


def _check_features(posterior: StoredPosterior, dataset: Dataset) -> None:
    """Refuse a dataset of other views or features: a forecast has no place for what is not there."""
    for view in posterior.views:
        if view not in dataset.views or not np.array_equal(dataset.features(view), posterior.features(view)):
            raise InputError(
                "dataset",
                str(dataset.path),
                f"view {view} with the features that the model was fitted to",
                "Write the frames with the same views, their features in the same order.",
            )


def _frames(
    posterior: StoredPosterior, dataset: Dataset, low: int, high: int
) -> tuple[dict[str, Any], Any, int]:
    """Return frames from the beginning of the sequence of the first row on.

    Their values by view, where sequences begin, and how many rows come before those that are meant.
    """
    views = list(posterior.views)
    size, n_sequences = dataset.block_rows, dataset.meta(views).n_sequences
    number = (high - 1) // size
    parts: list[Block] = []
    firsts: list[Any] = []
    while True:  # backwards, until the sequence of the first row has begun
        block = dataset.block(number, views)
        rows = np.arange(block.start, block.start + block.n_rows)
        firsts.insert(0, block.columns["time"] == 0 if n_sequences else rows == 0)
        parts.insert(0, block)
        if block.start == 0 or (block.start <= low and firsts[0][: low - block.start + 1].any()):
            break
        number -= 1
    first = np.concatenate(firsts)
    begin = int(np.flatnonzero(first[: low - parts[0].start + 1])[-1])
    part = slice(begin, high - parts[0].start)
    values = {v: np.concatenate([b.data[v] for b in parts])[part].astype(np.float64) for v in views}
    return values, first[part], low - parts[0].start - begin
