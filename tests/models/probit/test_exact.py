"""The whole probit model against quadrature on two observations of two features, and Geweke's joint test.

Chains are cut into 40 batches; a z-score is the error of the mean over its standard error from the batches.
|z| < 6 (Student's t, 39 degrees of freedom: 5e-7 a comparison, 1e-4 for this file) and root mean square
below 2.5; seeds are fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from factorflow.core.block import Block, Meta, ViewMeta
from factorflow.kernels.random import Step
from factorflow.models.probit import ProbitFactors

PAIRS = [
    ("binary", "gibbs"), ("binary", "collapsed"), ("binary", "hmc"),
    ("spike_slab", "gibbs"), ("spike_slab", "hmc"),
    ("nonnegative", "gibbs"), ("nonnegative", "hmc"),
]  # fmt: skip
ALWAYS = [("binary", "collapsed"), ("spike_slab", "gibbs"), ("nonnegative", "hmc")]
"""Pairs whose joint distribution is looked at always: each kind of factors, each sampler."""

LENGTHS = [pytest.param(1, id="short"), pytest.param(30, id="long", marks=pytest.mark.slow)]
PRIORS = {"activity_prior": (1.5, 2.0), "density_prior": (2.0, 1.5), "variance_prior": (3.0, 2.0)}
X = np.array([[1, 0], [1, 1]], np.int8)


def chain(
    config: ProbitFactors, x: Any, sweeps: int, seed: int, renew: Any = None
) -> Iterator[tuple[Any, Any]]:
    """Yield (factors, globals) after every sweep; ``renew`` draws new entries from them."""
    meta = Meta(len(x), 1, 32, (ViewMeta("x", "bernoulli", x.shape[1], "scattered"),))
    model = config.build(meta)
    sweep = model.stages()[0].sweeps[0]
    globals_, local = model.init(Step(seed)), None
    for i in range(sweeps):
        step = Step(seed, 0, i)
        local, stats_ = sweep.map(Block(0, 0, len(x), 1, {"x": x}), local, globals_, step)
        part, sums = sweep.features("x", range(x.shape[1]), globals_, stats_, step)
        globals_, _ = sweep.assemble(globals_, stats_, {"x": part}, {"x": sums}, step)
        factors = local.factors(config.n_factors)
        if renew is not None:
            x = renew(factors, globals_, i)
        yield factors, globals_


def scores(values: Any, expected: Any) -> Any:
    """Return z-scores of the means of (sweeps, statistics), from 40 batches."""
    batches = np.asarray(values).reshape(40, -1, len(expected)).mean(1)
    spread = batches.std(0, ddof=1) / np.sqrt(40)
    return (batches.mean(0) - expected) / np.where(spread > 0, spread, 1.0)


def summaries(factors: Any, g: Any) -> Any:
    z = g.loadings["x"]
    return [
        *(factors[:, 0] != 0), *np.tanh(factors[:, 0]), g.activity[0], g.density, np.log(g.variance),
        1 / g.variance, *(z != 0).ravel(), *np.tanh(z).ravel(),
    ]  # fmt: skip


def quadrature(factors: str) -> Any:
    """Return the expectations of `summaries` for K = 1 by sums over s, c and grids of v, z, b and tau^2.

    Features are independent given f, b and tau^2; given f, a has its Beta posterior.
    """
    if factors == "binary":
        slab, slab_weight = np.array([1.0]), np.array([1.0])
    else:
        nodes, weight = np.polynomial.legendre.leggauss(40)
        low = 0.0 if factors == "nonnegative" else -6.0
        slab = low + (6.0 - low) * (nodes + 1) / 2
        slab_weight = weight * np.exp(-(slab**2) / 2)
        slab_weight /= slab_weight.sum()
    f = np.concatenate([[0.0], slab])
    hermite, hermite_weight = np.polynomial.hermite_e.hermegauss(24)
    hermite_weight = hermite_weight / hermite_weight.sum()
    precision, precision_weight = special.roots_genlaguerre(16, PRIORS["variance_prior"][0] - 1)
    precision = precision / PRIORS["variance_prior"][1]
    precision_weight = precision_weight / precision_weight.sum()
    node, weight = np.polynomial.legendre.leggauss(12)
    b, b_weight = (node + 1) / 2, weight * stats.beta.pdf((node + 1) / 2, *PRIORS["density_prior"])
    b_weight = b_weight / b_weight.sum()
    on = (f != 0).astype(int)
    weights = _activity_weights(on)
    mass = np.concatenate([[1.0], slab_weight])
    total, moments = 0.0, 0.0
    for lam, lam_weight in zip(precision, precision_weight, strict=True):
        per_feature = [_feature(f, X[:, n], 1 / np.sqrt(lam), hermite, hermite_weight) for n in range(2)]
        for p, p_weight in zip(b, b_weight, strict=True):
            c = [(1 - p) ** 2, p * (1 - p), p * (1 - p), p**2]  # c = 00, 10, 01, 11: loading, offset
            mixed = [np.tensordot(c, values, 1) for values in per_feature]  # (5, F, F)
            joint = mixed[0][0] * mixed[1][0] * np.outer(mass, mass) * lam_weight * p_weight
            both = joint[..., None] * weights  # (F, F, 2): without and with E a
            total = total + both[..., 0].sum()
            plain = both[..., 0]
            parts = [(plain * (f != 0)[:, None]).sum(), (plain * (f != 0)).sum()]
            parts += [(plain * np.tanh(f)[:, None]).sum(), (plain * np.tanh(f)).sum()]
            parts += [both[..., 1].sum(), plain.sum() * p, plain.sum() * -np.log(lam), plain.sum() * lam]
            for rows in ((1, 2), (3, 4)):
                for n in range(2):
                    ratio = [mixed[n][r] / mixed[n][0] for r in rows]
                    parts += [(plain * r).sum() for r in ratio]
            moments = moments + np.array(parts)
    return moments / total


def _activity_weights(on: Any) -> Any:
    """Return p(s) with a integrated out, and the same times E(a | s), for all pairs of rows."""
    first, second = PRIORS["activity_prior"]
    count = on[:, None] + on[None, :]
    evidence = special.beta(first + count, second + 2 - count) / special.beta(first, second)
    return np.stack([evidence, evidence * (first + count) / (first + second + 2)], -1)


def _feature(f: Any, x: Any, scale: float, nodes: Any, weights: Any) -> Any:
    """Return (c, 5, F, F): the likelihood of a feature, and times c_z, c_o, tanh z, tanh o, over z and o."""
    out = []
    for c_z, c_o in ((0, 0), (1, 0), (0, 1), (1, 1)):
        z, w = (scale * nodes, weights) if c_z else (np.zeros(1), np.ones(1))
        o, u = (scale * nodes, weights) if c_o else (np.zeros(1), np.ones(1))
        signs = np.where(x == 1, 1.0, -1.0)
        mean = z[:, None, None] * f + o[:, None]
        first, second = special.ndtr(signs[0] * mean), special.ndtr(signs[1] * mean)
        parts = []
        for extra in (1.0, c_z, c_o, np.tanh(z)[:, None], np.tanh(o)[None, :]):
            grid = np.outer(w, u) * extra
            parts.append(np.einsum("zo,zof,zog->fg", grid, first, second, optimize=True))
        out.append(parts)
    return np.array(out)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("factors", "sampler"), PAIRS)
def test_posterior_matches_quadrature(factors: Any, sampler: Any, length: int) -> None:
    config = ProbitFactors(factors=factors, sampler=sampler, n_factors=1, **PRIORS)
    sweeps = 1200 * length
    values = [summaries(f, g) for f, g in chain(config, X, sweeps + 100, 11)][100:]
    z = scores(values, quadrature(factors))
    assert np.abs(z).max() < 6, z
    assert np.sqrt((z**2).mean()) < 2.5, z


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("factors", "sampler"),
    [pytest.param(*pair, marks=() if pair in ALWAYS else pytest.mark.thorough) for pair in PAIRS],
)
def test_joint_distribution(factors: Any, sampler: Any, length: int) -> None:
    """Geweke (2004): with entries drawn anew after every sweep, the parameters keep their prior."""
    rng = np.random.default_rng(1)
    missing = np.array([[0, 1, 0], [0, 0, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0]], bool)

    def renew(f: Any, g: Any, i: int) -> Any:
        mean = f @ g.loadings["x"][:, :-1].T + g.loadings["x"][:, -1]
        return np.where(missing, -1, rng.random(mean.shape) < special.ndtr(mean)).astype(np.int8)

    def values(f: Any, g: Any) -> Any:
        z = g.loadings["x"]
        moments = [f.mean() if factors != "spike_slab" else np.abs(f).mean(), (f != 0).mean(), (f**2).mean()]
        a = g.activity.mean()
        shape = [(z != 0).mean(), np.tanh(z).mean(), (np.tanh(z) ** 2).mean()]
        return [*moments, a, (g.activity**2).mean(), g.density, g.density**2, np.log(g.variance),
                1 / g.variance, *shape, a * (f != 0).mean()]  # fmt: skip

    config = ProbitFactors(factors=factors, sampler=sampler, n_factors=2, **PRIORS)
    start = np.where(missing, -1, 1).astype(np.int8)
    sweeps = 2400 * length
    found = [values(f, g) for f, g in chain(config, start, sweeps + 200, 5, renew)][200:]
    z = scores(found, _prior_moments(factors))
    assert np.abs(z).max() < 6, z
    assert np.sqrt((z**2).mean()) < 2.5, z


def _prior_moments(factors: str) -> Any:
    """Return the expectations of the statistics of the joint test under the prior."""
    a, b = stats.beta(*PRIORS["activity_prior"]), stats.beta(*PRIORS["density_prior"])
    shape, rate = PRIORS["variance_prior"]
    t = stats.t(2 * shape, scale=np.sqrt(rate / shape))  # z | c = 1 with tau^2 integrated out
    size = 1.0 if factors == "binary" else np.sqrt(2 / np.pi)
    square = b.mean() * t.expect(lambda z: np.tanh(z) ** 2)
    log_variance = np.log(rate) - special.digamma(shape)
    second = a.var() + a.mean() ** 2
    # E (mean a)(mean s) = E (mean a)^2, for K = 2
    both = a.var() / 2 + a.mean() ** 2
    return [a.mean() * size, a.mean(), a.mean(), a.mean(), second, b.mean(), b.var() + b.mean() ** 2,
            log_variance, shape / rate, b.mean(), 0.0, square, both]  # fmt: skip
