"""What is refused, and what is warned of, before a dataset is published."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorflow.data.store.layout import RESERVED
from factorflow.data.store.moments import Survey
from factorflow.errors import InputError
from factorflow.shape import Likelihood

__all__ = [
    "LIKELIHOODS",
    "DataWarning",
    "check_likelihood_name",
    "check_unique",
    "check_values",
    "check_view_names",
    "guess_likelihood",
    "warn",
]

LIKELIHOODS: tuple[Likelihood, ...] = ("gaussian", "bernoulli", "poisson")

StrArray = NDArray[np.str_]

_FITS = {
    "gaussian": "finite numbers",
    "bernoulli": "0 and 1 (or -1 and 1), NaN where an entry is missing",
    "poisson": "whole numbers from 0 to 4294967295, NaN where an entry is missing",
}


class DataWarning(UserWarning):
    """Something about the data that a fit survives but its user should know."""


def warn(message: str) -> None:
    """Issue a `DataWarning`."""
    warnings.warn(message, DataWarning, stacklevel=2)


def listed(names: Sequence[str] | StrArray, limit: int = 5) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(repr(str(name)) for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


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


def usable_name(name: str) -> str:
    """Return a view name that is accepted, as near to ``name`` as possible."""
    better = "".join(c if c.isalnum() or c == "_" else "_" for c in name).strip("_") or "view"
    return better if better.isidentifier() and better not in RESERVED else f"view_{better}"


def check_unique(what: str, names: StrArray) -> None:
    """Refuse duplicate names."""
    unique, counts = np.unique(names, return_counts=True)
    if unique.size < names.size:
        repeated = unique[counts > 1]
        raise InputError(what, listed(repeated), "every name once", "Rename or remove the duplicates.")


def check_likelihood_name(view: str, likelihood: str) -> Likelihood:
    """Return the likelihood, or refuse one that does not exist."""
    for known in LIKELIHOODS:
        if likelihood == known:
            return known
    raise InputError(
        f"likelihood of view {view!r}",
        likelihood,
        f"one of {', '.join(LIKELIHOODS)}",
        "Leave it out to have it guessed.",
    )


def check_values(
    view: str, likelihood: Likelihood | None, values: NDArray[Any], samples: StrArray, features: StrArray
) -> None:
    """Refuse a block (B, D) whose values do not fit the likelihood (None: any finite number).

    Parameters
    ----------
    samples : (B,) str array
        Names of its rows.
    """
    if likelihood in (None, "gaussian"):
        if np.isfinite(values.min()) and np.isfinite(values.max()):
            return
        bad = np.isinf(values)
    elif likelihood == "bernoulli":
        bad = ~((values == 0) | (np.abs(values) == 1) | np.isnan(values))
    else:
        with np.errstate(invalid="ignore"):
            bad = ~((np.floor(values) == values) & (values >= 0) & (values < 2**32) | np.isnan(values))
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        value = float(values[row, column])
        where = f"value of sample {str(samples[row])!r}, feature {str(features[column])!r} of view {view!r}"
        if np.isinf(value):
            raise InputError(
                where,
                value,
                "a finite number (float32), or NaN where it is missing",
                "Remove or cap infinite values before ingest; a logarithm of 0 is their usual source.",
            )
        raise InputError(
            where,
            value,
            f"for the {likelihood} likelihood: {_FITS[likelihood or 'gaussian']}",
            f"Choose another likelihood for {view!r}, or correct the value.",
        )


def check_survey(view: str, likelihood: Likelihood, survey: Survey, features: StrArray) -> None:
    """Look at a whole view: refuse features that were never observed, warn of constant ones."""
    empty = survey.n_observed == 0
    if empty.any():
        raise InputError(
            f"features of view {view!r}",
            listed(features[empty]),
            "at least one observed value in every feature",
            "Remove them, or ingest with drop_empty_features=True (--drop-empty-features).",
        )
    if likelihood == "bernoulli" and survey.minimum.min() < 0 and survey.n_zero > 0:
        raise InputError(
            f"values of view {view!r}",
            "-1, 0 and 1",
            f"for the bernoulli likelihood: {_FITS['bernoulli']}",
            "If 0 or -1 stands for a missing entry, write NaN instead.",
        )
    constant = survey.minimum == survey.maximum
    if constant.any():
        warn(
            f"view {view!r}: {int(constant.sum())} of {constant.size} features are constant "
            f"({listed(features[constant])}); they carry no information about the factors"
        )


def guess_likelihood(survey: Survey) -> Likelihood:
    """Return the likelihood that suggests itself: two values, whole numbers from 0 on, or any."""
    some = survey.n_observed > 0
    if not survey.integers or not some.any():
        return "gaussian"
    low, high = survey.minimum[some].min(), survey.maximum[some].max()
    if (low >= 0 and high <= 1) or (low == -1 and high == 1 and survey.n_zero == 0):
        return "bernoulli"
    return "poisson" if 0 <= low and high < 2**32 else "gaussian"
