"""Counts in memory, passes one at a time, and the model by its definition on dense arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import digamma, gammaln

from factorflow.core.covariates import Column, Covariates, Term
from factorflow.core.trees import add
from factorflow.kernels.random import Step
from factorflow.kernels.sparse_rows import SparseRows
from factorflow.models import PoissonFactors
from factorflow.models.contract import Block, Meta, ViewMeta
from factorflow.models.poisson_factors import PoissonFactorsModel
from factorflow.models.poisson_factors.state import Gamma

STEP = Step(3)


def rows_of(y: Any) -> SparseRows:
    """Return counts by their entries; NaN is missing."""
    missing = np.isnan(y)
    return SparseRows.from_dense(
        np.where(missing, 0, y).astype(np.uint16), missing if missing.any() else None, listed=True
    )


def counts(
    views: dict[str, Any], cut: int = 1 << 30, batch: Any = None, sizes: Any = None
) -> tuple[Meta, list[Block]]:
    """Return meta and blocks of views of counts (N, D), NaN where missing; columns "batch" and "size"."""
    n = len(next(iter(views.values())))
    gaps = {name: "scattered" if np.isnan(y).any() else "none" for name, y in views.items()}
    metas = tuple(ViewMeta(name, "poisson", y.shape[1], gaps[name]) for name, y in views.items())
    given, numbers = None, np.zeros((n, 0))
    if batch is not None:
        levels = tuple(f"b{i}" for i in range(batch.max() + 1))
        one = (batch[:, None] == np.arange(len(levels))).astype(float)
        numbers = one - one.mean(axis=0)
        given = Covariates((Column("batch", levels=levels),), (Term(("batch",), tuple(one.mean(axis=0))),))
    edges = list(range(0, n, cut))
    blocks = []
    for i, start in enumerate(edges):
        mine = slice(start, min(start + cut, n))
        columns_ = {} if given is None else {"covariates": numbers[mine]}
        columns_ |= {} if sizes is None else {"size_factors": sizes[mine, None]}
        data = {name: rows_of(y[mine]) for name, y in views.items()}
        blocks.append(Block(i, start, len(numbers[mine]), len(edges), data, {}, columns_))
    meta = Meta(
        n,
        len(edges),
        min(cut, n),
        metas,
        covariates=given,
        sizes=() if sizes is None else (Column("size", sizes.mean()),),
        sparse_views=tuple(view.name for view in metas),
    )
    return meta, blocks


@dataclass
class Run:
    """Passes over blocks."""

    model: PoissonFactorsModel
    blocks: Sequence[Block]
    globals_: Any = None
    local: Any = None

    def __post_init__(self) -> None:
        self.local = [None] * len(self.blocks)
        self.globals_, self.objectives = self._round(self.model.stages()[0].sweeps[0])[0], []

    @property
    def programs(self) -> Any:
        return self.globals_.best

    def scores(self, name: str = "0") -> Gamma:
        """Return theta after the last scale step."""
        parts = (np.concatenate([getattr(o[name], field) for o in self.local]) for field in ("shape", "rate"))
        found = Gamma(*(part.astype(float) for part in parts))
        return found.scaled(self.globals_.programs[name].stretch)

    def passes(self, n: int, learn: bool = False) -> Run:
        sweep = next(
            s for stage in self.model.stages() for s in stage.sweeps if getattr(s, "learn", None) == learn
        )
        for _ in range(n):
            (self.globals_, info), self.local = self._round(sweep), self.local_
            self.objectives.append(info["objective"])
        return self

    def bound(self) -> float:
        """Return the bound of the state as it is."""
        return Run.passes(replace_run(self), 1).objectives[-1]

    def _round(self, sweep: Any) -> Any:
        globals_ = self.globals_ if self.globals_ is not None else self.model.init(STEP)
        prepared, stats, self.local_ = sweep.prepare(globals_), None, []
        for block, local in zip(self.blocks, self.local, strict=True):
            found, part = sweep.map(block, local, prepared, STEP)
            self.local_.append(found)
            stats = part if stats is None else add(stats, part)
        return sweep.update(globals_, stats, STEP)


def replace_run(run: Run) -> Run:
    """Return a copy of a run, to go on from."""
    other = Run.__new__(Run)
    other.__dict__.update(run.__dict__)
    other.objectives = []
    return other


def run_of(views: dict[str, Any], k: int, cut: int = 1 << 30, **options: Any) -> Run:
    """Return a run before its first pass."""
    given = {name: options.pop(name) for name in ("batch", "sizes") if name in options}
    meta, blocks = counts(views, cut, **given)
    names: dict[str, Any] = {"size_factors": "none"}
    if given.get("batch") is not None:
        names["batch"] = "batch"
    if given.get("sizes") is not None:
        names["size_factors"] = "size"
    config = PoissonFactors(n_factors=k, **{**names, **options})
    return Run(config.build(meta), blocks)


def with_programs(run: Run, **changes: Any) -> None:
    """Change the programs of the first start."""
    changed = replace(run.programs, **changes)
    run.globals_ = replace(run.globals_, programs={"0": changed})


def kl(q: Gamma, shape: Any, rate: Any, log_rate: Any = None) -> float:
    """Return the divergence of q from Gamma(shape, rate)."""
    a, b = q.shape, q.rate
    log_rate = np.log(rate) if log_rate is None else log_rate
    parts = (a - shape) * digamma(a) - gammaln(a) + gammaln(shape)
    return float((parts + shape * (np.log(b) - log_rate) + a * (rate / b - 1.0)).sum())
