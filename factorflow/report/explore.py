"""The part of the report that is explored: what its scripts draw, as text of a few megabytes at most.

Numbers are whole numbers of two bytes between their smallest and largest value, in Base64: a point moves by
less than a hundredth of a pixel.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from factorflow.errors import InputError
from factorflow.posterior.active_views import active_views
from factorflow.posterior.labels import names_of_rows, sample_metadata
from factorflow.report import drawing

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.api import Posterior

MAX_SAMPLES = 10_000
"""Samples that can be explored, evenly spaced; of more, those of some blocks of the data."""

MAX_FACTORS = 30
"""Factors that can be chosen, the strongest ones."""

MAX_COLUMNS = 20
"""Columns of the sample metadata that can be chosen, those first that go with factors."""

MAX_FEATURES = 40
"""Features that can be chosen, the top ones of the strongest factors."""

MAX_LEVELS = 200
"""A column of text with more levels names samples; it is not coloured by."""

MISSING = 65_535
"""Stands for a missing number."""


def explorer_data(
    posterior: Posterior, factors: list[str], associated: pd.DataFrame | None
) -> dict[str, Any] | None:
    """Return what is explored: samples, their scores, columns of the metadata and data of top features.

    Parameters
    ----------
    factors : list of str
        Those that can be chosen, the first ones shown.
    associated : DataFrame, optional
        Associations with columns of the metadata, the strongest first.

    Returns
    -------
    dict, or None
        None where there are fewer than two factors.
    """
    factors = factors[:MAX_FACTORS]
    if len(factors) < 2:
        return None
    try:
        rows = drawing.some_rows(posterior.data, MAX_SAMPLES)
        features = _features(posterior, factors, rows)
    except InputError:  # the dataset has moved
        n = posterior.meta.n_rows
        rows, features = np.arange(0, n, -(-n // MAX_SAMPLES)), []
    scores, _ = drawing.some_scores(posterior, rows=rows)
    place = [posterior.factors.index(factor) for factor in factors]
    columns = _columns(posterior, rows, associated)
    first = [] if associated is None else list(dict.fromkeys(associated["column"]))
    return {
        "n_samples": posterior.meta.n_rows,
        "samples": [str(name) for name in names_of_rows(posterior, rows)],
        "factors": [
            {"name": name, **_pack_numbers(scores[:, k])} for name, k in zip(factors, place, strict=True)
        ],
        "columns": columns,
        "features": features,
        "color": next((name for name in first if any(c["name"] == name for c in columns)), ""),
    }


def as_json(data: dict[str, Any]) -> str:
    """Return data as JSON that can stand in a page: no tag can end in it."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _pack_numbers(values: NDArray[Any]) -> dict[str, Any]:
    """Return numbers as two bytes each, and what is needed to read them."""
    values = np.asarray(values, np.float64)
    finite = np.isfinite(values)
    low, high = (float(values[finite].min()), float(values[finite].max())) if finite.any() else (0.0, 0.0)
    step = (high - low) / (MISSING - 1) or 1.0
    whole = np.full(len(values), MISSING, "<u2")
    whole[finite] = np.round((values[finite] - low) / step).astype("<u2")
    return {"low": low, "step": step, "data": base64.b64encode(whole.tobytes()).decode()}


def _columns(posterior: Posterior, rows: Any, associated: pd.DataFrame | None) -> list[dict[str, Any]]:
    """Return columns of the metadata: numbers, or codes of levels, the most frequent first."""
    table = sample_metadata(posterior, rows, typed=False)
    first = [] if associated is None else list(dict.fromkeys(associated["column"]))
    names = [*(name for name in first if name in table), *(name for name in table if name not in first)]
    columns: list[dict[str, Any]] = []
    for name in names:
        values = table[name].to_numpy()
        if drawing.is_scale(values):
            columns.append({"name": str(name), **_pack_numbers(values)})
        else:
            text = np.array(["" if value != value else str(value) for value in values])
            levels, codes, counts = np.unique(text, return_inverse=True, return_counts=True)
            if not 1 < len(levels) <= MAX_LEVELS:
                continue
            order = np.argsort(-counts, kind="stable")
            rank = np.empty(len(order), "<u2")
            rank[order] = np.arange(len(order))
            data = base64.b64encode(rank[codes].astype("<u2").tobytes()).decode()
            labels = [str(levels[i]) or "(missing)" for i in order]
            columns.append({"name": str(name), "levels": labels, "data": data})
        if len(columns) == MAX_COLUMNS:
            break
    return columns


def _features(posterior: Posterior, factors: list[str], rows: Any) -> list[dict[str, Any]]:
    """Return the data of the features with the largest loadings of each factor in turn, in every view."""
    tops = [
        (view, [str(name) for name in posterior.top_features(view, factor, MAX_FEATURES).index])
        for factor in factors
        for view in active_views(posterior, factor)
    ]
    chosen: dict[tuple[str, str], None] = {}
    for rank in range(MAX_FEATURES):
        for view, names in tops:
            if rank < len(names) and len(chosen) < MAX_FEATURES:
                chosen[view, names[rank]] = None
    records = []
    for view in dict.fromkeys(view for view, _ in chosen):
        names = [name for where, name in chosen if where == view]
        place = {str(name): i for i, name in enumerate(posterior.features(view))}
        values = drawing.values_of(posterior, view, rows, [place[name] for name in names])
        records += [
            {"name": f"{view}: {name}", **_pack_numbers(column)}
            for name, column in zip(names, values.T, strict=True)
        ]
    return records
