"""Comparison of the coupled model with independent Gaussians under the same decoders; log p(y) of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from factorflow.core.block import Array
from factorflow.kernels.sites import MODELS
from factorflow.models.contract import Block, Info, Step, Sweep
from factorflow.models.gplvm_cmf.psi import moments_of_z
from factorflow.models.gplvm_cmf.rows import (
    EVALUATION,
    convert_rows,
    covariance_of_inputs,
    new_local,
    noise_of,
    pack_diagonal,
    step_at,
    unpack_cholesky,
)
from factorflow.models.gplvm_cmf.settings import Family, Settings
from factorflow.models.gplvm_cmf.start import inputs_of
from factorflow.models.gplvm_cmf.state import Globals, Local, Values
from factorflow.models.gplvm_cmf.steps import fit_local, pass_inputs, rest_of_bound

IMPORTANCE = MODELS[10]

FAMILIES: tuple[Family, ...] = ("gp", "mean_field", "full")
"""Posteriors compared, in this order."""


def moments(
    settings: Settings, block: Block, local: Local | None, globals_: Globals, step: Step
) -> tuple[Float64[np.ndarray, "B Q"], Float64[np.ndarray, "B Q"]]:
    """Return mean and variance of z of the rows of a block, as q(z) is held by now."""
    family: Family = settings.coupling
    if family == "gp" and not globals_.coupled:
        family = settings.alone
    rows = convert_rows(settings, family, block, local, globals_, step)
    if family == "gp":
        phi = inputs_of(settings, block, rows, globals_)
        return moments_of_z(settings, globals_.values, phi, covariance_of_inputs(rows, phi))
    assert rows is not None
    if family == "mean_field":
        return np.asarray(rows.values["mean"]), np.exp(2.0 * rows.values["log_sd"])
    factor = unpack_cholesky(rows.values["factor"], settings.n_factors)
    return np.asarray(rows.values["mean"]), (factor**2).sum(2)


@dataclass(frozen=True)
class ComparisonStats:
    """Sums over the rows compared, by family: the bound, its excess over the model's own, and squares.

    ``own`` is what G and h of all rows add, where u is drawn.
    """

    n_rows: float
    bound: Float64[np.ndarray, " F"]
    excess: Float64[np.ndarray, " F"]
    square: Float64[np.ndarray, " F"]
    own: Values


@dataclass(frozen=True)
class Compare(Sweep[Globals, Local, ComparisonStats]):
    """The bound of some rows under each family of q(z), the decoders being those that were learned."""

    settings: Settings
    n_rows: int
    n_steps: int
    block_rows: int
    n_blocks: int
    name: ClassVar[str] = "compare"

    def map(
        self, block: Block, local: Local | None, globals_: Globals, step: Step
    ) -> tuple[Local | None, ComparisonStats | None]:
        """Fit the rows that are compared."""
        settings, chosen = self.settings, self._is_compared(block.number)
        if not globals_.values or (not chosen and not settings.draws_u):
            return local, None
        bounds_of_model, sums = self._bound(settings.coupling, block, local, globals_, step)
        nothing = np.zeros(len(FAMILIES))
        if not chosen:
            return local, ComparisonStats(0.0, nothing, nothing, nothing, sums)
        first = bounds_of_model[: self.n_rows]
        bounds = np.stack(
            [self._bound_under(family, block, local, globals_, step, first) for family in FAMILIES]
        )
        excess = bounds - first
        return local, ComparisonStats(
            float(len(first)), bounds.sum(1), excess.sum(1), (excess**2).sum(1), sums
        )

    def _bound_under(
        self,
        family: Family,
        block: Block,
        local: Local | None,
        globals_: Globals,
        step: Step,
        own: Float64[np.ndarray, " B"],
    ) -> Float64[np.ndarray, " B"]:
        """Return the bound of the rows compared under one family; NaN of a process that is not there."""
        settings = self.settings
        if family == settings.coupling:
            return own
        if family == "gp":
            return np.full(len(own), np.nan)
        mean, variance = moments(settings, block, local, globals_, step)
        piece, few = _first_rows(block, self.n_rows), slice(0, self.n_rows)
        start = _gaussians(family, mean[few], variance[few])
        rows = fit_local(settings, family, self.n_steps, piece, start, globals_, replace(step, count=0))
        return self._bound(family, piece, rows, globals_, step)[0]

    def _bound(
        self, family: Family, block: Block, local: Local | None, globals_: Globals, step: Step
    ) -> tuple[Float64[np.ndarray, " B"], Values]:
        from factorflow.models.gplvm_cmf.autodiff import passes

        settings = self.settings
        if family == "gp" and not globals_.coupled:
            return np.full(block.n_rows, np.nan), Values(0.0, 0.0)
        rows = convert_rows(settings, family, block, local, globals_, step)
        noise = noise_of(settings, family, block, step_at(step, EVALUATION), settings.evaluation_draws)
        bound, gram, shift = passes.evaluate(pass_inputs(settings, family, block, rows, globals_), noise)
        return bound, Values(0.0, 0.0, gram, shift)

    def _is_compared(self, number: int) -> bool:
        """Return whether rows of a block are compared: of blocks spread evenly over all."""
        n = max(1, min(self.n_blocks, self.n_rows // self.block_rows))
        return number in {(2 * i + 1) * self.n_blocks // (2 * n) for i in range(n)}

    def update(self, globals_: Globals, stats: ComparisonStats | None, step: Step) -> tuple[Globals, Info]:
        """Keep the means and the standard errors of the differences."""
        if stats is None or not stats.n_rows:
            return globals_, {}
        n = stats.n_rows
        bound, excess = stats.bound / n, stats.excess / n
        error = np.sqrt(np.maximum(stats.square / n - excess**2, 0.0) / n)
        remaining_terms = rest_of_bound(self.settings, globals_, stats.own, step_at(step, EVALUATION))
        bound[FAMILIES.index(self.settings.coupling)] += remaining_terms / self.settings.n_rows
        return replace(globals_, comparison=np.stack([bound, error], axis=1)), {}


def _first_rows(block: Block, n: int) -> Block:
    """Return a block of the first rows of a block."""
    if n >= block.n_rows:
        return block
    data = {name: np.ascontiguousarray(values[:n]) for name, values in block.data.items()}
    return replace(block, data=data, n_rows=n, hidden={}, columns={}, memory=None)


def _gaussians(family: Family, mean: Array, variance: Array) -> Local:
    """Return rows with Gaussians of their own."""
    log_sd = 0.5 * np.log(variance)
    if family == "mean_field":
        return new_local({"mean": mean, "log_sd": log_sd})
    return new_local({"mean": mean, "factor": pack_diagonal(log_sd)})


@dataclass(frozen=True)
class RowScores:
    """log p(y_i) of rows (B of them) under the decoders, z integrated out, and standard errors."""

    log_likelihood: Float64[np.ndarray, " B"]
    error: Float64[np.ndarray, " B"]


@dataclass(frozen=True)
class ScoreRows(Sweep[Globals, RowScores, None]):
    """log p(y_i) by importance sampling: draws from a Gaussian fitted to each row, widened."""

    settings: Settings
    n_steps: int
    n_draws: int
    n_repeats: int
    name: ClassVar[str] = "score"

    def map(
        self, block: Block, local: RowScores | None, globals_: Globals, step: Step
    ) -> tuple[RowScores | None, None]:
        """Score the rows."""
        from factorflow.models.gplvm_cmf.autodiff import passes

        settings = self.settings
        rows = fit_local(settings, "mean_field", self.n_steps, block, None, globals_, replace(step, count=0))
        rows = fit_local(settings, "full", self.n_steps, block, rows, globals_, replace(step, count=0))
        estimates, about = [], pass_inputs(settings, "full", block, rows, globals_)
        for repeat in range(self.n_repeats):

            def noise(call: int, words: int, repeat: int = repeat) -> Float64[np.ndarray, "B W"]:
                return np.asarray(step_at(step, (repeat << 20) + call).normal(IMPORTANCE, block.rows, words))

            estimates.append(passes.importance(about, noise, self.n_draws))
        each = np.stack(estimates)
        top = each.max(0)
        pooled = np.log(np.exp(each - top).mean(0)) + top
        spread = each.std(0, ddof=1) if self.n_repeats > 1 else np.full(block.n_rows, np.nan)
        return RowScores(pooled, spread / np.sqrt(self.n_repeats)), None
