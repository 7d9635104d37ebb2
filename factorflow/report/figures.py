"""Figures of a posterior: each function draws into the Axes given, or into new ones, and returns them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from factorflow.analysis.association import correlate
from factorflow.errors import InputError
from factorflow.posterior.labels import as_slice, sample_metadata
from factorflow.report.style import ACCENT, CATEGORIES, DIVERGING, INK, MUTED, SEQUENTIAL, new_axes, quiet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from factorflow.api import Posterior
    from factorflow.data import Dataset
    from factorflow.data.aligned_dataset import AlignedDataset

__all__ = [
    "MAX_POINTS",
    "plot_data",
    "plot_factor_correlation",
    "plot_loadings",
    "plot_presence",
    "plot_rhat",
    "plot_scores",
    "plot_trace",
    "plot_variance_explained",
    "plot_weights",
    "some_scores",
]

MAX_POINTS = 4000
"""Samples drawn at most, evenly spaced: more would neither be seen nor fit a report."""

MOST_BLOCKS = 16
"""Blocks of the data that a figure reads at most, evenly spaced."""

ANNOTATED_CELLS = 240
"""Heat maps up to this size carry their numbers."""

MAX_CATEGORIES = 10


def plot_trace(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """Draw the objective by iteration: a line for each chain, broken between stages.

    Objectives compare only within a stage. The scale is cut at the lower end, where a few first iterations
    would flatten all that follow.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    ax : Axes, optional
        Where to draw; a new figure when left out.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        Of a projection, which has no iterations.

    Examples
    --------
    >>> ax = factorflow.report.plot_trace(posterior)
    >>> ax.figure.savefig("plot_trace.png")
    """
    trace = posterior.trace
    if "objective" not in trace:
        raise InputError("posterior", posterior.run["status"], "one with iterations", "Use that of the fit.")
    ax = new_axes(ax)
    iteration = trace["iteration"].values
    values = np.atleast_2d(trace["objective"].values)
    stages = trace["stage"].values
    edges = [0, *(np.flatnonzero(stages[1:] != stages[:-1]) + 1), len(stages)]
    for chain, line in enumerate(values):
        color = CATEGORIES[chain % len(CATEGORIES)]
        for first, last in itertools.pairwise(edges):
            label = f"chain {chain}" if len(values) > 1 and first == 0 else None
            marker = "." if last - first < 3 else None
            ax.plot(
                iteration[first:last],
                line[first:last],
                color=color,
                linewidth=1.3,
                label=label,
                marker=marker,
            )
    top = ax.get_xaxis_transform()
    for start, end in itertools.pairwise(edges) if len(edges) > 2 else []:
        if start:
            ax.axvline(iteration[start] - 0.5, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
        name = str(stages[start])
        if end < len(stages) and end - start < 0.015 * len(name) * len(stages):
            continue  # it would touch the next one
        ax.text(iteration[start], 1.01, name, transform=top, color=MUTED, fontsize=8, va="bottom")
    finite = values[np.isfinite(values)]
    if finite.size > 8:
        cut = 0.1 if posterior.kind == "variational" else 0.005
        low, high = np.quantile(finite, cut), finite.max()
        ax.set_ylim(low - 0.08 * (high - low or 1.0), high + 0.08 * (high - low or 1.0))
    ax.set_xlabel("iteration")
    ax.set_ylabel("bound (nats)" if posterior.kind == "variational" else "log joint density (nats)")
    if len(values) > 1:
        ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return quiet(ax)


def plot_variance_explained(
    posterior: Posterior, ax: Axes | None = None, *, group: str | None = None
) -> Axes:
    """Draw the share of each view's variance that each factor explains, as a heat map in percent.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    ax : Axes, optional
        Where to draw.
    group : str, optional
        One sample group instead of all samples.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When there is no such group.

    Examples
    --------
    >>> ax = factorflow.report.plot_variance_explained(posterior)
    >>> ax.figure.savefig("plot_variance_explained.png")
    """
    share = posterior.variance_explained(by=None if group is None else "group")
    if group is not None:
        if group not in posterior.meta.groups:
            raise InputError(
                "group", group, f"one of {', '.join(posterior.meta.groups)}", "Name a sample group."
            )
        share = share.sel(group=group)
    percent = 100.0 * share.transpose("view", "factor").values
    ax = new_axes(ax)
    high = max(1.0, float(np.nanmax(percent, initial=1.0)))
    if percent.size:
        ax.imshow(np.clip(percent, 0.0, None), cmap=SEQUENTIAL, vmin=0.0, vmax=high, aspect="auto")
    _labels(ax, posterior.factors, list(posterior.views))
    if percent.size <= ANNOTATED_CELLS:
        for (row, column), value in np.ndenumerate(percent):
            color = "white" if value > 0.6 * high else INK
            shown = f"{value:.0f}" if abs(value) >= 9.95 else f"{value + 0.0:.1f}".replace("-0.0", "0.0")
            if not np.isnan(value):
                ax.text(column, row, shown, ha="center", va="center", fontsize=8, color=color)
    ax.set_title("variance explained (%)", fontsize=9, color=MUTED, loc="left")
    return ax


def plot_loadings(
    posterior: Posterior, view: str, factor: str | SupportsIndex = 1, n: int = 12, ax: Axes | None = None
) -> Axes:
    """Draw the largest loadings of a factor and two standard deviations; pale where inclusion is doubtful.

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
    ax.set_yticks(place, [_short(name) for name in table.index], fontsize=8)
    ax.locator_params(axis="x", nbins=4)
    ax.set_xlabel(f"loading on {posterior.factor(factor)}")
    ax.set_title(view, fontsize=9, color=MUTED, loc="left")
    return quiet(ax)


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


def plot_scores(
    posterior: Posterior,
    x: str | SupportsIndex = 1,
    y: str | SupportsIndex = 2,
    color: str | None = None,
    ax: Axes | None = None,
    *,
    of: str = "scores",
) -> Axes:
    """Draw the scores of two factors, or two inputs of a process, against each other.

    Parameters
    ----------
    posterior : Posterior
        What was fitted.
    x, y : str or int
        Factors, by label or number from 1; of inputs their numbers.
    color : str, optional
        A column of the sample metadata to colour by.
    ax : Axes, optional
        Where to draw.
    of : {"scores", "inputs"}
        What is drawn.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When there is no such factor or column.

    Examples
    --------
    >>> ax = factorflow.report.plot_scores(posterior, x=1, y=2, color="age")
    >>> ax.figure.savefig("plot_scores.png")
    """
    scores, rows = some_scores(posterior, of)
    if of == "scores":
        names = [posterior.factor(f) for f in (x, y)]
        place = [posterior.factors.index(name) for name in names]
    else:
        place = [int(f) - 1 for f in (x, y)]
        names = [f"Input{i + 1}" for i in place]
    first, second = scores[:, place[0]], scores[:, place[1]]
    ax = new_axes(ax)
    style: dict[str, Any] = {"s": 12, "linewidths": 0, "alpha": 0.75, "rasterized": len(rows) > 1500}
    if color is None:
        ax.scatter(first, second, color=ACCENT, **style)
    else:
        _colored(ax, first, second, _column(posterior, color, rows), color, style)
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1])
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
    _labels(ax, posterior.factors, posterior.factors)
    if correlation.size <= ANNOTATED_CELLS:
        for (row, column), value in np.ndenumerate(correlation):
            if row != column and not np.isnan(value):
                color = "white" if abs(value) > 0.6 else INK
                ax.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=color)
    ax.set_title("correlation of scores", fontsize=9, color=MUTED, loc="left")
    return ax


def plot_data(
    posterior: Posterior, view: str, factor: str | SupportsIndex = 1, n: int = 20, ax: Axes | None = None
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
    >>> ax = factorflow.report.plot_data(posterior, "rna", factor=1, n=10)
    >>> ax.figure.savefig("plot_data.png")
    """
    scores, rows = some_scores(posterior, rows=_some_rows(posterior.data))
    names = posterior.top_features(view, factor, n).index
    order = rows[np.argsort(scores[:, posterior.factors.index(posterior.factor(factor))], kind="stable")]
    where = {name: i for i, name in enumerate(posterior.features(view))}
    columns = [where[name] for name in names]
    values = _values(posterior, view, order, columns)
    measured = ~np.isnan(values).all(axis=0)  # new samples may lack a feature
    some, scaled = values[:, measured], np.full_like(values, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled[:, measured] = (some - np.nanmean(some, axis=0)) / np.nanstd(some, axis=0)
    ax = new_axes(ax)
    ax.imshow(scaled.T, cmap=DIVERGING, vmin=-2.5, vmax=2.5, aspect="auto", interpolation="nearest")
    ax.set_yticks(range(len(names)), [_short(name) for name in names], fontsize=8)
    ax.set_xticks([])
    ax.set_xlabel(f"samples by their score on {posterior.factor(factor)}")
    ax.set_title(view, fontsize=9, color=MUTED, loc="left")
    for side in ax.spines.values():
        side.set_visible(False)
    ax.tick_params(length=0)
    return ax


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
    rows = _some_rows(dataset)
    parts = []
    for number in np.unique(rows // dataset.block_rows):
        block = dataset.block(int(number), posterior.views)
        mine = rows[rows // dataset.block_rows == number] - int(number) * dataset.block_rows
        observed = [dataset.views[view].kind.observed(block.data[view][mine]) for view in posterior.views]
        parts.append([np.reshape(seen, (len(mine), -1)).mean(axis=1) for seen in observed])
    share = np.concatenate(parts, axis=1)
    ax = new_axes(ax)
    ax.imshow(share, cmap=SEQUENTIAL, vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    ax.set_yticks(range(len(share)), [_short(view) for view in posterior.views], fontsize=8)
    ax.set_xticks([])
    some = "" if share.shape[1] == posterior.meta.n_rows else f"{share.shape[1]:,} of "
    ax.set_xlabel(f"{some}{posterior.meta.n_rows:,} samples")
    ax.set_title("observed", fontsize=9, color=MUTED, loc="left")
    ax.tick_params(length=0, colors=MUTED)
    for side in ax.spines.values():
        side.set_visible(False)
    return ax


def plot_rhat(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """Draw the distribution of R-hat over all entries of a sampler's global variables.

    Parameters
    ----------
    posterior : Posterior
        Of a sampler.
    ax : Axes, optional
        Where to draw; a new figure when left out.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        Of a variational posterior.
    """
    values = posterior.diagnostics()["r_hat"].to_numpy()
    values = values[np.isfinite(values)]
    ax = new_axes(ax)
    ax.hist(values, bins=min(40, max(5, len(values) // 4)), color=ACCENT, alpha=0.85)
    ax.axvline(1.01, color=CATEGORIES[1], linewidth=1.0, linestyle=(0, (3, 3)))
    ax.set_xlabel("R-hat")
    ax.set_ylabel("entries")
    return quiet(ax)


def some_scores(posterior: Posterior, of: str = "scores", rows: Any = None) -> tuple[Any, Any]:
    """Return scores (or another variable) of at most `MAX_POINTS` evenly spaced samples, and their rows."""
    if rows is None:
        rows = np.arange(0, posterior.meta.n_rows, -(-posterior.meta.n_rows // MAX_POINTS))
    if posterior.kind == "variational":
        return np.asarray(posterior.array(of).isel(obs=as_slice(rows)).values), rows
    return posterior.variable(of).values[rows], rows


def _some_rows(dataset: Dataset | AlignedDataset) -> Any:
    """Return at most `MAX_POINTS` rows; of many from `MOST_BLOCKS` blocks at most, or all would be read."""
    n, size = dataset.n_rows, dataset.block_rows
    if n <= MAX_POINTS or dataset.n_blocks <= MOST_BLOCKS:
        return np.arange(0, n, -(-n // MAX_POINTS))
    read = np.linspace(0, dataset.n_blocks - 1, MOST_BLOCKS).astype(int)
    rows = np.concatenate([np.arange(b * size, min(n, (b + 1) * size)) for b in read])
    return rows[:: -(-len(rows) // MAX_POINTS)]


def _values(posterior: Posterior, view: str, rows: Any, columns: list[int]) -> Any:
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


def _column(posterior: Posterior, name: str, rows: Any) -> Any:
    table = sample_metadata(posterior, rows, typed=False)
    if name not in table:
        raise InputError(
            "color", name, f"one of {', '.join(map(str, table.columns))}", "See sample_metadata()."
        )
    return table[name].to_numpy()


def _colored(ax: Axes, x: Any, y: Any, values: Any, name: str, style: dict[str, Any]) -> None:
    """Draw points coloured by a column: a scale for numbers, a legend for categories."""
    if values.dtype.kind in "iuf" and len(np.unique(values)) > MAX_CATEGORIES:
        points = ax.scatter(x, y, c=values, cmap="viridis", **style)
        bar = ax.figure.colorbar(points, ax=ax, shrink=0.8, aspect=28, pad=0.02)
        bar.set_label(name, color=MUTED, fontsize=8)
        bar.ax.tick_params(labelsize=8, colors=MUTED, length=0)
        bar.ax.spines["outline"].set_visible(False)
        return
    text = np.array([str(value) for value in values])
    levels, counts = np.unique(text, return_counts=True)
    kept = levels[np.argsort(-counts, kind="stable")][:MAX_CATEGORIES]
    for i, level in enumerate(sorted(kept)):
        mine = text == level
        ax.scatter(
            x[mine], y[mine], color=CATEGORIES[i % len(CATEGORIES)], label=_short(level or "(none)"), **style
        )
    rest = ~np.isin(text, kept)
    if rest.any():
        ax.scatter(x[rest], y[rest], color=MUTED, label="other", **style)
    legend = ax.legend(
        title=name, frameon=False, fontsize=8, title_fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )
    legend.set_alignment("left")


def _labels(ax: Axes, columns: list[str], rows: list[str]) -> None:
    """Label a heat map and take away what frames it."""
    short = [name.removeprefix("Factor") for name in columns]
    ax.set_xticks(range(len(columns)), short, fontsize=8)
    ax.set_yticks(range(len(rows)), [_short(name.removeprefix("Factor")) for name in rows], fontsize=8)
    if all(name.startswith("Factor") for name in columns):
        ax.set_xlabel("factor")
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)


def _short(name: str, length: int = 26) -> str:
    text = str(name)
    return text if len(text) <= length else text[: length - 1] + "…"
