"""q of scores that are 0 or positive, one factor after the other.

Scores are z = s v, s ~ Bernoulli(psi), v ~ Exp(beta), or N(0, 1 / beta) on v >= 0, psi and beta of each group
and factor. With precision A_n and linear term h_n of a row, as for loadings (`loadings.mixture`)::

    l = h_k - sum_{j != k} A_kj E z_j,   p = A_kk,   q(z_k, s_k) exact given l and p
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Integer

from factorflow.kernels.linalg import packed_place
from factorflow.kernels.special import digamma, expected_log_beta
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.loadings.mixture import Component, collapsed
from factorflow.models.sparse_gfa.loadings.nonnegative import SLABS
from factorflow.models.sparse_gfa.pseudo_data import expected_scores
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals, Local

SWEEPS = 2
"""Of the factors, in each update of a row."""


def update_nonnegative(
    settings: Settings,
    codes: Integer[Array, " B"],
    before: Local,
    globals_: Globals,
    pairs: Float64[Array, "#B Q"],
    linear: Float64[Array, "B K"],
) -> tuple[Local, float]:
    """Return q(z) of rows, and its part of the bound that beta and psi do not change.

    Parameters
    ----------
    settings, globals_ : Settings, Globals
        Of the run.
    codes : array
        Group of each row.
    before : Local
        q(z) before the update.
    pairs, linear : array
        Precisions of the rows, packed, and linear terms.
    """
    components = Component("zero"), SLABS[settings.score_slab]
    mean, n_factors = expected_scores(before)[0].copy(), linear.shape[1]
    second, included, terms = (np.empty(mean.shape) for _ in range(3))
    group = codes if len(globals_.scores.beta_rate) > 1 else np.zeros(1, np.intp)
    beta = globals_.scores.beta_shape / globals_.scores.beta_rate
    log_beta = digamma(globals_.scores.beta_shape) - np.log(globals_.scores.beta_rate)
    on, off = expected_log_beta(globals_.scores.psi_on, globals_.scores.psi_off)
    for k in SWEEPS * list(range(n_factors)):
        row = pairs[:, packed_place(k, np.arange(n_factors))]
        others = np.einsum("nj,nj->n", np.broadcast_to(row, mean.shape), mean) - row[:, k] * mean[:, k]
        p = np.broadcast_to(row[:, k], len(mean))
        mean[:, k], second[:, k], _, terms[:, k], included[:, k], _ = collapsed(
            components,
            linear[:, k] - others,
            p,
            (beta[group, k, None], log_beta[group, k, None]),
            np.stack([off[group, k], on[group, k]], axis=1),
            power=settings.score_power,
            learned=True,
        )
    included = np.maximum(included, 1e-300)
    slab = mean / included
    variance = np.maximum(second / included - slab**2, 1e-300)
    return Local(slab, variance, included), float(terms.sum())
