"""Scores of new samples under a fitted model: its globals fixed, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from factorflow.data import Dataset
from factorflow.errors import InputError
from factorflow.kernels.random import Step
from factorflow.models.contract import Model
from factorflow.shape import Block, Meta
from factorflow.trees import arrays, freeze

__all__ = ["Aligned", "project_rows"]


@dataclass(frozen=True)
class Aligned:
    """The blocks of a dataset with the views and features a model was fitted to.

    Views and features that the new samples lack are missing; those the model does not know are left out.

    Parameters
    ----------
    dataset : Dataset
        New samples.
    fitted : Meta
        What the model was fitted to.
    features : mapping of str to (D,) array of str
        Names of its features.
    """

    dataset: Dataset
    fitted: Meta
    features: Mapping[str, Any]

    @property
    def meta(self) -> Meta:
        """The shape of the new samples as the model is to see them."""
        shared = [v.name for v in self.fitted.views if v.name in self.dataset.views]
        if not shared:
            raise InputError(
                "dataset",
                ", ".join(self.dataset.views),
                f"at least one of the fitted views {', '.join(v.name for v in self.fitted.views)}",
                "Name the views as in the dataset that the model was fitted to.",
            )
        new = self.dataset.meta(shared)
        views = []
        for view in self.fitted.views:
            complete = view.name in shared and np.array_equal(
                self.dataset.features(view.name), self.features[view.name]
            )
            kind = self.dataset.views[view.name].missing if complete else "scattered"
            if view.name in shared and self.dataset.views[view.name].likelihood != view.likelihood:
                raise InputError(
                    f"likelihood of view {view.name}",
                    self.dataset.views[view.name].likelihood,
                    f"{view.likelihood}, as in the fitted model",
                    "Write the new samples with the same likelihood.",
                )
            views.append(replace(view, missing=kind))
        groups, sizes = self.fitted.groups, self.fitted.group_sizes  # a new sample may be alone in its group
        return replace(new, views=tuple(views), groups=groups, group_sizes=sizes)

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks, columns in the order of the fitted features; groups numbered as when fitted."""
        shared = [v.name for v in self.fitted.views if v.name in self.dataset.views]
        where = {view: _positions(self.features[view], self.dataset.features(view)) for view in shared}
        fitted = {name: code for code, name in enumerate(self.fitted.groups)}
        groups = np.array([fitted.get(name, -1) for name in self.dataset.groups], np.int32)
        for number in range(self.dataset.n_blocks):
            block = self.dataset.block(number, shared)
            columns = dict(block.columns)
            if "group" in columns:
                columns["group"] = groups[columns["group"]]
            data = {}
            for view in self.fitted.views:
                values = view.kind.blank(block.n_rows, view.n_features)
                if view.name in where:
                    ours, theirs = where[view.name]
                    if (
                        view.kind.coded
                    ):  # levels are matched by name; one that the model does not know is missing
                        values = _recoded(block.data[view.name], ours, theirs)
                    else:
                        values[:, ours] = block.data[view.name][:, theirs]
                data[view.name] = values
            yield replace(block, data=freeze(data), columns=freeze(columns))


def project_rows(
    model: Model[Any], records: Sequence[Mapping[str, Any]], aligned: Aligned, seed: int, iterations: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sample-sized variables of new samples.

    Parameters
    ----------
    model : Model
        Built for `Aligned.meta`.
    records : list of mapping
        Recorded globals: one for a variational model, one draw each for a sampler.
    aligned : Aligned
        The new samples.
    seed : int
        Of the noise of samplers.
    iterations : int
        Passes over a block at most, for local states that are found by iterating; of a sampler, for each
        draw of the globals.

    Returns
    -------
    rows : dict of str to (N, ...) array
        The variables that are written once; of a sampler their mean over the given draws of the globals.
    draws : dict of str to (S, N, ...) array
        Of a sampler that stores sample-sized draws: one for each record.
    """
    sweeps = [stage for stage in model.stages() if stage.counts][-1].sweeps
    globals_ = [freeze(model.restore(record)) for record in records]
    rows: list[dict[str, Any]] = []
    draws: list[dict[str, Any]] = []
    for block in aligned.blocks():
        local: Any = None
        sums: dict[str, Any] = {}
        drawn: dict[str, list[Any]] = {}
        for draw, fixed in enumerate(globals_):
            for i in range(iterations):
                before = local
                for sweep in sweeps:
                    local = freeze(sweep.map(block, local, fixed, Step(seed, 0, draw * iterations + i))[0])
                if local is None or _settled(before, local):
                    break
            found = model.rows(block, local, fixed, Step(seed, 0, draw))
            sums = {name: sums.get(name, 0.0) + np.asarray(values, float) for name, values in found.items()}
            if model.kind == "monte carlo":
                for name, values in model.draw(block, local, fixed).items():
                    drawn.setdefault(name, []).append(values)
        rows.append({name: value / len(globals_) for name, value in sums.items()})
        draws.append({name: np.stack(values) for name, values in drawn.items()})
    return (
        {name: np.concatenate([part[name] for part in rows]) for name in rows[0]},
        {name: np.concatenate([part[name] for part in draws], axis=1) for name in draws[0]},
    )


def _positions(fitted: Any, new: Any) -> tuple[Any, Any]:
    """Return, for the features both have, their positions among the fitted and among the new ones."""
    _, ours, theirs = np.intersect1d(fitted, new, return_indices=True)
    return ours, theirs


def _recoded(codes: Any, ours: Any, theirs: Any) -> Any:
    """Return codes of the fitted levels for codes of the new ones; -1 where there is none."""
    known = np.full(max(int(codes.max(initial=-1)), int(theirs.max(initial=-1))) + 2, -1, codes.dtype)
    known[theirs] = ours  # the last one is at -1
    return known[codes]


def _settled(before: Any, after: Any) -> bool:
    """Return whether an iteration changed no array of the local state by more than 1e-8 of its scale."""
    if before is None:
        return False
    pairs = zip(arrays(before), arrays(after), strict=True)
    return all(np.abs(a - b).max(initial=0.0) <= 1e-8 * (1.0 + np.abs(a).max(initial=0.0)) for a, b in pairs)
