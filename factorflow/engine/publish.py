"""The end of a run: sample-sized variables and held-out scores block by block, then the posterior itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.core.block import Block, ViewMeta, without_values
from factorflow.core.design import EXPOSURE
from factorflow.core.trees import freeze
from factorflow.data.aligned_dataset import AlignedDataset
from factorflow.data.held_out_counts import exposure_of_rest, is_split
from factorflow.engine.loop import Loop
from factorflow.engine.plan import Plan, State
from factorflow.engine.run_directory import Output
from factorflow.engine.spill import load_spilled
from factorflow.engine.tasks import Group
from factorflow.engine.tree import Node, Tree
from factorflow.kernels.device import on_host
from factorflow.posterior.assembly import assemble, labels_of
from factorflow.posterior.globals import GROUP, globals_node, sets_after
from factorflow.posterior.open import load_tree, open_tree
from factorflow.posterior.predictive import with_exposure
from factorflow.posterior.record import RunRecord, Status
from factorflow.posterior.score_sums import Sums, entry_scores, level_sums, ranked_entries, training_sums
from factorflow.posterior.scoring import finish_scores
from factorflow.posterior.store import create_rows, fit_draws, read_variable, save, write_rows
from factorflow.storage.location import Location

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class ClosingResult:
    """The result of the closing pass of a group.

    Parameters
    ----------
    rows : mapping of str to array, or None
        Variables of its samples, when they are not written to a store.
    sums : tuple of Node
        Of a projection, what describes its samples (`Model.sums`).
    """

    rows: Mapping[str, Any] | None
    scores: tuple[Node, ...]
    sums: tuple[Node, ...]


class Draws(Mapping[str, Any]):
    """The stored draws of a run, (chain, draw, ...), read on demand.

    Parameters
    ----------
    samples : slice, optional
        With it, the variables of these samples; without, those of the globals.
    """

    def __init__(
        self, plan: Plan, n_draws: int, samples: slice | None = None, at_hand: Mapping[str, Any] | None = None
    ) -> None:
        self._at_hand = at_hand or {}
        self._path, self._n_draws, self._samples = plan.draws_path, n_draws, samples
        rows = samples is not None
        self._table = {v.name: v for v in plan.model.table if v.rows == rows and (v.draws or not rows)}

    def __getitem__(self, name: str) -> Any:
        if name in self._at_hand:
            return self._at_hand[name]
        samples = () if self._samples is None else (self._samples,)
        return read_variable(str(self._path), self._table[name], slice(None), slice(self._n_draws), *samples)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._at_hand, **self._table})

    def __len__(self) -> int:
        return len({**self._at_hand, **self._table})


def publish(loop: Loop, output: Output) -> xr.DataTree | Location:
    """Write the results of a run; return them or their location. Nothing large passes through the client."""
    partial = loop.reason in {"interrupted", "max_minutes"}
    status: Status = "projected" if loop.plan.fixed is not None else "partial" if partial else "complete"
    path = output.begin_publishing(partial=partial, has_draws=loop.draws is not None)
    if path is not None:
        create_rows(path, loop.plan.model, _coords_now(loop))
    if loop.draws is not None:
        loop.draws.flush(loop.executor, loop.plan_handle)
    submit, result, plan = loop.executor.submit, loop.executor.result, loop.plan_handle
    parts: list[ClosingResult] = result(
        [
            submit("publish", publish_group, plan, group, local, loop.state, path, group=i)
            for i, (group, local) in enumerate(zip(loop.groups, loop.locals, strict=True))
        ]
    )
    scores, sums = Tree(), Tree()
    for part in parts:
        scores.feed(part.scores)
        sums.feed(part.sums)
    there = [part.rows for part in parts if part.rows]
    rows = {name: np.concatenate([arrays[name] for arrays in there], 1) for name in (there or [{}])[0]}
    run = output.record.ended(status, loop.reason, loop.counted)
    arguments = (plan, loop.state, rows, scores.total(), sums.total(), loop.trace.columns(), run, path)
    tree: xr.DataTree = result(submit("write_posterior", write_posterior, *arguments, group=0))
    if path is None:
        return tree
    output.complete(path, partial=partial)
    if output.shown_path is not None:
        return output.path
    load_tree(tree := open_tree(path), path)
    return tree


def publish_group(
    plan: Plan, group: range, result: Group | None, state: State, path: str | None
) -> ClosingResult:
    """Compute the variables of one group's samples and score its held-out entries; chains lead."""
    model, result = plan.model, result or Group()
    table = {v.name: v for v in model.table if v.rows and not v.draws}
    tree, sums = Tree(), Tree()
    collected: dict[str, list[Any]] = {name: [] for name in table}
    prepared = [model.prepare(globals_) for globals_ in state.globals_]
    for block, truth in plan.source.with_truth(group):
        local = load_spilled(result.local.get(block.number, (None,) * plan.n_chains), plan.classes)
        chains = [model.rows(block, local[c], prepared[c], plan.step(c, state)) for c in range(plan.n_chains)]
        rows = {name: np.stack([c[name] for c in chains]) for name in table}
        if plan.fixed is not None and plan.draws_path is None:
            values_by_name = {name: values[0] for name, values in rows.items()}
            sums.add(block.number, freeze(model.sums(block, values_by_name, state.globals_[0])))
        tree.add(block.number, freeze(_scores(plan, state, block, truth, rows)))
        for name, variable in table.items():
            if path is None:
                collected[name].append(rows[name])
                continue
            for chain, values in enumerate(rows[name]):
                write_rows(path, variable, block.start, values, (chain,)[: len(model.lead(variable))])
    joined = {name: np.concatenate(values, axis=1) for name, values in collected.items() if values}
    scores = tree.nodes(hand_over=True)
    return ClosingResult(joined if path is None else None, scores, sums.nodes(hand_over=True))


def write_posterior(
    plan: Plan,
    state: State,
    rows: Mapping[str, Any],
    held_out: Any,
    sums: Any,
    trace: Mapping[str, Sequence[Any]],
    run: RunRecord,
    path: str | None,
) -> Any:
    """Join everything into the posterior's tree; save it at ``path``, or return it without one."""
    model, dataset = plan.model, plan.source.original
    scores = None
    if held_out is not None:
        views = model.meta.value_views
        moments = {view.name: dataset.moments(view.name) for view in views}
        scores = finish_scores(held_out, {view.name: model.likelihood(view.name) for view in views}, moments)
    coords = coords_of(plan, state)
    if isinstance(plan.source.dataset, AlignedDataset):
        fitted = plan.source.dataset.features
        coords |= {f"feature_{view}": list(names) for view, names in fitted.items()}
    labels = labels_of(dataset, model.meta, coords)
    has_draws = plan.draws_path is not None
    record = {} if has_draws else model.record(state.globals_[0])
    if sums:
        record |= model.describe(state.globals_[0], sums)
    tree = assemble(model, labels, record, rows, trace, run, scores)
    if plan.fixed is None and not has_draws:
        tree[GROUP] = globals_node([[state.globals_[0]]])
    if path is None:
        return tree
    filled = {(v.group, v.name) for v in model.table if v.rows or has_draws}
    n_sets = sets_after(state.draws, plan.n_draws, plan.n_chains)
    if has_draws and plan.may_resize and not state.draws:
        fit_draws(path, model, plan.n_draws, state.globals_[0])
    save(tree, path, filled, state.draws if has_draws else None, n_sets)
    return None


def _coords_now(loop: Loop) -> dict[str, Sequence[str]]:
    """Return the labels of the dims that only the model knows, at the present state."""
    coords: dict[str, Sequence[str]] = loop.executor.result(
        loop.executor.submit("coords", coords_of, loop.plan_handle, loop.state, group=0)
    )
    return coords


def coords_of(plan: Plan, state: State) -> dict[str, Sequence[str]]:
    """Return the labels of the dims that only the model knows."""
    return dict(plan.model.coords(state.globals_[0]))


def _scores(plan: Plan, state: State, block: Block, truth: Mapping[str, Any], rows: Mapping[str, Any]) -> Any:
    """Return the sums of the held-out scores of one block, per view; None without held-out entries."""
    model, sums, has_draws = plan.model, {}, plan.draws_path is not None
    if plan.source.holdout is None or (
        has_draws and not state.draws
    ):  # stopped in its burn-in: it predicts nothing
        return None
    samples = slice(block.start, block.start + block.n_rows)
    values_by_name: Mapping[str, Any] = {name: values[0] for name, values in rows.items()}
    record: Mapping[str, Any] = model.record(state.globals_[0])
    if has_draws:
        values_by_name, record = Draws(plan, state.draws, samples, rows), Draws(plan, state.draws)
    for view in model.meta.value_views:
        if view.name in block.hidden:
            sums[view.name] = _scores_of_view(
                plan, state, block, view, truth[view.name], values_by_name, record
            )
    return sums


def _scores_of_view(
    plan: Plan,
    state: State,
    block: Block,
    view: ViewMeta,
    truth: Any,
    rows: Mapping[str, Any],
    record: Mapping[str, Any],
) -> Sums:
    """Return the sums of the held-out scores of one view of a block, given its variables."""
    model, holdout = plan.model, plan.source.holdout
    inputs, entries = without_values(block, model.meta), block.hidden[view.name]
    density, alone = model.likelihood(view.name), model.alone(state.globals_[0], view.name)
    mean, sd = model.predict(inputs, rows, record, view.name)
    predicted, roles = (mean[entries], sd[entries]), model.row_roles(inputs, view.name)
    predictive = model.predictive(inputs, rows, record, view.name)
    at = None if predictive is None else predictive.at(entries)
    of_entries = {role: values[entries[0]] for role, values in roles.items()}
    split = is_split(holdout, view.kind)
    if split:
        assert holdout is not None
        rest = exposure_of_rest(holdout)
        predicted, at = with_exposure(*predicted, rest), None if at is None else at.with_exposure(rest)
        alone = None if alone is None else (alone[0] + np.log(rest), alone[1])
        of_entries[EXPOSURE] = rest * of_entries.get(EXPOSURE, np.ones(len(truth)))
    n_features, features = view.n_features, entries[1]
    scores = entry_scores(density, n_features, features, truth, *predicted, of_entries, at, alone)
    seen = on_host(block.data[view.name])
    if density.levels and at is not None:
        scores = replace(scores, levels=level_sums(density.levels, seen, features, truth, at))
    if n_features == 1 and not density.is_binary and not roles:
        scores = replace(scores, ranked=ranked_entries(density, block.number, truth, predicted[0], at))
    if roles or split:
        scores = replace(scores, shown=training_sums(view.likelihood, seen, roles))
    return scores
