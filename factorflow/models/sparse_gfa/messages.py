"""Tangents of expected log-likelihoods: what entries that are not Gaussian are to the updates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Integer, Shaped

from factorflow.kernels import device
from factorflow.likelihoods.base import LEAST_CURVATURE, REACH, Message
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.entries import entries_of
from factorflow.models.sparse_gfa.kernels import products as gfa
from factorflow.models.sparse_gfa.kernels.arrays import contiguous
from factorflow.models.sparse_gfa.settings import ViewSettings
from factorflow.models.sparse_gfa.state import Fixed

TILE = 32768
"""Entries whose messages are taken together: what they need stays in a core's cache."""


@dataclass(frozen=True)
class Pseudo:
    """A view of a block as the updates see it: Gaussian pseudo-data.

    Parameters
    ----------
    response : array
        Weight within the statistics times y^ (less the reference), 0 where missing.
    weight : array or None
        Weight where it varies by entry; None: 1 where observed.
    gaps : Gaps or None
        Missing entries where the weight is 1.
    low_noise : array
        Features whose products are summed in double precision.
    free : float
        Part of the bound, or of the tangent, that does not depend on x.
    phi : array or None
        See `FeatureStats`.
    """

    response: Float[Array, "B D"]
    weight: Float[Array, "B D"] | None
    gaps: gfa.Gaps | None
    low_noise: Integer[Array, " J"]
    free: float = 0.0
    phi: Float64[Array, "D P"] | None = None


def message_data(
    view: ViewSettings,
    fixed: Fixed,
    values: Shaped[Array, "B D"],
    mean: Float[Array, "B D"],
    variance: Float[Array, "B D"],
    phi: Float64[Array, "P D"],
    low_noise: Integer[Array, " J"],
    aux: Shaped[Array, "B D"] | None = None,
    level: Float64[Array, " B"] | None = None,
) -> Pseudo:
    """Return the pseudo-data of entries: tangents of their expected log-likelihood at x ~ N(mean, variance).

    ``mean`` and ``variance`` are overwritten: what is returned takes their memory.
    ``level`` is added to x in the likelihood alone: logarithms of size factors. With value e, slope g and
    curvature u of the message (`factorflow.likelihoods`) a tangent has precision u and linear term u m + g;
    what is free of x in it is e - g m + u (v - m^2) / 2.
    """
    density, xp = view.density, device.namespace(mean)
    phi = device.move_beside(phi.astype(mean.dtype), mean)
    value, remainder = 0.0, 0.0
    derivatives: Array = 0.0
    rows_at_once = max(1, TILE // view.n_features)
    for begin in range(0, len(values), rows_at_once):
        rows = slice(begin, begin + rows_at_once)
        m, v, y = mean[rows], variance[rows], entries_of(view, fixed, values[rows], mean.dtype)
        a = None if aux is None else aux[rows].astype(mean.dtype)
        at = m
        if level is not None:
            at = m + device.move_beside(level[rows, None].astype(m.dtype), m)
        if not density.n_phi:
            message = (density.bound if view.bounded else density.terms)(y, at, v, phi, a)
        else:
            message, *terms = density.terms_and_phi(y, at, v, phi, a, bounded=view.bounded)
            observed = y == y
            factor, of_phi = (part if observed.all() else xp.where(observed, part, 0.0) for part in terms)
            value += float(factor.sum(dtype=np.float64))
            derivatives = derivatives + device.on_host(of_phi.sum(axis=1, dtype=np.float64))
        written = xp.empty_like(m), xp.empty_like(m)
        e, r = _write_tangents(view, y, message, (m, v), written)
        variance[rows], mean[rows] = written
        value, remainder = value + e, remainder + r
    sums = np.ascontiguousarray(derivatives.T) if density.n_phi else None
    return Pseudo(mean, variance, None, low_noise, value + 0.5 * remainder, sums)


def _write_tangents(
    view: ViewSettings,
    y: Float[Array, "b D"],
    message: Message,
    moments: tuple[Float[Array, "b D"], Float[Array, "b D"]],
    out: tuple[Float[Array, "b D"], Float[Array, "b D"]],
) -> tuple[float, float]:
    """Write u and u m + g of some entries; return sum e and sum (u v - m (u m + 2 g)).

    A loop does what `Likelihood.within_reach` does on the host: it takes a tenth of the time.
    """
    density, (m, v), (weight, response) = view.density, moments, out
    if device.on_device(m):
        e, g, u = density.within_reach(message, y, bounded=view.bounded)
        weight[:] = u
        response[:] = u * m + g
        remainder = (u * v - m * (response + g)).sum(dtype=np.float64)
        return float(e.sum(dtype=np.float64)), float(remainder)
    from factorflow.models.sparse_gfa.kernels import loops

    limits = np.array([1.0 / REACH if density.limited and not view.bounded else 0.0, LEAST_CURVATURE])
    parts = (
        part if part.shape == m.shape else np.broadcast_to(part, m.shape) for part in (y, *message, m, v)
    )
    rows = [contiguous(part, m.dtype).reshape(-1) for part in parts]
    rows += [contiguous(limits, m.dtype), weight.reshape(-1), response.reshape(-1)]
    value, remainder = loops.tangents(*rows)
    return value, remainder
