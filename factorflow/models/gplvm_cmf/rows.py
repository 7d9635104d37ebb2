"""Parameters of rows: their start, and conversion between families of q(z)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float64

from factorflow.core.block import Array, Block
from factorflow.errors import InputError
from factorflow.kernels.device import on_host
from factorflow.kernels.random import Step
from factorflow.kernels.sites import MODELS
from factorflow.models.gplvm_cmf.settings import Family, Settings
from factorflow.models.gplvm_cmf.state import Arrays, Globals, Local, Standardisation, initial_moments

START, SPREAD = MODELS[0], MODELS[1]
SCORES, INPUTS = MODELS[2], MODELS[3]
INDUCING, AGAIN = MODELS[4], MODELS[5]

EVALUATION = 2**32 - 1
"""Iteration that the noise of evaluations is keyed by: all see the same, so that their values compare."""

FITTING = 1 << 31
"""First of the iterations that the noise of rows under fixed decoders is keyed by: no fit goes so far."""

START_SD = 0.5
"""Standard deviation of z of a row when a run begins."""

START_SPREAD = 1e-6
"""Factor by which variances of X of a row exceed those of the warm-up when the coupling begins."""

UNEVEN = 0.01
"""Noise of where rows begin, so that no two features of z, or inputs, begin alike."""


def standardise(
    settings: Settings, fixed: Standardisation, block: Block, view: str
) -> Float64[np.ndarray, "B D"]:
    """Return the values of a view less their mean, over their standard deviation; 0 where missing."""
    values = on_host(block.data[view])
    gaussian = next(v for v in settings.views if v.name == view).likelihood == "gaussian"
    observed = (values == values) if gaussian else (values >= 0)
    return np.where(
        observed, (np.where(observed, values, 0.0) - fixed.location[view]) / fixed.scale[view], 0.0
    )


def standardised_inputs(
    settings: Settings, block: Block, fixed: Standardisation
) -> Float64[np.ndarray, "B R"]:
    """Return X where it is given, standardised.

    Raises
    ------
    InputError
        When an entry is missing, or all of them: new samples without that view.
    """
    parts = []
    for name in settings.given:
        x = on_host(block.data[name])
        if np.isnan(x).all():
            raise InputError(
                "pass_inputs",
                f"{name}, of which samples have no entry",
                f"the covariate view {name}, known of every sample",
                f"Write the samples with a view {name}, a covariate, its features named as in the fit.",
            )
        if np.isnan(x).any():
            raise InputError(
                "given",
                f"{name}, with missing entries",
                "an input that is known of every sample",
                "Fill in what is missing, or leave the samples out.",
            )
        parts.append((x - fixed.location[name]) / fixed.scale[name])
    return np.concatenate(parts, axis=1)


def initialize_rows(settings: Settings, block: Block, fixed: Standardisation, step: Step) -> Local:
    """Return rows that no step has visited: Gaussians around the principal components of their values."""
    mean = UNEVEN * step_at(step, 0).normal(START, block.rows, settings.n_factors)
    for view in settings.views:
        basis = fixed.basis[view.name]
        mean[:, : basis.shape[1]] += standardise(settings, fixed, block, view.name) @ basis
    return new_local({"mean": mean, "log_sd": np.full(mean.shape, np.log(START_SD))})


def step_at(step: Step, iteration: int) -> Step:
    """Return the noise of another iteration."""
    return replace(step, iteration=iteration)


def new_local(values: Arrays) -> Local:
    """Return rows with these parameters, before their first step."""
    n_rows = len(next(iter(values.values())))
    return Local(dict(values), initial_moments(values), initial_moments(values), np.zeros(n_rows))


def convert_rows(
    settings: Settings, family: Family, block: Block, local: Local | None, globals_: Globals, step: Step
) -> Local | None:
    """Return the rows as a family of q(z) has them: those there are, or the same made anew; None: nothing.

    Of rows that no step has visited, of Gaussians of their own, of the coupled family where it goes on.
    """
    if family == "gp" and not settings.learns_inputs:
        return None
    parameter = {"gp": "inputs", "mean_field": "log_sd", "full": "factor"}[family]
    if local is not None and parameter in local.values:
        return local
    if local is None or "mean" not in local.values:
        local = initialize_rows(settings, block, globals_.fixed, step)
    mean = local.values["mean"]
    if family == "gp":
        return new_local(initial_inputs(settings, globals_.fixed, mean, factor_of(local), block, step))
    if "factor" in local.values:
        covariance = (factor_of(local) ** 2).sum(2)
        return new_local({"mean": mean, "log_sd": 0.5 * np.log(covariance)})
    if family == "mean_field":
        return local
    return new_local({"mean": mean, "factor": pack_diagonal(local.values["log_sd"])})


def factor_of(local: Local) -> Float64[np.ndarray, "B Q Q"]:
    """Return C of rows that have Gaussians of their own, N(m, C C')."""
    if "factor" in local.values:
        return unpack_cholesky(local.values["factor"], local.values["mean"].shape[1])
    log_sd = local.values["log_sd"]
    return np.asarray(np.exp(log_sd)[:, :, None] * np.eye(log_sd.shape[1]))


def initial_inputs(
    settings: Settings,
    fixed: Standardisation,
    mean: Float64[np.ndarray, "B Q"],
    factor: Float64[np.ndarray, "B Q Q"],
    block: Block,
    step: Step,
) -> dict[str, Array]:
    """Return where q(X) begins: the Gaussians N(m, C C') of z in their leading directions.

    Where there are more inputs than that, noise of little variance; and no spread that s_q^2 has to hold.
    """
    assert fixed.turn is not None
    assert fixed.centre is not None
    noise = step_at(step, 0).normal(SPREAD, block.rows, fixed.turn.shape[1])
    spread = np.where(fixed.turn.any(axis=0), UNEVEN, START_SD)
    turned = factor.swapaxes(1, 2) @ fixed.turn * float(settings.spreads_inputs)
    covariance = turned.swapaxes(1, 2) @ turned + START_SPREAD * np.eye(turned.shape[2])
    inputs = {"inputs": np.asarray((mean - fixed.centre) @ fixed.turn + spread * noise)}
    if settings.q_x == "diagonal":
        return inputs | {"log_spread": np.log(np.diagonal(covariance, axis1=1, axis2=2))}
    return inputs | {"spread": pack_factors(np.linalg.cholesky(covariance))}


def pack_factors(factors: Float64[np.ndarray, "B Q Q"]) -> Float64[np.ndarray, "B P"]:
    """Return Cholesky factors packed by rows, the diagonal in logarithms."""
    q = factors.shape[1]
    out = factors[:, *np.tril_indices(q)]
    diagonal = np.cumsum(np.arange(1, q + 1)) - 1
    out[:, diagonal] = np.log(out[:, diagonal])
    return np.asarray(out)


def pack_diagonal(log_diagonal: Float64[np.ndarray, "B Q"]) -> Float64[np.ndarray, "B P"]:
    """Return diagonal Cholesky factors, packed."""
    q = log_diagonal.shape[1]
    out = np.zeros((len(log_diagonal), q * (q + 1) // 2))
    out[:, np.cumsum(np.arange(1, q + 1)) - 1] = log_diagonal
    return out


def unpack_cholesky(packed_: Float64[np.ndarray, "B P"], q: int) -> Float64[np.ndarray, "B Q Q"]:
    """Return the Cholesky factors of packed ones."""
    out = np.zeros((len(packed_), q, q))
    out[:, *np.tril_indices(q)] = packed_
    diagonal = np.arange(q)
    out[:, diagonal, diagonal] = np.exp(out[:, diagonal, diagonal])
    return out


def covariance_of_inputs(local: Local | None, phi: Float64[np.ndarray, "B R"]) -> Array:
    """Return Phi of rows (B, R, R); 0 where X is given."""
    n, r = phi.shape
    if local is None:
        return np.zeros((n, r, r))
    if "log_spread" in local.values:
        return np.asarray(np.exp(local.values["log_spread"])[:, :, None] * np.eye(r))
    factor = unpack_cholesky(local.values["spread"], r)
    return np.asarray(factor @ factor.swapaxes(1, 2))


def noise_of(settings: Settings, family: Family, block: Block, step: Step, n_draws: int) -> list[Arrays]:
    """Return the standard normals of each draw (`autodiff.bound.terms_of_rows`)."""
    q, r = settings.n_factors, settings.n_inputs
    parts = {"scores": step.normal(SCORES, block.rows, n_draws * q).reshape(-1, n_draws, q)}
    if family == "gp":
        if settings.learns_inputs:
            parts["inputs"] = step.normal(INPUTS, block.rows, n_draws * r).reshape(-1, n_draws, r)
        parts |= _noise_of_inducing(settings, step, n_draws)
    return [
        {name: np.ascontiguousarray(array[:, s]) for name, array in parts.items()} for s in range(n_draws)
    ]


def _noise_of_inducing(settings: Settings, step: Step, n_draws: int) -> Arrays:
    """Return what w is drawn with, (M, S, Q)."""
    q, m = settings.n_factors, settings.n_inducing

    def draw(site: int) -> Float64[np.ndarray, "M S Q"]:
        return np.asarray(step.normal(site, np.arange(m), n_draws * q).reshape(m, n_draws, q))

    if not settings.draws_u:
        return {"w": np.zeros((m, n_draws, q))}
    noise = {"w": draw(INDUCING)}
    return noise | {"w_again": draw(AGAIN)} if settings.bound == "product" else noise


def noise_of_inducing(settings: Settings, step: Step, n_draws: int) -> list[Arrays]:
    """Return what w is drawn with in each draw, (M, Q): at the root, where there are no rows."""
    parts = _noise_of_inducing(settings, step, n_draws)
    return [
        {name: np.ascontiguousarray(array[:, s]) for name, array in parts.items()} for s in range(n_draws)
    ]
