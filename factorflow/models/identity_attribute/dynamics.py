"""q(lambda) of the dynamics of attributes: a density on (-1, 1) with three statistics (equations 13, 62-66).

With u = 2 artanh(lambda), A = -(f + h + g) and B = -(f + h - g)::

    log q(u) = (f - h) / 2 - log 2 + (2 eta - 2) log cosh(u / 2) - (A e^u + B e^-u) / 4 - log Z
    E 1/(1 - l^2) = E cosh^2(u/2),  E l/(1 - l^2) = E sinh(u) / 2,  E l^2/(1 - l^2) = E sinh^2(u/2)
    E log(1 - l^2) = -2 E log cosh(u/2)

It has one or two modes, each as narrow as the sequences are long. Both are looked for, and the trapezoid
rule goes over where the density is above e^-50 of its highest value, with exponents as differences from the
mode: a fixed grid of lambda would miss them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

Array = np.ndarray

__all__ = ["Dynamics", "density", "expectations", "is_proper", "quantiles"]

REACH = 60.0
"""Largest |u| that is looked at: 1 - |lambda| is 2e-26 there."""

STEP = 0.1
"""Distance of the points between which modes are looked for; curvature changes over distances of about 1."""

DEPTH = 50.0
"""Where the density is below e^-DEPTH of its highest value it is taken for 0."""

POINTS = 241
"""Of the trapezoid rule, for each mode."""

_U = np.arange(-REACH, REACH + STEP / 2, STEP)
_LOG_COSH = np.abs(_U) / 2 + np.log1p(np.exp(-np.abs(_U))) - np.log(2.0)
_UP, _DOWN = np.exp(_U), np.exp(-_U)


@dataclass(frozen=True)
class Dynamics:
    """Expectations under q(lambda) of each attribute (K of them).

    Parameters
    ----------
    moments : array
        E 1/(1 - l^2), l/(1 - l^2), l^2/(1 - l^2).
    log : array
        E log(1 - l^2).
    log_normaliser : array
        log Z.
    mean, variance : array
        Of lambda.
    """

    moments: Float64[np.ndarray, "3 K"]
    log: Float64[np.ndarray, " K"]
    log_normaliser: Float64[np.ndarray, " K"]
    mean: Float64[np.ndarray, " K"]
    variance: Float64[np.ndarray, " K"]


def is_proper(parameters: Float64[np.ndarray, "4 K"]) -> bool:
    """Return whether densities with these eta, f, g, h can be normalised."""
    eta, f, g, h = parameters
    highest = f + h + np.abs(g)
    return bool(np.all((highest < 0) | ((highest == 0) & (eta < 1))))


def expectations(parameters: Float64[np.ndarray, "4 K"]) -> Dynamics:
    """Return the expectations under densities with given parameters.

    Parameters
    ----------
    parameters : array
        eta, f, g, h of every attribute; see `is_proper`.
    """
    u, weight, log_normaliser = _trapezoid(parameters)
    lam = np.tanh(u / 2)

    def mean(values: Float64[np.ndarray, "J K"]) -> Float64[np.ndarray, " K"]:
        return np.asarray((weight * values).sum(axis=0))

    square = np.sinh(u / 2) ** 2
    moments = np.stack([1.0 + mean(square), mean(0.5 * np.sinh(u)), mean(square)])
    centre = mean(lam)
    log = -2.0 * mean(_log_cosh(u))
    return Dynamics(moments, log, log_normaliser, centre, mean((lam - centre) ** 2))


def quantiles(
    parameters: Float64[np.ndarray, "4 K"], shares: Float64[np.ndarray, " J"]
) -> Float64[np.ndarray, "K J"]:
    """Return quantiles of lambda."""
    u, weight, _ = _trapezoid(parameters)
    out = np.empty((u.shape[1], len(shares)))
    for k in range(u.shape[1]):
        order = np.argsort(u[:, k], kind="stable")
        below = np.cumsum(weight[order, k]) - 0.5 * weight[order, k]
        out[k] = np.tanh(np.interp(shares, below, u[order, k]) / 2)
    return out


def density(
    parameters: Float64[np.ndarray, "4 K"], lam: Float64[np.ndarray, " J"]
) -> Float64[np.ndarray, "K J"]:
    """Return the density of lambda at some values (equation 13)."""
    eta, f, g, h = (row[:, None] for row in parameters)
    rest = 1.0 - lam**2
    log_normaliser = _trapezoid(parameters)[2]
    log = -eta * np.log(rest) + (f + lam * g + lam**2 * h) / rest - log_normaliser[:, None]
    return np.asarray(np.exp(log))


def _log_cosh(u: Float64[np.ndarray, "*n"]) -> Float64[np.ndarray, "*n"]:
    """Return log cosh(u / 2)."""
    size = np.abs(u)
    return np.asarray(size / 2 + np.log1p(np.exp(-size)) - np.log(2.0))


def _trapezoid(
    parameters: Float64[np.ndarray, "4 K"],
) -> tuple[Float64[np.ndarray, "J K"], Float64[np.ndarray, "J K"], Float64[np.ndarray, " K"]]:
    """Return points u, their weights (of sum 1) and log Z of every attribute."""
    eta, f, g, h = parameters
    up, down = np.maximum(-(f + h + g), 0.0), np.maximum(-(f + h - g), 0.0)
    power = 2.0 * eta - 2.0
    n = len(eta)
    coarse = power[:, None] * _LOG_COSH - 0.25 * (up[:, None] * _UP + down[:, None] * _DOWN)
    best = coarse.argmax(axis=1)
    middle = coarse[:, 1:-1]
    peak = np.zeros_like(coarse, dtype=bool)
    peak[:, 1:-1] = (middle > coarse[:, :-2]) & (middle >= coarse[:, 2:])
    peak[np.arange(n), best] = False
    other = np.where(peak, coarse, -np.inf).argmax(axis=1)
    two = peak.any(axis=1)
    mode = np.stack([_polish(_U[best], up, down, power), _polish(_U[other], up, down, power)])
    here = _beyond(mode[0], mode[1] - mode[0], up, down, power)
    swapped = two & (here > 0)  # the highest of the grid need not be the highest
    mode = np.where(swapped, mode[::-1], mode)
    height = np.where(two, -np.abs(here), -np.inf)  # of the second mode, relative to the first
    ends = np.empty((2, 2, n))
    for m in range(2):
        depth = DEPTH + (height if m else 0.0)
        for side, sign in enumerate((-1.0, 1.0)):
            ends[m, side] = mode[m] + sign * _width(mode[m], sign, np.maximum(depth, 0.0), up, down, power)
    counted = two & (height > -DEPTH)
    inside = counted & (ends[0, 0] < ends[1, 1]) & (ends[1, 0] < ends[0, 1])  # one range with two modes
    low, high = np.minimum(ends[0, 0], ends[1, 0]), np.maximum(ends[0, 1], ends[1, 1])
    ends[0, 0], ends[0, 1] = np.where(inside, low, ends[0, 0]), np.where(inside, high, ends[0, 1])
    split = 0.5 * (ends[0, 0] + ends[0, 1])
    ends[1, 0], ends[1, 1] = np.where(inside, split, ends[1, 0]), np.where(inside, ends[0, 1], ends[1, 1])
    ends[0, 1] = np.where(inside, split, ends[0, 1])
    points = np.linspace(0.0, 1.0, POINTS)[:, None]
    steps = np.ones((POINTS, 1))
    steps[[0, -1]] = 0.5
    u, logs, gaps = [], [], []
    for m in range(2):
        at = ends[m, 0] + points * (ends[m, 1] - ends[m, 0])
        u.append(at)
        logs.append(_beyond(mode[0], at - mode[0], up, down, power))
        width = (ends[m, 1] - ends[m, 0]) / (POINTS - 1)
        gaps.append(steps * np.where(counted | (m == 0), width, 0.0))
    weight = np.exp(np.concatenate(logs)) * np.concatenate(gaps)
    total = weight.sum(axis=0)
    at_mode = power * _log_cosh(mode[0]) - 0.25 * (up * np.exp(mode[0]) + down * np.exp(-mode[0]))
    log_normaliser = np.log(total) + at_mode + 0.5 * (f - h) - np.log(2.0)
    return np.concatenate(u), weight / total, log_normaliser


def _beyond(mode: Array, distance: Array, up: Array, down: Array, power: Array) -> Array:
    """Return the log density of u at some distance from a mode, relative to that at the mode."""
    near = np.clip(distance, -1.0, 1.0)
    little = np.log1p(2.0 * np.sinh(near / 4) ** 2 + np.tanh(mode / 2) * np.sinh(near / 2))
    there = np.where(near == distance, little, _log_cosh(mode + distance) - _log_cosh(mode))
    rise = up * np.exp(mode) * np.expm1(distance) + down * np.exp(-mode) * np.expm1(-distance)
    return np.asarray(power * there - 0.25 * rise)


def _polish(u: Array, up: Array, down: Array, power: Array) -> Array:
    """Return the stationary point between the neighbours of grid points, by bisection and Newton's method."""
    low, high = u - STEP, u + STEP
    for _ in range(60):
        grow, shrink = up * np.exp(u), down * np.exp(-u)
        t = np.tanh(u / 2)
        slope = 0.5 * power * t - 0.25 * (grow - shrink)
        bend = 0.25 * power * (1.0 - t * t) - 0.25 * (grow + shrink)
        low, high = np.where(slope > 0, u, low), np.where(slope > 0, high, u)
        with np.errstate(divide="ignore", invalid="ignore"):
            new = u - slope / bend
        safe = (bend < 0) & (new > low) & (new < high)
        new = np.where(safe, new, 0.5 * (low + high))
        if np.all(np.abs(new - u) <= 1e-14 * np.maximum(np.abs(u), 1.0)):
            break
        u = new
    return u


def _width(mode: Array, sign: float, depth: Array, up: Array, down: Array, power: Array) -> Array:
    """Return how far from a mode the density falls to e^-depth of it, or `REACH`."""
    size = np.full_like(mode, 1e-8)
    most = 2.0 * REACH
    for _ in range(40):  # doubled until it is too far
        short = (_beyond(mode, sign * size, up, down, power) > -depth) & (size < most)
        if not short.any():
            break
        size = np.where(short, 2.0 * size, size)
    low, high = 0.5 * size, np.minimum(size, most)
    for _ in range(8):
        middle = 0.5 * (low + high)
        short = _beyond(mode, sign * middle, up, down, power) > -depth
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.asarray(high)
