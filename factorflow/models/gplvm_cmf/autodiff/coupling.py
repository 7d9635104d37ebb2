"""q: the inducing variables, and the rows given them.

    q(w_q) = N(kappa_q, S_q), S_q = C_q C_q'     w = L^-1 u; point: a parameter; prior: C_q = I
    q(X_i) = N(phi_i, Phi_i), Phi_i = F_i F_i'   F diagonal or not; 0 where X is given
    q(z_iq | w, X_i) = N(a_i' w_q, v_i + s_q^2)

Without the process each row has a Gaussian of its own, N(m_i, C_i C_i'), C_i diagonal or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from factorflow.models.gplvm_cmf.autodiff.kernel import Inducing, between, features
from factorflow.models.gplvm_cmf.settings import Family, Settings


@dataclass(frozen=True)
class Draw:
    """One draw of the rows.

    Parameters
    ----------
    z : (B, Q) tensor
        Latent variables.
    divergence : (B,) tensor
        KL[q(z_i | w, X_i) || p(z_i)]; f is integrated out.
    inputs : (B, R) tensor or None
        X.
    """

    z: Float64[Tensor, "B Q"]
    divergence: Float64[Tensor, " B"]
    inputs: Float64[Tensor, "B R"] | None = None


def draw_inducing(
    settings: Settings, values: Mapping[str, Tensor], alpha: Float64[Tensor, "M Q"]
) -> Float64[Tensor, "M Q"]:
    """Return a draw of w: kappa_q + C_q alpha_q; of a point, itself."""
    if not settings.draws_u:
        return values["w"]
    if settings.q_u == "prior":
        return values["w"] + alpha
    return values["w"] + torch.einsum("qmn,nq->mq", triangular(values["w_factor"]), alpha)


def triangular(raw: Float64[Tensor, "*_ K K"]) -> Float64[Tensor, "*_ K K"]:
    """Return a Cholesky factor: what is below the diagonal, and the exponential of the diagonal."""
    return torch.tril(raw, -1) + torch.diag_embed(torch.diagonal(raw, dim1=-2, dim2=-1).exp())


def unpack_cholesky(packed: Float64[Tensor, "B P"], n: int) -> Float64[Tensor, "B n n"]:
    """Return the Cholesky factors (B, n, n) of packed ones (B, n (n + 1) / 2), by rows."""
    rows, columns = torch.tril_indices(n, n)
    raw = torch.zeros(len(packed), n, n, dtype=packed.dtype, device=packed.device)
    return triangular(raw.index_put((slice_of(packed), rows, columns), packed))


def factor_of_inputs(local: Mapping[str, Tensor]) -> Float64[Tensor, "B R R"]:
    """Return F of the rows."""
    if "log_spread" in local:
        return torch.diag_embed((0.5 * local["log_spread"]).exp())
    return unpack_cholesky(local["spread"], local["inputs"].shape[1])


def slice_of(packed: Tensor) -> Tensor:
    """Return the rows' numbers, (B, 1), to index beside others."""
    return torch.arange(len(packed), device=packed.device)[:, None]


def draw_coupled(
    settings: Settings,
    values: Mapping[str, Tensor],
    process: Inducing,
    local: Mapping[str, Tensor],
    noise: Mapping[str, Tensor],
    w: Float64[Tensor, "M Q"],
) -> Draw:
    """Return a draw of X and z given w."""
    x = local["inputs"]
    if settings.learns_inputs:
        x = x + (factor_of_inputs(local) @ noise["inputs"][:, :, None])[:, :, 0]
    a, v = features(process, between(process, x))
    mean, variance = a @ w, v[:, None] + values["log_noise"].exp()
    divergence = -0.5 * (1.0 + variance.log() - mean**2 - variance).sum(1)
    return Draw(mean + variance.sqrt() * noise["scores"], divergence, x)


def draw_separate(family: Family, local: Mapping[str, Tensor], noise: Float64[Tensor, "B Q"]) -> Draw:
    """Return a draw of z of rows that have Gaussians of their own."""
    mean = local["mean"]
    if family == "mean_field":
        log_sd = local["log_sd"]
        sd = log_sd.exp()
        divergence = -0.5 * (1.0 + 2.0 * log_sd - mean**2 - sd**2).sum(1)
        return Draw(mean + sd * noise, divergence)
    factor = unpack_cholesky(local["factor"], mean.shape[1])
    log_diagonal = torch.diagonal(factor, dim1=-2, dim2=-1).log()
    divergence = -0.5 * ((1.0 + 2.0 * log_diagonal - mean**2).sum(1) - (factor**2).sum((1, 2)))
    return Draw(mean + (factor @ noise[:, :, None])[:, :, 0], divergence)
