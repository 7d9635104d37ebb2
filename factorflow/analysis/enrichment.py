"""Feature sets among the features that a factor loads on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from factorflow.errors import InputError, counted

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.posterior.stored import Stored

__all__ = ["enrich", "read_gmt"]


def read_gmt(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    r"""Read feature sets from a GMT file.

    Parameters
    ----------
    path : path
        A set a line: name, description and members, separated by tabs.

    Returns
    -------
    dict of str to list of str
        Members by set.

    Raises
    ------
    InputError
        When the file cannot be read, a line has no members, or a name comes twice.

    Examples
    --------
    >>> from pathlib import Path
    >>> text = "hallmark\tdescription\tgene1\tgene2\n"
    >>> _ = Path("sets.gmt").write_text(text)
    >>> factorflow.analysis.read_gmt("sets.gmt")
    {'hallmark': ['gene1', 'gene2']}
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("gmt", str(path), "a GMT file", f"It cannot be read: {error}.") from error
    sets: dict[str, list[str]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, *rest = line.rstrip("\r").split("\t")
        members = [member for member in rest[1:] if member]
        if not members or name in sets:
            what = "a new name" if name in sets else "name, description and members, separated by tabs"
            raise InputError(f"line {number} of {path}", line[:60], what, "Correct the file.")
        sets[name] = members
    return sets


def enrich(
    posterior: Stored,
    view: str,
    sets: Mapping[str, Sequence[str]] | str | os.PathLike[str],
    *,
    sign: Literal["both", "positive", "negative"] = "both",
    test: Literal["rank", "parametric"] = "rank",
    min_size: int = 5,
    factors: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Test whether the members of feature sets have larger loadings than the other features of a view.

    One-sided: the Mann-Whitney test ("rank") or Welch's t-test ("parametric") of the absolute loadings
    ("both"), or of the loadings of one sign (those of the other sign count as 0). Features are taken as
    independent; sets of features that move together get p-values that are too small, as in any test of
    this kind. P-values are corrected over the sets of a factor by Benjamini and Hochberg.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    view : str
        The view whose features are in the sets.
    sets : mapping of str to sequence of str, or path
        Members by set, or a GMT file.
    sign : {"both", "positive", "negative"}
        Which loadings count.
    test : {"rank", "parametric"}
        The test.
    min_size : int
        Smaller sets (counting the features of the view only) are left out.
    factors : sequence of str, optional
        Factors to test; all when left out.

    Returns
    -------
    DataFrame
        Sorted by factor and p-value: ``factor``, ``set``, ``size``, ``statistic``, ``p_value``, ``q_value``.

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

    members = read_gmt(sets) if isinstance(sets, str | os.PathLike) else sets
    for name, group in members.items():
        if isinstance(group, str) or not isinstance(group, Iterable):
            raise InputError(f"sets[{name!r}]", group, "the names of its features, a list", "Correct it.")
    names = posterior.features(view)
    inside = {name: np.isin(names, list(group)) for name, group in members.items()}
    inside = {name: mask for name, mask in inside.items() if min_size <= mask.sum() < len(names)}
    if not inside:
        raise InputError(
            "sets",
            counted(len(members), "set"),
            f"at least one with {min_size} or more features of view {view}, and not all of them",
            f"Features are named like {names[0]!r}: name the members in the same way.",
        )
    chosen = list(posterior.factors) if factors is None else [posterior.factor(f) for f in factors]
    loadings = posterior.loadings(view).sel(factor=chosen).values
    values = {
        "both": np.abs(loadings),
        "positive": np.maximum(loadings, 0.0),
        "negative": np.maximum(-loadings, 0.0),
    }
    if sign not in values or test not in ("rank", "parametric"):
        raise InputError(
            "sign, test", f"{sign}, {test}", "both, positive or negative; rank or parametric", "See the docs."
        )
    rows: list[dict[str, Any]] = []
    for name, mask in inside.items() if chosen else ():
        statistic, p_value = _compare(values[sign][mask], values[sign][~mask], test)
        rows += [
            {"factor": factor, "set": name, "size": int(mask.sum()), "statistic": s, "p_value": p}
            for factor, s, p in zip(chosen, statistic, p_value, strict=True)
        ]
    columns = ["factor", "set", "size", "statistic", "p_value"]
    if not rows:  # a run may end without factors
        return pd.DataFrame([], columns=[*columns, "q_value"])
    table = pd.DataFrame(rows, columns=columns)
    table["q_value"] = table.groupby("factor")["p_value"].transform(false_discovery_control)
    table["factor"] = pd.Categorical(table["factor"], categories=chosen)
    table = table.sort_values(["factor", "p_value"], kind="stable", ignore_index=True)
    table["factor"] = table["factor"].astype(object)
    return table


def _compare(inside: Any, outside: Any, test: str) -> tuple[Any, Any]:
    """Return statistics and one-sided p-values, one for each factor; 1 where all values are equal."""
    from scipy.stats import mannwhitneyu, ttest_ind

    flat = np.ptp(np.concatenate([inside, outside]), axis=0) == 0
    found: Any
    if test == "rank":
        found = mannwhitneyu(inside, outside, alternative="greater", method="asymptotic")
    else:
        with np.errstate(invalid="ignore", divide="ignore"):
            found = ttest_ind(inside, outside, equal_var=False, alternative="greater")
    p_value = np.where(flat | ~np.isfinite(found.pvalue), 1.0, found.pvalue)
    return np.asarray(found.statistic, float), p_value
