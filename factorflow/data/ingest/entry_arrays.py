"""What lies beside the values of a view with a number for each entry: sides of limits, numbers of trials."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest import checks
from factorflow.data.ingest.collect import collect
from factorflow.data.ingest.metadata import read_metadata
from factorflow.data.ingest.reading import AnnDataOptions, Reading
from factorflow.data.ingest.sources import labels
from factorflow.data.store.rows import RowNames
from factorflow.errors import InputError

LEAST_MEASURED = 5
"""Measured values of a feature below which its noise would be that of its prior."""

Rows = Callable[[int, int], Any]
"""(start, stop) -> a number, (D,) or (stop - start, D) array."""


@dataclass
class Limits:
    """Entries at or beyond a limit: the values are limits, and -1 (below) or 1 (above) lies beside them.

    Parameters
    ----------
    lower, upper : callable
        Limits of rows; NaN where there is none.
    sides : callable
        -1 or 1 of rows whose values are limits already.
    """

    lower: Rows
    upper: Rows
    sides: Rows = lambda start, stop: 0
    aux = "censored"
    likelihood = "censored"
    what = "limits, or entries such as <0.5"

    def __post_init__(self) -> None:
        self.measured: NDArray[np.int64] | int = 0
        self.beyond: NDArray[np.int64] | int = 0

    def __call__(
        self, values: NDArray[Any], start: int, names: RowNames, features: Any, view: str
    ) -> tuple[NDArray[Any], NDArray[np.int8]]:
        """Return rows as they are stored, and the sides."""
        stop = start + len(values)  # limits as the values are: 0.1 in single precision is more than 0.1
        low, high = (np.asarray(rows(start, stop), values.dtype) for rows in (self.lower, self.upper))
        _check_order(low, high, start, names, features, view)
        side = self.sides(start, stop)
        below, above = (values <= low) | (side < 0), (values >= high) | (side > 0)
        beyond = below | above
        self.beyond = self.beyond + beyond.sum(axis=0)
        self.measured = self.measured + (~(beyond | np.isnan(values))).sum(axis=0)
        clipped = np.where(values <= low, low, np.where(values >= high, high, values)).astype(values.dtype)
        return clipped, above.astype(np.int8) - below.astype(np.int8)

    def select(self, columns: NDArray[np.intp]) -> Limits:
        """Return the limits of some features."""
        return Limits(*(_select(rows, columns) for rows in (self.lower, self.upper, self.sides)))

    def check(self, view: str, features: Any) -> None:
        """Warn of features of which too little was measured, unless there are too few samples at all."""
        measured, beyond = np.asarray(self.measured), np.asarray(self.beyond)
        few = np.flatnonzero((measured < LEAST_MEASURED) & (measured + beyond >= LEAST_MEASURED))
        if few.size:
            name, n_measured = str(features[few[0]]), int(measured[few[0]])
            others = f" (and {few.size - 1} more such features)" * (few.size > 1)
            checks.warn(
                f"view {view!r}: feature {name!r} has {n_measured} values within its limits{others}; fewer "
                f"than {LEAST_MEASURED} do not tell a fit how much it varies"
            )

    def complete(self, likelihood: str) -> str:
        """Return the likelihood as it is."""
        return likelihood


def _check_order(low: Any, high: Any, start: int, names: RowNames, features: Any, view: str) -> None:
    """Refuse a lower limit above the upper one."""
    crossed = low > high
    if not crossed.any():
        return
    low, high = np.broadcast_arrays(low, high)
    at = tuple(np.argwhere(crossed)[0])
    where = f"feature {str(features[at[-1]])!r} of view {view!r}" if at else f"view {view!r}"
    if len(at) == 2 and crossed.shape[0] > 1:
        row = start + at[0]
        where = f"sample {str(names.part(row, row + 1)[0])!r}, {where}"
    expected = "a lower limit that is no more than the upper one"
    raise InputError(f"limits of {where}", f"{low[at]:g} and {high[at]:g}", expected, "Exchange them.")


@dataclass
class Trials:
    """Successes of numbers of trials, which lie beside them; an entry of no trial is missing."""

    trials: Rows
    aux = "trials"
    likelihood = "binomial"
    what = "trials"

    def __call__(
        self, values: NDArray[Any], start: int, names: RowNames, features: Any, view: str
    ) -> tuple[NDArray[Any], NDArray[np.uint32]]:
        """Return rows as they are stored, and the numbers of trials."""
        n = np.broadcast_to(np.asarray(self.trials(start, start + len(values)), float), values.shape)
        n = np.where(np.isnan(n), 0.0, n)
        wrong = (n < 0) | (n != np.floor(n)) | (n > np.iinfo(np.uint32).max)
        over = (values > n) & (n > 0)
        if wrong.any() or over.any():
            row, column = np.argwhere(wrong if wrong.any() else over)[0]
            where = f"sample {str(names.part(start + row, start + row + 1)[0])!r}, feature "
            where += f"{str(features[column])!r} of view {view!r}"
            if wrong.any():
                raise InputError(
                    f"trials of {where}", n[row, column], "a whole number from 0 on", "Correct it."
                )
            actual = f"{values[row, column]:g} of {n[row, column]:g} trials"
            raise InputError(f"value of {where}", actual, "no more successes than trials", "Correct either.")
        observed = (n > 0) & ~np.isnan(values)
        return np.where(observed, values, np.nan), np.where(observed, n, 0.0).astype(np.uint32)

    def select(self, columns: NDArray[np.intp]) -> Trials:
        """Return the numbers of trials of some features."""
        return Trials(_select(self.trials, columns))

    def check(self, view: str, features: Any) -> None:
        """Refuse nothing: every entry was checked."""

    def complete(self, likelihood: str) -> str:
        """Return the likelihood as it is."""
        return likelihood


def limits_of(
    limits: Any,
    view: str,
    names: RowNames,
    features: Any,
    reading: Reading,
    sides: Any = None,
    position: NDArray[np.int64] | None = None,
) -> Limits:
    """Return the limits of a view.

    Parameters
    ----------
    limits : pair, text, path or DataFrame
        Lower and upper limit: None, a number, a Series or mapping by feature, or entries as a view has them;
        "LOWER,UPPER", either may be empty; or a table by feature with columns lower and
        upper, or its path.
    sides : DataFrame, optional
        Sides of entries whose values are limits already.
    position : (N,) int64 array, optional
        Row of each sample in the view, -1 where it lacks it; None: the same. Of entries without names, too.
    """
    if isinstance(limits, str | os.PathLike):
        limits = _limits_of_text(os.fspath(limits), view, features)
    elif hasattr(limits, "columns"):
        limits = _limits_of_table(limits, view)
    if not isinstance(limits, tuple | list) or len(limits) != 2:
        expected = "a pair of lower and upper limit; None: there is none"
        raise InputError(f"limits of view {view!r}", limits, expected, "For example (0.5, None).")
    what, reading = f"limits of view {view!r}", replace(reading, seen={})
    low, high = (_rows(what, end, view, names, features, reading, position) for end in limits)
    if sides is None:
        return Limits(low, high)
    return Limits(low, high, _rows(what, sides, view, names, features, reading, position))


def _limits_of_text(text: str, view: str, features: Any) -> tuple[Any, Any]:
    if not os.path.exists(text):
        try:
            low, high = (float(part) if part.strip() else None for part in text.split(","))
        except ValueError:
            expected = "LOWER,UPPER, either may be empty; or a table by feature with columns lower and upper"
            raise InputError(f"limits of view {view!r}", text, expected, "For example '0.5,'.") from None
        return low, high
    table = read_metadata(Path(text), f"limits of view {view!r}", samples=np.asarray(features, dtype=str))
    return _limits_of_table(table, view)


def _limits_of_table(table: Any, view: str) -> tuple[Any, Any]:
    if not set(table.columns) & {"lower", "upper"}:
        available = ", ".join(map(str, table.columns))
        raise InputError(
            f"limits of view {view!r}", available, "columns lower, upper or both", "Name them so."
        )
    return table.get("lower"), table.get("upper")


def trials_of(
    trials: Any,
    view: str,
    value: Any,
    names: RowNames,
    features: Any,
    reading: Reading,
    position: NDArray[np.int64] | None = None,
) -> Trials:
    """Return the numbers of trials of a view.

    Parameters
    ----------
    trials : int, path, layer or entries
        One number for all entries; a file, or entries as a view has them; or a layer of ``value``.
    position : (N,) int64 array, optional
        As of `limits_of`.
    """
    what, layer = f"trials of view {view!r}", None
    reading = replace(reading, seen={})
    if isinstance(trials, str) and trials.isdigit():
        trials = int(trials)
    if isinstance(trials, str) and not os.path.exists(trials):
        reading = replace(reading, annotated=AnnDataOptions(layer=trials))
        trials, layer = value, trials
    rows = _rows(what, trials, view, names, features, reading, position)
    if layer is not None and not reading.seen:  # the values of the view were read instead
        expected = "a whole number, a file that exists, entries, or a layer of AnnData, which the view is not"
        raise InputError(what, layer, expected, "Check the path.")
    return Trials(rows)


def _rows(
    what: str,
    values: Any,
    view: str,
    names: RowNames,
    features: Any,
    reading: Reading,
    position: NDArray[np.int64] | None,
) -> Rows:
    """Return a function that reads numbers of rows, features in the order of the view."""
    if values is None or isinstance(values, Real):
        number = np.nan if values is None else float(values)
        return lambda start, stop: number
    values = _numbers(what, values) if isinstance(values, list | tuple) else values
    if isinstance(values, Mapping) or (getattr(values, "ndim", 2) == 1 and hasattr(values, "index")):
        checks.check_unique(what, labels(values.keys()))
        by_name = dict(
            zip(labels(values.keys()).tolist(), (values[name] for name in values.keys()), strict=True)
        )
        if unknown := sorted(set(by_name) - set(map(str, features))):
            raise InputError(what, checks.join_names(unknown), "names of its features", "Check the names.")
        return _constant(_numbers(what, [by_name.get(str(name), np.nan) for name in features]))
    if getattr(values, "ndim", 2) == 1:
        vector = _numbers(what, values)
        if vector.shape != (len(features),):
            raise InputError(what, f"{vector.size} numbers", f"{len(features)}, one a feature", "Check them.")
        return _constant(vector)
    plain = replace(reading, tables=[], groups=[], transpose=lambda view: False)
    source = next(iter(collect({view: values}, plain)[0].values()))
    columns = None
    if source.features is not None:
        where = {name: i for i, name in enumerate(source.features.tolist())}
        if missing := [str(name) for name in features if str(name) not in where]:
            raise InputError(what, "none", f"columns for {checks.join_names(missing)}", "Add them.")
        columns = np.array([where[str(name)] for name in features])
    elif source.shape[1] != len(features):
        actual = f"{source.shape[1]} columns"
        raise InputError(what, actual, f"{len(features)}, one a feature", "Name them, or check their number.")
    if source.samples is None or names.stored is None:
        n_rows = names.n_rows if position is None else int((position >= 0).sum())
        if source.shape[0] != n_rows:
            actual = f"{source.shape[0]} rows"
            raise InputError(what, actual, f"{n_rows}, one a sample of the view", "Check their number.")
        if position is None:
            return lambda start, stop: _of_columns(source.read(start, stop), columns)
        rows = position
    else:
        place = {name: i for i, name in enumerate(source.samples.tolist())}
        rows = np.array([place.get(str(name), -1) for name in names.whole()])
        lacking = (rows < 0) if position is None else (rows < 0) & (position >= 0)
        if lacking.any():
            without = checks.join_names(np.asarray(names.whole())[lacking].tolist())
            raise InputError(what, "none", f"rows for {without}", "Add them; NaN where there is none.")
    return lambda start, stop: _of_columns(source.take(rows[start:stop]), columns)


def _numbers(what: str, values: Any) -> NDArray[np.float64]:
    try:
        return np.asarray([np.nan if value is None else value for value in values], dtype=float)
    except (TypeError, ValueError) as error:
        remedy = "Correct it; None or NaN where there is none."
        raise InputError(what, str(error), "numbers", remedy) from error


def _constant(vector: NDArray[np.float64]) -> Rows:
    return lambda start, stop: vector


def _select(rows: Rows, columns: NDArray[np.intp]) -> Rows:
    """Return a function that reads the numbers of some features."""

    def selected(start: int, stop: int) -> Any:
        numbers = np.asarray(rows(start, stop))
        return numbers[..., columns] if numbers.ndim else numbers

    return selected


def _of_columns(values: NDArray[Any], columns: NDArray[np.intp] | None) -> NDArray[Any]:
    return values if columns is None else values[:, columns]
