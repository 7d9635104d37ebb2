"""`Posterior`: everything a fit found, labelled, in memory or in a store that is read as it is used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.errors import InputError
from factorflow.models import configure
from factorflow.models.contract import Model, ModelConfig
from factorflow.posterior.labels import coordinate, rows_of, sample_metadata
from factorflow.posterior.opening import load_variable, open_tree
from factorflow.posterior.schema import decode, meta_of
from factorflow.shape import Meta

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from factorflow.data import Dataset

__all__ = ["Posterior", "open_posterior"]


def open_posterior(path: str | os.PathLike[str]) -> Posterior:
    """Open the posterior at ``path``; values are read when they are used.

    Parameters
    ----------
    path : path-like
        What ``factorflow.fit(..., out=path)`` wrote.

    Returns
    -------
    Posterior

    Raises
    ------
    InputError
        When there is no posterior, one of another schema version, or one that lacks a chunk.
    """
    where = os.path.abspath(os.fspath(path))
    return Posterior(open_tree(where), where)


class Posterior:
    """The posterior of one run.

    Parameters
    ----------
    tree : xarray.DataTree
        Its groups (``docs/posterior.md``).
    path : str, optional
        The store it was opened from.

    Notes
    -----
    Arrays come labelled, with samples and features in the dataset's order. Of a sampler, `scores`,
    `loadings`, `inclusion` and `intercept` are means over aligned draws of all chains; the draws are in
    ``tree["posterior"]``.
    """

    def __init__(self, tree: xr.DataTree, path: str | None = None) -> None:
        self.tree = tree
        self.path = path
        self._shares_of: dict[bool, xr.Dataset] = {}
        self._aligned: dict[str, xr.DataArray] = {}

    # The run

    @cached_property
    def run(self) -> dict[str, Any]:
        """The run record: configuration, seed, versions, fingerprint and path of the dataset, status."""
        return decode({str(key): value for key, value in self.tree.attrs.items()})

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
        return self.config.build(self.meta)

    @property
    def trace(self) -> xr.Dataset:
        """Objective, seconds and stage of every iteration (with ``chain`` for a sampler)."""
        name = "optimization" if self.kind == "variational" else "iterations"
        return self.tree[name].to_dataset().load()

    @cached_property
    def dataset(self) -> Dataset:
        """The dataset that the model was fitted to, where it was.

        Raises
        ------
        InputError
            When it is no longer there, or has changed.
        """
        from factorflow.data import open_dataset

        dataset = open_dataset(self.run["dataset"])
        if dataset.fingerprint != self.run["fingerprint"]:
            raise InputError(
                "dataset",
                self.run["dataset"],
                f"the fingerprint {self.run['fingerprint']}",
                "It has changed since the run: fit again, or set posterior.dataset to that of the run.",
            )
        return dataset

    # What was found

    @property
    def views(self) -> tuple[str, ...]:
        """Names of the views, in order."""
        return tuple(view.name for view in self.meta.views)

    @property
    def factors(self) -> list[str]:
        """Labels of the factors."""
        group = self.tree[self.main_group]
        return [str(label) for label in group.coords["factor"].values] if "factor" in group.coords else []

    @cached_property
    def obs_names(self) -> Any:
        """Names of the samples, (N,)."""
        return np.asarray(coordinate(self, "obs").values, dtype=object)

    def features(self, view: str) -> Any:
        """Return the names of the features of a view, (D,)."""
        return np.asarray(coordinate(self, f"feature_{self._check_view(view)}").values, dtype=object)

    def sample_metadata(self) -> pd.DataFrame:
        """Return what the dataset said of its samples (groups included), by sample name."""
        return sample_metadata(self)

    def variable(self, name: str) -> xr.DataArray:
        """Return a variable of the model in memory; of a sampler, its mean over aligned draws.

        Raises
        ------
        InputError
            When the model has no such variable, or a chunk of it is damaged.
        """
        if self.kind == "variational":
            return self._stored(name)
        drawn = self.draws(name)
        return drawn.mean([dim for dim in ("chain", "draw") if dim in drawn.dims], keep_attrs=True)

    @property
    def n_draws(self) -> int | None:
        """Draws of each chain: 0 of a sampler that was stopped in its burn-in; None without a sampler."""
        return self.tree[self.main_group].sizes["draw"] if self.kind == "monte carlo" else None

    def draws(self, name: str) -> xr.DataArray:
        """Return the draws of a variable, (chain, draw, ...), factors aligned between draws and chains.

        Of a variational posterior only after `sample`.
        """
        stored = self._stored(name)
        symmetry = getattr(self.model, "symmetry", None) if self.kind == "monte carlo" else None
        if symmetry is None or "chain" not in stored.dims:
            return stored
        from factorflow.posterior.draws import aligned

        if "obs" in stored.dims:
            return aligned(self, symmetry, (name,))[name]
        if not self._aligned:
            group = self.tree[self.main_group]
            globals_ = [
                str(n) for n, v in group.data_vars.items() if "chain" in v.dims and "obs" not in v.dims
            ]
            self._aligned = aligned(self, symmetry, globals_)
        return self._aligned[name]

    def scores(self) -> xr.DataArray:
        """Return the factor scores of the samples, (obs, factor)."""
        return self.variable("scores")

    def loadings(self, view: str) -> xr.DataArray:
        """Return the loadings of a view, (feature, factor)."""
        return self.variable(f"loadings_{self._check_view(view)}")

    def inclusion(self, view: str) -> xr.DataArray:
        """Return the probability that a loading differs from zero, (feature, factor)."""
        return self.variable(f"inclusion_{self._check_view(view)}")

    def intercept(self, view: str) -> xr.DataArray:
        """Return the intercepts of the features of a view, (feature,)."""
        return self.variable(f"intercept_{self._check_view(view)}")

    def top_features(self, view: str, factor: str | int, n: int = 10) -> pd.DataFrame:
        """Return the features with the largest loadings of a factor.

        Parameters
        ----------
        view : str
            Name of the view.
        factor : str or int
            Label, or number from 1.
        n : int
            Features at most.

        Returns
        -------
        DataFrame
            By feature: ``loading`` and, where the model has them, ``sd`` and ``inclusion``.
        """
        from factorflow.posterior.summary import top_features

        return top_features(self, view, self.factor(factor), n)

    def factor(self, label: str | int) -> str:
        """Return the label of a factor given by label or by number from 1."""
        labels = self.factors
        name = f"Factor{label}" if isinstance(label, int) else label
        if name not in labels:
            raise InputError("factor", label, f"one of {', '.join(labels)}", "Factors are numbered from 1.")
        return name

    def variance_explained(self, *, by_group: bool = False) -> xr.DataArray:
        """Return the share of the variance of each view that each factor explains, (view, factor).

        Parameters
        ----------
        by_group : bool
            In every sample group: (group, view, factor). What the run did not record is computed in one pass
            over the dataset.
        """
        return self._shares(by_group)["variance_explained"]

    def variance_explained_total(self, *, by_group: bool = False) -> xr.DataArray:
        """Return the share of the variance of each view that all factors explain, ([group,] view)."""
        return self._shares(by_group)["variance_explained_total"]

    def _shares(self, by_group: bool) -> xr.Dataset:
        from factorflow.posterior.variance import variance_explained

        if by_group not in self._shares_of:
            self._shares_of[by_group] = variance_explained(self, by_group=by_group)
        return self._shares_of[by_group]

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
        if not self.was_scored:
            raise InputError(
                "holdout",
                self.run.get("holdout", 0.0),
                "a run with held-out entries",
                "Fit with holdout=0.1.",
            )
        return self.tree["holdout"].to_dataset().to_dataframe()

    # Prediction

    def predict(
        self,
        view: str,
        start: int | None = None,
        stop: int | None = None,
        obs: Sequence[str] | None = None,
    ) -> xr.Dataset:
        """Return predictions of a view on the data scale, computed for the rows that are looked at.

        Parameters
        ----------
        view : str
            Name of the view.
        start, stop : int, optional
            Rows; all when left out.
        obs : sequence of str, optional
            Names of samples, instead of rows.

        Returns
        -------
        Dataset
            ``mean`` and ``sd`` of a new observation, (obs, feature). Nothing is computed until values are
            asked for, and then only for the rows selected: ``predict("rna").isel(obs=slice(0, 100))``.
        """
        from factorflow.posterior.prediction import predict

        self._check_drawn()
        return predict(self, self._check_view(view), rows_of(self, start, stop, obs))

    def impute(self, view: str, start: int | None = None, stop: int | None = None) -> xr.Dataset:
        """Return a view with its missing entries predicted, lazily: ``mean``, ``sd`` and ``observed``.

        ``mean`` is the value itself where there is one, ``sd`` 0 there. Entries that were held out of the fit
        count as observed: the dataset has them.
        """
        from factorflow.posterior.prediction import impute

        self._check_drawn()
        return impute(self, self._check_view(view), rows_of(self, start, stop, None))

    def project(self, dataset: Dataset | str | os.PathLike[str], **options: Any) -> Posterior:
        """Return the posterior of new samples under this model, its globals fixed (`factorflow.project`)."""
        from factorflow.run import project

        return project(self, dataset, **options)

    def sample(self, n_draws: int = 100, seed: int = 0) -> Posterior:
        """Return this posterior with a group ``posterior`` of draws from a variational distribution."""
        from factorflow.posterior.draws import with_draws

        return with_draws(self, n_draws, seed)

    def diagnostics(self) -> pd.DataFrame:
        """Return R-hat and bulk and tail effective sample sizes of a sampler's variables (arviz-stats)."""
        from factorflow.posterior.diagnostics import diagnostics

        return diagnostics(self)

    # Faces

    def summary(self) -> dict[str, Any]:
        """Return the main results as plain values: run, factors, variance explained, held-out scores."""
        from factorflow.posterior.summary import summary

        return summary(self)

    def load(self) -> Posterior:
        """Read everything into memory; the store is not needed afterwards."""
        for node in self.tree.subtree:
            for name in node.to_dataset(inherit=False).variables:
                load_variable(node[str(name)], f"{node.path.strip('/')}/{name}", self.path)
        self.path = None
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to a path where nothing is yet."""
        from factorflow.posterior.store import save

        if os.path.exists(path):
            raise InputError("path", str(path), "a path where nothing is yet", "Choose another one.")
        save(self.tree, path)

    def __repr__(self) -> str:
        from factorflow.posterior.summary import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from factorflow.posterior.summary import as_html

        return as_html(self)

    # Inner parts

    @property
    def main_group(self) -> str:
        """Group of the tree that holds the model's variables."""
        return "variational" if self.kind == "variational" else "posterior"

    def has(self, name: str) -> bool:
        """Whether the model has a variable of this name."""
        return name in self.tree[self.main_group].data_vars

    def _stored(self, name: str) -> xr.DataArray:
        for node in (self.tree[self.main_group], *self.tree.children.values()):
            if name in node.data_vars:
                self._check_drawn()
                found: xr.DataArray = load_variable(node[name], f"{node.name}/{name}", self.path)
                return found
        known = [str(v) for v in self.tree[self.main_group].data_vars]
        raise InputError("variable", name, f"one of {', '.join(known)}", "This model has no such variable.")

    def _check_drawn(self) -> None:
        if self.n_draws == 0:
            remedy = "Go on with it (`factorflow resume`), or run it with more iterations."
            raise InputError("draws", 0, "at least one: the run was stopped in its burn-in", remedy)

    def _check_view(self, view: str) -> str:
        if view not in self.views:
            raise InputError(
                "view", view, f"one of {', '.join(self.views)}", "These are the views of the model."
            )
        return view
