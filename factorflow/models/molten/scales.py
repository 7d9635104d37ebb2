"""The scales of the factors: their prior rates or precisions, and what each variable has of a component.

Both models see the factors of a variable through the same few sums (`Totals`). With c_gl > 0, prod_g c_gl =
1, the factors of component l in variable g may be multiplied by c_gl: every product stays what it is, the
prior does not. The best c solves, with n_g seen levels and m_g the sum of E lambda (or E mu^2) over them::

    counts     c_gl   = (a n_g - nu) / (<b_l> m_gl)         nu: sum_g log c_gl = 0
    Gaussian   c_gl^2 = (n_g - nu) / (<tau_l> m_gl)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float64

from factorflow.kernels.special import digamma, gamma_term, gammaln
from factorflow.models.molten.settings import Settings
from factorflow.models.molten.state import Globals, Levels, Totals

__all__ = [
    "best_scales",
    "precision",
    "prior_bound",
    "rescaled",
    "update_scale",
    "update_shape",
    "with_scales",
]

SHAPES = (0.01, 1e3)
"""Bounds of the prior shape a, where it is learned."""

_STEPS = 64


def precision(
    settings: Settings, scale: Float64[np.ndarray, "2 S K"]
) -> tuple[Float64[np.ndarray, "S K"], Float64[np.ndarray, "S K"]]:
    """Return means of b_l (or tau_l) and of its logarithm; of the additive part b_w."""
    choices, k = settings.choices, scale.shape[2]
    if choices.rate is None:
        mean, log = scale[0] / scale[1], digamma(scale[0]) - np.log(scale[1])
    else:
        mean = np.full(scale.shape[1:], choices.rate)
        log = np.log(mean)
    if choices.additive is not None:
        multiplied = settings.multiplied(k)
        mean = np.where(multiplied, mean, choices.additive[1])
        log = np.where(multiplied, log, np.log(choices.additive[1]))
    return mean, log


def shapes(settings: Settings, globals_: Globals) -> Float64[np.ndarray, "S K"]:
    """Return the prior shapes of the columns: a, of the additive part a_w."""
    assert globals_.shape is not None
    multiplied = settings.multiplied(globals_.scale.shape[2])
    out = np.where(multiplied, globals_.shape[:, None], 0.0)
    return (
        out if settings.choices.additive is None else np.where(multiplied, out, settings.choices.additive[0])
    )


def update_scale(settings: Settings, globals_: Globals) -> Globals:
    """Return globals with the best q(b_l): Gamma(e + a D, f + sum E lambda); q(tau_l) by halves."""
    choices, totals = settings.choices, globals_.totals.values()
    if choices.rate is not None:
        return globals_
    each = 0.5 if globals_.shape is None else globals_.shape[:, None]
    half = 0.5 if globals_.shape is None else 1.0
    size, mean = sum(t.size for t in totals), sum(t.mean for t in totals)
    shape = np.broadcast_to(choices.rate_prior[0] + each * size, np.shape(mean))
    return replace(globals_, scale=np.stack([shape, choices.rate_prior[1] + half * mean]))


def update_shape(settings: Settings, globals_: Globals) -> Globals:
    """Return globals with the best a, where it is learned: psi(a) = mean of <log b_l> + E log lambda - r / n.

    n entries are learned; r is the rate of the exponential prior of a (1 / `Choices.shape_mean`).
    """
    if settings.likelihood != "poisson" or settings.choices.shape is not None:
        return globals_
    log = precision(settings, globals_.scale)[1]
    multiplied = settings.multiplied(log.shape[1])
    total, size = np.zeros(len(log)), 0.0
    for t in globals_.totals.values():
        total += (t.size * log + t.log)[:, multiplied].sum(axis=1)
        size += t.size[multiplied].sum()
    average = (total - 1.0 / settings.choices.shape_mean) / max(size, 1.0)
    return replace(globals_, shape=np.clip(_inverse_digamma(average), *SHAPES))


def _inverse_digamma(x: Float64[np.ndarray, " S"]) -> Float64[np.ndarray, " S"]:
    """Return a with psi(a) = x: Newton's method from the start of Minka (2000), appendix C."""
    from scipy.special import zeta

    a = np.where(x >= -2.22, np.exp(x) + 0.5, -1.0 / (x + np.euler_gamma))
    for _ in range(6):
        a = a - (digamma(a) - x) / zeta(2.0, a)  # Hurwitz's: the derivative of psi
    return np.asarray(a)


def prior_bound(settings: Settings, globals_: Globals) -> Float64[np.ndarray, " S"]:
    """Return E[log p - log q] of all factors and of their rates or precisions."""
    choices, k = settings.choices, globals_.scale.shape[2]
    mean, log = precision(settings, globals_.scale)
    totals = globals_.totals.values()
    size, sums = sum(t.size for t in totals), sum(t.mean for t in totals)
    out = np.asarray(sum(t.entropy for t in totals))
    if settings.likelihood == "poisson":
        a = shapes(settings, globals_)
        out = out + size * (a * log - gammaln(a)) + (a - 1.0) * sum(t.log for t in totals) - mean * sums
    else:
        out = out + 0.5 * (size * log - mean * sums)
    if choices.rate is None:
        term = gamma_term(globals_.scale[0], globals_.scale[1], *choices.rate_prior)
        out = out + np.where(settings.multiplied(k), term, 0.0)
    return np.asarray(out.sum(axis=1)) + _shape_term(settings, globals_)


def _shape_term(settings: Settings, globals_: Globals) -> Float64[np.ndarray, " S"] | float:
    """Return the logarithm of the prior density of a, where it is learned."""
    choices = settings.choices
    if globals_.shape is None or choices.shape is not None:
        return 0.0
    return np.asarray(-np.log(choices.shape_mean) - globals_.shape / choices.shape_mean)


def rescaled(settings: Settings, globals_: Globals, any_fixed: bool) -> Globals:
    """Return globals after the scale step, which is left out where a row may miss a variable."""
    if not settings.choices.scale_step or settings.n_variables < 2 or any_fixed:
        return globals_
    k, mean = globals_.scale.shape[2], precision(settings, globals_.scale)[0]
    shape = shapes(settings, globals_) if settings.likelihood == "poisson" else np.ones(mean.shape)
    totals = [globals_.totals[name] for name in settings.names]
    counts = np.stack([shape * t.n_seen for t in totals])
    sums = np.stack([mean * t.seen_mean for t in totals])
    usable = settings.multiplied(k) & (counts > 0).all(axis=0) & (sums > 0).all(axis=0)
    safe = np.where(usable, counts, 1.0), np.where(usable, sums, 1.0)
    c = np.where(usable, best_scales(*safe), 1.0)
    return with_scales(settings, globals_, dict(zip(settings.names, c, strict=True)))


def best_scales(
    counts: Float64[np.ndarray, "G S K"], sums: Float64[np.ndarray, "G S K"]
) -> Float64[np.ndarray, "G S K"]:
    """Return c > 0 with product 1 that maximises sum_g counts_g log c_g - c_g sums_g.

    c_g = (counts_g - nu) / sums_g. In the logarithm x of the gap min_g counts_g - nu the condition on the
    product is rising and convex, and the mean of log sums_g lies above its root, so that Newton's steps go
    down to it.
    """
    above, target = counts - counts.min(axis=0), np.log(sums).sum(axis=0)
    x = target / len(counts)
    for _ in range(_STEPS):
        parts = above + np.exp(x)
        move = (np.log(parts).sum(axis=0) - target) / (np.exp(x) / parts).sum(axis=0)
        x = x - move
        if np.abs(move).max() < 1e-14 * (1.0 + np.abs(x).max()):
            break
    log = np.log(above + np.exp(x)) - np.log(sums)
    return np.asarray(np.exp(log - log.mean(axis=0)))


def with_scales(
    settings: Settings, globals_: Globals, factors: Mapping[str, Float64[np.ndarray, "S K"]]
) -> Globals:
    """Return globals with the factors of seen levels multiplied; of Gaussian ones c is c^2.

    Levels that no row has keep the prior.
    """
    levels, totals = {}, {}
    for name, c in factors.items():
        old, t = globals_.levels[name], globals_.totals[name]
        free = settings.free(name, range(len(old.seen)), c.shape[1])
        there = seen_rows(old.seen, free)[:, None, :]
        levels[name] = _multiplied(settings, old, c, there)
        log = t.n_seen * np.log(c)
        gaussian = settings.likelihood == "gaussian"
        totals[name] = Totals(
            t.size, t.n_seen, t.mean + (c - 1.0) * t.seen_mean, c * t.seen_mean,
            t.log if gaussian else t.log + log, t.entropy + (0.5 * log if gaussian else log),
        )  # fmt: skip
    return replace(globals_, levels=levels, totals=totals)


def _multiplied(
    settings: Settings, old: Levels, c: Float64[np.ndarray, "S K"], there: Bool[np.ndarray, "D 1 K"]
) -> Levels:
    if settings.likelihood == "poisson":
        assert old.log is not None
        return replace(
            old, two=old.two / np.where(there, c, 1.0), log=old.log + np.where(there, np.log(c), 0.0)
        )
    by = np.where(there, c, 1.0)
    return replace(old, one=old.one * np.sqrt(by), two=old.two * by)


def seen_rows(seen: Float64[np.ndarray, " D"], free: Bool[np.ndarray, "D K"]) -> Bool[np.ndarray, "D K"]:
    """Return which learned entries belong to levels that have shown rows."""
    return np.asarray(free & (seen > 0)[:, None])
