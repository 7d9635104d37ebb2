"""The contract between a model and the engine.

Every model, variational or Monte Carlo, is the same loop::

    map     on every block of samples:   (block, local state, globals, step) -> (local state, statistics)
    merge   the statistics, in a fixed tree
    update  at the root:                 (globals, merged statistics, step)  -> (globals, info)

One round is a `Sweep`; a `Stage` repeats one or several of them (both in `factorflow.models.stages`); a
`Model` is its stages, an initial state and a table of its variables. The model owns the mathematics; the
engine owns blocks, parts of the data, chains, the tree, stopping, checkpoints, draws, projection and memory.
``docs/add-a-model.md`` walks through one.

Globals (G), local state (L) and statistics (S) are frozen dataclasses whose fields are float64 arrays,
scalars, None, or dictionaries, tuples and frozen dataclasses of those. Functions never change an argument
in place: the engine makes every array read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from pydantic import Field

from factorflow.errors import InputError
from factorflow.kernels.random import Step
from factorflow.likelihoods import Likelihood, get_likelihood
from factorflow.likelihoods.predictive import Predictive
from factorflow.models.stages import Info, Stage, Sweep
from factorflow.settings import Options, describe
from factorflow.shape import Array, Block, Meta, ViewMeta
from factorflow.trees import Gather, wide

__all__ = [
    "AVERAGES",
    "Array",
    "Block",
    "Example",
    "Gather",
    "Info",
    "Meta",
    "Model",
    "ModelConfig",
    "Stage",
    "Step",
    "Sweep",
    "Variable",
    "ViewMeta",
    "wide",
]

G = TypeVar("G")
L = TypeVar("L")

AVERAGES = "averages"
"""Group of a sampler's posterior for what has chains and no draws: means over the draws of a chain, or its
last draw. ArviZ takes every variable of the group ``posterior`` for draws."""


@dataclass(frozen=True)
class Variable:
    """One row of a model's table of variables: it names, computes and documents a posterior array.

    Parameters
    ----------
    name : str
        Name in the posterior. Shared by all families where the meaning is the same: ``scores``,
        ``scores_variance``, ``loadings_<view>``, ``loadings_variance_<view>``, ``inclusion_<view>``,
        ``intercept_<view>``, ``variance_explained``.
    dims : tuple of str
        From ``obs``, ``factor``, ``view``, ``group``, ``feature_<view>``, and those of `Model.coords`; the
        engine puts ``chain`` in front of every variable of a sampler, and ``draw`` behind it for draws.
    doc : str
        One line of prose, with the symbol in the model's equations.
    value : callable
        Of the globals; with ``rows`` of what `Model.finish` made of a block; with ``draws`` of its local
        state.
    group : str
        Group of the posterior: left out, "variational" or, of a sampler, "posterior" for draws and
        `AVERAGES` for what has none.
    rows : bool
        Whether its leading dimension is ``obs``: computed block by block.
    draws : bool
        With ``rows``: stored at every kept iteration instead of once at the end.
    dtype : str
        Type on disk.
    positive : bool
        Of a mean that has a variance beside it: whether draws of it are of a Gamma, not of a normal.
    sums : callable, optional
        Of a variable without ``rows`` that describes the samples of a fit: (block, its variables with
        ``rows``, globals) to sums over the block, from which a projection describes its own samples.
    of_sums : callable, optional
        (globals, sums over all blocks) to the variable of a projection.
    """

    name: str
    dims: tuple[str, ...]
    doc: str
    value: Callable[[Any], Array]
    group: str = ""
    rows: bool = False
    draws: bool = False
    dtype: str = "float64"
    positive: bool = False
    sums: Callable[[Block, Mapping[str, Array], Any], Any] | None = None
    of_sums: Callable[[Any, Any], Array] | None = None


@dataclass(frozen=True)
class Model(Generic[G, L]):
    """A configuration joined with the shape of a dataset: a frozen dataclass, picklable and small.

    Parameters
    ----------
    meta : Meta
        Shape of the dataset.
    """

    meta: Meta

    kind: ClassVar[Literal["variational", "monte carlo"]]

    @property
    def n_chains(self) -> int:
        """Independent sets of globals; 1 for variational models."""
        return 1

    def stages(self) -> tuple[Stage[G], ...]:
        """Return the stages of a run, in order.

        Returns
        -------
        tuple of Stage
        """
        raise NotImplementedError

    def init(self, step: Step) -> G:
        """Return globals before any data are seen.

        Parameters
        ----------
        step : Step
            Source of noise; ``step.chain`` is the chain whose globals they are.

        Returns
        -------
        G
        """
        raise NotImplementedError

    def variables(self) -> tuple[Variable, ...]:
        """Return the table of variables.

        Returns
        -------
        tuple of Variable
        """
        raise NotImplementedError

    def coords(self, globals_: G) -> Mapping[str, Sequence[str]]:
        """Return labels of dims the dataset does not know (``factor``, where there are any).

        Parameters
        ----------
        globals_ : G
            The globals, whole.

        Returns
        -------
        mapping of str to sequence of str
            Labels by dimension.
        """
        return {}

    @staticmethod
    def factor_names(n_factors: int, numbers: Iterable[int] | None = None) -> list[str]:
        """Return the labels of factors that have no names of their own.

        Parameters
        ----------
        n_factors : int
            Factors (K).
        numbers : iterable of int, optional
            Their numbers from 0; 0 ... K - 1 when left out.

        Returns
        -------
        list of str
            ``Factor1``, ``Factor2``, ...
        """
        return [f"Factor{k + 1}" for k in (range(n_factors) if numbers is None else numbers)]

    def prepare(self, globals_: G) -> Any:
        """Return the argument of `finish`; by default the globals.

        Parameters
        ----------
        globals_ : G
            The globals, whole.

        Returns
        -------
        object
            Handed to `finish` as ``globals_``.
        """
        return globals_

    def finish(self, block: Block, local: L | None, globals_: Any, step: Step) -> Any:
        """Return the input of the sample-sized variables, at the end of a run.

        Parameters
        ----------
        block : Block
            The rows (B of them).
        local : L or None
            Local state of the block.
        globals_ : object
            What `prepare` made of the globals.
        step : Step
            Source of noise.

        Returns
        -------
        object
            The argument of ``Variable.value`` for variables with ``rows``; by default the local state.
        """
        return local

    def row_roles(self, block: Block, view: str) -> Mapping[str, Array]:
        """Return columns with a role for a view, such as its exposure: (B,) arrays by role.

        The roles of tables (`factorflow.design`): ``exposure`` of counts; ``offset``, ``weight``, ``within``
        of measurements. Held-out scores go by them. Nothing: every entry is one observation.

        Parameters
        ----------
        block : Block
            The rows (B of them).
        view : str
            Name of the view.

        Returns
        -------
        mapping of str to (B,) array
            By role.
        """
        return {}

    def predict(
        self, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> tuple[Array, Array]:
        """Return mean and standard deviation of the entries of a view, on the data scale.

        Parameters
        ----------
        block : Block
            The rows (B of them) with codes and covariates of the dataset; no values.
        rows, record : mapping of str to array
            The stored variables: of these rows; whole. Of a sampler with (chain, draw) in front.
        view : str
            Name of the view (D features).

        Returns
        -------
        mean, sd : (B, D) arrays
            The standard deviation is that of a new observation.
        """
        raise NotImplementedError

    def likelihood(self, view: str) -> Likelihood:
        """Return the likelihood of the entries of a view: by default that of its kind.

        Parameters
        ----------
        view : str
            Name of the view.

        Returns
        -------
        Likelihood
        """
        return get_likelihood(next(v.likelihood for v in self.meta.views if v.name == view))

    def alone(self, globals_: G, view: str) -> tuple[Array, Array] | None:
        """Return the likelihood fitted to each feature alone, by which the baseline of held-out scores goes.

        Parameters
        ----------
        globals_ : G
            The globals, whole.
        view : str
            Name of the view.

        Returns
        -------
        (D,) array and (P, D) array, or None
            Predictor and nuisance parameters; None: the baseline goes by the moments of the features.
        """
        return None

    def predictive(
        self, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> Predictive | None:
        """Return the distribution of new observations, which scores and intervals go by.

        Parameters
        ----------
        block, rows, record, view
            As for `predict`.

        Returns
        -------
        Predictive or None
            None: that of `likelihood` with the mean and the standard deviation that are predicted.
        """
        return None

    def degrees_of_freedom(
        self, block: Block, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> Array | None:
        """Return the degrees of freedom of new measurements.

        Parameters
        ----------
        block, rows, record, view
            As for `predict`.

        Returns
        -------
        (1 or B, D) array, or None
            None: the measurements are taken for normal.
        """
        return None

    def generate(self, record: Mapping[str, Array], n_samples: int, seed: int) -> dict[str, Array]:
        """Return new samples from the prior by view, and their ``scores``.

        Parameters
        ----------
        record : mapping of str to array
            The stored variables, whole.
        n_samples : int
            Samples (N).
        seed : int
            Key of their noise.

        Returns
        -------
        dict of str to array
            By view (N, D), on the data scale; ``scores`` (N, K).

        Raises
        ------
        InputError
            When the family cannot.
        """
        raise self._cannot("generate")

    def scorer(self, n_draws: int, n_repeats: int) -> Model[G, Any]:
        """Return a model whose projection is the log likelihood of rows, the local state integrated out.

        Its variables are ``log_likelihood`` and ``log_likelihood_error`` (obs,).

        Parameters
        ----------
        n_draws : int
            Draws of each repeat of importance sampling.
        n_repeats : int
            Repeats, whose spread gives the error.

        Returns
        -------
        Model

        Raises
        ------
        InputError
            When the family cannot.
        """
        raise self._cannot("log_likelihood")

    def _cannot(self, what: str) -> InputError:
        remedy = "Ask for predictions or held-out scores instead."
        return InputError(what, self._family, "a family that can", remedy)

    @property
    def _family(self) -> str:
        """The family's name, as users know it."""
        return type(self).__name__.removesuffix("Model")

    def warm_stages(self) -> tuple[Stage[G], ...]:
        """Return the stages of a run that begins with the globals of an earlier fit, instead of `stages`.

        Preparations first, then those that count: the first of these begins with what `warm` returns.

        Returns
        -------
        tuple of Stage

        Raises
        ------
        InputError
            When the family, or this configuration of it, starts anew only.
        """
        remedy = "Leave it out: the fit then starts anew."
        raise InputError("warm_start", self._family, "a family that can go on from a fit", remedy)

    def warm(self, globals_: G, fitted: G) -> G:
        """Return the globals that a warm start begins with: by default those of the earlier fit.

        Parameters
        ----------
        globals_ : G
            As the preparations left them: what was learned of the data as they are now.
        fitted : G
            Of the earlier fit, to other rows of the same features.

        Returns
        -------
        G
        """
        return fitted

    def projection(self) -> tuple[Sweep[G, Any, Any], ...]:
        """Return the sweeps that find the local state of new samples, globals fixed.

        By default those of the last stage that counts. `Sweep.map` and `Sweep.carry` are called, no update.

        Returns
        -------
        tuple of Sweep
        """
        return [stage for stage in self.stages() if stage.counts][-1].sweeps

    # What follows from the table

    @property
    def table(self) -> tuple[Variable, ...]:
        """The table of variables, each with the group of the posterior that it is in."""
        main = "posterior" if self.kind == "monte carlo" else "variational"
        averaged = AVERAGES if self.kind == "monte carlo" else main
        found = ((v, averaged if v.rows and not v.draws else main) for v in self.variables())
        return tuple(replace(v, group=v.group or place) for v, place in found)

    def lead(self, variable: Variable) -> tuple[str, ...]:
        """Return the dimensions in front of a variable: none, or ``chain``, or ``chain`` and ``draw``.

        Parameters
        ----------
        variable : Variable
            A row of the table.

        Returns
        -------
        tuple of str
        """
        if self.kind != "monte carlo":
            return ()
        return ("chain",) if variable.rows and not variable.draws else ("chain", "draw")

    def record(self, globals_: G) -> dict[str, Array]:
        """Return the variables of the globals: the result, or one draw.

        Parameters
        ----------
        globals_ : G
            The globals, whole.

        Returns
        -------
        dict of str to array
            By variable without ``rows``.
        """
        return {v.name: _cast_variable(v, globals_) for v in self.variables() if not v.rows}

    def sums(self, block: Block, rows: Mapping[str, Array], globals_: G) -> tuple[Any, ...]:
        """Return what the variables that describe samples add up over a block of new ones.

        Parameters
        ----------
        block : Block
            The rows.
        rows : mapping of str to array
            The block's variables with ``rows``.
        globals_ : G
            The globals, whole.

        Returns
        -------
        tuple
            An entry for each function ``Variable.sums``; empty where there is none.
        """
        return tuple(sums(block, rows, globals_) for sums in _summations(self.variables()))

    def describe(self, globals_: G, sums: tuple[Any, ...]) -> dict[str, Array]:
        """Return the variables that describe new samples, from their sums over all blocks.

        Parameters
        ----------
        globals_ : G
            The globals, whole.
        sums : tuple
            What `sums` returns, added up over all blocks.

        Returns
        -------
        dict of str to array
            By variable.
        """
        table = self.variables()
        found = dict(zip(_summations(table), sums, strict=True))
        return {
            v.name: np.asarray(v.of_sums(globals_, found[v.sums]), dtype=v.dtype)
            for v in table
            if v.sums is not None and v.of_sums is not None
        }

    def rows(self, block: Block, local: L | None, globals_: Any, step: Step) -> dict[str, Array]:
        """Return the variables of the rows of a block, at the end of a run.

        Parameters
        ----------
        block : Block
            The rows (B of them).
        local : L or None
            Local state of the block.
        globals_ : object
            What `prepare` made of the globals.
        step : Step
            Source of noise.

        Returns
        -------
        dict of str to (B, ...) array
            By variable with ``rows`` and without ``draws``.
        """
        found = self.finish(block, local, globals_, step)
        return {v.name: _cast_variable(v, found) for v in self.variables() if v.rows and not v.draws}

    def draw(self, local: L | None) -> dict[str, Array]:
        """Return the draws of the rows of a block at a kept iteration.

        Parameters
        ----------
        local : L or None
            Local state of the block.

        Returns
        -------
        dict of str to (B, ...) array
            By variable with ``draws``.
        """
        return {v.name: _cast_variable(v, local) for v in self.variables() if v.draws}


def _summations(table: Sequence[Variable]) -> tuple[Any, ...]:
    """Return the ways in which variables add up what describes samples, each once: some share one."""
    return tuple(dict.fromkeys(v.sums for v in table if v.sums is not None))


def _cast_variable(variable: Variable, given: Any) -> Array:
    """Cast a variable to its stored type, so that predictions agree before and after storage."""
    return np.asarray(variable.value(given), dtype=variable.dtype)


class ModelConfig(Options):
    """Base of the public configurations (`factorflow.models`): unknown keys are refused.

    ``views`` selects and orders nothing: it names the views to model, all when None.
    """

    views: tuple[str, ...] | None = Field(default=None, description="Views to model; all when left out.")

    is_default: ClassVar[bool] = False
    """Whether commands and flows fit this family where none is named."""

    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    """Where `Sweep.map` can work: "cuda" means that it takes the values of a block as CuPy arrays."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Set the public module of the class, and document its options."""
        cls.of = f"factorflow.models.{cls.__name__}"
        if "model" in cls.model_fields:
            lines = ["", "", "Parameters", "----------"]
            for option in describe(cls):
                lines += [f"{option['option']} : {option['values']}; default {option['default']}"]
                lines += [f"    {option['description']}".rstrip()]
            cls.__doc__ = (cls.__doc__ or "").rstrip() + "\n".join([*lines, ""])

    @classmethod
    def examples(cls) -> Mapping[str, Example]:
        """Return cases small enough for tests, each by a word: the contract suite runs them all."""
        return {"default": Example(cls())}

    def build(self, meta: Meta) -> Model[Any, Any]:
        """Return the model for a dataset of this shape.

        Parameters
        ----------
        meta : Meta
            Shape of the dataset.

        Returns
        -------
        Model

        Raises
        ------
        InputError
            When configuration and dataset do not fit together.
        """
        raise NotImplementedError

    def build_fitted(self, meta: Meta) -> Model[Any, Any]:
        """Build the fitted model for new samples, without checks that concern a fit only.

        Parameters
        ----------
        meta : Meta
            Shape of the new samples.

        Returns
        -------
        Model
        """
        return self.build(meta)

    def wider(self, kind: str) -> str | None:
        """Return the option with which entries of a kind may vary more, as written, where it is not set.

        Parameters
        ----------
        kind : str
            Kind of the view: "gaussian", "bernoulli" or "poisson".

        Returns
        -------
        str or None
            Such as ``overdispersed=True``; None where there is no such option, or it is set.
        """
        return None

    def unused(self, meta: Meta) -> dict[str, str]:
        """Return the options that do nothing for a dataset of this shape, each with the reason.

        Only what differs from its default is told to users (`fit` warns of it).

        Parameters
        ----------
        meta : Meta
            Shape of the dataset.

        Returns
        -------
        dict of str to str
            Reason by option.
        """
        return {}


@dataclass(frozen=True)
class Example:
    """A configuration with data that suit it, small enough for tests.

    Parameters
    ----------
    config : ModelConfig
        The configuration.
    simulator : str
        Name of the simulator (`factorflow.simulate`).
    data : mapping of str to Any
        Its settings, besides the number of samples, ``missing`` and the seed.
    """

    config: ModelConfig
    simulator: str = "sparse_gfa"
    data: Mapping[str, Any] = field(default_factory=dict)
