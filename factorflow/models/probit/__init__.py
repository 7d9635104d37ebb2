"""Probit factor models of binary data: exact Hamiltonian Monte Carlo, Gibbs and collapsed Gibbs sampling.

For observation t = 1 ... T and feature n = 1 ... N, any entries missing [1]_::

    x_nt = 1 with probability Phi(z_n . f_t + o_n), else -1          (0 in the dataset)
    f_kt = s_kt                                    "binary"
    f_kt = s_kt v_kt, v_kt ~ N(0, 1)               "spike_slab"
    f_kt = s_kt v_kt, v_kt ~ N(0, 1) on v >= 0     "nonnegative"
    s_kt ~ Bernoulli(a_k)
    z_nk = 0 where c_nk = 0, else ~ N(0, tau^2),   c_nk ~ Bernoulli(b);  so too the offset o_n = z_n(K+1)
    a_k ~ Beta, b ~ Beta, tau^2 ~ inverse gamma

With utilities y_nt >= 0, p(x_nt, y_nt | f_t, z_n) = N(y_nt; x_nt (z_n . f_t + o_n), 1). A sweep draws y and
moves (s, v) of every observation, draws (c, z) of every feature given the sums Q_n = sum f f' and
j_n = sum x y f over its observed entries (c with z integrated out), then a, b and tau^2.

| symbol | field |
|---|---|
| s, v | ``Local.on``, ``Local.values`` (f where s = 1) |
| z, o | ``Globals.loadings`` (N, K + 1), the offset last |
| a, b, tau^2 | ``Globals.activity``, ``density``, ``variance`` |
| Q_n, j_n | ``Stats.total_gram`` less ``FeatureStats.missing_gram``; ``FeatureStats.cross`` |
| tau_max | ``travel_time`` |

The samplers of (s, v) given the globals, for each observation:

- ``gibbs``: y, then s_k and v_k in turn, v_k integrated out where s_k is drawn;
- ``collapsed`` (binary factors): s_k with y integrated out, then y;
- ``hmc``: an exact trajectory of d (s is its sign), v and y, of length ``travel_time``.

Corrections to the source
-------------------------
The equations below are wrong in [1]_; ``docs/models/probit.md`` says how each was found.

- p(a_k | s), p(b | c): with flat priors Beta(1 + |s+|, 1 + |s-|); as printed a factor that is off (or on)
  everywhere stays so. p(tau^2 | Z): as printed the prior is tau^-4 and the joint posterior improper. Both
  priors are proper here; ``priors="paper"`` has the printed ones.
- (19) lacks a bracket, and runs over k <= K. (22), (23), (41): atan2. (40): u^2 = rho^2 + w'^2.
  (44): w' = Z' epsilon. (38): mu does not depend on s.
- The wall d_k = 0 of models 2 and 3: the velocity of (v, y) is kept, and the step in energy includes that of
  the kinetic term.
- "No sign ambiguity" does not hold for binary factors: s -> 1 - s, z -> -z, o -> o + z, a -> 1 - a.

``tests/models/probit/test_factors.py`` holds every sampler against enumeration and quadrature,
``tests/models/probit/test_exact.py`` the whole model.

References
----------
.. [1] A. Pakman, B. Shababo, L. Paninski, "Bayesian sparse unsupervised learning for probit models of binary
   data".
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float64
from pydantic import Field

from factorflow.errors import InputError
from factorflow.models.configuration import Example, ModelConfig
from factorflow.models.contract import Array, Block, Meta, Model, Stage, Step, Variable, ViewMeta
from factorflow.models.probit import results
from factorflow.models.probit.kernels import samplers
from factorflow.models.probit.state import LOADINGS_SITE, Globals, Local, Settings
from factorflow.models.probit.sweep import ProbitSweep
from factorflow.models.registry import register
from factorflow.models.views import refuse_inputs

__all__ = ["ProbitFactors", "ProbitModel"]

KINDS = {"binary": samplers.BINARY, "spike_slab": samplers.SPIKE_SLAB, "nonnegative": samplers.NONNEGATIVE}
SAMPLERS = {"gibbs": samplers.GIBBS, "collapsed": samplers.COLLAPSED, "hmc": samplers.HMC}
SYMMETRIES: dict[str, Literal["none", "sign", "flip"]]
SYMMETRIES = {"binary": "flip", "spike_slab": "sign", "nonnegative": "none"}

AUTO_ENTRIES = 1 << 24
"""Entries (of the data, or of the factors) up to which averages over draws are kept unasked."""

Pair = tuple[float, float]

PAPER_PRIORS: dict[str, Pair]
PAPER_PRIORS = {"activity_prior": (0.0, 0.0), "density_prior": (0.0, 0.0), "variance_prior": (1.0, 0.0)}
"""Priors as the source has them, by option."""


@register
class ProbitFactors(ModelConfig):
    """Probit factor model of one binary view, by Monte Carlo."""

    model: Literal["probit"] = "probit"
    factors: Literal["binary", "spike_slab", "nonnegative"] = Field(
        default="nonnegative",
        description="Distribution of the factors: 0/1, spike and slab, or spike and slab on v >= 0.",
    )
    n_factors: int = Field(default=5, ge=1, description="Number of factors (K).")
    sampler: Literal["hmc", "gibbs", "collapsed"] | None = Field(
        default=None,
        description="How factors are drawn: 'collapsed' (binary factors; the default there), 'gibbs' (the "
        "default otherwise), 'hmc' (exact trajectories).",
    )
    travel_time: float = Field(
        default=2.5 * math.pi, gt=0, description="Length of a trajectory; not a multiple of pi."
    )
    step_limit: int = Field(
        default=100_000, ge=1, description="Events allowed in a trajectory; longer ones are turned back."
    )
    n_draws: int = Field(default=1000, ge=1, description="Draws kept of each chain.")
    n_burn_in: int = Field(default=500, ge=0, description="Sweeps before the first draw.")
    thin: int = Field(default=1, ge=1, description="Sweeps from one draw to the next.")
    chains: int = Field(default=4, ge=1, le=2**15, description="Independent chains.")
    max_rhat: float | None = Field(
        default=None, gt=1, description="End sampling once R-hat of the monitored scalars is below this."
    )
    priors: Literal["proper", "improper", "paper"] = Field(
        default="proper",
        description="'improper' allows zero parameters below; 'paper' puts in those printed in the source "
        "(0, 0), (0, 0), (1, 0), under which the posterior is improper.",
    )
    activity_prior: Pair = Field(default=(1.0, 1.0), description="Beta prior of a_k, share of s_kt = 1.")
    density_prior: Pair = Field(default=(1.0, 1.0), description="Beta prior of b, share of c_nk = 1.")
    variance_prior: Pair = Field(
        default=(2.0, 1.0), description="Inverse gamma prior of tau^2, variance of the loadings: shape, rate."
    )
    predictive: Literal["auto", "all", "heldout", "none"] = Field(
        default="auto",
        description="Entries whose predictive probability is averaged over draws; 'auto': all of up to "
        "2^24 entries, else the held-out ones.",
    )
    average_scores: bool | None = Field(
        default=None, description="Average factors over draws; left out: for up to 2^24 of them."
    )
    store_factors: bool = Field(default=False, description="Store the factors of every draw.")

    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """Return cases small enough for tests."""
        small = {"n_factors": 2, "n_burn_in": 4, "n_draws": 8, "chains": 2}
        data = {"n_features": 12, "n_factors": 2}
        return {
            "nonnegative": Example(cls(**small, store_factors=True), "binary", data),
            "collapsed": Example(cls(**small, factors="binary", thin=2), "binary", data),
            "trajectories": Example(cls(**small, factors="spike_slab", sampler="hmc"), "binary", data),
        }

    def build(self, meta: Meta) -> ProbitModel:
        """Return the model for a dataset of this shape.

        Raises
        ------
        InputError
            When the view, the sampler, the travel time or the priors will not do.
        """
        refuse_inputs(meta, "a probit factor model")
        view = _binary_view(meta)
        sampler = self.sampler or ("collapsed" if self.factors == "binary" else "gibbs")
        if sampler == "collapsed" and self.factors != "binary":
            raise InputError(
                "sampler",
                f"collapsed with {self.factors} factors",
                "'gibbs' or 'hmc' (only binary factors can be drawn with y integrated out)",
                "Leave {sampler} out, or choose {factors}.",
                sampler=...,
                factors="binary",
            )
        periods = self.travel_time / math.pi
        if sampler == "hmc" and abs(periods - round(periods)) < 1e-6:
            raise InputError(
                "travel_time",
                self.travel_time,
                "a number that is not a multiple of pi, at which every d_k returns to -d_k or d_k",
                "2.5 * pi is the default.",
            )
        activity, density, variance = self._check_priors()
        few = meta.n_rows * view.n_features <= AUTO_ENTRIES
        means = self.average_scores
        return ProbitModel(
            meta,
            self,
            Settings(
                view.name, view.n_features, self.n_factors, view.missing == "scattered", KINDS[self.factors],
                SAMPLERS[sampler], self.travel_time, self.step_limit, activity, density, variance,
                keep_all=self.predictive == "all" or (self.predictive == "auto" and few),
                keep_held_out=self.predictive != "none",
                keep_means=meta.n_rows * self.n_factors <= AUTO_ENTRIES if means is None else means,
            ),
        )  # fmt: skip

    def unused(self, meta: Meta) -> dict[str, str]:
        """Return the options that do nothing, each with the reason."""
        unused: dict[str, str] = {}
        if self.sampler != "hmc":
            why = "they are of trajectories, of sampler 'hmc'"
            unused |= dict.fromkeys(("travel_time", "step_limit"), why)
        if self.priors == "paper":
            unused |= dict.fromkeys(PAPER_PRIORS, "priors='paper' takes those printed in the source")
        return unused

    def _check_priors(self) -> tuple[Pair, Pair, Pair]:
        priors = (
            PAPER_PRIORS if self.priors == "paper" else {name: getattr(self, name) for name in PAPER_PRIORS}
        )
        for name, pair in priors.items():
            valid = all(math.isfinite(part) and part >= 0.0 for part in pair)
            proper = valid and min(pair) > 0.0
            if not valid or not (proper or self.priors != "proper"):
                remedy = "An improper prior (a zero) needs {priors}, or 'paper'."
                raise InputError(name, pair, "two positive numbers", remedy, priors="improper")
            if not proper:
                warnings.warn(
                    f"{name} = {pair} is improper, and so may be the posterior: chains can drift to "
                    "tau^2 = 0, or be absorbed where a factor is always on or off",
                    UserWarning,
                    stacklevel=3,
                )
        return priors["activity_prior"], priors["density_prior"], priors["variance_prior"]


def _binary_view(meta: Meta) -> ViewMeta:
    """Return the one binary view with two features or more."""
    if len(meta.views) != 1:
        names = [view.name for view in meta.views]
        raise InputError("views", ", ".join(names), "one binary view", "Select it: {views}.", views=names[:1])
    view = meta.views[0]
    if view.likelihood != "bernoulli":
        raise InputError(
            f"likelihood of view {view.name}",
            view.likelihood,
            "bernoulli",
            "Write the view with {likelihoods}, or fit another model.",
            likelihoods={view.name: "bernoulli"},
        )
    if view.n_features < 2:
        raise InputError(
            f"features of view {view.name}", view.n_features, "at least 2", "One feature has no factors."
        )
    return view


@dataclass(frozen=True)
class ProbitModel(Model[Globals, Local]):
    """A probit factor model of a dataset of a given shape."""

    config: ProbitFactors
    settings: Settings
    kind: ClassVar[Literal["variational", "monte carlo"]] = "monte carlo"

    @property
    def n_chains(self) -> int:
        """Independent chains."""
        return self.config.chains

    @property
    def symmetry(self) -> Literal["none", "sign", "flip"]:
        """Symmetries of the posterior besides permutations (`factorflow.posterior.align`)."""
        return SYMMETRIES[self.config.factors]

    def stages(self) -> tuple[Stage[Globals], ...]:
        """Return burn-in and sampling."""
        c = self.config
        burn_in = Stage[Globals]("burn-in", (ProbitSweep(self.settings, keep=False),), c.n_burn_in)
        sampling = Stage[Globals](
            "sampling",
            (ProbitSweep(self.settings, keep=True),),
            c.n_draws * c.thin,
            keep=True,
            thin=c.thin,
            max_rhat=c.max_rhat,
        )
        return (burn_in, sampling) if c.n_burn_in else (sampling,)

    def warm_stages(self) -> tuple[Stage[Globals], ...]:
        """Return burn-in and sampling: each chain begins with the last stored draw of its globals."""
        return self.stages()

    def init(self, step: Step) -> Globals:
        """Return standard normal loadings, a = b = 1/2 and tau^2 = 1."""
        s = self.settings
        loadings = step.normal(LOADINGS_SITE, np.arange(s.n_features), s.n_factors + 1)
        return Globals({s.view: loadings}, np.full(s.n_factors, 0.5), 0.5, 1.0)

    def variables(self) -> tuple[Variable, ...]:
        """Return the table of variables."""
        return results.variables(self.settings, store_factors=self.config.store_factors)

    def coords(self, globals_: Globals) -> Mapping[str, Sequence[str]]:
        """Return the labels of the factors."""
        return {"factor": self.factor_names(self.settings.n_factors)}

    def finish(self, block: Block, local: Local | None, globals_: Globals, step: Step) -> results.Averages:
        """Return the averages over draws of a block."""
        assert local is not None
        return results.compute_averages(self.settings, block, local, globals_)

    def predict(
        self, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> tuple[Float64[np.ndarray, "B N"], Float64[np.ndarray, "B N"]]:
        """Return the probability of a 1 and the standard deviation of an entry."""
        return results.predict(self.settings, rows, record)
