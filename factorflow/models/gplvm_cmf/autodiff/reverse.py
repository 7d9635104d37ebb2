"""The auxiliary model r, which guesses X and w back from z, and what it adds to the bound: term C.

Everything in units of q: X_i = phi_i + F_i e_i, Phi_i = F_i F_i', e_i ~ N(0, I) under q.
r(X_i | w, z_i), "laplace": the posterior of e_i under the map x -> a(x)' w linearised at x = phi_i + F_i e,

    P_i = I + sum_q F_i' J_iq' J_iq F_i / t_iq,   t_iq = v(x) + s_q^2
    mean P_i^-1 sum_q F_i' J_iq' (z_iq - a(x)' w_q + J_iq F_i e) / t_iq

at e = 0 first, then again at that mean: a step of Gauss and Newton nearer to the mode.

"mlp": that mean + o_1, precision L diag(exp(-o_2)) L' with P_i = L L', and a network o of phi_i and of the
residuals z_iq - a(phi_i)' w_q over their standard deviations, which begins at 0: what linearising lacks.

r(w_q | z): precision S_q^-1 + G_q, natural mean S_q^-1 kappa_q + h_q, with sums over all rows

    G_q = sum_i a(phi_i) a(phi_i)' / c_iq,   h_q = sum_i a(phi_i) z_iq / c_iq
    c_iq = t_iq + J(kappa)_iq Phi_i J(kappa)_iq'

Joint: E log r - log q under the joint q(w, X, z), which for the best r is their mutual information with z.
Product: -KL[q(w) q(X) || r] at a z that knows nothing of them, as in equation (6): never above 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float64
from torch import Tensor

from factorflow.models.gplvm_cmf.autodiff.coupling import Draw, factor_of_inputs, triangular
from factorflow.models.gplvm_cmf.autodiff.kernel import Inducing, between, features, slopes
from factorflow.models.gplvm_cmf.settings import Settings

LINEARISATIONS = 2
"""Times that the map is linearised to guess X: at phi, then where that guess falls. With a small s_q^2 the z
of a row tells X to a small part of its spread, and what neglects how the map bends over that spread costs its
square over s_q^2: linearised at phi alone, maps that have to bend stayed straight."""


def linearise(
    settings: Settings,
    values: Mapping[str, Tensor],
    process: Inducing,
    phi: Float64[Tensor, "B R"],
    w: Float64[Tensor, "M Q"],
) -> tuple[Float64[Tensor, "B M"], Float64[Tensor, "B Q"], Float64[Tensor, "B Q R"]]:
    """Return a(phi), t and the Jacobians J at phi."""
    k = between(process, phi)
    a, v = features(process, k)
    return a, v[:, None] + values["log_noise"].exp(), slopes(process, phi, k, w)


def guess_inputs(
    settings: Settings,
    values: Mapping[str, Tensor],
    process: Inducing,
    local: Mapping[str, Tensor],
    noise: Mapping[str, Tensor],
    draw: Draw,
    w: Float64[Tensor, "M Q"],
) -> Float64[Tensor, " B"]:
    """Return what r(X_i | w, z_i) adds to the bound of each row."""
    mean, factor = _guess_of_inputs(settings, values, process, local, draw.z, w)
    log_det, e = 2.0 * torch.diagonal(factor, dim1=-2, dim2=-1).log().sum(1), noise["inputs"]
    if settings.bound == "joint":
        off = (factor.mT @ (e - mean)[:, :, None])[:, :, 0]
        return 0.5 * (log_det + (e**2).sum(1) - (off**2).sum(1))
    off = (factor.mT @ mean[:, :, None])[:, :, 0]
    return 0.5 * (log_det + e.shape[1] - (factor**2).sum((1, 2)) - (off**2).sum(1))


def _guess_of_inputs(
    settings: Settings,
    values: Mapping[str, Tensor],
    process: Inducing,
    local: Mapping[str, Tensor],
    z: Float64[Tensor, "B Q"],
    w: Float64[Tensor, "M Q"],
) -> tuple[Float64[Tensor, "B R"], Float64[Tensor, "B R R"]]:
    """Return mean and Cholesky factor of the precision of r(e_i | w, z_i), X_i = phi_i + F_i e_i."""
    phi, own = local["inputs"], factor_of_inputs(local)
    eye = torch.eye(phi.shape[1], dtype=phi.dtype, device=phi.device)
    mean = torch.zeros_like(phi)
    for count in range(LINEARISATIONS):
        at = phi + (own @ mean[:, :, None])[:, :, 0]
        a, t, jacobian = linearise(settings, values, process, at, w)
        jacobian, off = jacobian @ own, z - a @ w
        if count == 0:
            # z - a'w over its sd, not z: rows are known to a small part of the range of z
            encoded = torch.cat([off / (t + (jacobian**2).sum(2)).sqrt(), phi], 1)
        weighted, off = jacobian / t[:, :, None], off + (jacobian @ mean[:, :, None])[:, :, 0]
        factor = torch.linalg.cholesky(jacobian.mT @ weighted + eye)
        mean = torch.cholesky_solve(weighted.mT @ off[:, :, None], factor)[:, :, 0]
    if settings.r_x == "laplace":
        return mean, factor
    hidden = torch.tanh(encoded @ values["reverse hidden"] + values["reverse hidden_bias"])
    shift, log_ratio = (hidden @ values["reverse out"] + values["reverse out_bias"]).chunk(2, 1)
    return mean + shift, factor * (-0.5 * log_ratio).exp()[:, None, :]


def sums_for_inducing(
    settings: Settings,
    values: Mapping[str, Tensor],
    process: Inducing,
    local: Mapping[str, Tensor],
    z: Float64[Tensor, "B Q"],
) -> tuple[Float64[Tensor, "Q M M"], Float64[Tensor, "Q M"]]:
    """Return what some rows add to G and h."""
    a, c, jacobian = linearise(settings, values, process, local["inputs"], values["w"])
    if settings.learns_inputs:
        c = c + ((jacobian @ factor_of_inputs(local)) ** 2).sum(2)
    gram = torch.stack([a.T @ (a / c[:, q, None]) for q in range(c.shape[1])])
    return gram, ((z / c).T @ a)


def guess_inducing(
    settings: Settings,
    values: Mapping[str, Tensor],
    alpha: Float64[Tensor, "M Q"],
    gram: Float64[Tensor, "Q M M"],
    shift: Float64[Tensor, "Q M"],
) -> Float64[Tensor, ""]:
    """Return what r(w | z) adds to the bound, given G and h of all rows.

    In units of q(w), w = kappa + C alpha, r has precision B = I + C' G C and mean e = B^-1 C' (h - G kappa):
    B is positive definite however small S has become, where S^-1 + G need not be in floating point.
    """
    q, m = shift.shape
    eye = torch.eye(m, dtype=gram.dtype, device=gram.device)
    own = triangular(values["w_factor"]) if settings.q_u == "free" else eye.expand(q, m, m)
    precision = own.mT @ gram @ own
    factor = torch.linalg.cholesky(0.5 * (precision + precision.mT) + eye)
    pull = own.mT @ (shift[:, :, None] - gram @ values["w"].T[:, :, None])
    mean = torch.cholesky_solve(pull, factor)
    log_det = 2.0 * torch.diagonal(factor, dim1=-2, dim2=-1).log().sum()
    if settings.bound == "joint":
        off = factor.mT @ (alpha.T[:, :, None] - mean)
        return 0.5 * (log_det + (alpha**2).sum() - (off**2).sum())
    off = factor.mT @ mean
    return 0.5 * (log_det + q * m - (factor**2).sum() - (off**2).sum())
