"""Figures of a run: its bound by iteration, and how a sampler mixed."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from factorflow.errors import InputError
from factorflow.report.style import ACCENT, CATEGORIES, MUTED, new_axes, quiet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from factorflow.api import Posterior


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
