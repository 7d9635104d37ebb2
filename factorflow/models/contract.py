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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from factorflow.core.block import Array, Block, Meta, ViewMeta
from factorflow.core.factor_labels import number_label
from factorflow.core.trees import Gather, wide
from factorflow.errors import InputError
from factorflow.kernels.random import Step
from factorflow.likelihoods import Likelihood, get_likelihood
from factorflow.likelihoods.predictive import Predictive
from factorflow.models.stages import Info, Stage, Sweep
from factorflow.models.variables import Variable, VariableTable

__all__ = [
    "Array",
    "Block",
    "Gather",
    "Info",
    "Meta",
    "Model",
    "Stage",
    "Step",
    "Sweep",
    "Variable",
    "ViewMeta",
    "wide",
]

G = TypeVar("G")
L = TypeVar("L")


@dataclass(frozen=True)
class Model(VariableTable[G, L]):
    """A configuration joined with the shape of a dataset: a frozen dataclass, picklable and small.

    Parameters
    ----------
    meta : Meta
        Shape of the dataset.
    """

    meta: Meta
    predicts_new: ClassVar[bool] = False
    """Whether `predict` takes any mean and variance of the scores as ``rows``, not of fitted rows alone."""
    predicts_by_factors: ClassVar[bool] = False
    """Of a sampler: whether predictions are sums over the factors of its draws."""

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

    def coords(self, globals_: G) -> Mapping[str, Sequence[str]]:
        """Return labels of dims that are not of the dataset (``factor``, where there are any).

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
        return [number_label(k) for k in (range(n_factors) if numbers is None else numbers)]

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

    def row_roles(self, block: Block, view: str) -> Mapping[str, Array]:
        """Return columns with a role for a view, such as its exposure: (B,) arrays by role.

        The roles of tables (`factorflow.core.design`): ``exposure`` of counts; ``offset``, ``weight``,
        ``within`` of measurements. Held-out scores go by them. Nothing: every entry is one observation.

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

    def sd_of_values(self, block: Block, record: Mapping[str, Array], view: str, sd: Array) -> Array:
        """Return the standard deviations of the values that rows hold, given those of new observations.

        They differ where a value is the mean of several observations (`row_roles`: ``weight``).

        Parameters
        ----------
        block, record, view
            As for `predict`.
        sd : (B, D) array
            Predicted standard deviations.

        Returns
        -------
        (B, D) array
        """
        return sd

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
        """The family's name, as in the options."""
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
