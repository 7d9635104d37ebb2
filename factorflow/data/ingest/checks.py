"""Validation of data before a dataset is published: errors and warnings."""

from __future__ import annotations

import json
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.core.kinds import KINDS, LARGEST, Kind
from factorflow.data.store.extremes import Outlier
from factorflow.data.store.layout import RESERVED
from factorflow.data.store.moments import LevelCounts, Survey
from factorflow.data.store.rows import RowNames
from factorflow.errors import FactorflowError, InputError, OptionText, pluralize

StrArray = NDArray[np.str_]

_BLANKS = re.compile(r"[\s\u200b\ufeff]+")


class DataWarning(UserWarning):
    """Warning about the data that does not prevent a fit."""


def warn(message: str, **options: Any) -> None:
    """Issue a `DataWarning` that names these options (`factorflow.errors.OptionText`)."""
    warnings.warn(OptionText(message, **options), DataWarning, stacklevel=2)


def join_names(names: Sequence[str] | StrArray, limit: int = 5, total: int | None = None) -> str:
    """Return the first names, and how many more there are (of ``total``, all of them when left out)."""
    first = ", ".join(repr(str(name)) for name in names[:limit])
    more = (len(names) if total is None else total) - limit
    return first + (f" and {more} more" if more > 0 else "")


def check_view_names(names: Sequence[str]) -> None:
    """Refuse view names that cannot name a variable or a Zarr group."""
    if not names:
        raise InputError(
            "views", "none", "at least one view", "Give a dict of name to values, or a file with views."
        )
    check_unique("view names", np.asarray(names, dtype=str))
    for name in names:
        if name != usable_name(name):
            raise InputError(
                "view name",
                name,
                "letters, digits and inner underscores, not starting with a digit, "
                f"and none of {', '.join(sorted(RESERVED))}",
                f"Rename it, for example {usable_name(name)!r}.",
            )


def check_attributes(attributes: Mapping[str, Any]) -> None:
    """Refuse attributes of a dataset that JSON and Zarr have no words for."""
    for name, value in attributes.items():
        if not isinstance(name, str) or not name.isidentifier():
            expected = "names of letters, digits and underscores, not starting with a digit"
            raise InputError("attributes", name, expected, "Rename it.")
        if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "biufU":
            continue
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            expected = f"a plain value, or a NumPy array of numbers or text ({error})"
            raise InputError(f"attributes[{name!r}]", value, expected, "Convert it.") from None


def without_blanks(name: str) -> str:
    """Return a name without blanks of any kind, characters of other widths written as usual."""
    return _BLANKS.sub("", name if name.isascii() else unicodedata.normalize("NFKC", name))


def warn_of_spelling(what: str, names: Iterable[str]) -> None:
    """Warn of names that belong together and differ in case or blanks alone."""
    first, pairs = dict[str, str](), list[str]()
    for name in names:
        earlier = first.setdefault(without_blanks(name).casefold(), name)
        pairs += [f"{earlier!r} and {name!r}"] if earlier != name else []
    if pairs:
        text = ", ".join(pairs[:3]) + (f" and {len(pairs) - 3} more" if pairs[3:] else "")
        warn(
            f"{what} differ in case or blanks alone ({text}): they are taken as different ones; if they are "
            "the same, write them alike"
        )


DAMAGED = "The file may be damaged: copy it again, or write it again."
"""What to do where values cannot be read."""


@contextmanager
def readable(what: str, remedy: str = DAMAGED, expected: str = "values that can be read") -> Iterator[None]:
    """Refuse what cannot be read: of damaged files libraries raise whatever they come upon.

    Errors of the disk pass, as does what is refused already.
    """
    try:
        yield
    except (FactorflowError, Warning, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and (error.errno or 0) > 0:  # netCDF numbers its own below 0
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, LookupError):  # its text is what was looked for, without a word
            text = f"{type(error).__name__}: {text}"
        raise InputError(what, text, expected, remedy) from error


def usable_name(name: str) -> str:
    """Return a view name that is accepted, as near to ``name`` as possible."""
    better = "".join(c if c.isalnum() or c == "_" else "_" for c in name).strip("_") or "view"
    return better if better.isidentifier() and better not in RESERVED else f"view_{better}"


def usable_names(names: Iterable[str]) -> dict[str, str]:
    """Return the view that each view of a file becomes: of names that are accepted no two are equal."""
    original, out = list(names), dict[str, str]()
    for name in original:
        better = usable_name(name)
        while better != name and (better in out.values() or better in original):
            better += "_"
        out[name] = better
    return out


def check_unique(what: str, names: StrArray) -> None:
    """Refuse duplicate names, and empty ones."""
    blank = np.char.strip(names) == ""
    if blank.any():
        raise InputError(
            what,
            f"none for number {int(np.argmax(blank)) + 1} of {names.size}",
            "a name for each: text that is not empty, a number",
            "Fill it in, or remove what has no name.",
        )
    unique, counts = np.unique(names, return_counts=True)
    if unique.size < names.size:
        repeated = unique[counts > 1]
        remedy = "Rename or remove the duplicates (of AnnData: var_names_make_unique, obs_names_make_unique)."
        raise InputError(what, join_names(repeated), "every name once", remedy)


def check_values(
    view: str, kind: Kind | None, values: NDArray[Any], start: int, samples: RowNames, features: StrArray
) -> None:
    """Refuse a raw block (B, D) whose values do not fit the kind (None: any finite number).

    Parameters
    ----------
    view, kind, values
        The block, and what it is of.
    start : int
        Global index of its first row.
    """
    bad = (kind or KINDS["gaussian"]).invalid(values)
    if bad is None:
        return
    row, column = (int(i) for i in np.argwhere(bad)[0])
    value = float(values[row, column])
    sample = str(samples.part(start + row, start + row + 1)[0])
    where = f"value of sample {sample!r}, feature {str(features[column])!r} of view {view!r}"
    if abs(value) > LARGEST:
        raise InputError(
            where,
            value,
            f"a finite number of size {LARGEST:.1e} at most, or NaN where it is missing",
            "Remove or cap infinite values before ingest; a logarithm of 0 is their usual source.",
        )
    assert kind is not None  # without one only infinite values are refused
    raise InputError(
        where, value, _expected_values(kind), f"Choose another likelihood for {view!r}, or correct the value."
    )


def _expected_values(kind: Kind) -> str:
    return f"for the {kind.name} likelihood: {kind.fits}"


def check_survey(view: str, kind: Kind, survey: Survey, features: StrArray) -> None:
    """Look at a whole view: refuse features that were never observed, warn of constant ones."""
    empty = survey.n_observed == 0
    if empty.any():
        raise InputError(
            f"features of view {view!r}",
            join_names(features[empty]),
            "at least one observed value in every feature",
            "Remove them, or ingest with {drop_empty_features}.",
            drop_empty_features=True,
        )
    if (values := kind.conflicts(survey)) is not None:
        raise InputError(
            f"values of view {view!r}",
            values,
            _expected_values(kind),
            "If 0 or -1 stands for a missing entry, write NaN instead.",
        )
    constant = survey.minimum == survey.maximum
    if (n := int(constant.sum())) and kind.is_values and survey.n_rows > 1:  # one sample is to be projected
        warn(
            f"view {view!r}: {n} of {pluralize(constant.size, 'feature')} {'is' if n == 1 else 'are'} "
            f"constant ({join_names(features[constant])}): no information about the factors"
        )


def warn_of_outliers(view: str, outliers: Sequence[Outlier]) -> None:
    """Warn of single entries that are far from all others of their feature."""
    if outliers:
        text = "; ".join(map(str, outliers[:3])) + (f"; {len(outliers) - 3} more" if outliers[3:] else "")
        n = "a value" if len(outliers) == 1 else f"{len(outliers)} values"
        warn(
            f"view {view!r}: {n} hundreds of times as far off as all others of the feature: {text}. "
            "A decimal point may be lost, or a code stand for a missing entry: correct the value or leave it "
            "empty, or a fit may find no factors"
        )


def check_levels(view: str, counts: LevelCounts, levels: StrArray) -> None:
    """Look at a whole categorical view: warn of levels without a sample, and of a single level."""
    empty = counts.n_observed == 0
    if empty.any():
        n_empty = pluralize(int(empty.sum()), "level")
        warn(f"view {view!r}: {n_empty} without a sample ({join_names(levels[empty])})")
    if levels.size == 1:
        warn(f"view {view!r} has a single level ({levels[0]!s}); it tells no samples apart")
