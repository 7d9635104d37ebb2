"""Bayesian PCA by Gibbs sampling: a second, tiny family, written against docs/add-a-model.md.

    y_nd ~ N(b_d + sum_k w_dk z_nk, 1 / tau),   z_nk ~ N(0, 1),   (w_dk, b_d) ~ N(0, 1 / alpha_k)
    tau, alpha_k ~ Gamma(a0, b0)

One sweep: z_n given the rest, per sample (map); (w_d, b_d) given z, per feature (features); alpha and tau
(assemble). Missing entries are left out of the sums, so the statistics are per feature.

| symbol | field |
|---|---|
| z | ``Local.z`` (B, K) |
| (w, b) | ``Globals.weights[view]`` (D, K + 1) |
| alpha, tau | ``Globals.alpha`` (K + 1,), ``Globals.tau`` |
| sum of zz', zy, yy, 1 | ``Stats.zz`` (D, K + 1, K + 1), ``zy`` (D, K + 1), ``yy`` (D,), ``n`` (D,) |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from factorflow.models.contract import Example, Meta, Model, ModelConfig, Stage, Step, Sweep, Variable, wide
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

    def build(self, meta: Meta) -> PCA:
        return PCA(meta, self)


@dataclass(frozen=True)
class Globals:
    weights: dict[str, Any] = field(metadata=wide())
    alpha: Any = None
    tau: float = 1.0


@dataclass(frozen=True)
class Local:
    z: Any


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
class Gibbs(Sweep[Globals, Local, Stats]):
    widths: tuple[tuple[str, int], ...]
    n_factors: int
    name: ClassVar[str] = "gibbs"

    def axes(self) -> dict[str, int]:
        return dict(self.widths)

    def map(
        self, block: Any, local: Local | None, globals_: Globals, step: Step
    ) -> tuple[Local, Stats | None]:
        k = self.n_factors
        precision = np.tile(np.eye(k), (block.n_rows, 1, 1))
        moment = np.zeros((block.n_rows, k))
        for view, _ in self.widths:
            y, seen, weights = *_shown(block.data[view]), globals_.weights[view]
            w, b = weights[:, :k], weights[:, k]
            precision += globals_.tau * np.einsum("nd,dk,dl->nkl", seen, w, w)
            moment += globals_.tau * np.einsum("nd,dk->nk", seen * (y - b), w)
        rows = block.start + np.arange(block.n_rows)
        z = _gaussian(precision, moment, step.normal(Z, rows, k))
        z1 = np.column_stack([z, np.ones(block.n_rows)])
        views = {}
        for view, _ in self.widths:
            y, seen = _shown(block.data[view])
            zz = np.einsum("nd,nk,nl->dkl", seen, z1, z1)
            zy = np.einsum("nd,nk->dk", seen * y, z1)
            views[view] = ViewStats(zz, zy, (seen * y * y).sum(0), seen.sum(0))
        return Local(z), Stats(views)

    def features(
        self, axis: str, index: range, globals_: Globals, stats: Stats, step: Step
    ) -> tuple[Any, Any]:
        s = stats.views[axis]
        precision = globals_.tau * s.zz + np.diag(globals_.alpha)
        first = sum(d for view, d in self.widths[: [v for v, _ in self.widths].index(axis)])
        noise = step.normal(WEIGHTS, first + np.asarray(index), self.n_factors + 1)
        w = _gaussian(precision, globals_.tau * s.zy, noise)
        residual = s.yy - 2 * np.einsum("dk,dk->d", w, s.zy) + np.einsum("dk,dkl,dl->d", w, s.zz, w)
        return w, {
            "squares": (w * w).sum(0),
            "residual": residual.sum(),
            "n": s.n.sum(),
            "features": len(index),
        }

    def assemble(
        self, globals_: Globals, stats: Stats, parts: dict[str, Any], sums: dict[str, Any], step: Step
    ) -> tuple[Globals, dict[str, float]]:
        squares = sum(s["squares"] for s in sums.values())
        features, n = sum(s["features"] for s in sums.values()), sum(s["n"] for s in sums.values())
        residual = sum(s["residual"] for s in sums.values())
        unit = _gamma(step, ALPHA, self.n_factors + 1, A0 + features / 2)
        alpha = unit / (B0 + squares / 2)
        tau = float(_gamma(step, TAU, 1, A0 + n / 2)[0] / (B0 + residual / 2))
        objective = 0.5 * n * np.log(tau) - 0.5 * tau * residual
        return Globals(parts, alpha, tau), {"objective": objective, "observed": n, "monitor_tau": tau}


@dataclass(frozen=True)
class PCA(Model[Globals, Local]):
    config: BayesianPCA
    kind: ClassVar[Literal["monte carlo"]] = "monte carlo"

    @property
    def n_chains(self) -> int:
        return self.config.chains

    def stages(self) -> tuple[Stage[Globals], ...]:
        sweeps = (Gibbs(tuple((v.name, v.n_features) for v in self.meta.views), self.config.n_factors),)
        return (
            Stage("burn-in", sweeps, self.config.n_burn_in),
            Stage("sampling", sweeps, self.config.n_draws, keep=True),
        )

    def init(self, step: Step) -> Globals:
        weights, first = {}, 0
        for view in self.meta.views:
            rows = first + np.arange(view.n_features)
            weights[view.name] = step.normal(START, rows, self.config.n_factors + 1)
            first += view.n_features
        return Globals(weights, np.ones(self.config.n_factors + 1), 1.0)

    def variables(self) -> tuple[Variable, ...]:
        k, score = self.config.n_factors, ("obs", "factor")
        table = [
            Variable("alpha", ("weight",), "precision of weights, by factor", lambda g: g.alpha),
            Variable("tau", (), "noise precision", lambda g: g.tau),
            Variable("scores", score, "z, last draw", lambda local: local.z, rows=True),
            Variable("scores_draws", score, "z", lambda local: local.z, rows=True, draws=True),
        ]
        for view in (v.name for v in self.meta.views):
            of = f"feature_{view}"
            table += [
                Variable(f"loadings_{view}", (of, "factor"), "w", lambda g, v=view: g.weights[v][:, :k]),
                Variable(f"intercept_{view}", (of,), "b", lambda g, v=view: g.weights[v][:, k]),
            ]
        return tuple(table)

    def coords(self, globals_: Globals) -> dict[str, list[str]]:
        factors = [f"Factor{k + 1}" for k in range(self.config.n_factors)]
        return {"factor": factors, "weight": [*factors, "intercept"]}

    def predict(self, block: Any, rows: Any, record: Any, view: str) -> tuple[Any, Any]:
        z, w, b = rows["scores_draws"], record[f"loadings_{view}"], record[f"intercept_{view}"]
        mean = np.einsum("csnk,csdk->csnd", z, w) + b[:, :, None, :]
        noise = (1 / record["tau"]).mean()
        return mean.mean((0, 1)), np.sqrt(mean.var((0, 1)) + noise)


def _shown(values: Any) -> tuple[Any, Any]:
    """Return values with 0 where they are missing, and 1.0 where they are not."""
    seen = ~np.isnan(values)
    return np.where(seen, values, 0.0).astype(float), seen.astype(float)


def _gaussian(precision: Any, moment: Any, noise: Any) -> Any:
    """Return draws from N(precision^-1 moment, precision^-1), one for each row."""
    chol = np.linalg.cholesky(precision)
    mean = np.linalg.solve(precision, moment[..., None])
    return (mean + np.linalg.solve(np.swapaxes(chol, -1, -2), noise[..., None]))[..., 0]


def _gamma(step: Step, site: int, n: int, shape: float) -> Any:
    """Return n draws from Gamma(shape, 1) by inverse CDF."""
    from scipy.special import gammaincinv

    return gammaincinv(shape, step.uniform(site, np.arange(n), 1)[:, 0])
