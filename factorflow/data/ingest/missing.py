"""Codes of missing entries: words in text tables, and numbers such as -9 or 999."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.checks import join_names, warn
from factorflow.data.store.extremes import LEAST_OTHERS
from factorflow.data.store.moments import Survey
from factorflow.data.store.rows import RowNames
from factorflow.errors import InputError, pluralize

MISSING_TEXTS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "<NA>")
"""What is missing in a column of text. "None" is a label there."""

MISSING_NUMBERS = (
    *MISSING_TEXTS,
    *(".", "None", "none", "#N/A", "#NA", "n/a", "-nan", "-NaN", "1.#QNAN", "-1.#QNAN", "1.#IND", "-1.#IND"),
)
"""What is missing among numbers: also the point of SAS and Stata, and words of spreadsheets and of C."""

NA_INTEGER = -2147483648
"""R's NA_integer_, the smallest 32-bit integer."""

CODES = (-9.0, -99.0, -999.0, -9999.0, 999.0, 9999.0, NA_INTEGER)
"""Numbers that surveys, instruments and programs write for a missing entry."""

SHORT_CODES = (-1.0, 99.0)
"""Such numbers as well that are common values: one entry says little where it does not stand apart."""

APART = 10.0
"""A number so many times as large as all others, or below 0 and as many times smaller than the largest of
others that are not, stands apart from them whatever it is."""

FEW = 0.01
"""Share of negative entries that can hardly be all the negative numbers of measurements."""


class MissingCodes:
    """Codes of missing entries, as given by the user.

    Parameters
    ----------
    given : scalar, sequence, or mapping of view to either; None: nothing
        Numbers and texts; of a mapping the key ``obs`` is for the sample metadata.
    """

    def __init__(self, missing_codes: Any) -> None:
        by_view = missing_codes if isinstance(missing_codes, Mapping) else {}
        self.by_view = {str(view): _as_tuple(codes) for view, codes in by_view.items()}
        self.for_all = () if isinstance(missing_codes, Mapping) else _as_tuple(missing_codes)

    def of(self, view: str) -> tuple[Any, ...]:
        """Return the codes of a view."""
        return self.by_view.get(view, self.for_all)

    def texts(self, view: str) -> tuple[str, ...]:
        """Return the codes of a view as a text table may write them."""
        return tuple(dict.fromkeys(text for code in self.of(view) for text in _as_texts(code)))

    def reader(
        self, view: str, read: Callable[[int, int], NDArray[Any]]
    ) -> Callable[[int, int], NDArray[Any]]:
        """Return a function that reads rows of a view with codes replaced by NaN (labels: None)."""
        codes = self.of(view)
        if not codes:
            return read
        texts, numbers = (
            set(self.texts(view)),
            [number for code in codes if (number := _number(code)) is not None],
        )

        def replaced(start: int, stop: int) -> NDArray[Any]:
            values = np.array(read(start, stop))
            if values.dtype.kind == "O":
                values[np.isin(values.astype(str), list(texts))] = None
            else:
                values[np.isin(values, np.asarray(numbers, values.dtype))] = np.nan
            return values

        return replaced


def _as_tuple(codes: Any) -> tuple[Any, ...]:
    if codes is None:
        return ()
    if isinstance(codes, str | bytes) or not isinstance(codes, Iterable):
        codes = (codes,)
    values = tuple(codes)
    wrong = [code for code in values if not isinstance(code, str | int | float | np.number)]
    if wrong:
        expected = "numbers and texts that stand for a missing entry"
        raise InputError(
            "na_values", wrong[0], expected, "For example {na_values}.", na_values=[-9, "unknown"]
        )
    return values


def _number(code: Any) -> float | None:
    try:
        return float(code)
    except (ValueError, OverflowError):
        return None


def _as_texts(code: Any) -> list[str]:
    """Return a code as a table may write it: -9 also as -9.0."""
    number = _number(code)
    if number is None or not np.isfinite(number) or number != int(number):
        return [str(code)]
    return [str(code), str(int(number)), f"{int(number)}.0"]


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    return _number(text) is not None


NO_CODES = MissingCodes(None)


def warn_of_codes(
    view: str,
    names: Sequence[str] | NDArray[np.str_],
    low: NDArray[Any],
    high: NDArray[Any],
    read: Callable[[NDArray[np.intp]], Iterable[NDArray[Any]]],
    one_unit: bool = True,
    reported: Iterable[float] = (),
) -> None:
    """Warn of numbers far from all others that probably stand for missing entries.

    One of `CODES` is far from the other values of its column if it is further from them than they are from
    each other, or below 0 where they are not. Any other number must stand apart from all columns together
    (see `APART`), and be there twice unless it is one of `SHORT_CODES`: hardly two measurements are equal so
    far from all others.

    Parameters
    ----------
    view : str
        What the columns are of, for the message.
    low, high : (D,) arrays
        Smallest and largest value of each column.
    read : callable
        Positions of columns -> their values, some rows at a time; called only where an extreme is a code, or
        may be one.
    one_unit : bool
        Whether the columns are compared with each other.
    """
    reported = {*reported} | _warn_of_known_codes(view, names, low, high, read, {*reported})
    everything = np.arange(len(names))
    for columns in [everything] if one_unit else np.split(everything, everything.size):
        for code, extreme in ((np.fmin.reduce(low[columns]), low), (np.fmax.reduce(high[columns]), high)):
            if code in reported:
                continue
            holds = columns[extreme[columns] == code]
            if number := _n_isolated(float(code), low, high, columns, holds, read):
                _say(view, float(code), [str(names[i]) for i in holds], number)


def _n_isolated(
    code: float,
    low: NDArray[Any],
    high: NDArray[Any],
    columns: NDArray[np.intp],
    holds: NDArray[np.intp],
    read: Callable[[NDArray[np.intp]], Iterable[NDArray[Any]]],
) -> int:
    """Return how often a number far from all others of some columns occurs; 0 if it is not far.

    ``holds`` are the columns of which it is an extreme. Those with hardly another value do not count.
    """
    remaining = np.setdiff1d(columns, holds, assume_unique=True)
    least = float(np.fmin.reduce(low[remaining], initial=np.inf))
    most = float(np.fmax.reduce(high[remaining], initial=-np.inf))
    if least <= most and not _is_isolated(code, least, most):
        return 0
    entries, n_others = np.zeros(holds.size, np.int64), np.zeros(holds.size, np.int64)
    for values in read(holds):
        others = ~(np.isnan(values) | (values == code))
        entries += (values == code).sum(axis=0)
        n_others += others.sum(axis=0)
        least = min(least, float(np.min(values, where=others, initial=np.inf)))
        most = max(most, float(np.max(values, where=others, initial=-np.inf)))
    number = int(entries[n_others > LEAST_OTHERS].sum())
    enough = number > 1 or (number == 1 and code in SHORT_CODES)
    return number if enough and least < most and _is_isolated(code, least, most) else 0


def _is_isolated(code: float, least: float, most: float) -> bool:
    """Whether a number is far from others between ``least`` and ``most``."""
    if abs(code) > APART * max(abs(least), abs(most)):
        return True
    return code < 0 <= least and (most >= -APART * code or least - code > 2 * (most - least))


def _warn_of_known_codes(
    view: str,
    names: Sequence[str] | NDArray[np.str_],
    low: NDArray[Any],
    high: NDArray[Any],
    read: Callable[[NDArray[np.intp]], Iterable[NDArray[Any]]],
    reported: set[float],
) -> set[float]:
    """Warn of `CODES` that were not reported before, and return them."""
    places = np.flatnonzero(np.isin(low, CODES) | np.isin(high, CODES))
    if not places.size:
        return set()
    least, most = np.full(places.size, np.inf), np.full(places.size, -np.inf)
    entries = dict.fromkeys(CODES, np.zeros(places.size, np.int64))
    for values in read(places):
        for code in CODES:
            entries[code] = entries[code] + (values == code).sum(axis=0)
        others = np.isnan(values) | np.isin(values, CODES)
        least = np.minimum(least, np.where(others, np.inf, values).min(axis=0))
        most = np.maximum(most, np.where(others, -np.inf, values).max(axis=0))
    suspects = set[float]()
    for code, number in entries.items():
        gap = np.maximum(least - code, code - most)
        far = (number > 0) & np.isfinite(least) & ((gap > most - least) | ((code < 0) & (least >= 0)))
        if code == NA_INTEGER:
            far = number > 0
        if far.any() and code not in reported:
            _say(view, code, [str(names[i]) for i in places[far]], int(number[far].sum()))
            suspects.add(code)
    return suspects


def warn_of_negatives(
    view: str,
    samples: RowNames,
    features: NDArray[np.str_],
    survey: Survey,
    read: Callable[[NDArray[np.intp]], Iterable[NDArray[Any]]],
) -> set[float]:
    """Warn of the few negative numbers for which whole numbers are not taken for counts, and return them.

    Parameters
    ----------
    view, samples, features
        The view, and the names of its rows and columns.
    read : callable
        As for `warn_of_codes`.
    """
    places = np.flatnonzero(survey.minimum < 0)
    if not survey.integers or not places.size:
        return set()
    number, start, first, numbers = 0, 0, (0, 0, 0.0), set[float]()
    for values in read(places):
        rows, columns = np.nonzero(values < 0)
        if rows.size and not number:
            first = (start + int(rows[0]), int(places[columns[0]]), float(values[rows[0], columns[0]]))
        number, start = number + rows.size, start + len(values)
        numbers |= set(np.unique(values[rows, columns]).tolist())
        if number > FEW * survey.n_observed.sum():
            return set()
    row, column, value = first
    where = f"{value:.0f} of sample {str(samples.part(row, row + 1)[0])!r}, feature {str(features[column])!r}"
    entries = where if number == 1 else f"{number} entries, first {where}"
    codes = [int(code) for code in sorted(numbers)[:5]]
    warn(
        f"view {view!r}: all values are whole numbers from 0 on but {entries}: it is modelled as gaussian, "
        "not as counts or binary values. If a missing entry is meant, say so: {na_values}; if not, correct "
        "the value, or say {likelihoods}",
        na_values=codes,
        likelihoods={view: "gaussian"},
    )
    return numbers


def _say(view: str, code: float, columns: list[str], n_entries: int) -> None:
    names = join_names(columns, 3)
    whose = "R's missing integer" if code == NA_INTEGER else "far from all other values"
    entries = pluralize(n_entries, "entry", "entries")
    warn(
        f"{view}: {entries} of {code:.10g} in {names}, {whose}: if it stands for a missing entry, say so: "
        "{na_values}",
        na_values=[int(code) if float(code).is_integer() else code],
    )
