"""Loadings of one feature against enumeration over c; thresholds as in test_factors.py."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from factorflow.kernels.random import Step
from factorflow.kernels.scalar.normal import RELAXATION
from factorflow.models.probit.kernels.blocks import draw_loadings

ODDS, VARIANCE = 0.8, 0.7
SIZE = 3


def packed(matrix: Any) -> Any:
    rows, columns = np.triu_indices(len(matrix))
    return matrix[rows, columns]


def problem(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    f = np.column_stack([rng.normal(size=(6, SIZE - 1)), np.ones(6)])
    return f.T @ f, f.T @ rng.normal(size=6)


def exact_moments(gram: Any, force: Any) -> Any:
    """Return E c, E z, E z^2 by enumeration of c (equations 15 and 16)."""
    total, moments = 0.0, 0.0
    for c in product((0, 1), repeat=SIZE):
        on = np.flatnonzero(c)
        covariance = np.zeros((SIZE, SIZE))
        precision = gram[np.ix_(on, on)] + np.eye(len(on)) / VARIANCE
        covariance[np.ix_(on, on)] = np.linalg.inv(precision)
        mean = covariance @ force
        log = len(on) * (np.log(ODDS) - 0.5 * np.log(VARIANCE)) + 0.5 * force @ mean
        weight = np.exp(log - 0.5 * np.linalg.slogdet(precision)[1])
        moments = moments + weight * np.concatenate([c, mean, mean**2 + np.diag(covariance)])
        total += weight
    return moments / total


def chain(gram: Any, force: Any, n_chains: int, sweeps: int, squares: float = 0.0, chi: Any = None) -> Any:
    """Return draws (sweeps, n_chains, SIZE) of as many independent features with the same statistics."""
    repeat = np.ones(n_chains)
    z, out = np.zeros((n_chains, SIZE)), []
    for i in range(sweeps):
        step, index = Step(3, 0, i), np.arange(n_chains)
        scale = np.zeros(n_chains) if chi is None else chi
        noise = step.uniform(1, index, SIZE), step.normal(2, index, SIZE), scale
        arrays = (np.outer(repeat, packed(gram)), np.outer(repeat, force), squares * repeat)
        z = draw_loadings(*arrays, ODDS, VARIANCE, noise, z)
        out.append(z)
    return np.array(out)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_moments_match_enumeration(seed: int) -> None:
    gram, force = problem(seed)
    draws = chain(gram, force, 4000, 30)[10:]
    values = np.concatenate([(draws != 0).mean(0), draws.mean(0), (draws**2).mean(0)], axis=1)
    z = (values.mean(0) - exact_moments(gram, force)) / (values.std(0, ddof=1) / np.sqrt(len(values)))
    assert np.abs(z).max() < 6, z


def test_rescaling_multiplies_the_mean() -> None:
    """With g^2 (sum of y^2 - j' Sigma j) = chi^2, the mean of z given c is g Sigma j."""
    gram, force = problem(4)
    gram = gram * 1e8  # so that noise is small, and c certain
    force = force * 1e8
    precision = gram + np.eye(SIZE) / VARIANCE
    rest = 3.0
    squares = force @ np.linalg.solve(precision, force) + rest
    drawn = chain(gram, force, 5, 1, squares, np.full(5, 12.0))[-1]
    np.testing.assert_allclose(drawn, np.tile(2.0 * np.linalg.solve(precision, force), (5, 1)), rtol=5e-3)


def test_loadings_lie_opposite_to_those_before() -> None:
    """Given the same statistics and c, residuals from the mean are correlated by minus the relaxation."""
    gram, force = problem(4)
    gram, force = gram * 1e4, force * 1e4  # so that c is certain
    mean = np.linalg.solve(gram + np.eye(SIZE) / VARIANCE, force)
    residuals = (chain(gram, force, 2000, 6)[-2:] - mean).reshape(2, -1)
    # 6000 pairs, standard error of the correlation (1 - .9^2) / sqrt(6000) = .0025; features differ in scale
    assert abs(np.corrcoef(*residuals)[0, 1] + RELAXATION) < 0.02


def test_nothing_observed_gives_the_prior() -> None:
    draws = chain(np.zeros((SIZE, SIZE)), np.zeros(SIZE), 20_000, 2)[-1]
    share = ODDS / (1 + ODDS)
    # 60 000 entries: standard errors .002 of the share and .006 of the variance; five of them
    assert abs((draws != 0).mean() - share) < 0.01
    assert abs(draws[draws != 0].var() / VARIANCE - 1) < 0.04
