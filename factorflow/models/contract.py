"""The contract between a model and the engine.

Every model, variational or Monte Carlo, is the same loop::

    map     on every block of samples:   (block, local state, globals, step) -> (local state, statistics)
    merge   the statistics, in a fixed tree
    update  at the root:                 (globals, merged statistics, step)  -> (globals, info)

One round is a `Sweep`; a `Stage` repeats one or several of them; a `Model` is its stages, an initial
state and a table of its variables. The model owns the mathematics; the engine owns blocks, chains, the
tree, stopping, checkpoints and draws. ``docs/add-a-model.md`` walks through one.

Globals (G), local state (L) and statistics (S) are frozen dataclasses whose fields are float64 arrays,
scalars, None, or dictionaries, tuples and frozen dataclasses of those. Functions never change an argument
in place: the engine makes every array read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from factorflow.kernels.random import Step
from factorflow.shape import Array, Block, Meta, ViewMeta
from factorflow.trees import Gather, Wide, wide

__all__ = [
    "Array",
    "Block",
    "Footprint",
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
    "Wide",
    "wide",
]

G = TypeVar("G")
L = TypeVar("L")
S = TypeVar("S")

Info = dict[str, float]
"""Scalars that `Sweep.update` reports. ``objective`` is the bound (or the log joint density of a sampler);
``observed`` the number of observed entries it covers, by which gains are divided."""


class Sweep(Generic[G, L, S]):
    """One round of map, merge and update.

    Subclasses are frozen dataclasses (or have no state at all) and override `map` and `update`.
    """

    name: ClassVar[str] = "sweep"

    def map(self, block: Block, local: L | None, globals_: G, step: Step) -> tuple[L | None, S | None]:
        """Return the new local state of a block and what it adds to the statistics.

        Pure. ``local`` is None at the first sight of a block. Statistics of None take no part in the sum
        (a block wholly missing).
        """
        raise NotImplementedError

    def update(self, globals_: G, stats: S, step: Step) -> tuple[G, Info]:
        """Return the new globals and scalars to report; ``stats`` is the sum over all blocks."""
        raise NotImplementedError

    def axes(self) -> Mapping[str, int]:
        """Return the feature axes along which `features` may be cut: name to length. Empty: none."""
        return {}

    def features(self, axis: str, index: range, globals_: G, stats: S, step: Step) -> tuple[Any, Any]:
        """Update a fixed run of the features of one axis, given the merged statistics.

        Parameters
        ----------
        axis : str
            Name of the axis, one of `axes`.
        index : range
            The features (D' of them); a fixed cut of the plan, never of the number of workers.
        globals_ : G
            The globals before this sweep, whole.
        stats : S
            The merged statistics; fields marked `wide` with this axis hold only rows ``index``, those of
            other axes are None.
        step : Step
            Noise, keyed by seed, chain and iteration.

        Returns
        -------
        part : dataclass of (D', ...) arrays
            The new values; handed, joined along the axis, to `assemble` as ``parts[axis]``.
        sums : statistics or None
            Summed over the runs in a fixed tree, handed to `assemble` as ``sums[axis]``.
        """
        raise NotImplementedError

    def assemble(
        self, globals_: G, stats: S, parts: Mapping[str, Any], sums: Mapping[str, Any], step: Step
    ) -> tuple[G, Info]:
        """Return the new globals when `axes` is not empty: called instead of `update`.

        ``stats`` has its wide fields removed (None); ``parts`` and ``sums`` come from `features`.
        """
        raise NotImplementedError

    def blocks(self, n_blocks: int, globals_: G, step: Step) -> Sequence[int] | None:
        """Return the numbers of the blocks that take part in this sweep; None: all.

        A minibatch. With ``Stage(replace=True)`` the blocks that sit out keep the statistics they gave
        last, so that ``stats`` is always a sum over the whole dataset.
        """
        return None


@dataclass(frozen=True)
class Stage(Generic[G]):
    """Sweeps repeated until a rule ends them.

    Parameters
    ----------
    name : str
        As shown in progress and in the trace.
    sweeps : tuple of Sweep
        One iteration runs them in order.
    max_iter : int
        Iterations at most.
    tol : float or None
        End when the gain of ``objective`` per observed entry stays below this `patience` times running.
    patience : int
        See `tol`.
    min_iter : int
        Iterations before `tol` is looked at.
    keep : bool
        Every `thin`-th iteration is a draw, stored by way of `Model.record`.
    thin : int
        See `keep`.
    max_rhat : float or None
        End a sampling stage once split R-hat over chains of every scalar in ``info`` named ``monitor_*``
        (and of ``objective``) is below this, looked at every 50 kept draws.
    enter : callable or None
        Applied to the globals when the stage begins; may change the number of factors.
    counts : bool
        Whether its iterations count towards ``max_iter`` of the run and appear in the trace. Preparations
        (moments, initialisation) and closing passes do not.
    closing : bool
        Run even when a budget, an interrupt or ``max_iter`` ended the stages before it.
    replace : bool
        Blocks outside the minibatch keep their previous statistics (incremental updates).
    """

    name: str
    sweeps: tuple[Sweep[G, Any, Any], ...]
    max_iter: int
    tol: float | None = None
    patience: int = 3
    min_iter: int = 0
    keep: bool = False
    thin: int = 1
    max_rhat: float | None = None
    enter: Callable[[G], G] | None = None
    counts: bool = True
    closing: bool = False
    replace: bool = False


@dataclass(frozen=True)
class Variable:
    """One row of a model's table of variables: it names, validates and documents a posterior array.

    Parameters
    ----------
    name : str
        Name in the posterior. Shared by all families where the meaning is the same: ``scores``,
        ``scores_variance``, ``loadings_<view>``, ``loadings_variance_<view>``, ``inclusion_<view>``,
        ``intercept_<view>``, ``variance_explained``.
    dims : tuple of str
        From ``obs``, ``factor``, ``view``, ``group``, ``feature_<view>``; the engine puts ``chain`` in front
        of every variable of a Monte Carlo model, and ``draw`` behind it in front of draws.
    doc : str
        One line of prose, with the symbol in the model's equations.
    group : str
        Group of the posterior: "variational", "posterior", "sample_stats", "posterior_predictive".
    rows : bool
        Whether it comes from `Model.rows` (leading dim ``obs``) rather than from `Model.record`.
    draws : bool
        With ``rows``: stored at every kept iteration, by way of `Model.draw`, instead of once at the end.
    dtype : str
        Type on disk.
    """

    name: str
    dims: tuple[str, ...]
    doc: str
    group: str = "variational"
    rows: bool = False
    draws: bool = False
    dtype: str = "float64"


@dataclass(frozen=True)
class Footprint:
    """Memory a model needs beyond the blocks, in bytes: the engine refuses a run that cannot fit.

    Parameters
    ----------
    local_per_row : int
        Local state per row and chain.
    statistics : int
        One set of statistics.
    globals_ : int
        One set of globals.
    scratch_per_row : int
        Temporary arrays of `Sweep.map` per row of the block in hand.
    kept_per_row : int
        What is remembered of each row of the blocks that the engine keeps in memory.
    remembered : int
        What a process remembers besides, at most.
    """

    local_per_row: int
    statistics: int
    globals_: int
    scratch_per_row: int = 0
    kept_per_row: int = 0
    remembered: int = 0


class Model(Protocol[G]):
    """A configuration joined with the shape of a dataset: a frozen dataclass, picklable and small."""

    kind: ClassVar[Literal["variational", "monte carlo"]]

    @property
    def meta(self) -> Meta:
        """Shape of the dataset."""
        ...

    def stages(self) -> tuple[Stage[G], ...]:
        """Return the stages of a run, in order."""
        ...

    def init(self, step: Step) -> G:
        """Return globals before any data are seen (one set for each chain: see ``step.chain``)."""
        ...

    def variables(self) -> tuple[Variable, ...]:
        """Return the table of variables that `record` and `rows` fill."""
        ...

    def coords(self, globals_: G) -> Mapping[str, Sequence[str]]:
        """Return labels of dims the dataset does not know (``factor`` at least)."""
        ...

    def record(self, globals_: G) -> Mapping[str, Array]:
        """Return the variables with ``rows=False``: the result, or one draw."""
        ...

    def restore(self, variables: Mapping[str, Array]) -> G:
        """Return globals from recorded variables (one draw of a sampler), good for `rows` and `predict`."""
        ...

    def rows(self, block: Block, local: Any, globals_: G, step: Step) -> Mapping[str, Array]:
        """Return the variables with ``rows=True, draws=False`` for one block, at the end of a run."""
        ...

    def draw(self, block: Block, local: Any, globals_: G) -> Mapping[str, Array]:
        """Return the variables with ``rows=True, draws=True`` of one block at a kept iteration."""
        ...

    def predict(
        self, rows: Mapping[str, Array], record: Mapping[str, Array], view: str
    ) -> tuple[Array, Array]:
        """Return mean and standard deviation of the entries of a view, on the data scale.

        ``rows`` and ``record`` hold the stored variables (of a run of rows; whole). Shapes (B, D), (B, D).
        The standard deviation is that of a new observation.
        """
        ...

    def footprint(self) -> Footprint:
        """Return the memory the run needs beyond its blocks."""
        ...


class ModelConfig(BaseModel):
    """Base of the public configurations (`factorflow.models`): unknown keys are refused.

    ``views`` selects and orders nothing: it names the views to model, all when None.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    views: tuple[str, ...] | None = Field(default=None, description="Views to model; all when left out.")

    simulator: ClassVar[str] = "sparse_gfa"
    """Name of the simulator (`factorflow.simulate`) whose data suit the model: the contract tests use it."""

    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    """Where `Sweep.map` can work: "cuda" means that it takes the values of a block as CuPy arrays."""

    example_data: ClassVar[Mapping[str, Any]] = {}
    """Arguments for the simulator that make a dataset small enough for tests."""

    @classmethod
    def example(cls) -> ModelConfig:
        """Return a configuration for data of `simulator`, small enough for tests."""
        return cls()

    @property
    def n_chains(self) -> int:
        """Independent chains of a sampler; 1 for variational models."""
        return 1

    def build(self, meta: Meta) -> Model[Any]:
        """Return the model for a dataset of this shape; raise InputError when they do not fit."""
        raise NotImplementedError
