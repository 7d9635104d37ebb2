"""What stands for a missing entry: words in text tables, and codes such as -9 or 999 among the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.checks import listed, warn
from factorflow.errors import InputError, counted

__all__ = [
    "CODES",
    "MISSING_NUMBERS",
    "MISSING_TEXTS",
    "NO_CODES",
    "MissingCodes",
    "is_number",
    "warn_of_codes",
]

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


Read = Callable[[int, int], NDArray[Any]]
"""(start, stop) -> rows of a view."""


class MissingCodes:
    """What a user says that stands for a missing entry.

    Parameters
    ----------
    given : scalar, sequence, or mapping of view to either; None: nothing
        Numbers and texts; of a mapping the key ``obs`` is for the sample metadata.
    """

    def __init__(self, given: Any) -> None:
        by_view = given if isinstance(given, Mapping) else {}
        self.by_view = {str(view): _listed(codes) for view, codes in by_view.items()}
        self.for_all = () if isinstance(given, Mapping) else _listed(given)

    def of(self, view: str) -> tuple[Any, ...]:
        """Return the codes of a view."""
        return self.by_view.get(view, self.for_all)

    def texts(self, view: str) -> tuple[str, ...]:
        """Return the codes of a view as a text table may write them."""
        return tuple(dict.fromkeys(text for code in self.of(view) for text in _as_texts(code)))

    def reader(
        self, view: str, read: Callable[[int, int], NDArray[Any]]
    ) -> Callable[[int, int], NDArray[Any]]:
        """Return what reads rows of a view with the codes replaced: NaN, or None among labels."""
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


def _listed(codes: Any) -> tuple[Any, ...]:
    if codes is None:
        return ()
    if isinstance(codes, str | bytes) or not isinstance(codes, Iterable):
        codes = (codes,)
    found = tuple(codes)
    wrong = [code for code in found if not isinstance(code, str | int | float | np.number)]
    if wrong:
        expected = "numbers and texts that stand for a missing entry"
        raise InputError("na_values", wrong[0], expected, "For example na_values=[-9, 'unknown'].")
    return found


def _number(code: Any) -> float | None:
    try:
        return float(code)
    except ValueError:
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
) -> None:
    """Warn of columns whose smallest or largest value is a code of missing entries far from all else.

    Far is: further from the other values than these are from each other, or below 0 where they are not.

    Parameters
    ----------
    view : str
        What the columns are of, for the message.
    names : (D,) sequence of str
        Of the columns.
    low, high : (D,) arrays
        Smallest and largest value of each column.
    read : callable
        Positions of columns -> their values, some rows at a time; called only where an extreme is a code.
    """
    places = np.flatnonzero(np.isin(low, CODES) | np.isin(high, CODES))
    if not places.size:
        return
    least, most = np.full(places.size, np.inf), np.full(places.size, -np.inf)
    entries = dict.fromkeys(CODES, np.zeros(places.size, np.int64))
    for values in read(places):
        for code in CODES:
            entries[code] = entries[code] + (values == code).sum(axis=0)
        others = np.isnan(values) | np.isin(values, CODES)
        least = np.minimum(least, np.where(others, np.inf, values).min(axis=0))
        most = np.maximum(most, np.where(others, -np.inf, values).max(axis=0))
    for code, number in entries.items():
        gap = np.maximum(least - code, code - most)
        far = (number > 0) & np.isfinite(least) & ((gap > most - least) | ((code < 0) & (least >= 0)))
        if code == NA_INTEGER:
            far = number > 0
        if far.any():
            _say(view, code, [str(names[i]) for i in places[far]], int(number[far].sum()))


def _say(view: str, code: float, columns: list[str], n_entries: int) -> None:
    shown = listed(columns, 3)
    whose = "R's missing integer" if code == NA_INTEGER else "far from all other values"
    entries = counted(n_entries, "entry", "entries")
    warn(
        f"{view}: {entries} of {code:.0f} in {shown}, {whose}: if it stands for a missing entry, say so: "
        f"na_values=[{code:.0f}]"
    )
