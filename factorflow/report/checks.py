"""Figures that compare a response with its predictive distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.errors import InputError
from factorflow.posterior.prediction import Predictor
from factorflow.report.style import ACCENT, MUTED, new_axes, quiet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from factorflow.api import Posterior

MAX_ROWS = 20_000
"""Rows looked at, of whole blocks spread evenly over the dataset."""

MAX_COUNT = 40
"""Counts drawn one by one."""

BINS = 20


def plot_rootogram(posterior: Posterior, view: str, ax: Axes | None = None) -> Axes:
    """Draw how often each count was observed (bars) and was to be expected (line), as square roots.

    The bars hang from the line: where they end above or below zero, the model expects too many or too few of
    that count.

    Parameters
    ----------
    posterior : Posterior
        What was fitted; its dataset must be there.
    view : str
        Name of a view of counts.
    ax : Axes, optional
        Where to draw; a new figure when left out.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When the view has no counts.
    """
    posterior.features(view)  # refuses a view that there is not
    likelihood = posterior.data.views[view].likelihood
    if likelihood != "poisson":
        raise InputError(
            "view", f"{view} ({likelihood})", "a view of counts", "See plot_calibration for others."
        )
    predictor, parts = _read_observed(posterior, view)
    last = int(min(MAX_COUNT, max(y[observed].max(initial=1.0) for _, y, observed in parts)))
    counts = np.arange(last + 1)
    frequencies, expected = np.zeros(len(counts)), np.zeros(len(counts))
    for rows, y, observed in parts:
        for k in counts:
            frequencies[k] += (y[observed] == k).sum()
            expected[k] += predictor.tails(rows, np.full(y.shape, float(k)))[2][observed].sum()
    ax = new_axes(ax)
    root = np.sqrt(expected)
    ax.bar(
        counts, np.sqrt(frequencies), bottom=root - np.sqrt(frequencies), width=0.8, color=ACCENT, alpha=0.8
    )
    ax.plot(counts, root, color=MUTED, linewidth=1.3, marker=".")
    ax.axhline(0.0, color=MUTED, linewidth=0.8)
    ax.set_xlabel(view)
    ax.set_ylabel("square root of rows")
    return quiet(ax)


def plot_calibration(posterior: Posterior, view: str, ax: Axes | None = None) -> Axes:
    """Draw how the predictive probabilities P(Y <= y) of the rows are distributed: evenly, if all is right.

    A count spreads the probability of itself evenly over its bins (Czado, Gneiting and Held 2009,
    Biometrics 65, 1254-1261).

    Parameters
    ----------
    posterior : Posterior
        What was fitted; its dataset must be there.
    view : str
        Name of the view.
    ax : Axes, optional
        Where to draw; a new figure when left out.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When there is no such view, or nothing of it is observed.

    Examples
    --------
    >>> ax = factorflow.report.plot_calibration(posterior, "rna")
    >>> ax.figure.savefig("plot_calibration.png")
    """
    predictor, parts = _read_observed(posterior, view)
    probabilities = [[x[observed] for x in predictor.tails(rows, y)] for rows, y, observed in parts]
    low, _, at = (np.concatenate(column) for column in zip(*probabilities, strict=True))
    edges = np.linspace(0.0, 1.0, BINS + 1)
    inside = (edges[:, None] - low) / np.where(at > 0, at, 1.0)
    share = np.where(at > 0, np.clip(inside, 0.0, 1.0), edges[:, None] >= low).mean(axis=1)
    ax = new_axes(ax)
    ax.bar(edges[:-1], np.diff(share) * BINS, width=1.0 / BINS, align="edge", color=ACCENT, alpha=0.8)
    ax.axhline(1.0, color=MUTED, linewidth=0.8)
    ax.set_xlabel("predictive probability of values up to that of the row")
    ax.set_ylabel("density")
    return quiet(ax)


def _read_observed(posterior: Posterior, view: str) -> tuple[Predictor, list[tuple[Any, Any, Any]]]:
    """Return what predicts a view, and rows, values and where they are observed, of a few blocks."""
    dataset = posterior.data
    posterior.features(view)  # refuses a view that there is not
    n = max(1, min(dataset.n_blocks, MAX_ROWS // dataset.block_rows))
    parts = []
    for number in np.unique(np.linspace(0, dataset.n_blocks - 1, n).astype(int)):
        start = int(number) * dataset.block_rows
        y, observed = dataset.views[view].kind.fill_missing(dataset.block(int(number), [view]).data[view])
        parts.append((np.arange(start, start + len(y)), y, observed > 0))
    if not any(observed.any() for _, _, observed in parts):
        raise InputError("view", view, "a view with observed values in these samples", "Choose another one.")
    return Predictor(posterior, view), parts
