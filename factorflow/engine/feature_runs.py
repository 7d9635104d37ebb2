"""Runs of features: the unit in which what is wide of the globals is updated, here or by feature tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from factorflow.core.threads import allow_threads, map_in_threads
from factorflow.core.trees import freeze, join, narrow, restrict
from factorflow.engine.plan import FEATURE_RUN
from factorflow.engine.tree import Tree
from factorflow.kernels.random import Step
from factorflow.models.contract import Sweep


@dataclass(frozen=True)
class Run:
    """A fixed run of the features of one axis: the unit in which they are updated."""

    axis: str
    number: int
    index: range


def cut_features(axes: Mapping[str, int]) -> list[Run]:
    """Return the fixed runs that the feature axes are cut into."""
    return [
        Run(axis, number, range(start, min(start + FEATURE_RUN, length)))
        for axis, length in axes.items()
        for number, start in enumerate(range(0, length, FEATURE_RUN))
    ]


def as_slice(run: Run) -> slice:
    """Return the run as an index."""
    return slice(run.index.start, run.index.stop)


def update_globals(
    sweep: Sweep[Any, Any, Any],
    before: Any,
    stats: Any,
    done: dict[Run, tuple[Any, Any]],
    step: Step,
    n_threads: int,
) -> tuple[Any, Mapping[str, float]]:
    """Return the new globals and the record; features are updated here unless given as ``done``."""
    carried = sweep.carry(before, stats, step)
    if not sweep.axes():
        return sweep.update(carried, stats, step)
    runs = cut_features(sweep.axes())

    def update(run: Run) -> tuple[Any, Any]:
        cut = restrict(stats, run.axis, as_slice(run))
        part: tuple[Any, Any] = freeze(sweep.features(run.axis, run.index, before, cut, step))
        return part

    with allow_threads(n_threads):
        if not done:
            done = dict(zip(runs, map_in_threads(update, runs), strict=True))
        parts, sums = _join_parts(runs, done)
        return sweep.assemble(carried, narrow(stats), parts, sums, step)


def _join_parts(
    runs: Sequence[Run], done: Mapping[Run, tuple[Any, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Join the parts along each axis, and sum their sums in a fixed tree."""
    parts: dict[str, Any] = {}
    sums: dict[str, Any] = {}
    for axis in dict.fromkeys(run.axis for run in runs):
        mine = [run for run in runs if run.axis == axis]
        parts[axis] = freeze(join([done[run][0] for run in mine]))
        tree = Tree()
        for run in mine:
            tree.add(run.number, done[run][1])
        sums[axis] = freeze(tree.total())
    return parts, sums
