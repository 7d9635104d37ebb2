"""q of programs, batches and rates given the sums over the rows, and the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float64

from factorflow.models.contract import Array
from factorflow.models.poisson_factors.cells import batch_means, top_logs
from factorflow.models.poisson_factors.settings import Settings
from factorflow.models.poisson_factors.state import Data, Gamma, Programs, ProgramStats

RATE_PRIOR = 1e-3
"""Shape and rate of the prior of b_k."""

FEATURE_PRIOR = 0.3
"""Shape and rate of the prior of eta_d (c_0)."""

BATCH_SHAPE = 10.0
"""Shape and rate of the prior of gamma_bd (g)."""

SHAPES = (0.02, 100.0)
"""Shapes a and c lie between these."""


def bound(settings: Settings, data: Data, p: Programs, stats: ProgramStats) -> float:
    """Return the bound of the state that a pass began with, given what its rows added up to."""
    value = stats.value + data.constant
    log_eta = {name: eta.logs_and_entropies()[0] for name, eta in p.feature_rates.items()}
    for view in settings.views:
        name, counts = view.name, data.counts[view.name]
        value += float(counts.sum(axis=0) @ top_logs(p.logs[name])[1])
        value -= p.loadings[name].divergence(
            p.loading_shape, p.feature_rates[name].mean[:, None], log_eta[name][:, None]
        )
        value -= p.feature_rates[name].divergence(FEATURE_PRIOR, FEATURE_PRIOR, np.log(FEATURE_PRIOR))
        if p.batches:
            gamma = p.batches[name]
            value += float((counts[:-1] * gamma.logs_and_entropies()[0]).sum())
            value -= gamma.divergence(BATCH_SHAPE, BATCH_SHAPE, np.log(BATCH_SHAPE))
    value -= p.score_rates.divergence(RATE_PRIOR, RATE_PRIOR, np.log(RATE_PRIOR))
    return float(value - p.score_shape.sum() - p.loading_shape)


def score_rates(n_rows: int, shape: Float64[np.ndarray, " K"], total: Float64[np.ndarray, " K"]) -> Gamma:
    """Return q(b) given the sums of theta."""
    return Gamma(RATE_PRIOR + n_rows * shape, RATE_PRIOR + total)


def feature_rates(shape: float, loadings: Gamma) -> Gamma:
    """Return q(eta) of the features of a view given beta."""
    n, k = loadings.shape.shape
    return Gamma(np.full(n, FEATURE_PRIOR + k * shape), FEATURE_PRIOR + loadings.mean.sum(axis=1))


def update_programs(
    settings: Settings, data: Data, n_rows: int, p: Programs, stats: ProgramStats, *, learn: bool
) -> Programs:
    """Return the programs after an update of beta, gamma, the shapes, b and eta, and a scale step."""
    objective = bound(settings, data, p, stats)
    loadings, logs, batches, share = _update_views(settings, data, p, stats)
    a, c = p.score_shape, p.loading_shape
    if learn:
        log_b = p.score_rates.logs_and_entropies()[0]
        a = best_shape(a, log_b + stats.logs / n_rows, n_rows)
        parts = [(p.feature_rates[name].logs_and_entropies()[0], logs[name]) for name in logs]
        n = sum(log_beta.size for _, log_beta in parts)
        mean = sum(float((log_eta[:, None] + log_beta).sum()) for log_eta, log_beta in parts) / n
        c = float(best_shape(np.array([c]), np.array([mean]), n)[0])
    rates = score_rates(n_rows, a, stats.scores)
    eta_of = {name: feature_rates(c, beta) for name, beta in loadings.items()}
    after = replace(
        p,
        loadings=loadings,
        logs=logs,
        feature_rates=eta_of,
        batches=batches,
        score_rates=rates,
        score_shape=a,
        loading_shape=c,
        share=np.stack(share),
        objective=objective,
    )
    return _scale_step(settings, after)


def _update_views(
    settings: Settings, data: Data, p: Programs, stats: ProgramStats
) -> tuple[dict[str, Gamma], dict[str, Float64[np.ndarray, "_D K"]], dict[str, Gamma], list[Array]]:
    """Return beta, E log beta and gamma by view, and the counts of each program."""
    loadings, logs, batches, share = {}, {}, {}, []
    for view in settings.views:
        name, exposure = view.name, stats.exposure[view.name]
        lost = stats.missing.get(name)
        means = batch_means(p, view)
        table, _ = top_logs(p.logs[name])
        shape = p.loading_shape + table[:, : settings.n_factors] * stats.counts[name]
        rate = p.feature_rates[name].mean[:, None] + _exposed_rate(means, exposure, lost)
        loadings[name] = Gamma(shape, np.maximum(rate, 1e-300))
        logs[name], _ = loadings[name].logs_and_entropies()
        expected = loadings[name].mean
        if p.batches:
            fitted = exposure @ expected.T
            if lost is not None:
                fitted = fitted - np.einsum("cdk,dk->cd", lost, expected)
            batches[name] = Gamma(
                BATCH_SHAPE + data.counts[name][:-1], BATCH_SHAPE + np.maximum(fitted[:-1], 0.0)
            )
        share.append(shape.sum(axis=0) - p.loading_shape * view.n_features)
    return loadings, logs, batches, share


def update_others(settings: Settings, data: Data, p: Programs, stats: ProgramStats) -> Programs:
    """Return the programs of features that the model was not fitted to; theta and the shapes stay."""
    loadings, logs, batches, _ = _update_views(settings, data, p, stats)
    eta = {name: feature_rates(p.loading_shape, beta) for name, beta in loadings.items()}
    return replace(p, loadings=loadings, logs=logs, batches=batches, feature_rates=eta)


def _exposed_rate(
    means: Float64[np.ndarray, "C D"],
    exposure: Float64[np.ndarray, "C K"],
    lost: Float64[np.ndarray, "C D K"] | None,
) -> Float64[np.ndarray, "D K"]:
    """Return sum_b gamma_bd (sum of s theta over the rows of batch b that have feature d)."""
    rate = np.asarray(means.T @ exposure)
    return rate if lost is None else rate - np.einsum("cd,cdk->dk", means, lost)


def _scale_step(settings: Settings, p: Programs) -> Programs:
    """Multiply theta_k by z and divide beta_k and b_k by it: the likelihood does not see it.

    Maximises the bound along that line: (sum_d eta_d beta_dk + r b_k) / z + (c D + r) log z is to be least.
    """
    pull, n = RATE_PRIOR * p.score_rates.mean, 0
    for view in settings.views:
        pull = pull + p.feature_rates[view.name].mean @ p.loadings[view.name].mean
        n += view.n_features
    z = pull / (p.loading_shape * n + RATE_PRIOR)
    return replace(
        p,
        loadings={name: beta.scaled(1.0 / z) for name, beta in p.loadings.items()},
        logs={name: logs - np.log(z) for name, logs in p.logs.items()},
        score_rates=p.score_rates.scaled(1.0 / z),
        stretch=z,
    )


def best_shape(
    shape: Float64[np.ndarray, " K"], mean: Float64[np.ndarray, " K"], n: int
) -> Float64[np.ndarray, " K"]:
    """Return the root of psi(a) + 1 / n = mean, that of E log x + E log rate: the best shape, by Newton."""
    from scipy.special import polygamma, psi

    for _ in range(12):
        error = psi(shape) - mean + 1.0 / n
        shape = np.clip(shape * np.exp(np.clip(-error / (shape * polygamma(1, shape)), -1.0, 1.0)), *SHAPES)
    return np.asarray(shape)
