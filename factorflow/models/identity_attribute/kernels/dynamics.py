"""q(lambda) of the dynamics, one attribute after the other: modes, how far they reach, the trapezoid rule.

With u = 2 artanh(lambda), ``power`` = 2 eta - 2, ``up`` = -(f + h + g) and ``down`` = -(f + h - g), log q(u)
is ``power`` log cosh(u / 2) - (``up`` e^u + ``down`` e^-u) / 4 and a constant. Sums are not reordered here.
Importing this module imports numba.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import math
from typing import Any

from factorflow.kernels.compile import INNER
from factorflow.kernels.vectors import compile_loop

Array = Any


def _inner(function: Any) -> Any:
    return compile_loop(function, fastmath={"contract"}, **INNER)


@_inner
def _log_cosh(u):
    """Return log cosh(u / 2)."""
    size = abs(u)
    return size / 2 + math.log1p(math.exp(-size)) - 0.6931471805599453


@_inner
def _relative_log_density(mode, distance, up, down, power):
    """Return the log density of u at some distance from a mode, relative to that at the mode.

    ``up`` and ``down`` are those at the mode, ``up`` e^mode and ``down`` e^-mode.
    """
    grown = math.expm1(distance)
    if abs(distance) <= 1.0:
        half = grown / (2.0 * math.sqrt(1.0 + grown))  # sinh(distance / 2)
        square = half * half
        slow = square / (1.0 + math.sqrt(1.0 + square))  # cosh(distance / 2) - 1
        there = math.log1p(slow + math.tanh(mode / 2) * half)
    else:
        there = _log_cosh(mode + distance) - _log_cosh(mode)
    return power * there - 0.25 * (up * grown + down * math.expm1(-distance))


@_inner
def _polish(u, step, up, down, power):
    """Return the stationary point within a step of a point, by bisection and Newton's method."""
    low, high = u - step, u + step
    for _ in range(60):
        grow, shrink = up * math.exp(u), down * math.exp(-u)
        t = math.tanh(u / 2)
        slope = 0.5 * power * t - 0.25 * (grow - shrink)
        bend = 0.25 * power * (1.0 - t * t) - 0.25 * (grow + shrink)
        if slope > 0:
            low = u
        else:
            high = u
        new = u - slope / bend if bend < 0 else low
        if not low < new < high:
            new = 0.5 * (low + high)
        if abs(new - u) <= 1e-14 * max(abs(u), 1.0):
            break
        u = new
    return u


@_inner
def _width(mode, sign, depth, most, up, down, power):
    """Return how far from a mode the density falls to e^-depth of it, at most ``most``."""
    bend = 0.5 * power / (1.0 + math.cosh(mode)) - 0.25 * (up + down)
    size = 1e-8
    if bend < 0.0:  # half of what it would be for a normal density, or less
        size = max(size, math.sqrt(-0.5 * depth / bend))
        while size > 1e-8 and (
            size >= most or _relative_log_density(mode, sign * size, up, down, power) <= -depth
        ):
            size *= 0.5
    for _ in range(40):  # doubled until it is too far
        if size >= most or _relative_log_density(mode, sign * size, up, down, power) <= -depth:
            break
        size *= 2.0
    low, high = 0.5 * size, min(size, most)
    for _ in range(8):
        middle = 0.5 * (low + high)
        if _relative_log_density(mode, sign * middle, up, down, power) > -depth:
            low = middle
        else:
            high = middle
    return high


@_inner
def _two_highest(
    power: float, up: float, down: float, log_cosh: Array, grow: Array, shrink: Array
) -> tuple[int, int]:
    """Return the highest point of the grid, and the highest of its other peaks or -1."""
    best, other = 0, -1
    highest, second = -math.inf, -math.inf
    before, here = -math.inf, -math.inf
    for j in range(len(grow) + 1):
        after = -math.inf
        if j < len(grow):
            after = power * log_cosh[j] - 0.25 * (up * grow[j] + down * shrink[j])
        if j > 0 and here > before and here >= after:
            if here > highest:
                if best > 0 and best < len(grow) - 1:
                    other, second = best, highest
                best, highest = j - 1, here
            elif here > second and 1 < j < len(grow):
                other, second = j - 1, here
        before, here = here, after
    return best, other


@compile_loop
def trapezoid(power, up, down, grid, log_cosh, grow, shrink, depth, narrow, few, u, weight, log_normaliser):
    """Write points and weights of every attribute.

    Parameters
    ----------
    power, up, down : (K,) arrays
        Of each attribute.
    grid, log_cosh, grow, shrink : (G,) arrays
        Points between which modes are looked for, evenly spaced; log cosh(u / 2), e^u and e^-u there.
    depth : float
        Where the density is below e^-depth of its highest value it is taken for 0.
    narrow, few : float, int
        Ranges up to this width have so many points that count.
    u, weight : (K, 2, J) arrays
        Written: points for each of two modes, and their weights, of sum 1; those of a mode that does not
        count are 0.
    log_normaliser : (K,) array
        Written: log of the integral, without the constant.
    """
    step, most = grid[1] - grid[0], 2.0 * grid[-1]
    for k in range(len(power)):
        a, b, c = power[k], up[k], down[k]
        best, other = _two_highest(a, b, c, log_cosh, grow, shrink)
        first, counted = _polish(grid[best], step, b, c, a), False
        second, height = first, 0.0
        if other >= 0:
            second = _polish(grid[other], step, b, c, a)
            height = _relative_log_density(
                first, second - first, b * math.exp(first), c * math.exp(-first), a
            )
            if height > 0.0:  # the highest of the grid need not be the highest
                first, second, height = second, first, -height
            counted = height > -depth
        at_up, at_down = b * math.exp(first), c * math.exp(-first)
        low = first - _width(first, -1.0, depth, most, at_up, at_down, a)
        high = first + _width(first, 1.0, depth, most, at_up, at_down, a)
        low_2, high_2 = 0.0, 0.0
        if counted:
            there_up, there_down = b * math.exp(second), c * math.exp(-second)
            low_2 = second - _width(second, -1.0, depth + height, most, there_up, there_down, a)
            high_2 = second + _width(second, 1.0, depth + height, most, there_up, there_down, a)
            if low < high_2 and low_2 < high:  # one range with two modes
                low, high_2 = min(low, low_2), max(high, high_2)
                low_2 = 0.5 * (low + high_2)
                high = low_2
        total = 0.0
        for m in range(2):
            begin, end = (low, high) if m == 0 else (low_2, high_2)
            n_points = few if end - begin <= narrow else u.shape[2]
            width = (end - begin) / (n_points - 1)
            for j in range(u.shape[2]):
                u[k, m, j], weight[k, m, j] = high, 0.0
                if j < n_points and (m == 0 or counted):
                    at = begin + j * width
                    gap = 0.5 * width if j in (0, n_points - 1) else width
                    u[k, m, j] = at
                    weight[k, m, j] = gap * math.exp(
                        _relative_log_density(first, at - first, at_up, at_down, a)
                    )
                    total += weight[k, m, j]
        for m in range(2):
            for j in range(u.shape[2]):
                weight[k, m, j] /= total
        log_normaliser[k] = math.log(total) + a * _log_cosh(first) - 0.25 * (at_up + at_down)


@compile_loop
def averages(u, weight, out):
    """Write sums over weighted points: E sinh^2(u/2), sinh(u)/2, -2 log cosh(u/2), lambda, its variance.

    Parameters
    ----------
    u, weight : (K, J) arrays
        Points and their weights.
    out : (5, K) array
        Written.
    """
    for k in range(len(u)):
        square, product, log, centre, spread = 0.0, 0.0, 0.0, 0.0, 0.0
        for j in range(u.shape[1]):
            w = weight[k, j]
            if w > 0.0:
                s = math.sinh(u[k, j] / 2)
                root = math.sqrt(1.0 + s * s)
                square += w * s * s
                product += w * s * root
                log -= w * math.log1p(s * s)
                centre += w * (s / root)
        for j in range(u.shape[1]):
            w = weight[k, j]
            if w > 0.0:
                off = math.tanh(u[k, j] / 2) - centre
                spread += w * off * off
        out[0, k], out[1, k], out[2, k], out[3, k], out[4, k] = square, product, log, centre, spread
