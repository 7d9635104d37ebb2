"""The identity/attribute model of sequences.

Frame t of a sequence is made of identities p = 1 ... P that are present or not, each with attributes
q = 1 ... Q that change slowly (Berkes, Turner and Sahani, 2009, PLoS Computational Biology 5, e1000495; the
equations are those of the technical details published with it)::

    y_t ~ N(m + sum_p W_p a_tp b_tp, diag(1 / rho))            w_kpq ~ N(0, 1 / gamma_pq)
    b_1p ~ Bernoulli(pi_0),  P(b_tp = n | b_t-1,p = m) = T_mn  T_m ~ Dirichlet(u_m)
    a_1pq ~ N(0, sigma_a^2)                                    rho_k ~ Gamma(d, e)
    a_tpq ~ N(lambda_pq a_t-1,pq, 1 - lambda_pq^2)             lambda_pq: equation 13, uniform by default

Two posteriors of the states, with q(W) q(rho) q(T) q(Lambda) of the parameters beside them:

- "frame" (18): prod_tp q(b_tp, a_tp). Even frames, then odd ones, all identities in turn;
- "chain" (19): prod_p q(b_1:T,p) q(a_1:T,p). One identity after the other, forwards and backwards,
  attributes before presence;
- "frame_then_chain": the second one from the first, which the source reports as encouraging: lambda is too
  small in the first, and the second by itself gets stuck.

| symbol | field |
|---|---|
| Q(b = 1); mu, mu^2 of equations 27 and 38 | ``Frames.present``; ``on``, ``off`` |
| q(b_1:T,p), q(a_1:T,p) | ``Track`` |
| q(W); d', e' of rho; m | ``Weights.mean``, ``variance``; ``shape``, ``rate``; ``shift`` |
| gamma; u'; eta', f', g', h' | ``Globals.relevance``; ``transition``; ``dynamics`` |
| R, r | ``Stats.second`` and ``ViewStats.second``; ``ViewStats.cross`` |

Corrections to the source
-------------------------
``docs/models/identity_attribute.md`` lists them with their tests. In short: e' has the variance of W (75,
78), and so has E W' rho W (37, 39); the exponent of q(lambda) (62); all means of W at once need one system of
equations a feature (72); pairwise marginals and lag-one covariances in the chain posterior (59, 65), whose
smoother takes expected natural parameters; counts run over pairs within sequences.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float64
from pydantic import Field, PositiveFloat

from factorflow.errors import InputError
from factorflow.models.configuration import Example, ModelConfig
from factorflow.models.contract import Array, Block, Meta, Model, Stage, Step, Sweep, Variable
from factorflow.models.identity_attribute import results
from factorflow.models.identity_attribute.chains import AllChains, AttributeSweep, ChainEnd, PresenceSweep
from factorflow.models.identity_attribute.dynamics import is_proper
from factorflow.models.identity_attribute.frames import AllFrames, EvenFrames, FirstFrames, OddFrames
from factorflow.models.identity_attribute.missing_information import missing_information_stage
from factorflow.models.identity_attribute.settings import Hyperparameters, Settings
from factorflow.models.identity_attribute.start import LocationSweep, SampleSweep, empty_globals
from factorflow.models.identity_attribute.state import Chains, Globals, Halves
from factorflow.models.identity_attribute.tables import Tables, compute_tables
from factorflow.models.registry import register
from factorflow.models.views import refuse_inputs

__all__ = ["IdentityAttribute", "IdentityAttributeModel"]

Factorisation = Literal["frame", "chain", "frame_then_chain"]
Pair = tuple[PositiveFloat, PositiveFloat]


@dataclass(frozen=True)
class IdentityAttributeModel(Model[Globals, Halves | Chains]):
    """The identity/attribute model of sequences of a given shape."""

    settings: Settings
    config: IdentityAttribute
    kind: ClassVar[Literal["variational", "monte carlo"]] = "variational"

    def stages(self) -> tuple[Stage[Globals], ...]:
        """Return the start, an initial phase, and one with learned relevance; then perhaps chains."""
        return _stages(self.settings, self.config)

    def init(self, step: Step) -> Globals:
        """Return globals before any data are seen."""
        return empty_globals(self.settings)

    def variables(self) -> tuple[Variable, ...]:
        """Return the table of variables."""
        return results.variables(self.settings)

    def coords(self, globals_: Globals) -> Mapping[str, Sequence[str]]:
        """Return the labels of identities, attributes, states and bounds."""
        attributes = [f"attribute{q + 1}" for q in range(self.config.n_attributes)]
        return {
            "identity": [f"Identity{p + 1}" for p in range(self.config.n_identities)],
            "attribute": attributes,
            "other_attribute": attributes,
            "state": ["absent", "present"],
            "next_state": ["absent", "present"],
            "bound": list(results.BOUNDS),
            "parameter": ["eta", "f", "g", "h"],
        }

    def prepare(self, globals_: Globals) -> Tables:
        """Return the tables of the globals."""
        return compute_tables(self.settings, globals_)

    def finish(
        self, block: Block, local: Halves | Chains | None, globals_: Tables, step: Step
    ) -> results.Rows:
        """Return the posterior of the frames of a block."""
        return results.compute_rows(self.settings, block, local, globals_)

    def predict(
        self, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> tuple[Float64[np.ndarray, "B D"], Float64[np.ndarray, "B D"]]:
        """Return mean and standard deviation of new observations of the frames."""
        return results.predict(rows, record, view)

    def one_step(
        self, record: Mapping[str, Array], values: Mapping[str, Array], first: Bool[np.ndarray, " n"]
    ) -> dict[str, Array]:
        """Return what is predicted of each frame from those before it (`results.one_step`)."""
        return results.one_step(self.settings, record, values, first)


@register
class IdentityAttribute(ModelConfig):
    """Identities that are present or not, with attributes that change slowly, in sequences of frames."""

    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    model: Literal["identity_attribute"] = "identity_attribute"
    n_identities: int = Field(default=8, ge=1, description="Identities (P); spare ones are shrunk to 0.")
    n_attributes: int = Field(default=2, ge=1, description="Attributes of each identity (Q).")
    factorisation: Factorisation = Field(
        default="frame_then_chain",
        description="Posterior of frames one by one, of identities as chains, or the second from the first.",
    )
    start: Literal["ica", "random"] = Field(
        default="ica", description="Loadings start from independent components paired by energy, or anywhere."
    )
    start_frames: int = Field(default=20_000, ge=2, description="Frames that independent components see.")
    max_iter: int = Field(default=500, ge=1, description="Iterations of each stage at most.")
    tol: float = Field(
        default=1e-6, gt=0, description="Stop when an iteration gains less than this an entry (nats)."
    )
    relevance: bool = Field(
        default=True, description="Learn the precision of every column of the loadings (ARD)."
    )
    relevance_after: int = Field(
        default=30, ge=0, description="Iterations of the initial phase, without learned precisions."
    )
    center: bool = Field(
        default=True,
        description="Learn the value of every feature where no identity is present; it is 0 otherwise.",
    )
    initial: float = Field(
        default=0.5, gt=0, lt=1, description="Probability of presence in the first frame (pi_0)."
    )
    attribute_variance: PositiveFloat = Field(
        default=1.0, description="Variance of attributes in the first frame (sigma_a^2)."
    )
    transition_prior: tuple[Pair, Pair] = Field(
        default=((1.0, 1.0), (1.0, 1.0)),
        description="Dirichlet parameters (u) of T from absent and from present.",
    )
    dynamics_prior: tuple[float, float, float, float] = Field(
        default=(0.0, 0.0, 0.0, 0.0), description="eta, f, g, h of the prior of lambda; zeros: uniform."
    )
    noise_prior: Pair = Field(
        default=(1e-3, 1e-3), description="Shape and rate of the Gamma prior of rho, values scaled."
    )

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """Return cases small enough for tests."""
        data = {"n_features": 6, "n_identities": 2, "n_attributes": 2, "n_sequences": 5}
        small: dict[str, Any] = {"n_identities": 2, "n_attributes": 2, "max_iter": 5, "relevance_after": 3}
        return {
            "default": Example(cls(**small, factorisation="frame"), "identity_attribute", data),
            "chain": Example(
                cls(**small, factorisation="chain", relevance=False), "identity_attribute", data
            ),
            "frame_then_chain": Example(
                cls(**small, start="random", relevance=False), "identity_attribute", data | {"n_views": 2}
            ),
        }

    def build(self, meta: Meta) -> IdentityAttributeModel:
        """Return the model for a dataset of this shape.

        Raises
        ------
        InputError
            When views, identities or priors do not suit it.
        """
        refuse_inputs(meta, "the identity/attribute model")
        if other := [view for view in meta.views if view.likelihood != "gaussian"]:
            raise InputError(
                "views",
                ", ".join(f"{view.name} ({view.likelihood})" for view in other),
                "gaussian views",
                "Select those with {views}, or write the others as gaussian.",
                views=...,
            )
        settings = Settings(
            meta.views, meta.n_rows, meta.block_rows, bool(meta.n_sequences), self._hyperparameters()
        )
        if self.start == "ica" and settings.hyper.n_columns > settings.n_features:
            most, each = settings.n_features // self.n_attributes, self.n_attributes
            raise InputError(
                "n_identities" if most else "n_attributes",
                self.n_identities if most else each,
                f"at most {most or settings.n_features}"
                + (f" with {each} attributes each" if most else "")
                + f": of {settings.n_features} features there are as many components",
                "Request fewer, or use {start}.",
                start="random",
            )
        if not meta.n_sequences:
            warnings.warn(
                f"the dataset has no sequences: its {meta.n_rows} rows are taken for one. Write it with "
                "`sequences` where they are several",
                UserWarning,
                stacklevel=3,
            )
        return IdentityAttributeModel(meta, settings, self)

    def unused(self, meta: Meta) -> dict[str, str]:
        """Return the options that do nothing, each with the reason."""
        return {} if self.start == "ica" else {"start_frames": "no independent components are looked for"}

    def _hyperparameters(self) -> Hyperparameters:
        prior = self.dynamics_prior
        if not np.isfinite(prior).all() or not is_proper(np.array(prior)[:, None]):
            raise InputError(
                "dynamics_prior",
                prior,
                "numbers eta, f, g, h with f + h + |g| < 0, or = 0 and eta < 1",
                "Zeros are a uniform prior.",
            )
        return Hyperparameters(
            self.n_identities,
            self.n_attributes,
            self.start,
            self.start_frames,
            self.center,
            self.initial,
            self.attribute_variance,
            self.transition_prior,
            prior,
            self.noise_prior,
        )


@lru_cache(maxsize=16)
def _stages(s: Settings, c: IdentityAttribute) -> tuple[Stage[Globals], ...]:
    """Return the stages of a run; the engine asks for them often."""
    stages = [Stage[Globals]("location", (LocationSweep(s),), 1, counts=False)]
    if c.start == "ica":
        stages.append(Stage("components", (SampleSweep(s),), 1, counts=False))

    def sweeps(chain: bool, learn: bool) -> tuple[Sweep[Globals, Any, Any], ...]:
        if s.one_block:
            return (AllChains(s, learn) if chain else AllFrames(s, learn),)
        if not chain:
            return EvenFrames(s), OddFrames(s, learn)
        each = [(AttributeSweep(s, p), PresenceSweep(s, p)) for p in range(c.n_identities)]
        return *(sweep for pair in each for sweep in pair), ChainEnd(s, learn)

    chain = c.factorisation == "chain"
    if not chain:
        stages.append(Stage("first sight", (FirstFrames(s),), 1, counts=False))
    word = "chains" if chain else "frames"
    if c.relevance:
        stages.append(Stage(word, sweeps(chain, False), c.relevance_after))
        word += " and relevance"
    stages.append(Stage(word, sweeps(chain, c.relevance), c.max_iter, tol=c.tol))
    if c.factorisation == "frame_then_chain":
        stages.append(Stage("chains", sweeps(True, c.relevance), c.max_iter, tol=c.tol))
    if c.factorisation != "frame":
        stages.append(missing_information_stage(s))
    return tuple(stages)
