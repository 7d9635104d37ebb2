"""Sweeps over the data, and the stages that repeat them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

from factorflow.core.block import Block, Meta
from factorflow.kernels.random import Step

G = TypeVar("G")
L = TypeVar("L")
S = TypeVar("S")

Info = dict[str, float]
"""Scalars that `Sweep.update` reports. ``objective`` is the bound (or the log joint density of a sampler);
``observed`` the number of observed entries it covers, by which gains are divided; ``parameters`` how
many are free, and ``rounding`` how far the objective may be off, for `Stage.parameter_tol`; ``pending``,
where it is not 0, keeps a stage from ending: something is under trial."""


Sends = Literal["whole", "alike", "each"]
"""What blocks are sent of the globals: all, the same part by `Sweep.send`, or each its own of a `Gather`."""


class Sweep(Generic[G, L, S]):
    """One round of map, merge and update.

    Subclasses are frozen dataclasses (or have no state at all) and override `map` and `update`. A sweep is
    known by its place among the stages and sweeps of a model; its name is only shown.
    """

    name: ClassVar[str] = "sweep"

    neighbours: ClassVar[bool] = False
    """Whether `map` reads a `Gather` of the globals. Each block finds its own value there and those of the
    two blocks beside it, and no others."""

    def send(self, globals_: G) -> G:
        """Return the globals that blocks need, without leaves that `prepare` does not read.

        Parameters
        ----------
        globals_ : G
            The globals, whole.

        Returns
        -------
        G
        """
        return globals_

    def prepare(self, globals_: G) -> Any:
        """Return the argument of `map`; by default the globals.

        For tables that all blocks read: computed once a task, not once a block.

        Parameters
        ----------
        globals_ : G
            The globals, whole.

        Returns
        -------
        object
            Handed to `map` as ``globals_``.
        """
        return globals_

    def map(self, block: Block, local: L | None, globals_: Any, step: Step) -> tuple[L | None, S | None]:
        """Return the new local state of a block and its statistics; a pure function.

        Parameters
        ----------
        block : Block
            The rows (B of them).
        local : L or None
            What this sweep returned for the block last; None the first time.
        globals_ : object
            What `prepare` made of the globals.
        step : Step
            Source of noise.

        Returns
        -------
        local : L or None
            The new local state.
        stats : S or None
            Statistics of the block; None takes no part in the sum (a block wholly missing).
        """
        raise NotImplementedError

    def carry(self, globals_: G, stats: S, step: Step) -> G:
        """Return the globals with statistics that the next sweep reads, such as edges of blocks.

        Called before `update`, and in its place where globals are fixed, as in a projection: edges of
        neighbouring blocks, block summaries for a scan. By default nothing. `features` does not see it.

        Parameters
        ----------
        globals_ : G
            The globals before this sweep, whole.
        stats : S
            The statistics, summed over all blocks.
        step : Step
            Source of noise.

        Returns
        -------
        G
        """
        return globals_

    def update(self, globals_: G, stats: S, step: Step) -> tuple[G, Info]:
        """Return the new globals and scalars to report.

        Parameters
        ----------
        globals_ : G
            The globals before this sweep, whole.
        stats : S
            The statistics, summed over all blocks.
        step : Step
            Source of noise.

        Returns
        -------
        globals_ : G
            The new globals.
        info : dict of str to float
            Scalars, `Info`.
        """
        raise NotImplementedError

    def axes(self) -> Mapping[str, int]:
        """Return the feature axes along which `features` may be cut.

        Returns
        -------
        mapping of str to int
            Length by name; empty: none.
        """
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

        Parameters
        ----------
        globals_ : G
            The globals before this sweep, whole.
        stats : S
            The merged statistics without their wide fields (None).
        parts : mapping of str to dataclass
            By axis what `features` returned, joined along the axis.
        sums : mapping of str to statistics
            By axis what `features` returned, summed over its runs.
        step : Step
            Source of noise.

        Returns
        -------
        globals_ : G
            The new globals.
        info : dict of str to float
            Scalars, `Info`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Stage(Generic[G]):
    """Sweeps repeated until a rule ends them.

    Parameters
    ----------
    name : str
        As shown in progress and in the trace, and as told to the model (``step.stage``).
    sweeps : tuple of Sweep
        One iteration runs them in order.
    max_iter : int
        Iterations at most; 0: the stage is left out, `enter` with it.
    tol : float or None
        End when the gain of ``objective`` per observed entry stays below this `patience` times running.
    parameter_tol : float or None
        Gains count as small only where they are below so many nats a free parameter, too: what is left to
        gain grows with these, whatever the number of entries. Never below ``rounding``.
    patience : int
        See `tol`.
    min_iter : int
        Iterations before `tol` is looked at.
    keep : bool
        Every `thin`-th iteration is a draw, stored by way of the table of variables.
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
    part_rows : int or None
        Rows that one iteration visits, about: the engine draws parts of that size, one after the other until
        all blocks had their turn, spread evenly over the data and shuffled anew for each epoch. None: all.
        ``step.scale`` times a sum over a part estimates the sum over all rows without bias.
    evaluate : Sweep or None
        Run over all blocks every `evaluate_every` iterations, and after the last, whatever ended them:
        reports ``objective`` and ``observed``, and changes nothing. Then `tol` looks at its reports alone,
        since objectives of parts cannot be compared; those are called ``estimate`` in the trace.
    evaluate_every : int
        See `evaluate`.
    shared : bool
        Whether all chains do the same here, so that one of them does it for all: a start by optimisation,
        before the stages that sample. Its noise is that of the first chain.
    """

    name: str
    sweeps: tuple[Sweep[G, Any, Any], ...]
    max_iter: int
    tol: float | None = None
    parameter_tol: float | None = None
    patience: int = 3
    min_iter: int = 0
    keep: bool = False
    thin: int = 1
    max_rhat: float | None = None
    enter: Callable[[G], G] | None = None
    counts: bool = True
    closing: bool = False
    part_rows: int | None = None
    evaluate: Sweep[G, Any, Any] | None = None
    evaluate_every: int = 50
    shared: bool = False

    @property
    def sends(self) -> Sends:
        """What blocks are sent of the globals."""
        if any(sweep.neighbours for sweep in self.all_sweeps):
            return "each"
        return "alike" if any(type(sweep).send is not Sweep.send for sweep in self.all_sweeps) else "whole"

    @property
    def all_sweeps(self) -> tuple[Sweep[G, Any, Any], ...]:
        """The sweeps of an iteration, and the one that evaluates."""
        return self.sweeps if self.evaluate is None else (*self.sweeps, self.evaluate)

    def n_parts(self, meta: Meta) -> int:
        """Return the number of parts that the blocks of a dataset are visited in.

        Parameters
        ----------
        meta : Meta
            Shape of the dataset (N rows).

        Returns
        -------
        int
            1, or about N / `part_rows`.
        """
        if self.part_rows is None:
            return 1
        return max(1, min(meta.n_blocks, round(meta.n_rows / self.part_rows)))
