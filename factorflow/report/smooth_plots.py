"""Figures of smooth scores: their courses over time and place, how smooth factors are, what groups share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import numpy as np

from factorflow.errors import InputError
from factorflow.posterior.labels import group_labels
from factorflow.report.drawing import (
    ANNOTATED_CELLS,
    MAX_CATEGORIES,
    MAX_POINTS,
    add_colorbar,
    annotate_cells,
    axis_of,
    chosen_factors,
    frequent_levels,
    label_heatmap,
    panels,
    shorten,
    some_scores,
)
from factorflow.report.style import ACCENT, CATEGORIES, DIVERGING, INK, new_axes, quiet, title_panel

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from factorflow.api import Posterior

    Factors = str | SupportsIndex | Sequence[str | SupportsIndex]

N_CURVE = 121
"""Points that a course is drawn through."""

N_GRID = 60
"""Points of each side of a grid that a course on a plane is drawn on."""

NANOSECONDS = 86_400e9
"""Of a day: courses are functions of dates in days."""


def smooth_factors(posterior: Posterior) -> list[str]:
    """Return the factors that have a course; none of a model without smooth scores."""
    if posterior.meta.places is None:
        return []
    share = posterior.variable("smooth_part_share").sel(smooth_part="smooth").values
    return [name for name, own in zip(posterior.factors, share, strict=True) if own > 0.0]


def _check_smooth(posterior: Posterior, names: list[str]) -> None:
    smooth = smooth_factors(posterior)
    rough = [name for name in names if name not in smooth]
    if rough or not names:
        expected = f"factors with a course: {', '.join(smooth) or 'there are none'}"
        raise InputError("factors", ", ".join(rough) or "none", expected, "See smoothness().")


def courses_along(posterior: Posterior, column: str) -> xr.Dataset | None:
    """Return the courses along a column, by point and smooth factor; None where they are no functions of it.

    Or not of it alone. Of many groups those of the most frequent ones.
    """
    smooth, places = smooth_factors(posterior), posterior.meta.places
    if not smooth or places is None or places.columns != (column,):
        return None
    at = np.linspace(places.low[0], places.high[0], N_CURVE)
    _, groups = frequent_levels(_labels(posterior), MAX_CATEGORIES)
    groups_drawn = [group for group in groups if group in places.groups]
    return posterior.interpolate(at, groups=groups_drawn or None).rename({column: "at"}).sel(factor=smooth)


def _labels(posterior: Posterior) -> Any:
    labels = group_labels(posterior)
    return np.array([], dtype=object) if labels is None else labels


def draw_courses(ax: Axes, courses: xr.Dataset, kind: str, values: Any = None) -> None:
    """Draw the courses of a factor with their intervals over its scores.

    Parameters
    ----------
    kind : str
        Kind of the values of the axis: "M" of dates.
    values : (n,) array of str, optional
        The group of each sample that is drawn, by which points are coloured: curves get the same colours.
    """
    _, levels = frequent_levels([] if values is None else values, MAX_CATEGORIES)
    own = courses["group"].values if "group" in courses.coords else np.full(courses.sizes["point"], "")
    for group in dict.fromkeys(own.tolist()):
        curve = courses.isel(point=own == group)
        x = curve["at"].values
        x = (x * NANOSECONDS).astype("datetime64[ns]") if kind == "M" else x
        color = CATEGORIES[levels.index(group) % len(CATEGORIES)] if group in levels else INK
        ax.fill_between(x, curve["f_lower"], curve["f_upper"], color=color, alpha=0.2, linewidth=0)
        ax.plot(x, curve["f_mean"], color=color, linewidth=1.6)


def plot_space(
    posterior: Posterior,
    factors: Factors = 1,
    columns: Sequence[str] | None = None,
    of: Literal["scores", "course"] = "scores",
    group: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the scores of factors where the samples lie, or their courses between these.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    factors : str, int or sequence of them
        Factors, by label or number from 1, a panel for each.
    columns : sequence of two str, optional
        Columns of the sample metadata: across and up. Left out: those that smooth scores are functions of.
    of : {"scores", "course"}
        Scores of the samples; or courses on a grid, with dots where samples are.
    group : str, optional
        One sample group. Courses of groups are drawn of one.
    ax : Axes, optional
        Where to draw; panels are laid out inside.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When there is no such factor, column or group, or the factor has no course on this plane.

    Examples
    --------
    >>> ax = posterior.plot.space([1, 2], of="course")  # doctest: +SKIP
    """
    if of not in ("scores", "course"):
        raise InputError("of", of, "scores or course", "Choose one of them.")
    names = chosen_factors(posterior, factors)
    across, up = _plane(posterior, columns)
    scores, rows = some_scores(posterior, rows=_rows_of(posterior, group))
    (x, x_number, x_unit), (y, y_number, y_unit) = (
        axis_of(posterior, name, rows, "columns") for name in (across, up)
    )
    finite = np.isfinite(x_number) & np.isfinite(y_number)
    grid = None if of == "scores" else _courses_on_plane(posterior, names, across, up, group)
    per_row = min(3, len(names))
    ax = new_axes(ax, (3.6 * per_row + 0.6, 3.0 * -(-len(names) // per_row)))
    places = posterior.meta.places
    one_place = places is not None and len(places.columns) == 2 and len(places.labels) == 1
    for part, name in zip(panels(ax, len(names), per_row), names, strict=True):
        score = scores[finite, posterior.factors.index(name)]
        style: dict[str, Any] = {"linewidths": 0, "rasterized": int(finite.sum()) > 1500}
        if grid is None:
            high = float(np.abs(score).max(initial=1e-12))
            size = float(np.clip(20_000.0 / max(1, len(score)), 4.0, 60.0))
            points: Any = part.scatter(
                x[finite], y[finite], c=score, cmap="coolwarm", vmin=-high, vmax=high, s=size, **style
            )
        else:
            mean = grid["f_mean"].sel(factor=name).values.reshape(N_GRID, N_GRID)
            high = float(np.abs(mean).max(initial=1e-12))
            sides = (grid[key].values.reshape(N_GRID, N_GRID) for key in (across, up))
            points = part.pcolormesh(
                *sides, mean, cmap="coolwarm", vmin=-high, vmax=high, shading="nearest", rasterized=True
            )
            part.scatter(x[finite], y[finite], color=INK, s=2, alpha=0.5, **style)
        add_colorbar(part, points, "", shrink=0.8, aspect=28)
        title_panel(part, name)
        part.set_xlabel(f"{across}{x_unit}")
        part.set_ylabel(f"{up}{y_unit}")
        if one_place and {across, up} == set(places.columns if places else ()):
            part.set_aspect("equal", adjustable="datalim" if grid is None else "box")
        quiet(part)
    return ax


def _plane(posterior: Posterior, columns: Sequence[str] | None) -> tuple[str, str]:
    """Return the two columns that samples are drawn at."""
    places = posterior.meta.places
    if columns is None and places is not None and len(places.columns) == 2:
        columns = places.columns
    if columns is None or isinstance(columns, str) or len(list(columns)) != 2:
        expected = "two columns of the sample metadata"
        raise InputError("columns", columns, expected, "For example ['x', 'y']; see sample_metadata().")
    return columns[0], columns[1]


def _rows_of(posterior: Posterior, group: str | None) -> Any:
    """Return the samples of a group, some of many; None: of all."""
    if group is None:
        return None
    if group not in posterior.meta.groups:
        available = ", ".join(posterior.meta.groups) or "nothing: the dataset has no groups"
        raise InputError("group", group, f"one of {available}", "Name a sample group, or leave it out.")
    rows = np.flatnonzero(_labels(posterior) == group)
    return rows[:: -(-len(rows) // MAX_POINTS)] if len(rows) else rows


def _courses_on_plane(
    posterior: Posterior, names: list[str], across: str, up: str, group: str | None
) -> xr.Dataset:
    """Return the courses on a grid over the samples of the fit, one row of it after the other."""
    places = posterior.meta.places
    if places is None or {across, up} != set(places.columns):
        value = "scores that are no functions of these columns alone"
        raise InputError("of", value, "a model of {smooth_covariates} [['x', 'y']]", "Draw of='scores'.",
                         smooth_covariates=[[across, up]])  # fmt: skip
    if places.groups and group is None:
        available = ", ".join(places.groups)
        raise InputError("group", None, f"one of {available}", "Name the group whose courses are drawn.")
    _check_smooth(posterior, names)
    low, high = (dict(zip(places.columns, ends, strict=True)) for ends in (places.low, places.high))
    side = {name: np.linspace(low[name], high[name], N_GRID) for name in (across, up)}
    x, y = np.meshgrid(side[across], side[up])
    return posterior.interpolate({across: x.ravel(), up: y.ravel()}, groups=group if places.groups else None)


def plot_smoothness(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """Draw how smooth each factor is: share of its course, length scales, evidence.

    Parameters
    ----------
    posterior : Posterior
        Of a model with smooth scores.
    ax : Axes, optional
        Where to draw; panels are laid out inside.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When the scores of the model are no functions of places.
    """
    table = posterior.smoothness().iloc[::-1]
    shares = list(table.columns[: table.columns.get_loc("rest")])
    table = table.drop(columns="rest")
    words = {name: f"share of {name}" for name in shares}
    words |= {"smooth": "share of the course", "evidence": "evidence (nats)"}
    ax = new_axes(ax, (2.8 * table.shape[1], 0.9 + 0.24 * len(table)))
    place = np.arange(len(table))
    for i, (part, name) in enumerate(zip(panels(ax, table.shape[1], table.shape[1]), table, strict=True)):
        value = table[name].to_numpy()
        part.barh(place, np.nan_to_num(value), color=ACCENT, height=0.6)
        part.set_yticks(place, [shorten(label) for label in table.index] if not i else [], fontsize=8)
        part.set_ylim(-0.6, len(table) - 0.4)
        if name in shares:
            part.set_xlim(0.0, 1.0)
        part.set_xlabel(words.get(str(name), f"length scale, {str(name).removeprefix('length_scale_')}"))
        quiet(part)
    return ax


def plot_group_correlation(
    posterior: Posterior, factors: Factors | None = None, ax: Axes | None = None
) -> Axes:
    """Draw how alike the courses of groups are, a heat map for each factor.

    Parameters
    ----------
    posterior : Posterior
        Of a model with smooth scores and groups.
    factors : str, int or sequence of them, optional
        Factors, by label or number from 1; all that have a course when left out.
    ax : Axes, optional
        Where to draw; panels are laid out inside.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When groups have no courses of their own, or a factor has none.
    """
    correlation = posterior.group_correlation()
    names = smooth_factors(posterior) if factors is None else chosen_factors(posterior, factors)
    _check_smooth(posterior, names)
    groups = [str(name) for name in correlation["group"].values]
    per_row, side = min(3, len(names)), max(2.4, 1.0 + 0.3 * len(groups))
    ax = new_axes(ax, (side * per_row, side * -(-len(names) // per_row)))
    for part, name in zip(panels(ax, len(names), per_row), names, strict=True):
        values = correlation.sel(factor=name).values
        part.imshow(values, cmap=DIVERGING, vmin=-1.0, vmax=1.0)
        label_heatmap(part, [shorten(group, 10) for group in groups], groups)
        part.tick_params(axis="x", rotation=90 if sum(map(len, groups)) > 20 else 0)
        if values.size <= ANNOTATED_CELLS:
            annotate_cells(part, abs(values), partial(_off_diagonal, values), 7)
        title_panel(part, name)
    return ax


def _off_diagonal(values: Any, row: int, column: int) -> str:
    return f"{values[row, column]:.2f}" if row != column else ""
