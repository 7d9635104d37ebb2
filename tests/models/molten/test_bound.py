"""The bound: by its definition row by row, never falling at any single update, equal to exact evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import gammaln, logsumexp

from factorflow.models import MoltenNormal, MoltenPoisson
from factorflow.models.molten.counts import best_dispersion
from factorflow.models.molten.scales import best_scales

QUICK = {"n_components": 3, "n_starts": 1, "drop": 0.0}

COUNTS = {
    "plain": {},
    "fixed prior": {"shape": 0.7, "rate": 2.0},
    "learned rate": {"shape": 0.5},
    "additive": {"additive": True},
    "overdispersed": {"overdispersed": True},
    "all": {"additive": True, "overdispersed": True},
    "without scale step": {"scale_step": False},
    "random start": {"start": "random"},
}
GAUSSIAN = {
    "plain": {},
    "fixed prior": {"precision": 1.5},
    "without intercept": {"intercept": False},
    "strong intercept": {"intercept_precision": 3.0},
    "without scale step": {"scale_step": False},
    "random start": {"start": "random"},
}


def codes(n_rows: int, sizes: tuple[int, ...], missing: float, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    out = np.stack([rng.integers(0, n, n_rows) for n in sizes], axis=1)
    out[rng.random(out.shape) < missing] = -1
    out[0] = np.array(sizes) - 1
    return out


def count_table(tools: Any, missing: float = 0.0, sizes: tuple[int, ...] = (6, 4, 3)) -> Any:
    rng, x = np.random.default_rng(1), codes(90, sizes, missing)
    factors = [rng.gamma(1.0, 1.5, (n + 1, 2)) for n in sizes]
    rate = np.prod([f[x[:, g]] for g, f in enumerate(factors)], axis=0).sum(axis=1)
    t = rng.uniform(0.2, 3.0, 90)
    t[7] = np.nan
    y = rng.poisson(rate * np.nan_to_num(t)).astype(float)
    y[5] = np.nan
    return tools.table(x, y, "poisson", 40, exposure=t)


def gaussian_table(tools: Any, missing: float = 0.0, sizes: tuple[int, ...] = (6, 4, 3)) -> Any:
    rng, x = np.random.default_rng(2), codes(90, sizes, missing)
    factors = [rng.normal(size=(n + 1, 2)) for n in sizes]
    mean = np.prod([f[x[:, g]] for g, f in enumerate(factors)], axis=0).sum(axis=1)
    w = rng.integers(1, 4, 90).astype(float)
    y = 3.0 + mean + 0.3 * rng.normal(size=90)
    return tools.table(
        x, y, "gaussian", 40, weight=w, within=(w - 1) * rng.gamma(1.0, 0.1, 90), offset=rng.normal(size=90)
    )


@pytest.mark.parametrize("missing", ["none", "level", "one"])
@pytest.mark.parametrize("case", COUNTS)
def test_bound_of_counts_at_every_update(case: str, missing: str, tools: Any) -> None:
    """It never falls; the complete bound lies between that with the shares of the iteration and the next."""
    if missing == "one" and COUNTS[case].get("additive"):
        pytest.skip("refused")
    meta, blocks = count_table(tools, 0.0 if missing == "none" else 0.1)
    config = MoltenPoisson(**QUICK, **COUNTS[case], missing="one" if missing == "one" else "level")
    model = config.build(meta)
    tools.check_bound_of_counts(model, config, meta, blocks)


@pytest.mark.parametrize("missing", ["none", "level", "one"])
@pytest.mark.parametrize("case", GAUSSIAN)
def test_bound_of_measurements_at_every_update(case: str, missing: str, tools: Any) -> None:
    meta, blocks = gaussian_table(tools, 0.0 if missing == "none" else 0.1)
    config = MoltenNormal(**QUICK, **GAUSSIAN[case], missing="one" if missing == "one" else "level")
    model = config.build(meta)
    last = -np.inf
    for globals_, info in tools.rounds(config, meta, blocks, 12):
        assert info["objective"] == pytest.approx(tools.bound(model, blocks, globals_), rel=1e-9)
        assert info["objective"] > last - 1e-10 * abs(last if np.isfinite(last) else 1.0)
        last = info["objective"]


@pytest.mark.thorough
@pytest.mark.parametrize("variables", [1, 2])
def test_one_component_of_one_variable_is_exact_for_counts(variables: int, tools: Any) -> None:
    """L = 1 and G = 1: Gamma-Poisson by level. A second variable with one level of prior 1 changes little."""
    rng = np.random.default_rng(3)
    x, t = rng.integers(0, 4, (30, 1)), rng.uniform(0.5, 2.0, 30)
    x[:4, 0] = np.arange(4)
    y = rng.poisson(2.0 * t)
    a, b = 0.7, 1.3
    evidence = 0.0
    for d in range(4):
        at = x[:, 0] == d
        evidence += (y[at] * np.log(t[at]) - gammaln(y[at] + 1)).sum() + a * np.log(b) - gammaln(a)
        evidence += gammaln(a + y[at].sum()) - (a + y[at].sum()) * np.log(b + t[at].sum())
    if variables == 2:  # an exact integral over the one factor they share, of log evidence given it
        x = np.column_stack([x, np.zeros(30, dtype=int)])

        def given(z: float) -> float:
            out = stats.gamma.logpdf(z, a, scale=1 / b) + a * 4 * np.log(b) - 4 * gammaln(a)
            out += (y * np.log(t * z) - gammaln(y + 1)).sum()
            for d in range(4):
                at = x[:, 0] == d
                out += gammaln(a + y[at].sum()) - (a + y[at].sum()) * np.log(b + z * t[at].sum())
            return float(out)

        peak = max(given(z) for z in np.geomspace(1e-3, 30, 400))
        integral = integrate.quad(lambda z: np.exp(given(z) - peak), 0, 60, points=[0.1, 1, 5], limit=500)[0]
        evidence = np.log(integral) + peak
    meta, blocks = tools.table(x, y, "poisson", exposure=t)
    config = MoltenPoisson(n_components=1, shape=a, rate=b, n_starts=1)
    bound = list(tools.rounds(config, meta, blocks, 400))[-1][1]["objective"]
    if variables == 1:
        assert bound == pytest.approx(evidence, rel=1e-10)
    else:
        assert evidence - 1.5 < bound < evidence


def test_one_component_of_one_variable_is_exact_for_measurements(tools: Any) -> None:
    """Given the noise precision (a prior as good as a point), L = 1, G = 1 and no intercept."""
    rng = np.random.default_rng(4)
    x, o = rng.integers(0, 4, (30, 1)), rng.normal(size=30)
    x[:4, 0] = np.arange(4)
    y = np.float32(rng.normal(size=30) + o)
    noise, tau = 2.0, 0.8
    evidence = 0.0
    for d in range(4):
        at = x[:, 0] == d
        covariance = np.eye(at.sum()) / noise + 1 / tau
        evidence += stats.multivariate_normal.logpdf((y - o)[at], cov=covariance)
    meta, blocks = tools.table(x, y, "gaussian", offset=o)
    known = (2e9, 1e9 / float(np.var(y - o)))
    config = MoltenNormal(n_components=1, precision=tau, n_starts=1, intercept=False, noise_prior=known)
    bound = list(tools.rounds(config, meta, blocks, 5))[-1][1]["objective"]
    assert bound == pytest.approx(evidence, rel=1e-6)  # what is left of log Gamma(2e9)


@pytest.mark.thorough
@pytest.mark.parametrize("likelihood", ["poisson", "gaussian"])
def test_bound_is_below_the_evidence_by_the_divergence(likelihood: str, tools: Any) -> None:
    """log p(y) estimated by importance sampling from q: at or above the bound, and not by much."""
    rng = np.random.default_rng(5)
    x = codes(24, (3, 2), 0.0)
    n = 200_000
    if likelihood == "poisson":
        y = rng.poisson(3.0, 24)
        meta, blocks = tools.table(x, y, "poisson")
        config: Any = MoltenPoisson(n_components=1, shape=2.0, rate=1.0, n_starts=1)
    else:
        y = np.float32(rng.normal(size=24))
        meta, blocks = tools.table(x, y, "gaussian")
        known = (2e9, 2e9 / float(np.var(np.float64(y))))
        config = MoltenNormal(n_components=1, precision=1.0, n_starts=1, intercept=False, noise_prior=known)
    globals_, info = list(tools.rounds(config, meta, blocks, 300))[-1]
    weight, product = np.zeros(n), 1.0
    for name, g in (("a", 0), ("b", 1)):
        level, size = globals_.levels[name], (3, 2)[g]
        one, two = level.one[:size, 0, 0], level.two[:size, 0, 0]
        if likelihood == "poisson":
            drawn = rng.gamma(one, 1 / two, (n, size))
            weight += (stats.gamma.logpdf(drawn, 2.0) - stats.gamma.logpdf(drawn, one, scale=1 / two)).sum(1)
        else:
            drawn = rng.normal(one, np.sqrt(two), (n, size))
            weight += (stats.norm.logpdf(drawn) - stats.norm.logpdf(drawn, one, np.sqrt(two))).sum(1)
        product = product * drawn[:, x[:, g]]
    density = stats.poisson.logpmf(y, product) if likelihood == "poisson" else stats.norm.logpdf(y, product)
    estimate = logsumexp(weight + density.sum(axis=1)) - np.log(n)
    assert info["objective"] < estimate + 0.02
    assert estimate - info["objective"] < 2.0


@pytest.mark.parametrize("linear", [False, True])
def test_a_response_in_another_unit(linear: bool, tools: Any) -> None:
    """The fit of y in thousandths is that of y, in thousandths; a level without rows included."""
    rng = np.random.default_rng(7)
    x = codes(60, (4, 3), 0.0)
    x[x[:, 0] == 2, 0] = 1
    y = np.float32(x[:, 0] * (1.0 + x[:, 1]) + 0.1 * rng.normal(size=60))
    more: dict[str, Any] = {"x": rng.uniform(size=(60, 2))} if linear else {}
    config = MoltenNormal(**QUICK, linear=("x",) if linear else None)
    ends = [
        list(tools.rounds(config, *tools.table(x, y * unit, "gaussian", **more), 20))[-1][0]
        for unit in (1.0, 2.0**-12)
    ]
    power = -12.0 / (3 if linear else 2)
    for name in "ab":
        one, other = (globals_.levels[name] for globals_ in ends)
        np.testing.assert_allclose(other.one, 2.0**power * one.one, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(other.two, 4.0**power * one.two, rtol=1e-6)
    np.testing.assert_allclose(ends[1].noise[1], 4.0**-12 * ends[0].noise[1], rtol=1e-6)
    np.testing.assert_allclose(ends[1].intercept[0], 2.0**-12 * ends[0].intercept[0], rtol=1e-5)


def test_merged_measurements_are_those_of_the_rows(tools: Any) -> None:
    """Rows with equal codes as one, with their mean, number and spread: the same bound and factors."""
    rng = np.random.default_rng(6)
    cells = codes(20, (4, 3), 0.0)
    cells = np.unique(cells, axis=0)
    each = rng.integers(1, 5, len(cells))
    x, which = np.repeat(cells, each, axis=0), np.repeat(np.arange(len(cells)), each)
    y = np.round(rng.normal(size=len(x)) * 64) / 64  # sums of them are exact in single precision
    mean = np.bincount(which, y) / each
    mean = np.float32(mean).astype(float)
    within = np.bincount(which, (y - mean[which]) ** 2)
    both = (tools.table(x, y, "gaussian"), tools.table(cells, mean, "gaussian", weight=each, within=within))
    ends = [list(tools.rounds(MoltenNormal(**QUICK), *table, 8))[-1] for table in both]
    assert ends[0][1]["objective"] == pytest.approx(ends[1][1]["objective"], rel=1e-6)
    for name in "ab":
        np.testing.assert_allclose(
            ends[0][0].levels[name].one, ends[1][0].levels[name].one, rtol=1e-3, atol=1e-4
        )


def test_merged_counts_are_those_of_the_rows(tools: Any) -> None:
    """Sums of counts and exposures: the bound differs by what the constant of the table makes up for."""
    rng = np.random.default_rng(7)
    cells = np.unique(codes(20, (4, 3), 0.0), axis=0)
    each = rng.integers(1, 5, len(cells))
    x, which = np.repeat(cells, each, axis=0), np.repeat(np.arange(len(cells)), each)
    t, y = rng.uniform(0.5, 2.0, len(x)), rng.poisson(3.0, len(x)).astype(float)
    merged, exposure = np.bincount(which, y), np.bincount(which, t)
    constant = (y * np.log(t) - gammaln(y + 1)).sum()
    constant -= (merged * np.log(exposure) - gammaln(merged + 1)).sum()
    meta, blocks = tools.table(x, y, "poisson", exposure=t)
    whole = list(tools.rounds(MoltenPoisson(**QUICK), meta, blocks, 8))[-1]
    meta, blocks = tools.table(cells, merged, "poisson", exposure=exposure)
    model = MoltenPoisson(**QUICK).build(meta)
    roles = replace(model.settings.roles, constant=constant)
    model = replace(model, settings=replace(model.settings, roles=roles))
    globals_, _ = tools.round_of(model.stages()[0].sweeps[0], blocks, model.init(tools.step))
    for _ in range(8):
        for sweep in model.stages()[-1].sweeps:
            globals_, info = tools.round_of(sweep, blocks, globals_)
    assert info["objective"] == pytest.approx(whole[1]["objective"], rel=1e-9)
    for name in "ab":
        np.testing.assert_allclose(globals_.levels[name].one, whole[0].levels[name].one, rtol=1e-7)


def test_best_dispersion_is_at_the_maximum() -> None:
    """Of E log p(xi | c), given the sums that it depends on; and it finds c of many draws."""
    xi = np.random.default_rng(9).gamma(2.5, 1 / 2.5, 20_000)
    mixed = np.zeros((6, 1))
    mixed[1], mixed[4] = xi.sum(), np.log(xi).sum()
    c = best_dispersion(mixed, len(xi))[0]
    around = c * np.array([0.99, 1.0, 1.01])
    density = [stats.gamma.logpdf(xi, x, scale=1 / x).sum() for x in around]
    assert density[1] > max(density[0], density[2])
    assert c == pytest.approx(2.5, rel=0.03)


@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
def test_best_scales_are_at_the_maximum(spread: float) -> None:
    """Product 1, and counts - c sums equal for all variables: no direction along the constraint climbs."""
    rng = np.random.default_rng(8)
    counts, sums = (np.exp(spread * rng.normal(size=(4, 2, 3))) for _ in range(2))
    c = best_scales(counts, sums)
    np.testing.assert_allclose(np.log(c).sum(axis=0), 0.0, atol=1e-12)
    slope = counts - c * sums
    np.testing.assert_allclose(
        slope, np.broadcast_to(slope[0], slope.shape), rtol=1e-7, atol=1e-9 * counts.max()
    )


def test_scale_step_climbs_what_updates_crawl_along(tools: Any) -> None:
    """From factors that lie on very different scales: with the step the bound is there at once."""
    meta, blocks = count_table(tools)
    ends = []
    for scale_step in (True, False):
        config = MoltenPoisson(**QUICK, shape=0.7, rate=1.0, scale_step=scale_step)
        begun, _ = list(tools.rounds(config, meta, blocks, 60))[-1]
        levels = dict(begun.levels)
        for name, by in (("a", 30.0), ("b", 1 / 30.0)):
            free = levels[name].seen[:, None, None] > 0
            levels[name] = replace(levels[name], two=np.where(free, levels[name].two * by, levels[name].two))
        moved = replace(begun, levels=levels)
        ends.append(list(tools.rounds(config, meta, blocks, 3, moved))[-1][1]["objective"])
    assert ends[0] - ends[1] > 5.0


@pytest.mark.thorough
def test_tables_of_single_precision(tools: Any) -> None:
    """They change the seventh digit: of the bound, and of factors after some iterations."""
    meta, blocks = count_table(tools, 0.1)
    double, single = (
        list(tools.rounds(MoltenPoisson(**QUICK, additive=True, table_bits=bits), meta, blocks, 5))[-1]
        for bits in (64, 32)
    )
    assert single[1]["objective"] == pytest.approx(double[1]["objective"], rel=1e-6)
    assert single[1]["objective"] != double[1]["objective"]
    for name in "abc":
        np.testing.assert_allclose(single[0].levels[name].one, double[0].levels[name].one, rtol=1e-4)


@pytest.mark.thorough
def test_factors_far_apart_in_single_precision(tools: Any) -> None:
    """Levels whose factors share no component leave a rate above 0: no count is divided by nothing."""
    meta, blocks = count_table(tools)
    config = MoltenPoisson(**QUICK, shape=0.01, rate=1.0, table_bits=32)
    begun, _ = list(tools.rounds(config, meta, blocks, 2))[-1]
    levels = dict(begun.levels)
    for name, kept in (("a", 0), ("b", 1), ("c", 2)):
        far = np.where(np.arange(3) == kept, 1.0, 1e180)
        levels[name] = replace(levels[name], two=levels[name].two * far)
    found = list(tools.rounds(config, meta, blocks, 2, replace(begun, levels=levels)))
    assert all(np.isfinite(info["objective"]) for _, info in found)
