"""log p(y|z) of a view, equations (8) and (18), missing entries left out; from logits where y is binary."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float64
from torch import Tensor

from factorflow.models.gplvm_cmf.decoders import outputs
from factorflow.models.gplvm_cmf.settings import Settings, View

Data = Mapping[str, tuple[Tensor, Tensor]]
"""Per view values (B, D), standardised where Gaussian, 0 where missing; 1.0 where they are not."""


def log_likelihood(
    settings: Settings, values: Mapping[str, Tensor], data: Data, z: Float64[Tensor, "*S B Q"]
) -> Float64[Tensor, "*S B"]:
    """Return log p(y_i | z_i) of each row, of all views together, for standardised values."""
    total = torch.zeros(z.shape[:-1], dtype=z.dtype, device=z.device)
    for view in settings.views:
        total = total + _view_log_density(settings, values, view, *data[view.name], z)
    return total


def _view_log_density(
    settings: Settings, values: Mapping[str, Tensor], view: View, y: Tensor, observed: Tensor, z: Tensor
) -> Tensor:
    mean, log_variance = outputs(values, view, z, torch.tanh)
    if log_variance is None:
        return (observed * (y * mean - torch.nn.functional.softplus(mean))).sum(-1)
    variance = settings.noise_floor + log_variance.exp()
    return -0.5 * (observed * (math.log(2 * math.pi) + variance.log() + (y - mean) ** 2 / variance)).sum(-1)
