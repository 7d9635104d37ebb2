"""Fields that belong together: whether those of an identity share an orientation and differ in phase.

A pair of Gabor functions of one orientation and frequency with phases a quarter of a wave apart (in
quadrature) answers a grating with the same energy wherever its bars lie, as complex cells do (Adelson and
Bergen 1985, J. Opt. Soc. Am. A 2, 284-299). That a model paired such fields is a finding only beside
controls: fields of natural images are smooth, and alike, whatever the model.

Fields are compared as they are in white pictures (`PatchTransform.fields` with ``white=True``): where slow
waves have most of the power, all fields answer the slowest gratings most.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from examples.patches.gabor import fit_gabor, spectrum
from factorflow.errors import InputError
from factorflow.kernels.random import Step
from factorflow.kernels.sites import PATCHES

if TYPE_CHECKING:
    import pandas as pd

    from examples.patches.transform import PatchTransform

__all__ = [
    "compare_pairs",
    "describe_pairs",
    "fields_of",
    "identity_labels",
    "kept_identities",
    "pair_anew",
    "phase_energy",
]

ORDER, COLUMNS = PATCHES[1], PATCHES[2]
"""Purposes of noise: which fields are paired at random, and weights that nothing was learnt of."""

LEAST = 0.01
"""Identities with less than this share of the largest sum of squares count as pruned."""

REPEATS = 20
"""Times that columns are paired at random."""

FloatArray = NDArray[np.float64]


def describe_pairs(loadings: ArrayLike, transform: PatchTransform) -> pd.DataFrame:
    """Return how alike the fields of the attributes of each identity are.

    Parameters
    ----------
    loadings : (K, P, Q) array or DataArray
        Feature, identity, attribute: `posterior.loadings(view)` of a model of identities and attributes.
    transform : PatchTransform
        Of the dataset (`PatchTransform.of`).

    Returns
    -------
    DataFrame
        By label of the identities that were not pruned: ``orientation_difference``, of Gabor
        functions fitted to two fields (0 to 90 degrees; of more fields, the mean over their pairs);
        ``phase_difference``, of the answers of two fields to the grating that they answer most (0 to 180
        degrees; 90 is quadrature; the mean as well); ``phase_modulation`` of their energy for that grating
        (`phase_energy`; 0 is quadrature, 1 one phase); ``r2`` of the worst of the fits.

    Raises
    ------
    InputError
        For loadings of another shape, or identities of one attribute.
    """
    fields, labels = _kept(loadings, transform)
    fitted = _fitted(fields)
    return _table(fields, fitted["orientation"], fitted["r2"], labels)


def compare_pairs(
    loadings: ArrayLike, transform: PatchTransform, random_start: ArrayLike | None = None, seed: int = 0
) -> pd.DataFrame:
    """Return the medians of `describe_pairs` beside those of controls.

    Parameters
    ----------
    loadings, transform
        As for `describe_pairs`.
    random_start : array, optional
        Loadings of the same model, fitted to the same data from a random start.
    seed : int
        Of the pairs and weights that are drawn.

    Returns
    -------
    DataFrame
        Rows: ``learned``; ``random start``, if given; ``random pairs``, the learned fields paired across
        identities (20 times over); ``not learned``, weights that are noise. Columns: ``n`` identities,
        ``orientation_difference``, ``phase_modulation``, ``phase_difference``, ``r2``.

    Raises
    ------
    InputError
        As `describe_pairs`; for fewer identities than attributes, which cannot be paired anew.
    """
    import pandas as pd

    fields, labels = _kept(loadings, transform)
    n, q = fields.shape[:2]
    if n < q:
        expected = f"{q} or more that are there, to pair their fields anew"
        raise InputError("identities", n, expected, "Fit a model of more.")
    fitted = _fitted(fields)
    orientation, r2 = fitted["orientation"], fitted["r2"]
    rows = {"learned": _table(fields, orientation, r2, labels)}
    if random_start is not None:
        rows["random start"] = describe_pairs(random_start, transform)
    shuffled = [pair_anew(n, q, seed, repeat) for repeat in range(REPEATS)]
    attribute = np.arange(q)
    rows["random pairs"] = pd.concat(
        _table(fields[order, attribute], orientation[order, attribute], r2[order, attribute], range(n))
        for order in shuffled
    )
    noise = Step(seed).normal(COLUMNS, np.arange(len(transform.scale)), n * q)
    rows["not learned"] = describe_pairs(noise.reshape(-1, n, q), transform)
    shown = ["orientation_difference", "phase_modulation", "phase_difference", "r2"]
    medians = {name: table[shown].median() for name, table in rows.items()}
    counts = {name: len(table) for name, table in rows.items()}
    found = pd.DataFrame(medians).T
    found.insert(0, "n", pd.Series(counts))
    return found.rename_axis("pairs")


def phase_energy(fields: ArrayLike, phases: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return how fields answer the grating that they together answer most, as its bars move.

    A field w answers a grating of phase p with ``sum w(x) cos(k x + p) = Re(e^(ip) G)``, G the Fourier
    coefficient at its frequency k. The energy of fields is the sum of squares of their answers: its mean over
    phases is ``sum |G|^2 / 2``, and it swings about that by ``|sum G^2| / 2``.

    Parameters
    ----------
    fields : (..., Q, h, w) array
        Fields of identities.
    phases : (M,) array
        Phases p, in radians.

    Returns
    -------
    answers : (..., Q, M) array
        Of each field.
    modulation : (...) array
        ``|sum G^2| / sum |G|^2``: 0, the energy is the same at all phases; 1, it vanishes at some.
    difference : (...) array
        Difference of the phases of G, 0 to 180 degrees, the mean over pairs of fields.
    """
    fields = np.asarray(fields, np.float64)
    if fields.ndim < 3:
        raise InputError(
            "fields", f"an array of shape {fields.shape}", "(..., fields, height, width)", "Reshape it."
        )
    found = spectrum(fields)[0]
    flat = found.reshape(*found.shape[:-2], -1)
    best = (np.abs(flat) ** 2).sum(axis=-2).argmax(axis=-1)
    at = np.take_along_axis(flat, best[..., None, None], axis=-1)[..., 0]
    power = (np.abs(at) ** 2).sum(axis=-1)
    modulation = np.abs((at**2).sum(axis=-1)) / np.where(power > 0, power, 1.0)
    answers = np.real(at[..., None] * np.exp(1j * np.asarray(phases)))
    pairs = list(combinations(range(fields.shape[-3]), 2))
    turns = [np.abs(np.angle(at[..., i] * at[..., j].conj(), deg=True)) for i, j in pairs]
    difference = np.mean(turns, axis=0) if turns else np.full(modulation.shape, np.nan)
    return answers, modulation, np.asarray(difference)


def fields_of(loadings: Any, transform: PatchTransform, white: bool) -> FloatArray:
    """Return the fields of loadings (K, P, Q), (P, Q, h, w); ``white``: those of white pictures.

    Raises
    ------
    InputError
        When they have not these three dimensions, or features other than the transform's.
    """
    values = np.asarray(loadings, np.float64)
    if values.ndim != 3:
        raise InputError(
            "loadings",
            values.shape,
            "feature, identity, attribute: three dimensions",
            "Take those of a model of identities and attributes.",
        )
    return np.asarray(transform.fields(values, white))


def identity_labels(loadings: Any) -> list[str]:
    """Return the labels of the identities of loadings (K, P, Q): ``Identity1``, ... where they have none."""
    coordinates = getattr(loadings, "coords", {})
    if "identity" in coordinates:
        return [str(label) for label in coordinates["identity"].values]
    return [f"Identity{p + 1}" for p in range(np.shape(loadings)[1])]


def kept_identities(loadings: Any) -> NDArray[np.intp]:
    """Return the identities that were not pruned: those with `LEAST` of the largest sum of squares."""
    squares = (np.asarray(loadings, np.float64) ** 2).sum(axis=(0, 2))
    return np.flatnonzero((squares >= LEAST * squares.max()) & (squares > 0))


def _kept(loadings: Any, transform: PatchTransform) -> tuple[FloatArray, list[Any]]:
    """Return the fields of identities that were not pruned, (P', Q, h, w), and their labels."""
    fields = fields_of(loadings, transform, white=True)
    if fields.shape[1] < 2:
        raise InputError("attributes", fields.shape[1], "two or more of an identity", "Fit a model of more.")
    kept = kept_identities(loadings)
    if not kept.size:
        raise InputError("loadings", "zero", "one identity that is there", "All were pruned: fit anew.")
    labels = identity_labels(loadings)
    return fields[kept], [labels[p] for p in kept]


def _fitted(fields: FloatArray) -> dict[str, FloatArray]:
    """Return orientation and r2 of the Gabor functions of fields, (P, Q) each."""
    n, q, h, w = fields.shape
    table = fit_gabor(fields.reshape(n * q, h, w))
    return {name: table[name].to_numpy().reshape(n, q) for name in ("orientation", "r2")}


def _table(fields: FloatArray, orientation: FloatArray, r2: FloatArray, labels: Any) -> pd.DataFrame:
    import pandas as pd

    pairs = list(combinations(range(fields.shape[1]), 2))
    turns = [np.abs((orientation[:, i] - orientation[:, j] + 90.0) % 180.0 - 90.0) for i, j in pairs]
    _, modulation, difference = phase_energy(fields, [0.0])
    return pd.DataFrame(
        {
            "orientation_difference": np.mean(turns, axis=0),
            "phase_difference": difference,
            "phase_modulation": modulation,
            "r2": r2.min(axis=1),
        },
        index=pd.Index(labels, name="identity"),
    )


def pair_anew(n: int, q: int, seed: int, repeat: int) -> NDArray[np.intp]:
    """Return from which identity each field of n new ones is, (n, q): q different ones, drawn at random."""
    order = np.argsort(Step(seed, iteration=repeat).uniform(ORDER, np.arange(n))[:, 0])
    # Along a random circle of identities, a field is taken 0, 1, 2, ... places on.
    place = (np.arange(n)[:, None] + np.arange(q)) % n
    return np.asarray(order[place])
