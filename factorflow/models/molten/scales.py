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

from factorflow.kernels.compile import read_only_view
from factorflow.kernels.special import gamma_term
from factorflow.models.molten.settings import Settings
from factorflow.models.molten.state import Globals, Levels, Totals

SHAPES = (0.01, 1e3)
"""Bounds of the prior shape a, where it is learned."""


def precision(settings: Settings, scale: Float64[np.ndarray, "2 S K"]) -> Float64[np.ndarray, "2 S K"]:
    """Return means of b_l (or tau_l) and of its logarithm; of the additive part b_w."""
    from factorflow.models.molten.kernels import priors

    hyper, k = settings.hyper, scale.shape[2]
    out = np.empty((2, *scale.shape[1:]))
    if hyper.rate is None:
        priors.expected_logs(read_only_view(scale[0]), read_only_view(scale[1]), out)
    else:
        out[0], out[1] = hyper.rate, np.log(hyper.rate)
    if hyper.additive is not None:
        columns = ~settings.is_component(k)
        out[0, :, columns], out[1, :, columns] = hyper.additive[1], np.log(hyper.additive[1])
    return out


def prior_shapes(settings: Settings, globals_: Globals) -> Float64[np.ndarray, "S K"]:
    """Return the prior shapes of the columns: a, of the additive part a_w."""
    assert globals_.shape is not None
    _, n_starts, k = globals_.scale.shape
    out = np.empty((n_starts, k))
    out[:] = globals_.shape[:, None]
    if settings.hyper.additive is not None:
        out[:, ~settings.is_component(k)] = settings.hyper.additive[0]
    return out


def _scale_prior(settings: Settings, globals_: Globals) -> tuple[float, float]:
    """Return the Gamma prior of b_l; of tau_l in the unit of the factors of measurements."""
    shape, rate = settings.hyper.rate_prior
    if settings.likelihood == "poisson":
        return shape, rate
    return shape, rate * globals_.moments.unit ** (1.0 / settings.n_variables)


def _sum_totals(globals_: Globals) -> tuple[Float64[np.ndarray, " K"], Float64[np.ndarray, "4 S K"]]:
    """Return `Totals.size` and `Totals.sums` of all variables together."""
    totals = list(globals_.totals.values())
    size, sums = totals[0].size.copy(), totals[0].sums.copy()
    for t in totals[1:]:
        size += t.size
        sums += t.sums
    return size, sums


def update_scale(settings: Settings, globals_: Globals) -> Globals:
    """Return globals with the best q(b_l): Gamma(e + a D, f + sum E lambda); q(tau_l) by halves."""
    from factorflow.models.molten.kernels import priors

    hyper, scale = settings.hyper, np.empty(globals_.scale.shape)
    if hyper.rate is not None:
        return globals_
    counts = globals_.shape is not None
    each = globals_.shape if counts else np.full(globals_.scale.shape[1], 0.5)
    by, times = read_only_view(np.asarray(each)), 1.0 if counts else 0.5
    priors.write_scale(*_sum_totals(globals_), by, times, *_scale_prior(settings, globals_), scale)
    return replace(globals_, scale=scale)


def update_shape(settings: Settings, globals_: Globals) -> Globals:
    """Return globals with the best a, where it is learned: psi(a) = mean of <log b_l> + E log lambda - r / n.

    n entries are learned; r is the rate of the exponential prior of a (1 / `Hyperparameters.shape_mean`).
    """
    if settings.likelihood != "poisson" or settings.hyper.shape is not None:
        return globals_
    from factorflow.models.molten.kernels import priors

    log = precision(settings, globals_.scale)[1]
    multiplied = settings.is_component(log.shape[1])
    total, size = np.zeros(len(log)), 0.0
    for t in globals_.totals.values():
        total += (t.size * log + t.log)[:, multiplied].sum(axis=1)
        size += t.size[multiplied].sum()
    average = (total - 1.0 / settings.hyper.shape_mean) / max(size, 1.0)
    shape = np.empty(len(log))
    priors.inverse_digamma(average, shape)
    return replace(globals_, shape=np.clip(shape, *SHAPES))


def prior_bound(settings: Settings, globals_: Globals) -> Float64[np.ndarray, " S"]:
    """Return E[log p - log q] of all factors and of their rates or precisions."""
    from factorflow.models.molten.kernels import priors

    hyper, k = settings.hyper, globals_.scale.shape[2]
    rate, (size, sums) = precision(settings, globals_.scale), _sum_totals(globals_)
    if settings.likelihood == "poisson":
        learned = settings.is_component(k) & (hyper.rate is None)
        out, prior = (
            np.zeros(rate.shape[1]),
            (prior_shapes(settings, globals_), rate, globals_.scale, learned),
        )
        priors.add_prior_terms(size, sums, *prior, *hyper.rate_prior, out)
        return out + _shape_term(settings, globals_)
    out = np.asarray(sums[3] + 0.5 * (size * rate[1] - rate[0] * sums[0]))
    if hyper.rate is None:
        out = out + gamma_term(globals_.scale[0], globals_.scale[1], *_scale_prior(settings, globals_))
    return np.asarray(out.sum(axis=1))


def _shape_term(settings: Settings, globals_: Globals) -> Float64[np.ndarray, " S"] | float:
    """Return the logarithm of the prior density of a, where it is learned."""
    hyper = settings.hyper
    if globals_.shape is None or hyper.shape is not None:
        return 0.0
    return np.asarray(-np.log(hyper.shape_mean) - globals_.shape / hyper.shape_mean)


def apply_scale_step(settings: Settings, globals_: Globals, any_fixed: bool) -> Globals:
    """Return globals after the scale step, which is left out where a row may miss a variable."""
    if not settings.hyper.scale_step or settings.n_variables < 2 or any_fixed:
        return globals_
    k, mean = globals_.scale.shape[2], precision(settings, globals_.scale)[0]
    shape = prior_shapes(settings, globals_) if settings.likelihood == "poisson" else np.ones(mean.shape)
    totals = [globals_.totals[name] for name in settings.names]
    counts = np.stack([shape * t.n_seen for t in totals])
    sums = np.stack([mean * t.seen_mean for t in totals])
    usable = settings.is_component(k) & (counts > 0).all(axis=0) & (sums > 0).all(axis=0)
    safe = np.where(usable, counts, 1.0), np.where(usable, sums, 1.0)
    c = np.where(usable, best_scales(*safe), 1.0)
    return multiply_factors(settings, globals_, dict(zip(settings.names, c, strict=True)))


def best_scales(
    counts: Float64[np.ndarray, "G S K"], sums: Float64[np.ndarray, "G S K"]
) -> Float64[np.ndarray, "G S K"]:
    """Return c > 0 with product 1 that maximises sum_g counts_g log c_g - c_g sums_g.

    c_g = (counts_g - nu) / sums_g. In the logarithm x of the gap min_g counts_g - nu the condition on the
    product is rising and convex, and the mean of log sums_g lies above its root, so that Newton's steps go
    down to it.
    """
    from factorflow.models.molten.kernels import priors

    out = np.empty(counts.shape)
    priors.best_scales(counts, sums, out)
    return out


def multiply_factors(
    settings: Settings, globals_: Globals, factors: Mapping[str, Float64[np.ndarray, "S K"]]
) -> Globals:
    """Return globals with the factors of seen levels multiplied; of Gaussian ones c is c^2.

    Levels that no row has keep the prior.
    """
    levels, totals = {}, {}
    for name, c in factors.items():
        old, t = globals_.levels[name], globals_.totals[name]
        free = settings.free(name, range(len(old.seen)), c.shape[1])
        levels[name] = _multiply_levels(settings, old, c, free)
        log = t.n_seen * np.log(c)
        gaussian = settings.likelihood == "gaussian"
        gain = (c - 1.0) * t.seen_mean
        change = np.stack([gain, gain, *((0.0 * log, 0.5 * log) if gaussian else (log, log))])
        totals[name] = Totals(t.size, t.n_seen, t.sums + change)
    return replace(globals_, levels=levels, totals=totals)


def _multiply_levels(
    settings: Settings, old: Levels, c: Float64[np.ndarray, "S K"], free: Bool[np.ndarray, "D K"]
) -> Levels:
    if settings.likelihood == "poisson":
        from factorflow.models.molten.kernels import gammas

        assert old.log is not None
        two, log = np.empty((2, *old.two.shape))
        inputs = tuple(map(read_only_view, (old.two, old.log, old.seen)))
        gammas.multiply_levels(*inputs, free, c, two, log)
        return replace(old, two=two, log=log)
    factor = np.where(select_observed(old.seen, free)[:, None, :], c, 1.0)
    return replace(old, one=old.one * np.sqrt(factor), two=old.two * factor)


def select_observed(
    observed: Float64[np.ndarray, " D"], free: Bool[np.ndarray, "D K"]
) -> Bool[np.ndarray, "D K"]:
    """Return which learned entries belong to levels that have shown rows."""
    return np.asarray(free & (observed > 0)[:, None])
