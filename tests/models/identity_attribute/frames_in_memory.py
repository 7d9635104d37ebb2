"""Sequences in memory, sweeps one at a time, and the free energy by its definition, frame by frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.special import digamma, gammaln

from factorflow.core.trees import add, freeze, narrow, restrict
from factorflow.engine.feature_runs import cut_features
from factorflow.kernels.random import Step
from factorflow.models.contract import Block, Meta, ViewMeta
from factorflow.models.identity_attribute.chain_updates import rescale_chains
from factorflow.models.identity_attribute.dynamics import expectations
from factorflow.models.identity_attribute.frame_updates import rescale_frames
from factorflow.models.identity_attribute.frames import AllFrames, EvenFrames, OddFrames
from factorflow.models.identity_attribute.state import Chains
from factorflow.models.identity_attribute.tables import compute_tables

STEP = Step(3)


def simulated(lengths: Sequence[int], d: int, p: int, q: int, seed: int = 0) -> Any:
    """Return frames (N, d) of sequences with p identities of q attributes."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(d, p * q))
    frames = []
    for length in lengths:
        b, a = rng.random(p) < 0.5, rng.normal(size=p * q)
        for _ in range(length):
            frames.append(w @ (a * np.repeat(b, q)) + 0.4 * rng.normal(size=d))
            b = np.where(rng.random(p) < 0.2, ~b, b)
            a = 0.8 * a + 0.6 * rng.normal(size=p * q)
    return np.array(frames, dtype=np.float32)


def in_blocks(
    views: dict[str, Any], lengths: Sequence[int] | None, cut: int = 1 << 20
) -> tuple[Meta, list[Block]]:
    """Return meta and blocks of so many rows of sequences of given lengths; None: of no sequences."""
    n = len(next(iter(views.values())))
    if lengths is not None:
        assert sum(lengths) == n
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        time = np.concatenate([np.arange(length) for length in lengths])
    metas = []
    for name, y in views.items():
        gaps = np.isnan(y)
        whole = np.array_equal(gaps.any(axis=1), gaps.all(axis=1))
        kind = "none" if not gaps.any() else "samples" if whole else "scattered"
        metas.append(ViewMeta(name, "gaussian", y.shape[1], kind))
    starts = range(0, n, cut)
    blocks = []
    for number, start in enumerate(starts):
        rows = slice(start, min(start + cut, n))
        columns, flags = {}, {}
        if lengths is not None:
            columns = {"sequence": sequence[rows], "time": time[rows]}
            flags = {
                "from_before": bool(time[start] > 0),
                "into_next": bool(rows.stop < n and time[rows.stop] > 0),
            }
        data = {name: y[rows] for name, y in views.items()}
        blocks.append(Block(number, start, rows.stop - start, len(starts), data, {}, columns, **flags))
    meta = Meta(n, len(starts), min(cut, n), tuple(metas), n_sequences=0 if lengths is None else len(lengths))
    return meta, blocks


class Run:
    """A model whose sweeps are run one at a time.

    Parameters
    ----------
    config, meta, blocks
        What is run.
    """

    def __init__(self, config: Any, meta: Meta, blocks: Sequence[Block]) -> None:
        self.model, self.blocks = config.build(meta), blocks
        self.settings = self.model.settings
        self.globals_: Any = freeze(self.model.init(STEP))
        self.local: list[Any] = [None] * len(blocks)
        self.stats: Any = None
        self.infos: list[dict[str, float]] = []
        self.used: list[Any] = [None, None]  # tables that even and odd frames were updated with

    def sweep(self, sweep: Any) -> None:
        """Run one sweep over all blocks."""
        given, stats = sweep.prepare(self.globals_), None
        if isinstance(sweep, EvenFrames | OddFrames):
            self.used[isinstance(sweep, OddFrames)] = given
        if isinstance(sweep, AllFrames):
            self.used = [given, given]
        for i, block in enumerate(self.blocks):
            self.local[i], part = freeze(sweep.map(block, self.local[i], given, STEP))
            stats = part if stats is None else add(stats, part)
        before = sweep.carry(self.globals_, stats, STEP)
        self.stats = stats
        if not sweep.axes():
            self.globals_, info = freeze(sweep.update(before, stats, STEP))
        else:
            parts, sums = {}, {}
            for run in cut_features(sweep.axes()):
                cut = restrict(stats, run.axis, slice(run.index.start, run.index.stop))
                parts[run.axis], sums[run.axis] = sweep.features(run.axis, run.index, before, cut, STEP)
            self.globals_, info = freeze(sweep.assemble(before, narrow(stats), parts, sums, STEP))
        if info:
            self.infos.append(info)

    def look(self, sweep: Any) -> None:
        """Map all blocks, and learn nothing."""
        given = sweep.prepare(self.globals_)
        for i, block in enumerate(self.blocks):
            self.local[i] = freeze(sweep.map(block, self.local[i], given, STEP)[0])

    @property
    def stages(self) -> list[Any]:
        """The stages, but for those that close a run."""
        return [stage for stage in self.model.stages() if not stage.closing]

    def start(self) -> None:
        """Run the preparations."""
        for stage in self.stages:
            if not stage.counts:
                for sweep in stage.sweeps:
                    self.sweep(sweep)

    def iterate(self, n: int, stage: int = -1) -> Iterator[Any]:
        """Run iterations of a stage, and yield every sweep that was run."""
        for _ in range(n):
            for sweep in self.stages[stage].sweeps:
                self.sweep(sweep)
                yield sweep

    def energy(self) -> float:
        """Return the free energy now, by its definition."""
        q = states(self)
        return float(q.of_data() + q.of_states() + of_parameters(self))


class states:  # noqa: N801
    """Marginals of all frames by identity, and what follows from them under the globals of a run."""

    def __init__(self, run: Run) -> None:
        s, g = run.settings, run.globals_
        self.run, self.c = run, s.hyper
        p, q = s.hyper.n_identities, s.hyper.n_attributes
        tables = compute_tables(s, g)
        self.y = np.concatenate([s.observed(b, tables.location, tables.scale).y for b in run.blocks])
        seen = [s.observed(b, tables.location, tables.scale).seen for b in run.blocks]
        self.seen = np.ones_like(self.y) if seen[0] is None else np.concatenate(seen)
        self.y -= self.seen * s.concatenate_views({v: w.shift for v, w in g.weights.items()})
        self.first = np.concatenate([s.first(b) for b in run.blocks])
        n = len(self.y)
        weights = s.concatenate_views({v: w.mean for v, w in g.weights.items()}).reshape(-1, p, q)
        variance = s.concatenate_views({v: w.variance for v, w in g.weights.items()}).reshape(-1, p, q)
        self.shape, self.rate = (
            s.concatenate_views({v: getattr(w, k) for v, w in g.weights.items()}) for k in ("shape", "rate")
        )
        self.scale = tables.scale
        self.w, self.ww = weights, np.einsum("dpi,dpj->dpij", weights, weights)
        self.ww[:, :, np.arange(q), np.arange(q)] += variance
        self.moments = tables.moments.reshape(3, p, q)
        local = [
            rescale_chains(x, tables) if isinstance(x, Chains) else rescale_frames(s, block, x, tables)
            for block, x in zip(run.blocks, run.local, strict=True)
        ]
        self.collect(local, n, p, q)

    def collect(self, local: Any, n: int, p: int, q: int) -> None:
        """Collect the marginals of either factorisation."""
        if isinstance(local[0], Chains):

            def stacked(name: str) -> Any:
                return np.stack(
                    [np.concatenate([getattr(x.tracks[i], name) for x in local]) for i in range(p)], 1
                )

            self.b, self.a = stacked("present"), stacked("mean")
            cov = stacked("covariance")
            self.aa = cov + np.einsum("tpi,tpj->tpij", self.a, self.a)
            self.x, self.xx = self.b[..., None] * self.a, self.b[..., None, None] * self.aa
            self.joint, self.earlier, self.cross = stacked("joint"), stacked("earlier"), stacked("cross")
            self.entropy = float((stacked("present_entropy") + stacked("mean_entropy")).sum())
            return
        b = self.b = np.concatenate([x.present for x in local])
        on, off = (np.concatenate([getattr(x, k) for x in local]).reshape(n, p, q) for k in ("on", "off"))
        s0, s1 = self.s0, self.s1 = self.spreads(n, p, q)
        self.on, self.off = on, off
        bb = b[..., None]
        self.a, self.x = bb * on + (1 - bb) * off, bb * on
        self.xx = bb[..., None] * (s1 + np.einsum("tpi,tpj->tpij", on, on))
        self.aa = self.xx + (1 - bb[..., None]) * (s0 + np.einsum("tpi,tpj->tpij", off, off))
        before = np.roll(b, 1, axis=0)
        go = ~self.first[:, None]
        self.joint, self.earlier = go * b * before, go * before
        self.cross = go[..., None] * self.a * np.roll(self.a, 1, axis=0)
        half = 0.5 * q * (1 + np.log(2 * np.pi))
        entropy = b * (half + 0.5 * np.linalg.slogdet(s1)[1] - np.log(np.maximum(b, 1e-300)))
        rest = half + 0.5 * np.linalg.slogdet(s0)[1] - np.log(np.maximum(1 - b, 1e-300))
        self.entropy = float((entropy + (1 - b) * rest).sum())

    def spreads(self, n: int, p: int, q: int) -> tuple[Any, Any]:
        """Return S0 and S1 of all frames, (N, P, Q, Q), by the globals that they were updated with."""
        last, even = np.append(self.first[1:], True), np.zeros(n, bool)
        start = 0
        for block in self.run.blocks:
            even[start + self.run.settings.parity(block, 0)] = True
            start += block.n_rows
        s0, s1 = np.empty((n, p, q, q)), np.empty((n, p, q, q))
        for odd, tables in enumerate(self.run.used):
            rows = np.flatnonzero(even != bool(odd))
            moments = tables.moments.reshape(3, p, q)
            own = np.broadcast_to(tables.own, (len(rows), p, q, q))
            if tables.products is not None:
                own = (self.seen[rows] @ tables.products).reshape(-1, p, q, q)
            alone = np.where(self.first[rows, None, None], 1 / self.c.variance, moments[0])
            alone = alone + np.where(last[rows, None, None], 0.0, moments[2])
            by = (self.run.globals_.unit / tables.unit).reshape(p, q)
            square = by[:, :, None] * by[:, None, :]
            s0[rows] = square * np.einsum("tpi,ij->tpij", 1 / alone, np.eye(q))
            s1[rows] = square * np.linalg.inv(own + np.einsum("tpi,ij->tpij", alone, np.eye(q)))
        return s0, s1

    def of_data(self) -> float:
        """Return E log P(Y | B, A, W, rho), on the scale of the values."""
        total = 0.0
        log_rho = digamma(self.shape) - np.log(self.rate)
        for t in range(len(self.y)):
            for d in np.flatnonzero(self.seen[t]):
                mean = float((self.w[d] * self.x[t]).sum())
                each = (self.w[d] * self.x[t]).sum(axis=1)
                second = float((self.ww[d] * self.xx[t]).sum()) + mean**2 - float((each**2).sum())
                error = self.y[t, d] ** 2 - 2 * self.y[t, d] * mean + second
                total += 0.5 * (log_rho[d] - np.log(2 * np.pi)) - 0.5 * self.shape[d] / self.rate[d] * error
                total -= np.log(self.scale[d])
        return total

    def of_states(self) -> float:
        """Return E log P(B | T) + E log P(A | Lambda) + entropy."""
        c, g = self.c, self.run.globals_
        log_t = digamma(g.transition) - digamma(g.transition.sum(axis=1, keepdims=True))
        log_rest = g.expected.log.reshape(self.a.shape[1:])
        total = self.entropy
        for t in range(len(self.y)):
            b, aa = self.b[t], np.einsum("pii->pi", self.aa[t])
            if self.first[t]:
                total += float((b * np.log(c.initial) + (1 - b) * np.log(1 - c.initial)).sum())
                total -= 0.5 * float((np.log(2 * np.pi * c.variance) + aa / c.variance).sum())
                continue
            j, e = self.joint[t], self.earlier[t]
            total += float((j * log_t[1, 1] + (e - j) * log_t[1, 0] + (b - j) * log_t[0, 1]).sum())
            total += float(((1 - e - b + j) * log_t[0, 0]).sum())
            past = np.einsum("pii->pi", self.aa[t - 1])
            m = self.moments
            squares = m[0] * aa - 2 * m[1] * self.cross[t] + m[2] * past
            total -= 0.5 * float((np.log(2 * np.pi) + log_rest + squares).sum())
        return total


def of_parameters(run: Run) -> float:
    """Return minus the divergences of q(W), q(rho), q(T) and q(Lambda) from their priors."""
    g, c = run.globals_, run.settings.hyper
    total = 0.0
    d, e = c.noise
    for w in g.weights.values():
        ratio = g.relevance * (w.variance + w.mean**2)
        total += 0.5 * float((np.log(g.relevance) + np.log(w.variance) + 1 - ratio).sum())
        log_rho = digamma(w.shape) - np.log(w.rate)
        prior = d * np.log(e) - gammaln(d) + (d - 1) * log_rho - e * w.shape / w.rate
        own = w.shape * np.log(w.rate) - gammaln(w.shape) + (w.shape - 1) * log_rho - w.shape
        total += float((prior - own).sum())
    for u, v in zip(np.array(c.transition), g.transition, strict=True):
        log_t = digamma(v) - digamma(v.sum())
        total += float(gammaln(u.sum()) - gammaln(u).sum() + ((u - 1) * log_t).sum())
        total -= float(gammaln(v.sum()) - gammaln(v).sum() + ((v - 1) * log_t).sum())
    prior, now = expectations(c.dynamics_prior), g.expected
    differ = c.dynamics_prior - g.dynamics
    total += float((now.log_normaliser - prior.log_normaliser - differ[0] * now.log).sum())
    return total + float((differ[1:] * now.moments).sum())


def panels(parameters: Any) -> tuple[Any, float]:
    """Return the five expectations of `Dynamics` of one density, and log Z, by fine Gauss-Legendre panels."""
    eta, f, g, h = (float(x) for x in parameters)
    up, down = -(f + h + g), -(f + h - g)

    def log_cosh(u: Any) -> Any:
        return np.abs(u) / 2 + np.log1p(np.exp(-np.abs(u))) - np.log(2)

    def log_density(u: Any) -> Any:
        return (2 * eta - 2) * log_cosh(u) - 0.25 * (up * np.exp(u) + down * np.exp(-u))

    coarse = np.linspace(-60, 60, 600_001)
    values = log_density(coarse)
    inside = coarse[values > values.max() - 60]
    edges = np.linspace(inside[0] - 2e-4, inside[-1] + 2e-4, 1001)
    x, weight = np.polynomial.legendre.leggauss(30)
    half = 0.5 * np.diff(edges)[:, None]
    u = edges[:-1, None] + half * (1 + x)
    mass = np.exp(log_density(u) - values.max()) * half * weight
    total = mass.sum()
    mass = mass / total
    found = [
        (mass * np.cosh(u / 2) ** 2).sum(),
        (mass * np.sinh(u) / 2).sum(),
        (mass * np.sinh(u / 2) ** 2).sum(),
        (mass * -2 * log_cosh(u)).sum(),
        (mass * np.tanh(u / 2)).sum(),
    ]
    return np.array(found), float(np.log(total) + values.max() + (f - h) / 2 - np.log(2))
