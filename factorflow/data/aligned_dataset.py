"""New samples aligned with a fitted model: its views and features, in its order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from factorflow.core.block import AUX_DTYPES, Block, Meta, ViewMeta
from factorflow.core.design import TableDesign
from factorflow.core.trees import freeze
from factorflow.data.holdout import Holdout
from factorflow.data.ingest.sticks import levels_of_sticks
from factorflow.data.store.dataset import Dataset
from factorflow.errors import InputError
from factorflow.kernels.sparse_rows import SparseRows


@dataclass(frozen=True)
class AlignedDataset:
    """A dataset of new samples with the views and features a model was fitted to.

    Views and features that the new samples lack are missing; those the model does not know are left out.
    It stands where a run, and what is asked of its posterior, has its `Dataset`: whatever joins values of
    the samples with what the model knows of features does so by name.
    """

    dataset: Dataset
    fitted: Meta
    features: Mapping[str, Any]

    @cached_property
    def fingerprint(self) -> str:
        """Of the dataset, and of what is taken from it: blocks that are kept are those of one model."""
        names = {view: [str(name) for name in feature_names] for view, feature_names in self.features.items()}
        description = json.dumps([names, self.fitted.groups]).encode()
        return f"{self.dataset.fingerprint} for {hashlib.sha256(description).hexdigest()}"

    @property
    def path(self) -> Any:
        """Where the dataset is."""
        return self.dataset.path

    @property
    def n_rows(self) -> int:
        """Samples."""
        return self.dataset.n_rows

    @property
    def n_blocks(self) -> int:
        """Blocks of rows."""
        return self.dataset.n_blocks

    @property
    def block_rows(self) -> int:
        """Rows in every block but possibly the last."""
        return self.dataset.block_rows

    @property
    def design(self) -> TableDesign | None:
        """Roles of the views of a table by its formula; None for other data."""
        return self.dataset.design

    @cached_property
    def views(self) -> dict[str, ViewMeta]:
        """The views of the model: name to likelihood, width and kind of missing entries."""
        return {view.name: view for view in self.meta.views}

    def moments(self, view: str, *names: str) -> dict[str, Any]:
        """Return moments of the features of the model, as `Dataset.moments`; of absent ones NaN, or 0."""
        ours, theirs = self._where.get(view, ((), ()))
        moments = {}
        stored = self.dataset.moments(view, *names) if view in self._where else {}
        for name in stored or names:
            absent = 0 if name == "n_observed" else np.nan
            moments[name] = np.full(self.views[view].n_features, absent, dtype=np.asarray(absent).dtype)
            if name in stored:
                moments[name][ours] = stored[name][theirs]
        return moments

    @property
    def meta(self) -> Meta:
        """The shape of the new samples as the model is to see them.

        Raises
        ------
        InputError
            If there is no view in common, or one has another likelihood.
        """
        shared = self._shared_views
        self._check_features()
        new = self.dataset.meta(shared)
        views = []
        for view in self.fitted.views:
            complete = view.name in shared and np.array_equal(
                self.dataset.features(view.name), self.features[view.name]
            )
            kind = self.dataset.views[view.name].missing if complete else "scattered"
            if view.name in shared and self.dataset.views[view.name].likelihood != view.likelihood:
                option = "likelihoods" if view.kind.is_values else "inputs"
                raise InputError(
                    f"likelihood of view {view.name}",
                    self.dataset.views[view.name].likelihood,
                    f"{view.likelihood}, as in the fitted model",
                    f"Write the new samples with {{{option}}}.",
                    **{option: {view.name: view.likelihood}},
                )
            of_new = self.dataset.views[view.name].aux if view.name in shared else view.aux
            if of_new != view.aux and "trials" in (of_new, view.aux):
                difference = "numbers of trials" if of_new else "no numbers of trials"
                raise InputError(
                    f"view {view.name}",
                    difference,
                    "as in the fitted model",
                    "Write the new samples alike: trials.",
                )
            mine = self.dataset.views[view.name] if view.name in shared else replace(view, reading_bytes=0)
            sizes = {name: getattr(mine, name) for name in ("reading_bytes", "block_entries")}
            sizes["n_patterns"] = mine.n_patterns + (not complete)
            views.append(replace(view, missing=kind, **sizes))
        by_entries = self.fitted.sparse_views
        sparse = tuple(v.name for v in views if v.name in by_entries and (v.kind.by_size or v.block_entries))
        of_fit: dict[str, Any] = {  # a new sample may be alone in its group
            "groups": self.fitted.groups,
            "group_sizes": self.fitted.group_sizes,
            "chosen": self.fitted.chosen,
        }
        return replace(new, views=tuple(views), sparse_views=sparse, **of_fit)

    def read(
        self,
        number: int,
        views: Sequence[str] | None = None,
        holdout: Holdout | None = None,
        sparse: Collection[str] = (),
    ) -> tuple[Block, dict[str, Any]]:
        """Return a block, columns in the order of the fitted features; groups numbered as when fitted.

        As `Dataset.read`, but nothing is held out.
        """
        chosen = [view for view in self.fitted.views if views is None or view.name in views]
        views_there = [view.name for view in chosen if view.name in self._where]
        block, _ = self.dataset.read(number, views_there or self._shared_views[:1], sparse=sparse)
        columns = dict(block.columns)
        if "group" in columns:
            columns["group"] = self._groups[columns["group"]]
        data: dict[str, Any] = {}
        for view in chosen:
            if view.name in self._where:
                ours, theirs = self._where[view.name]
                values = block.data[view.name]
                if isinstance(values, SparseRows):
                    data[view.name] = values.reindex(ours, theirs, view.n_features)
                else:
                    data[view.name] = view.kind.reindex(values, ours, theirs, view.n_features)
            else:
                blank = SparseRows.blank if view.name in sparse else view.kind.blank
                data[view.name] = blank(block.n_rows, view.n_features)
            if view.aux:
                aux = np.zeros((block.n_rows, view.n_features), AUX_DTYPES[view.aux])
                if view.aux_key in block.data:  # else nothing of the new samples is beyond a limit
                    ours, theirs = self._where[view.name]
                    aux[:, ours] = block.data[view.aux_key][:, theirs]
                data[view.aux_key] = aux
        return replace(block, data=freeze(data), columns=freeze(columns)), {}

    def block(self, number: int, views: Sequence[str] | None = None, holdout: Holdout | None = None) -> Block:
        """Return a block: `read` without the truth."""
        return self.read(number, views, holdout)[0]

    @cached_property
    def _shared_views(self) -> list[str]:
        shared = [v.name for v in self.fitted.views if v.name in self.dataset.views]
        if not shared:
            names = [view.name for view in self.fitted.views]
            raise InputError(
                "dataset",
                ", ".join(self.dataset.views),
                f"at least one of the fitted views {', '.join(names)}",
                f"Name the views as in the dataset that the model was fitted to: {{{names[0]!r}: ...}}, or "
                f"`factorflow ingest {names[0]}=...` before.",
            )
        return shared

    @cached_property
    def _where(self) -> dict[str, tuple[Any, Any]]:
        """Of each view there is, the positions of the features both have: fitted, and new."""
        positions = {}
        for view in self._shared_views:
            _, ours, theirs = np.intersect1d(
                self.features[view], self.dataset.features(view), return_indices=True
            )
            positions[view] = ours, theirs
        return positions

    def _check_features(self) -> None:
        """Refuse samples without any feature of the model: they have the prior's scores."""
        if any(len(ours) for ours, _ in self._where.values()):
            self._check_levels()
            return
        view = next(iter(self._where))
        raise InputError(
            "dataset",
            f"features of view {view} such as {self.dataset.features(view)[0]}",
            f"names as in the fitted model, such as {self.features[view][0]}",
            "Name the features as in the dataset that the model was fitted to.",
        )

    def _check_levels(self) -> None:
        """Refuse categorical responses whose sticks are, or may be, those of levels in another order."""
        for view in self._shared_views:
            fitted = levels_of_sticks(view, self.features[view])
            mine = levels_of_sticks(view, self.dataset.features(view))
            if fitted is None or mine is None:
                continue
            shared = [level for level in mine if level in fitted]
            if shared == [level for level in fitted if level in mine] and fitted[0] in mine:
                continue
            remedy = (
                "Write the new samples with {features}: all levels in the order of the fit, its first one, "
                "which no feature is called after, in front."
            )
            raise InputError(
                f"levels of view {view} after the first",
                ", ".join(mine),
                f"{', '.join(fitted)}, as in the fitted model",
                remedy,
                features={view: ["...", *fitted]},
            )

    @cached_property
    def _groups(self) -> Any:
        fitted = {name: code for code, name in enumerate(self.fitted.groups)}
        return np.array([fitted.get(name, -1) for name in self.dataset.groups], np.int32)
