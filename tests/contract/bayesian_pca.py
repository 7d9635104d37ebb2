"""Bayesian PCA by Gibbs sampling: a second, tiny family, written against docs/add-a-model.md.

    y_nd ~ N(b_d + sum_k w_dk z_nk, 1 / tau),   z_nk ~ N(0, 1),   (w_dk, b_d) ~ N(0, 1 / alpha_k)
    tau, alpha_k ~ Gamma(a0, b0)

One sweep: z_n given the rest, per sample (map); (w_d, b_d) given z, per feature (features); alpha and tau
(assemble). Missing entries are left out of the sums, so the statistics are per feature.

| symbol | field |
|---|---|
| z | the local state (B, K) |
| (w, b) | ``Globals.weights[view]`` (D, K + 1) |
| alpha, tau | ``Globals.alpha`` (K + 1,), ``Globals.tau`` |
| sum of zz', zy, yy, 1 | ``Stats.zz`` (D, K + 1, K + 1), ``zy`` (D, K + 1), ``yy`` (D,), ``n`` (D,) |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from factorflow.core.trees import add
from factorflow.kernels.linalg import gaussian
from factorflow.models.configuration import Example, ModelConfig
from factorflow.models.contract import Meta, Model, Stage, Step, Sweep, Variable, wide
from factorflow.models.registry import register

Z, WEIGHTS, ALPHA, TAU, START = range(5)  # sites of the noise
A0, B0 = 1.0, 1.0


@register
class BayesianPCA(ModelConfig):
    """Configuration: factors, draws and chains."""

    model: Literal["bayesian_pca"] = "bayesian_pca"
    n_factors: int = Field(default=2, ge=1, description="Factors (K).")
    n_burn_in: int = Field(default=5, ge=0, description="Iterations before the first draw.")
    n_draws: int = Field(default=10, ge=4, description="Draws of each chain.")
    chains: int = Field(default=2, ge=1, description="Chains.")

    @classmethod
    def examples(cls) -> dict[str, Example]:
        views = {"a": ("gaussian", 7), "b": ("gaussian", 5)}
        return {"default": Example(cls(), data={"views": views, "n_factors": 2})}

    def build(self, meta: Meta) -> Model[Any, Any]:
        return PCA(meta, self)


@dataclass(frozen=True)
class Globals:
    weights: dict[str, Any] = field(metadata=wide())
    alpha: Any
    tau: float


@dataclass(frozen=True)
class ViewStats:
    zz: Any
    zy: Any
    yy: Any
    n: Any


@dataclass(frozen=True)
class Stats:
    views: dict[str, ViewStats] = field(metadata=wide())


@dataclass(frozen=True)
class Gibbs(Sweep[Globals, Any, Stats]):
    meta: Meta
    n_factors: int
    name: ClassVar[str] = "gibbs"

    def axes(self) -> dict[str, int]:
        return {view.name: view.n_features for view in self.meta.views}

    def map(self, block: Any, local: Any, globals_: Globals, step: Step) -> tuple[Any, Stats]:
        k, shown = self.n_factors, {v.name: v.kind.fill_missing(block.data[v.name]) for v in self.meta.views}
        precision, moment = np.tile(np.eye(k), (block.n_rows, 1, 1)), np.zeros((block.n_rows, k))
        for view, (y, seen) in shown.items():
            w, b = globals_.weights[view][:, :k], globals_.weights[view][:, k]
            precision += globals_.tau * np.einsum("nd,dk,dl->nkl", seen, w, w)
            moment += globals_.tau * (seen * (y - b)) @ w
        z = gaussian(precision, moment, step.normal(Z, block.rows, k))
        z1 = np.column_stack([z, np.ones(block.n_rows)])
        views = {}
        for view, (y, seen) in shown.items():
            zz = np.einsum("nd,nk,nl->dkl", seen, z1, z1)
            views[view] = ViewStats(zz, y.T @ z1, (y * y).sum(0), seen.sum(0))
        return z, Stats(views)

    def features(self, axis: str, index: range, globals_: Globals, stats: Stats, step: Step) -> Any:
        s, numbers = stats.views[axis], self.meta.numbers(axis)[index.start : index.stop]
        precision = globals_.tau * s.zz + np.diag(globals_.alpha)
        noise = step.normal(WEIGHTS, np.asarray(numbers), self.n_factors + 1)
        w = gaussian(precision, globals_.tau * s.zy, noise)
        residual = s.yy - 2 * np.einsum("dk,dk->d", w, s.zy) + np.einsum("dk,dkl,dl->d", w, s.zz, w)
        return w, {"squares": (w * w).sum(0), "residual": residual.sum(), "n": s.n.sum(), "features": len(w)}

    def assemble(self, globals_: Globals, stats: Stats, parts: Any, sums: Any, step: Step) -> tuple[Any, Any]:
        total, weights = reduce(add, sums.values()), np.arange(self.n_factors + 1)
        n, residual = total["n"], total["residual"]
        alpha = step.gamma(ALPHA, weights, A0 + total["features"] / 2) / (B0 + total["squares"] / 2)
        tau = float(step.gamma(TAU, np.arange(1), A0 + n / 2)[0] / (B0 + residual / 2))
        objective = 0.5 * n * np.log(tau) - 0.5 * tau * residual
        return Globals(parts, alpha, tau), {"objective": objective, "observed": n, "monitor_tau": tau}


@dataclass(frozen=True)
class PCA(Model[Globals, Any]):
    config: BayesianPCA
    kind: ClassVar[Literal["monte carlo"]] = "monte carlo"

    @property
    def n_chains(self) -> int:
        return self.config.chains

    def stages(self) -> tuple[Stage[Globals], ...]:
        c, sweeps = self.config, (Gibbs(self.meta, self.config.n_factors),)
        return Stage("burn-in", sweeps, c.n_burn_in), Stage("sampling", sweeps, c.n_draws, keep=True)

    def init(self, step: Step) -> Globals:
        size, views = self.config.n_factors + 1, [v.name for v in self.meta.views]
        weights = {v: step.normal(START, np.asarray(self.meta.numbers(v)), size) for v in views}
        return Globals(weights, np.ones(size), 1.0)

    def variables(self) -> tuple[Variable, ...]:
        k, score = self.config.n_factors, ("obs", "factor")
        table = [
            Variable("alpha", ("weight",), "precision of weights, by factor", lambda g: g.alpha),
            Variable("tau", (), "noise precision", lambda g: g.tau),
            Variable("scores", score, "z, last draw", lambda z: z, rows=True),
            Variable("scores_draws", score, "z", lambda z: z, rows=True, draws=True),
        ]
        for v in (view.name for view in self.meta.views):
            of = f"feature_{v}"
            table += [
                Variable(f"loadings_{v}", (of, "factor"), "w", lambda g, v=v: g.weights[v][:, :k]),
                Variable(f"intercept_{v}", (of,), "b", lambda g, v=v: g.weights[v][:, k]),
            ]
        return tuple(table)

    def coords(self, globals_: Globals) -> dict[str, list[str]]:
        factors = self.factor_names(self.config.n_factors)
        return {"factor": factors, "weight": [*factors, "intercept"]}

    def predict(self, block: Any, rows: Any, record: Any, view: str) -> tuple[Any, Any]:
        z, w, b = rows["scores_draws"], record[f"loadings_{view}"], record[f"intercept_{view}"]
        mean = np.einsum("csnk,csdk->csnd", z, w) + b[:, :, None, :]
        return mean.mean((0, 1)), np.sqrt(mean.var((0, 1)) + (1 / record["tau"]).mean())
