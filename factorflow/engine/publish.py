"""The closing pass: sample-sized variables and held-out scores, block by block on the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from factorflow.engine.executor import Executor, Handle
from factorflow.engine.leaves import freeze
from factorflow.engine.plan import Plan, State
from factorflow.engine.tasks import Group
from factorflow.engine.tree import Node, Tree
from factorflow.kernels.scores import entry_scores
from factorflow.models.base import Block, Variable
from factorflow.posterior.store import write_rows

__all__ = ["Published", "publish"]


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


def publish(loop: Loop, output: Output) -> Posterior:
    """Write what a run found, and return it."""
    partial = loop.reason in {"interrupted", "max_minutes"}
    path = output.begin_publishing(partial=partial)
    if path is not None:
        create_rows(path, loop.plan.model, loop.plan.n_chains)
    submit, result, plan = loop.executor.submit, loop.executor.result, loop.plan_handle
    if loop.draws is not None:
        loop.draws.flush(loop.executor, plan)
    parts: list[Published] = result(
        [
            submit("publish", publish_group, plan, group, local, loop.state, path, group=i)
            for i, (group, local) in enumerate(zip(loop.groups, loop.locals, strict=True))
        ]
    )
    tree = Tree()
    for part in parts:
        tree.feed(part.scores)
    rows = {n: _join([p.rows[n] for p in parts if p.rows], loop.plan) for n in parts[0].rows or {}}
    run = _run_record(loop, output, "partial" if partial else "complete")
    args = (plan, loop.state, rows, finish_scores(tree.total()), vars(loop.trace), run, path)
    posterior = result(submit("write_posterior", write_posterior, *args, group=0))
    if path is None:
        return Posterior(posterior)
    output.complete(path, partial=partial)
    if output.shown_path is not None:
        return open_posterior(output.shown_path)
    return open_posterior(path).load()


def publish_group(plan: Plan, group: range, result: Group, state: State, path: str | None) -> Published:
    """Compute the variables of one group's samples and score its held-out entries."""
    model = plan.model
    table = {v.name: v for v in model.variables() if v.rows and not v.draws}
    monte_carlo = model.kind == "monte carlo"
    record = {} if monte_carlo else model.record(state.globals_[0])
    tree = Tree()
    collected: dict[str, list[Any]] = {name: [] for name in table}
    for block in plan.source.stream(group):
        local = result.local.get(block.number, (None,) * plan.n_chains)
        chains = [
            model.rows(block, local[c], state.globals_[c], plan.step(c, state.tick)) for c in range(plan.n_chains)
        ]
        rows = {name: np.stack([c[name] for c in chains]) if monte_carlo else chains[0][name] for name in table}
        tree.add(block.number, freeze(_scores(plan, block, rows, record)))
        for name, variable in table.items():
            if path is None:
                collected[name].append(rows[name])
            else:
                _write(path, variable, block.start, rows[name], monte_carlo)
    joined = {n: np.concatenate(v, axis=1 if monte_carlo else 0) for n, v in collected.items() if v}
    return Published(joined if path is None else None, tree.nodes(hand_over=True))


def _write(path: str, variable: Variable, start: int, values: Any, monte_carlo: bool) -> None:
    if not monte_carlo:
        write_rows(path, variable, start, values)
        return
    for chain, part in enumerate(values):
        write_rows(path, variable, start, part, chain=chain)


def _scores(plan: Plan, block: Block, rows: Mapping[str, Any], record: Mapping[str, Any]) -> Any:
    """Return the sums of the held-out scores of one block, per view; None without held-out entries."""
    source, sums = plan.source, {}
    if source.holdout is None:
        return None
    for view in plan.model.meta.views:
        where, features = block.hidden[view.name]
        truth = source.dataset.hidden_values(block.number, view.name, source.holdout)
        mean, sd = plan.model.predict(rows, record, view.name)
        at = (where, features)
        sums[view.name] = entry_scores(view.likelihood, truth, mean[at], sd[at], features, view.n_features)
    return sums
