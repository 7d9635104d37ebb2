"""Poisson factors: non-negative programs of counts, at a cost of the counts that are not zero.

Cell n of batch b(n) has counts y_nd of the features d = 1 ... D of one or several views; of a view that it
lacks, nothing. With programs k = 1 ... K and size factors s_n, which are given::

    y_nd ~ Poisson(s_n gamma_{b(n) d} sum_k theta_nk beta_dk)
    theta_nk ~ Gamma(a_k, b_k),  b_k ~ Gamma(r, r),  r = 0.001      unused programs shrink away
    beta_dk ~ Gamma(c, eta_d),  eta_d ~ Gamma(c_0, c_0),  c_0 = 0.3
    gamma_bd ~ Gamma(g, g),  g = 10                                 1 without batches
    a_k, c ~ Exponential(1)                                         points

All Gammas are (shape, rate). Mean field: q(theta) of the cells of a block, then q(beta), q(gamma), the
shapes, q(b) and q(eta) at the root. Where y_nd > 0, p_ndk = exp(E log theta_nk + E log beta_dk) / R_nd, which
sum to 1 over k; s and gamma cancel in them::

    q(theta_nk) = Gamma(a_k + sum_d y_nd p_ndk, <b_k> + s_n rho_{b(n) k})
    q(beta_dk)  = Gamma(c + sum_n y_nd p_ndk, <eta_d> + sum_b <gamma_bd> T_bk)
    q(gamma_bd) = Gamma(g + Y_bd, g + sum_k <beta_dk> T_bk)
    q(b_k)      = Gamma(r + N a_k, r + sum_n <theta_nk>)
    q(eta_d)    = Gamma(c_0 + K c, c_0 + sum_k <beta_dk>)
    a_k         : psi(a_k) + 1 / N = <log b_k> + mean over n of <log theta_nk>;  c likewise over d and k

with rho_bk = sum_d <gamma_bd> <beta_dk>, and, over the cells of batch b, T_bk = sum s_n <theta_nk> and
Y_bd = sum y_nd. All zeros of a cell are K numbers, rho. A missing or held-out entry is no zero: it takes
s gamma <beta_d> from the rate of its cell and s <theta_n> from that of its feature. Once an iteration theta_k
is multiplied by z_k, beta_k and b_k are divided by it,
z_k = (sum_d <eta_d> <beta_dk> + r <b_k>) / (c D + r): the likelihood does not see it, and coordinate updates
crawl along it. The bound::

    sum over y > 0 of y (log R + log s + <log gamma>) - log y!
        - sum_nk <theta_nk> s_n rho_{b(n) k}  - all KL  - sum_k a_k - c

is that of the state that a pass begins with. Shapes are 1 until programs have settled and are learned then:
learned from the first pass on, they split what all cells share over several programs, and lose others.

| symbol | field |
|---|---|
| q(theta) | ``Local``: `Gamma` of shape and rate, (B, K), of single precision |
| q(beta), q(eta), q(gamma) | ``Programs.loadings``, ``feature_rates``, ``batches`` |
| q(b), a, c, z | ``Programs.score_rates``, ``score_shape``, ``loading_shape``, ``stretch`` |
| sum_n y p | ``ProgramStats.counts`` times exp E log beta |
| T, and the part of it that is missing | ``ProgramStats.exposure``, ``missing`` |
| Y | ``Data.counts`` |

In single precision exp E log theta times exp E log beta of small shapes is 0. Both are relative to the
largest of their cell, or feature, which p does not see; the bound has these times the totals of cells and
features.

References
----------
Gopalan, Hofman and Blei (2015), Scalable recommendation with hierarchical Poisson factorization, UAI.
Levitin, Yuan, ..., Sims (2019), Molecular Systems Biology 15, e8557 (scHPF).
Cemgil (2009), Computational Intelligence and Neuroscience 785152 (the split of counts).
Kotliar, Veres, ..., Sabeti (2019), eLife 8, e43803 (consensus of restarts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field

from factorflow.errors import InputError
from factorflow.models.configuration import Example, ModelConfig
from factorflow.models.contract import Array, Block, Info, Meta, Model, Stage, Step, Sweep, Variable
from factorflow.models.poisson_factors import results
from factorflow.models.poisson_factors.cells import Prepared, prepare, update_cells, visit_others
from factorflow.models.poisson_factors.consensus import start_from_consensus
from factorflow.models.poisson_factors.programs import update_others, update_programs
from factorflow.models.poisson_factors.settings import Settings, ViewSettings, by_view
from factorflow.models.poisson_factors.start import CountSweep, choose, empty_globals, start_others
from factorflow.models.poisson_factors.state import Globals, Local, ProgramStats, Stats
from factorflow.models.registry import register
from factorflow.models.size_factors import METHODS, columns_of
from factorflow.models.views import refuse_inputs

__all__ = ["PoissonFactors", "PoissonFactorsModel"]

CONSENSUS_SETTLING = 20
"""Iterations at most with shapes of 1, for programs that begin with a consensus."""

OTHER_PASSES = 10
"""Passes over the features that the model was not fitted to."""


@dataclass(frozen=True)
class ProgramSweep(Sweep[Globals, Local, Stats]):
    """One pass: theta of all cells, then the programs."""

    settings: Settings
    n_rows: int
    learn: bool
    name: ClassVar[str] = "programs"

    def send(self, globals_: Globals) -> Globals:
        """Return the globals without the programs that starts found before."""
        return replace(globals_, start_loadings={})

    def prepare(self, globals_: Globals) -> Prepared:
        """Return the tables that all blocks read."""
        return prepare(self.settings, globals_)

    def map(self, block: Block, local: Local | None, globals_: Any, step: Step) -> tuple[Local, Stats]:
        """Return theta of a block, and its statistics."""
        return update_cells(self.settings, block, local, globals_, step, learn=self.learn)

    def update(self, globals_: Globals, stats: Stats, step: Step) -> tuple[Globals, Info]:
        """Return the programs of all starts, and the highest of their bounds."""
        data = globals_.data
        assert data is not None
        programs = {
            name: update_programs(self.settings, data, self.n_rows, p, stats.programs[name], learn=self.learn)
            for name, p in globals_.programs.items()
        }
        observed = float(sum(n.sum() for n in data.n_observed.values()))
        objective = max(p.objective for p in programs.values())
        return replace(globals_, programs=programs), {"objective": objective, "observed": observed}


@dataclass(frozen=True)
class OtherSweep(Sweep[Globals, Local, ProgramStats]):
    """One pass over the features that the model was not fitted to: theta stays, their programs are found."""

    settings: Settings
    name: ClassVar[str] = "other features"

    def map(
        self, block: Block, local: Local | None, globals_: Globals, step: Step
    ) -> tuple[Local | None, ProgramStats]:
        """Return theta as it was, and the statistics of a block."""
        return local, visit_others(self.settings, block, local, globals_, step)

    def update(self, globals_: Globals, stats: ProgramStats, step: Step) -> tuple[Globals, Info]:
        """Return the globals with the programs of those features."""
        data, others = globals_.other_data, globals_.others
        assert data is not None
        assert others is not None
        return replace(globals_, others=update_others(self.settings.others(), data, others, stats)), {}


@dataclass(frozen=True)
class PoissonFactorsModel(Model[Globals, Local]):
    """Poisson factors of a dataset of a given shape."""

    settings: Settings
    consensus: bool
    settling_iter: int
    start_iter: int
    max_iter: int
    tol: float
    kind: ClassVar[Literal["variational", "monte carlo"]] = "variational"

    def stages(self) -> tuple[Stage[Globals], ...]:
        """Return the first pass, the passes with shapes of 1, those of several starts, and the others."""
        s, n = self.settings, self.meta.n_rows
        settle, learn = ((ProgramSweep(s, n, learn),) for learn in (False, True))
        numbers = tuple(self.meta.numbers(view.name) for view in s.views)
        stages = [Stage[Globals]("counts", (CountSweep(s, n, numbers),), 1, counts=False)]
        stages.append(Stage("settling", settle, self.settling_iter, tol=self.tol))
        if s.n_starts > 1:
            stages.append(Stage("starts", learn, self.start_iter))
        if self.consensus:
            enter = partial(start_from_consensus, s, n)
            stages.append(Stage("consensus", settle, CONSENSUS_SETTLING, tol=self.tol, enter=enter))
        stages.append(Stage("programs", learn, self.max_iter, tol=self.tol, enter=choose))
        if s.others().views:
            others, begin = (OtherSweep(s),), partial(start_others, s, n)
            stages.append(
                Stage("other features", others, OTHER_PASSES, enter=begin, counts=False, closing=True)
            )
        return tuple(stages)

    def init(self, step: Step) -> Globals:
        """Return globals before any data are seen."""
        return empty_globals(self.settings)

    def finish(self, block: Block, local: Local | None, globals_: Globals, step: Step) -> results.Rows:
        """Return what is stored of the rows of a block."""
        return results.describe_rows(self.settings, block, local, globals_, step)

    def variables(self) -> tuple[Variable, ...]:
        """Return the table of variables."""
        return results.variables(self.settings)

    def coords(self, globals_: Globals) -> Mapping[str, Sequence[str]]:
        """Return the labels of programs, of batches and of starts."""
        s = self.settings
        labels: dict[str, Sequence[str]] = {
            "factor": self.factor_names(len(results.program_order(s, globals_.best)))
        }
        if s.batch is not None:
            labels["batch"] = s.batches
        if s.n_starts > 1:
            labels["start"] = [f"start{i + 1}" for i in range(s.n_starts)]
            labels["program"] = [str(k + 1) for k in range(s.n_factors)]
        return labels

    def predict(
        self, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> tuple[Array, Array]:
        """Return mean and standard deviation of the counts of a view."""
        return results.predict(self.settings, rows, record, view)


@register
class PoissonFactors(ModelConfig):
    """Poisson factors: non-negative programs of sparse counts (hierarchical Poisson factorisation)."""

    model: Literal["poisson_factors"] = "poisson_factors"
    columns_option: ClassVar[str] = "batch"
    most_levels: ClassVar[int] = 1000  # numbers of their own, no covariances
    n_factors: int = Field(default=10, ge=1, description="Programs (K); those without counts are left out.")
    size_factors: str | dict[str, str] = Field(
        default="total",
        description="How much of each cell was counted: total, median, none, or a column of the metadata "
        "with numbers above 0, relative to their mean; for all views, or by view.",
    )
    batch: str | None = Field(
        default=None,
        description="Column of the metadata whose levels multiply the rate of each feature by a number.",
    )
    features: dict[str, Literal["highly_variable"] | tuple[str, ...]] | None = Field(
        default=None,
        description="Features that programs are found by, by view: names, or highly_variable (those that "
        "the metadata of features mark so, else the 2000 that vary most); others get loadings at the end.",
    )
    n_starts: int = Field(default=1, ge=1, description="Starts that are tried; the highest bound goes on.")
    consensus: bool = Field(
        default=False, description="Whether the last stage begins with what the starts agree on."
    )
    settling_iter: int = Field(
        default=60, ge=1, description="Iterations at most in which shapes are 1: programs settle."
    )
    start_iter: int = Field(
        default=40, ge=1, description="Iterations of each start after that, if there are several."
    )
    max_iter: int = Field(default=500, ge=1, description="Iterations at most after that.")
    tol: float = Field(
        default=1e-6, gt=0, description="Stop when an iteration gains less than this an entry (nats)."
    )
    drop: float = Field(
        default=1e-4, ge=0, lt=1, description="Leave out programs with less than this share of the counts."
    )

    def sparse_views(self, meta: Meta) -> tuple[str, ...]:
        """Return the views of counts: all of them are read by their entries."""
        return tuple(view.name for view in meta.value_views if view.kind.by_size)

    @property
    def given_columns(self) -> list[str] | None:
        """Columns of the sample metadata that the model is given."""
        return None if self.batch is None else [f"C({self.batch})"]

    @property
    def size_columns(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Columns of the sample metadata that are size factors, and what else they may be."""
        return columns_of(self.size_factors, METHODS)

    @property
    def chosen_features(self) -> tuple[Mapping[str, str | Sequence[str]], str | None] | None:
        """Features that the model is fitted to."""
        return None if self.features is None else (self.features, self.batch)

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """Return cases small enough for tests."""
        small: dict[str, Any] = {"n_factors": 3, "settling_iter": 3, "start_iter": 2, "max_iter": 3}
        data: dict[str, Any] = {"n_factors": 2, "depth": 3.0}
        return {
            "default": Example(cls(**small), "poisson_factors", {**data, "views": {"a": 7}}),
            "features": Example(
                cls(**small, features={"a": ("gene0", "gene2", "gene5", "gene6")}, batch="batch"),
                "poisson_factors",
                {**data, "views": {"a": 7, "b": 5}, "batches": 2},
            ),
            "several": Example(
                cls(
                    **small,
                    n_starts=2,
                    consensus=True,
                    batch="batch",
                    size_factors={"a": "median", "b": "total"},
                ),
                "poisson_factors",
                {**data, "views": {"a": 7, "b": 5}, "batches": 2},
            ),
        }

    def build(self, meta: Meta) -> PoissonFactorsModel:
        """Return the model for a dataset of this shape.

        Raises
        ------
        InputError
            When the views are not of counts, or an option names what is not there.
        """
        refuse_inputs(meta, "PoissonFactors")
        if self.consensus and self.n_starts < 2:
            remedy = "Ask for several, for example {n_starts}."
            raise InputError("consensus", True, "False where there is one start", remedy, n_starts=20)
        if other := [view.name for view in meta.value_views if view.kind.name != "poisson"]:
            remedy = "Leave the others out, or write them with {likelihoods}."
            expected = "views of counts"
            raise InputError("views", ", ".join(other), expected, remedy, likelihoods=...)
        names = [view.name for view in meta.value_views]
        if not isinstance(self.size_factors, str) and (unknown := set(self.size_factors) - set(names)):
            raise InputError("size_factors", min(unknown), f"views {', '.join(names)}", "Correct the name.")
        views = []
        for view in meta.value_views:
            size = by_view(self.size_factors, view.name, "total")
            gaps = view.missing == "scattered"
            chosen = meta.chosen.get(view.name)
            n_chosen = view.n_features if chosen is None else len(chosen)
            views.append(ViewSettings(view.name, n_chosen, gaps, size, chosen, view.n_features))
        settings = Settings(
            tuple(views),
            self.n_factors,
            self.batch,
            meta.covariates,
            self.n_starts,
            self.drop,
            tuple(column.name for column in meta.sizes),
        )
        lengths = self.settling_iter, self.start_iter, self.max_iter
        return PoissonFactorsModel(meta, settings, self.consensus, *lengths, self.tol)
