"""How many factors: by how much the bound is higher with each one, and which are deleted.

A run begins with the components that were counted and some to spare (`start.count`). With spikes on, the
worth of a factor is by how much the bound of the model is lower without it, all else as it is, in nats::

    worth_k = sum_md Delta_dk - KL(w_.k) - KL(alpha_k) - KL(theta_k)
              - 1/2 sum_n [E z_k^2 - 1 + log (S_n^-1)_kk] + gap_k
    g_dk    = 2 w_dk c_dk - 2 sum_j E_d,kj P_d,kj + E_d,kk P_d,kk
    gap_k   = 1/2 sum_nd u_nd S_n,kk Var w_dk

with P_d = sum_n u E (z, 1)(z, 1)', c_d = sum_n u y^ E (z, 1), E_d = E (w, b)(w, b)'. Delta = g / 2, and of
Gaussian entries whose noise is learned a log(1 + g / (2 rate)), tau_d ~ Ga(a, rate): the noise takes what the
factor explained. gap is what independent q(z) and q(w) lose, to second order: without it factors go that
predict. All of it follows from the statistics of a pass; of S_n, gap has the average.

A factor goes when its worth is below 0 and will not be above within `HORIZON` passes at the pace of the last
one; one at a time, since two that share a direction are worth nothing beside each other.

All else does not stay as it is: a factor that stands for the noise of a feature keeps the prior of the noise
from what it would be without it. So in the end the factor of least worth is left out on trial. The others
take passes until bound + sum_k gap_k is higher without it, or will not be within `HORIZON` passes at the pace
of the last one; then all is as it was before.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64
from scipy.special import entr

from factorflow.kernels.linalg import diagonal, n_pairs, unpack
from factorflow.models.contract import Array
from factorflow.models.sparse_gfa.elbo import Moves, scores_terms, weights_terms
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.state import Globals
from factorflow.models.sparse_gfa.statistics import FeatureSums, Stats
from factorflow.models.sparse_gfa.weights import Weights, expected_weights

EVIDENCE = 3.0
"""Nats by which the bound has to be higher without a factor: 20 to 1 against it, since the bound is no more
exact than that."""
HORIZON = 8.0
"""Passes for which the worth of a factor is taken to go on rising as it did in the last one."""
MOST_LOST = 0.9
"""Share of a rate that may go at most, where a factor seems to add to the noise."""


def worth_of_loadings(
    settings: Settings,
    name: str,
    weights: Weights,
    expected: tuple[Float64[Array, "D K"], Float64[Array, "D K"]],
    cross: Float64[Array, "D T L"],
    pairs: Float64[Array, "#D T Q"],
) -> tuple[Float64[Array, " K"], Float64[Array, " K"]]:
    """Return what features add to the worth of each factor: Delta and the entropy of q(w, s); and to gap.

    Parameters
    ----------
    settings, name : Settings, str
        Of the run; of the view.
    weights : Weights
        Of a run of features, after their update.
    expected : pair of arrays
        E w and Var w.
    cross, pairs : array
        Statistics that they were updated from, see `FeatureStats`.
    """
    mean, variance = expected
    k, precision = mean.shape[1], settings.precision(name, weights)
    extended = np.concatenate([mean, weights.coefficients], axis=1)
    size = extended.shape[1]
    explained, spread = np.zeros(k), np.zeros(k)
    for t in range(cross.shape[1]):
        full = unpack(pairs[:, t], size)
        products = extended @ full[0] if len(full) == 1 else np.einsum("dj,djk->dk", extended, full)
        growth = 2.0 * mean * (cross[:, t, :k] - products[:, :k])
        growth += (mean**2 - variance) * diagonal(pairs[:, t], size)[:, :k]
        if weights.noise_shape is None or weights.noise_rate is None:
            explained += 0.5 * precision[:, t] @ growth
        else:
            relative = np.maximum(0.5 * growth / weights.noise_rate[:, t, None], -MOST_LOST)
            explained += weights.noise_shape[:, t] @ np.log1p(relative)
        spread += (precision[:, t] * pairs[:, t, n_pairs(k + 1) - 1]) @ variance
    if weights.entropies is not None:
        return explained + weights.entropies.sum(axis=0), spread
    inclusion = np.ones(mean.shape) if weights.inclusion is None else weights.inclusion
    slab = 0.5 * inclusion * (1.0 + np.log(weights.variance))
    return explained + (slab + entr(inclusion) + entr(1.0 - inclusion)).sum(axis=0), spread


def worth(
    settings: Settings, new: Globals, moves: Moves, sums: Mapping[str, FeatureSums], stats: Stats
) -> tuple[Float64[Array, " K"], float]:
    """Return the worth of each factor after a pass with spikes, and the sum of gap, in nats.

    Parameters
    ----------
    settings, new : Settings, Globals
        Of the run; after the pass.
    moves : Moves
        Sums of the pass, after the change of scale at its end.
    sums, stats : mapping of view to FeatureSums, Stats
        Of the pass.
    """
    scale = np.ones(new.n_factors) if new.change.transform is None else np.diag(new.change.transform)
    n_rows = stats.rows.sum()
    covariance = diagonal(stats.covariance, new.n_factors) / n_rows
    total = scores_terms(settings, new, moves, stats)
    total = total + 0.5 * (n_rows * (1.0 + 2.0 * np.log(scale)) - stats.precision)
    gap = np.zeros(new.n_factors)
    for view in settings.views:
        of_loadings = sums[view.name].worth
        assert of_loadings is not None
        explained, spread = of_loadings
        gap += 0.5 * spread * covariance
        total = total + explained - moves.loadings[view.name].included * np.log(scale)
        total = total + weights_terms(settings, new.views[view.name], view, moves)
    return np.asarray(total + gap), float(gap.sum())


def falls_behind(score: float, last: float, required: float) -> bool:
    """Return whether a model on trial will not be better soon.

    Parameters
    ----------
    score, last, required : float
        What this pass and the last one found, NaN where it is not known; what the model at hand has.
    """
    return required + EVIDENCE - score > HORIZON * (score - last)


def least_worth(worths: Float64[Array, " K"], before: Float64[Array, " K"] | None) -> int | None:
    """Return the factor to delete, if there is one.

    Parameters
    ----------
    worths, before : array
        Worth of the factors after this pass and the last one; None: not known.
    """
    if before is None or len(before) != len(worths) or not len(worths):
        return None
    ahead = worths + HORIZON * np.maximum(worths - before, 0.0)
    least = int(ahead.argmin())
    return least if ahead[least] < 0.0 else None


def variance_shares(settings: Settings, globals_: Globals) -> Float64[Array, "M K"]:
    """Return the share of each view's sum of squares, or information, that each factor carries alone.

    Of other views than Gaussian ones the information: a few counts far above all others would be the whole
    sum of squares.
    """
    scale = np.diag(globals_.scores.second)
    rows = []
    for view in settings.views:
        weights, fixed = globals_.weights[view.name], globals_.fixed[view.name]
        count, squares = fixed.count.sum(axis=1), expected_weights(weights)[0] ** 2
        if view.is_gaussian:
            signal, total = (count @ squares) * scale, float(fixed.squares.sum())
        else:
            information = settings.information(view.name, weights)[:, None]
            signal = count @ np.log1p(information * squares * scale)
            total = float(signal.sum()) + float(count.sum())
        rows.append(signal / max(total, 1e-300))
    return np.stack(rows)
