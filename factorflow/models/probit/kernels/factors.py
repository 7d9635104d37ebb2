"""One sample of a probit factor model: utilities, Gibbs steps of its factors, its share of the statistics.

Scalar code in the notation of `factorflow.models.probit`: for the sample at hand, ``x`` (N,) holds its
entries (1, 0, or -1 where unobserved), ``mean`` (N,) the linear predictor o_n + z_n . f, ``latent`` (N,)
x_n y_n (0 where unobserved), ``loadings`` z transposed, (K, N), ``gram`` (K, K) the products z'z over all
features, ``odds`` (K,) log a / (1 - a), ``factors`` (K,) f = s v. Arrays of sums run over features inside
and factors outside, so that the inner loops become vector code and factors that are off cost nothing.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from factorflow.kernels.compile import options
from factorflow.kernels.scalar.normal import (
    CENTRAL,
    at_least_zero,
    central_quantile,
    fast_exp,
    log_ndtr,
    ndtr,
    ndtri,
    overrelaxed,
    overrelaxed_tail,
    positive_normal,
    positive_tail,
    scaled_tail,
)
from factorflow.kernels.scalar.philox import philox_pair


def fill_uniforms(out, words, seed, row, iteration, place):
    """Fill ``out`` with words 0, 1, ... of a row; it must hold an even number of them."""
    for pair in range((words + 1) // 2):
        first, second = philox_pair(seed, row, np.uint64(pair), iteration, place)
        out[2 * pair] = first
        out[2 * pair + 1] = second


def linear_predictor(loadings, offset, factors, mean):
    """Set mean_n = o_n + sum_k z_nk f_k."""
    n_factors, n_features = loadings.shape
    for n in range(n_features):
        mean[n] = offset[n]
    for k in range(n_factors):
        factor = factors[k]
        if factor != 0.0:
            for n in range(n_features):
                mean[n] += factor * loadings[k, n]


def draw_utilities(x, mean, uniform, latent, chance, quantile, where):
    """Draw the truncated normal utilities y_n | f and return the log-likelihood of the sample.

    Parameters
    ----------
    x, mean, uniform : (N,) arrays
        Entries, linear predictor, one uniform per feature.
    latent : (N,) array
        Set to x_n y_n, y_n >= 0; 0 where unobserved.
    chance : (N,) array
        Set to Phi(x_n mean_n), the predictive probability of the entry; of a 1 where unobserved.
    quantile, where : (N,) float64 and int32 arrays
        Scratch.
    """
    n_features = x.size
    for n in range(n_features):
        sign = -1.0 if x[n] == 0 else 1.0
        signed = sign * mean[n]
        chance[n] = ndtr(signed)
        quantile[n] = uniform[n] * chance[n]
        drawn = at_least_zero(signed - central_quantile(quantile[n] - 0.5))
        latent[n] = sign * drawn if x[n] >= 0 else 0.0
    n_tails = 0
    for n in range(n_features):
        where[n_tails] = n
        n_tails += 1 if x[n] >= 0 and abs(quantile[n] - 0.5) > CENTRAL else 0
    for i in range(n_tails):
        n = where[i]
        sign = -1.0 if x[n] == 0 else 1.0
        latent[n] = sign * positive_tail(sign * mean[n], uniform[n], quantile[n])
    return _log_likelihood(x, mean, chance)


def _log_likelihood(x, mean, chance):
    total, product = 0.0, 1.0
    for n in range(x.size):
        if x[n] >= 0:
            if chance[n] < 1e-100:
                total += log_ndtr(-abs(mean[n]))
            else:
                product *= chance[n]
                if product < 1e-100:
                    total += math.log(product)
                    product = 1.0
    return total + math.log(product)


@options(fastmath={"contract", "reassoc", "nsz"})
def _project(loadings, values, out):
    """Set out_k = sum_n z_nk values_n."""
    n_factors, n_features = loadings.shape
    for k in range(n_factors):
        total = 0.0
        for n in range(n_features):
            total += loadings[k, n] * values[n]
        out[k] = total


def count_observed(x):
    """Return the number of observed entries."""
    total = 0
    for n in range(x.size):
        total += 1 if x[n] >= 0 else 0
    return total


def observed_gram(x, loadings, gram, out):
    """Set out (K, K) to z'z over observed features: the total less the missing, or their sum, the shorter."""
    n_factors, n_features = loadings.shape
    n_observed = count_observed(x)
    from_total = 2 * n_observed >= n_features
    for i in range(n_factors):
        for j in range(n_factors):
            out[i, j] = gram[i, j] if from_total else 0.0
    weight = -1.0 if from_total else 1.0
    if n_observed == n_features:
        return
    for n in range(n_features):
        if (x[n] < 0) == from_total:
            for i in range(n_factors):
                product = weight * loadings[i, n]
                if product != 0.0:
                    for j in range(n_factors):
                        out[i, j] += product * loadings[j, n]


def _forces(x, loadings, offset, gram, latent, factors, scratch):
    """Return sum_n z_nk z_nj and sum_n z_nk (x_n y_n - mean_n) of observed n, the mean with all factors."""
    n_factors, n_features = loadings.shape
    products = scratch[: n_factors * n_factors].reshape(n_factors, n_factors)
    force = scratch[n_factors * n_factors : n_factors * (n_factors + 1)]
    residual = scratch[n_factors * (n_factors + 1) : n_factors * (n_factors + 1) + n_features]
    observed_gram(x, loadings, gram, products)
    for n in range(n_features):
        residual[n] = latent[n] - offset[n] if x[n] >= 0 else 0.0
    _project(loadings, residual, force)
    for k in range(n_factors):
        if factors[k] != 0.0:
            for j in range(n_factors):
                force[j] -= products[k, j] * factors[k]
    return products, force


def slab_factors(x, loadings, offset, gram, odds, positive, latent, uniform, factors, scratch):
    """Gibbs update of (s_k, v_k) given y, k by k, with v_k integrated out when s_k is drawn.

    With lambda = 1 + sum_n z_nk^2 and l = sum_n z_nk (x_n y_n - mean_n without k), over observed n::

        log p(s_k = 1) / p(s_k = 0) = log odds_k - log(lambda) / 2 + l^2 / (2 lambda)
                                      [+ log 2 Phi(l / sqrt lambda)]
        v_k | s_k = 1 ~ N(l / lambda, 1 / lambda)    [truncated to v_k >= 0]

    Where s_k stays 1, v_k is overrelaxed: drawn on the other side of its mean. s_k does not depend on v_k, so
    that the pair is left invariant.

    Parameters
    ----------
    positive : bool
        Whether the slab is truncated to v >= 0 (the terms in brackets).
    uniform : (2 K,) array
    factors : (K,) array
        f = s v, changed in place.
    scratch : (K (K + 1) + N,) array
    """
    n_factors = len(factors)
    products, force = _forces(x, loadings, offset, gram, latent, factors, scratch)
    for k in range(n_factors):
        precision = 1.0 + products[k, k]
        root = math.sqrt(precision)
        standard = (force[k] + products[k, k] * factors[k]) / root
        ratio = odds[k] * fast_exp(0.5 * standard * standard) / root
        if positive:
            ratio *= 2.0 * ndtr(standard)
        drawn = 0.0
        if uniform[2 * k] * (1.0 + ratio) < ratio:
            drawn = _slab_value(standard, factors[k] * root, positive, uniform[2 * k + 1]) / root
        drawn = float(np.float32(drawn))
        change = drawn - factors[k]
        if change != 0.0:
            for j in range(n_factors):
                force[j] -= products[k, j] * change
            factors[k] = drawn


def _slab_value(mean, before, positive, u):
    """Draw from N(mean, 1) [on the positive], opposite to the value before unless that is 0 (off)."""
    if positive:
        return positive_normal(mean, u if before == 0.0 else overrelaxed_tail(mean, before, u))
    noise = ndtri(u)
    return mean + (noise if before == 0.0 else overrelaxed(before - mean, noise))


def binary_factors(x, loadings, offset, gram, odds, latent, uniform, factors, scratch):
    """Gibbs update of s_k given y, k by k: log odds_k + l - z_k'z_k / 2, with l as in `slab_factors`."""
    n_factors = len(factors)
    products, force = _forces(x, loadings, offset, gram, latent, factors, scratch)
    for k in range(n_factors):
        ratio = odds[k] * fast_exp(force[k] + products[k, k] * (factors[k] - 0.5))
        drawn = 1.0 if uniform[2 * k] * (1.0 + ratio) < ratio else 0.0
        change = drawn - factors[k]
        if change != 0.0:
            for j in range(n_factors):
                force[j] -= products[k, j] * change
            factors[k] = drawn


@options(fastmath={"contract", "reassoc", "nsz"}, vectors_first=True)
def _likelihood_ratios(x, mean, step, column, out):
    """Fill out with factors of the likelihood at mean + step z_k, and return the rest of its logarithm.

    Phi(m) is itself for m > 0, and a scaled tail times exp(-m^2 / 2) below: the exponents are added.
    """
    exponent = 0.0
    for n in range(x.size):
        value = mean[n] + step * column[n]
        signed = -value if x[n] == 0 else value
        size = abs(signed)
        tail = scaled_tail(size)
        half_square = 0.5 * size * size
        upper = 1.0 - tail * fast_exp(-half_square)
        seen = x[n] >= 0
        out[n] = (upper if signed > 0.0 else tail) if seen else 1.0
        exponent += half_square if seen and signed <= 0.0 else 0.0
    return -exponent


def _log_product(values):
    total, product = 0.0, 1.0
    for n in range(values.size):
        product *= values[n]
        if product < 1e-200:
            total += math.log(product)
            product = 1.0
    return total + math.log(product)


def collapsed_factors(x, loadings, odds, mean, uniform, factors, scratch):
    """Gibbs update of s_k with the utilities integrated out, k by k; keeps ``mean`` up to date.

    log p(s_k = 1) / p(s_k = 0) = log odds_k + sum_n log Phi(x_n m_n(1)) - log Phi(x_n m_n(0)).
    """
    n_factors, n_features = loadings.shape
    chance = scratch[:n_features]
    current = _likelihood_ratios(x, mean, 0.0, mean, chance)
    current += _log_product(chance)
    for k in range(n_factors):
        step = 1.0 - 2.0 * factors[k]
        other = _likelihood_ratios(x, mean, step, loadings[k], chance)
        other += _log_product(chance)
        gain = other - current + step * math.log(odds[k])
        if uniform[2 * k] * (1.0 + fast_exp(-gain)) < 1.0:
            factors[k] += step
            current = other
            for n in range(n_features):
                mean[n] += step * loadings[k, n]


def add_statistics(x, latent, factors, outer, total_gram, missing_gram, cross, squares):
    """Add a sample to the statistics of the loadings, Q_n = total_gram - missing_gram_n.

    The observed or the unobserved features are visited, whichever are fewer.

    Parameters
    ----------
    outer : (P,) array
        Scratch for f f', packed by rows of the upper triangle, P = (K + 1) (K + 2) / 2, f_{K + 1} = 1.
    total_gram : (P,) array
        Sum of f f' over the samples with most features observed.
    missing_gram : (N, P) array
        Sum of f f' over those of them where feature n is unobserved, less that over other samples where
        it is observed.
    cross : (K + 1, N) array
        j_n = sum of x_n y_n f.
    squares : (N,) array
        Sum of y_n^2.
    """
    n_factors, n_features = factors.size, x.size
    position = 0
    for i in range(n_factors + 1):
        left = factors[i] if i < n_factors else 1.0
        for j in range(i, n_factors + 1):
            outer[position] = left * (factors[j] if j < n_factors else 1.0)
            position += 1
    n_observed = count_observed(x)
    mostly = 2 * n_observed >= n_features
    if mostly:
        for p in range(outer.size):
            total_gram[p] += outer[p]
    for n in range(n_features):
        squares[n] += latent[n] * latent[n]
        cross[n_factors, n] += latent[n]
    for k in range(n_factors):
        factor = factors[k]
        if factor != 0.0:
            for n in range(n_features):
                cross[k, n] += factor * latent[n]
    if n_observed == n_features:
        return
    weight = 1.0 if mostly else -1.0
    for n in range(n_features):
        if (x[n] < 0) == mostly:
            for p in range(outer.size):
                missing_gram[n, p] += weight * outer[p]
