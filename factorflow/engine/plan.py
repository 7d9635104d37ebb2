"""The plan of a run (`Plan`), its state (`State`), and the record of a round (`Record`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from types import FunctionType
from typing import Any, TypeVar

from factorflow.core.trees import nbytes
from factorflow.engine.fixed_globals import FixedGlobals
from factorflow.engine.source import Source
from factorflow.engine.warm_start import Warm
from factorflow.kernels.random import Step
from factorflow.models.contract import Info, Model, Stage

T = TypeVar("T")

FEATURE_RUN = 2048
"""Features updated together. Fixed: the cut of the feature axis is part of the bits."""


@dataclass(frozen=True)
class Plan:
    """Everything the tasks of a run have in common; sent to each worker once.

    Parameters
    ----------
    model : Model
        The family, joined with the shape of the data.
    local_path : str or None
        Folder for local state; None: in memory.
    fixed : Fixed or None
        The globals of a fitted model, for new samples; None: they are learned.
    warm : Warm or None
        The globals of an earlier fit that the first stage that counts begins with; None: a start anew.
    may_join : bool
        Whether one worker has memory enough for all blocks: they may become one group.
    stateful : bool
        Whether blocks have local state: else a round leaves nothing on the workers.
    sends_local : bool
        Whether local state goes with the statistics to where they are merged, so that no task keeps it.
    keep_every : int
        Rounds after which a task keeps local state that is not sent; until then it is with the statistics.
    state_bytes, statistics_bytes : int
        Size of the globals, and of one set of statistics, of all chains.
    """

    model: Model[Any, Any]
    source: Source
    seed: int
    max_iter: int | None = None
    draws_path: str | None = None
    local_path: str | None = None
    fixed: FixedGlobals | None = None
    warm: Warm | None = None
    may_join: bool = False
    stateful: bool = True
    sends_local: bool = False
    keep_every: int = 1
    state_bytes: int = 0
    statistics_bytes: int = 0

    def __getstate__(self) -> dict[str, Any]:
        """Omit the stages of the model, which may hold functions and are rebuilt."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def n_chains(self) -> int:
        """Independent sets of globals."""
        return self.model.n_chains

    @property
    def n_draws(self) -> int:
        """Draws of each chain that are kept at most."""
        return sum(stage.max_iter // stage.thin for stage in self.stages if stage.keep)

    @cached_property
    def stages(self) -> tuple[Stage[Any], ...]:
        """The stages of the model, also where its start is warm; of a projection, its one."""
        if self.fixed is not None:
            return (self.fixed.stage(self.model),)
        return self.model.stages() if self.warm is None else self.model.warm_stages()

    @property
    def n_feature_runs(self) -> int:
        """Runs of features that are updated together."""
        return sum(-(-view.n_features // FEATURE_RUN) for view in self.model.meta.views)

    @cached_property
    def classes(self) -> dict[str, type]:
        """Dataclasses of a model written in a script, which its workers cannot import: by "module:name"."""
        if type(self.model).__module__ != "__main__":
            return {}
        kinds = {type(self.model), *(type(sweep) for stage in self.stages for sweep in stage.all_sweeps)}
        functions = [f for kind in kinds for f in vars(kind).values() if isinstance(f, FunctionType)]
        dataclasses = {value for f in functions for value in f.__globals__.values() if is_dataclass(value)}
        return {f"{c.__module__}:{c.__qualname__}": c for c in dataclasses if isinstance(c, type)}

    @property
    def may_resize(self) -> bool:
        """Whether the globals may change in size before the first draw: by an optimisation for all chains."""
        return self.fixed is None and any(stage.shared for stage in self.stages)

    def chains(self, state: State) -> range:
        """Return the chains that the sweep in hand is done for: one where it is the same for all."""
        shared = state.stage < len(self.stages) and self.stages[state.stage].shared
        return range(1 if shared else self.n_chains)

    def of_all(self, state: State, parts: Sequence[T]) -> tuple[T, ...]:
        """Expand results for `chains` to all chains."""
        return tuple(parts) * (self.n_chains // len(self.chains(state)))

    def step(self, chain: int, state: State, scale: float = 1.0) -> Step:
        """Return the `Step` of the current iteration: its noise and position."""
        name = self.stages[state.stage].name if state.stage < len(self.stages) else ""
        return Step(
            self.seed, chain, state.tick, name, state.iteration, scale, projecting=self.fixed is not None
        )


@dataclass(frozen=True, eq=False)
class State:
    """The state of a run. It travels with the globals, so every task knows its position.

    Parameters
    ----------
    globals_ : tuple
        One set for each chain.
    stage, iteration, sweep : int
        What comes next: index of the stage (their number: finished), iteration and sweep within it; the
        number of sweeps stands for the evaluation behind them.
    tick : int
        Iterations of all stages so far: the iteration in the counter of the noise.
    best : float or None
        Objective that was reported last in this stage.
    n_below_tol : int
        Reports running whose gain was below the tolerance.
    reason : str
        Why the counted stages ended: "" while they go on.
    pending : tuple of dict
        What the earlier sweeps of this iteration reported, for each chain.
    n_moved : float
        Blocks whose local state moved in the earlier sweeps of this iteration, where globals are fixed.
    monitors : tuple of float array
        Scalars whose R-hat is watched, (chains, draws) each.
    records : tuple of Record
        What the rounds that were submitted together report to the client, up to the last one.
    """

    globals_: tuple[Any, ...]
    stage: int = 0
    iteration: int = 0
    sweep: int = 0
    entered: bool = False
    tick: int = 0
    counted: int = 0
    draws: int = 0
    best: float | None = None
    n_below_tol: int = 0
    reason: str = ""
    pending: tuple[Info, ...] = ()
    n_moved: float = 0.0
    monitors: tuple[Any, ...] = ()
    records: tuple[Record, ...] = ()

    __sizeof__ = nbytes


@dataclass(frozen=True)
class Record:
    """The small record of one round that the client reads."""

    stage: str
    counts: bool
    iteration_done: bool
    counted: int
    draws: int
    kept: bool
    infos: tuple[Info, ...]
    gain: float | None
    finished: bool
    reason: str
