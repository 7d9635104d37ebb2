"""Drift between two posteriors of a recurring run: factors, held-out scores and data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.analysis.matching import match_factors
from factorflow.errors import InputError
from factorflow.settings import RefreshOptions

if TYPE_CHECKING:
    from factorflow.posterior.stored_posterior import StoredPosterior
    from factorflow.workflow.history import Moments

LEAST = 0.01
"""Factors with less than this share of all squared loadings cause no alert: chance alone turns them."""


def compare_factors(before: StoredPosterior, after: StoredPosterior) -> list[dict[str, Any]]:
    """Return the factors of two fits, matched by their loadings.

    Parameters
    ----------
    before, after : Posterior
        The earlier fit, and the later one.

    Returns
    -------
    list of dict
        By factor of the earlier fit, in order, then those that only the later one has: ``before`` and
        ``factor`` (None where there is none), ``correlation`` of the loadings (below 0: its sign has turned),
        and ``share`` of the squared loadings of its fit, views alike. Empty where the model has no loadings,
        or the two share no features.
    """
    try:
        table = match_factors([before, after], by="loadings").table
        shares = _shares(before), _shares(after)
    except InputError:
        return []
    rows = [
        {
            "before": row["reference"],
            "factor": row["factor"],
            "correlation": round(row["correlation"], 6) if row["factor"] is not None else None,
            "share": round(shares[0][row["reference"]], 6),
        }
        for row in table.to_dict("records")
    ]
    matched = {row["factor"] for row in rows}
    return rows + [
        {"before": None, "factor": name, "correlation": None, "share": round(shares[1][name], 6)}
        for name in after.factors
        if name not in matched
    ]


def compare_scores(before: StoredPosterior, after: StoredPosterior) -> list[dict[str, Any]]:
    """Return by view the held-out log-likelihood of two fits, nats an entry; empty unless both have some."""
    if not (before.was_scored and after.was_scored):
        return []
    then, now = (posterior.holdout_scores()["log_likelihood"] for posterior in (before, after))
    return [
        {
            "view": str(view),
            "before": float(then[view]),
            "after": float(now[view]),
            "change": float(now[view] - then[view]),
        }
        for view in then.index
        if view in now.index
    ]


def compare_data(before: Moments, after: Moments) -> list[dict[str, Any]]:
    """Return by view how the data changed.

    Returns
    -------
    list of dict
        ``view``, ``rows_before``, ``rows_after``, ``missing_before``, ``missing_after`` (shares of the
        entries), ``shift`` (the largest move of a mean, in standard deviations of before) and the ``feature``
        it is of; both None where no feature is in both.
    """
    rows = []
    for view, now in after.items():
        if view not in before:
            continue
        then = before[view]
        shift, feature = _largest_shift(then, now)
        rows.append(
            {
                "view": view,
                "rows_before": int(then["n_rows"]),
                "rows_after": int(now["n_rows"]),
                "missing_before": _missing(then),
                "missing_after": _missing(now),
                "shift": shift,
                "feature": feature,
            }
        )
    return rows


def alerts(comparison: Mapping[str, Any], rule: RefreshOptions) -> list[str]:
    """Return what drifted by more than a rule allows, a sentence each.

    Parameters
    ----------
    comparison : mapping
        ``factors``, ``scores`` and ``data``, as the functions above return them, and ``rows``: their numbers
        ``before`` and ``after``.
    rule : RefreshOptions
        The limits.
    """
    messages = []
    for row in comparison.get("factors", ()):
        if row["share"] < LEAST:
            continue
        if row["before"] is None:
            messages.append(f"{row['factor']} is new.")
        elif row["factor"] is None:
            messages.append(f"{row['before']} is gone.")
        elif 1.0 - abs(row["correlation"]) > rule.drift_loadings:
            messages.append(f"The loadings of {row['factor']} drifted: correlation {row['correlation']:.3f}.")
        elif row["correlation"] < 0.0:
            messages.append(f"{row['factor']} has turned its sign.")
    for row in comparison.get("scores", ()):
        if row["change"] < -rule.drift_score:
            messages.append(
                f"The held-out log-likelihood of {row['view']} fell by {-row['change']:.3g} an entry."
            )
    if rows := comparison.get("rows"):
        before, after = rows["before"], rows["after"]
        if before - after > rule.drift_rows * before:
            share = 100 * (before - after) / before
            messages.append(f"{share:.3g} % of the rows went: {before} before, {after} now.")
    for row in comparison.get("data", ()):
        if row["missing_after"] - row["missing_before"] > rule.drift_missing:
            messages.append(
                f"{100 * row['missing_after']:.3g} % of the entries of {row['view']} are missing, "
                f"{100 * row['missing_before']:.3g} % before."
            )
        if row["shift"] is not None and row["shift"] > rule.drift_means:
            messages.append(
                f"The mean of {row['feature']} of {row['view']} moved by {row['shift']:.3g} "
                "standard deviations."
            )
    return messages


def _shares(posterior: StoredPosterior) -> dict[str, float]:
    """Return by factor its share of the squared loadings, each view counting alike."""
    total = np.zeros(len(posterior.factors))
    for view in posterior.loaded_views or posterior.views:
        squares = (np.asarray(posterior.loadings(view)) ** 2).sum(axis=0)
        total += squares / max(float(squares.sum()), 1e-300)
    total /= max(float(total.sum()), 1e-300)
    return dict(zip(posterior.factors, total.tolist(), strict=True))


def _missing(moments: Mapping[str, Any]) -> float:
    n_entries = int(moments["n_rows"]) * len(moments["n_observed"])
    return round(1.0 - float(np.sum(moments["n_observed"])) / max(n_entries, 1), 6)


def _largest_shift(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[float | None, str | None]:
    names, ours, theirs = np.intersect1d(before["feature"], after["feature"], return_indices=True)
    if not len(names):
        return None, None
    spread = np.sqrt(np.asarray(before["variance"])[ours])
    moved = np.abs(np.asarray(after["mean"])[theirs] - np.asarray(before["mean"])[ours])
    comparable = np.isfinite(moved) & (spread > 0)
    if not comparable.any():
        return None, None
    shift = np.where(comparable, moved / np.where(spread > 0, spread, 1.0), -1.0)
    largest = int(shift.argmax())
    return round(float(shift[largest]), 6), str(names[largest])
