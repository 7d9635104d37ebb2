"""Learned size factors: a number of each sample that multiplies its rates, and that the data decide.

The logarithm o_n of a view's size factor is a row effect of the predictor, x_nd + o_n, with a prior

    o_n ~ N(c + t_n, 1 / beta),  beta ~ Ga,

t_n = 0 ("learned") or the logarithm of the one computed from totals ("total+learned"), where it starts in
both. Given the tangents of a view, of precision u_nd and slope g_nd at the means, q(o_n) is Gaussian:

    variance 1 / (U + beta), U = sum_d u_nd
    mean of before + (sum_d (g_nd - u_nd (x_nd of now - of before)) + beta (c + t_n - before)) / (U + beta)

The means of z_n and o_n move to their joint optimum: one that waits for the other creeps, where loadings of a
factor are of one sign. That c follows the mean of o_n costs the bound nothing, so intercepts and size factors
do not drift; c is added to the intercepts, and taken from the size factors, where they are reported.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64

from factorflow.core.trees import replace
from factorflow.kernels import device
from factorflow.kernels.linalg import n_pairs, unpack
from factorflow.kernels.special import digamma, gamma_term
from factorflow.models.contract import Array, Block
from factorflow.models.sparse_gfa.entries import values_of
from factorflow.models.sparse_gfa.messages import Pseudo
from factorflow.models.sparse_gfa.pseudo_data import Table, expected_scores
from factorflow.models.sparse_gfa.settings import Settings
from factorflow.models.sparse_gfa.size_factors import log_size_factors
from factorflow.models.sparse_gfa.state import Fixed, Globals, Local, View

START_VARIANCE = 0.01
"""Variance of a logarithm that a fit begins with: a larger one would be read as a higher rate, E e^o."""


def with_log_sizes(settings: Settings, block: Block, local: Local | None, globals_: Globals) -> Local | None:
    """Return q of rows with size factors to begin with, those of the totals, where it has none yet."""
    if local is None or local.log_sizes is not None or not settings.learns_sizes:
        return local
    learned = np.array([bool(view.learned_sizes) for view in settings.views])
    means = size_means(settings, globals_)
    start = np.where(learned, computed_sizes(settings, block, globals_.fixed) + means, 0.0)
    return replace(local, log_sizes=start, log_sizes_variance=START_VARIANCE * np.ones(start.shape) * learned)


def computed_sizes(settings: Settings, block: Block, fixed: Mapping[str, Fixed]) -> Float64[Array, "B M"]:
    """Return the logarithms of the size factors that are computed, 0 in views without."""
    levels = np.zeros((block.n_rows, len(settings.views)))
    for m, view in enumerate(settings.views):
        level = log_size_factors(view, fixed[view.name], block, values_of(view, block))
        levels[:, m] = 0.0 if level is None else level
    return levels


def _prior_means(settings: Settings, block: Block, globals_: Globals) -> Float64[Array, "B M"]:
    """Return the prior means of the logarithms, c + t_n."""
    about_totals = np.array([view.learned_sizes == "total+learned" for view in settings.views])
    computed = computed_sizes(settings, block, globals_.fixed) if about_totals.any() else 0.0
    means = size_means(settings, globals_)
    return np.broadcast_to(means + about_totals * computed, (block.n_rows, len(means)))


def size_means(settings: Settings, globals_: Globals) -> Float64[Array, " M"]:
    """Return the means of the logarithms of learned size factors, c, by view; 0 of others."""
    return np.array([globals_.views[view.name].size_mean for view in settings.views])


def log_sizes_of(settings: Settings, block: Block, local: Local, globals_: Globals) -> Float64[Array, "B M"]:
    """Return what is added to the predictor of each row in each view."""
    computed = computed_sizes(settings, block, globals_.fixed)
    if local.log_sizes is None:
        return computed
    return np.where([bool(view.learned_sizes) for view in settings.views], local.log_sizes, computed)


def log_sizes_on_the_way(before: Local, after: Local, step_length: float | Float64[Array, "B 1"]) -> Local:
    """Return the new q with size factors on the straight line between those of two."""
    if before.log_sizes is None or after.log_sizes is None:
        return after
    assert before.log_sizes_variance is not None
    assert after.log_sizes_variance is not None
    mean = before.log_sizes + step_length * (after.log_sizes - before.log_sizes)
    spread = before.log_sizes_variance + step_length * (after.log_sizes_variance - before.log_sizes_variance)
    return replace(after, log_sizes=mean, log_sizes_variance=spread)


def update_log_sizes(
    settings: Settings,
    block: Block,
    before: Local,
    after: Local,
    covariance: Float64[Array, "#B V"] | None,
    design: Float64[Array, "B C"],
    globals_: Globals,
    pseudo: dict[str, Pseudo],
    tables: dict[str, Table],
) -> Local:
    """Return q of rows with their size factors, and scores that go with them.

    Parameters
    ----------
    settings, block, globals_ : Settings, Block, Globals
        Of the run.
    before, after : Local
        Before the update of the scores, and after it with size factors as they were.
    covariance : array or None
        Inverse of the precision that the means of the scores were solved with, packed. None, or variances:
        scores stay.
    design, pseudo, tables : array, mapping of view to Pseudo, mapping of view to Table
        Of the rows.
    """
    assert before.log_sizes is not None
    scores, k = expected_scores(after)[0], after.mean.shape[1]
    columns = [m for m, view in enumerate(settings.views) if view.learned_sizes]
    slopes, precisions, coupled = [], [], []
    prior_means = _prior_means(settings, block, globals_)
    for m in columns:
        view = settings.views[m]
        p, table, mine = pseudo[view.name], tables[view.name], globals_.views[view.name]
        assert p.weight is not None
        beta = mine.size_shape / mine.size_rate
        along = device.product(p.weight, table.loadings, k + design.shape[1])
        slope = device.on_host(p.response.sum(axis=1, dtype=np.float64))
        slope = slope - (along * np.concatenate([scores, design], axis=1)).sum(axis=1)
        slopes.append(slope + beta * (prior_means[:, m] - before.log_sizes[:, m]))
        precisions.append(device.on_host(p.weight.sum(axis=1, dtype=np.float64)) + beta)
        coupled.append(along[:, :k])
    slope, precision = np.stack(slopes, axis=1), np.stack(precisions, axis=1)
    log_sizes, variance = before.log_sizes.copy(), np.zeros(before.log_sizes.shape)
    variance[:, columns] = 1.0 / precision
    if covariance is None or covariance.shape[1] != n_pairs(k) or k < 2:
        log_sizes[:, columns] += slope / precision
        return replace(after, log_sizes=log_sizes, log_sizes_variance=variance)
    v = np.stack(coupled, axis=2)  # B, K, views
    moved = unpack(covariance, k) @ v
    system = precision[:, :, None] * np.eye(len(columns)) - v.transpose(0, 2, 1) @ moved
    step = np.linalg.solve(system, slope[:, :, None])
    log_sizes[:, columns] += step[:, :, 0]
    mean = after.mean - (moved @ step)[:, :, 0]
    return replace(after, mean=mean, log_sizes=log_sizes, log_sizes_variance=variance)


def at_log_sizes(
    settings: Settings,
    block: Block,
    before: Local,
    after: Local,
    globals_: Globals,
    pseudo: dict[str, Pseudo],
) -> tuple[dict[str, Pseudo], Float64[Array, "M 3"], float]:
    """Return the pseudo-data less what the change of the size factors explains.

    Parameters
    ----------
    settings, block, globals_, pseudo : Settings, Block, Globals, mapping of view to Pseudo
        Of the rows.
    before, after : Local
        With size factors of before, at which the tangents are, and of now.

    Returns
    -------
    mapping of view to Pseudo, array, float
        The pseudo-data; `Stats.size_sums`; the entropy of q of the size factors. Rows that a view lacks have
        none in it.
    """
    assert before.log_sizes is not None
    assert after.log_sizes is not None
    assert after.log_sizes_variance is not None
    pseudo, sums, entropy = dict(pseudo), np.zeros((len(settings.views), 3)), 0.0
    about = after.log_sizes - _prior_means(settings, block, globals_) + size_means(settings, globals_)
    for m, view in enumerate(settings.views):
        if not view.learned_sizes:
            continue
        p = pseudo[view.name]
        assert p.weight is not None
        step, spread = after.log_sizes[:, m] - before.log_sizes[:, m], after.log_sizes_variance[:, m]
        linear = device.on_host(p.response.sum(axis=1, dtype=np.float64))
        precision = device.on_host(p.weight.sum(axis=1, dtype=np.float64))
        free = p.free + float(linear @ step - 0.5 * precision @ (step**2 + spread))
        shift = device.move_beside(step[:, None].astype(p.response.dtype), p.response)
        pseudo[view.name] = replace(p, response=p.response - p.weight * shift, free=free)
        rows = precision > 0.0
        r, s = about[rows, m], spread[rows]
        sums[m] = float(rows.sum()), r.sum(), float((r**2 + s).sum())
        entropy += 0.5 * float((np.log(s) + 1.0).sum())
    return pseudo, sums, entropy


def learn_size_prior(prior: tuple[float, float], view: View, sums: Float64[Array, " 3"]) -> View:
    """Return a view with the mean and the precision of the logarithms of its size factors.

    Parameters
    ----------
    prior : (float, float)
        Shape and rate of the prior of the precision.
    view : View
        The view.
    sums : array
        Its row of `Stats.size_sums`.
    """
    n, total, squares = sums
    mean = total / max(n, 1.0)
    spread = squares - n * mean**2
    return replace(view, size_mean=mean, size_shape=prior[0] + 0.5 * n, size_rate=prior[1] + 0.5 * spread)


def size_terms(prior: tuple[float, float], view: View, sums: Float64[Array, " 3"]) -> float:
    """Return E log p of the size factors, and the terms of their precision; as `learn_size_prior`."""
    n, total, squares = sums
    shape, rate = np.asarray([view.size_shape]), np.asarray([view.size_rate])
    spread = squares - 2.0 * view.size_mean * total + n * view.size_mean**2
    terms = 0.5 * (n * (digamma(shape) - np.log(rate)) - shape / rate * spread)
    return float((terms + gamma_term(shape, rate, *prior))[0])
