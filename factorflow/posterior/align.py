"""Alignment of factors across draws and chains: their labels, and their signs or flips.

A sampler's factors carry no names: permuting them leaves the posterior unchanged, and so does, by the
model's `Symmetry`,

- ``"sign"``: f_k -> -f_k, z_k -> -z_k (spike-and-slab factors);
- ``"flip"``: s_k -> 1 - s_k, z_k -> -z_k, o -> o + z_k, a_k -> 1 - a_k (binary factors);
- ``"none"``: nothing else (nonnegative factors).

Every draw is matched to a reference, the mean of the aligned draws, by the assignment that brings its
loadings nearest in the sense of least squares; a few rounds settle reference and assignments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from factorflow.core.block import Array

SIGNED = ("scores", "scores_draws", "smooth_scores", "score_coefficients", "course")
"""Variables beside the loadings that take the sign of their factor."""

Symmetry = Literal["none", "sign", "flip"]

ROUNDS = 4


@dataclass(frozen=True)
class Alignment:
    """The permutation and signs of the factors of every draw.

    Parameters
    ----------
    order : array
        Aligned factor j of a draw is its factor ``order[..., j]``.
    sign : array
        1, or -1 where the aligned factor is turned over.
    """

    order: Int64[np.ndarray, "C M K"]
    sign: Float64[np.ndarray, "C M K"]

    def of_chains(self) -> Alignment:
        """Return the renaming of most draws of each chain, (C, 1, K): for means over a chain."""
        order, sign = self.order[:, :1].copy(), self.sign[:, :1].copy()
        for c in range(self.order.shape[0]):
            both = np.concatenate([self.order[c], self.sign[c]], axis=1)
            _, first, count = np.unique(both, axis=0, return_index=True, return_counts=True)
            usual = first[np.argmax(count)]
            order[c, 0], sign[c, 0] = self.order[c, usual], self.sign[c, usual]
        return Alignment(order, sign)


def find_alignment(loadings: Shaped[Array, "C M D K"], symmetry: Symmetry) -> Alignment:
    """Return the renaming of the factors of every draw that makes its loadings alike.

    Parameters
    ----------
    loadings : array
        Draws of chains.
    symmetry : {"none", "sign", "flip"}
        Whether a factor may be turned over.
    """
    values = np.asarray(loadings, dtype=np.float64)
    n_chains, n_draws, _, n_factors = values.shape
    flat = values.reshape(n_chains * n_draws, values.shape[2], n_factors)
    order = np.tile(np.arange(n_factors), (len(flat), 1))
    sign = np.ones((len(flat), n_factors))
    reference = flat[n_draws - 1] if len(flat) else np.zeros(values.shape[2:])
    for _ in range(ROUNDS):
        before = order.copy(), sign.copy()
        for i, draw in enumerate(flat):
            order[i], sign[i] = _match(reference, draw, turn=symmetry != "none")
        reference = _reorder_factors(flat, order[:, None, :], sign[:, None, :]).mean(axis=0)
        if np.array_equal(order, before[0]) and np.array_equal(sign, before[1]):
            break
    shape = (n_chains, n_draws, n_factors)
    return Alignment(order.reshape(shape), sign.reshape(shape))


def _match(
    reference: Float64[np.ndarray, "D K"], draw: Float64[np.ndarray, "D K"], *, turn: bool
) -> tuple[Int64[np.ndarray, " K"], Float64[np.ndarray, " K"]]:
    """Return order and sign that minimise the squared distance of a draw from the reference."""
    from scipy.optimize import linear_sum_assignment

    product = reference.T @ draw
    _, order = linear_sum_assignment(np.abs(product) if turn else product, maximize=True)
    chosen = product[np.arange(len(order)), order]
    return order, np.where(chosen < 0.0, -1.0, 1.0) if turn else np.ones(len(order))


def align_draws(
    draws: Mapping[str, Shaped[Array, "C ..."]],
    dims: Mapping[str, tuple[str, ...]],
    symmetry: Symmetry,
    alignment: Alignment | None = None,
) -> dict[str, Float64[np.ndarray, "C ..."]]:
    """Return the draws of all variables with their factors aligned.

    Parameters
    ----------
    draws : mapping of str to (C, M, ...) or (C, ...) array
        Draws, ``loadings_<view>`` among them; variables without ``draw`` among their dims are means over a
        chain, renamed as most draws of the chain are.
    dims : mapping of str to tuple of str
        Dimensions of each variable, ``chain`` (and ``draw``) first.
    alignment : Alignment, optional
        What `find_alignment` gives of the loadings of all views side by side, where it is known.

    Returns
    -------
    dict of str to array
        In the same shapes. Loadings and scores are turned with their factor; of a "flip", probabilities
        (``activity``, ``scores``) become 1 - p and ``intercept_<view>`` takes up the turned loadings.
    """
    if alignment is None:
        loadings = [np.asarray(draws[name]) for name in draws if name.startswith("loadings_")]
        alignment = find_alignment(np.concatenate(loadings, axis=2), symmetry)
    chains = alignment.of_chains()
    out = {}
    for name, values in draws.items():
        rule = alignment if "draw" in dims[name] else chains
        array = np.asarray(values, dtype=np.float64)
        if "draw" not in dims[name]:
            array = array[:, None]
        if "factor" in dims[name]:
            axis = dims[name].index("factor") + ("draw" not in dims[name])
            array = np.moveaxis(array, axis, -1)
            array = np.moveaxis(_rename_factors(name, array, rule, symmetry), -1, axis)
        elif name.startswith("intercept_") and symmetry == "flip":
            turned = np.asarray(draws["loadings_" + name.removeprefix("intercept_")])
            lost = np.take_along_axis(turned, _widen(rule.order, turned.ndim), axis=-1)
            array = array + (lost * _widen(rule.sign < 0.0, turned.ndim)).sum(axis=-1)
        out[name] = array if "draw" in dims[name] else array[:, 0]
    return out


def _reorder_factors(
    values: Float64[np.ndarray, "... K"],
    order: Int64[np.ndarray, "... K"],
    sign: Float64[np.ndarray, "... K"],
) -> Float64[np.ndarray, "... K"]:
    """Return values in another order of the last axis, and with signs; quickly where nothing changes."""
    moved = (order != np.arange(order.shape[-1])).any()
    return np.asarray((np.take_along_axis(values, order, axis=-1) if moved else values) * sign)


def _widen(values: Shaped[np.ndarray, "C M K"], ndim: int) -> Shaped[np.ndarray, "C M ... K"]:
    """Return values with axes of length one in front of the last, ``ndim`` axes in all."""
    return values.reshape(*values.shape[:2], *([1] * (ndim - 3)), values.shape[2])


def _rename_factors(
    name: str, array: Float64[np.ndarray, "*dims"], rule: Alignment, symmetry: Symmetry
) -> Float64[np.ndarray, "*dims"]:
    """Return a variable with its factors in order, turned over where they are to be."""
    order, sign = _widen(rule.order, array.ndim), _widen(rule.sign, array.ndim)
    if name.startswith("loadings_") or (symmetry == "sign" and name in SIGNED):
        return _reorder_factors(array, order, sign)
    ordered = _reorder_factors(array, order, np.ones_like(sign))
    if symmetry == "flip" and name.startswith(("scores", "activity")):
        return np.where(sign < 0.0, 1.0 - ordered, ordered)
    return ordered
