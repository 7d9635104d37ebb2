"""The auxiliary lower bound of one draw of X, w and z, equation (4) with f integrated out.

    L = sum_i { log p(y_i|z_i) - KL[q(z_i|w, X_i) || p(z_i)] + log r(X_i|w, z_i) - log q(X_i) }
        + { log r(w|z) - log q(w) }

The first brace is a sum over rows; the second is 0 for a point, and needs sums over all rows otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float64
from torch import Tensor

from factorflow.models.gplvm_cmf.autodiff.coupling import draw_coupled, draw_inducing, draw_separate
from factorflow.models.gplvm_cmf.autodiff.kernel import inducing
from factorflow.models.gplvm_cmf.autodiff.likelihood import Data, log_likelihood
from factorflow.models.gplvm_cmf.autodiff.reverse import guess_inputs, sums_for_inducing
from factorflow.models.gplvm_cmf.settings import Family, Settings


@dataclass(frozen=True)
class Terms:
    """The bound of each row (B,), and what the rows add to G and h where u is drawn."""

    bound: Float64[Tensor, " B"]
    gram: Float64[Tensor, "Q M M"] | None = None
    shift: Float64[Tensor, "Q M"] | None = None


def terms_of_rows(
    settings: Settings,
    family: Family,
    values: Mapping[str, Tensor],
    local: Mapping[str, Tensor],
    data: Data,
    noise: Mapping[str, Tensor],
) -> Terms:
    """Return the terms of some rows (B of them).

    Parameters
    ----------
    family : {"gp", "mean_field", "full"}
        How q(z) is held: ``settings.coupling``, but for the warm-up and what it is compared with.
    values, local : mapping of str to tensor
        Parameters, and those of the rows.
    data : mapping of str to pair of tensors
        Standardised values, and where they are observed.
    noise : mapping of str to tensor
        Standard normals: ``scores`` (B, Q), ``inputs`` (B, R); ``w`` (M, Q) and, of the product bound,
        ``w_again`` (M, Q), the same for all rows.
    """
    if family != "gp":
        sample = draw_separate(family, local, noise["scores"])
        return Terms(log_likelihood(settings, values, data, sample.z) - sample.divergence)
    process = inducing(values, settings.jitter)
    w = draw_inducing(settings, values, noise["w"])
    sample = draw_coupled(settings, values, process, local, noise, w)
    bound = log_likelihood(settings, values, data, sample.z) - sample.divergence
    if settings.learns_inputs:
        again = settings.bound == "product" and settings.draws_u
        other = draw_inducing(settings, values, noise["w_again"]) if again else w
        bound = bound + guess_inputs(settings, values, process, local, noise, sample, other)
    if not settings.draws_u:
        return Terms(bound)
    return Terms(bound, *sums_for_inducing(settings, values, process, local, sample.z))
