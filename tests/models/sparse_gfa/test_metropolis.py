"""Metropolis steps of the sampler of sparse GFA: against sums over a grid, and in fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import factorflow
from factorflow.core.block import Meta, ViewMeta
from factorflow.kernels.linalg import n_pairs
from factorflow.kernels.random import Step
from factorflow.likelihoods import get_likelihood
from factorflow.models import SparseGFA
from factorflow.models.sparse_gfa.kernels.draws import draw_loadings
from factorflow.models.sparse_gfa.loadings import get_prior
from factorflow.models.sparse_gfa.loadings.drawn import LoadingParameters
from factorflow.models.sparse_gfa.m_step import System
from factorflow.models.sparse_gfa.sampler import metropolis
from factorflow.models.sparse_gfa.sampler.feature_prior import FeaturePrior
from factorflow.models.sparse_gfa.sampler.metropolis import Entries
from factorflow.report import write_report

ENTRIES = {
    "poisson": [0.0, 3.0, np.nan, 1.0, 9.0],
    "negative_binomial": [0.0, 3.0, np.nan, 1.0, 9.0],
    "binomial(trials=4)": [0.0, 1.0, np.nan, 4.0, 3.0],
    "student_t": [-0.3, 4.0, np.nan, 0.8, 1.1],
    "gamma": [0.3, 4.0, np.nan, 0.8, 1.1],
    "beta": [0.3, 0.9, np.nan, 0.2, 0.5],
    "zero_inflated_poisson": [0.0, 3.0, np.nan, 1.0, 9.0],
    "ordinal(levels=3)": [0.0, 2.0, np.nan, 1.0, 1.0],
    "censored": [-0.3, 1.0, np.nan, 0.8, 1.1],
}
"""One of them is missing."""

SIDES = {"censored": np.array([-1.0, 1.0, 0.0, 0.0, -1.0])}
"""What entries have beside their values."""


def _settings() -> Any:
    view = ViewMeta("v", "poisson", 3, "scattered")
    return SparseGFA(n_factors=1, n_draws=1, precision=64).build(Meta(9, 1, 32, (view,))).settings


def _off(found: Any, expected: Any) -> Any:
    """Return by how many standard errors means over independent chains, in rows, are off."""
    return (found.mean(axis=0) - expected) / (found.std(axis=0) / np.sqrt(len(found)))


@pytest.mark.parametrize(("name", "level"), [*((name, 0.0) for name in ENTRIES), ("poisson", 0.7)])
def test_scores_have_their_posterior(name: str, level: float) -> None:
    """One factor, loadings given: rows with the same entries are independent chains; ``level``: of sizes."""
    density, rows = get_likelihood(name), 6000
    y = np.tile(ENTRIES[name], (rows, 1))
    loadings = np.column_stack([[0.8, -1.2, 0.5, 0.0, 1.5], [0.3, 0.5, 0.1, -0.4, 0.6]])
    phi = np.full((5, density.n_phi), 0.3)
    z = np.linspace(-6.0, 6.0, 2001)
    x = z[:, None] * loadings[:, 0] + loadings[:, 1]
    side = SIDES.get(name)
    log = (
        np.where(y[0] == y[0], density.log_kernel(y[0], x + level, phi.T, side), 0.0).sum(axis=1) - 0.5 * z**2
    )
    expected = np.exp(log - log.max())
    expected /= expected.sum()

    aux = None if side is None else np.tile(side, (rows, 1))
    u, r = metropolis.stand_ins(_settings(), density, y, np.tile(loadings[:, 1], (rows, 1)), phi, aux, level)
    precision = 1.0 + (u * loadings[:, 0] ** 2).sum(axis=1)
    left = r - u * (loadings[:, 1] + level)  # stand-ins are of what the offset is part of
    centre = (left * loadings[:, 0]).sum(axis=1) / precision
    entries, rng = (
        [Entries(density, y, u, r, loadings, phi, aux, np.full((rows, 1), level))],
        np.random.default_rng(2),
    )
    scores, tried = np.full((rows, 1), 2.0), 0.0
    for i in range(25):
        fresh = centre + rng.normal(size=rows) / np.sqrt(precision)
        given = (
            entries,
            np.ones((rows, 1)),
            centre[:, None],
            scores,
            fresh[:, None],
            np.arange(rows),
            Step(3, 0, i),
        )
        scores, tried = metropolis.slice_scores(*given)
    found = np.concatenate([scores, scores**2, np.abs(scores)], axis=1)
    off = _off(found, [expected @ z, expected @ z**2, expected @ np.abs(z)])
    assert np.abs(off).max() < 4.5, off
    assert rows <= tried < 4 * rows


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "k", "sized"),
    [
        ("poisson", 2, False),
        ("negative_binomial", 1, True),
        ("student_t", 1, False),
        ("ordinal(levels=3)", 1, False),
        ("censored", 1, False),
    ],
)
def test_features_have_their_posterior(name: str, k: int, sized: bool) -> None:
    """Scores given, of two factors much alike: features with the same entries are independent chains."""
    density, n, theta, alpha, m, lam = get_likelihood(name), 3000, 0.4, 0.8, 0.2, 1.5
    y, side = np.array(ENTRIES[name]), SIDES.get(name)
    z = np.column_stack([[0.5, 1.0, -1.0, -0.7, 1.8], [0.6, 0.9, -1.1, -0.6, 1.9]])[:, :k]
    level = sized * np.array([0.8, -0.5, 0.0, 0.4, 1.0])[:, None]
    slab = np.linspace(-6.0, 6.0, 61)
    of_slab = theta * stats.norm.pdf(slab, scale=alpha**-0.5) * 0.2
    of_loading = np.append(slab, 0.0), np.append(of_slab, 1.0 - theta), np.append(slab < 9.0, False)
    b, phi = np.linspace(m - 5.0, m + 5.0, 61), np.linspace(-8.0, 8.0, 81)
    axes = [of_loading[0]] * k + [b] + [phi] * density.n_phi
    masses = [of_loading[1]] * k + [stats.norm.pdf(b, m, lam**-0.5)]
    masses += [stats.norm.pdf(phi, density.phi_mean, density.phi_sd)] * density.n_phi
    grid, mass = np.array(np.meshgrid(*axes, indexing="ij")), np.ones(())
    for each in masses:
        mass = mass[..., None] * each
    log = np.zeros(mass.shape)
    for row in np.flatnonzero(y == y):
        x = grid[k] + level[row] + sum(z[row, j] * grid[j] for j in range(k))
        beside = None if side is None else side[row] + 0.0 * x
        log += density.log_density(y[row] + 0.0 * x, x, grid[k + 1 :], beside)
    mass = mass * np.exp(log - log.max())
    mass /= mass.sum()
    on = np.array(np.meshgrid(*[of_loading[2]] * k, *axes[k:], indexing="ij"), float)[:k]
    expected = [*((mass * part).sum() for part in (*on, *grid, *grid**2))]

    design, seen = np.column_stack([z, np.ones(5)]), y == y
    reference, start = np.full((5, 1), 0.5), np.full((1, density.n_phi), 0.3)
    aux = None if side is None else side[:, None]
    stand_ins = metropolis.stand_ins(_settings(), density, y[:, None], reference, start, aux, level)
    u, r = (part[:, 0] for part in stand_ins)
    gram = (design[seen] * u[seen, None]).T @ design[seen]
    pairs = np.tile(gram[np.tril_indices(k + 1)], (n, 1))
    assert pairs.shape[1] == n_pairs(k + 1)
    system = System(pairs, np.tile(r[seen] @ design[seen], (n, 1)), np.ones(n))
    parameters = LoadingParameters(np.full(k, alpha), np.full(k, theta))
    prior = FeaturePrior(get_prior("spike_slab"), parameters, None, np.array([lam]), np.full(n, m))
    loadings, phis = np.zeros((n, k + 1)), np.full((n, density.n_phi), 0.3)
    count, numbers, entries = np.full(n, 4.0), np.arange(n), np.tile(y[:, None], (1, n))
    for i in range(200):
        step = Step(5, 0, i)
        tries = metropolis.propose(
            system, prior, density, (loadings[:, :k], loadings[:, k:], phis), count, numbers, step
        )
        beside = None if aux is None else np.tile(aux, (1, n))
        sums = metropolis.try_sums(density, entries, design, tries, beside, level)
        taken = tries[numbers, metropolis.choose(density, tries, sums, numbers, step)]
        loadings, phis = taken[:, : k + 1], taken[:, k + 1 : -1]
    states = np.concatenate([loadings, phis], axis=1)
    off = _off(np.concatenate([loadings[:, :k] != 0.0, states, states**2], axis=1), expected)
    assert np.abs(off).max() < 4.5, off


@pytest.mark.thorough
def test_the_kernel_runs_backwards_to_the_place_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """s before and after a step from its own distribution: backwards the other way round."""
    n, rng, called = 200_000, np.random.default_rng(4), []
    gram = np.array([[5.0, 4.5, 0.0], [4.5, 5.0, 0.0], [0.0, 0.0, 4.0]])
    given = gram[np.tril_indices(3)][None], np.tile([4.0, 2.0, 0.0], (n, 1)), np.ones(n)
    prior = np.ones(3), np.zeros(n), np.array([0.5, 1.5])

    def drawn(w: Any, *, backwards: bool) -> Any:
        noise = rng.random((n, 2)), rng.normal(size=(n, 3))
        return draw_loadings(*given, *prior, noise, w, backwards=backwards)

    w = np.zeros((n, 3))
    for _ in range(10):
        w = drawn(w, backwards=False)
    pairs = {}
    for backwards in (False, True):
        here, there = ((each[:, :2] != 0.0) @ [2, 1] for each in (w, drawn(w, backwards=backwards)))
        pairs[backwards] = np.bincount(4 * here + there, minlength=16).reshape(4, 4) / n
    error = np.sqrt(pairs[False] * 2.0 / n) + 1e-5
    assert (np.abs(pairs[True].T - pairs[False]) < 5.0 * error).all()
    assert (np.abs(pairs[True] - pairs[False]) > 8.0 * error).any()

    def spied(*given: Any, backwards: bool = False) -> Any:
        called.append(backwards)
        return draw_loadings(*given, backwards=backwards)

    monkeypatch.setattr(metropolis.draws, "draw_loadings", spied)
    parameters = LoadingParameters(prior[0][:2], prior[2] / (1.0 + prior[2]))
    own = FeaturePrior(get_prior("spike_slab"), parameters, None, prior[0][2:], prior[1][:8])
    density, start = get_likelihood("poisson"), (w[:8, :2], w[:8, 2:], np.zeros((8, 0)))
    system = System(*(part[:8] for part in given))
    metropolis.propose(system, own, density, start, np.ones(8), np.arange(8), Step(1))
    assert called == [True, *[False] * (len(called) - 1)]


@pytest.mark.thorough
@pytest.mark.parametrize("likelihood", ["poisson", pytest.param("negative_binomial", marks=pytest.mark.slow)])
def test_chains_agree_with_the_fit(likelihood: str, tmp_path: Any) -> None:
    """Predictors of many entries a parameter: means of the draws are those of the fit, which is close."""
    rng = np.random.default_rng(8)
    z, w = rng.normal(size=(150, 2)), 0.6 * rng.normal(size=(20, 2)) * (rng.random((20, 2)) < 0.6)
    x = z @ w.T + rng.normal(1.5, 0.5, 20)
    rate = np.exp(x) * (rng.gamma(3.0, size=x.shape) / 3.0 if likelihood == "negative_binomial" else 1.0)
    y = np.where(rng.random(x.shape) < 0.1, -1, rng.poisson(rate))
    data = factorflow.write_dataset(
        tmp_path / "d.zarr", {"v": np.where(y < 0, np.nan, y)}, likelihoods={"v": "poisson"}
    )
    options: dict[str, Any] = {"n_factors": 4, "likelihoods": likelihood}
    fit = factorflow.fit(data, SparseGFA(**options), seed=1, progress=False)
    config = SparseGFA(**options, n_draws=200, n_burn_in=100, chains=2)
    chains = factorflow.fit(data, config, seed=1, progress=False)
    loadings, scores = chains.draws("loadings_v").values, chains.draws("scores_draws").values
    level = chains.draws("intercept_v").values[:, :, None]
    drawn = (np.einsum("cmnk,cmdk->cmnd", scores, loadings) + level).reshape(-1, *x.shape)
    fitted = fit.scores().values @ fit.loadings("v").values.T + fit.intercept("v").values
    apart = (drawn.mean(axis=0) - fitted) / drawn.std(axis=0)
    assert np.sqrt((apart**2).mean()) < 0.6
    inside = np.abs(x - drawn.mean(axis=0)) < 1.645 * drawn.std(axis=0)
    assert 0.8 < inside.mean() < 0.97
    kept = chains.tree["sample_stats"].to_dataset()
    assert (kept["accepted_v"] > 0.3).all()
    assert (kept["accepted_v"] <= 1.0).all()
    assert 1.0 <= kept["slices"].mean() < 3.0
    accepted = chains.summary()["accepted"]["v"]
    assert accepted == pytest.approx(float(kept["accepted_v"].mean()), abs=1e-6)
    (line,) = (line for line in repr(chains).splitlines() if "Metropolis steps taken: " in line)
    assert f" v {100 * accepted:.2f} %" in line
    mean, sd = (chains.predict("v")[key].load().values for key in ("mean", "sd"))
    seen = y >= 0
    assert np.sqrt((((y - mean) / sd)[seen] ** 2).mean()) == pytest.approx(0.95, abs=0.15)
    if likelihood == "negative_binomial":
        assert chains.draws("dispersion_v").values.mean() == pytest.approx(1.0 / 3.0, abs=0.08)
        assert "accepted_phi_v" in kept
        page = write_report(chains, tmp_path / "report.html").read_text()
        assert f"<p>{line.strip()}.</p>" in page
