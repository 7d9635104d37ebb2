"""Scores by the order of values and predictions, of all pairs of them, in n log^2 n steps."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64, Int64


def concordance(
    time: Float64[np.ndarray, " n"], event: Bool[np.ndarray, " n"], risk: Float64[np.ndarray, " n"]
) -> float:
    """Return Harrell's concordance: the share of pairs in which who has the event first has the larger risk.

    Pairs are compared of which it is known: the earlier time is that of an event. Of a time that an event
    and a censored one share, the event is the earlier one; equal risks count one half.

    Parameters
    ----------
    time, risk : (n,) arrays
        Times to an event, or at which a sample was seen last; predictions.
    event : (n,) array
        Whether the event was seen.

    Returns
    -------
    float
        NaN where there is no such pair.

    Examples
    --------
    >>> concordance(np.array([1.0, 2.0, 3.0]), np.array([True, True, False]), np.array([2.0, 0.0, 1.0]))
    0.6666666666666666
    """
    if not event.any():
        return float("nan")
    keys = np.stack([time, (~event).astype(float)], axis=1)
    place = np.unique(keys, axis=0, return_inverse=True)[1].ravel()
    rank = np.unique(risk, return_inverse=True)[1].ravel()
    later = len(place) - np.searchsorted(np.sort(place), place, side="right")
    right, tied = _later_and_below(place, rank), _later_within(place, rank, np.ones(len(rank), bool))
    n_pairs = int(later[event].sum())
    return float((right[event].sum() + 0.5 * tied[event].sum()) / n_pairs) if n_pairs else float("nan")


def rank_correlation(y: Float64[np.ndarray, " n"], predicted: Float64[np.ndarray, " n"]) -> float:
    """Return Spearman's rank correlation, ties at their mean rank; NaN where either does not vary."""
    from scipy.stats import rankdata

    ranks = [rankdata(values) - 0.5 * (len(values) + 1) for values in (y, predicted)]
    size = float(np.sqrt((ranks[0] @ ranks[0]) * (ranks[1] @ ranks[1])))
    return float(ranks[0] @ ranks[1]) / size if size > 0.0 else float("nan")


def _later_and_below(
    place: Int64[np.ndarray, " n"], rank: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, " n"]:
    """Return of how many others the place is later and the rank lower.

    Two ranks differ in their highest different bit first: each bit is a count within those that agree above.
    """
    total = np.zeros(len(rank), np.int64)
    for bit in range(int(rank.max(initial=0)).bit_length()):
        upper = (rank >> bit & 1).astype(bool)
        total += np.where(upper, _later_within(place, rank >> bit + 1, ~upper), 0)
    return total


def _later_within(
    place: Int64[np.ndarray, " n"], group: Int64[np.ndarray, " n"], counted: Bool[np.ndarray, " n"]
) -> Int64[np.ndarray, " n"]:
    """Return how many of those that count, in the same group, have a later place."""
    order = np.lexsort((-place, group))
    g, p = group[order], place[order]
    before = np.cumsum(counted[order]) - counted[order]
    new_group = np.concatenate([[True], g[1:] != g[:-1]])
    new_place = new_group | np.concatenate([[True], p[1:] != p[:-1]])
    at = np.arange(len(order))
    first_of_group, first_of_place = (
        np.maximum.accumulate(np.where(new, at, 0)) for new in (new_group, new_place)
    )
    out = np.empty(len(order), np.int64)
    out[order] = before[first_of_place] - before[first_of_group]
    return out
