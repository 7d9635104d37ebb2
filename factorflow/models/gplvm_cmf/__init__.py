"""GP-LVM-CMF: a Gaussian process couples the latent variables of a neural decoder.

    z_i ~ N(0, I_Q)
    gaussian   y_i ~ N(W_2 h + b_2, diag exp(W_3 h + b_3)),  h = tanh(W_1 z_i + b_1)
    bernoulli  y_id ~ Bernoulli(sigmoid((W_2 h + b_2)_d))

A decoder for each view, over one z; missing entries are left out of the sum. The posterior of z is made
dependent across samples: a sparse Gaussian process over inputs X_i of its own says where z_i lies::

    q(X_i) = N(phi_i, Phi_i), or given            q(w_q) = a point, N(kappa_q, S_q) or N(kappa_q, I)
    q(z_iq | w, X_i) = N(a(X_i)' w_q, v(X_i) + s_q^2)

with a and v of the kernel (`autodiff.kernel`), w = L^-1 u. As q(z) itself has no density in closed form, an
auxiliary model r guesses X and w back from z (`autodiff.reverse`), and the bound is [1]_, equation (4), f
integrated out::

    E sum_i { log p(y_i|z_i) - KL[q(z_i|w, X_i) || p(z_i)] + log r(X_i|w, z_i) - log q(X_i) }
    + E log r(w|z) - log q(w)

by one draw a step, differentiated by PyTorch, climbed by Adam. Parameters are point estimates.

| symbol | field |
|---|---|
| decoders, kernel, Z, kappa, S, s^2, network of r | ``Globals.values`` |
| phi, factor of Phi; without a process m, C | ``Local.values`` |
| Adam's moments | ``first``, ``second`` of both |
| G, h | ``Values.gram``, ``shift`` |
| derivatives by them | ``Cotangents`` |

Corrections to the source
-------------------------
``docs/models/gplvm_cmf.md`` lists them. In short: term C is an expectation under the joint q (under the
product of marginals, as printed in (6), r can only hurt: ``bound="product"`` shows it); u and X are drawn
from q, not from r; v is per row; there are Q processes; constants of (33) and (34).

References
----------
.. [1] "GP-LVM-CMF: derivations and equations". The auxiliary bound: L. Maaloe et al. (2016), "Auxiliary deep
   generative models", ICML; D. Tran, R. Ranganath, D. Blei (2016), "The variational Gaussian process", ICLR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float64
from pydantic import Field

from factorflow.core.records import same_fields
from factorflow.errors import InputError
from factorflow.models.configuration import Example, ModelConfig
from factorflow.models.contract import Array, Block, Meta, Model, Stage, Step, Sweep, Variable
from factorflow.models.gplvm_cmf import results
from factorflow.models.gplvm_cmf.compare import Compare, RowScores, ScoreRows, moments
from factorflow.models.gplvm_cmf.rows import convert_rows, covariance_of_inputs
from factorflow.models.gplvm_cmf.settings import Family, Settings, check_meta, check_torch
from factorflow.models.gplvm_cmf.start import (
    CoupleSweep,
    DirectionsSweep,
    MomentsSweep,
    SketchSweep,
    empty_globals,
    inputs_of,
)
from factorflow.models.gplvm_cmf.state import Globals, Local
from factorflow.models.gplvm_cmf.steps import Descend, Evaluate, Project, Reduce
from factorflow.models.registry import register

__all__ = ["GPLVMCMF", "GPLVMCMFModel"]


@dataclass(frozen=True)
class Schedule:
    """How long a run goes on.

    Parameters
    ----------
    warmup_iter, max_iter : int
        Steps of decoders with Gaussians of the rows first, and steps that follow.
    tol : float or None
        Gain of the bound an entry between two evaluations at which a stage ends.
    part_rows : int or None
        Rows of a step, about.
    evaluate_every : int
        Steps between two evaluations.
    compare_rows, compare_steps : int
        Rows that are compared with Gaussians of their own, and the steps that those take.
    row_steps : int
        Steps of new rows in an iteration of a projection.
    """

    warmup_iter: int
    max_iter: int
    tol: float | None
    part_rows: int | None
    evaluate_every: int
    compare_rows: int
    compare_steps: int
    row_steps: int


@dataclass(frozen=True)
class GPLVMCMFModel(Model[Globals, Local]):
    """A GP-LVM-CMF joined with a dataset of a given shape."""

    settings: Settings
    schedule: Schedule
    kind: ClassVar[Literal["variational", "monte carlo"]] = "variational"

    def stages(self) -> tuple[Stage[Globals], ...]:
        """Return the first passes, the warm-up, the steps, and the comparison."""
        return _stages(self.settings, self.schedule, self.meta.block_rows, self.meta.n_blocks)

    def init(self, step: Step) -> Globals:
        """Return globals before any data are seen; refuse too few samples, and no PyTorch."""
        check_torch()
        import torch  # noqa: F401  (now, so that it is not weighed as what a sweep takes)

        return empty_globals(self.settings)

    def variables(self) -> tuple[Variable, ...]:
        """Return the table of variables."""
        return results.variables(self.settings)

    def coords(self, globals_: Globals) -> Mapping[str, Sequence[str]]:
        """Return the labels of latent variables, inputs, inducing points, hidden units and couplings."""
        return {"factor": self.factor_names(self.settings.n_factors), **results.coords(self.settings)}

    def finish(self, block: Block, local: Local | None, globals_: Globals, step: Step) -> results.Row:
        """Return mean and variance of z and X."""
        settings, blank = self.settings, np.full((block.n_rows, self.settings.n_inputs), np.nan)
        mean, variance = moments(settings, block, local, globals_, step)
        if settings.coupling != "gp" or not globals_.coupled:
            return results.Row(mean, variance, blank, blank)
        rows = convert_rows(settings, "gp", block, local, globals_, step)
        phi = inputs_of(settings, block, rows, globals_)
        spread = np.diagonal(covariance_of_inputs(rows, phi), axis1=1, axis2=2)
        return results.Row(mean, variance, phi, spread)

    def predict(
        self, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> tuple[Float64[np.ndarray, "B D"], Float64[np.ndarray, "B D"]]:
        """Return mean and standard deviation of a new observation of every entry."""
        return results.predict(self.settings, rows, record, view)

    def generate(self, record: Mapping[str, Array], n_samples: int, seed: int) -> dict[str, Any]:
        """Return samples of the decoders, by view, and the z that they were made of."""
        return results.generate(self.settings, record, n_samples, seed)

    def projection(self) -> tuple[Sweep[Globals, Any, Any], ...]:
        """Return the sweep that finds the rows of new samples."""
        return (Project(self.settings, self.schedule.row_steps),)

    def scorer(self, n_draws: int, n_repeats: int) -> Scorer:
        """Return the model whose projection is log p(y_i) of new rows."""
        return Scorer(self.meta, self, n_draws, n_repeats)


@dataclass(frozen=True)
class Scorer(Model[Globals, RowScores]):
    """log p(y_i) of rows under the decoders of a fitted model, by importance sampling."""

    model: GPLVMCMFModel
    n_draws: int
    n_repeats: int
    kind: ClassVar[Literal["variational", "monte carlo"]] = "variational"

    def stages(self) -> tuple[Stage[Globals], ...]:
        """Return the stages of the model: its memory is that of a fit."""
        return self.model.stages()

    def init(self, step: Step) -> Globals:
        """Return globals before any data are seen."""
        return self.model.init(step)

    def variables(self) -> tuple[Variable, ...]:
        """Return the scores and their standard errors."""
        error = "standard error over repeats"
        return (
            Variable("log_likelihood", ("obs",), "log p(y_i), nats", lambda s: s.log_likelihood, rows=True),
            Variable("log_likelihood_error", ("obs",), error, lambda s: s.error, rows=True),
        )

    def projection(self) -> tuple[Sweep[Globals, Any, Any], ...]:
        """Return the sweep that scores rows."""
        steps = self.model.schedule.compare_steps
        return (ScoreRows(self.model.settings, steps, self.n_draws, self.n_repeats),)


@lru_cache(maxsize=16)
def _stages(settings: Settings, s: Schedule, block_rows: int, n_blocks: int) -> tuple[Stage[Globals], ...]:
    """Return the stages of a run; the engine asks for them often."""
    before = 0
    first = [
        Stage[Globals]("moments", (MomentsSweep(settings),), 1, counts=False),
        Stage[Globals]("principal components", (SketchSweep(settings),), 2, counts=False),
    ]
    if settings.coupling == "gp":
        before = s.warmup_iter
        first.append(_ascent_stage("warm-up", settings, settings.alone, s, before))
        couple = (DirectionsSweep(settings), CoupleSweep(settings))
        first.append(Stage("inputs", couple, 1, counts=False))
    first.append(_ascent_stage("bound", settings, settings.coupling, s, s.max_iter, before))
    if s.compare_rows:
        compare = Compare(settings, s.compare_rows, s.compare_steps, block_rows, n_blocks)
        first.append(Stage("comparison", (compare,), 1, counts=False, closing=True))
    return tuple(first)


def _ascent_stage(
    name: str, settings: Settings, family: Family, s: Schedule, n_steps: int, before: int = 0
) -> Stage[Globals]:
    """Return a stage of Adam's steps; of all rows where u is drawn."""
    whole = s.max_iter + (s.warmup_iter if settings.coupling == "gp" else 0)
    sweeps: tuple[Sweep[Globals, Any, Any], ...] = (Descend(settings, family, whole, before),)
    two_passes = family == "gp" and settings.draws_u
    return Stage(
        name,
        (Reduce(settings), *sweeps) if two_passes else sweeps,
        n_steps,
        tol=s.tol,
        part_rows=None if two_passes else s.part_rows,
        evaluate=Evaluate(settings, family),
        evaluate_every=s.evaluate_every,
    )


@register
class GPLVMCMF(ModelConfig):
    """A neural decoder of latent variables that a Gaussian process couples. Needs the extra ``gplvm``."""

    model: Literal["gplvm_cmf"] = "gplvm_cmf"
    n_factors: int = Field(default=5, ge=1, description="Latent variables (Q) of the decoders.")
    n_inputs: int | None = Field(
        default=None,
        ge=1,
        description="Inputs (R) of the process: as many as factors when left out; of a given X its columns.",
    )
    n_inducing: int = Field(default=50, ge=2, description="Inducing points (M).")
    hidden: int = Field(default=64, ge=1, description="Hidden units of the decoder of each view.")
    coupling: Family = Field(
        default="gp",
        description="q(z): coupled by the process, or row by row, diagonal or with full covariance.",
    )
    q_u: Literal["point", "free", "prior"] = Field(
        default="point", description="u: a parameter; a Gaussian; one with the prior's covariance."
    )
    q_x: Literal["full", "diagonal"] = Field(
        default="full", description="Covariance of q(X) of a row; diagonal as in the source."
    )
    r_x: Literal["laplace", "mlp"] = Field(
        default="laplace", description="How r guesses X from z: linearised; or corrected by a network."
    )
    bound: Literal["joint", "product"] = Field(
        default="joint", description="Term C under the joint q; or under the marginals, as in the source."
    )
    given: tuple[str, ...] = Field(
        default=(), description="Covariate views that X is; learned when left out."
    )
    warmup_iter: int = Field(
        default=1000, ge=0, description="Steps with Gaussians of the rows, before the coupling."
    )
    max_iter: int = Field(default=3000, ge=1, description="Steps of the bound, at most.")
    tol: float | None = Field(
        default=None, ge=0, description="Stop when an entry gains less than this between evaluations (nats)."
    )
    part_rows: int | None = Field(
        default=1024, ge=1, description="Rows of a step, about (whole blocks); None: all."
    )
    evaluate_every: int = Field(default=200, ge=1, description="Steps between two evaluations of the bound.")
    draws: int = Field(default=1, ge=1, description="Draws of z that a step averages over.")
    evaluation_draws: int = Field(default=4, ge=1, description="Draws of z that an evaluation averages over.")
    rate: float = Field(default=0.01, gt=0, description="Adam's first step length, of the parameters.")
    row_rate: float = Field(default=0.03, gt=0, description="Adam's first step length, of the rows.")
    noise_floor: float = Field(
        default=1e-4, gt=0, description="Least variance of a Gaussian feature, relative to that in the data."
    )
    compare_rows: int = Field(
        default=1000, ge=0, description="Rows that mean fields are fitted to, to compare; 0: none."
    )
    compare_steps: int = Field(default=300, ge=1, description="Steps of rows that are compared or scored.")
    row_steps: int = Field(default=50, ge=1, description="Steps of new rows in an iteration of a projection.")

    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """Return cases small enough for tests; none without PyTorch."""
        try:
            check_torch()
        except InputError:
            return {}
        return _examples()

    def build(self, meta: Meta) -> GPLVMCMFModel:
        """Return the model for a dataset of this shape.

        Raises
        ------
        InputError
            When they do not fit.
        """
        if self.given and self.coupling != "gp":
            raise InputError(
                "given",
                ", ".join(self.given),
                "none without a process",
                "Use {coupling}, or leave it out.",
                coupling="gp",
            )
        views, n_inputs = check_meta(meta, self.given, self.n_inputs, self.n_factors)
        sizes = {"views": views, "n_rows": meta.n_rows, "n_inputs": n_inputs, "reverse_hidden": self.hidden}
        settings = Settings(**same_fields(Settings, self) | sizes)
        return GPLVMCMFModel(meta, settings, Schedule(**same_fields(Schedule, self)))


def _examples() -> Mapping[str, Example]:
    """Return small cases of the variants."""
    small: dict[str, Any] = {
        "n_factors": 2,
        "n_inducing": 4,
        "hidden": 3,
        "warmup_iter": 4,
        "max_iter": 6,
        "evaluate_every": 3,
        "evaluation_draws": 1,
        "compare_rows": 32,
        "compare_steps": 2,
        "row_steps": 2,
        "rate": 0.05,
    }
    mixed = {"views": {"a": ("gaussian", 5), "b": ("bernoulli", 4)}, "n_factors": 2}
    one = {"views": {"a": ("gaussian", 5)}, "n_factors": 2}
    return {
        "default": Example(GPLVMCMF(**small, part_rows=32), data=mixed),
        "two_passes": Example(GPLVMCMF(**small, q_u="free", r_x="mlp", bound="product"), data=one),
        "full": Example(GPLVMCMF(**small, coupling="full"), data=mixed),
    }
