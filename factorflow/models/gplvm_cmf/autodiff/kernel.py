"""The Gaussian process: a squared exponential kernel with a length for each input, and inducing inputs.

    k(x, x') = s2 exp(-1/2 sum_r (x_r - x'_r)^2 / l_r^2),   L L' = K_uu + jitter s2 I
    a(x) = L^-1 k_u(x),   v(x) = k(x, x) - a(x)' a(x)

Given w = L^-1 u, f(x) ~ N(a(x)' w, v(x)).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor


@dataclass(frozen=True)
class Inducing:
    """Inducing inputs Z (M, R), lengths l (R,), variance s2 and the factor L (M, M)."""

    inputs: Float64[Tensor, "M R"]
    lengths: Float64[Tensor, " R"]
    variance: Float64[Tensor, ""]
    factor: Float64[Tensor, "M M"]


def rbf(
    x: Float64[Tensor, "B R"],
    y: Float64[Tensor, "M R"],
    lengths: Float64[Tensor, " R"],
    variance: Float64[Tensor, ""],
) -> Float64[Tensor, "B M"]:
    """Return the kernel between two sets of inputs."""
    x, y = x / lengths, y / lengths
    # -|x - y|^2 / 2 in three terms: a product of matrices instead of one pass for each input
    far = torch.addmm((-0.5 * (y**2).sum(1))[None, :], x, y.T) - 0.5 * (x**2).sum(1)[:, None]
    return variance * torch.exp(far)


def inducing(values: Mapping[str, Tensor], jitter: float) -> Inducing:
    """Return the inducing inputs with their factor, of the parameters."""
    lengths, variance = values["log_length"].exp(), values["log_variance"].exp()
    inputs = values["inducing"]
    eye = torch.eye(len(inputs), dtype=inputs.dtype, device=inputs.device)
    gram = rbf(inputs, inputs, lengths, variance) + jitter * variance * eye
    return Inducing(inputs, lengths, variance, torch.linalg.cholesky(gram))


def between(process: Inducing, x: Float64[Tensor, "B R"]) -> Float64[Tensor, "B M"]:
    """Return k_u(x)."""
    return rbf(x, process.inputs, process.lengths, process.variance)


def features(
    process: Inducing, k: Float64[Tensor, "B M"]
) -> tuple[Float64[Tensor, "B M"], Float64[Tensor, " B"]]:
    """Return a(x) and v(x), given k_u(x)."""
    a = torch.linalg.solve_triangular(process.factor, k.T, upper=False).T
    return a, process.variance - (a * a).sum(1)


def slopes(
    process: Inducing, x: Float64[Tensor, "B R"], k: Float64[Tensor, "B M"], w: Float64[Tensor, "M Q"]
) -> Float64[Tensor, "B Q R"]:
    """Return the Jacobians J of x -> a(x)' w, given k_u(x)."""
    (m, q), r = w.shape, x.shape[1]
    alpha = torch.linalg.solve_triangular(process.factor.T, w, upper=True)
    pulled = (alpha[:, :, None] * process.inputs[:, None, :]).reshape(m, q * r)
    towards = (k @ pulled).reshape(len(x), q, r)
    return (towards - x[:, None, :] * (k @ alpha)[:, :, None]) / process.lengths**2
