"""Poisson factorisation with nonnegative factors, missing entries and several views: a skeleton to copy.

    y_nd ~ Poisson(sum_k w_dk z_nk),   z_nk, w_dk ~ Exponential(1)

Its mode by multiplicative updates (Lee and Seung, 2001), per sample (`map`), then per feature (`features`):

    z_nk <- z_nk (sum_d s_nd w_dk y_nd / m_nd) / (1 + sum_d s_nd w_dk),   m = z w',  s = 1 where y is observed
    w_dk <- w_dk (sum_n s_nd z_nk y_nd / m_nd) / (1 + sum_n s_nd z_nk)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from factorflow.errors import InputError
from factorflow.models.configuration import Example, ModelConfig
from factorflow.models.contract import Meta, Model, Stage, Step, Sweep, Variable, wide
from factorflow.models.registry import register

START_Z, START_W = range(2)  # sites of the noise


@register
class PoissonNMF(ModelConfig):
    """Poisson factorisation with nonnegative factors."""

    model: Literal["poisson_nmf"] = "poisson_nmf"
    n_factors: int = Field(default=2, ge=1, description="Factors (K).")
    max_iter: int = Field(default=8, ge=1, description="Iterations.")

    @classmethod
    def examples(cls) -> dict[str, Example]:
        return {"default": Example(cls(), data={"views": {"a": ("poisson", 7), "b": ("poisson", 5)}})}

    def build(self, meta: Meta) -> Model[Any, Any]:
        if other := [view.name for view in meta.views if view.likelihood != "poisson"]:
            raise InputError("views", ", ".join(other), "views of counts", "Leave the others out.")
        return NMF(meta, self)


@dataclass(frozen=True)
class Globals:
    weights: dict[str, Any] = field(metadata=wide())  # w by view, (D, K)


@dataclass(frozen=True)
class Stats:
    counts: dict[str, Any] = field(metadata=wide())  # numerators of w by view, (D, K)
    scores: dict[str, Any] = field(metadata=wide())  # denominators
    log_density: float
    n: float


@dataclass(frozen=True)
class Update(Sweep[Globals, Any, Stats]):
    meta: Meta
    config: PoissonNMF
    name: ClassVar[str] = "update"

    def axes(self) -> dict[str, int]:
        return {view.name: view.n_features for view in self.meta.views}

    def map(self, block: Any, local: Any, globals_: Globals, step: Step) -> tuple[Any, Stats]:
        w, data = globals_.weights, {v.name: v.kind.fill_missing(block.data[v.name]) for v in self.meta.views}
        z = step.uniform(START_Z, block.rows, self.config.n_factors) + 0.1 if local is None else local
        share = sum((y / (z @ w[v].T)) @ w[v] for v, (y, _) in data.items())
        z = z * share / (1.0 + sum(seen @ w[v] for v, (_, seen) in data.items())) + 1e-12
        mean = {v: z @ w[v].T for v in data}
        density = sum(float((y * np.log(mean[v]) - seen * mean[v]).sum()) for v, (y, seen) in data.items())
        counts = {v: (y / mean[v]).T @ z for v, (y, _) in data.items()}
        n = float(sum(seen.sum() for _, seen in data.values()))
        return z, Stats(counts, {v: data[v][1].T @ z for v in data}, density - float(z.sum()), n)

    def features(self, axis: str, index: range, globals_: Globals, stats: Stats, step: Step) -> Any:
        w = globals_.weights[axis][index.start : index.stop]
        return w * stats.counts[axis] / (1.0 + stats.scores[axis]) + 1e-12, {"prior": -float(w.sum())}

    def assemble(self, globals_: Globals, stats: Stats, parts: Any, sums: Any, step: Step) -> tuple[Any, Any]:
        objective = stats.log_density + sum(part["prior"] for part in sums.values())
        return Globals(parts), {"objective": objective, "observed": stats.n}


@dataclass(frozen=True)
class NMF(Model[Globals, Any]):
    config: PoissonNMF
    kind: ClassVar[Literal["variational"]] = "variational"

    def stages(self) -> tuple[Stage[Globals], ...]:
        return (Stage("fit", (Update(self.meta, self.config),), self.config.max_iter),)

    def init(self, step: Step) -> Globals:
        numbers = {v.name: np.asarray(self.meta.numbers(v.name)) for v in self.meta.views}
        return Globals({v: step.uniform(START_W, n, self.config.n_factors) + 0.1 for v, n in numbers.items()})

    def variables(self) -> tuple[Variable, ...]:
        return Variable("scores", ("obs", "factor"), "z", lambda z: z, rows=True), *(
            Variable(f"loadings_{v}", (f"feature_{v}", "factor"), "w", lambda g, v=v: g.weights[v])
            for v in (view.name for view in self.meta.views)
        )

    def coords(self, globals_: Globals) -> dict[str, list[str]]:
        return {"factor": self.factor_names(self.config.n_factors)}

    def predict(self, block: Any, rows: Any, record: Any, view: str) -> tuple[Any, Any]:
        mean = rows["scores"] @ record[f"loadings_{view}"].T
        return mean, np.sqrt(mean)
