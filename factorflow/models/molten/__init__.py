"""Molten component analysis: one response a row, explained by products of factors of categorical variables.

Row n of a long table has level i(n, g) of variable g = 1 ... G, a response y_n, and an exposure t_n or an
offset o_n. With components l = 1 ... L::

    counts     y_n ~ Poisson(t_n xi_n (sum_l prod_g lambda_{i(n, g), l} + sum_g w_{i(n, g)}))
               lambda_dl ~ Gamma(a, b_l),  b_l fixed or ~ Gamma(e, f),  a fixed or ~ Exponential
               w_d ~ Gamma(a_w, b_w)       optional: `additive`
               xi_n ~ Gamma(c, c)          optional: `overdispersed` (negative binomial); else 1
    Gaussian   y_n ~ N(o_n + beta_0 + sum_l prod_g mu_{i(n, g), l}, 1 / lambda)
               mu_dl ~ N(0, 1 / tau_l),  tau_l fixed or ~ Gamma(e, f),  beta_0 ~ N(0, 1 / kappa)
               lambda ~ Gamma(a_0, b_0)

All Gammas are (shape, rate). Mean field, a full sweep of each variable in turn: the levels of one variable
never meet in a row, so that all of them are updated at once, exactly; all variables at once: no ascent.
F and S are products of E mu and E mu^2 (of counts, E lambda) over the other variables::

    counts     rho_nl = prod_g exp(E log lambda),  R_n = sum_l rho_nl + sum_g exp(E log w)
               p_nl = rho_nl / R_n,  r_nd = exp(E log w_d) / R_n
               q(lambda_dl) = Gamma(a + sum y_n p_nl, <b_l> + sum t_n <xi_n> F_nl)       sums: rows of level d
               q(w_d)       = Gamma(a_w + sum y_n r_nd, b_w + sum t_n <xi_n>)
               q(xi_n)      = Gamma(c + y_n, c + t_n M_n),  log c + 1 - psi(c) + mean(<log xi> - <xi>) = 0
               q(b_l)       = Gamma(e + a D, f + sum_d <lambda_dl>)
               bound        = sum_n y (log t + <log xi> + log R) - t <xi> M - log y!  - all KL
    Gaussian   1 / v_dl = <tau_l> + <lambda> sum w S_l,  m_dl = <lambda> v_dl sum w F_l (r + own part)
               q(beta_0), q(lambda), q(tau_l): conjugate; `measurements` has the sums and the bound

The additive part is G more components with factor w in one variable and a fixed 1 in the others. Once an
iteration the scale of each component is spread over the variables in the best way (`scales`): the likelihood
does not see it, and coordinate updates crawl along it.

| symbol | field |
|---|---|
| q(lambda), q(mu) | ``Levels.one``, ``two``: shape and rate, mean and variance; last row: a missing level |
| q(b), q(tau); a; c | ``Globals.scale``; ``shape``; ``dispersion`` |
| q(lambda), q(beta_0) of a Gaussian response | ``Globals.noise``, ``intercept`` |
| sums of y p, of t xi F | ``counts.LevelSums`` |
| h, f, Q, C | ``measurements.LevelSums`` |

Corrections to the source
-------------------------
``docs/models/molten.md`` lists them. In short: exposure and additive part belong to the rate; b is a rate; p
and r share one denominator; the bound has log R in its first term, M in its second, and is complete; noise,
intercept and scales have priors; updates go variable by variable. Only x in {0, 1} is meant: mu^x of other x
has no Gaussian posterior, lambda^x no Gamma posterior. What is conjugate for other x is a sum of factors
weighted by them, `groups`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float64
from pydantic import Field, PositiveFloat

from factorflow.core.records import same_fields
from factorflow.errors import InputError
from factorflow.kernels import device
from factorflow.likelihoods import Likelihood, get_likelihood
from factorflow.models.configuration import Example, ModelConfig
from factorflow.models.contract import Array, Block, Meta, Model, Stage, Step, Sweep, Variable
from factorflow.models.molten import results
from factorflow.models.molten.counts import CountSweep
from factorflow.models.molten.measurements import GaussianSweep
from factorflow.models.molten.settings import Hyperparameters, Settings, roles_of
from factorflow.models.molten.start import StartSweep, choose, empty_globals, prune
from factorflow.models.molten.state import Globals
from factorflow.models.registry import register

__all__ = ["MoltenModel", "MoltenNormal", "MoltenPoisson"]

Pair = tuple[PositiveFloat, PositiveFloat]


@dataclass(frozen=True)
class MoltenModel(Model[Globals, None]):
    """Molten components of a table of a given shape."""

    settings: Settings
    start_iter: int
    max_iter: int
    tol: float
    kind: ClassVar[Literal["variational", "monte carlo"]] = "variational"

    def stages(self) -> tuple[Stage[Globals], ...]:
        """Return sums by level, the starts, the best of them, and what is left of it."""
        return _stages(self.settings, self.start_iter, self.max_iter, self.tol)

    def init(self, step: Step) -> Globals:
        """Return globals before any data are seen."""
        return empty_globals(self.settings)

    def variables(self) -> tuple[Variable, ...]:
        """Return the table of variables."""
        return results.variables(self.settings)

    def coords(self, globals_: Globals) -> Mapping[str, Sequence[str]]:
        """Return the labels of components, strongest first, and of starts."""
        n_components = len(results.component_order(self.settings, globals_))
        n_starts = globals_.tried.size or globals_.objective.size
        return {
            "factor": [f"Component{i + 1}" for i in range(n_components)],
            "start": [f"start{i + 1}" for i in range(n_starts)],
        }

    def row_roles(self, block: Block, view: str) -> Mapping[str, Array]:
        """Return exposures, or weights, offsets and squares within merged rows, where there are any."""
        return results.row_roles(self.settings, device.block_on_host(block))

    def predict(
        self, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> tuple[Float64[np.ndarray, "B 1"], Float64[np.ndarray, "B 1"]]:
        """Return mean and standard deviation of a new observation of every row."""
        return results.predict(self.settings, device.block_on_host(block), record)

    def sd_of_values(
        self, block: Block, record: Mapping[str, Array], view: str, sd: Float64[np.ndarray, "B 1"]
    ) -> Float64[np.ndarray, "B 1"]:
        """Return the standard deviations of the means that merged rows hold, of others as they are."""
        return results.sd_of_means(self.settings, block, record, sd)

    def likelihood(self, view: str) -> Likelihood:
        """Return the likelihood of the response: of counts with a factor for each row negative binomial."""
        if self.settings.hyper.overdispersed:
            return get_likelihood("negative_binomial")
        return super().likelihood(view)


@lru_cache(maxsize=16)
def _stages(s: Settings, start_iter: int, max_iter: int, tol: float) -> tuple[Stage[Globals], ...]:
    """Return the stages of a run; the engine asks for them often."""
    kind: type[CountSweep] | type[GaussianSweep]
    kind = CountSweep if s.likelihood == "poisson" else GaussianSweep
    sweeps: tuple[Sweep[Globals, Any, Any], ...] = tuple(kind(s, g) for g in range(s.n_variables))
    stages = [Stage[Globals]("start", (StartSweep(s),), 1, counts=False)]
    if s.hyper.n_starts > 1:
        stages.append(Stage("starts", sweeps, start_iter))
    stages.append(Stage("components", sweeps, max_iter, tol=tol, enter=choose))
    if s.hyper.drop > 0 and s.hyper.n_components > 1:
        pruned = partial(prune, s)
        stages.append(Stage("pruned", sweeps, max_iter, tol=tol, enter=pruned))
    return tuple(stages)


class _Molten(ModelConfig):
    """Options of both models."""

    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    n_components: int = Field(default=10, ge=1, description="Components (L); dead ones are removed.")
    response: str | None = Field(
        default=None, description="View that is explained; from the table's formula."
    )
    variables: tuple[str, ...] | None = Field(
        default=None, description="Categorical views, in the order of the sweeps; from the table's formula."
    )
    linear: tuple[str, ...] | None = Field(
        default=None,
        description="Covariate views whose columns are levels, weighted by their values; "
        "from the table's formula.",
    )
    n_starts: int = Field(default=4, ge=1, description="Starts that are tried; the highest bound goes on.")
    start: Literal["margins", "random"] = Field(
        default="margins", description="Factors start around the means of their levels, or anywhere."
    )
    start_iter: int = Field(default=20, ge=1, description="Iterations of each start.")
    max_iter: int = Field(
        default=500, ge=1, description="Iterations at most, and after components are removed."
    )
    tol: float = Field(
        default=1e-6, gt=0, description="Stop when an iteration gains less than this a row (nats)."
    )
    drop: float = Field(
        default=1e-4, ge=0, lt=1, description="Remove components with less than this share of the response."
    )
    missing: Literal["level", "one"] = Field(
        default="level",
        description="A missing level is a level of its own, or has factor 1 (no scale step then).",
    )
    scale_step: bool = Field(
        default=True, description="Spread scales over variables; False shows what it is for."
    )

    def _model(
        self,
        meta: Meta,
        likelihood: Literal["gaussian", "poisson"],
        exposure: str | None,
        hyper: Hyperparameters,
    ) -> MoltenModel:
        roles = roles_of(meta, likelihood, self.response, self.variables, self.linear, exposure)
        settings = Settings(likelihood, roles, hyper)
        return MoltenModel(meta, settings, self.start_iter, self.max_iter, self.tol)

    def _hyperparameters(self, **others: Any) -> Hyperparameters:
        """Return the options of the same names, and others."""
        missing = {"missing_level": self.missing == "level"}
        return Hyperparameters(**same_fields(Hyperparameters, self) | missing | others)


@register
class MoltenPoisson(_Molten):
    """Molten components of counts, with exposures: a Poisson or negative binomial response."""

    model: Literal["molten_poisson"] = "molten_poisson"
    exposure: str | None = Field(
        default=None, description="Covariate view: exposure; from the table's formula."
    )
    shape: PositiveFloat | None = Field(
        default=None, description="Prior shape a of the factors; left out: learned."
    )
    shape_mean: PositiveFloat = Field(
        default=1.0, description="Mean of the exponential prior of a, where it is learned."
    )
    rate: PositiveFloat | None = Field(
        default=None, description="Prior rate b of the factors; left out: one for each component, learned."
    )
    rate_prior: Pair = Field(default=(1e-3, 1e-3), description="Shape and rate of the Gamma prior of b_l.")
    additive: bool = Field(default=False, description="Add w_d of the level of each variable to the rate.")
    additive_prior: Pair = Field(default=(0.5, 1.0), description="Shape and rate of the Gamma prior of w_d.")
    overdispersed: bool = Field(
        default=False, description="Negative binomial: a Gamma(c, c) factor on each row."
    )

    table_bits: Literal[32, 64] = Field(
        default=64,
        description="Bits of the factors that rows look up; sums have 64. 32: half the memory traffic where "
        "levels are many, the bound to seven digits.",
    )

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """Return cases small enough for tests."""
        table = {"variables": {"site": 7, "species": 5, "year": 4}, "n_components": 2, "response": "poisson"}
        gaps = {"missing_codes": {"site": 0.1}}
        small: dict[str, Any] = {"n_components": 2, "max_iter": 4, "start_iter": 2, "n_starts": 2}
        return {
            "default": Example(cls(**small), "table", table),
            "linear": Example(
                cls(**small | {"n_starts": 1}, linear=("cover",), table_bits=32),
                "table",
                {**table, "linear": {"cover": 3}},
            ),
            "everything": Example(
                cls(**small, additive=True, overdispersed=True), "table", {**table, **gaps, "exposure": True}
            ),
        }

    def unused(self, meta: Meta) -> dict[str, str]:
        """Return the options that do nothing, each with the reason."""
        unused: dict[str, str] = {}
        if self.shape is not None:
            unused["shape_mean"] = "it is of a shape that is learned, and shape is given"
        if self.rate is not None:
            unused["rate_prior"] = "it is of rates that are learned, and rate is given"
        if not self.additive:
            unused["additive_prior"] = "there is no additive part"
        return unused

    def wider(self, kind: str) -> str | None:
        """Return the option with which counts may vary more than Poisson's, where it is not set."""
        return None if self.overdispersed or kind != "poisson" else "overdispersed=True"

    def build(self, meta: Meta) -> MoltenModel:
        """Return the model for a table of this shape.

        Raises
        ------
        InputError
            When the views do not suit it.
        """
        hyper = self._hyperparameters(additive=self.additive_prior if self.additive else None)
        if self.additive and self.missing == "one":
            raise InputError(
                "missing",
                "one",
                "'level' where there is an additive part",
                "A missing level adds to the rate.",
            )
        model = self._model(meta, "poisson", self.exposure, hyper)
        if self.overdispersed and model.settings.roles.level_exposures is not None:
            raise InputError(
                "overdispersed",
                True,
                "False for a complete grid without its zeros",
                "Write the table without `grid`: every cell has a xi_n of its own.",
            )
        design = getattr(meta, "design", None)
        if self.overdispersed and design is not None and design.n_merged > 0:
            raise InputError(
                "overdispersed",
                True,
                f"False for a table of which rows were merged ({design.n_merged} into others)",
                "Write the table with {merge}: every row has a xi_n of its own.",
                merge=False,
            )
        return model


@register
class MoltenNormal(_Molten):
    """Molten components of measurements: a Gaussian response, with an intercept and offsets."""

    model: Literal["molten_normal"] = "molten_normal"
    precision: PositiveFloat | None = Field(
        default=None,
        description="Prior precision tau of the factors; left out: one for each component, learned.",
    )
    precision_prior: Pair = Field(
        default=(1e-3, 1e-3),
        description="Shape and rate of the Gamma prior of tau_l, of a response with variance 1.",
    )
    noise_prior: Pair = Field(
        default=(1e-3, 1e-3),
        description="Shape and rate of the Gamma prior of lambda, of a response with variance 1.",
    )
    intercept: bool = Field(default=True, description="Learn an additive intercept.")
    intercept_precision: PositiveFloat = Field(
        default=1e-6, description="Prior precision kappa of the intercept, of a response with variance 1."
    )

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """Return cases small enough for tests."""
        table = {"variables": {"site": 7, "species": 5, "year": 4}, "n_components": 2, "response": "gaussian"}
        gaps = {"missing_codes": {"site": 0.1}}
        small: dict[str, Any] = {"n_components": 2, "max_iter": 4, "start_iter": 2, "n_starts": 2}
        return {
            "default": Example(cls(**small), "table", table),
            "missing": Example(
                cls(**small | {"n_starts": 1}, missing="one", linear=("cover",)),
                "table",
                {**table, **gaps, "linear": {"cover": 3}},
            ),
        }

    def unused(self, meta: Meta) -> dict[str, str]:
        """Return the options that do nothing, each with the reason."""
        unused: dict[str, str] = {}
        if self.precision is not None:
            unused["precision_prior"] = "it is of precisions that are learned, and precision is given"
        if not self.intercept:
            unused["intercept_precision"] = "there is no intercept"
        return unused

    def build(self, meta: Meta) -> MoltenModel:
        """Return the model for a table of this shape.

        Raises
        ------
        InputError
            When the views do not suit it.
        """
        hyper = self._hyperparameters(
            shape=None,
            rate=self.precision,
            rate_prior=self.precision_prior,
            intercept_precision=self.intercept_precision if self.intercept else None,
        )
        return self._model(meta, "gaussian", None, hyper)
