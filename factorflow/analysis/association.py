"""What factors mean: their correlation, and their association with sample metadata."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.analysis.column_tests import MIN_GROUP, Adjustment, as_numbers, test_of
from factorflow.analysis.survival import cox_regression
from factorflow.data.ingest.checks import join_names
from factorflow.data.ingest.sources import counts_rows, labels
from factorflow.errors import InputError
from factorflow.posterior.labels import repeated_group_column, sample_metadata

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.posterior.stored_posterior import StoredPosterior

_FOUND = ["factor", "column", "test", "n", "statistic", "effect", "p_value"]


def factor_correlation(posterior: StoredPosterior) -> pd.DataFrame:
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
    posterior: StoredPosterior,
    columns: str | Sequence[str] | pd.DataFrame | pd.Series[Any] | None = None,
    metadata: pd.DataFrame | pd.Series[Any] | None = None,
    *,
    adjust: str | Sequence[str] | None = None,
    blocks: str | None = None,
    survival: tuple[str, str] | None = None,
) -> pd.DataFrame:
    """Test every factor's scores against columns of the sample metadata.

    Spearman's rank correlation for numbers, dates and durations, the Kruskal-Wallis test for categories,
    truth values and whole numbers with few distinct values; p-values are corrected over all tests by
    Benjamini and Hochberg (`scipy.stats.false_discovery_control`). A warning names the columns that cannot be
    tested.

    With ``adjust`` or ``blocks``, linear models of the ranks of the scores with and without the column are
    compared by their F-test: of a number (its ranks) that is the partial rank correlation, of categories the
    analysis of covariance of the ranks (Quade 1967, Journal of the American Statistical Association 62,
    1187-1200). With ``survival``, scores are tested by Cox regression (statsmodels, ties after Efron),
    stratified by ``blocks``.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    columns : str, sequence of str, DataFrame or Series, optional
        Columns to test; all that can be tested when left out (``rna:age`` not beside ``age``, groups not
        beside the column that they were named by), and none beside ``survival``. A DataFrame or Series is
        taken for ``metadata``, all of whose columns are tested.
    metadata : DataFrame or Series, optional
        By sample name (of samples without names by position); that of the dataset when left out.
    adjust : str or sequence of str, optional
        Columns whose effects on scores and column are taken out first: age, sex, a batch.
    blocks : str, optional
        A column of samples that belong together (those of a patient): they are compared with each other
        alone. A column that is the same within each block cannot be tested.
    survival : (str, str), optional
        Columns of the times, and of whether the event was seen then (else the sample is censored).

    Returns
    -------
    DataFrame
        Sorted by p-value: ``factor``, ``column``, ``test``, ``n`` (samples that were tested: those with a
        value, of categories with 3 samples), ``statistic``, ``effect`` (rank correlation, or the share of the
        variance of the ranks, epsilon squared, adjusted: partial eta squared; of survival the logarithm of
        the hazard ratio of a standard deviation), ``p_value``, ``q_value``. Empty where there are no factors.
        ``attrs["not_tested"]`` lists the columns that were left out.

    Raises
    ------
    InputError
        For a column that does not exist or cannot be tested, and when there is none; with ``survival`` where
        statsmodels is missing.

    Examples
    --------
    >>> found = factorflow.analysis.associate(posterior, ["age", "clinic"])
    >>> sorted(set(found["test"]))
    ['kruskal-wallis', 'spearman']
    >>> found = factorflow.analysis.associate(posterior, "age", adjust="clinic")
    >>> sorted(set(found["test"]))
    ['partial spearman']
    >>> dose = pd.Series(range(80), posterior.obs_names, name="dose")
    >>> factorflow.analysis.associate(posterior, metadata=dose)["column"].tolist()
    ['dose', 'dose', 'dose']
    """
    results = run_tests(posterior, columns, metadata, adjust=adjust, blocks=blocks, survival=survival)
    if left_out := results.attrs["not_tested"]:
        what = f"neither numbers or dates that vary nor categories with {MIN_GROUP} samples each"
        warnings.warn(f"columns not tested: {join_names(left_out)}: {what}", stacklevel=3)
    return results


def run_tests(
    posterior: StoredPosterior,
    columns: str | Sequence[str] | pd.DataFrame | pd.Series[Any] | None = None,
    metadata: pd.DataFrame | pd.Series[Any] | None = None,
    *,
    adjust: str | Sequence[str] | None = None,
    blocks: str | None = None,
    survival: tuple[str, str] | None = None,
) -> pd.DataFrame:
    """Return what `associate` does, without a warning."""
    import pandas as pd
    from scipy.stats import false_discovery_control

    scores = posterior.scores().values  # refuses families without
    if isinstance(columns, pd.DataFrame | pd.Series):
        if metadata is not None:
            remedy = "Leave one of them out, or name columns: columns=['age']."
            raise InputError("columns", "a table beside {metadata}", "one table", remedy, metadata=...)
        columns, metadata = None, columns
    columns = [columns] if isinstance(columns, str) else columns
    beside = {
        "adjust": [adjust] if isinstance(adjust, str) else list(adjust or ()),
        "blocks": [] if blocks is None else [blocks],
        "survival": _check_times(survival),
    }
    others = [name for names in beside.values() for name in names]
    table, usable = _tables(posterior, metadata)
    if not len(table.columns):
        raise _nothing_to_test()
    is_chosen = columns is not None
    if columns is None:
        copies = {f"{view}:{name}" for view in posterior.views for name in table.columns}  # MuData's
        if metadata is None and (repeated := repeated_group_column(posterior, table)) is not None:
            copies.add(repeated)
        columns = [name for name in table.columns if name not in {*others, *copies}]
        columns = [] if survival is not None else columns
    columns = list(dict.fromkeys(columns))
    roles = {"columns": columns, **beside}
    used = usable[[_check_column(usable, name, role) for role, names in roles.items() for name in names]]
    used = used.loc[:, ~used.columns.duplicated()]
    is_adjusted = adjust or blocks is not None
    adjustment = Adjustment.of(used, beside["adjust"], blocks) if is_adjusted else None
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    for name in columns:
        values = as_numbers(used[name])
        test = test_of(values) if adjustment is None else adjustment.test_of(values)
        if test is None:
            if not is_chosen:
                left_out.append(str(name))
                continue
            expected = f"numbers or dates that vary, or at least two categories with {MIN_GROUP} samples each"
            if adjustment is not None:
                expected += f", beside {', '.join(others)}"
            raise InputError("columns", str(name), expected, "Leave this column out.")
        for k, factor in enumerate(posterior.factors):
            rows.append({"factor": factor, "column": str(name), **test(scores[:, k])})
    if survival is not None and posterior.factors:
        times = beside["survival"]
        regression = cox_regression(scores, used[times[0]], used[times[1]], adjustment)
        rows += [
            {"factor": factor, "column": times[0], **row}
            for factor, row in zip(posterior.factors, regression, strict=True)
        ]
    if not posterior.factors:
        result = pd.DataFrame([], columns=[*_FOUND, "q_value"])
        result.attrs["not_tested"] = left_out
        return result
    if not rows:
        raise _nothing_to_test()
    result = pd.DataFrame(rows, columns=_FOUND)
    result["q_value"] = false_discovery_control(result["p_value"])
    result = result.sort_values("p_value", kind="stable", ignore_index=True)
    result.attrs["not_tested"] = left_out
    return result


def _check_times(survival: Any) -> list[str]:
    """Return the columns of times and events, if any."""
    times = [survival] if isinstance(survival, str) else list(survival or ())
    if survival is not None and (len(times) != 2 or not all(isinstance(name, str) for name in times)):
        remedy = 'For example survival=("months", "died").'
        raise InputError("survival", survival, "two columns: times, and whether it happened then", remedy)
    return times


def _tables(posterior: StoredPosterior, metadata: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the columns that are tested if none are named, and all that can be named."""
    import pandas as pd

    own = sample_metadata(posterior)
    if metadata is None:
        return own, own
    if isinstance(metadata, pd.Series):
        metadata = metadata.to_frame("value" if metadata.name is None else str(metadata.name))
    if not isinstance(metadata, pd.DataFrame):
        expected = "a DataFrame or Series by sample name"
        remedy = "pandas.DataFrame(columns, index=posterior.obs_names)."
        raise InputError("metadata", type(metadata).__name__, expected, remedy)
    if metadata.columns.has_duplicates:
        twice = str(metadata.columns[metadata.columns.duplicated()][0])
        raise InputError("metadata", f"two columns {twice}", "every column once", "Rename one of them.")
    indexed = _by_sample(posterior, metadata)
    others = own.set_axis(indexed.index)
    return indexed, pd.concat([indexed, others[[name for name in others if name not in indexed]]], axis=1)


def _check_column(table: pd.DataFrame, name: Any, parameter: str) -> Any:
    """Return the name of a column that there is."""
    if name not in table:
        available = ", ".join(map(str, table.columns))
        raise InputError(parameter, name, f"some of {available}", "Choose among them.")
    return name


def _by_sample(posterior: StoredPosterior, metadata: pd.DataFrame) -> pd.DataFrame:
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
        actual = f"rows such as {index[0]}" if len(index) else "no rows"
        raise InputError("metadata", actual, f"names of samples, such as {names[0]}", remedy)
    return metadata.set_axis(index).reindex(names)


def _nothing_to_test() -> InputError:
    remedy = "Give {metadata}, a table by sample name, or write the dataset with {obs}."
    value, expected = "no column that can be tested", "numbers that differ, or categories of several samples"
    return InputError("metadata", value, expected, remedy, metadata=..., obs=...)
