"""A factor model fitted by doubly stochastic gradients: a tiny family, written against docs/add-a-model.md.

    eta_nd = b_d + sum_k w_dk z_nk,   z_n ~ N(0, I),   w_dk, b_d ~ N(0, 1)
    gaussian   y_nd ~ N(eta_nd, 1 / tau)       tau ~ Gamma(1, 1), in log tau
    poisson    y_nd ~ Poisson(exp(eta_nd))
    bernoulli  y_nd ~ Bernoulli(1 / (1 + exp(-eta_nd)))

W, b and tau are point estimates, q(z_nk) = N(m_nk, exp(2 r_nk)). A step draws a part of the rows and, for
each of them, one z_n = m_n + exp(r_n) e_n; with g_nd = d log p(y_nd) / d eta_nd at that z_n, gradients of the
bound are

    m_n: sum_d g_nd w_d - m_n       r_n: exp(r_n) e_n sum_d g_nd w_d - exp(2 r_n) + 1
    (w_d, b_d): scale sum_n g_nd (z_n, 1) - (w_d, b_d)

and Adam [1]_ takes them: its moments of the globals are globals, those of the rows are local state. Every few
steps the bound itself is computed over all rows: eta_nd is normal under q, so that E log p(y_nd) is one
integral, by Gauss-Hermite quadrature, whatever the likelihood.

| symbol | field |
|---|---|
| (w, b), log tau | ``Globals.weights[view]`` (D, K + 1), ``log_tau[view]`` |
| m, r; steps taken | ``Local.mean``, ``log_sd`` (B, K); ``steps`` (B,) |
| Adam's moments of each | ``Moments`` |
| sum of g (z, 1), of d log p / d log tau | ``Stats.weights[view]`` (D, K + 1), ``log_tau[view]`` |

References
----------
.. [1] D. P. Kingma, J. Ba, "Adam: a method for stochastic optimization", ICLR 2015.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.special import expit, gammaln

from factorflow.core.kinds import KINDS
from factorflow.models.configuration import Example, ModelConfig
from factorflow.models.contract import Meta, Model, Stage, Step, Sweep, Variable, wide
from factorflow.models.registry import register

START, DRAW, WEIGHTS = range(3)  # sites of the noise
FAST, SLOW, TINY = 0.9, 0.99, 1e-8  # Adam's decay of the two moments, and what keeps it from dividing by 0
NODES, MASS = np.polynomial.hermite_e.hermegauss(20)
MASS = MASS / MASS.sum()


@register
class StochasticFactors(ModelConfig):
    """Configuration: factors, the size of a part and of a step, and when to stop."""

    model: Literal["stochastic_factors"] = "stochastic_factors"
    n_factors: int = Field(default=2, ge=1, description="Factors (K).")
    max_iter: int = Field(default=12, ge=1, description="Steps at most.")
    tol: float | None = Field(
        default=None, ge=0, description="Gain of the bound an entry, between evaluations."
    )
    part_rows: int | None = Field(default=32, ge=1, description="Rows a step visits, about; None: all.")
    evaluate_every: int = Field(default=4, ge=1, description="Steps between two evaluations of the bound.")
    rate: float = Field(default=0.1, gt=0, description="Adam's length of a step.")

    @classmethod
    def examples(cls) -> dict[str, Example]:
        mixed = {"a": ("gaussian", 7), "b": ("bernoulli", 5), "c": ("poisson", 4)}
        return {
            "parts": Example(cls(), data={"views": mixed, "n_factors": 2}),
            "whole": Example(cls(part_rows=None, max_iter=9), data={"views": mixed, "n_factors": 2}),
            "calm": Example(
                cls(max_iter=60, tol=0.02, part_rows=48),
                data={"views": {"a": ("gaussian", 7)}, "n_factors": 2},
            ),
        }

    def build(self, meta: Meta) -> Stochastic:
        return Stochastic(meta, self)


@dataclass(frozen=True)
class Moments:
    """Running means of a gradient and of its square."""

    first: Any
    second: Any


@dataclass(frozen=True)
class Globals:
    weights: dict[str, Any] = field(metadata=wide())
    moments: dict[str, Moments] = field(metadata=wide())
    log_tau: dict[str, float]
    tau_moments: dict[str, Moments]


@dataclass(frozen=True)
class Local:
    mean: Any
    log_sd: Any
    mean_moments: Moments
    sd_moments: Moments
    steps: Any


@dataclass(frozen=True)
class Stats:
    weights: dict[str, Any] = field(metadata=wide())
    log_tau: dict[str, float]


@dataclass(frozen=True)
class Bound:
    rows: float
    observed: float


@dataclass(frozen=True)
class Descend(Sweep[Globals, Local, Stats]):
    """One step of Adam, of the rows of a part and of the globals."""

    views: tuple[tuple[str, str, int], ...]
    n_factors: int
    rate: float
    name: ClassVar[str] = "descend"

    def axes(self) -> dict[str, int]:
        return {view: n_features for view, _, n_features in self.views}

    def map(self, block: Any, local: Local | None, globals_: Globals, step: Step) -> tuple[Local, Stats]:
        rows, k = block.rows, self.n_factors
        now = local or start(rows, k, step)
        sd = np.exp(now.log_sd)
        noise = step.normal(DRAW, rows, k)
        z1 = np.column_stack([now.mean + sd * noise, np.ones(block.n_rows)])
        pull, weights, log_tau = np.zeros((block.n_rows, k)), {}, {}
        for view, likelihood, _ in self.views:
            y, seen = KINDS[likelihood].fill_missing(block.data[view])
            w, tau = globals_.weights[view], np.exp(globals_.log_tau.get(view, 0.0))
            eta = z1 @ w.T
            slope = seen * slope_of(likelihood, y, eta, tau)
            pull += slope @ w[:, :k]
            weights[view] = slope.T @ z1
            if likelihood == "gaussian":
                log_tau[view] = float((seen * (0.5 - 0.5 * tau * (y - eta) ** 2)).sum())
        steps = now.steps + 1
        mean, mean_moments = ascend(now.mean, now.mean_moments, pull - now.mean, steps[:, None], self.rate)
        gradient = sd * noise * pull - sd**2 + 1
        log_sd, sd_moments = ascend(now.log_sd, now.sd_moments, gradient, steps[:, None], self.rate)
        return Local(mean, log_sd, mean_moments, sd_moments, steps), Stats(weights, log_tau)

    def features(
        self, axis: str, index: range, globals_: Globals, stats: Stats, step: Step
    ) -> tuple[Any, None]:
        own = slice(index.start, index.stop)
        w, before = globals_.weights[axis][own], globals_.moments[axis]
        moments = Moments(before.first[own], before.second[own])
        gradient = step.scale * stats.weights[axis] - w
        return ascend(w, moments, gradient, step.count + 1, self.rate), None

    def assemble(
        self, globals_: Globals, stats: Stats, parts: dict[str, Any], sums: dict[str, Any], step: Step
    ) -> tuple[Globals, dict[str, float]]:
        log_tau, moments = {}, {}
        for view, slope in stats.log_tau.items():
            now = globals_.log_tau[view]
            gradient = step.scale * slope + 1 - np.exp(now)
            log_tau[view], moments[view] = ascend(
                now, globals_.tau_moments[view], gradient, step.count + 1, self.rate
            )
        weights = {view: part[0] for view, part in parts.items()}
        return Globals(weights, {view: part[1] for view, part in parts.items()}, log_tau, moments), {}


@dataclass(frozen=True)
class Evaluate(Sweep[Globals, Local, Bound]):
    """The bound, over all rows."""

    views: tuple[tuple[str, str, int], ...]
    n_factors: int
    name: ClassVar[str] = "evaluate"

    def map(self, block: Any, local: Local | None, globals_: Globals, step: Step) -> tuple[None, Bound]:
        mean, sd = scores(block, local, self.n_factors)
        bound = -0.5 * float((mean**2 + sd**2 - 1 - 2 * np.log(sd)).sum())
        observed = 0.0
        for view, likelihood, _ in self.views:
            y, seen = KINDS[likelihood].fill_missing(block.data[view])
            eta, deviation = predictor(mean, sd, globals_.weights[view])
            nodes = eta[..., None] + deviation[..., None] * NODES
            tau = np.exp(globals_.log_tau.get(view, 0.0))
            bound += float((seen * (log_likelihood(likelihood, y[..., None], nodes, tau) @ MASS)).sum())
            observed += float(seen.sum())
        return None, Bound(bound, observed)

    def update(self, globals_: Globals, stats: Bound, step: Step) -> tuple[Globals, dict[str, float]]:
        return globals_, {"objective": stats.rows + log_prior(globals_), "observed": stats.observed}


@dataclass(frozen=True)
class Stochastic(Model[Globals, Local]):
    config: StochasticFactors
    kind: ClassVar[Literal["variational"]] = "variational"

    @property
    def shapes(self) -> tuple[tuple[str, str, int], ...]:
        return tuple((v.name, v.likelihood, v.n_features) for v in self.meta.value_views)

    def stages(self) -> tuple[Stage[Globals], ...]:
        c = self.config
        return (
            Stage(
                "descent",
                (Descend(self.shapes, c.n_factors, c.rate),),
                c.max_iter,
                tol=c.tol,
                patience=1,
                part_rows=c.part_rows,
                evaluate=Evaluate(self.shapes, c.n_factors),
                evaluate_every=c.evaluate_every,
            ),
        )

    def init(self, step: Step) -> Globals:
        weights, first = {}, 0
        for view, _, n_features in self.shapes:
            weights[view] = 0.3 * step.normal(
                WEIGHTS, first + np.arange(n_features), self.config.n_factors + 1
            )
            first += n_features
        gaussian = [view for view, likelihood, _ in self.shapes if likelihood == "gaussian"]
        return Globals(
            weights,
            {view: Moments(0 * w, 0 * w) for view, w in weights.items()},
            dict.fromkeys(gaussian, 0.0),
            dict.fromkeys(gaussian, Moments(0.0, 0.0)),
        )

    def variables(self) -> tuple[Variable, ...]:
        k, score = self.config.n_factors, ("obs", "factor")
        table = [
            Variable("scores", score, "m, mean of z", lambda rows: rows[0], rows=True),
            Variable("scores_variance", score, "exp(2 r)", lambda rows: rows[1] ** 2, rows=True),
        ]
        for view, likelihood, _ in self.shapes:
            of = f"feature_{view}"
            table += [
                Variable(f"loadings_{view}", (of, "factor"), "w", lambda g, v=view: g.weights[v][:, :k]),
                Variable(f"intercept_{view}", (of,), "b", lambda g, v=view: g.weights[v][:, k]),
            ]
            if likelihood == "gaussian":
                noise = "tau, noise precision"
                table.append(
                    Variable(f"noise_precision_{view}", (), noise, lambda g, v=view: np.exp(g.log_tau[v]))
                )
        return tuple(table)

    def coords(self, globals_: Globals) -> dict[str, list[str]]:
        return {"factor": self.factor_names(self.config.n_factors)}

    def finish(self, block: Any, local: Local | None, globals_: Any, step: Step) -> tuple[Any, Any]:
        return scores(block, local, self.config.n_factors)

    def predict(self, block: Any, rows: Any, record: Any, view: str) -> tuple[Any, Any]:
        w1 = np.column_stack([record[f"loadings_{view}"], record[f"intercept_{view}"]])
        eta, deviation = predictor(rows["scores"], np.sqrt(rows["scores_variance"]), w1)
        likelihood = {name: kind for name, kind, _ in self.shapes}[view]
        if likelihood == "gaussian":
            return eta, np.sqrt(deviation**2 + 1 / record[f"noise_precision_{view}"])
        nodes = eta[..., None] + deviation[..., None] * NODES
        if likelihood == "bernoulli":
            mean = expit(nodes) @ MASS
            return mean, np.sqrt(mean * (1 - mean))
        mean = np.exp(eta + deviation**2 / 2)
        return mean, np.sqrt(mean + mean**2 * np.expm1(deviation**2))


def start(rows: Any, n_factors: int, step: Step) -> Local:
    """Return rows that no step has visited yet: close to their prior, off the saddle at 0."""
    mean = 0.1 * step.normal(START, rows, n_factors)
    still = Moments(0 * mean, 0 * mean)
    return Local(mean, 0 * mean, still, still, np.zeros(len(rows)))


def scores(block: Any, local: Local | None, n_factors: int) -> tuple[Any, Any]:
    """Return mean and standard deviation of z; of rows that no step has visited their prior's."""
    if local is None:
        return np.zeros((block.n_rows, n_factors)), np.ones((block.n_rows, n_factors))
    return local.mean, np.exp(local.log_sd)


def predictor(mean: Any, sd: Any, weights: Any) -> tuple[Any, Any]:
    """Return mean and standard deviation of eta (B, D) under q."""
    k = mean.shape[1]
    return mean @ weights[:, :k].T + weights[:, k], np.sqrt(sd**2 @ (weights[:, :k] ** 2).T)


def ascend(value: Any, before: Moments, gradient: Any, steps: Any, rate: float) -> tuple[Any, Moments]:
    """Return a value after one step of Adam, its ``steps``-th, and the moments."""
    first = FAST * before.first + (1 - FAST) * gradient
    second = SLOW * before.second + (1 - SLOW) * gradient**2
    size = np.sqrt(second / (1 - SLOW**steps)) + TINY
    return value + rate * first / (1 - FAST**steps) / size, Moments(first, second)


def log_likelihood(likelihood: str, y: Any, eta: Any, tau: float) -> Any:
    """Return log p(y | eta)."""
    if likelihood == "gaussian":
        return 0.5 * np.log(tau / (2 * np.pi)) - 0.5 * tau * (y - eta) ** 2
    if likelihood == "bernoulli":
        return y * eta - np.logaddexp(0, eta)
    return y * eta - np.exp(eta) - gammaln(y + 1)


def slope_of(likelihood: str, y: Any, eta: Any, tau: float) -> Any:
    """Return d log p(y | eta) / d eta."""
    if likelihood == "gaussian":
        return tau * (y - eta)
    return y - (expit(eta) if likelihood == "bernoulli" else np.exp(eta))


def log_prior(globals_: Globals) -> float:
    """Return the log density of W, b and log tau."""
    bound = sum(-0.5 * float((w**2 + np.log(2 * np.pi)).sum()) for w in globals_.weights.values())
    return bound + sum(float(u - np.exp(u)) for u in globals_.log_tau.values())
