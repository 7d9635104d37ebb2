"""Figures of tests: what factors go with, and which feature sets they carry."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import numpy as np

from factorflow.analysis.association import run_tests
from factorflow.analysis.enrichment import enrich
from factorflow.errors import InputError
from factorflow.report.drawing import add_colorbar, annotate_cells, chosen_factors, label_heatmap, shorten
from factorflow.report.style import DIVERGING, MUTED, new_axes, quiet, title_panel

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from factorflow.api import Posterior

SIGNIFICANT = 0.05
"""q-values below this are marked."""

MAX_LOG = 10.0
"""Minus the decimal logarithm of a q-value beyond which dots grow no more."""


def plot_association(
    posterior: Posterior,
    columns: str | Sequence[str] | pd.DataFrame | pd.Series[Any] | None = None,
    metadata: pd.DataFrame | pd.Series[Any] | None = None,
    *,
    adjust: str | Sequence[str] | None = None,
    blocks: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw how strongly factors go with columns of the sample metadata, a heat map of effects.

    Rank correlations of numbers, from -1 to 1; of categories the share of the variance of the ranks that they
    explain. Stars mark q-values below 0.05.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    columns, metadata, adjust, blocks
        As for `factorflow.analysis.associate`.
    ax : Axes, optional
        Where to draw; a new figure when left out.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        For a column that does not exist or cannot be tested, and when there is none.

    Examples
    --------
    >>> ax = posterior.plot.association()
    >>> ax.figure.savefig("plot_association.png")
    """
    table = run_tests(posterior, columns, metadata, adjust=adjust, blocks=blocks)
    names = list(dict.fromkeys(table["column"]))
    effect = table.pivot(index="column", columns="factor", values="effect")
    q_value = table.pivot(index="column", columns="factor", values="q_value")
    if table.empty:
        raise InputError("factors", "none", "at least one factor", "The run ended without factors.")
    effect, q_value = (part.reindex(index=names, columns=posterior.factors) for part in (effect, q_value))
    ax = new_axes(ax, (max(3.5, 0.45 * len(posterior.factors) + 2.0), 1.2 + 0.3 * len(names)))
    values = effect.to_numpy()
    ax.imshow(values, cmap=DIVERGING, vmin=-1.0, vmax=1.0, aspect="auto")
    label_heatmap(ax, posterior.factors, names)
    stars = np.where(q_value.to_numpy() < SIGNIFICANT, "*", "")
    annotate_cells(ax, abs(values), lambda i, j: f"{values[i, j]:.2f}{stars[i, j]}", 7)
    title_panel(ax, "association (effect; * q < 0.05)")
    return ax


def plot_enrichment(
    posterior: Posterior,
    view: str,
    sets: Mapping[str, Sequence[str]] | pd.DataFrame | str | os.PathLike[str],
    factors: str | SupportsIndex | Sequence[str | SupportsIndex] | None = None,
    n: int = 10,
    *,
    sign: Literal["both", "positive", "negative"] = "both",
    test: Literal["rank", "parametric"] = "rank",
    min_size: int = 5,
    correlation_adjusted: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw which feature sets factors carry: dots as large as their q-values are small.

    Filled where the q-value is below 0.05; the colour says how many features of the view a set has.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    view, sets
        As for `factorflow.analysis.enrich`.
    factors : str, int or sequence of them, optional
        Factors, by label or number from 1; all when left out.
    n : int
        Sets of each factor at most, those with the smallest q-values.
    sign, test, min_size, correlation_adjusted
        As for `factorflow.analysis.enrich`.
    ax : Axes, optional
        Where to draw; a new figure when left out.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When there is no such view or factor, or no set has enough features of the view.

    Examples
    --------
    >>> sets = {"first": [f"gene{i}" for i in range(10)], "last": [f"gene{i}" for i in range(20, 30)]}
    >>> ax = posterior.plot.enrichment("rna", sets)
    >>> ax.figure.savefig("plot_enrichment.png")
    """
    names = list(posterior.factors) if factors is None else chosen_factors(posterior, factors)
    table = enrich(
        posterior,
        view,
        sets,
        sign=sign,
        test=test,
        min_size=min_size,
        factors=names,
        correlation_adjusted=correlation_adjusted,
    )
    if n < 1 or not names:
        raise InputError("n", n, "a number of sets, 1 or more, of at least one factor", "For example 10.")
    best = table.groupby("factor", sort=False).head(n).sort_values("p_value", kind="stable")
    sets_drawn = list(dict.fromkeys(best["set"]))
    table = table[table["set"].isin(sets_drawn)]
    ax = new_axes(ax, (max(4.0, 0.5 * len(names) + 3.0), 1.4 + 0.24 * len(sets_drawn)))
    x = np.array([names.index(factor) for factor in table["factor"]])
    y = np.array([sets_drawn.index(name) for name in table["set"]])
    log = np.clip(-np.log10(np.maximum(table["q_value"].to_numpy(float), 1e-300)), 0.0, MAX_LOG)
    sure = table["q_value"].to_numpy(float) < SIGNIFICANT
    size = table["size"].to_numpy(float)
    colors: dict[str, Any] = {"cmap": "viridis", "vmin": size.min(), "vmax": max(size.max(), size.min() + 1)}
    for chosen, opacity in ((~sure, 0.25), (sure, 1.0)):
        area = 8.0 + 26.0 * log[chosen]
        points = ax.scatter(
            x[chosen], y[chosen], s=area, c=size[chosen], alpha=opacity, linewidths=0, **colors
        )
    add_colorbar(ax, points, "features in the set", shrink=0.6, aspect=20)
    short = [name.removeprefix("Factor") for name in names]
    ax.set_xticks(range(len(names)), short, fontsize=8)
    ax.set_yticks(range(len(sets_drawn)), [shorten(name, 40) for name in sets_drawn], fontsize=8)
    ax.set_xlim(-0.5, len(names) - 0.5)
    ax.set_ylim(len(sets_drawn) - 0.5, -0.5)
    ax.set_xlabel("factor")
    for q, text in ((0.05, "0.05"), (1e-3, "0.001"), (1e-10, "1e-10")):
        ax.scatter([], [], s=8.0 - 26.0 * np.log10(q), color=MUTED, linewidths=0, label=f"q = {text}")
    ax.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3)
    return quiet(ax)
