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

REACH = 60.0
"""Largest |u| that is looked at: 1 - |lambda| is 2e-26 there."""

STEP = 0.1
"""Distance of the points between which modes are looked for; curvature changes over distances of about 1."""

DEPTH = 50.0
"""A density below e^-DEPTH of its highest value is taken for 0."""

POINTS = 241
"""Of the trapezoid rule, for each mode."""

FEW_POINTS = 49
"""Of them are enough where a range is narrow: 2.5 of a normal density, nearly, to a standard deviation."""

NARROW = 3.0
"""Widest range of which few points are taken; log cosh(u/2) is analytic up to a distance of pi."""

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
    from factorflow.models.identity_attribute.kernels.dynamics import averages

    u, weight, log_normaliser = _trapezoid(parameters, FEW_POINTS)
    out = np.empty((5, u.shape[1]))
    averages(u.T, weight.T, out)
    square, product, log, mean, variance = out
    return Dynamics(np.stack([1.0 + square, product, square]), log, log_normaliser, mean, variance)


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


def temper_dynamics(
    dynamics: Float64[np.ndarray, "4 K"], missing: Float64[np.ndarray, " K"]
) -> Float64[np.ndarray, "4 K"]:
    """Return the parameters of q(lambda)^(1 - r): of its mode, and as wide as the data allow (`missing`)."""
    return np.asarray(dynamics * (1.0 - missing))


def density(
    parameters: Float64[np.ndarray, "4 K"], lam: Float64[np.ndarray, " J"]
) -> Float64[np.ndarray, "K J"]:
    """Return the density of lambda at some values (equation 13)."""
    eta, f, g, h = (row[:, None] for row in parameters)
    rest = 1.0 - lam**2
    log_normaliser = _trapezoid(parameters)[2]
    log = -eta * np.log(rest) + (f + lam * g + lam**2 * h) / rest - log_normaliser[:, None]
    return np.asarray(np.exp(log))


def _trapezoid(
    parameters: Float64[np.ndarray, "4 K"], narrow_points: int = POINTS
) -> tuple[Float64[np.ndarray, "J K"], Float64[np.ndarray, "J K"], Float64[np.ndarray, " K"]]:
    """Return points u, their weights (of sum 1) and log Z of every attribute."""
    from factorflow.models.identity_attribute.kernels.dynamics import trapezoid

    eta, f, g, h = parameters
    n = len(eta)
    u, weight, log_normaliser = np.empty((n, 2, POINTS)), np.empty((n, 2, POINTS)), np.empty(n)
    up, down = np.maximum(-(f + h + g), 0.0), np.maximum(-(f + h - g), 0.0)
    power = 2.0 * eta - 2.0
    trapezoid(
        power, up, down, _U, _LOG_COSH, _UP, _DOWN, DEPTH, NARROW, narrow_points, u, weight, log_normaliser
    )
    constant = 0.5 * (f - h) - np.log(2.0)
    return u.reshape(n, -1).T, weight.reshape(n, -1).T, log_normaliser + constant
