"""Factors that are too weak to be seen among the samples, and smooth: found among a few functions.

A factor shows among N samples and D features where its squared loadings are about 1 / sqrt(N D) of the noise;
among M functions of the places, that keep what is smooth and M / N of the noise, where they are sqrt(M / N)
times that. With R the residuals of the fit, in units of the noise, without what lies along its loadings, and
W = (Phi' Phi)^-1/2, of centred functions::

    X = W Phi' R (M x D),  components: eigenvectors u of X X', loadings X' u / sqrt(N)

Those whose eigenvalue is above the largest under every draw of random signs of the rows of R start a factor.
Residuals, and never the data: what the fit explains would come again. Only of Gaussian views.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.kernels import device
from factorflow.kernels.linalg import pack, unpack
from factorflow.models.contract import Array, Block
from factorflow.models.sparse_gfa.entries import values_of
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.pseudo_data import gaussian_data, low_noise
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.smooth.basis import PlacesBasis
from factorflow.models.sparse_gfa.smooth.composite import smooth_part
from factorflow.models.sparse_gfa.smooth.cosines import Cosines
from factorflow.models.sparse_gfa.smooth.rows import place_values
from factorflow.models.sparse_gfa.start.added_factor import with_added_factor, with_fresh_pairs
from factorflow.models.sparse_gfa.state import Globals
from factorflow.models.sparse_gfa.weights import expected_weights

FEW = {1: 15, 2: 6}
"""Functions of a column, by number of columns; 4 of more."""
LEAST = 1e-8
"""Share of the largest eigenvalue of products of functions below which there is nothing: places are few."""
WEAK_SIGNS = 19
"""Draws of signs that a component has to be above."""


@dataclass(frozen=True)
class WeakSums:
    """Sums over rows whose place is known.

    Parameters
    ----------
    functions, products : array
        Of the functions, and of their products, packed.
    features : mapping of view to array
        Sums of products with the residuals, under each draw of signs, the first without.
    """

    functions: Float64[np.ndarray, " M"]
    products: Float64[np.ndarray, " P"]
    features: Mapping[str, Float64[np.ndarray, "SM D"]]


def few_functions(part: PlacesBasis) -> Cosines:
    """Return the functions that weak factors are looked for among, the same in all groups."""
    places = replace(part.places, groups=(), cells=())
    columns = len(places)
    return Cosines(places, "rbf", (FEW.get(columns, 4),) * columns, 1.5 if columns == 1 else 1.3)


def weak_sums(
    settings: Settings,
    block: Block,
    globals_: Globals,
    extended: Float64[Array, "B L"],
    signs: Float64[Array, "B S"],
) -> WeakSums:
    """Return the sums of a block.

    Parameters
    ----------
    settings, block, globals_ : Settings, Block, Globals
        Of the run; the rows; the fit so far.
    extended : array
        Expected scores, and given columns.
    signs : array
        Of each draw; ones first.
    """
    assert settings.smooth is not None
    part, names = smooth_part(settings.smooth.basis), _views(settings, globals_)
    if part is None or not names:
        return WeakSums(np.zeros(0), np.zeros(0), {})
    places, has_place = place_values(block)
    functions = few_functions(part[0]).functions(places[:, part[1]], np.zeros(block.n_rows, np.int64))
    functions = functions * has_place[:, None]
    signed = (signs[:, : 1 + WEAK_SIGNS, None] * functions[:, None, :]).reshape(block.n_rows, -1)
    signed = signed.astype(settings.dtype)
    features = {}
    for name in names:
        residuals = _residuals(settings, block, globals_, name, extended)
        features[name] = (signed.T @ residuals.astype(settings.dtype)).astype(np.float64)
    return WeakSums(functions.sum(axis=0), pack(functions.T @ functions), features)


def _views(settings: Settings, globals_: Globals) -> list[str]:
    """Return the views that are looked at: none where there is no room for factors, or nothing smooth."""
    assert settings.smooth is not None
    full = globals_.n_factors >= settings.n_factors or globals_.factors.numbers is not None
    if full or not settings.deletes or smooth_part(settings.smooth.basis) is None:
        return []
    return [view.name for view in settings.views if view.is_gaussian]


def _residuals(
    settings: Settings, block: Block, globals_: Globals, name: str, extended: Float64[Array, "B L"]
) -> Float64[Array, "B D"]:
    """Return what the fit leaves of a view, in units of the noise, 0 where entries are missing."""
    view, weights = settings.view(name), globals_.weights[name]
    features = low_noise(settings, view, globals_)
    rows = gfa.dense_rows(gaussian_data(settings, name, block, globals_, features).response)
    values = device.on_host(rows).astype(np.float64)
    observed = np.isfinite(device.on_host(values_of(view, block, dense=True)))
    loadings = np.concatenate([expected_weights(weights)[0], weights.coefficients], axis=1)
    size = np.sqrt(settings.precision(name, weights).mean(axis=1))
    return np.asarray((values - extended @ loadings.T) * observed * size)


def add_weak_factors(settings: Settings, globals_: Globals, sums: WeakSums, n_known: float) -> Globals:
    """Return the globals with a factor more for each component that no signs have, as far as there may be."""
    room, names = settings.n_factors - globals_.n_factors, _views(settings, globals_)
    if not names:
        return globals_
    products = _components(settings, globals_, sums, n_known)
    values, vectors = np.linalg.eigh(np.einsum("smd,snd->smn", products, products))
    above = np.flatnonzero(values[0] > values[1:, -1].max())[::-1][:room]
    cuts = np.cumsum([settings.view(name).n_features for name in names])[:-1]
    for number in above:
        loadings = products[0].T @ vectors[0][:, number] / np.sqrt(n_known)
        parts = dict(zip(names, np.split(loadings, cuts), strict=True))
        globals_ = with_added_factor(settings, globals_, parts)
    return with_fresh_pairs(settings, globals_) if len(above) else globals_


def _components(
    settings: Settings, globals_: Globals, sums: WeakSums, n_known: float
) -> Float64[Array, "S M D"]:
    """Return X of the data and of each draw, without what lies along the loadings of the fit."""
    size = len(sums.functions)
    centre = sums.functions / n_known
    values, vectors = np.linalg.eigh(unpack(sums.products, size) - n_known * np.outer(centre, centre))
    significant = values > LEAST * values[-1]
    inverse = (vectors[:, significant] / np.sqrt(values[significant])) @ vectors[:, significant].T
    stacked = np.concatenate(list(sums.features.values()), axis=1)
    stacked = stacked.reshape(1 + WEAK_SIGNS, size, -1)
    constant = sums.functions[0] / n_known  # the first function is constant: it sums residuals
    centred = stacked - centre[None, :, None] * (stacked[:, :1] / constant)
    components = np.einsum("mn,snd->smd", inverse, centred)
    loadings = np.concatenate(
        [
            expected_weights(globals_.weights[name])[0]
            * np.sqrt(settings.precision(name, globals_.weights[name]).mean(axis=1))[:, None]
            for name in sums.features
        ]
    )
    along = np.linalg.qr(loadings)[0]
    return np.asarray(components - (components @ along) @ along.T)
