"""`Stored`: what a posterior is, in memory or in a store that is read as it is used.

Analyses, prediction and summaries take it; it knows none of them. `factorflow.Posterior` joins them to it.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from factorflow.arguments import checked_methods
from factorflow.errors import InputError
from factorflow.models import configure
from factorflow.models.contract import AVERAGES, Model, ModelConfig
from factorflow.posterior.align import Alignment, Symmetry, align_draws, find_alignment
from factorflow.posterior.lazy import numbered_names
from factorflow.posterior.opening import load_variable
from factorflow.posterior.record import RunRecord, decode
from factorflow.posterior.schema import NAMED, meta_of
from factorflow.shape import Meta

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from factorflow.data import Dataset
    from factorflow.data.aligned import Aligned

__all__ = ["Stored"]


@checked_methods
class Stored:
    """The arrays and labels of the posterior of one run, and the record of that run.

    Parameters
    ----------
    tree : xarray.DataTree
        Its groups (``docs/posterior.md``).
    path : str, optional
        The store it was opened from.
    """

    def __init__(self, tree: xr.DataTree, path: str | None = None) -> None:
        self.tree = tree
        self.path = path
        self._alignment: Alignment | None = None
        self._aligned: dict[str, xr.DataArray] = {}
        self._means: dict[str, xr.DataArray] = {}
        self._dataset: Dataset | None = None
        self._seen: Aligned | None = None

    # The run

    @cached_property
    def run(self) -> dict[str, Any]:
        """The run record by name: configuration, seed, fingerprint and path of the dataset, status, ..."""
        return decode({str(key): value for key, value in self.tree.attrs.items()})

    @property
    def record(self) -> RunRecord:
        """The run record, typed.

        Raises
        ------
        InputError
            When the attributes are damaged.
        """
        return RunRecord.of_attributes(self.run)

    @property
    def kind(self) -> str:
        """Either "variational" or "monte carlo"."""
        return str(self.run["inference_method"])

    @cached_property
    def meta(self) -> Meta:
        """The shape of the dataset as the model saw it."""
        return meta_of(self.run)

    @cached_property
    def config(self) -> ModelConfig:
        """The configuration of the model."""
        return configure(self.run["config"])

    @cached_property
    def model(self) -> Model[Any, Any]:
        """The model, rebuilt from configuration and meta."""
        return self.config.build_fitted(self.meta)

    @property
    def trace(self) -> xr.Dataset:
        """Objective, seconds and stage of every iteration (with ``chain`` for a sampler)."""
        name = "optimization" if self.kind == "variational" else "iterations"
        return self.tree[name].to_dataset().load()

    @property
    def dataset(self) -> Dataset:
        """The dataset that the model was fitted to, where it was; of a projection, that of the new samples.

        It may be set where it has moved: by a dataset, or its path.

        Raises
        ------
        InputError
            When it is no longer there, has changed, or is another one.
        """
        if self._dataset is None:
            self._dataset = self._where_it_was()
        return self._dataset

    @dataset.setter
    def dataset(self, dataset: Dataset) -> None:
        from factorflow.data import open_dataset

        given = open_dataset(dataset) if isinstance(dataset, str | os.PathLike) else dataset
        self._dataset, self._seen = self._that_was_fitted(given), None

    def _where_it_was(self) -> Dataset:
        from factorflow.data import open_dataset

        try:
            dataset = open_dataset(self.run["dataset"])
        except InputError as error:
            remedy = "Say where it is now: assign `posterior.dataset`, or add --dataset to a command."
            raise InputError("dataset", self.run["dataset"], "the dataset of the fit", remedy) from error
        return self._that_was_fitted(dataset)

    def move_to(self, dataset: Dataset) -> None:
        """Take the dataset of the fit from where it is now.

        Raises
        ------
        InputError
            When it is another one.
        """
        self.dataset = dataset

    @property
    def data(self) -> Dataset | Aligned:
        """The dataset as the model sees it: views and features are those of the fit, in its order.

        New samples may have fewer of them, others, or another order: they are matched by name, and what is
        not there is missing. Whatever holds values against the model reads them here.
        """
        from factorflow.data.aligned import Aligned

        if self.run["status"] != "projected":
            return self.dataset
        if self._seen is None:
            features = {view: self.features(view) for view in self.views}
            self._seen = Aligned(self.dataset, self.meta, features)
        return self._seen

    def _that_was_fitted(self, dataset: Dataset) -> Dataset:
        """Return a dataset that is the one of the fit."""
        if dataset.fingerprint != self.run["fingerprint"]:
            raise InputError(
                "dataset",
                str(dataset.path),
                f"the dataset of the fit, with the fingerprint {self.run['fingerprint']}",
                "It is another one, or has changed since: fit again, or give the one that was fitted.",
            )
        return dataset

    # What was found

    @property
    def views(self) -> tuple[str, ...]:
        """Names of the views, in order."""
        return tuple(view.name for view in self.meta.views)

    @property
    def loaded_views(self) -> tuple[str, ...]:
        """Names of the views whose features have loadings, in order."""
        return tuple(view for view in self.views if self.has(f"loadings_{view}"))

    @property
    def factors(self) -> list[str]:
        """Labels of the factors."""
        group = self.tree[self.main_group]
        return [str(label) for label in group.coords["factor"].values] if "factor" in group.coords else []

    @cached_property
    def obs_names(self) -> Any:
        """Names of the samples, (N,)."""
        return np.asarray(self.coordinate("obs").values, dtype=object)

    def features(self, view: str) -> Any:
        """Return the names of the features of a view, (D,)."""
        return np.asarray(self.coordinate(f"feature_{self.check_view(view)}").values, dtype=object)

    def own_features(self, view: str) -> Any:
        """Return the names of the features of a view, (D,), where the posterior has them; else None."""
        found = self._own_coordinate(f"feature_{self.check_view(view)}")
        return None if found is None else np.asarray(found.values, dtype=object)

    def _own_coordinate(self, dim: str) -> xr.Variable | None:
        for node in (self.tree[self.main_group], *self.tree.children.values()):
            if dim in node.coords:
                return node.coords[dim].variable
        return None

    def coordinate(self, dim: str) -> xr.Variable:
        """Return the labels of a dimension from the group that has them, else from the dataset."""
        import xarray as xr

        if (found := self._own_coordinate(dim)) is not None:
            return found
        if dim == "obs" and self.is_numbered:
            return xr.Variable(dim, numbered_names(self.meta.n_rows))
        dataset = self.dataset
        names = dataset.obs_names if dim == "obs" else dataset.features(dim.removeprefix("feature_"))
        return xr.Variable(dim, names.astype(object))

    def variable(self, name: str) -> xr.DataArray:
        """Return a variable of the model in memory; of a sampler, its mean over aligned draws.

        Raises
        ------
        InputError
            When the model has no such variable, or a chunk of it is damaged.
        """
        if self.kind == "variational":
            return self._stored(name)
        if name in self._means:
            return self._means[name]
        drawn = self.draws(name)
        mean = drawn.mean([dim for dim in ("chain", "draw") if dim in drawn.dims], keep_attrs=True)
        if "obs" not in mean.dims:
            self._means[name] = mean
        return mean

    @property
    def n_draws(self) -> int | None:
        """Draws of each chain: 0 of a sampler that was stopped in its burn-in; None without a sampler."""
        return self.tree[self.main_group].sizes["draw"] if self.kind == "monte carlo" else None

    def draws(self, name: str) -> xr.DataArray:
        """Return the draws of a variable, (chain, draw, ...), factors aligned between draws and chains.

        Of a variational posterior only where they were drawn on request (`sample`).

        Raises
        ------
        InputError
            Where there are no draws of the variable.
        """
        if self.kind == "variational":
            drawn = self.tree["posterior"] if "posterior" in self.tree.children else None
            if drawn is None or name not in drawn.data_vars:
                self._stored(name)  # refuses what is no variable at all
                expected = "a sampler's, or draws on request: a variational posterior is means and variances"
                remedy = f"Ask posterior.sample(100).draws({name!r}), or variable({name!r}) for the mean."
                raise InputError("draws", name, expected, remedy)
            found: xr.DataArray = load_variable(drawn[name], f"posterior/{name}", self.path)
            return found
        stored = self._stored(name)
        symmetry = getattr(self.model, "symmetry", None) if self.kind == "monte carlo" else None
        if symmetry is None or "chain" not in stored.dims:
            return stored
        if "obs" in stored.dims:
            return self._align((name,), symmetry)[name]
        if not self._aligned:
            group = self.tree[self.main_group]
            globals_ = [
                str(n) for n, v in group.data_vars.items() if "chain" in v.dims and "obs" not in v.dims
            ]
            self._aligned = self._align(globals_, symmetry)
        return self._aligned[name]

    def scores(self) -> xr.DataArray:
        """Return the factor scores of the samples, (obs, factor).

        Raises
        ------
        InputError
            When the samples of the family have none.
        """
        if not self.has("scores"):
            known = self.run["config"].get("model")
            remedy = "Ask for loadings(view) or variable(name)."
            raise InputError("model", known, "a family whose samples have scores", remedy)
        return self.variable("scores")

    def inputs(self) -> xr.DataArray:
        """Return the inputs X of the process that couples the samples, (obs, input).

        Of models with such a process; ``variable("inputs_variance")`` says how certain they are.
        """
        if not self.has("inputs"):
            known = self.run["config"].get("model")
            expected = "a model whose samples a process couples"
            raise InputError("model", known, expected, "Ask for scores().")
        return self.variable("inputs")

    def loadings(self, view: str) -> xr.DataArray:
        """Return the loadings of a view, (feature, factor)."""
        return self.variable(f"loadings_{self.check_view(view)}")

    def inclusion(self, view: str) -> xr.DataArray:
        """Return the probability that a loading differs from zero, (feature, factor)."""
        return self.variable(f"inclusion_{self.check_view(view)}")

    def intercept(self, view: str) -> xr.DataArray:
        """Return the intercepts of the features of a view, (feature,)."""
        return self.variable(f"intercept_{self.check_view(view)}")

    def factor(self, label: str | SupportsIndex) -> str:
        """Return the label of a factor given by label or by number from 1, an integer of any type."""
        labels = self.factors
        try:
            number = 0 if isinstance(label, str | bool) else operator.index(label)
        except TypeError:
            number = 0
        name = labels[number - 1] if 0 < number <= len(labels) else str(label)
        if name not in labels:
            raise InputError("factor", label, f"one of {', '.join(labels)}", "Factors are numbered from 1.")
        return name

    @property
    def was_scored(self) -> bool:
        """Whether entries were held out."""
        return "holdout" in self.tree.children

    def holdout_scores(self) -> pd.DataFrame:
        """Return the scores of the held-out entries by view, and what the shown means would have scored.

        Raises
        ------
        InputError
            When nothing was held out.
        """
        self._check_scored()
        return self.tree["holdout"].to_dataset().to_dataframe()

    def holdout_entries(self, view: str) -> pd.DataFrame:
        """Return the entries of a view that were held out of the fit: ``obs``, ``feature``, ``value``.

        Read from the dataset of the fit, in the order of its rows.

        Raises
        ------
        InputError
            When nothing was held out, or the dataset is not there any more.
        """
        import pandas as pd

        from factorflow.data import Holdout

        self._check_scored()
        view, dataset = self.check_explained(view), self.dataset
        holdout = Holdout.of(self.run, dataset.design)
        features, parts = np.asarray(self.features(view), dtype=object), []
        for number in range(dataset.n_blocks):
            block, truth = dataset.read(number, [view], holdout)
            rows, columns = block.hidden[view]
            names = np.asarray(self.obs_names[block.start : block.start + block.n_rows], dtype=object)[rows]
            parts.append(pd.DataFrame({"obs": names, "feature": features[columns], "value": truth[view]}))
        return pd.concat(parts, ignore_index=True)

    def _check_scored(self) -> None:
        if not self.was_scored:
            raise InputError(
                "holdout",
                self.run.get("holdout", 0.0),
                "a run with held-out entries",
                "Fit with {holdout}.",
                holdout=0.1,
            )

    # Inner parts

    @property
    def is_numbered(self) -> bool:
        """Whether the samples have no names but numbers: ``sample0``, ``sample1``, ..."""
        return not self.run.get(NAMED, True)

    @property
    def main_group(self) -> str:
        """Group of the tree that holds the model's variables."""
        return "variational" if self.kind == "variational" else "posterior"

    def has(self, name: str) -> bool:
        """Whether the model has a variable of this name."""
        return any(name in self.tree[group].data_vars for group in self._groups)

    def array(self, name: str) -> xr.DataArray:
        """Return a variable of the model as it is stored, unread: of a sampler with its chains, unaligned.

        Raises
        ------
        InputError
            When the model has no such variable.
        """
        found: Any = self.tree[self._group_of(name)]
        array: xr.DataArray = found[name]
        return array

    @property
    def _groups(self) -> tuple[str, ...]:
        """Groups of the tree with variables of the model: what has draws, or is exact, first."""
        return tuple(group for group in (self.main_group, AVERAGES) if group in self.tree.children)

    def _group_of(self, name: str) -> str:
        """Return the group of a variable of the model, or of another group of the tree."""
        for group in dict.fromkeys((*self._groups, *map(str, self.tree.children))):
            if name in self.tree[group].data_vars:
                return group
        known = [str(v) for group in self._groups for v in self.tree[group].data_vars]
        raise InputError("variable", name, f"one of {', '.join(known)}", "This model has no such variable.")

    def check_drawn(self) -> None:
        """Refuse to go on without draws: a sampler that was stopped in its burn-in has none."""
        if self.n_draws == 0:
            remedy = "Run it with more iterations ({max_iter}), with {overwrite}."
            if self.run.get("status") == "partial":
                remedy = "Go on with it (`factorflow resume`)."
            expected = "at least one: the run was stopped in its burn-in"
            raise InputError("draws", 0, expected, remedy, max_iter=..., overwrite=True)

    def check_view(self, view: str) -> str:
        """Return the name of a view, refusing one that the model has not."""
        if view not in self.views:
            raise InputError(
                "view", view, f"one of {', '.join(self.views)}", "These are the views of the model."
            )
        return view

    def check_explained(self, view: str) -> str:
        """Return the name of a view, refusing one that the model is given instead of explaining it."""
        explained = [known.name for known in self.meta.value_views]
        if self.check_view(view) not in explained:
            raise InputError(
                "view", view, f"one of {', '.join(explained)}", "It is an input: given, not predicted."
            )
        return view

    def _stored(self, name: str) -> xr.DataArray:
        array, group = self.array(name), self._group_of(name)
        self.check_drawn()
        found: xr.DataArray = load_variable(array, f"{group}/{name}", self.path)
        return found

    def _align(self, names: Sequence[str], symmetry: Symmetry) -> dict[str, xr.DataArray]:
        """Return the draws of some variables of a sampler, the factors of all draws and chains aligned."""
        stored = {name: self._stored(name) for name in names}
        loadings = {name: self._stored(name) for name in (f"loadings_{view}" for view in self.views)}
        if self._alignment is None:
            stacked = np.concatenate([array.values for array in loadings.values()], axis=2)
            self._alignment = find_alignment(stacked, symmetry)
        needed = stored | loadings if symmetry == "flip" else stored  # what turns over moves intercepts
        dims = {name: tuple(str(dim) for dim in array.dims) for name, array in needed.items()}
        given = {name: array.values for name, array in needed.items()}
        values = align_draws(given, dims, symmetry, self._alignment)
        return {name: stored[name].copy(data=values[name]) for name in names}
