"""Figures of the fields of identities and attributes as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.patches.gabor import fit_gabor
from examples.patches.pairs import fields_of, identity_labels, kept_identities, phase_energy
from factorflow.errors import InputError
from factorflow.report.sequences import find_identity
from factorflow.report.style import ACCENT, CATEGORIES, INK, MUTED, new_axes, quiet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from examples.patches.transform import PatchTransform

__all__ = ["plot_fields", "plot_pairs", "plot_phase_energy"]

GAP = 2
"""Pixels between two patches."""

GOOD = 0.5
"""Share of a patch that a Gabor function has to explain to be drawn over it."""

PHASES = np.linspace(0.0, 2.0 * np.pi, 181)


def plot_fields(
    loadings: ArrayLike,
    transform: PatchTransform,
    identities: Sequence[str | int] | None = None,
    *,
    white: bool = False,
    gabor: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Draw the fields of identities as patches: a column for each, its attributes one below the other.

    Each patch has a scale of its own, from black to white about zero. A line is along the bars of the Gabor
    function fitted to it, as long as four standard deviations of its envelope, where that explains half of
    the patch.

    Parameters
    ----------
    loadings : (K, P, Q) array or DataArray
        Feature, identity, attribute: `posterior.loadings(view)`.
    transform : PatchTransform
        Of the dataset (`PatchTransform.of`).
    identities : sequence of str or int, optional
        Which of them, by label or number from 1; those that were not pruned when left out.
    white : bool
        As they are in white pictures, whose components have all the same variance, instead of as they are.
    gabor : bool
        Fit, and draw the lines.
    ax : Axes, optional
        Where to draw.
    """
    fields = fields_of(loadings, transform, white)
    labels = identity_labels(loadings)
    chosen = [
        find_identity(labels, p)
        for p in (kept_identities(loadings) + 1 if identities is None else identities)
    ]
    if not chosen:
        raise InputError("identities", "none", "at least one that is there", "Name some.")
    fields = fields[chosen]
    n, q, h, w = fields.shape
    sheet = np.full((q * (h + GAP) - GAP, n * (w + GAP) - GAP), np.nan)
    largest = np.abs(fields).max(axis=(2, 3), keepdims=True)
    scaled = fields / np.where(largest > 0, largest, 1.0)
    corners = [(j, i, j * (h + GAP), i * (w + GAP)) for i in range(n) for j in range(q)]
    for j, i, top, left in corners:
        sheet[top : top + h, left : left + w] = scaled[i, j]
    ax = new_axes(ax)
    ax.imshow(sheet, cmap="gray", vmin=-1.0, vmax=1.0, interpolation="nearest")
    if gabor:
        fitted = fit_gabor(fields.reshape(n * q, h, w))
        for (_, _, top, left), (_, fit) in zip(corners, fitted.iterrows(), strict=True):
            if fit["r2"] >= GOOD:
                _draw_bar(ax, fit, (left, top, w, h))
    _names(ax, n, q, (h, w), [labels[p].removeprefix("Identity") for p in chosen])
    return ax


def plot_pairs(pairs: pd.DataFrame, medians: pd.DataFrame | None = None, ax: Axes | None = None) -> Axes:
    """Draw how alike the fields of each identity are, and the medians of the controls.

    A dot is an identity: the difference of the orientations of its fields, and how far the energy of its
    fields depends on the phase of a grating.

    Parameters
    ----------
    pairs : DataFrame
        Of `describe_pairs`.
    medians : DataFrame, optional
        Of `compare_pairs`: drawn as crosses.
    ax : Axes, optional
        Where to draw.
    """
    ax = new_axes(ax)
    ax.scatter(pairs["orientation_difference"], pairs["phase_modulation"], s=18, color=ACCENT, linewidths=0)
    if medians is not None:
        for color, (name, row) in zip(CATEGORIES, medians.iterrows(), strict=False):
            place = row["orientation_difference"], row["phase_modulation"]
            ax.plot(*place, "x", markersize=9, markeredgewidth=2, color=color, label=str(name))
        ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.set_xlim(-2.0, 92.0)
    ax.set_ylim(-0.02, 1.02)
    ax.set_xlabel("difference of orientations (degrees)")
    ax.set_ylabel("phase modulation of the energy")
    return quiet(ax)


def plot_phase_energy(
    loadings: ArrayLike, transform: PatchTransform, identity: str | int = 1, ax: Axes | None = None
) -> Axes:
    """Draw the squared answers of the fields of an identity to a grating by its phase, and their sum.

    The grating is the one that they together answer most (`phase_energy`); the mean of
    the sum is 1. In quadrature the sum is flat. The identity is given by label or number from 1.
    """
    fields = fields_of(loadings, transform, white=True)
    identity = find_identity(identity_labels(loadings), identity)
    answers, modulation, _ = phase_energy(fields[identity], PHASES)
    squares = answers**2
    total = squares.sum(axis=0)
    mean = total[:-1].mean() or 1.0
    ax = new_axes(ax)
    for q, line in enumerate(squares):
        color = CATEGORIES[q % len(CATEGORIES)]
        ax.plot(np.degrees(PHASES), line / mean, color=color, linewidth=1.2, label=f"attribute {q + 1}")
    label = f"sum (modulation {float(modulation):.2f})"
    ax.plot(np.degrees(PHASES), total / mean, color=INK, linewidth=1.6, label=label)
    ax.set_xticks([0, 90, 180, 270, 360])
    ax.set_ylim(0.0, None)
    ax.set_xlabel("phase of the grating (degrees)")
    ax.set_ylabel("energy")
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return quiet(ax)


def _draw_bar(ax: Axes, fit: pd.Series[Any], patch: tuple[int, int, int, int]) -> None:
    """Draw a line along the bars of a Gabor function, within its patch (left, top, width, height)."""
    left, top, w, h = patch
    turn = np.radians(fit["orientation"])
    along = np.linspace(-2.0, 2.0, 101) * fit["length"]
    x, y = fit["x"] + along * np.cos(turn), fit["y"] - along * np.sin(turn)
    inside = (x >= -0.5) & (x <= w - 0.5) & (y >= -0.5) & (y <= h - 0.5)
    ax.plot(left + x[inside], top + y[inside], color=CATEGORIES[1], linewidth=1.2)


def _names(ax: Axes, n: int, q: int, size: tuple[int, int], labels: list[str]) -> None:
    """Name identities below and attributes beside a sheet of patches, without a frame."""
    h, w = size
    ax.set_xticks([i * (w + GAP) + (w - 1) / 2 for i in range(n)], labels, fontsize=8)
    ax.set_yticks([j * (h + GAP) + (h - 1) / 2 for j in range(q)], [str(j + 1) for j in range(q)], fontsize=8)
    ax.set_xlabel("identity", color=MUTED)
    ax.set_ylabel("attribute", color=MUTED)
    ax.tick_params(length=0, colors=MUTED)
    for side in ax.spines.values():
        side.set_visible(False)
