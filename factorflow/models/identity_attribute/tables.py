"""Tables of the globals that all blocks read, made once a task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import is_not
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy.special import digamma

from factorflow.core.trees import arrays
from factorflow.models.contract import Gather
from factorflow.models.identity_attribute.settings import Settings
from factorflow.models.identity_attribute.state import Globals

FIRST, LAST = 1, 2
"""Bits of the place of a frame (`Settings.place`)."""


@dataclass(frozen=True)
class Tables:
    """Terms of the globals that a frame update uses.

    Parameters
    ----------
    location, scale : array
        Of the values, views side by side.
    shift, pull : array
        m, and E W' rho m.
    weights, weighted : array
        E W and E rho W.
    products : array or None
        rho E w_p w_p' of every feature, (P Q Q) columns; None where nothing is missing.
    own : array
        E W_p' rho W_p of each identity.
    between : array
        E W' rho E W between identities; 0 within one.
    precision : array
        Of a_tp by its neighbours alone, by place in the sequence (28, 30, 32).
    inverse : array
        (S1) of complete frames by place.
    half_on, half_off : array
        log|S1| / 2 and log|S0| / 2 by place.
    alone, offset : array
        S0, and (log|S1| - log|S0|) / 2, by place.
    hold : array
        What E a of the frame before and of the one behind is multiplied with by place (29): 0 where none is.
    odds : array
        Log odds of b by the neighbours, by place: c_0 + c_1 b_before + c_2 b_behind (24).
    start : array
        Maps values to the x = a b that a run starts from.
    log_transition : array
        E log T, [from, to].
    moments : array
        E 1/(1 - l^2), l/(1 - l^2), l^2/(1 - l^2).
    edges, boundary : Gather
        As in `Globals`.
    """

    location: Float64[np.ndarray, " D"]
    scale: Float64[np.ndarray, " D"]
    shift: Float64[np.ndarray, " D"]
    pull: Float64[np.ndarray, " K"]
    weights: Float64[np.ndarray, "D K"]
    weighted: Float64[np.ndarray, "D K"]
    products: Float64[np.ndarray, "D PQQ"] | None
    own: Float64[np.ndarray, "P Q Q"]
    between: Float64[np.ndarray, "K K"]
    precision: Float64[np.ndarray, "4 K"]
    inverse: Float64[np.ndarray, "4 P Q Q"]
    half_on: Float64[np.ndarray, "4 P"]
    half_off: Float64[np.ndarray, "4 P"]
    alone: Float64[np.ndarray, "4 K"]
    offset: Float64[np.ndarray, "4 P"]
    hold: Float64[np.ndarray, "4 2 K"]
    odds: Float64[np.ndarray, "4 3"]
    start: Float64[np.ndarray, "D K"]
    log_transition: Float64[np.ndarray, "2 2"]
    moments: Float64[np.ndarray, "3 K"]
    unit: Float64[np.ndarray, " K"]
    edges: Gather
    boundary: Gather


def expected_log(transition: Float64[np.ndarray, "2 2"]) -> Float64[np.ndarray, "2 2"]:
    """Return E log T under Dirichlet distributions of its rows."""
    return np.asarray(digamma(transition) - digamma(transition.sum(axis=1, keepdims=True)))


def compute_tables(settings: Settings, globals_: Globals) -> Tables:
    """Return the tables of some globals.

    An iteration of chains has many sweeps, between which only ``edges`` and ``boundary`` change: the
    last tables are cached, with the arrays that they depend on.
    """
    global _last
    g = globals_
    inputs = [settings, *arrays((g.fixed, g.weights, g.transition, g.expected, g.unit))]
    made_of, last_tables = _last
    if last_tables is None or len(made_of) != len(inputs) or any(map(is_not, made_of, inputs)):
        last_tables = _compute_tables(settings, globals_)
        _last = inputs, last_tables
    return replace(last_tables, edges=g.edges, boundary=g.boundary)


_last: tuple[list[Any], Tables | None] = [], None


def _compute_tables(settings: Settings, globals_: Globals) -> Tables:
    from factorflow.models.identity_attribute.kernels.small import invert_all

    c = settings.hyper
    p, q, k = c.n_identities, c.n_attributes, c.n_columns
    by_view = globals_.weights
    weights = settings.concatenate_views({v: w.mean for v, w in by_view.items()})
    variance = settings.concatenate_views({v: w.variance for v, w in by_view.items()})
    noise = settings.concatenate_views({v: w.precision for v, w in by_view.items()})
    weighted = noise[:, None] * weights
    shift = settings.concatenate_views({v: w.shift for v, w in by_view.items()})
    gram = weights.T @ weighted
    at = np.arange(p)
    between = gram.reshape(p, q, p, q).copy()
    own = between[at, :, at, :]
    between[at, :, at, :] = 0.0
    own[:, np.arange(q), np.arange(q)] += (noise @ variance).reshape(p, q)
    precision = _precision(globals_.expected.moments, c.variance)
    inverse, log_det = np.empty((4, p, q, q)), np.empty((4, p))
    invert_all(precision, np.ascontiguousarray(np.broadcast_to(own, inverse.shape)), inverse, log_det)
    half_on, half_off = -0.5 * log_det, -0.5 * np.log(precision).reshape(4, p, q).sum(axis=2)
    log_t = expected_log(globals_.transition)
    start = np.linalg.solve(gram + np.eye(k), weighted.T).T
    return Tables(
        location=settings.concatenate_views({v: f.location for v, f in globals_.fixed.items()}),
        scale=settings.concatenate_views({v: f.scale for v, f in globals_.fixed.items()}),
        shift=shift,
        pull=shift @ weighted,
        weights=weights,
        weighted=weighted,
        products=None if settings.complete else _products(noise, weights, variance, q),
        own=own,
        between=between.reshape(k, k),
        precision=precision,
        inverse=inverse,
        half_on=half_on,
        half_off=half_off,
        alone=1.0 / precision,
        offset=half_on - half_off,
        hold=_ENDS[:, :, None] * globals_.expected.moments[1],
        odds=_odds(log_t, c.start_odds),
        start=np.ascontiguousarray(start),
        log_transition=log_t,
        moments=globals_.expected.moments,
        unit=globals_.unit,
        edges=globals_.edges,
        boundary=globals_.boundary,
    )


_ENDS = np.array([[float(not place & FIRST), float(not place & LAST)] for place in range(4)])
"""Whether a frame is before one, and one behind it, by place."""


def _odds(log_t: Float64[np.ndarray, "2 2"], start: float) -> Float64[np.ndarray, "4 3"]:
    """Return log odds of b by its neighbours, linear in what they are, by place."""
    before, behind = _ENDS.T
    ahead, back = log_t[:, 1] - log_t[:, 0], log_t[1] - log_t[0]  # by b before, and by b behind
    alone = np.where(before > 0.0, ahead[0], start) + behind * back[0]
    return np.stack([alone, before * (ahead[1] - ahead[0]), behind * (back[1] - back[0])], axis=1)


def _precision(moments: Float64[np.ndarray, "3 K"], variance: float) -> Float64[np.ndarray, "4 K"]:
    """Return the precision of attributes by their neighbours, by place."""
    out = np.empty((4, moments.shape[1]))
    for place in range(4):
        out[place] = 1.0 / variance if place & FIRST else moments[0]
        if not place & LAST:
            out[place] += moments[2]
    return out


def _products(
    noise: Float64[np.ndarray, " D"],
    weights: Float64[np.ndarray, "D K"],
    variance: Float64[np.ndarray, "D K"],
    q: int,
) -> Float64[np.ndarray, "D PQQ"]:
    """Return rho E w_p w_p' of every feature."""
    d, p = len(noise), weights.shape[1] // q
    by_identity = weights.reshape(d, p, q)
    out = by_identity[:, :, :, None] * by_identity[:, :, None, :]
    out[:, :, np.arange(q), np.arange(q)] += variance.reshape(d, p, q)
    return np.asarray(noise[:, None] * out.reshape(d, p * q * q))
