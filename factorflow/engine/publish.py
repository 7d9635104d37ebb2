"""The end of a run: sample-sized variables and held-out scores block by block, then the posterior itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from factorflow.engine.executors.environment import environment
from factorflow.engine.kept import fetch
from factorflow.engine.loop import Loop
from factorflow.engine.output import Output
from factorflow.engine.plan import Plan, State
from factorflow.engine.tasks import Group
from factorflow.engine.tree import Node, Tree
from factorflow.models.contract import Block
from factorflow.posterior import Posterior, open_posterior
from factorflow.posterior.assembly import assemble, labels_of
from factorflow.posterior.scoring import entry_scores, finish_scores
from factorflow.posterior.store import create_rows, read_variable, save, write_rows
from factorflow.trees import freeze

__all__ = ["Published", "publish", "publish_group", "write_posterior"]


@dataclass(frozen=True)
class Published:
    """What the closing pass of a group returns.

    Parameters
    ----------
    rows : mapping of str to array, or None
        Variables of its samples, when they are not written to a store.
    scores : tuple of Node
        Sums of held-out scores per view.
    """

    rows: Mapping[str, Any] | None
    scores: tuple[Node, ...]


class Draws(Mapping[str, Any]):
    """The stored draws of a run, (chain, draw, ...), read when they are asked for, and what is at hand.

    Parameters
    ----------
    plan : Plan
        The run.
    n_draws : int
        Draws made.
    samples : slice, optional
        With it, the variables of these samples; without, those of the globals.
    at_hand : mapping, optional
        Variables that need not be read.
    """

    def __init__(
        self, plan: Plan, n_draws: int, samples: slice | None = None, at_hand: Mapping[str, Any] | None = None
    ) -> None:
        self._at_hand = at_hand or {}
        self._path, self._n_draws, self._samples = plan.draws_path, n_draws, samples
        rows = samples is not None
        self._table = {v.name: v for v in plan.model.variables() if v.rows == rows and (v.draws or not rows)}

    def __getitem__(self, name: str) -> Any:
        if name in self._at_hand:
            return self._at_hand[name]
        samples = () if self._samples is None else (self._samples,)
        return read_variable(str(self._path), self._table[name], slice(None), slice(self._n_draws), *samples)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._at_hand, **self._table})

    def __len__(self) -> int:
        return len({**self._at_hand, **self._table})


def publish(loop: Loop, output: Output) -> Posterior:
    """Write what a run found, and return it; nothing large passes through the client."""
    partial = loop.reason in {"interrupted", "max_minutes"}
    path = output.begin_publishing(partial=partial)
    if path is not None:
        create_rows(path, loop.plan.model, _coords_now(loop), loop.plan.n_chains)
    if loop.draws is not None:
        loop.draws.flush(loop.executor, loop.plan_handle)
    submit, result, plan = loop.executor.submit, loop.executor.result, loop.plan_handle
    parts: list[Published] = result(
        [
            submit("publish", publish_group, plan, group, local, loop.state, path, group=i)
            for i, (group, local) in enumerate(zip(loop.groups, loop.locals, strict=True))
        ]
    )
    tree = Tree()
    for part in parts:
        tree.feed(part.scores)
    axis = 1 if loop.plan.model.kind == "monte carlo" else 0
    rows = {
        name: np.concatenate([p.rows[name] for p in parts if p.rows], axis) for name in parts[0].rows or {}
    }
    run = run_record(loop, output.identity, "partial" if partial else "complete")
    arguments = (plan, loop.state, rows, tree.total(), vars(loop.trace), run, path)
    written = result(submit("write_posterior", write_posterior, *arguments, group=0))
    if path is None:
        return Posterior(written)
    output.complete(path, partial=partial)
    return open_posterior(path).load() if output.shown_path is None else open_posterior(output.shown_path)


def publish_group(plan: Plan, group: range, result: Group, state: State, path: str | None) -> Published:
    """Compute the variables of one group's samples and score its held-out entries."""
    model, monte_carlo = plan.model, plan.model.kind == "monte carlo"
    table = {v.name: v for v in model.variables() if v.rows and not v.draws}
    record = Draws(plan, state.draws) if monte_carlo else model.record(state.globals_[0])
    predictable = not monte_carlo or state.draws > 0  # a sampler stopped in its burn-in predicts nothing
    tree = Tree()
    collected: dict[str, list[Any]] = {name: [] for name in table}
    for block in plan.source.stream(group):
        local = fetch(result.local.get(block.number, (None,) * plan.n_chains))
        chains = [
            model.rows(block, local[c], state.globals_[c], plan.step(c, state.tick))
            for c in range(plan.n_chains)
        ]
        rows = {
            name: np.stack([c[name] for c in chains]) if monte_carlo else chains[0][name] for name in table
        }
        samples = slice(block.start, block.start + block.n_rows)
        known = Draws(plan, state.draws, samples, rows) if monte_carlo else rows
        sums = _scores(plan, block, known, record, predictable=predictable)
        tree.add(block.number, freeze(sums))
        for name, variable in table.items():
            if path is None:
                collected[name].append(rows[name])
            else:
                for chain, values in enumerate(rows[name]) if monte_carlo else [(None, rows[name])]:
                    write_rows(path, variable, block.start, values, chain=chain)
    joined = {
        name: np.concatenate(values, axis=int(monte_carlo)) for name, values in collected.items() if values
    }
    return Published(joined if path is None else None, tree.nodes(hand_over=True))


def write_posterior(
    plan: Plan,
    state: State,
    rows: Mapping[str, Any],
    held_out: Any,
    trace: Mapping[str, Sequence[Any]],
    run: Mapping[str, Any],
    path: str | None,
) -> Any:
    """Join everything into the posterior's tree; save it at ``path``, or return it without one."""
    model, dataset = plan.model, plan.source.dataset
    scores = None
    if held_out is not None:
        views = model.meta.value_views
        scores = finish_scores(held_out, views, {view.name: dataset.moments(view.name) for view in views})
    labels = labels_of(dataset, model.meta, model.coords(state.globals_[0]))
    record = {} if model.kind == "monte carlo" else model.record(state.globals_[0])
    tree = assemble(model, labels, record, rows, trace, run, scores)
    if path is None:
        return tree
    save(tree, path, state.draws if model.kind == "monte carlo" else None)
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


def run_record(loop: Loop, identity: Mapping[str, Any], status: str) -> dict[str, Any]:
    """Return what the posterior's attributes say about the run that made it."""
    return {
        "status": status,
        "reason": loop.reason,
        "identity": dict(identity),
        "dataset": str(loop.plan.source.dataset.path),
        "environment": environment(),
        "n_iterations": loop.counted,
    }


def _scores(
    plan: Plan, block: Block, rows: Mapping[str, Any], record: Mapping[str, Any], *, predictable: bool
) -> Any:
    """Return the sums of the held-out scores of one block, per view; None without held-out entries."""
    source, sums = plan.source, {}
    if source.holdout is None or not predictable:
        return None
    for view in plan.model.meta.value_views:
        where, features = block.hidden[view.name]
        truth = source.dataset.hidden_values(block.number, view.name, source.holdout)
        mean, sd = plan.model.predict(rows, record, view.name)
        predicted = mean[where, features], sd[where, features]
        sums[view.name] = entry_scores(view.likelihood, view.n_features, features, truth, *predicted)
    return sums
