"""Feature sets among the features that a factor loads on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from factorflow.data.gmt import read_gmt
from factorflow.errors import InputError, pluralize
from factorflow.posterior.labels import other_names

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.data import Dataset
    from factorflow.data.aligned_dataset import AlignedDataset
    from factorflow.posterior.stored_posterior import StoredPosterior


def enrich(
    posterior: StoredPosterior,
    view: str,
    sets: Mapping[str, Sequence[str]] | pd.DataFrame | str | os.PathLike[str],
    *,
    sign: Literal["both", "positive", "negative"] = "both",
    test: Literal["rank", "parametric"] = "rank",
    min_size: int = 5,
    factors: Sequence[str] | None = None,
    correlation_adjusted: bool = False,
) -> pd.DataFrame:
    """Test whether the members of feature sets have larger loadings than the other features of a view.

    One-sided: the Mann-Whitney test ("rank") or Welch's t-test ("parametric") of the absolute loadings
    ("both"), or of the loadings of one sign (those of the other sign count as 0). Features are taken as
    independent; sets of features that move together get p-values that are too small. With
    ``correlation_adjusted`` the variance of the statistic takes in the mean correlation of the features of a
    set over the samples (Wu and Smyth 2012, Nucleic Acids Research 40, e133; the rank test of Barry, Nobel
    and Wright 2008, Annals of Applied Statistics 2, 286-315; the t-test pools variances). P-values are
    corrected over the sets of a factor by Benjamini and Hochberg.

    Parameters
    ----------
    posterior : Posterior
        What was fitted; with ``correlation_adjusted`` its dataset must be there.
    view : str
        The view whose features are in the sets.
    sets : mapping of str to sequence of str, DataFrame, or path
        Members by set, a GMT file, or a network as decoupler has it: columns ``source`` (the set), ``target``
        (its feature) and, if they are signed, ``weight``. Loadings of features with a weight below 0 change
        their sign in that set. Where no set has enough members among the names of the features, members are
        looked for in the text columns of their metadata, such as the symbols of genes in files of 10x.
    sign : {"both", "positive", "negative"}
        Which loadings count.
    test : {"rank", "parametric"}
        The test.
    min_size : int
        Smaller sets (counting the features of the view only) are left out.
    factors : sequence of str, optional
        Factors to test; all when left out.
    correlation_adjusted : bool
        Whether the correlation of features counts. Signs of features are those of their loadings where both
        signs count; a negative mean is taken as 0.

    Returns
    -------
    DataFrame
        Sorted by factor and p-value: ``factor``, ``set``, ``size``, ``statistic``, ``p_value``, ``q_value``,
        with ``correlation_adjusted`` also ``correlation``, the mean of a set. ``attrs["names"]`` is the
        column of the feature metadata that has the members of the sets, None where these are the names.

    Raises
    ------
    InputError
        When no set has enough features of the view.

    Examples
    --------
    >>> sets = {"first": [f"gene{i}" for i in range(10)], "last": [f"gene{i}" for i in range(20, 30)]}
    >>> found = factorflow.analysis.enrich(posterior, "rna", sets, sign="positive", factors=["Factor1"])
    >>> found.columns.tolist()
    ['factor', 'set', 'size', 'statistic', 'p_value', 'q_value']
    >>> sorted(found["set"])
    ['first', 'last']
    """
    import pandas as pd
    from scipy.stats import false_discovery_control

    if min_size < 1:
        expected = "1 or more: a set without features has no test"
        raise InputError("min_size", min_size, expected, "Leave it out for 5.")
    named_by, inside = _sets_of_view(posterior, view, sets, min_size)
    for name, value, choices in (
        ("sign", sign, ("both", "positive", "negative")),
        ("test", test, ("rank", "parametric")),
    ):
        if value not in choices:
            raise InputError(name, value, f"one of {', '.join(choices)}", "Choose one of them.")
    chosen = list(posterior.factors) if factors is None else [posterior.factor(f) for f in factors]
    loadings = posterior.loadings(view).sel(factor=chosen).values
    correlation: NDArray[Any] | None = None
    if correlation_adjusted and chosen:
        aligned, directions = np.ones_like(loadings), [*inside.values()]
        if sign == "both":  # absolute loadings: signs of weights do not count
            aligned, directions = np.sign(loadings), [np.abs(row) for row in directions]
        correlation = mean_correlations(posterior.data, view, directions, aligned)
    rows: list[dict[str, Any]] = []
    for number, (name, row) in enumerate(inside.items()) if chosen else ():
        mask = row != 0
        values = _count_units(loadings * np.where(mask, row, 1)[:, None], sign)
        mean_correlation = None if correlation is None else correlation[number]
        if mean_correlation is None:
            statistic, p_value = _compare(values[mask], values[~mask], test)
        else:
            statistic, p_value = _compare_correlated(values, mask, test, mean_correlation)
        rows += [
            {"factor": factor, "set": name, "size": int(mask.sum()), "statistic": s, "p_value": p}
            | ({} if mean_correlation is None else {"correlation": mean_correlation[k]})
            for k, (factor, s, p) in enumerate(zip(chosen, statistic, p_value, strict=True))
        ]
    columns = ["factor", "set", "size", "statistic", "p_value", *["correlation"] * correlation_adjusted]
    if not rows:  # a run may end without factors
        return pd.DataFrame([], columns=[*columns[:5], "q_value", *columns[5:]])
    table = pd.DataFrame(rows, columns=columns)
    q_value = table.groupby("factor")["p_value"].transform(false_discovery_control)
    table.insert(5, "q_value", q_value)
    table["factor"] = pd.Categorical(table["factor"], categories=chosen)
    table = table.sort_values(["factor", "p_value"], kind="stable", ignore_index=True)
    table["factor"] = table["factor"].astype(object)
    table.attrs["names"] = named_by
    return table


def _sets_of_view(
    posterior: StoredPosterior, view: str, sets: Any, min_size: int
) -> tuple[str | None, dict[str, NDArray[Any]]]:
    """Return the column that names members, and of each set of enough features the directions of all."""
    members = read_gmt(sets) if isinstance(sets, str | os.PathLike) else sets
    for column, names in _names_of_features(posterior, view):
        directions = _directions(members, names)
        inside = {
            name: row for name, row in directions.items() if min_size <= np.count_nonzero(row) < len(row)
        }
        if inside:
            return column, inside
    raise InputError(
        "sets",
        pluralize(len(directions), "set"),
        f"at least one with {min_size} or more features of view {view}, and not all of them",
        f"Features are named like {posterior.features(view)[0]!r}: name the members in the same way, or "
        "write the dataset with other names of the features beside these (var of AnnData).",
    )


def _names_of_features(posterior: StoredPosterior, view: str) -> Iterator[tuple[str | None, NDArray[Any]]]:
    """Yield the names of the features, and each text column of their metadata under its own name."""
    yield None, posterior.features(view)
    yield from other_names(posterior, view).items()


def _directions(members: Any, names: NDArray[Any]) -> dict[str, NDArray[np.int8]]:
    """Return the sign of each feature by set, 0 of those outside."""
    import pandas as pd

    if isinstance(members, pd.DataFrame):
        return _of_network(members, names)
    if not isinstance(members, Mapping):
        expected = (
            "a mapping of sets to their features, a GMT file, or a table with columns source and target"
        )
        raise InputError(
            "sets", type(members).__name__, expected, "For example {'cell cycle': ['CDK1', ...]}."
        )
    for name, group in members.items():
        if isinstance(group, str) or not isinstance(group, Iterable):
            raise InputError(f"sets[{name!r}]", group, "the names of its features, a list", "Correct it.")
    texts = {str(name): [str(member) for member in group] for name, group in members.items()}
    return {name: np.isin(names, group).astype(np.int8) for name, group in texts.items()}


def _of_network(table: pd.DataFrame, names: NDArray[Any]) -> dict[str, NDArray[np.int8]]:
    """Return the same of a network.

    A weight of 0 is none; an edge that comes twice, or whose weight is no number, is refused.
    """
    import pandas as pd

    missing = {"source", "target"} - set(table.columns)
    if missing:
        expected = "a table with columns source and target, as decoupler has them"
        raise InputError("sets", f"columns {', '.join(map(str, table.columns))}", expected, "Rename them.")
    if table.duplicated(["source", "target"]).any():
        edge = table[table.duplicated(["source", "target"])].iloc[0]
        expected, remedy = "every pair once", "Drop duplicates: DataFrame.drop_duplicates."
        raise InputError("sets", f"{edge['source']}, {edge['target']} twice", expected, remedy)
    weight = np.ones(len(table))
    if "weight" in table:
        weight = pd.to_numeric(table["weight"], errors="coerce").to_numpy(float, na_value=np.nan)
        if (wrong := np.isnan(weight)).any():
            edge = table[wrong].iloc[0]
            actual = f"weight {edge['weight']} of {edge['source']}, {edge['target']}"
            raise InputError("sets", actual, "a number for every pair", "Correct it, or drop the pair.")
    edges = pd.DataFrame(
        {"set": table["source"].astype(str), "name": table["target"].astype(str), "sign": np.sign(weight)}
    )
    features = pd.DataFrame({"name": names.astype(str), "place": np.arange(len(names))})
    directions = {name: np.zeros(len(names), np.int8) for name in edges["set"].unique()}
    for name, rows in edges.merge(features, on="name").groupby("set", sort=False):
        directions[str(name)][rows["place"]] = rows["sign"]
    return directions


def _count_units(loadings: NDArray[Any], sign: str) -> NDArray[Any]:
    """Return what counts of loadings."""
    if sign == "both":
        return np.asarray(np.abs(loadings))
    return np.asarray(np.maximum(loadings if sign == "positive" else -loadings, 0.0))


def mean_correlations(
    dataset: Dataset | AlignedDataset,
    view: str,
    directions: Sequence[NDArray[np.int8]],
    aligned: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the mean correlation of the features of sets over samples, (S, K), in one pass over the data.

    The variance of the mean of m standardised features is (1 + (m - 1) r) / m, with r their mean correlation.
    Missing entries count as the mean.

    Parameters
    ----------
    directions : sequence of (D,) array
        By set: signs of the features, 0 of those outside.
    aligned : (D, K) array
        Signs by factor that the features take first.
    """
    from scipy.sparse import csr_array, vstack

    moments = dataset.moments(view, "mean", "variance", "n_observed")
    mean, sd = np.nan_to_num(moments["mean"]), np.sqrt(np.nan_to_num(moments["variance"]))
    scale = np.where(sd > 0, 1.0 / np.where(sd > 0, sd, 1.0), 0.0)
    members: Any = vstack([csr_array(row[None].astype(np.float64)) for row in directions], format="csr")
    size = np.maximum(abs(members) @ (sd > 0).astype(np.float64), 1.0)
    squares = np.zeros((len(directions), aligned.shape[1]))
    same = bool((aligned == 1.0).all())
    for number in range(dataset.n_blocks):
        y, observed = dataset.views[view].kind.fill_missing(dataset.block(number, [view]).data[view])
        standard = np.where(observed, (y - mean) * scale, 0.0)
        for k in range(1 if same else aligned.shape[1]):
            squares[:, k] += ((members @ (standard * aligned[:, k]).T) ** 2).sum(axis=1)
    if same:
        squares[:] = squares[:, :1]
    inflation = squares / dataset.n_rows / size[:, None]
    return np.asarray(np.clip((inflation - 1.0) / np.maximum(size - 1.0, 1.0)[:, None], 0.0, 1.0))


def _compare_correlated(
    values: NDArray[Any], mask: NDArray[np.bool_], test: str, correlation: NDArray[Any]
) -> tuple[Any, Any]:
    """Return statistics and one-sided p-values of sets whose features are correlated."""
    from scipy.stats import norm, rankdata
    from scipy.stats import t as student

    n, m = len(mask), int(mask.sum())
    n_outside = n - m
    if test == "rank":
        ranks = rankdata(values, axis=0)
        statistic = ranks[mask].sum(axis=0) - m * (m + 1) / 2
        angle = np.arcsin(1.0) * m * n_outside + np.arcsin(0.5) * m * n_outside * (n_outside - 1)
        angle = angle + np.arcsin(correlation / 2.0) * m * (m - 1) * n_outside * (n_outside - 1)
        angle = angle + np.arcsin((correlation + 1.0) / 2.0) * m * (m - 1) * n_outside
        ties = [np.unique(column, return_counts=True)[1].astype(float) for column in ranks.T]
        tied = np.array([(t**3 - t).sum() / (n**3 - n) for t in ties])
        variance = angle / (2.0 * np.pi) * (1.0 - tied)
        z = (statistic - 0.5 - m * n_outside / 2.0) / np.sqrt(np.where(variance > 0, variance, np.inf))
        return statistic, np.where(variance > 0, norm.sf(z), 1.0)
    difference = values[mask].mean(axis=0) - values[~mask].mean(axis=0)
    spread = m * values[mask].var(axis=0) + n_outside * values[~mask].var(axis=0)
    variance = spread / (n - 2) * ((1.0 + (m - 1) * correlation) / m + 1.0 / n_outside)
    statistic = np.where(variance > 0, difference / np.sqrt(np.where(variance > 0, variance, 1.0)), 0.0)
    return statistic, np.where(variance > 0, student.sf(statistic, n - 2), 1.0)


def _compare(inside: Any, outside: Any, test: str) -> tuple[Any, Any]:
    """Return statistics and one-sided p-values, one for each factor; 1 where all values are equal."""
    from scipy.stats import mannwhitneyu, ttest_ind

    flat = np.ptp(np.concatenate([inside, outside]), axis=0) == 0
    test_result: Any
    if test == "rank":
        test_result = mannwhitneyu(inside, outside, alternative="greater", method="asymptotic")
    else:
        with np.errstate(invalid="ignore", divide="ignore"):
            test_result = ttest_ind(inside, outside, equal_var=False, alternative="greater")
    p_value = np.where(flat | ~np.isfinite(test_result.pvalue), 1.0, test_result.pvalue)
    return np.asarray(test_result.statistic, float), p_value
