"""Helpers of figures: samples drawn, colours, labels, grids of panels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from factorflow.analysis.column_tests import as_numbers, holds_numbers
from factorflow.errors import InputError
from factorflow.posterior.labels import as_slice, other_names, sample_metadata
from factorflow.report.style import CATEGORIES, INK, MUTED, hide_frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from factorflow.api import Posterior
    from factorflow.data import Dataset
    from factorflow.data.aligned_dataset import AlignedDataset

MAX_POINTS = 4000
"""Samples drawn at most, evenly spaced: more would neither be seen nor fit a report."""

MOST_BLOCKS = 16
"""Blocks of the data that a figure reads at most, evenly spaced."""

ANNOTATED_CELLS = 240
"""Heat maps up to this size carry their numbers."""

MAX_CATEGORIES = 10
"""Levels of a column that have a colour of their own, the most frequent ones."""


def chosen_factors(
    posterior: Posterior, factors: str | SupportsIndex | Sequence[str | SupportsIndex]
) -> list[str]:
    """Return the labels of one or several factors, given by label or number from 1."""
    one = isinstance(factors, str) or hasattr(factors, "__index__")
    chosen: Any = [factors] if one else factors
    try:
        chosen = list(chosen)
    except TypeError:
        expected = "a factor or several, by label or number from 1"
        raise InputError("factors", type(factors).__name__, expected, "For example [1, 2].") from None
    if not chosen:
        raise InputError("factors", "none", "at least one factor", "Factors are numbered from 1.")
    return [posterior.factor(factor) for factor in chosen]


def some_scores(posterior: Posterior, of: str = "scores", rows: Any = None) -> tuple[Any, Any]:
    """Return scores (or another variable) of at most `MAX_POINTS` evenly spaced samples, and their rows."""
    if rows is None:
        rows = np.arange(0, posterior.meta.n_rows, -(-posterior.meta.n_rows // MAX_POINTS))
    if posterior.kind == "variational":
        return np.asarray(posterior.array(of).isel(obs=as_slice(rows)).values), rows
    return posterior.variable(of).values[rows], rows


def some_rows(dataset: Dataset | AlignedDataset, most: int | None = None) -> Any:
    """Return at most so many rows; of many from `MOST_BLOCKS` blocks at most, or all would be read."""
    most = MAX_POINTS if most is None else most
    n, size = dataset.n_rows, dataset.block_rows
    if n <= most or dataset.n_blocks <= MOST_BLOCKS:
        return np.arange(0, n, -(-n // most))
    read = np.linspace(0, dataset.n_blocks - 1, MOST_BLOCKS).astype(int)
    rows = np.concatenate([np.arange(b * size, min(n, (b + 1) * size)) for b in read])
    return rows[:: -(-len(rows) // most)]


def values_of(posterior: Posterior, view: str, rows: Any, columns: list[int]) -> Any:
    """Return some entries of the data as floats, NaN where missing, block by block."""
    dataset = posterior.data
    out = np.full((len(rows), len(columns)), np.nan)
    number = rows // dataset.block_rows
    for block in np.unique(number):
        mine = np.flatnonzero(number == block)
        values = dataset.block(int(block), [view]).data[view]
        part = values[np.ix_(rows[mine] - int(block) * dataset.block_rows, columns)]
        out[mine] = np.where(dataset.views[view].kind.observed(part), part.astype(float), np.nan)
    return out


def column_of(posterior: Posterior, name: str, rows: Any, parameter: str = "color") -> Any:
    """Return a column of the sample metadata as it is stored: numbers, or text ("": missing)."""
    table = sample_metadata(posterior, rows, typed=False)
    check_column(table, name, parameter)
    return table[name].to_numpy()


def check_column(table: pd.DataFrame, name: str, parameter: str) -> None:
    """Refuse a column that the sample metadata do not have (InputError)."""
    if name not in table:
        if not len(table.columns):
            expected, remedy = (
                "a column of the sample metadata: there are none",
                "Write the dataset with {obs}.",
            )
            raise InputError(parameter, name, expected, remedy, obs=...)
        columns = ", ".join(map(str, table.columns))
        raise InputError(parameter, name, f"a column of the sample metadata: {columns}", "Correct the name.")


def axis_of(
    posterior: Posterior, column: str, rows: Any, parameter: str = "column"
) -> tuple[Any, NDArray[np.float64], str]:
    """Return a column of numbers, dates or durations as values of an axis, as numbers, and its unit.

    Dates are drawn as they are, durations in days.

    Raises
    ------
    InputError
        When there is no such column, or it is one of categories.
    """
    table = sample_metadata(posterior, rows)
    check_column(table, column, parameter)
    values = table[column]
    number = as_numbers(values)
    if number.dtype.kind != "f" or not np.isfinite(number).any():
        expected = "a column of numbers, dates or durations"
        raise InputError(parameter, column, expected, f"Draw plot.distribution(by={column!r}).")
    kind = getattr(values.dtype, "kind", "O")
    if kind == "M":
        return values.dt.tz_localize(None).to_numpy("datetime64[ns]"), number, ""
    if kind == "m":
        return number / 86_400.0 + values.min().total_seconds() / 86_400.0, number, " (days)"
    if kind in "iu":
        return values.to_numpy(float), number, ""
    is_time = kind == "O" and not holds_numbers(values)
    return number, number, " (seconds since the first)" if is_time else ""


def colors_of(posterior: Posterior, color: str, rows: Any) -> Any:
    """Return what samples are coloured by: a column of the metadata, or the data of a feature.

    Features are called by name, or as ``view:feature`` where several views have one of that name; where none
    has it, by a text column of their metadata.
    """
    table = sample_metadata(posterior, rows[:1], typed=False)
    if color in table:
        return column_of(posterior, color, rows)
    places: list[tuple[str, int]] = []
    for view in posterior.views:
        for name in {color, color.removeprefix(f"{view}:")}:
            places += [(view, int(at)) for at in np.flatnonzero(posterior.features(view) == name)]
    if not places:
        places = [
            (view, int(at))
            for view in posterior.views
            for names in other_names(posterior, view).values()
            for at in np.flatnonzero(names == color.removeprefix(f"{view}:"))
        ]
    if len(places) != 1:
        available = ", ".join(map(str, table.columns)) or "none"
        expected = f"a feature, or a column of the sample metadata: {available}"
        remedy = "Correct the name: posterior.features(view) lists those of a view."
        if places:
            expected = "one feature"
            remedy = f"Write {' or '.join(f'{view}:{posterior.features(view)[at]}' for view, at in places)}."
        raise InputError("color", color, expected, remedy)
    return values_of(posterior, places[0][0], rows, [places[0][1]])[:, 0]


def is_column(posterior: Posterior, color: str | None) -> bool:
    """Return whether what samples are coloured by needs no data: nothing, or a column of the metadata."""
    return color is None or color in sample_metadata(posterior, np.arange(1), typed=False)


def is_scale(values: Any) -> bool:
    """Return whether a column is drawn as a scale, not as categories."""
    return values.dtype.kind in "iuf" and len(np.unique(values[np.isfinite(values)])) > MAX_CATEGORIES


def draw_points(
    ax: Axes, x: Any, y: Any, values: Any, name: str, style: dict[str, Any], *, key: bool = True
) -> None:
    """Draw points coloured by a column: a scale for numbers, a legend for categories (the key)."""
    if is_scale(values):
        absent = ~np.isfinite(values)
        ax.scatter(x[absent], y[absent], color=MUTED, **{**style, "alpha": 0.3})
        points = ax.scatter(x[~absent], y[~absent], c=values[~absent], cmap="viridis", **style)
        if not key:
            return
        add_colorbar(ax, points, name, shrink=0.8, aspect=28)
        return
    text, levels = frequent_levels(values, MAX_CATEGORIES)
    for i, level in enumerate(levels):
        mine = text == level
        ax.scatter(
            x[mine], y[mine], color=CATEGORIES[i % len(CATEGORIES)], label=shorten(level or "(none)"), **style
        )
    others = ~np.isin(text, levels)
    if others.any():
        ax.scatter(x[others], y[others], color=MUTED, label="other", **style)
    if not key:
        return
    legend = ax.legend(
        title=name, frameon=False, fontsize=8, title_fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )
    legend.set_alignment("left")


def label_heatmap(ax: Axes, columns: list[str], rows: list[str]) -> None:
    """Label a heat map and take away what frames it."""
    short = [name.removeprefix("Factor") for name in columns]
    ax.set_xticks(range(len(columns)), short, fontsize=8)
    ax.set_yticks(range(len(rows)), [shorten(name.removeprefix("Factor")) for name in rows], fontsize=8)
    if all(name.startswith("Factor") for name in columns):
        ax.set_xlabel("factor")
    hide_frame(ax)


def annotate_cells(ax: Axes, depth: Any, text_of: Callable[[int, int], str], size: int) -> None:
    """Write numbers into the cells of a heat map; white where its colour is deep, from 0 to 1."""
    for (row, column), value in np.ndenumerate(depth):
        if np.isfinite(value) and (text := text_of(row, column)):
            color = "white" if value > 0.6 else INK
            ax.text(column, row, text, ha="center", va="center", fontsize=size, color=color)


def frequent_levels(values: Any, most: int) -> tuple[Any, list[str]]:
    """Return a column as text ("": missing), and its most frequent levels, sorted."""
    text = np.array(["" if value != value else str(value) for value in values])
    levels, counts = np.unique(text, return_counts=True)
    return text, sorted(levels[np.argsort(-counts, kind="stable")][:most])


def add_colorbar(ax: Axes, points: Any, label: str, shrink: float, aspect: float) -> None:
    """Add the scale of coloured points."""
    bar = ax.figure.colorbar(points, ax=ax, shrink=shrink, aspect=aspect, pad=0.02)
    bar.set_label(label, color=MUTED, fontsize=8)
    bar.ax.tick_params(labelsize=8, colors=MUTED, length=0)
    outline: Any = bar.outline
    outline.set_visible(False)


def shorten(name: str, length: int = 26) -> str:
    """Return a name that is not longer than there is room for."""
    text = str(name)
    return text if len(text) <= length else text[: length - 1] + "…"


def panels(ax: Axes, n: int, per_row: int = 3) -> list[Axes]:
    """Return several Axes in a grid in the place of one, which is hidden; itself where one will do."""
    if n == 1:
        return [ax]
    ax.set_axis_off()
    figure, columns = ax.figure, min(n, per_row)
    rows = -(-n // columns)
    spec = ax.get_subplotspec()
    if spec is not None:
        grid = spec.subgridspec(rows, columns)
        return [figure.add_subplot(grid[divmod(i, columns)]) for i in range(n)]
    width, height = 1.0 / columns, 1.0 / rows
    places = [(i % columns * width, 1.0 - (i // columns + 1) * height) for i in range(n)]
    return [ax.inset_axes((x + 0.15 * width, y, 0.85 * width, 0.8 * height)) for x, y in places]
