"""Which factors of several runs are the same, and how stable each is."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from factorflow.errors import InputError, OptionText, pluralize

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.posterior.stored_posterior import StoredPosterior

MIN_SHARED = 3
"""Samples or features that two runs must have in common."""


@dataclass(frozen=True)
class Matching:
    """Factors of several runs that are the same factor.

    Parameters
    ----------
    table : DataFrame
        For every run and every factor of the reference run: ``run``, ``reference``, ``factor`` (None where
        the run has none left), ``correlation`` (signed).
    stability : Series
        By factor of the reference run: mean absolute correlation with its matches in the other runs; a run
        without a match counts as 0.
    """

    table: pd.DataFrame
    stability: pd.Series[float]


def match_factors(
    posteriors: Sequence[StoredPosterior], by: Literal["scores", "loadings"] = "scores", reference: int = 0
) -> Matching:
    """Match the factors of several runs with those of one of them.

    The assignment maximises the sum of absolute correlations (`scipy.optimize.linear_sum_assignment`).

    Parameters
    ----------
    posteriors : sequence of Posterior
        Two runs or more: other seeds, other settings, other samples.
    by : {"scores", "loadings"}
        Correlate scores over the samples, or loadings over the features, that two runs share by name.
    reference : int
        The run whose factors the others are matched with.

    Returns
    -------
    Matching

    Raises
    ------
    InputError
        When two runs share too few names, or they are of different datasets whose samples (features) have no
        names and are not equally many. Equally many samples without names are matched by position, with a
        warning.

    Examples
    --------
    >>> other = factorflow.fit(dataset, model, seed=1, max_iter=20)
    >>> matching = factorflow.analysis.match_factors([posterior, other], by="loadings")
    >>> matching.table.columns.tolist()
    ['run', 'reference', 'factor', 'correlation']
    >>> matching.stability.round(1).tolist()
    [1.0, 1.0, 1.0]
    """
    import pandas as pd
    from scipy.optimize import linear_sum_assignment

    if len(posteriors) < 2:
        raise InputError("posteriors", len(posteriors), "at least two", "Fit with several seeds.")
    for posterior in posteriors:
        if not hasattr(posterior, "factors"):
            remedy = "Open a path with factorflow.open_posterior."
            raise InputError("posteriors", type(posterior).__name__, "posteriors", remedy)
    if by not in ("scores", "loadings"):
        raise InputError("by", by, '"scores" or "loadings"', "Use scores for the same samples.")
    if isinstance(reference, bool) or reference not in range(len(posteriors)):
        expected = f"a position in posteriors, 0 to {len(posteriors) - 1}"
        raise InputError("reference", reference, expected, "0 is the first of them.")
    first = posteriors[reference]
    rows = []
    for run, other in enumerate(posteriors):
        if run == reference:
            continue
        _check_names(first, other, by)
        correlation = _correlation(_profile(first, by), _profile(other, by))
        ours, theirs = linear_sum_assignment(np.abs(correlation), maximize=True)
        partners = dict(zip(ours.tolist(), theirs.tolist(), strict=True))
        for k, factor in enumerate(first.factors):
            j = partners.get(k)
            rows.append(
                {
                    "run": run,
                    "reference": factor,
                    "factor": None if j is None else other.factors[j],
                    "correlation": 0.0 if j is None else float(correlation[k, j]),
                }
            )
    table = pd.DataFrame(rows, columns=["run", "reference", "factor", "correlation"])
    strength = table.assign(stability=table["correlation"].astype(float).abs()).groupby(
        "reference", sort=False
    )
    return Matching(table, strength["stability"].mean())


def _check_names(first: StoredPosterior, other: StoredPosterior, by: str) -> None:
    """Refuse runs of different datasets which have nothing but numbers in common.

    Features without names are columns, which arrays of the same width have in the same order; of samples
    without names as many may be the same, so they are matched with a warning.
    """
    if first.run.get("fingerprint") == other.run.get("fingerprint"):
        return
    if by == "scores" and (first.is_numbered or other.is_numbered):
        text = "Give the samples names when you write the datasets, or match by loadings ({by})."
        remedy = OptionText(text, by="loadings")
        if first.is_numbered and other.is_numbered and first.meta.n_rows == other.meta.n_rows:
            text = f"samples without names are matched by their position. {text}"
            warnings.warn(OptionText(text, by="loadings"), stacklevel=3)
            return
        expected = "names of the samples: the runs are of different datasets"
        raise InputError("posteriors", "runs of samples without names", expected, remedy)
    for view in {*first.loaded_views} & {*other.loaded_views} if by == "loadings" else ():
        names = [[str(name) for name in run.features(view)] for run in (first, other)]
        numbered = all(part == [f"feature{i}" for i in range(len(part))] for part in names)
        if numbered and len(names[0]) != len(names[1]):
            value = f"{len(names[0])} and {len(names[1])} features of view {view} without names"
            expected = "names of the features: the runs are of different datasets"
            raise InputError("posteriors", value, expected, "Give the features names in both datasets.")


def _profile(posterior: StoredPosterior, by: str) -> pd.DataFrame:
    """Return what factors are compared by: scores by sample, or loadings by view and feature."""
    import pandas as pd

    if by == "scores":
        return pd.DataFrame(posterior.scores().values, index=[str(name) for name in posterior.obs_names])
    parts = []
    for view in posterior.loaded_views or posterior.views:
        index = [f"{view}/{name}" for name in posterior.features(view)]
        loadings = posterior.loadings(view)
        if "factor" not in loadings.dims:
            actual, expected = f"loadings by {', '.join(map(str, loadings.dims))}", "loadings by factor"
            raise InputError("posteriors", actual, expected, "Identities and attributes are not matched.")
        values = loadings.values
        scale = (
            np.sqrt(np.sum(values**2) / max(1, values.size)) or 1.0
        )  # views count alike, whatever their units
        parts.append(pd.DataFrame(values / scale, index=index))
    return pd.concat(parts)


def _correlation(left: pd.DataFrame, right: pd.DataFrame) -> NDArray[np.float64]:
    """Return the correlations (K, K') over the rows that both have."""
    shared = left.index.intersection(right.index)
    if len(shared) < MIN_SHARED:
        raise InputError(
            "posteriors",
            f"runs that share {pluralize(len(shared), 'name')}",
            f"at least {MIN_SHARED} samples or features in common",
            "Match runs on other samples with {by}.",
            by="loadings",
        )
    a, b = left.loc[shared].to_numpy(), right.loc[shared].to_numpy()
    a, b = a - a.mean(0), b - b.mean(0)
    norm = np.sqrt((a**2).sum(0))[:, None] * np.sqrt((b**2).sum(0))
    return np.asarray(a.T @ b / np.where(norm > 0, norm, 1.0))
