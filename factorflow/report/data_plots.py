"""Figures of the data: what a factor stands for, and which samples each view has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from factorflow.report.drawing import (
    MAX_CATEGORIES,
    column_of,
    frequent_levels,
    is_scale,
    shorten,
    some_rows,
    some_scores,
    values_of,
)
from factorflow.report.style import (
    CATEGORIES,
    DIVERGING,
    MUTED,
    SEQUENTIAL,
    hide_frame,
    new_axes,
    title_panel,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from factorflow.api import Posterior


def plot_data(
    posterior: Posterior,
    view: str,
    factor: str | SupportsIndex = 1,
    n: int = 20,
    annotation: str | Sequence[str] = (),
    ax: Axes | None = None,
) -> Axes:
    """Draw the data of the features with the largest loadings, samples in the order of their scores.

    Each feature is centred and divided by its standard deviation; missing entries are left blank.

    Parameters
    ----------
    posterior : Posterior
        What was fitted; its dataset must be there.
    view : str
        Name of the view.
    factor : str or int
        Label, or number from 1.
    n : int
        Features at most.
    annotation : str or sequence of str
        Columns of the sample metadata that are drawn above the data, a strip for each.
    ax : Axes, optional
        Where to draw; a new figure when left out.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When there is no such view, factor or column.

    Examples
    --------
    >>> ax = factorflow.report.plot_data(posterior, "rna", factor=1, n=10, annotation=["age", "clinic"])
    >>> ax.figure.savefig("plot_data.png")
    """
    scores, rows = some_scores(posterior, rows=some_rows(posterior.data))
    names = posterior.top_features(view, factor, n).index
    order = rows[np.argsort(scores[:, posterior.factors.index(posterior.factor(factor))], kind="stable")]
    annotations = [annotation] if isinstance(annotation, str) else list(annotation)
    strips = [(name, column_of(posterior, name, order, "annotation")) for name in annotations]
    where = {name: i for i, name in enumerate(posterior.features(view))}
    columns = [where[name] for name in names]
    values = values_of(posterior, view, order, columns)
    measured = ~np.isnan(values).all(axis=0)  # new samples may lack a feature
    some, scaled = values[:, measured], np.full_like(values, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled[:, measured] = (some - np.nanmean(some, axis=0)) / np.nanstd(some, axis=0)
    ax = new_axes(ax, (6.4, 1.2 + 0.18 * len(names) + 0.25 * len(strips)))
    ax.imshow(scaled.T, cmap=DIVERGING, vmin=-2.5, vmax=2.5, aspect="auto", interpolation="nearest")
    ax.set_yticks(range(len(names)), [shorten(name) for name in names], fontsize=8)
    ax.set_xticks([])
    ax.set_xlabel(f"samples by their score on {posterior.factor(factor)}")
    _strips(ax, strips, len(names), view)
    hide_frame(ax)
    return ax


def _strips(ax: Axes, columns: list[tuple[str, Any]], n_rows: int, title: str) -> None:
    """Draw columns of the metadata above a heat map, each as high as a row of it, and their keys."""
    from matplotlib.patches import Patch

    height, above, key = 1.0 / max(n_rows, 4), ax, []
    for number, (name, values) in enumerate(reversed(columns)):
        strip = ax.inset_axes((0.0, 1.0 + (1.2 * number + 0.2) * height, 1.0, height))
        if is_scale(values):
            strip.imshow(values[None].astype(float), cmap="viridis", aspect="auto", interpolation="nearest")
        else:
            text, levels = frequent_levels(values, MAX_CATEGORIES)
            colors = {level: CATEGORIES[i % len(CATEGORIES)] for i, level in enumerate(levels)}
            pixels = np.array([_rgb(colors.get(level, MUTED)) for level in text])
            strip.imshow(pixels[None], aspect="auto", interpolation="nearest")
            key += [
                Patch(color=c, label=f"{name}: {shorten(level or '(none)')}") for level, c in colors.items()
            ]
        strip.set_xticks([])
        strip.set_yticks([0], [shorten(name)], fontsize=8)
        hide_frame(strip)
        above = strip
    title_panel(above, title)
    if key:
        ax.legend(handles=key, frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _rgb(color: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(color)


def plot_presence(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """Draw which samples each view has: the share of its features that is observed, from pale to dark.

    Samples are in the order of the dataset; of many, those of some blocks spread over it.

    Parameters
    ----------
    posterior : Posterior
        What was fitted; its dataset must be there.
    ax : Axes, optional
        Where to draw; a new figure when left out.

    Returns
    -------
    Axes

    Examples
    --------
    >>> ax = factorflow.report.plot_presence(posterior)
    >>> ax.figure.savefig("plot_presence.png")
    """
    dataset = posterior.data
    rows = some_rows(dataset)
    parts = []
    for number in np.unique(rows // dataset.block_rows):
        block = dataset.block(int(number), posterior.views)
        mine = rows[rows // dataset.block_rows == number] - int(number) * dataset.block_rows
        observed = [dataset.views[view].kind.observed(block.data[view][mine]) for view in posterior.views]
        parts.append([np.reshape(observed_rows, (len(mine), -1)).mean(axis=1) for observed_rows in observed])
    share = np.concatenate(parts, axis=1)
    ax = new_axes(ax)
    ax.imshow(share, cmap=SEQUENTIAL, vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    ax.set_yticks(range(len(share)), [shorten(view) for view in posterior.views], fontsize=8)
    ax.set_xticks([])
    some = "" if share.shape[1] == posterior.meta.n_rows else f"{share.shape[1]:,} of "
    ax.set_xlabel(f"{some}{posterior.meta.n_rows:,} samples")
    title_panel(ax, "observed")
    ax.tick_params(colors=MUTED)
    hide_frame(ax)
    return ax
