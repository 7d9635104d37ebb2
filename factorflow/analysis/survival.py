"""Cox regression of times to an event on the scores of factors, by statsmodels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.analysis.column_tests import Adjustment, as_numbers
from factorflow.core.extras import require
from factorflow.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

MIN_EVENTS = 3
"""Events that a regression needs."""


def cox_regression(
    scores: NDArray[Any], times: pd.Series[Any], events: pd.Series[Any], adjustment: Adjustment | None
) -> list[dict[str, Any]]:
    """Return the Wald test of each factor's scores, one standard deviation a unit, in a model of its own.

    Parameters
    ----------
    scores : (N, K) array
        Of the samples.
    times, events : Series
        When the event happened, or the sample was seen last; and whether it happened.
    adjustment : Adjustment, optional
        Covariates beside the scores, and blocks that have baseline hazards of their own.

    Raises
    ------
    InputError
        Where statsmodels is missing, times are negative, or events are neither 0 nor 1, or too few.
    """
    require("statsmodels", "fits Cox regressions")
    from statsmodels.duration.hazard_regression import PHReg

    time, event = as_numbers(times), _as_events(events)
    if time.dtype.kind != "f" or (time[np.isfinite(time)] < 0).any():
        raise InputError("survival", str(times.name), "a column of times, 0 or more", "Name another.")
    observed = np.isfinite(time) & np.isfinite(event)
    observed &= True if adjustment is None else adjustment.known
    if event[observed].sum() < MIN_EVENTS:
        actual = f"{int(event[observed].sum())} events in {events.name}"
        raise InputError("survival", actual, f"at least {MIN_EVENTS}", "Name the column of events second.")
    design = np.empty((int(observed.sum()), 0)) if adjustment is None else adjustment.design(observed)
    design = _standardize(design)
    strata = None if adjustment is None or adjustment.blocks is None else adjustment.blocks[observed]
    rows = []
    for score in scores[observed].T:
        row = {"test": "cox", "n": int(observed.sum()), "statistic": np.nan, "effect": np.nan, "p_value": 1.0}
        if np.ptp(score) > 0:
            columns = np.column_stack([_standardize(score[:, None]), design])
            model = PHReg(time[observed], columns, status=event[observed], strata=strata, ties="efron")
            fit = model.fit(disp=0)
            row |= {
                "statistic": float(fit.tvalues[0]),
                "effect": float(fit.params[0]),
                "p_value": float(fit.pvalues[0]),
            }
        rows.append(row)
    return rows


def _standardize(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the columns that vary, less their means, in units of their standard deviation."""
    sd = values.std(axis=0)
    return np.asarray((values - values.mean(axis=0))[:, sd > 0] / sd[sd > 0])


def _as_events(column: pd.Series[Any]) -> NDArray[np.float64]:
    """Return 1 where an event was seen, 0 where not, NaN where that is missing."""
    names = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0}
    events = np.full(len(column), np.nan)
    for i, (value, there) in enumerate(zip(column.tolist(), column.notna(), strict=True)):
        if there and value != "":
            if str(value).lower() not in names:
                expected = "a column of truth values, or of 1 where the event was seen and 0 where not"
                raise InputError("survival", f"{column.name}: {value!r}", expected, "Name another.")
            events[i] = names[str(value).lower()]
    return events
