"""Expectations of the kernel under q(X), in closed form, and what follows of z.

With Lambda = diag l^2 and |x|_A^2 = x' A^-1 x,

Psi1_im = E k(X_i, Z_m) = s2 |Lambda|^(1/2) |Lambda + Phi_i|^(-1/2) exp(-1/2 |phi_i - Z_m|^2_(Lambda + Phi))
Psi2_imm' = E k(X_i, Z_m) k(X_i, Z_m') = s2^2 exp(-1/4 |Z_m - Z_m'|^2_Lambda)
|Lambda|^(1/2) |Lambda + 2 Phi_i|^(-1/2) exp(-|phi_i - (Z_m + Z_m') / 2|^2_(Lambda + 2 Phi))
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from factorflow.models.gplvm_cmf.settings import Settings
from factorflow.models.gplvm_cmf.state import Arrays

PIECE = 1 << 21
"""Numbers of Psi2 that are made at a time."""


def expected_rbf(
    values: Arrays, phi: Float64[np.ndarray, "B R"], spread: Float64[np.ndarray, "B R R"]
) -> Float64[np.ndarray, "B M"]:
    """Return Psi1 of the kernel of some parameters; where the covariance is 0, the kernel itself."""
    apart, log_ratio = _whiten(values, phi, spread)
    scale = values["log_variance"] + 0.5 * log_ratio
    return np.asarray(np.exp(scale[:, None] - 0.5 * (apart**2).sum(2)))


def expected_products(
    values: Arrays, phi: Float64[np.ndarray, "B R"], spread: Float64[np.ndarray, "B R R"]
) -> Float64[np.ndarray, "B M M"]:
    """Return Psi2 of each row."""
    square, z = np.exp(2.0 * values["log_length"]), values["inducing"]
    between = ((z[:, None] - z[None]) ** 2 / (4.0 * square)).sum(2)
    apart, log_ratio = _whiten(values, phi, 2.0 * spread)
    own = (apart**2).sum(2)
    far = 0.25 * (own[:, :, None] + own[:, None, :] + 2.0 * apart @ apart.swapaxes(1, 2))
    scale = 2.0 * values["log_variance"] + 0.5 * log_ratio
    return np.asarray(np.exp(scale[:, None, None] - between - far))


def _whiten(
    values: Arrays, phi: Float64[np.ndarray, "B R"], spread: Float64[np.ndarray, "B R R"]
) -> tuple[Float64[np.ndarray, "B M R"], Float64[np.ndarray, " B"]]:
    """Return phi - Z in units of Lambda + a covariance, and log |Lambda| - log |Lambda + the covariance|."""
    square = np.exp(2.0 * values["log_length"])
    factor = np.linalg.cholesky(np.diag(square) + spread)
    apart = np.linalg.solve(factor, (phi[:, None, :] - values["inducing"]).swapaxes(1, 2))
    log_det = 2.0 * np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(1)
    return apart.swapaxes(1, 2), np.log(square).sum() - log_det


def inducing_factor(settings: Settings, values: Arrays) -> Float64[np.ndarray, "M M"]:
    """Return L, the Cholesky factor of K_uu with its jitter."""
    z = values["inducing"]
    gram = expected_rbf(values, z, np.zeros((*z.shape, z.shape[1])))
    return np.linalg.cholesky(gram + settings.jitter * np.exp(values["log_variance"]) * np.eye(len(z)))


def _expectations_in_chunks(
    settings: Settings, values: Arrays, phi: Float64[np.ndarray, "B R"], spread: Float64[np.ndarray, "B R R"]
) -> list[tuple[Float64[np.ndarray, "_ M"], Float64[np.ndarray, "_ M M"]]]:
    """Return E a and E a a' of the rows, some at a time."""
    from scipy.linalg import solve_triangular

    factor = inducing_factor(settings, values)
    inverse = solve_triangular(factor, np.eye(len(factor)), lower=True)
    rows = max(1, PIECE // (2 * len(factor) ** 2))
    out = []
    for i in range(0, len(phi), rows):
        piece = slice(i, i + rows)
        a = expected_rbf(values, phi[piece], spread[piece]) @ inverse.T
        out.append((a, inverse @ expected_products(values, phi[piece], spread[piece]) @ inverse.T))
    return out


def moments_of_z(
    settings: Settings, values: Arrays, phi: Float64[np.ndarray, "B R"], spread: Float64[np.ndarray, "B R R"]
) -> tuple[Float64[np.ndarray, "B Q"], Float64[np.ndarray, "B Q"]]:
    """Return mean and variance of z of rows under the coupled q, all else integrated out."""
    means, variances = [], []
    for a, aa in _expectations_in_chunks(settings, values, phi, spread):
        mean = a @ values["w"]
        left = np.exp(values["log_variance"]) - np.trace(aa, axis1=1, axis2=2)
        second = np.einsum("bmn,mnq->bq", aa, _second_moment(settings, values))
        means.append(mean)
        variances.append(left[:, None] + np.exp(values["log_noise"]) + second - mean**2)
    return np.concatenate(means), np.maximum(np.concatenate(variances), 1e-12)


def _second_moment(settings: Settings, values: Arrays) -> Float64[np.ndarray, "M M Q"]:
    """Return E w_q w_q'."""
    w = values["w"]
    outer = w[:, None, :] * w[None, :, :]
    if not settings.draws_u:
        return np.asarray(outer)
    if settings.q_u == "prior":
        return np.asarray(outer + np.eye(len(w))[:, :, None])
    raw = values["w_factor"]
    factor = np.tril(raw, -1) + np.eye(len(w)) * np.exp(np.diagonal(raw, axis1=1, axis2=2))[:, None, :]
    return np.asarray(outer + (factor @ factor.swapaxes(1, 2)).transpose(1, 2, 0))
