"""Linear dynamical factors with a common drift: a tiny family, written against docs/add-a-model.md.

    y_td ~ N(b_d + sum_k w_dk z_tk + c_t, 1 / tau)         (w_d, b_d) ~ N(0, I),   tau ~ Gamma(1, 1)
    z_tk ~ N(a_k z_{t-1,k}, 1),   a_k ~ N(0, 1)            c_t ~ N(phi c_{t-1}, 1 / kappa)

z_tk and c_t are N(0, 1) in the first frame of a sequence; phi and kappa are given. Under q the frames z_t are
independent, q(z_t) = N(m_t, V_t), and so are the (w_d, b_d), tau and the a_k; the drift of a sequence stays
one chain. An iteration is three sweeps, each an exact step up the bound:

- drift: with J_t = tau n_t, h_t = tau sum_d (y_td - b_d - w_d m_t) over the n_t observed entries, q(c) is
  proportional to p(c) exp(sum_t h_t c_t - J_t c_t^2 / 2). A block integrates all its c but the last out; what
  is left is a function of the last c before the block and its own last one. `carry` runs over the blocks
  forwards and backwards, and hands to each what lies on both sides of it, and to the globals log of the
  normaliser Z: E log p(c) / q(c) = log Z - sum_t (h_t E c_t - J_t E c_t^2 / 2);
- even: every block smooths its part of c with that, then z_t of even t, given those beside it:
  V_t^-1 = I + [t goes on] diag(E a^2) + tau sum_d E w_d w_d',
  V_t^-1 m_t = a (m_{t-1} + m_{t+1}) + tau sum_d (E w_d (y_td - c_t) - E w_d b_d);
- odd: the same of odd t; then (w, b) of each feature, tau and a.

First and last frames of a block ride on the statistics; a pair of frames that is cut is counted by the block
of its odd frame, since that of the even one has moved in the sweep before. Missing entries are left out.

| symbol | field |
|---|---|
| m_t, V_t | ``Local.mean`` (B, K), ``covariance`` (B, K, K) |
| mean, variance of c_t | ``Local.drift``, ``drift_variance`` (B,) |
| h_t E c_t - J_t E c_t^2 / 2, at the J, h that q(c) was found with | ``Local.drift_gain`` (B,) |
| mean, covariance of (w_d, b_d) | ``Globals.weights[view]``, of ``Weights`` (D, K + 1), (D, K + 1, K + 1) |
| shape, rate of tau; mean, variance of a_k | ``Globals.noise`` (2,); ``pull`` (2, K) |
| m of the first and last frames of blocks; c from both sides | ``Globals.edges``; ``sides``, gathered |
| sum of zz', z (y - c), E (y - c)^2, 1 | ``ViewStats`` (D, K + 1, K + 1), (D, K + 1), (D,), (D,) |
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.special import digamma, gammaln

from factorflow.core.kinds import KINDS
from factorflow.errors import InputError
from factorflow.models.configuration import Example, ModelConfig
from factorflow.models.contract import Gather, Meta, Model, Stage, Step, Sweep, Variable, wide
from factorflow.models.registry import register

WEIGHTS = 0  # site of the noise
LOG_2PI = float(np.log(2 * np.pi))


@register
class DriftingFactors(ModelConfig):
    """Configuration: factors, and how the drift moves."""

    model: Literal["drifting_factors"] = "drifting_factors"
    n_factors: int = Field(default=2, ge=1, description="Factors (K).")
    max_iter: int = Field(default=6, ge=1, description="Iterations at most.")
    tol: float | None = Field(default=None, ge=0, description="Gain of the bound an entry that ends the run.")
    decay: float = Field(default=0.9, gt=-1, lt=1, description="Coefficient of the drift (phi).")
    precision: float = Field(default=4.0, gt=0, description="Precision of its steps (kappa).")

    @classmethod
    def examples(cls) -> dict[str, Example]:
        return {"default": Example(cls(), "sequence", {"n_features": 8, "n_factors": 2, "n_sequences": 9})}

    def build(self, meta: Meta) -> Drifting:
        if not meta.n_sequences or any(view.likelihood != "gaussian" for view in meta.views):
            kinds = ", ".join(f"{v.name} ({v.likelihood})" for v in meta.views)
            raise InputError(
                "dataset",
                f"{meta.n_sequences} sequences, views {kinds}",
                "sequences, and gaussian views",
                "Write it with `sequences`, and choose its gaussian views with `views`.",
            )
        return Drifting(meta, self)


@dataclass(frozen=True)
class Weights:
    mean: Any
    covariance: Any


@dataclass(frozen=True)
class Globals:
    weights: dict[str, Weights] = field(metadata=wide())
    noise: Any
    pull: Any
    log_normaliser: float
    edges: Gather
    sides: Gather


@dataclass(frozen=True)
class Edge:
    """m of the first and of the last frame of a block, (K,)."""

    first: Any
    last: Any


@dataclass(frozen=True)
class Span:
    """exp(const - matrix[c, c] / 2 + vector c) of c = (before the block, its last): what it says of both."""

    matrix: Any
    vector: Any
    const: float
    joined: bool


@dataclass(frozen=True)
class Sides:
    """What the frames before a block say of the one before it, and those behind of its last: (2,) each.

    As exp(-one[0] c^2 / 2 + one[1] c).
    """

    before: Any
    behind: Any


@dataclass(frozen=True)
class Local:
    mean: Any
    covariance: Any
    drift: Any
    drift_variance: Any
    drift_gain: Any


@dataclass(frozen=True)
class Spans:
    spans: Gather


@dataclass(frozen=True)
class ViewStats:
    zz: Any
    zy: Any
    yy: Any
    n: Any


@dataclass(frozen=True)
class Stats:
    views: dict[str, ViewStats] = field(metadata=wide())
    edges: Gather
    pairs: Any
    squares: Any
    entropy: float
    drift_gain: float
    frames: float


@dataclass(frozen=True)
class Edges:
    edges: Gather


@dataclass(frozen=True)
class Shape:
    """What all sweeps know of model and data."""

    views: tuple[tuple[str, int], ...]
    n_factors: int
    decay: float
    precision: float

    def start(self, block: Any) -> Local:
        """Return the frames of a block at first sight: as their prior would have them, each by itself."""
        mean = np.zeros((block.n_rows, self.n_factors))
        covariance = np.tile(np.eye(self.n_factors), (block.n_rows, 1, 1))
        return Local(mean, covariance, *(np.zeros(block.n_rows) for _ in range(3)))


@dataclass(frozen=True)
class Drift(Sweep[Globals, Local, Spans]):
    """What each block says of the drift before it and of its last one; then a scan over the blocks."""

    shape: Shape
    name: ClassVar[str] = "drift"

    def map(self, block: Any, local: Local | None, globals_: Globals, step: Step) -> tuple[Local, Spans]:
        now = local or self.shape.start(block)
        j, h = evidence(self.shape, block, now, globals_)
        span = span_of(starts(block), j, h, self.shape, joined=block.from_before)
        return now, Spans(Gather.of(block, span))

    def carry(self, globals_: Globals, stats: Spans, step: Step) -> Globals:
        sides, log_normaliser = scan(stats.spans.values)
        return replace(globals_, sides=Gather(stats.spans.numbers, sides), log_normaliser=log_normaliser)

    def update(self, globals_: Globals, stats: Spans, step: Step) -> tuple[Globals, dict[str, float]]:
        return globals_, {}


@dataclass(frozen=True)
class Even(Sweep[Globals, Local, Edges]):
    """The drift of every frame, and z of even frames."""

    shape: Shape
    name: ClassVar[str] = "even"
    neighbours: ClassVar[bool] = True

    def map(self, block: Any, local: Local | None, globals_: Globals, step: Step) -> tuple[Local, Edges]:
        now = smooth(self.shape, block, local or self.shape.start(block), globals_)
        now = frames(self.shape, block, now, globals_, parity=0)
        return now, Edges(edge(block, now))

    def carry(self, globals_: Globals, stats: Edges, step: Step) -> Globals:
        return replace(globals_, edges=stats.edges)

    def update(self, globals_: Globals, stats: Edges, step: Step) -> tuple[Globals, dict[str, float]]:
        return globals_, {}


@dataclass(frozen=True)
class Odd(Sweep[Globals, Local, Stats]):
    """z of odd frames, then what all frames have in common."""

    shape: Shape
    name: ClassVar[str] = "odd"
    neighbours: ClassVar[bool] = True

    def axes(self) -> dict[str, int]:
        return dict(self.shape.views)

    def map(self, block: Any, local: Local | None, globals_: Globals, step: Step) -> tuple[Local, Stats]:
        now = frames(self.shape, block, local or self.shape.start(block), globals_, parity=1)
        z1 = np.column_stack([now.mean, np.ones(block.n_rows)])
        second = z1[:, :, None] * z1[:, None, :]
        second[:, :-1, :-1] += now.covariance
        views = {}
        for view, _ in self.shape.views:
            y, seen = KINDS["gaussian"].fill_missing(block.data[view])
            rest = seen * (y - now.drift[:, None])
            views[view] = ViewStats(
                np.einsum("td,tkl->dkl", seen, second),
                rest.T @ z1,
                (rest**2).sum(axis=0) + seen.T @ now.drift_variance,
                seen.sum(axis=0),
            )
        before, behind = neighbours(block, now.mean, globals_)
        odd, goes_on = block.columns["time"] % 2 == 1, ~ends(block)
        pairs = (now.mean * (before + behind))[odd].sum(axis=0)
        squares = np.einsum("tkk->tk", second[:, :-1, :-1])
        squares = np.stack([squares.sum(axis=0), squares[goes_on].sum(axis=0)])
        entropy = 0.5 * float(np.linalg.slogdet(now.covariance)[1].sum())
        gain = float(now.drift_gain.sum())
        return now, Stats(views, edge(block, now), pairs, squares, entropy, gain, float(block.n_rows))

    def carry(self, globals_: Globals, stats: Stats, step: Step) -> Globals:
        return replace(globals_, edges=stats.edges)

    def features(
        self, axis: str, index: range, globals_: Globals, stats: Stats, step: Step
    ) -> tuple[Weights, dict[str, Any]]:
        s, tau = stats.views[axis], globals_.noise[0] / globals_.noise[1]
        k1 = self.shape.n_factors + 1
        covariance = np.linalg.inv(np.eye(k1) + tau * s.zz)
        mean = tau * np.einsum("dkl,dl->dk", covariance, s.zy)
        second = covariance + mean[:, :, None] * mean[:, None, :]
        residual = s.yy - 2 * (mean * s.zy).sum(axis=1) + np.einsum("dkl,dkl->d", second, s.zz)
        gain = 0.5 * (k1 - np.einsum("dkk->d", second) + np.linalg.slogdet(covariance)[1])
        sums = {"residual": residual.sum(), "gain": gain.sum(), "n": s.n.sum()}
        return Weights(mean, covariance), sums

    def assemble(
        self, globals_: Globals, stats: Stats, parts: dict[str, Weights], sums: dict[str, Any], step: Step
    ) -> tuple[Globals, dict[str, float]]:
        residual, n = (float(sum(s[name] for s in sums.values())) for name in ("residual", "n"))
        noise = np.array([1 + n / 2, 1 + residual / 2])
        variance = 1 / (1 + stats.squares[1])
        pull = np.stack([variance * stats.pairs, variance])
        after = replace(globals_, weights=parts, noise=noise, pull=pull)
        objective = bound(after, stats, residual, n) + sum(s["gain"] for s in sums.values())
        return after, {"objective": objective, "observed": n}


@dataclass(frozen=True)
class Drifting(Model[Globals, Local]):
    config: DriftingFactors
    kind: ClassVar[Literal["variational"]] = "variational"

    @property
    def shape(self) -> Shape:
        c = self.config
        views = tuple((view.name, view.n_features) for view in self.meta.views)
        return Shape(views, c.n_factors, c.decay, c.precision)

    def stages(self) -> tuple[Stage[Globals], ...]:
        sweeps = (Drift(self.shape), Even(self.shape), Odd(self.shape))
        return (Stage("frames", sweeps, self.config.max_iter, tol=self.config.tol),)

    def init(self, step: Step) -> Globals:
        k, first, weights = self.config.n_factors, 0, {}
        for view, n_features in self.shape.views:
            mean = step.normal(WEIGHTS, first + np.arange(n_features), k + 1)
            weights[view] = Weights(mean, np.tile(0.1 * np.eye(k + 1), (n_features, 1, 1)))
            first += n_features
        pull = np.stack([np.zeros(k), np.ones(k)])
        return Globals(weights, np.ones(2), pull, 0.0, Gather.empty(), Gather.empty())

    def variables(self) -> tuple[Variable, ...]:
        k, two = self.config.n_factors, ("factor", "other_factor")
        table = [
            Variable("noise", ("parameter",), "shape and rate of q(tau)", lambda g: g.noise),
            Variable("pull", ("factor",), "a, mean", lambda g: g.pull[0]),
            Variable("scores", ("obs", "factor"), "m", lambda rows: rows.mean, rows=True),
            Variable("scores_covariance", ("obs", *two), "V", lambda rows: rows.covariance, rows=True),
            Variable("drift", ("obs",), "c, mean", lambda rows: rows.drift, rows=True),
            Variable("drift_variance", ("obs",), "c, variance", lambda rows: rows.drift_variance, rows=True),
        ]
        for view, _ in self.shape.views:
            of, pair = f"feature_{view}", ("weight", "other_weight")
            table += [
                Variable(f"loadings_{view}", (of, "factor"), "w", lambda g, v=view: g.weights[v].mean[:, :k]),
                Variable(f"intercept_{view}", (of,), "b", lambda g, v=view: g.weights[v].mean[:, k]),
                Variable(
                    f"weights_covariance_{view}",
                    (of, *pair),
                    "covariance of (w, b)",
                    lambda g, v=view: g.weights[v].covariance,
                ),
            ]
        return tuple(table)

    def coords(self, globals_: Globals) -> dict[str, list[str]]:
        factors = self.factor_names(self.config.n_factors)
        weights = [*factors, "intercept"]
        return {
            "factor": factors,
            "other_factor": factors,
            "weight": weights,
            "other_weight": weights,
            "parameter": ["shape", "rate"],
        }

    def finish(self, block: Any, local: Local | None, globals_: Globals, step: Step) -> Local:
        return local or self.shape.start(block)

    def predict(self, block: Any, rows: Any, record: Any, view: str) -> tuple[Any, Any]:
        w1 = np.column_stack([record[f"loadings_{view}"], record[f"intercept_{view}"]])
        z1 = np.column_stack([rows["scores"], np.ones(len(rows["scores"]))])
        second = z1[:, :, None] * z1[:, None, :]
        second[:, :-1, :-1] += rows["scores_covariance"]
        spread = np.einsum("tkl,dk,dl->td", second, w1, w1) - (z1 @ w1.T) ** 2
        spread += np.einsum("tkl,dkl->td", second, record[f"weights_covariance_{view}"])
        shape, rate = record["noise"]
        variance = spread + rows["drift_variance"][:, None] + rate / (shape - 1)
        return z1 @ w1.T + rows["drift"][:, None], np.sqrt(variance)


# Neighbours


def starts(block: Any) -> Any:
    """Return which frames of a block are the first of their sequence, (B,)."""
    return block.columns["time"] == 0


def ends(block: Any) -> Any:
    """Return which frames of a block are the last of their sequence, (B,)."""
    return np.append(starts(block)[1:], not block.into_next)


def neighbours(block: Any, mean: Any, globals_: Globals) -> tuple[Any, Any]:
    """Return m of the frames before and behind those of a block, (B, K) each: 0 where there is none.

    So are frames that no sweep has visited.
    """
    left, right = globals_.edges.before(block), globals_.edges.after(block)
    none = np.zeros((1, mean.shape[1]))
    before = np.concatenate([none if left is None else left.last[None], mean[:-1]])
    behind = np.concatenate([mean[1:], none if right is None else right.first[None]])
    before[starts(block)], behind[ends(block)] = 0.0, 0.0
    return before, behind


def edge(block: Any, now: Local) -> Gather:
    """Return the frames of a block that its neighbours see."""
    return Gather.of(block, Edge(now.mean[0], now.mean[-1]))


def frames(shape: Shape, block: Any, now: Local, globals_: Globals, parity: int) -> Local:
    """Return the block with z of its even or odd frames given the frames beside them."""
    own = block.columns["time"] % 2 == parity
    k, tau, (pull, variance) = shape.n_factors, globals_.noise[0] / globals_.noise[1], globals_.pull
    before, behind = neighbours(block, now.mean, globals_)
    moment = pull * (before + behind)[own]
    precision = np.tile(np.eye(k), (len(moment), 1, 1))
    precision += (~ends(block))[own][:, None, None] * np.diag(pull**2 + variance)
    for view, _ in shape.views:
        y, seen = KINDS["gaussian"].fill_missing(block.data[view][own])
        weights = globals_.weights[view]
        second = weights.covariance + weights.mean[:, :, None] * weights.mean[:, None, :]
        precision += tau * np.einsum("td,dkl->tkl", seen, second[:, :k, :k])
        moment += tau * (seen * (y - now.drift[own][:, None])) @ weights.mean[:, :k]
        moment -= tau * seen @ second[:, :k, k]
    mean, covariance = np.array(now.mean), np.array(now.covariance)
    covariance[own] = np.linalg.inv(precision)
    mean[own] = np.einsum("tkl,tl->tk", covariance[own], moment)
    return replace(now, mean=mean, covariance=covariance)


# The drift: a chain of scalars, as functions exp(-j c^2 / 2 + h c) of one of them or of two


def evidence(shape: Shape, block: Any, now: Local, globals_: Globals) -> tuple[Any, Any]:
    """Return what the entries of every frame say of its drift: J and h, (B,) each."""
    tau, k = globals_.noise[0] / globals_.noise[1], shape.n_factors
    j, h = np.zeros(block.n_rows), np.zeros(block.n_rows)
    for view, _ in shape.views:
        y, seen = KINDS["gaussian"].fill_missing(block.data[view])
        mean = globals_.weights[view].mean
        j += tau * seen.sum(axis=1)
        h += tau * (seen * (y - now.mean @ mean[:, :k].T - mean[:, k])).sum(axis=1)
    return j, h


def span_of(first: Any, j: Any, h: Any, shape: Shape, *, joined: bool) -> Span:
    """Return what a block says of the drift before it and of its last one, all others integrated out."""
    phi, kappa = shape.decay, shape.precision
    matrix, vector = np.zeros((2, 2)), np.zeros(2)
    const = 0.5 * (np.log(kappa) - LOG_2PI) if joined else -0.5 * LOG_2PI
    matrix[:] = [[kappa * phi**2, -kappa * phi], [-kappa * phi, kappa]] if joined else [[0, 0], [0, 1]]
    for t in range(len(j)):
        if t > 0:
            inner = matrix[1, 1] + (0.0 if first[t] else kappa * phi**2)
            ahead = np.array(
                [-matrix[0, 1], 0.0 if first[t] else kappa * phi]
            )  # coupling to before, and to t
            const += 0.5 * (LOG_2PI - np.log(inner)) + 0.5 * vector[1] ** 2 / inner
            const += -0.5 * LOG_2PI + (0.0 if first[t] else 0.5 * np.log(kappa))
            new = np.array([[matrix[0, 0], 0.0], [0.0, 1.0 if first[t] else kappa]])
            matrix = new - np.outer(ahead, ahead) / inner
            vector = np.array([vector[0], 0.0]) + ahead * vector[1] / inner
        matrix = matrix + np.array([[0.0, 0.0], [0.0, j[t]]])
        vector = vector + np.array([0.0, h[t]])
    return Span(matrix, vector, float(const), joined)


def scan(spans: Span) -> tuple[Sides, float]:
    """Return what lies on both sides of every block, (M, 2) each, and log Z; the spans lead with (M,)."""
    count = len(spans.const)
    before, behind = np.zeros((count, 2)), np.zeros((count, 2))
    log_normaliser, now = 0.0, np.zeros(2)
    for i in range(count):
        matrix, vector = spans.matrix[i], spans.vector[i]
        inner = now[0] + matrix[0, 0]
        log_normaliser += spans.const[i]
        if i > 0:
            log_normaliser += 0.5 * (LOG_2PI - np.log(inner)) + 0.5 * (now[1] + vector[0]) ** 2 / inner
        if spans.joined[i]:
            before[i] = now
            now = np.array(
                [
                    matrix[1, 1] - matrix[0, 1] ** 2 / inner,
                    vector[1] - matrix[0, 1] * (now[1] + vector[0]) / inner,
                ]
            )
        else:
            now = np.array([matrix[1, 1], vector[1]])
    log_normaliser += 0.5 * (LOG_2PI - np.log(now[0])) + 0.5 * now[1] ** 2 / now[0]
    for i in range(count - 1, 0, -1):
        if spans.joined[i]:
            matrix, vector = spans.matrix[i], spans.vector[i]
            inner = matrix[1, 1] + behind[i, 0]
            behind[i - 1] = [
                matrix[0, 0] - matrix[0, 1] ** 2 / inner,
                vector[0] - matrix[0, 1] * (vector[1] + behind[i, 1]) / inner,
            ]
    return Sides(before, behind), float(log_normaliser)


def smooth(shape: Shape, block: Any, now: Local, globals_: Globals) -> Local:
    """Return the block with the marginals of q(c), given what the blocks on both sides of it say."""
    phi, kappa, first = shape.decay, shape.precision, starts(block)
    j, h = evidence(shape, block, now, globals_)
    sides, count = globals_.sides.own(block), block.n_rows
    forward, backward = np.zeros((count, 2)), np.zeros((count, 2))
    behind = sides.before
    for t in range(count):
        inner = behind[0] + kappa * phi**2
        ahead = (
            [1.0, 0.0] if first[t] else [kappa - (kappa * phi) ** 2 / inner, kappa * phi * behind[1] / inner]
        )
        behind = forward[t] = np.array([ahead[0] + j[t], ahead[1] + h[t]])
    backward[-1] = sides.behind
    for t in range(count - 2, -1, -1):
        if not first[t + 1]:
            there = backward[t + 1] + np.array([j[t + 1], h[t + 1]])
            inner = kappa + there[0]
            backward[t] = [kappa * phi**2 - (kappa * phi) ** 2 / inner, kappa * phi * there[1] / inner]
    variance = 1 / (forward[:, 0] + backward[:, 0])
    mean = variance * (forward[:, 1] + backward[:, 1])
    gain = h * mean - 0.5 * j * (mean**2 + variance)
    return replace(now, drift=mean, drift_variance=variance, drift_gain=gain)


# The bound


def bound(globals_: Globals, stats: Stats, residual: float, n: float) -> float:
    """Return the bound without the gain of the weights, E log p(w, b) - E log q(w, b)."""
    shape, rate = globals_.noise
    (pull, variance), k = globals_.pull, len(globals_.pull[0])
    found = 0.5 * n * (digamma(shape) - np.log(rate) - LOG_2PI) - 0.5 * shape / rate * residual
    found -= (shape - 1) * digamma(shape) - gammaln(shape) + np.log(rate) + shape / rate - shape
    found += 0.5 * float((1 + np.log(variance) - pull**2 - variance).sum())
    chain = stats.squares[0] - 2 * pull * stats.pairs + (pull**2 + variance) * stats.squares[1]
    found += stats.entropy + 0.5 * k * stats.frames - 0.5 * float(chain.sum())
    return float(found + globals_.log_normaliser - stats.drift_gain)
