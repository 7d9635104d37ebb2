"""Figures of a model of identities and attributes along a sequence: which are present, and how they move."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from factorflow.errors import InputError
from factorflow.report.style import CATEGORIES, MUTED, SEQUENTIAL, hide_frame, new_axes, quiet

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from factorflow.api import Posterior

MAX_FRAMES = 400
"""Frames of a sequence that are drawn at most, the first ones."""

MAX_LABELS = 24
"""Identities that are named beside a heat map at most."""


def plot_identities(posterior: Posterior, sequence: int = 0, ax: Axes | None = None) -> Axes:
    """Draw the probability that each identity is present, frame by frame of a sequence.

    Parameters
    ----------
    posterior : Posterior
        Of a model of identities and attributes; its dataset must be there, if it has several sequences.
    sequence : int
        Number of the sequence, from 0; its first 400 frames are drawn.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When the family has no identities, or there is no such sequence.
    """
    present = first_rows(posterior, "present", sequence)
    ax = new_axes(ax)
    values = present.transpose("identity", "obs").values
    ax.imshow(values, cmap=SEQUENTIAL, vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    labels = [str(label).removeprefix("Identity") for label in present["identity"].values]
    every = -(-len(labels) // MAX_LABELS)
    ax.set_yticks(range(0, len(labels), every), labels[::every], fontsize=8)
    ax.set_xlabel(f"frame of sequence {sequence}")
    ax.set_ylabel("identity")
    hide_frame(ax)
    ax.tick_params(labelsize=8)
    return ax


def plot_attributes(
    posterior: Posterior, identity: str | int = 1, sequence: int = 0, ax: Axes | None = None
) -> Axes:
    """Draw the attributes of an identity along a sequence, two standard deviations about their means.

    The ground is coloured where the identity is probably present.

    Parameters
    ----------
    posterior : Posterior
        As for `plot_identities`.
    identity : str or int
        Label, or number from 1.
    sequence, ax
        As for `plot_identities`.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        When the family has no attributes, or there is no such identity or sequence.
    """
    present = first_rows(posterior, "present", sequence)
    labels = [str(label) for label in present["identity"].values]
    place = find_identity(labels, identity)
    mean, variance = (
        first_rows(posterior, name, sequence).isel(identity=place).transpose("attribute", "obs").values
        for name in ("attributes", "attributes_variance")
    )
    frame = np.arange(present.sizes["obs"])
    ax = new_axes(ax)
    for q, (middle, spread) in enumerate(zip(mean, 2.0 * np.sqrt(variance), strict=True)):
        color = CATEGORIES[q % len(CATEGORIES)]
        ax.fill_between(frame, middle - spread, middle + spread, color=color, alpha=0.2, linewidth=0)
        ax.plot(frame, middle, color=color, linewidth=1.2, label=f"attribute {q + 1}")
    there = np.asarray(present.isel(identity=place).values) > 0.5
    ax.fill_between(
        frame,
        0,
        1,
        where=there.tolist(),
        step="mid",
        color=MUTED,
        alpha=0.15,
        lw=0,
        transform=ax.get_xaxis_transform(),
    )
    ax.set_xlabel(f"frame of sequence {sequence}")
    ax.set_ylabel(f"attributes of {labels[place]}")
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return quiet(ax)


def find_identity(labels: list[str], identity: str | int) -> int:
    """Return the place of an identity given by label or by number from 1."""
    if isinstance(identity, int | np.integer) and 0 < identity <= len(labels):
        return int(identity) - 1
    if identity not in labels:
        remedy = "Identities are numbered from 1."
        raise InputError("identity", identity, f"one of {', '.join(labels)}", remedy)
    return labels.index(str(identity))


def first_rows(posterior: Posterior, name: str, sequence: int) -> xr.DataArray:
    """Return a variable of the rows of the first frames of a sequence; no others are read."""
    if not posterior.has(name):
        family = str(getattr(posterior.config, "model", "another family"))
        raise InputError("posterior", family, "a model of identities and attributes", "Fit one.")
    rows: xr.DataArray = posterior.array(name).isel(obs=_frames(posterior, sequence)).load()
    return rows


def _frames(posterior: Posterior, sequence: int) -> slice:
    """Return the rows of the first frames of a sequence."""
    n_rows, n_sequences = posterior.meta.n_rows, posterior.meta.n_sequences
    if not 0 <= sequence < max(1, n_sequences):
        raise InputError("sequence", sequence, f"0 to {max(1, n_sequences) - 1}", "Name another.")
    if not n_sequences:
        return slice(0, min(n_rows, MAX_FRAMES))
    dataset = posterior.dataset

    def first(number: int) -> int:
        return bisect_left(range(n_rows), number, key=lambda i: int(dataset.codes("sequence", i, i + 1)[0]))

    start = first(sequence)
    return slice(start, min(first(sequence + 1), start + MAX_FRAMES))
