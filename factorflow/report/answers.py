"""The first screen of the report: how many factors, what they explain, what they go with, what to mind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.errors import pluralize

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.api import Posterior

LEAST_SHARE = 0.01
"""Share of a view's variance above which a factor counts as explaining some of it."""

N_NAMED = 3
"""Factors that are named for a view."""

N_COLUMNS = 6
"""Columns of the sample metadata that are named."""


def answers(posterior: Posterior, facts: dict[str, Any], associated: pd.DataFrame | None) -> dict[str, Any]:
    """Return the content of the first screen.

    Parameters
    ----------
    associated : DataFrame, optional
        Significant associations with sample metadata, the strongest first.
    """
    views, n_strong = _views(posterior), None
    if views:
        n_strong = sum(
            any(share >= LEAST_SHARE for _, share in shares)
            for shares in zip(*(view["factors"] for view in views), strict=True)
        )
    for view in views:
        strongest = sorted(view.pop("factors"), key=lambda pair: -pair[1])[:N_NAMED]
        view["named"] = ", ".join(
            f"{name} {100 * share:.1f} %" for name, share in strongest if share >= LEAST_SHARE
        )
    return {
        "n_factors": facts["n_factors"],
        "n_strong": n_strong,
        "least": f"{100 * LEAST_SHARE:g} %",
        "views": views,
        "columns": _columns(associated),
        "tested": associated is not None,
        "findings": facts["findings"],
        "n_findings": pluralize(len(facts["findings"]), "finding"),
    }


def _views(posterior: Posterior) -> list[dict[str, Any]]:
    """Return by view the share that all factors explain, and that of each; the mean of groups."""
    if not posterior.has("variance_explained") or not posterior.factors:
        return []
    total = posterior.variable("variance_explained_total")
    share = posterior.variable("variance_explained")
    if "group" in share.dims:
        total, share = total.mean("group"), share.mean("group")
    sentences = []
    for view in share["view"].values:
        whole = float(total.sel(view=view))
        if np.isfinite(whole):
            each = np.nan_to_num(share.sel(view=view).transpose("factor").values)
            sentences.append(
                {
                    "name": str(view),
                    "percent": f"{100 * whole:.0f}",
                    "width": f"{100 * min(max(whole, 0.0), 1.0):.1f}",
                    "factors": list(zip(posterior.factors, each.tolist(), strict=True)),
                }
            )
    return sentences


def _columns(associated: pd.DataFrame | None) -> list[dict[str, str]]:
    """Return for each column the factor that goes with it most, and how strongly."""
    if associated is None:
        return []
    best = associated.drop_duplicates("column").head(N_COLUMNS)
    return [
        {
            "column": str(row["column"]),
            "factor": str(row["factor"]),
            "effect": f"rank correlation {row['effect']:.2f}"
            if row["test"] == "spearman"
            else f"{100 * row['effect']:.0f} % of the variance of its ranks",
        }
        for row in best.to_dict("records")
    ]
