"""What factors mean: their correlation, their association with sample metadata, their stability over runs."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from factorflow.data.ingest.checks import listed
from factorflow.data.ingest.levels import DATE, DURATION
from factorflow.data.ingest.sources import counts_rows, labels
from factorflow.data.store.column_types import without_arrow
from factorflow.errors import InputError, OptionText, counted
from factorflow.posterior.labels import sample_metadata

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.posterior.stored import Stored

__all__ = ["Matching", "associate", "correlate", "factor_correlation", "match_factors", "run_tests"]

_FOUND = ["factor", "column", "test", "n", "statistic", "effect", "p_value"]

MIN_GROUP = 3
"""Samples that a category must have to take part in a test."""

FEW_LEVELS = 12
"""Whole numbers with at most this many distinct values are codes of categories."""

MAX_LEVELS = 0.5
"""Text columns with more distinct values than this share of the samples are names, not categories."""


def factor_correlation(posterior: Stored) -> pd.DataFrame:
    """Return the correlation of the factors' scores over samples, (K, K).

    Parameters
    ----------
    posterior : Posterior
        With scores.

    Returns
    -------
    DataFrame
        By factor and factor; NaN of factors whose scores do not vary.

    Examples
    --------
    >>> factorflow.analysis.factor_correlation(posterior).shape
    (3, 3)
    """
    import pandas as pd

    values = correlate(posterior.scores().values)
    return pd.DataFrame(values, index=posterior.factors, columns=posterior.factors)


def correlate(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Return the correlations of columns, (K, K); NaN of columns that do not vary, and of a single row."""
    n_rows, k = scores.shape
    if n_rows < 2 or not k:
        return np.full((k, k), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.corrcoef(scores, rowvar=False)).reshape(k, k)


def associate(
    posterior: Stored, columns: Sequence[str] | None = None, metadata: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Test every factor's scores against columns of the sample metadata.

    Spearman's rank correlation for numbers, dates and durations, the Kruskal-Wallis test for categories,
    truth values and whole numbers with few distinct values; p-values are corrected over all tests by
    Benjamini and Hochberg (`scipy.stats.false_discovery_control`). A warning names the columns that cannot be
    tested.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    columns : sequence of str, optional
        Columns to test; all that can be tested when left out.
    metadata : DataFrame, optional
        By sample name (of samples without names by position); that of the dataset when left out.

    Returns
    -------
    DataFrame
        Sorted by p-value: ``factor``, ``column``, ``test``, ``n`` (samples that were tested: those with a
        value, of categories with 3 samples), ``statistic``, ``effect`` (rank correlation, or the share of the
        variance of the ranks, epsilon squared), ``p_value``, ``q_value``. Empty where there are no factors.
        ``attrs["not_tested"]`` lists the columns that were left out.

    Raises
    ------
    InputError
        For a column that does not exist or cannot be tested, and when there is none.

    Examples
    --------
    >>> found = factorflow.analysis.associate(posterior, ["age", "clinic"])
    >>> sorted(set(found["test"]))
    ['kruskal-wallis', 'spearman']
    >>> metadata = pd.DataFrame({"dose": range(80)}, posterior.obs_names)
    >>> factorflow.analysis.associate(posterior, metadata=metadata)["column"].tolist()
    ['dose', 'dose', 'dose']
    """
    found = run_tests(posterior, columns, metadata)
    if left_out := found.attrs["not_tested"]:
        what = f"neither numbers or dates that vary nor categories with {MIN_GROUP} samples each"
        warnings.warn(f"columns not tested: {listed(left_out)}: {what}", stacklevel=3)
    return found


def run_tests(
    posterior: Stored, columns: Sequence[str] | None, metadata: pd.DataFrame | None
) -> pd.DataFrame:
    """Return what `associate` does, without a warning."""
    import pandas as pd
    from scipy.stats import false_discovery_control

    if metadata is not None and not isinstance(metadata, pd.DataFrame):
        expected, remedy = (
            "a DataFrame by sample name",
            "pandas.DataFrame(columns, index=posterior.obs_names).",
        )
        raise InputError("metadata", type(metadata).__name__, expected, remedy)
    columns = [columns] if isinstance(columns, str) else columns
    table = sample_metadata(posterior) if metadata is None else _by_sample(posterior, metadata)
    scores = posterior.scores().values
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    if not len(table.columns):
        raise _nothing_to_test()
    for name in table.columns if columns is None else columns:
        if name not in table:
            raise InputError(
                "columns", name, f"some of {', '.join(map(str, table.columns))}", "Choose among them."
            )
        test = _test_of(_as_numbers(table[name]))
        if test is None:
            if columns is None:
                left_out.append(str(name))
                continue
            expected = f"numbers or dates that vary, or at least two categories with {MIN_GROUP} samples each"
            raise InputError("columns", str(name), expected, "Leave this column out.")
        for k, factor in enumerate(posterior.factors):
            rows.append({"factor": factor, "column": str(name), **test(scores[:, k])})
    if not posterior.factors:
        found = pd.DataFrame([], columns=[*_FOUND, "q_value"])
        found.attrs["not_tested"] = left_out
        return found
    if not rows:
        raise _nothing_to_test()
    result = pd.DataFrame(rows, columns=_FOUND)
    result["q_value"] = false_discovery_control(result["p_value"])
    found = result.sort_values("p_value", kind="stable", ignore_index=True)
    found.attrs["not_tested"] = left_out
    return found


def _by_sample(posterior: Stored, metadata: pd.DataFrame) -> pd.DataFrame:
    """Return a table in the order of the samples, by their names; where they have none, by position.

    Raises
    ------
    InputError
        When names come twice, or none is that of a sample.
    """
    import pandas as pd

    remedy = "Index it by sample name: see posterior.obs_names."
    if posterior.is_numbered and counts_rows(metadata.index):
        if len(metadata) != posterior.meta.n_rows:
            expected = f"{posterior.meta.n_rows} rows, one for every sample: they have no names"
            raise InputError("metadata", f"{len(metadata)} rows", expected, remedy)
        return metadata.set_axis(posterior.obs_names)
    index = pd.Index(labels(metadata.index).astype(object))
    if index.has_duplicates:
        raise InputError("metadata", str(index[index.duplicated()][0]), "every sample once", remedy)
    names = pd.Index(posterior.obs_names)
    if not index.isin(names).any():
        found = f"rows such as {index[0]}" if len(index) else "no rows"
        raise InputError("metadata", found, f"names of samples, such as {names[0]}", remedy)
    return metadata.set_axis(index).reindex(names)


def _nothing_to_test() -> InputError:
    remedy = "Give {metadata}, a table by sample name, or write the dataset with {obs}."
    value, expected = "none that can be tested", "at least one column"
    return InputError("metadata", value, expected, remedy, metadata=..., obs=...)


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
    posteriors: Sequence[Stored], by: Literal["scores", "loadings"] = "scores", reference: int = 0
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
    for given in posteriors:
        if not hasattr(given, "factors"):
            remedy = "Open a path with factorflow.open_posterior."
            raise InputError("posteriors", type(given).__name__, "posteriors", remedy)
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
        found = dict(zip(ours.tolist(), theirs.tolist(), strict=True))
        for k, factor in enumerate(first.factors):
            j = found.get(k)
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


def _test_of(values: NDArray[Any]) -> Any:
    """Return the test that suits a column, a function of scores; None when no test does."""
    from scipy.stats import kruskal, spearmanr

    if values.dtype.kind in "iuf" and not _is_code(values):
        seen = np.isfinite(values.astype(float))
        if seen.sum() < MIN_GROUP or np.ptp(values[seen]) == 0:
            return None

        def by_rank(scores: NDArray[Any]) -> dict[str, Any]:
            found = spearmanr(scores[seen], values[seen])
            return {
                "test": "spearman",
                "n": int(seen.sum()),
                "statistic": float(found.statistic),
                "effect": float(found.statistic),
                "p_value": float(found.pvalue),
            }

        return by_rank
    text = np.array(["" if value is None else str(value) for value in values.tolist()])
    levels, counts = np.unique(text, return_counts=True)
    usable = [level for level, count in zip(levels, counts, strict=True) if level and count >= MIN_GROUP]
    if len(usable) < 2 or len(levels) > MAX_LEVELS * len(text):
        return None

    def by_category(scores: NDArray[Any]) -> dict[str, Any]:
        groups = [scores[text == level] for level in usable]
        n = sum(len(group) for group in groups)
        found = kruskal(*groups)
        return {
            "test": "kruskal-wallis",
            "n": n,
            "statistic": float(found.statistic),
            "effect": float(found.statistic) / (n - 1),
            "p_value": float(found.pvalue),
        }

    return by_category


def _as_numbers(column: pd.Series[Any]) -> NDArray[Any]:
    """Return numbers, dates and durations as float64, all else as objects, None where missing.

    Dates and durations may be text.
    """
    import pandas as pd

    column = without_arrow(column)
    kind = getattr(column.dtype, "kind", "O")
    if kind in "iu" and column.notna().any() and int(column.max()) - int(column.min()) < 1 << 63:
        column = column - column.min()  # so that large ones are told apart as float64
    if kind in "iuf":
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.start_time
    if kind == "O":
        if pd.api.types.infer_dtype(column, skipna=True) == "decimal":
            return column.astype(float).to_numpy()
        column = _read_times(column)
    if getattr(column.dtype, "kind", "O") not in "mM":
        plain = column.astype(object)
        return plain.where(plain.notna(), None).to_numpy(dtype=object)
    return np.asarray((column - column.min()) / pd.Timedelta(1, "s"), dtype=np.float64)


def _read_times(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of text as dates or durations if every entry is one."""
    import pandas as pd

    known = column.astype(object)
    known = known[known.notna() & (known != "")]
    texts = [value for value in known if isinstance(value, str)]
    dates = [value for value in known if isinstance(value, datetime.date)]
    if len(known) > max(len(texts), len(dates)) or not len(known):
        return column
    try:
        if dates:
            return pd.to_datetime(known, utc=True).reindex(column.index)
        if all(DATE.fullmatch(text) for text in texts):
            return pd.to_datetime(known, format="ISO8601", utc=True).reindex(column.index)
        if all(DURATION.fullmatch(text) for text in texts):
            return pd.to_timedelta(known).reindex(column.index)
    except ValueError:  # 2020-13-01
        pass
    return column


def _is_code(values: NDArray[Any]) -> bool:
    """Return whether numbers look like codes of a few categories, with samples enough for tests."""
    seen = values[np.isfinite(values.astype(float))]
    n_levels = len(np.unique(seen))
    few = n_levels <= FEW_LEVELS and n_levels * MIN_GROUP <= len(seen)
    return few and bool((seen == np.round(seen)).all())


def _check_names(first: Stored, other: Stored, by: str) -> None:
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


def _profile(posterior: Stored, by: str) -> pd.DataFrame:
    """Return what factors are compared by: scores by sample, or loadings by view and feature."""
    import pandas as pd

    if by == "scores":
        return pd.DataFrame(posterior.scores().values, index=[str(name) for name in posterior.obs_names])
    parts = []
    for view in posterior.loaded_views or posterior.views:
        index = [f"{view}/{name}" for name in posterior.features(view)]
        loadings = posterior.loadings(view)
        if "factor" not in loadings.dims:
            found, expected = f"loadings by {', '.join(map(str, loadings.dims))}", "loadings by factor"
            raise InputError("posteriors", found, expected, "Identities and attributes are not matched.")
        values = loadings.values
        scale = (
            np.sqrt(np.sum(values**2) / max(1, values.size)) or 1.0
        )  # views count alike, whatever their units
        parts.append(pd.DataFrame(values / scale, index=index))
    return pd.concat(parts)


def _correlation(left: pd.DataFrame, right: pd.DataFrame) -> NDArray[np.float64]:
    """Return the correlations (K, K') over the rows that both have."""
    shared = left.index.intersection(right.index)
    if len(shared) < MIN_GROUP:
        raise InputError(
            "posteriors",
            f"runs that share {counted(len(shared), 'name')}",
            f"at least {MIN_GROUP} samples or features in common",
            "Match runs on other samples with {by}.",
            by="loadings",
        )
    a, b = left.loc[shared].to_numpy(), right.loc[shared].to_numpy()
    a, b = a - a.mean(0), b - b.mean(0)
    norm = np.sqrt((a**2).sum(0))[:, None] * np.sqrt((b**2).sum(0))
    return np.asarray(a.T @ b / np.where(norm > 0, norm, 1.0))
