"""The figure of a selection of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from factorflow.errors import InputError
from factorflow.report.style import ACCENT, INK, MUTED, new_axes, quiet
from factorflow.storage.location import Location
from factorflow.storage.publish import new_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KEYS = {"log_likelihood", "standard_error", "options"}
"""Row of the table of scores."""

MOST = 30
"""Combinations that are drawn at most, the best ones."""


def plot_selection(table: Sequence[Mapping[str, Any]], ax: Axes | None = None) -> Axes:
    """Draw held-out log-likelihoods, best combination on top, with standard errors over splits.

    Parameters
    ----------
    table : sequence of mapping
        ``Selection.table`` of `factorflow.workflow.select.select`.
    ax : Axes, optional
        Where to draw; a new figure if left out.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When it is not the table of a selection.
    """
    if not all(isinstance(row, Mapping) and KEYS <= row.keys() for row in table) or not len(table):
        expected = f"mappings with {', '.join(sorted(KEYS))}, the best first"
        raise InputError("table", f"{len(table)} entries", expected, "Give the table of a selection.")
    ax = new_axes(ax)
    rows = table[:MOST]
    for place, row in enumerate(rows):
        color = ACCENT if place == 0 else INK
        error = row["standard_error"]
        ax.errorbar(row["log_likelihood"], place, xerr=error, fmt="o", ms=4, lw=1.2, color=color)
    ax.axvline(rows[0]["log_likelihood"], color=MUTED, lw=0.8, ls=":")
    ax.set_yticks(range(len(rows)), [row["options"] for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlabel("held-out log-likelihood (nats an entry)")
    quiet(ax)
    return ax


def write_figure(table: Sequence[Mapping[str, Any]], path: Location) -> Location:
    """Write the figure as a PNG file; return its path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 1 + 0.3 * min(len(table), MOST)), layout="constrained")
    plot_selection(table, ax=figure.subplots())
    with new_file(path, "out") as built:
        figure.savefig(built, format="png", dpi=110)
    return path
