"""Figures of samples: where they lie among the factors, and what goes with that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import numpy as np

from factorflow.core.extras import require
from factorflow.engine.progress import clock
from factorflow.errors import InputError, pluralize
from factorflow.posterior.labels import group_labels
from factorflow.report.drawing import (
    axis_of,
    chosen_factors,
    colors_of,
    column_of,
    draw_points,
    frequent_levels,
    is_column,
    is_scale,
    panels,
    shorten,
    some_rows,
    some_scores,
)
from factorflow.report.smooth_plots import courses_along, draw_courses
from factorflow.report.style import ACCENT, CATEGORIES, MUTED, new_axes, quiet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from factorflow.api import Posterior

    Factors = str | SupportsIndex | Sequence[str | SupportsIndex]

N_PAIRS = 5
"""Factors whose pairs are drawn, if none are named."""

MAX_LEVELS = 20
"""Levels of a column that are drawn beside each other."""

N_BINS = 20
"""Points of the running median of scores against a covariate."""

POINTS: dict[str, Any] = {"s": 12, "linewidths": 0, "alpha": 0.75}


def plot_scores(
    posterior: Posterior,
    factors: Factors | None = None,
    color: str | None = None,
    kind: Literal["scatter", "pairs"] = "scatter",
    ax: Axes | None = None,
    *,
    of: str = "scores",
) -> Axes:
    """Draw the scores of two factors, or two inputs of a process, against each other; or of all pairs.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    factors : sequence of str or int, optional
        Factors, by label or number from 1; of inputs their numbers. Left out: the first two, of pairs the
        first five.
    color : str, optional
        What to colour by: a column of the sample metadata, or a feature (``view:feature`` where several views
        have one of that name), whose data are read.
    kind : {"scatter", "pairs"}
        Two factors; or each against each, with their distributions on the diagonal.
    ax : Axes, optional
        Where to draw; panels are laid out inside.
    of : {"scores", "inputs"}
        What is drawn.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When there is no such factor, column or feature.

    Examples
    --------
    >>> ax = factorflow.report.plot_scores(posterior, [1, 2], color="age")
    >>> ax.figure.savefig("plot_scores.png")
    >>> ax = posterior.plot.scores(kind="pairs", color="rna:gene0")
    """
    if kind not in ("scatter", "pairs"):
        raise InputError("kind", kind, "scatter or pairs", "Choose one of them.")
    if of == "scores":
        n_known = len(posterior.factors)
        default = range(1, 3 if kind == "scatter" else max(2, min(N_PAIRS, n_known)) + 1)
        names = chosen_factors(posterior, default if factors is None else factors)
        place = [posterior.factors.index(name) for name in names]
    else:
        place, names = _inputs(posterior, of, factors)
    if len(names) < 2 or (kind == "scatter" and len(names) > 2):
        expected = "two factors" if kind == "scatter" else "two factors or more"
        remedy = 'kind="pairs" draws more; see plot.distribution for one.'
        raise InputError("factors", ", ".join(names), expected, remedy)
    scores, rows = some_scores(posterior, of, _rows(posterior, color))
    values = None if color is None else colors_of(posterior, color, rows)
    style = {**POINTS, "rasterized": len(rows) > 1500}
    if kind == "scatter":
        ax = new_axes(ax)
        _points(ax, scores[:, place[0]], scores[:, place[1]], values, color, style, key=True)
        ax.set_xlabel(names[0])
        ax.set_ylabel(names[1])
        return quiet(ax)
    side = 1.3 * len(names) + 0.6
    return _pairs(new_axes(ax, (side, side)), scores[:, place], names, values, color, style)


def _inputs(posterior: Posterior, of: str, factors: Any) -> tuple[list[int], list[str]]:
    """Return places and names of inputs of a process, given by their numbers."""
    n = posterior.array(of).shape[-1]
    chosen: Any = (1, 2) if factors is None else factors
    numbers: list[Any] = [chosen] if hasattr(chosen, "__index__") else list(chosen)
    for number in numbers:
        if not hasattr(number, "__index__") or not 1 <= int(number) <= n:
            raise InputError("factors", number, f"a number of an input, 1 to {n}", "Correct it.")
    return [int(i) - 1 for i in numbers], [f"Input{int(i)}" for i in numbers]


def _rows(posterior: Posterior, color: str | None) -> Any:
    """Return the samples that are drawn: of few blocks where the data are read; None: evenly spaced."""
    return None if is_column(posterior, color) else some_rows(posterior.data)


def _points(ax: Axes, x: Any, y: Any, values: Any, color: str | None, style: Any, *, key: bool) -> None:
    if values is None or color is None:
        ax.scatter(x, y, color=ACCENT, **style)
    else:
        draw_points(ax, x, y, values, color, style, key=key)


def _pairs(ax: Axes, scores: Any, names: list[str], values: Any, color: str | None, style: Any) -> Axes:
    """Draw each factor against each: scatter plots below the diagonal, histograms on it."""
    n = len(names)
    grid = panels(ax, n * n, n)
    for i, part in enumerate(grid):
        row, column = divmod(i, n)
        if column > row:
            part.set_visible(False)
            continue
        if row == column:
            part.hist(scores[:, row], bins=30, color=ACCENT, alpha=0.6)
            part.set_yticks([])
        else:
            key = (row, column) == (n - 1, n - 2)
            small = {**style, "s": 5}
            _points(part, scores[:, column], scores[:, row], values, color, small, key=key)
            if key and (legend := part.get_legend()) is not None:
                legend.remove()
        quiet(part)
        part.locator_params(nbins=3)
        if row == n - 1:
            part.set_xlabel(names[column])
        else:
            part.set_xticklabels([])
        if column == 0 and row:
            part.set_ylabel(names[row])
        elif row != column:
            part.set_yticklabels([])
    if values is not None and not is_scale(values):
        last = grid[(n - 1) * n]
        handles, labels = last.get_legend_handles_labels()
        ax.legend(handles, labels, title=color, frameon=False, fontsize=8, loc="upper right")
    return ax


def plot_distribution(
    posterior: Posterior,
    factors: Factors = 1,
    by: str | None = None,
    kind: Literal["violin", "strip"] = "violin",
    ax: Axes | None = None,
) -> Axes:
    """Draw how the scores of factors are distributed, by the levels of a column.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    factors : str, int or sequence of them
        Factors, by label or number from 1: a panel for each with ``by``.
    by : str, optional
        A column of the sample metadata with categories; all samples together when left out.
    kind : {"violin", "strip"}
        Smoothed densities with their medians; or the samples themselves.
    ax : Axes, optional
        Where to draw; panels are laid out inside.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When there is no such factor or column, or the column is one of numbers.

    Examples
    --------
    >>> ax = posterior.plot.distribution([1, 2], by="clinic")
    >>> ax.figure.savefig("plot_distribution.png")
    """
    if kind not in ("violin", "strip"):
        raise InputError("kind", kind, "violin or strip", "Choose one of them.")
    names = chosen_factors(posterior, factors)
    scores, rows = some_scores(posterior)
    scores = scores[:, [posterior.factors.index(name) for name in names]]
    if by is None:
        ax = new_axes(ax)
        _distributions(ax, names, list(scores.T), kind)
        ax.set_ylabel("score")
        return quiet(ax)
    values = column_of(posterior, by, rows, "by")
    if is_scale(values) and (n_numbers := len(np.unique(values))) > MAX_LEVELS:
        expected = f"a column of categories; {by} has {n_numbers} different numbers"
        raise InputError("by", by, expected, f"Draw plot.covariate({by!r}).")
    text, levels = frequent_levels(values, MAX_LEVELS)
    per_row = min(3, len(names))
    ax = new_axes(ax, (max(3.0, 0.5 * len(levels)) * per_row + 0.6, 2.8 * -(-len(names) // per_row)))
    for part, name, score in zip(panels(ax, len(names), per_row), names, scores.T, strict=True):
        labels = [shorten(level or "(none)", 14) for level in levels]
        _distributions(part, labels, [score[text == level] for level in levels], kind)
        part.set_xlabel(by)
        part.set_ylabel(name)
        quiet(part)
    return ax


def _distributions(ax: Axes, labels: list[str], parts: list[Any], kind: str) -> None:
    noise = np.random.default_rng(0)
    for place, values in enumerate(parts):
        color = CATEGORIES[place % len(CATEGORIES)]
        smooth = kind == "violin" and len(values) > 2 and np.ptp(values) > 0
        if smooth:
            violins = ax.violinplot([values], [place], widths=0.8, showextrema=False)
            for body in violins["bodies"]:  # type: ignore[attr-defined]
                body.set(facecolor=color, alpha=0.55, linewidth=0)
        else:
            x = place + noise.uniform(-0.25, 0.25, len(values))
            ax.scatter(x, values, color=color, s=8, linewidths=0, alpha=0.6, rasterized=len(values) > 1500)
        if len(values):
            ax.hlines(np.median(values), place - 0.25, place + 0.25, color=MUTED, linewidth=1.6)
    ax.set_xticks(range(len(labels)), labels, fontsize=8, rotation=90 if sum(map(len, labels)) > 60 else 0)


def plot_covariate(
    posterior: Posterior, column: str, factors: Factors = 1, color: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the scores of factors against a column of numbers, dates or durations, with a running median.

    Where scores are smooth functions of this column, the course of a factor with its 90 % interval takes the
    place of the median, one for each group that has its own.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    column : str
        A column of the sample metadata: age, time, dose.
    factors : str, int or sequence of them
        Factors, by label or number from 1, a panel for each.
    color : str, optional
        What to colour by, as for `plot_scores`; left out where groups have courses: the groups.
    ax : Axes, optional
        Where to draw; panels are laid out inside.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When there is no such factor or column, or it is one of categories.

    Examples
    --------
    >>> ax = posterior.plot.covariate("age", factors=[1, 2])
    >>> ax.figure.savefig("plot_covariate.png")
    """
    names = chosen_factors(posterior, factors)
    scores, rows = some_scores(posterior, rows=_rows(posterior, color))
    x, number, unit = axis_of(posterior, column, rows)
    finite = np.isfinite(number)
    courses = courses_along(posterior, column)
    labels = group_labels(posterior) if courses is not None and "group" in courses.coords else None
    if color is None and labels is not None:
        color, values = "group", labels[rows][finite]
    else:
        values, labels = None if color is None else colors_of(posterior, color, rows)[finite], None
    per_row = min(3, len(names))
    ax = new_axes(ax, (3.6 * per_row + 0.6, 3.0 * -(-len(names) // per_row)))
    style = {**POINTS, "rasterized": len(rows) > 1500}
    parts = panels(ax, len(names), per_row)
    for i, (part, name) in enumerate(zip(parts, names, strict=True)):
        score = scores[finite, posterior.factors.index(name)]
        _points(part, x[finite], score, values, color, style, key=i == len(parts) - 1)
        if courses is not None and name in courses["factor"].values:
            draw_courses(part, courses.sel(factor=name), x.dtype.kind, None if labels is None else values)
        else:
            _running_median(part, x[finite], score, np.argsort(number[finite], kind="stable"))
        part.set_xlabel(f"{column}{unit}")
        part.set_ylabel(name)
        quiet(part)
        if x.dtype.kind == "M":
            part.tick_params(axis="x", rotation=30)
    return ax


def _running_median(ax: Axes, x: Any, score: Any, order: Any) -> None:
    """Draw medians of scores in bins of equal numbers of samples; nothing of few."""
    if len(order) < 2 * N_BINS:
        return
    bins = np.array_split(order, N_BINS)
    middle = [x[at[len(at) // 2]] for at in bins]
    ax.plot(middle, [np.median(score[at]) for at in bins], color=MUTED, linewidth=1.6)


def plot_embedding(
    posterior: Posterior,
    method: Literal["umap"] = "umap",
    color: str | None = None,
    factors: Factors | None = None,
    n_neighbors: int = 15,
    min_dist: float = 0.5,
    seed: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Draw samples in two dimensions that keep neighbours among the factors together.

    At most 4000 samples are embedded, evenly spaced over the dataset. umap-learn compiles its loops in each
    process: the first embedding takes some ten seconds longer.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    method : {"umap"}
        Needs umap-learn: ``pip install 'factorflow[umap]'``.
    color : str, optional
        What to colour by, as for `plot_scores`.
    factors : sequence of str or int, optional
        Factors that count; all when left out.
    n_neighbors, min_dist
        Options of UMAP, with scanpy's defaults.
    seed : int
        Key of its random numbers.
    ax : Axes, optional
        Where to draw; a new figure when left out.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When umap-learn is missing, or there is no such factor, column or feature.
    """
    if method != "umap":
        raise InputError("method", method, "umap", "Pass scores() to other methods.")
    with clock("loading umap-learn"):
        umap = require("umap", "embeds samples (package umap-learn)")
    names = posterior.factors if factors is None else chosen_factors(posterior, factors)
    if not names:
        raise InputError("factors", "none", "at least one factor", "The run ended without factors.")
    scores, rows = some_scores(posterior, rows=_rows(posterior, color))
    values = None if color is None else colors_of(posterior, color, rows)
    scores = scores[:, [posterior.factors.index(name) for name in names]]
    if len(scores) < 4:
        raise InputError("posterior", f"{len(scores)} samples", "at least 4", "Draw plot.scores().")
    options = {"n_neighbors": min(n_neighbors, len(scores) - 1), "min_dist": min_dist}
    with clock(f"embedding {pluralize(len(scores), 'sample')} (the first time it compiles)"):
        place = umap.UMAP(**options, random_state=seed, n_jobs=1).fit_transform(scores)
    ax = new_axes(ax)
    style = {**POINTS, "rasterized": len(rows) > 1500}
    _points(ax, place[:, 0], place[:, 1], values, color, style, key=True)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_xlabel("UMAP 1")
    ax.set_ylabel("UMAP 2")
    return quiet(ax)
