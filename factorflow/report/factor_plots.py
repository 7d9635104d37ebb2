"""Figures of factors: what they explain, what they load on, how they go together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import numpy as np

from factorflow.analysis.association import correlate
from factorflow.errors import InputError
from factorflow.posterior.active_views import active_views
from factorflow.report.drawing import (
    ANNOTATED_CELLS,
    annotate_cells,
    label_heatmap,
    panels,
    shorten,
    some_scores,
)
from factorflow.report.style import (
    ACCENT,
    CATEGORIES,
    DIVERGING,
    MUTED,
    SEQUENTIAL,
    new_axes,
    quiet,
    title_panel,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from factorflow.api import Posterior


def plot_variance_explained(
    posterior: Posterior,
    kind: Literal["heatmap", "stacked"] = "heatmap",
    by: Literal["group"] | None = None,
    ax: Axes | None = None,
    *,
    group: str | None = None,
) -> Axes:
    """Draw the share of each view's variance that each factor explains, in percent.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    kind : {"heatmap", "stacked"}
        A heat map of factors and views, or a bar for each view, its factors on top of each other.
    by : {"group"}, optional
        A panel for every sample group.
    ax : Axes, optional
        Where to draw; panels are laid out inside.
    group : str, optional
        One sample group instead of all samples.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When there is no such group, or there are none.

    Examples
    --------
    >>> ax = factorflow.report.plot_variance_explained(posterior)
    >>> ax.figure.savefig("plot_variance_explained.png")
    >>> ax = posterior.plot.variance_explained(kind="stacked")
    """
    if kind not in ("heatmap", "stacked"):
        raise InputError("kind", kind, "heatmap or stacked", "Choose one of them.")
    if by not in (None, "group"):
        remedy = "Use variance_explained(by=...) for other figures."
        raise InputError("by", by, "group, or nothing for all samples", remedy)
    draw = _explained_heatmap if kind == "heatmap" else _explained_bars
    share = posterior.variance_explained(by="group" if by or group is not None else None)
    if group is not None:
        if group not in posterior.meta.groups:
            raise InputError(
                "group", group, f"one of {', '.join(posterior.meta.groups)}", "Name a sample group."
            )
        share = share.sel(group=group)
    groups = posterior.meta.groups if by and group is None else ()
    per_row = 1 if kind == "heatmap" else 3
    height = 0.9 + 0.34 * len(posterior.views) if kind == "heatmap" else 3.2
    ax = new_axes(ax, (6.4, max(2.0, height * max(1, -(-len(groups) // per_row)))))
    high = max(1.0, 100.0 * float(np.nanmax(share.values, initial=0.01)))
    parts = panels(ax, max(1, len(groups)), per_row)
    for i, part in enumerate(parts):
        one = share.sel(group=groups[i]) if groups else share
        draw(part, posterior, 100.0 * one.transpose("view", "factor").values, high, i == len(parts) - 1)
        name = f"{groups[i]}: " if groups else ""
        title_panel(part, f"{name}variance explained (%)")
    return ax


def _explained_heatmap(ax: Axes, posterior: Posterior, percent: Any, high: float, last: bool) -> None:
    if percent.size:
        ax.imshow(np.clip(percent, 0.0, None), cmap=SEQUENTIAL, vmin=0.0, vmax=high, aspect="auto")
    label_heatmap(ax, posterior.factors, [view.name for view in posterior.meta.value_views])
    if not last:
        ax.set_xlabel("")
    if percent.size <= ANNOTATED_CELLS:

        def text_of(row: int, column: int) -> str:
            value = percent[row, column]
            return f"{value:.0f}" if abs(value) >= 9.95 else f"{value + 0.0:.1f}".replace("-0.0", "0.0")

        annotate_cells(ax, percent / high, text_of, 8)


def _explained_bars(ax: Axes, posterior: Posterior, percent: Any, high: float, last: bool) -> None:
    """Draw a bar for each view: the factors that explain most in colours of their own, then the others."""
    del high
    shares = np.clip(np.nan_to_num(percent), 0.0, None)
    order = np.argsort(-shares.sum(axis=0), kind="stable")
    own, others = order[: len(CATEGORIES)], order[len(CATEGORIES) :]
    place, bottom = np.arange(len(shares)), np.zeros(len(shares))
    for i, k in enumerate(own):
        ax.bar(place, shares[:, k], bottom=bottom, width=0.7, color=CATEGORIES[i], label=posterior.factors[k])
        bottom += shares[:, k]
    if len(others):
        ax.bar(place, shares[:, others].sum(axis=1), bottom=bottom, width=0.7, color=MUTED, label="others")
    ax.set_xticks(place, [shorten(view.name) for view in posterior.meta.value_views], fontsize=8)
    quiet(ax)
    if last and len(own):
        ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)


def plot_loadings(
    posterior: Posterior, view: str, factor: str | SupportsIndex = 1, n: int = 12, ax: Axes | None = None
) -> Axes:
    """Draw the largest loadings of a factor, with two standard deviations to each side.

    The paler a point, the more likely its loading is zero (1 - inclusion).

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    view : str
        Name of the view.
    factor : str or int
        Label, or number from 1.
    n : int
        Features at most.
    ax : Axes, optional
        Where to draw; a new figure when left out.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When there is no such view or factor.

    Examples
    --------
    >>> ax = factorflow.report.plot_loadings(posterior, "rna", factor=1)
    >>> ax.figure.savefig("plot_loadings.png")
    """
    ax = new_axes(ax)
    table = posterior.top_features(view, factor, n).iloc[::-1]
    place = np.arange(len(table))
    certain: Any = table["inclusion"].to_numpy() if "inclusion" in table else np.ones(len(table))
    opacity: Any = np.clip(certain, 0.15, 1.0)
    if "sd" in table:
        ax.hlines(
            place,
            table["loading"] - 2 * table["sd"],
            table["loading"] + 2 * table["sd"],
            color=MUTED,
            linewidth=1.0,
        )
    ax.scatter(table["loading"], place, s=22, color=ACCENT, alpha=opacity, zorder=3, linewidths=0)
    ax.axvline(0.0, color=MUTED, linewidth=0.8)
    ax.set_yticks(place, [shorten(name) for name in table.index], fontsize=8)
    ax.locator_params(axis="x", nbins=4)
    ax.set_xlabel(f"loading on {posterior.factor(factor)}")
    title_panel(ax, view)
    return quiet(ax)


def plot_top_weights(
    posterior: Posterior,
    factor: str | SupportsIndex = 1,
    n: int = 10,
    views: str | Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the largest loadings of a factor in several views, a panel for each.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    factor : str or int
        Label, or number from 1.
    n : int
        Features of each view at most.
    views : str or sequence of str, optional
        Views; those that the factor touches when left out, or all if it touches none.
    ax : Axes, optional
        Where to draw; panels are laid out inside.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When there is no such factor or view, or the views have no loadings.

    Examples
    --------
    >>> ax = posterior.plot.top_weights(factor=1)
    >>> ax.figure.savefig("plot_top_weights.png")
    """
    label = posterior.factor(factor)
    requested = [views] if isinstance(views, str) else views
    chosen = (
        list(requested)
        if requested is not None
        else active_views(posterior, label) or list(posterior.loaded_views)
    )
    for view in chosen:
        posterior.loadings(view)  # refuses a view that there is not, and one without any
    if not chosen:
        raise InputError("views", "none", "at least one view with loadings", "See posterior.loaded_views.")
    per_row = min(3, len(chosen))
    rows = -(-len(chosen) // per_row)
    ax = new_axes(ax, (3.2 * per_row + 0.4, rows * (0.9 + 0.2 * max(n, 1))))
    for part, view in zip(panels(ax, len(chosen), per_row), chosen, strict=True):
        plot_loadings(posterior, view, label, n, part)
    return ax


def plot_weights(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """Draw the weights of the components of a table's model as bars.

    Parameters
    ----------
    posterior : Posterior
        Of a model of a table.
    ax : Axes, optional
        Where to draw; a new figure when left out.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When its components have no weights.
    """
    weight = posterior.variable("weight").values
    ax = new_axes(ax)
    place = np.arange(len(weight))[::-1]
    ax.barh(place, weight, color=ACCENT, height=0.6)
    ax.set_yticks(place, posterior.factors, fontsize=8)
    ax.set_xlabel("weight")
    return quiet(ax)


def plot_factor_correlation(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """Draw the correlation of the factors' scores over samples.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    ax : Axes, optional
        Where to draw; a new figure when left out.

    Returns
    -------
    Axes

    Examples
    --------
    >>> ax = factorflow.report.plot_factor_correlation(posterior)
    >>> ax.figure.savefig("plot_factor_correlation.png")
    """
    scores, _ = some_scores(posterior)
    ax = new_axes(ax)
    correlation = correlate(scores)
    ax.imshow(correlation, cmap=DIVERGING, vmin=-1.0, vmax=1.0)
    label_heatmap(ax, posterior.factors, posterior.factors)
    if correlation.size <= ANNOTATED_CELLS:
        annotate_cells(ax, abs(correlation), lambda i, j: f"{correlation[i, j]:.2f}" if i != j else "", 7)
    title_panel(ax, "correlation of scores")
    return ax
