"""The style of figures: few colours, no frames, legible on light and dark ground."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factorflow.core.extras import require

require("matplotlib", "draws figures and reports")

from matplotlib.colors import LinearSegmentedColormap  # noqa: E402  after it is known to be there

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#30343b"
"""Numbers and lines that carry meaning; a report gives it the colour of its own text."""

MUTED = "#7d838c"
"""Axes, labels, reference lines: legible on light and dark ground."""

ACCENT = "#2f6fb3"

CATEGORIES = (
    "#2f6fb3",
    "#d9822b",
    "#2a9d74",
    "#c0497b",
    "#8a6fd1",
    "#b0a12c",
    "#52b3d9",
    "#8c6d55",
    "#e0685c",
    "#6f9443",
)
"""Ten colours of similar weight."""


def _ramp(name: str, *stops: tuple[float, tuple[float, float, float, float]]) -> LinearSegmentedColormap:
    return LinearSegmentedColormap.from_list(name, list(stops))


SEQUENTIAL = _ramp("factorflow_blue", (0.0, (0.18, 0.44, 0.70, 0.0)), (1.0, (0.13, 0.36, 0.62, 1.0)))
"""From transparent: nothing explained has the colour of the ground."""

DIVERGING = _ramp(
    "factorflow_diverging",
    (0.0, (0.70, 0.30, 0.18, 1.0)),
    (0.5, (0.60, 0.60, 0.60, 0.0)),
    (1.0, (0.13, 0.36, 0.62, 1.0)),
)


def new_axes(ax: Axes | None, size: tuple[float, float] | None = None) -> Axes:
    """Return the Axes given, or those of a new pyplot figure, of some inches."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=size, layout="constrained")
    del figure
    return axes


def quiet(ax: Axes) -> Axes:
    """Take away the frame and mute the axes; return the Axes."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(MUTED)
        ax.spines[side].set_linewidth(0.8)
    ax.tick_params(colors=MUTED, labelsize=8, length=3, width=0.8)
    for label in (*ax.get_xticklabels(), *ax.get_yticklabels()):
        label.set_color(MUTED)
    ax.xaxis.label.set_color(MUTED)
    ax.yaxis.label.set_color(MUTED)
    ax.xaxis.label.set_fontsize(9)
    ax.yaxis.label.set_fontsize(9)
    return ax


def title_panel(ax: Axes, text: str) -> None:
    """Write the title of a panel, small and to the left."""
    ax.set_title(text, fontsize=9, color=MUTED, loc="left")


def hide_frame(ax: Axes) -> None:
    """Hide the frame and the ticks of a panel."""
    for side in ax.spines.values():
        side.set_visible(False)
    ax.tick_params(length=0)
