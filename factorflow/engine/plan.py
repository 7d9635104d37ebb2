"""What a run is (`Plan`), where it stands (`State`), and how the root decides what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from factorflow.engine.fixed import Fixed
from factorflow.engine.source import Source
from factorflow.engine.warm import Warm
from factorflow.kernels.random import Step
from factorflow.models.contract import Info, Model, Stage, Sweep
from factorflow.shape import Strip
from factorflow.trees import Gather, freeze, with_gathers

__all__ = [
    "FEATURE_RUN",
    "RHAT_EVERY",
    "Plan",
    "Record",
    "State",
    "cut_short",
    "decide",
    "entered",
    "first_state",
]

T = TypeVar("T")

FEATURE_RUN = 2048
"""Features updated together. Fixed: the cut of the feature axis is part of the bits."""

RHAT_EVERY = 50
"""Kept draws between two looks at R-hat."""


@dataclass(frozen=True)
class Plan:
    """Everything the tasks of a run have in common; sent to each worker once.

    Parameters
    ----------
    model : Model
        The family, joined with the shape of the data.
    source : Source
        Blocks.
    seed : int
        Key of the counter-based generator.
    max_iter : int or None
        Counted iterations at most, over all stages.
    draws_path : str or None
        Store that draws are written to.
    kept_path, local_path : str or None
        Folder for the kept statistics of incremental updates, and for local state; None: in memory.
    fixed : Fixed or None
        The globals of a fitted model, for new samples; None: they are learned.
    warm : Warm or None
        The globals of an earlier fit that the first stage that counts begins with; None: a start anew.
    """

    model: Model[Any, Any]
    source: Source
    seed: int
    max_iter: int | None = None
    draws_path: str | None = None
    kept_path: str | None = None
    local_path: str | None = None
    fixed: Fixed | None = None
    warm: Warm | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is found again: the stages of a model, which may hold functions."""
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
    def classes(self) -> dict[str, type]:
        """Dataclasses of a model written in a script, which its workers cannot import: by "module:name"."""
        if type(self.model).__module__ != "__main__":
            return {}
        kinds = {type(self.model), *(type(sweep) for stage in self.stages for sweep in stage.all_sweeps)}
        functions = [f for kind in kinds for f in vars(kind).values() if isinstance(f, FunctionType)]
        found = {value for f in functions for value in f.__globals__.values() if is_dataclass(value)}
        return {f"{c.__module__}:{c.__qualname__}": c for c in found if isinstance(c, type)}

    def strips(self, width: int, group: range) -> tuple[range, list[Strip]]:
        """Return which strips belong to a group of blocks, and all strips of a width.

        However the blocks are cut into groups, each strip belongs to one of them.
        """
        found = self.model.meta.strips(width)
        first, last = (len(found) * end // self.model.meta.n_blocks for end in (group.start, group.stop))
        return range(first, last), found

    @property
    def may_resize(self) -> bool:
        """Whether the globals may change in size before the first draw: by an optimisation for all chains."""
        return self.fixed is None and any(stage.shared for stage in self.stages)

    def chains(self, state: State) -> range:
        """Return the chains that the sweep in hand is done for: one where it is the same for all."""
        shared = state.stage < len(self.stages) and self.stages[state.stage].shared
        return range(1 if shared else self.n_chains)

    def of_all(self, state: State, found: Sequence[T]) -> tuple[T, ...]:
        """Return for each chain what was found for `chains`."""
        return tuple(found) * (self.n_chains // len(self.chains(state)))

    def step(self, chain: int, state: State, scale: float = 1.0) -> Step:
        """Return the noise of the iteration in hand, and what the model is told of it."""
        name = self.stages[state.stage].name if state.stage < len(self.stages) else ""
        return Step(
            self.seed, chain, state.tick, name, state.iteration, scale, projecting=self.fixed is not None
        )


@dataclass(frozen=True)
class State:
    """Where a run stands. It travels with the globals, so every task knows what it is to do.

    Parameters
    ----------
    globals_ : tuple
        One set for each chain.
    stage, iteration, sweep : int
        What comes next: index of the stage (their number: finished), iteration and sweep within it; the
        number of sweeps stands for the evaluation behind them.
    entered : bool
        Whether `Stage.enter` was applied to the globals.
    tick : int
        Iterations of all stages so far: the iteration in the counter of the noise.
    counted, draws : int
        Counted iterations and kept draws so far.
    best : float or None
        Objective that was reported last in this stage.
    calm : int
        Reports running whose gain was below the tolerance.
    reason : str
        Why the counted stages ended: "" while they go on.
    pending : tuple of dict
        What the earlier sweeps of this iteration reported, for each chain.
    unsettled : float
        Blocks whose local state moved in the earlier sweeps of this iteration, where globals are fixed.
    monitors : tuple of float array
        Scalars whose R-hat is watched, (chains, draws) each.
    record : Record or None
        What the last round reports to the client.
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
    calm: int = 0
    reason: str = ""
    pending: tuple[Info, ...] = ()
    unsettled: float = 0.0
    monitors: tuple[Any, ...] = ()
    record: Record | None = None


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


def first_state(plan: Plan) -> State:
    """Return the state before any data are seen."""
    if plan.fixed is not None:
        forgotten = tuple(
            freeze(with_gathers(plan.fixed.globals_(chain, 0), lambda _: Gather.empty()))
            for chain in range(plan.n_chains)
        )
        return State(forgotten)
    first = _next_stage(plan, State((), stage=-1))
    globals_ = tuple(freeze(plan.model.init(plan.step(chain, first))) for chain in range(plan.n_chains))
    return replace(first, globals_=globals_)


def entered(plan: Plan, state: State) -> State:
    """Return the state as the round in hand finds it: the first one of a stage enters it.

    Not when the stage before ends: a run that is ended there keeps what that stage found.
    """
    if state.entered or state.stage >= len(plan.stages):
        return state
    stage, globals_ = plan.stages[state.stage], state.globals_
    if plan.warm is not None and stage.counts and not any(s.counts for s in plan.stages[: state.stage]):
        warm = plan.warm
        globals_ = tuple(freeze(plan.model.warm(g, warm.globals_(c))) for c, g in enumerate(globals_))
    if stage.enter is not None:
        globals_ = tuple(freeze(stage.enter(g)) for g in globals_)
    return replace(state, globals_=globals_, entered=True)


def current(plan: Plan, state: State) -> tuple[Stage[Any], Sweep[Any, Any, Any]] | None:
    """Return the stage and sweep that come next; None when the run is finished."""
    if state.stage >= len(plan.stages):
        return None
    stage = plan.stages[state.stage]
    if state.sweep < len(stage.sweeps):
        return stage, stage.sweeps[state.sweep]
    assert stage.evaluate is not None
    return stage, stage.evaluate


def evaluating(stage: Stage[Any], state: State) -> bool:
    """Return whether the round in hand only evaluates."""
    return state.sweep == len(stage.sweeps)


def keeps(stage: Stage[Any], state: State) -> bool:
    """Return whether the iteration in hand becomes a draw, and this is the round that makes it."""
    return state.sweep + 1 == len(stage.sweeps) and _draws(stage, state)


def decide(
    plan: Plan, state: State, globals_: tuple[Any, ...], infos: tuple[Info, ...], unsettled: float = 1.0
) -> State:
    """Return the state after a sweep: the next sweep, iteration or stage, or the end.

    Only the root decides, and its decision travels with the globals; rounds submitted ahead of it find
    what to do in the state they are given. ``unsettled``: blocks whose local state moved in this sweep, where
    globals are fixed.
    """
    stage = plan.stages[state.stage]
    if stage.evaluate is not None and not evaluating(stage, state):
        infos = tuple(_as_estimate(info) for info in infos)
    if state.pending:
        infos = tuple({**before, **after} for before, after in zip(state.pending, infos, strict=True))
    unsettled += state.unsettled
    if state.sweep + 1 < len(stage.sweeps) + _evaluates(plan, state):
        after = replace(state, globals_=globals_, sweep=state.sweep + 1, pending=infos, unsettled=unsettled)
        return replace(after, record=_record(stage, after, infos, None, kept=False, done=False))
    kept = _draws(stage, state)
    objective = float(np.mean([info.get("objective", np.nan) for info in infos]))
    reported = stage.evaluate is None or _evaluates(plan, state)
    gain, calm = _progress(stage, state, objective, infos) if reported else (None, state.calm)
    after = replace(
        state,
        globals_=globals_,
        iteration=state.iteration + 1,
        sweep=0,
        tick=state.tick + 1,
        counted=state.counted + stage.counts,
        draws=state.draws + kept,
        best=(objective if np.isfinite(objective) else None) if reported else state.best,
        calm=calm,
        pending=(),
        unsettled=0.0,
        monitors=_watch(stage, state, infos) if kept else state.monitors,
    )
    record = _record(stage, after, infos, gain, kept=kept, done=True)
    ended = _ended(stage, after) or ("" if stage.closing else after.reason)
    if plan.fixed is not None and not stage.keep and not unsettled:
        ended = "converged"
    spent = stage.counts and plan.max_iter is not None and after.counted >= plan.max_iter
    if spent and not (ended and _last_counted(plan, state.stage)):
        ended, after = "max_iter", replace(after, reason="max_iter")
    if ended:
        if stage.counts and _last_counted(plan, state.stage):
            after = replace(after, reason=ended)
        after = _next_stage(plan, after)
    finished = after.stage >= len(plan.stages)
    return replace(after, record=replace(record, finished=finished, reason=after.reason))


def cut_short(plan: Plan, state: State, reason: str) -> State:
    """Return the state of a run whose counted stages end here: only closing stages are left.

    A stage that evaluates now and then does so once more: its last iteration is repeated from there on.
    """
    if state.stage >= len(plan.stages):
        return state
    if plan.stages[state.stage].closing:
        return replace(state, reason=state.reason or reason)
    stage, state = plan.stages[state.stage], replace(state, reason=reason)
    last = _last_iteration(stage, state)
    if last is None or _evaluates(plan, replace(last, reason="")):
        return _next_stage(plan, state)
    return last


def _last_iteration(stage: Stage[Any], state: State) -> State | None:
    """Return the state before the evaluation of the iteration that came last; None where there is none."""
    if stage.evaluate is None or not state.iteration or state.record is None:
        return None
    before = replace(
        state,
        iteration=state.iteration - 1,
        sweep=len(stage.sweeps),
        tick=state.tick - 1,
        counted=state.counted - stage.counts,
        pending=state.record.infos,
    )
    return replace(before, draws=before.draws - _draws(stage, before))


def _draws(stage: Stage[Any], state: State) -> bool:
    return stage.keep and (state.iteration + 1) % stage.thin == 0


def _evaluates(plan: Plan, state: State) -> bool:
    """Return whether the iteration in hand ends with an evaluation: some do, and the last one."""
    stage, number = plan.stages[state.stage], state.iteration + 1
    if stage.evaluate is None:
        return False
    spent = stage.counts and state.counted + 1 == plan.max_iter
    return bool(number % stage.evaluate_every == 0 or number == stage.max_iter or spent or state.reason)


def _as_estimate(info: Info) -> Info:
    """Return what a part of the data reports: its objective is an estimate, and covers no known entries."""
    names = {"objective": "estimate"}
    return {names.get(name, name): value for name, value in info.items() if name != "observed"}


def _progress(
    stage: Stage[Any], state: State, objective: float, infos: tuple[Info, ...]
) -> tuple[float | None, int]:
    """Return the gain per observed entry since the last report, and how many were small in a row."""
    observed = max(float(np.mean([info.get("observed", 1.0) for info in infos])), 1.0)
    gain = None
    if state.best is not None and np.isfinite(objective):
        gain = (objective - state.best) / observed
    if stage.tol is None or gain is None:
        return gain, 0
    enough = stage.tol
    if stage.parameter_tol is not None:
        parameters, rounding = (
            float(np.mean([info.get(name, 0.0) for info in infos])) for name in ("parameters", "rounding")
        )
        enough = min(stage.tol, max(stage.parameter_tol * parameters, rounding) / observed)
    calm = state.calm + 1 if gain < enough else 0
    return gain, min(calm, stage.patience - 1) if any(info.get("pending") for info in infos) else calm


def _ended(stage: Stage[Any], state: State) -> str:
    if stage.tol is not None and state.calm >= stage.patience and state.iteration >= stage.min_iter:
        return "converged"
    if stage.max_rhat is not None and state.draws and state.draws % RHAT_EVERY == 0 and state.monitors:
        from factorflow.engine.convergence import split_rhat

        if max(split_rhat(values) for values in state.monitors) < stage.max_rhat:
            return "converged"
    if state.iteration >= stage.max_iter:
        return "complete" if stage.tol is None and stage.max_rhat is None else "max_iter"
    return ""


def _last_counted(plan: Plan, index: int) -> bool:
    return not any(stage.counts and stage.max_iter for stage in plan.stages[index + 1 :])


def _next_stage(plan: Plan, state: State) -> State:
    """Return the state before the next stage that has iterations and, after the end, closes."""
    index = state.stage + 1
    while index < len(plan.stages):
        stage = plan.stages[index]
        if stage.max_iter and (stage.closing or not state.reason):
            break
        index += 1
    blank = State(())
    names = ("entered", "iteration", "sweep", "best", "calm", "pending", "unsettled", "monitors")
    return replace(state, stage=index, **{name: getattr(blank, name) for name in names})


def _watch(stage: Stage[Any], state: State, infos: tuple[Info, ...]) -> tuple[Any, ...]:
    if stage.max_rhat is None:
        return ()
    names = [name for name in infos[0] if name == "objective" or name.startswith("monitor_")]
    new = [np.array([[info[name]] for info in infos]) for name in names]
    if not state.monitors:
        return tuple(new)
    return tuple(np.concatenate([old, value], axis=1) for old, value in zip(state.monitors, new, strict=True))


def _record(
    stage: Stage[Any], state: State, infos: tuple[Info, ...], gain: float | None, *, kept: bool, done: bool
) -> Record:
    return Record(
        stage=stage.name,
        counts=stage.counts,
        iteration_done=done,
        counted=state.counted,
        draws=state.draws,
        kept=kept,
        infos=infos,
        gain=gain,
        finished=False,
        reason=state.reason,
    )
