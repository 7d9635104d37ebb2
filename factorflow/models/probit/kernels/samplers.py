"""One sweep of one sample of a probit factor model: the step that CPU and CUDA drivers share."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from factorflow.kernels.scalar.normal import at_least_zero, ndtri, positive_normal
from factorflow.kernels.sites import MODELS
from factorflow.models.probit.kernels.factors import (
    add_statistics,
    binary_factors,
    collapsed_factors,
    count_observed,
    draw_utilities,
    fill_uniforms,
    linear_predictor,
    slab_factors,
)
from factorflow.models.probit.kernels.trajectory import binary_trajectory, slab_trajectory

BINARY, SPIKE_SLAB, NONNEGATIVE = 0, 1, 2
GIBBS, COLLAPSED, HMC = 0, 1, 2
UTILITY_SITE, FACTOR_SITE = MODELS[1], MODELS[2]
"""Noise: one word per feature; and per sample two words per factor, or 4 K + N for a trajectory."""
STOPPED, TRAJECTORIES = 4, 5
"""Positions in ``counts`` after those of `factorflow.models.probit.kernels.trajectory`; `N_COUNTS` in all."""
N_COUNTS = 6


def scratch_size(n_features, n_factors):
    """Return how many float64 numbers `sample_step` needs to work in."""
    noise = 2 * (n_features + n_factors) + 4 * n_factors + 4
    slab = n_factors * (n_factors + n_features + 4) + 5 * (n_features + n_factors)
    return noise + 3 * n_features + slab + 2


def sample_step(x, loadings, offset, gram, odds, kind, sampler, travel, limit, seed, row, iteration, chain,
                factors, latent, chance, scratch, where, counts):  # fmt: skip
    """Move the factors of one sample, draw its utilities, and return its part of the log joint density.

    The density is that of the entries and factors at which the utilities were drawn (before the move, or
    after it when y is integrated out), without sum_k log(1 - a_k): log p(x | f) + log p(s, v | a).

    Parameters
    ----------
    x : (N,) int8 array
    loadings, offset, gram, odds
        Globals, as in `factorflow.models.probit.kernels.factors`.
    travel, limit
        Travel time and events allowed of a trajectory.
    factors : (K,) float64 array
        f, changed in place.
    latent, chance : (N,) arrays
        Set to x_n y_n and to Phi(x_n mean_n), as by `draw_utilities`.
    scratch, where : (`scratch_size`,) float64 and (N,) int32 arrays
    counts : (6,) array
        Diagnostics, added to.
    """
    n_factors, n_features = loadings.shape
    noise = scratch[: n_features + 2]
    choice = scratch[n_features + 2 : 2 * n_features + 4 * n_factors + 4]
    mean = scratch[2 * n_features + 4 * n_factors + 4 : 3 * n_features + 4 * n_factors + 4]
    quantile = scratch[3 * n_features + 4 * n_factors + 4 : 4 * n_features + 4 * n_factors + 4]
    rest = scratch[4 * n_features + 4 * n_factors + 4 :]
    words = 4 * n_factors + n_features if sampler == HMC else 2 * n_factors
    shift = chain << np.uint64(16)
    fill_uniforms(noise, n_features, seed, row, iteration, np.uint64(UTILITY_SITE) | shift)
    fill_uniforms(choice, words, seed, row, iteration, np.uint64(FACTOR_SITE) | shift)
    linear_predictor(loadings, offset, factors, mean)
    if sampler == COLLAPSED:
        collapsed_factors(x, loadings, odds, mean, choice, factors, rest)
    density = _log_prior(factors, odds, kind)
    density += draw_utilities(x, mean, noise, latent, chance, quantile, where)
    if sampler == GIBBS:
        if kind == BINARY:
            binary_factors(x, loadings, offset, gram, odds, latent, choice, factors, rest)
        else:
            slab_factors(x, loadings, offset, gram, odds, kind == NONNEGATIVE, latent, choice, factors, rest)
    if sampler == HMC:
        if kind == BINARY:
            done = _binary_flight(x, loadings, odds, travel, limit, choice, mean, latent, factors, rest,
                                  counts)  # fmt: skip
        else:
            done = _slab_flight(x, loadings, offset, odds, kind == NONNEGATIVE, travel, limit, choice, latent,
                                factors, rest, counts)  # fmt: skip
        counts[TRAJECTORIES] += 1.0
        counts[STOPPED] += 1.0 - done
    return density


def _log_prior(factors, odds, kind):
    """Return log p(s, v | a) less sum_k log(1 - a_k); v_k counts where s_k = 1."""
    total = 0.0
    constant = -0.5 * math.log(2.0 * math.pi) + (math.log(2.0) if kind == NONNEGATIVE else 0.0)
    for k in range(factors.size):
        if factors[k] != 0.0:
            total += math.log(odds[k])
            if kind != BINARY:
                total += constant - 0.5 * factors[k] * factors[k]
    return total


def _observed_slope(x, loadings, slope):
    """Copy x_n z_nk of the observed features to slope (K, M), M the number of them."""
    n_factors = loadings.shape[0]
    m = 0
    for n in range(x.size):
        if x[n] >= 0:
            sign = -1.0 if x[n] == 0 else 1.0
            for k in range(n_factors):
                slope[k, m] = sign * loadings[k, n]
            m += 1


def _start_switches(uniform, n_factors, switch, energy):
    """Draw when d_k first meets its wall, uniform on (0, pi), and its energy there, exponential."""
    for k in range(n_factors):
        switch[k] = math.pi * uniform[2 * k]
        energy[k] = -math.log(uniform[2 * k + 1])


def _binary_flight(x, loadings, odds, travel, limit, uniform, mean, latent, factors, rest, counts):
    n_factors = loadings.shape[0]
    m = count_observed(x)
    slope = rest[: n_factors * m].reshape(n_factors, m)
    at = n_factors * m
    switch, energy = rest[at : at + n_factors], rest[at + n_factors : at + 2 * n_factors]
    at += 2 * n_factors
    displacement, velocity = rest[at : at + m], rest[at + m : at + 2 * m]
    centre = rest[at + 2 * m : at + 3 * m]
    spare = rest[at + 3 * m : at + 4 * m + n_factors]
    _observed_slope(x, loadings, slope)
    _start_switches(uniform, n_factors, switch, energy)
    i = 0
    for n in range(x.size):
        if x[n] >= 0:
            sign = -1.0 if x[n] == 0 else 1.0
            centre[i] = sign * mean[n]
            displacement[i] = sign * latent[n] - centre[i]
            velocity[i] = ndtri(uniform[4 * n_factors + n])
            i += 1
    done = binary_trajectory(slope, odds, travel, limit, switch, energy, factors, displacement, velocity,
                             centre, spare, counts)  # fmt: skip
    if done == 1:
        _set_latent(x, displacement, centre, latent)
    return done


def _set_latent(x, displacement, centre, latent):
    i = 0
    for n in range(x.size):
        if x[n] >= 0:
            y = at_least_zero(displacement[i] + centre[i])
            latent[n] = -y if x[n] == 0 else y
            i += 1


def _slab_flight(x, loadings, offset, odds, positive, travel, limit, uniform, latent, factors, rest, counts):
    n_factors = loadings.shape[0]
    m = count_observed(x)
    size = m + n_factors
    slope = rest[: n_factors * m].reshape(n_factors, m)
    at = n_factors * m
    products = rest[at : at + n_factors * n_factors].reshape(n_factors, n_factors)
    at += n_factors * n_factors
    switch, energy = rest[at : at + n_factors], rest[at + n_factors : at + 2 * n_factors]
    on = rest[at + 2 * n_factors : at + 3 * n_factors]
    at += 3 * n_factors
    displacement, velocity = rest[at : at + size], rest[at + size : at + 2 * size]
    centre, impulse = rest[at + 2 * size : at + 3 * size], rest[at + 3 * size : at + 4 * size]
    angle = rest[at + 4 * size : at + 5 * size]
    _observed_slope(x, loadings, slope)
    _start_switches(uniform, n_factors, switch, energy)
    for i in range(3 * n_factors if positive else 2 * n_factors, 4 * n_factors + x.size):
        uniform[i] = ndtri(uniform[i])  # at one place: every call of it is compiled
    for k in range(n_factors):
        for j in range(n_factors):
            products[k, j] = 0.0
            for i in range(m):
                products[k, j] += slope[k, i] * slope[j, i]
        on[k] = 1.0 if factors[k] != 0.0 else 0.0
        idle = positive_normal(0.0, uniform[2 * n_factors + k]) if positive else uniform[2 * n_factors + k]
        displacement[m + k] = factors[k] if on[k] == 1.0 else idle
        velocity[m + k] = uniform[3 * n_factors + k]
        centre[m + k] = 0.0
    i = 0
    for n in range(x.size):
        if x[n] >= 0:
            sign = -1.0 if x[n] == 0 else 1.0
            centre[i] = sign * offset[n]
            displacement[i] = sign * (latent[n] - offset[n])
            velocity[i] = uniform[4 * n_factors + n]
            for k in range(n_factors):
                velocity[i] += on[k] * slope[k, i] * velocity[m + k]
            i += 1
    done = slab_trajectory(slope, products, odds, positive, travel, limit, switch, energy, on, displacement,
                           velocity, centre, impulse, angle, counts)  # fmt: skip
    if done == 1:
        _set_latent(x, displacement, centre, latent)
        for k in range(n_factors):
            v = displacement[m + k]
            factors[k] = float(np.float32(abs(v) if positive else v)) if on[k] == 1.0 else 0.0
    return done


def moves_not_taken(kind: int, sampler: int) -> frozenset[Callable[..., Any]]:
    """Return the moves of factors that `sample_step` never calls for a kind and a sampler."""
    gibbs: Any = binary_factors if kind == BINARY else slab_factors
    flight: Any = _binary_flight if kind == BINARY else _slab_flight
    moves: set[Any] = {collapsed_factors, binary_factors, slab_factors, _binary_flight, _slab_flight}
    return frozenset(moves - {{GIBBS: gibbs, COLLAPSED: collapsed_factors, HMC: flight}[sampler]})


def sweep_rows(x, start, loadings, offset, gram, odds, kind, sampler, travel, limit, seed, iteration, chain,
                factors, chances, total_gram, missing_gram, cross, squares, counts):  # fmt: skip
    """Loop `sample_step` and `add_statistics` over the rows of a block; returns the density."""
    n_rows, n_features = x.shape
    n_factors = loadings.shape[0]
    scratch = np.empty(scratch_size(n_features, n_factors))
    where = np.empty(n_features, np.int32)
    latent, chance = np.empty(n_features), np.empty(n_features)
    state, outer = np.empty(n_factors), np.empty(total_gram.size)
    density = 0.0
    for t in range(n_rows):
        for k in range(n_factors):
            state[k] = factors[t, k]
        density += sample_step(
            x[t], loadings, offset, gram, odds, kind, sampler, travel, limit, seed, np.uint64(start + t),
            iteration, chain, state, latent, chance, scratch, where, counts,
        )  # fmt: skip
        for k in range(n_factors):
            factors[t, k] = state[k]
        if chances.shape[0] == n_rows:
            for n in range(n_features):
                chances[t, n] = chance[n]
        add_statistics(x[t], latent, state, outer, total_gram, missing_gram, cross, squares)
    return density
