"""Tables in memory, and sweeps one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.special import digamma, gammaln

from factorflow.core.trees import add, join, narrow, restrict
from factorflow.engine.feature_runs import cut_features
from factorflow.kernels.random import Step
from factorflow.models.contract import Block, Meta, ViewMeta

STEP = Step(3)


def table(
    codes: Any, y: Any, likelihood: str, cut: int = 1 << 30, **covariates: Any
) -> tuple[Meta, list[Block]]:
    """Return meta and blocks of a table; variables are called a, b, c, ..., the response y.

    Covariates are of one column, or weights of linear groups.
    """
    codes, y = np.asarray(codes), np.asarray(y, dtype=np.float32)
    names = "abcdefgh"[: codes.shape[1]]
    sizes = codes.max(axis=0) + 1
    views = [ViewMeta("y", likelihood, 1, "none")]
    views += [ViewMeta(n, "categorical", int(s), "none") for n, s in zip(names, sizes, strict=True)]
    covariates = {name: np.asarray(x, dtype=float).reshape(len(y), -1) for name, x in covariates.items()}
    views += [ViewMeta(name, "covariate", x.shape[1], "none") for name, x in covariates.items()]
    edges = list(range(0, len(y), cut))
    blocks = []
    for i, start in enumerate(edges):
        rows = slice(start, min(start + cut, len(y)))
        data = {"y": y[rows, None]} | {n: codes[rows, g].astype(np.int32) for g, n in enumerate(names)}
        data |= {name: x[rows] for name, x in covariates.items()}
        blocks.append(Block(i, start, len(y[rows]), len(edges), data))
    return Meta(len(y), len(edges), min(cut, len(y)), tuple(views)), blocks


def round_of(
    sweep: Any, blocks: Sequence[Block], globals_: Any, step: Step = STEP
) -> tuple[Any, dict[str, float]]:
    """Return the globals after one sweep over some blocks, and what it reports."""
    prepared, stats = sweep.prepare(globals_), None
    for block in blocks:
        _, part = sweep.map(block, None, prepared, step)
        stats = part if stats is None else add(stats, part)
    parts, sums = {}, {}
    for run in cut_features(sweep.axes()):
        cut = restrict(stats, run.axis, slice(run.index.start, run.index.stop))
        part, total = sweep.features(run.axis, run.index, globals_, cut, step)
        parts[run.axis] = join([parts[run.axis], part]) if run.axis in parts else part
        sums[run.axis] = add(sums[run.axis], total) if run.axis in sums else total
    return sweep.assemble(globals_, narrow(stats), parts, sums, step)


def rounds(
    config: Any, meta: Meta, blocks: Sequence[Block], n: int, globals_: Any = None
) -> Iterator[tuple[Any, Any]]:
    """Yield globals and report after every update of ``n`` iterations; from the start of the model."""
    model = config.build(meta)
    if globals_ is None:
        globals_, _ = round_of(model.stages()[0].sweeps[0], blocks, model.init(STEP))
    for _ in range(n):
        for sweep in model.stages()[-1].sweeps:
            globals_, info = round_of(sweep, blocks, globals_)
            yield globals_, info


def factors(settings: Any, block: Block, name: str, *tables: Any) -> Any:
    """Return by row what tables of a variable say: the level's, or weighted sums of a linear group's.

    Weights of the second table are squared: it holds variances.
    """
    x = block.data[name]
    if name not in settings.roles.linear:
        return [table[x] for table in tables]
    missing = np.isnan(x).any(axis=1)
    x = np.column_stack([np.where(missing[:, None], 0.0, x), missing])
    return [x ** (power + 1) @ table for power, table in enumerate(tables)]


def bound(model: Any, blocks: Sequence[Block], g: Any) -> float:
    """Return the complete bound of the first start by its definition, row by row; u at its optimum."""
    s, fit = model.settings, 0.0
    if s.likelihood == "poisson":
        return counts_bound(model, blocks, g)
    noise, (beta, spread) = g.noise[:, 0], (0.0, 0.0) if g.intercept is None else g.intercept[:, 0]
    beta += g.reference
    log_noise = digamma(noise[0]) - np.log(noise[1])
    for block in blocks:
        f = s2 = 1.0
        for name in s.names:
            m, v = factors(s, block, name, g.levels[name].one[:, 0], g.levels[name].two[:, 0])
            f, s2 = f * m, s2 * (m**2 + v)
        given = {role: getattr(s.roles, role) for role in ("weight", "within", "offset")}
        w, within, o = (
            np.full(len(f), left_out) if given[role] is None else block.data[given[role]][:, 0]
            for role, left_out in (("weight", 1.0), ("within", 0.0), ("offset", 0.0))
        )
        r2 = (block.data["y"][:, 0] - o - beta - f.sum(1)) ** 2 + spread + (s2 - f**2).sum(1)
        fit += (
            0.5 * w * (log_noise - np.log(2 * np.pi)) - 0.5 * noise[0] / noise[1] * (w * r2 + within)
        ).sum()
    tau, log_tau = scale_of(s, g)
    for name in s.names:
        m, v = g.levels[name].one[:, 0], g.levels[name].two[:, 0]
        free = s.free(name, range(len(m)), m.shape[1])
        with np.errstate(divide="ignore"):
            fit += 0.5 * (log_tau - tau * (m**2 + v) + np.log(v) + 1)[free_rows(free)].sum()
    a, b = s.hyper.noise_prior
    unit = g.moments.unit
    b *= unit
    fit -= divergence(noise[0], noise[1], a, np.log(b), b)
    if s.hyper.rate is None:
        fit -= sum(divergence(x, y, *rate_prior(s, g)) for x, y in g.scale[:, 0].T)
    if g.intercept is not None:
        kappa = s.hyper.intercept_precision / unit
        fit += 0.5 * (np.log(kappa) - kappa * (beta**2 + spread) + np.log(spread) + 1)
    return float(fit)


def counts_bound(model: Any, blocks: Sequence[Block], g: Any) -> float:
    """Return the bound of counts; q(xi) at its optimum too."""
    s, fit = model.settings, 0.0
    for block in blocks:
        rho, mean = 1.0, 1.0
        for name in s.names:
            level = g.levels[name]
            free = s.free(name, range(len(level.seen)), level.one.shape[2])
            log = np.where(free, digamma(level.one[:, 0]) - np.log(level.two[:, 0]), 0.0)
            apart = ~free[0]  # additive parts of other variables: 1, whatever the weights
            of_rows = [
                factors(s, block, name, x)[0] for x in (np.exp(log), level.one[:, 0] / level.two[:, 0])
            ]
            for x in of_rows:
                x[:, apart] = 1.0
            rho, mean = rho * of_rows[0], mean * of_rows[1]
        y, t = block.data["y"][:, 0].astype(float), np.ones(block.n_rows)
        if s.roles.exposure is not None:
            t = block.data[s.roles.exposure][:, 0]
        used = ~np.isnan(y) & (t > 0)
        y, t, rho, mean = y[used], t[used], rho[used].sum(1), mean[used].sum(1)
        fit += (y * (np.log(t) + np.log(rho)) - gammaln(y + 1)).sum()
        if g.dispersion is None:
            fit -= (t * mean).sum()
            continue
        c = g.dispersion[0]
        shape, rate = c + y, c + t * mean
        fit += (y * (digamma(shape) - np.log(rate)) - t * shape / rate * mean).sum()
        fit -= sum(divergence(x, z, c, np.log(c), c) for x, z in zip(shape, rate, strict=True))
    b, log_b = scale_of(s, g)
    k = len(b)
    for name in s.names:
        level = g.levels[name]
        for l in range(k):  # noqa: E741
            a = g.shape[0] if l < k - s.n_additive else s.hyper.additive[0]
            rate, log_rate = (b[l], log_b[l]) if l < k - s.n_additive else 2 * [s.hyper.additive[1]]
            log_rate = log_rate if l < k - s.n_additive else np.log(rate)
            free = s.free(name, range(len(level.seen)), k)[:, l]
            pairs = zip(level.one[free, 0, l], level.two[free, 0, l], strict=True)
            fit -= sum(divergence(x, z, a, log_rate, rate) for x, z in pairs)
    if s.hyper.rate is None:
        fit -= sum(divergence(x, y, *rate_prior(s, g)) for x, y in g.scale[:, 0].T[: k - s.n_additive])
    if s.hyper.shape is None:
        fit -= np.log(s.hyper.shape_mean) + g.shape[0] / s.hyper.shape_mean
    return float(fit)


def free_rows(free: Any) -> Any:
    return free.all(axis=1)


def rate_prior(s: Any, g: Any) -> tuple[float, float, float]:
    a, b = s.hyper.rate_prior
    if s.likelihood == "gaussian":  # in the unit of the factors
        b *= g.moments.unit ** (1.0 / s.n_variables)
    return a, np.log(b), b


def scale_of(s: Any, g: Any) -> tuple[Any, Any]:
    if s.hyper.rate is None:
        shape, rate = g.scale[:, 0]
        return shape / rate, digamma(shape) - np.log(rate)
    b = np.full(g.scale.shape[2], s.hyper.rate)
    return b, np.log(b)


def divergence(shape: float, rate: float, a: float, log_b: float, b: float) -> float:
    """Return KL(Gamma(shape, rate) || Gamma(a, b)), given means of log b and b."""
    log = digamma(shape) - np.log(rate)
    entropy = shape - np.log(rate) + gammaln(shape) + (1 - shape) * digamma(shape)
    return float(-entropy - (a * log_b - gammaln(a) + (a - 1) * log - b * shape / rate))


def check_bound_of_counts(model: Any, config: Any, meta: Meta, blocks: Sequence[Block]) -> None:
    """Never falling; the complete bound between that with the shares of the iteration and the next."""
    found = list(rounds(config, meta, blocks, 12))
    values = np.array([info["objective"] for _, info in found])
    scale = np.abs(values[-1])
    assert np.diff(values).min() > -1e-10 * scale
    assert values[-1] - values[0] > 1e-3 * scale
    for number, (now, after) in enumerate(pairwise(found), start=1):
        complete = bound(model, blocks, now[0])
        assert complete > now[1]["objective"] - 1e-10 * scale
        if number % 3 == 0 and not config.overdispersed:
            assert complete < after[1]["objective"] + 1e-10 * scale


@pytest.fixture
def tools() -> Any:
    """The functions of this file."""

    class Tools:
        table: Callable[..., Any] = staticmethod(table)
        round_of: Callable[..., Any] = staticmethod(round_of)
        rounds: Callable[..., Any] = staticmethod(rounds)
        bound: Callable[..., float] = staticmethod(bound)
        check_bound_of_counts: Callable[..., None] = staticmethod(check_bound_of_counts)
        step = STEP

    return Tools
