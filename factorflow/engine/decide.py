"""Decisions of the root task: the next sweep, iteration or stage, or the end.

Only the root decides, and its decision travels with the globals (`State`).
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from factorflow.core.trees import Gather, freeze, map_gathers, replace
from factorflow.engine.plan import Plan, Record, State
from factorflow.models.contract import Info, Stage, Sweep

_RHAT_EVERY = 50
"""Kept draws between two looks at R-hat."""
_ENTERED: WeakKeyDictionary[State, State] = WeakKeyDictionary()
"""What `enter_stage` made of states, while those live: every group and the root ask; rotations are slow."""


def first_state(plan: Plan) -> State:
    """Return the state before any data are seen."""
    if plan.fixed is not None:
        forgotten = tuple(
            freeze(map_gathers(plan.fixed.globals_(chain, 0), lambda _: Gather.empty()))
            for chain in range(plan.n_chains)
        )
        return State(forgotten)
    first = _next_stage(plan, State((), stage=-1))
    globals_ = tuple(freeze(plan.model.init(plan.step(chain, first))) for chain in range(plan.n_chains))
    return replace(first, globals_=globals_)


def enter_stage(plan: Plan, state: State) -> State:
    """Return the state as the round in hand finds it: the first one of a stage enters it.

    Not when the stage before ends: a run that is ended there keeps what that stage found.
    """
    if state.entered or state.stage >= len(plan.stages):
        return state
    cached = _ENTERED.get(state)
    if cached is None:
        cached = _ENTERED[state] = _enter_stage(plan, state)
    return cached


def _enter_stage(plan: Plan, state: State) -> State:
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
    plan: Plan, state: State, globals_: tuple[Any, ...], infos: tuple[Info, ...], n_moved: float = 1.0
) -> State:
    """Return the state after a sweep: the next sweep, iteration or stage, or the end.

    Only the root decides, and its decision travels with the globals; rounds submitted ahead of it find
    what to do in the state they are given. ``n_moved``: blocks whose local state moved in this sweep, where
    globals are fixed.
    """
    stage = plan.stages[state.stage]
    if stage.evaluate is not None and not evaluating(stage, state):
        infos = tuple(_as_estimate(info) for info in infos)
    if state.pending:
        infos = tuple({**before, **after} for before, after in zip(state.pending, infos, strict=True))
    n_moved += state.n_moved
    if state.sweep + 1 < len(stage.sweeps) + _evaluates(plan, state):
        after = replace(state, globals_=globals_, sweep=state.sweep + 1, pending=infos, n_moved=n_moved)
        record = _record(stage, after, infos, None, is_draw=False, done=False)
        return replace(after, records=(*state.records, record))
    draws = _draws(stage, state)
    objective = float(np.mean([info.get("objective", np.nan) for info in infos]))
    reported = stage.evaluate is None or _evaluates(plan, state)
    gain, n_below_tol = _progress(stage, state, objective, infos) if reported else (None, state.n_below_tol)
    after = replace(
        state,
        globals_=globals_,
        iteration=state.iteration + 1,
        sweep=0,
        tick=state.tick + 1,
        counted=state.counted + stage.counts,
        draws=state.draws + draws,
        best=(objective if np.isfinite(objective) else None) if reported else state.best,
        n_below_tol=n_below_tol,
        pending=(),
        n_moved=0.0,
        monitors=_watch(stage, state, infos) if draws else state.monitors,
    )
    record = _record(stage, after, infos, gain, is_draw=draws, done=True)
    ended = _stop_reason(stage, after) or ("" if stage.closing else after.reason)
    if plan.fixed is not None and not stage.keep and not n_moved:
        ended = "converged"
    spent = stage.counts and plan.max_iter is not None and after.counted >= plan.max_iter
    if spent and not (ended and _last_counted(plan, after)):
        ended, after = "max_iter", replace(after, reason="max_iter")
    if ended:
        if stage.counts and _last_counted(plan, after):
            after = replace(after, reason=ended)
        after = _next_stage(plan, after)
    finished = after.stage >= len(plan.stages)
    record = replace(record, finished=finished, reason=after.reason)
    return replace(after, records=(*state.records, record))


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
    if stage.evaluate is None or not state.iteration or not state.records:
        return None
    before = replace(
        state,
        iteration=state.iteration - 1,
        sweep=len(stage.sweeps),
        tick=state.tick - 1,
        counted=state.counted - stage.counts,
        pending=state.records[-1].infos,
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
    """Return the report of a part of the data: its objective is an estimate."""
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
    n_below_tol = state.n_below_tol + 1 if gain < enough else 0
    return gain, min(n_below_tol, stage.patience - 1) if any(
        info.get("pending") for info in infos
    ) else n_below_tol


def _stop_reason(stage: Stage[Any], state: State) -> str:
    if stage.tol is not None and state.n_below_tol >= stage.patience and state.iteration >= stage.min_iter:
        return "converged"
    if stage.max_rhat is not None and state.draws and state.draws % _RHAT_EVERY == 0 and state.monitors:
        from factorflow.engine.convergence import split_rhat

        if max(split_rhat(values) for values in state.monitors) < stage.max_rhat:
            return "converged"
    if state.iteration >= stage.max_iter:
        return "complete" if stage.tol is None and stage.max_rhat is None else "max_iter"
    return ""


def _last_counted(plan: Plan, state: State) -> bool:
    """Return whether no stage behind the one in hand counts."""
    return not any(stage.counts and stage.max_iter for stage in plan.stages[state.stage + 1 :])


def _next_stage(plan: Plan, state: State) -> State:
    """Return the state before the next stage that has iterations and, after the end, closes."""
    index = state.stage + 1
    while index < len(plan.stages):
        stage = plan.stages[index]
        max_iter = stage.max_iter
        if max_iter and (stage.closing or not state.reason):
            break
        index += 1
    blank = State(())
    names = ("entered", "iteration", "sweep", "best", "n_below_tol", "pending", "n_moved", "monitors")
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
    stage: Stage[Any], state: State, infos: tuple[Info, ...], gain: float | None, *, is_draw: bool, done: bool
) -> Record:
    return Record(
        stage=stage.name,
        counts=stage.counts,
        iteration_done=done,
        counted=state.counted,
        draws=state.draws,
        kept=is_draw,
        infos=infos,
        gain=gain,
        finished=False,
        reason=state.reason,
    )
