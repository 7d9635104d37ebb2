"""The observed entries that a model finds most surprising."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from factorflow.errors import InputError
from factorflow.posterior.labels import names_of_rows
from factorflow.posterior.prediction import Predictor
from factorflow.posterior.predictive import two_sided

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.posterior.stored_posterior import StoredPosterior


def find_anomalies(posterior: StoredPosterior, view: str | None = None, n: int = 20) -> pd.DataFrame:
    """Return the observed entries of a view with the smallest posterior predictive p-values.

    Two-sided, from the distribution of a new observation, or of the mean of as many as a merged row stands
    for; entries that were held out of the fit take part.
    Block by block: of all others nothing is kept.

    Parameters
    ----------
    posterior : Posterior
        What was fitted; its dataset must be there.
    view : str, optional
        Name of the view; the first that the model explains when left out.
    n : int
        Entries at most.

    Returns
    -------
    DataFrame
        ``obs``, ``feature``, ``value``, ``mean``, ``sd`` and ``p_value``, the smallest first; of equal ones
        the first in the dataset's order.

    Raises
    ------
    InputError
        For a view that is not explained, or when the dataset has changed.

    Examples
    --------
    >>> found = factorflow.analysis.find_anomalies(posterior, "rna", n=5)
    >>> found.columns.tolist()
    ['obs', 'feature', 'value', 'mean', 'sd', 'p_value']
    """
    import pandas as pd

    if n < 1:
        raise InputError("n", n, "at least 1", "Leave it out for 20.")
    view = posterior.check_explained(view or posterior.meta.value_views[0].name)
    dataset, features = posterior.data, posterior.features(view)
    kind, predictor = dataset.views[view].kind, Predictor(posterior, view)
    parts: list[pd.DataFrame] = []
    for number in range(dataset.n_blocks):
        start = number * dataset.block_rows
        y, observed = kind.fill_missing(dataset.block(number, [view]).data[view])
        rows = np.arange(start, start + len(y))
        mean, sd = predictor.of_values(rows)
        y = np.where(observed > 0, y, mean)  # 0 may be no value of the likelihood
        p = np.where(observed > 0, two_sided(*predictor.tails(rows, y)), np.inf)
        row, column = np.unravel_index(np.argsort(p, axis=None, kind="stable")[:n], p.shape)
        has_value = observed[row, column] > 0
        row, column = row[has_value], column[has_value]
        part = {"row": start + row, "feature": features[column], "value": y[row, column]}
        part |= {"mean": mean[row, column], "sd": sd[row, column], "p_value": p[row, column]}
        parts = [pd.concat([*parts, pd.DataFrame(part)]).nsmallest(n, "p_value", keep="first")]
    table = parts[0].reset_index(drop=True)
    table.insert(0, "obs", names_of_rows(posterior, table.pop("row").to_numpy()))
    return table
