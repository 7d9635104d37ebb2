"""What users call: `fit`, `resume`, `project` and `open_posterior`, and the `Posterior` that they return."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from factorflow import run
from factorflow.analysis.methods import Analysed
from factorflow.disk import local_path
from factorflow.engine.progress import watching
from factorflow.errors import InputError
from factorflow.files import fresh_directory, repair
from factorflow.posterior import (
    diagnostics,
    draws,
    findings,
    pointwise,
    prediction,
    sequences,
    store,
    summary,
    tables,
    variance,
)
from factorflow.posterior.labels import rows_of, sample_metadata
from factorflow.posterior.opening import load_tree, open_tree
from factorflow.posterior.schema import is_posterior, read_sealed
from factorflow.settings import ResumeOptions, RunOptions, parse_config

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import xarray as xr
    from distributed import Client

    from factorflow.data import Dataset
    from factorflow.engine.events import OnEvent
    from factorflow.models.contract import ModelConfig
    from factorflow.posterior.findings import Finding
    from factorflow.shape import HoldoutUnit

FINDINGS = logging.getLogger("factorflow.findings")
"""Where `fit` says what it found, as warnings."""

__all__ = ["Posterior", "fit", "open_posterior", "project", "resume"]


def fit(
    dataset: Dataset | str | os.PathLike[str],
    model: ModelConfig | Mapping[str, Any],
    *,
    seed: int = 0,
    executor: str | Client = "local",
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    resume: bool | Literal["auto"] = False,
    max_iter: int | None = None,
    max_minutes: float | None = None,
    holdout: float = 0.0,
    holdout_unit: HoldoutUnit = "entry",
    workers: int | None = None,
    memory_limit: str | int | None = None,
    checkpoint_every: int = 50,
    device: Literal["cpu", "cuda"] = "cpu",
    progress: bool | None = None,
    on_event: OnEvent | None = None,
) -> Posterior:
    """Fit a model to a dataset and return its posterior.

    The same dataset, settings and seed give the same bits with any executor and any number of workers,
    interrupted and resumed or not.

    Parameters
    ----------
    dataset : Dataset or path
        What `write_dataset` wrote.
    model : ModelConfig or mapping
        Such as ``models.SparseGFA(n_factors=15)``, or ``{"model": "sparse_gfa", "n_factors": 15}``.
    seed : int
        Key of all random numbers, held-out entries included.
    executor : {"local", "threads", "dask"}, address or distributed.Client
        This process; its threads; a Dask cluster of its own on this machine; a running one.
    out : path, optional
        Where the posterior goes; its checkpoints are in ``<out>.run`` meanwhile. Left out: kept in memory.
    overwrite : bool
        Replace what is at ``out``; the old one stays until the new one is complete.
    resume : bool or "auto"
        Go on from the checkpoint in ``<out>.run``. "auto": if there is one, else begin anew, and return
        ``out`` if it is already the complete result of this very run.
    max_iter, max_minutes : int, float, optional
        Iterations at most, over the stages that count; wall-clock minutes at most.
    holdout : float
        Share of the observed entries that are hidden from the model and scored at the end.
    holdout_unit : {"entry", "row", "sequence"}
        What is hidden together: single entries, all values of a row, or of the rows of a sequence. Inputs
        (categorical variables, covariates) stay visible.
    workers : int, optional
        Threads or worker processes that are started ("threads", "dask"); all cores when left out.
    memory_limit : str or int, optional
        Memory of each worker ("4GB"), of this process for "local" and "threads".
    checkpoint_every : int
        Iterations between two checkpoints.
    device : {"cpu", "cuda"}
        Where blocks are worked on (``config.devices``); a GPU agrees with a CPU to a tolerance only.
    progress : bool, optional
        Whether it is shown how far the run is: as a bar in a terminal or notebook, elsewhere the address of
        the dashboard and a line a minute (`logging`, logger ``factorflow``). By default unless ``on_event``
        is given.
    on_event : callable, optional
        Told of everything that happens (`factorflow.engine.events`).

    Returns
    -------
    Posterior
        In memory, or opened from ``out``.

    Raises
    ------
    InputError
        Before any work starts: data, model and settings do not fit together, or ``out`` exists.
    RunError
        If the run fails after it began; what was checkpointed stays.
    """
    options = {
        "seed": seed,
        "device": device,
        "holdout": holdout,
        "holdout_unit": holdout_unit,
        "max_iter": max_iter,
        "max_minutes": max_minutes,
        "checkpoint_every": checkpoint_every,
        "workers": workers,
        "memory_limit": memory_limit,
    }
    place, options["executor"] = _place(executor)
    with watching(progress, on_event) as watch:
        found = run.fit(
            dataset,
            model,
            parse_config(RunOptions, options),
            out=out,
            overwrite=overwrite,
            resume=resume,
            place=place,
            on_event=watch,
        )
    return _told(_face(found))


def resume(
    out: str | os.PathLike[str],
    *,
    executor: str | Client = "local",
    progress: bool | None = None,
    on_event: OnEvent | None = None,
    **options: Any,
) -> Posterior:
    """Go on with an interrupted run; dataset, model, seed and hold-out are those it began with.

    Parameters
    ----------
    out : path
        Where the run was to put its posterior. One that is complete is returned: a retry changes nothing.
    executor, progress, on_event
        As for `fit`.
    **options
        Of `fit`: workers, memory_limit, max_iter (left out: that of the run), max_minutes, checkpoint_every.

    Raises
    ------
    InputError
        If there is no interrupted run.
    """
    place, options["executor"] = _place(executor)
    with watching(progress, on_event) as watch:
        found = run.resume(out, parse_config(ResumeOptions, options), place=place, on_event=watch)
    return _told(_face(found))


def project(
    posterior: Posterior,
    dataset: Dataset | str | os.PathLike[str],
    *,
    iterations: int = 20,
    executor: str | Client = "local",
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    memory_limit: str | int | None = None,
    progress: bool | None = None,
    on_event: OnEvent | None = None,
) -> Posterior:
    """Return the posterior of new samples under a fitted model, its globals fixed.

    A run like that of `fit`: block by block, out of core, with the same bits on every executor.

    Parameters
    ----------
    posterior : Posterior
        A fitted model.
    dataset : Dataset or path
        New samples. Features are matched by name; views, features and entries may be missing.
    iterations : int
        Passes over the data at most, for models whose local state is found by iterating; of a sampler, for
        each of at most 100 draws of the fit, as many of each chain.
    executor, out, overwrite, workers, memory_limit, progress, on_event
        As for `fit`.

    Returns
    -------
    Posterior
        With the new samples as ``obs``; in memory, or opened from ``out``.

    Raises
    ------
    InputError
        When dataset and model do not fit together, or ``out`` exists.
    """
    if iterations < 1:
        raise InputError("iterations", iterations, "at least 1", "Leave it out for 20.")
    place, where = _place(executor)
    options = {"executor": where, "workers": workers, "memory_limit": memory_limit}
    with watching(progress, on_event) as watch:
        found = run.project(
            posterior,
            dataset,
            iterations,
            parse_config(ResumeOptions, options),
            out=out,
            overwrite=overwrite,
            place=place,
            on_event=watch,
        )
    return _face(found)


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
    repair(path)
    where = str(local_path(path, "posterior"))
    return Posterior(open_tree(where), where)


class Posterior(Analysed):
    """The posterior of one run, as `fit` returns it: what was found (`Stored`), and what can be asked of it.

    Arrays come labelled, with samples and features in the dataset's order. Of a sampler, `scores`,
    `loadings`, `inclusion` and `intercept` are means over aligned draws of all chains; the draws are in
    ``tree["posterior"]``. The groups of ``tree`` are described in ``docs/posterior.md``.
    """

    def __init__(self, tree: xr.DataTree, path: str | None = None) -> None:
        super().__init__(tree, path)
        self._shares_of: dict[bool, xr.Dataset] = {}

    # What was found

    def sample_metadata(self) -> pd.DataFrame:
        """Return what the dataset said of its samples (groups included), by sample name."""
        return sample_metadata(self)

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
        return summary.top_features(self, view, self.factor(factor), n)

    def components(self, n: int = 5) -> pd.DataFrame:
        """Return the components of a table's model, strongest first: weights, and top levels by variable.

        Parameters
        ----------
        n : int
            Levels named for each variable.

        Returns
        -------
        DataFrame
            By component: ``weight``, and for each variable its levels with the largest loadings.

        Raises
        ------
        InputError
            When the components of the family have no weights.
        """
        return summary.components(self, n)

    def identities(self) -> xr.DataArray:
        """Return the probability that each identity is present in each frame, (obs, identity).

        Raises
        ------
        InputError
            When the family has no identities.
        """
        return self.variable("present")

    def attributes(self) -> xr.Dataset:
        """Return ``mean`` and ``sd`` of the attributes of each frame, (obs, identity, attribute).

        Raises
        ------
        InputError
            When the family has no attributes.
        """
        return sequences.attributes(self)

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
        if by_group not in self._shares_of:
            self._shares_of[by_group] = variance.variance_explained(self, by_group=by_group)
        return self._shares_of[by_group]

    # Prediction

    def predict(
        self,
        view: Any,
        start: int | None = None,
        stop: int | None = None,
        obs: Sequence[str] | None = None,
        interval: float | None = None,
    ) -> xr.Dataset:
        """Return predictions of a view on the data scale, computed for the rows that are looked at.

        Parameters
        ----------
        view : str, or a table
            Name of the view. Of a model of a table also new rows of it (a frame, a path, a dataset), as
            `write_table` takes them; the response may be left out.
        start, stop : int, optional
            Rows; all when left out.
        obs : sequence of str, optional
            Names of samples, instead of rows.
        interval : float, optional
            Share of new observations that central intervals are to hold, such as 0.9; not of new rows of a
            table.

        Returns
        -------
        Dataset
            ``mean`` and ``sd`` of a new observation, (obs, feature); with an interval also ``lower`` and
            ``upper``: quantiles of Student's t where the degrees of freedom of the noise are known, else of a
            normal distribution; of counts and binary values their own. Nothing is computed until values are
            asked for, and then only for the rows selected: ``predict("rna").isel(obs=slice(0, 100))``. Of a
            table (obs,), in its order, and at once.
        """
        self.check_drawn()
        if self.meta.design is not None and not (isinstance(view, str) and view in self.views):
            return tables.predict_table(self, view)
        return prediction.predict(self, self.check_explained(view), rows_of(self, start, stop, obs), interval)

    def impute(self, view: str, start: int | None = None, stop: int | None = None) -> xr.Dataset:
        """Return a view with its missing entries predicted, lazily: ``mean``, ``sd`` and ``observed``.

        ``mean`` is the value itself where there is one, ``sd`` 0 there. Entries that were held out of the fit
        count as observed: the dataset has them.
        """
        self.check_drawn()
        return prediction.impute(self, self.check_explained(view), rows_of(self, start, stop, None))

    def one_step(
        self,
        start: int | None = None,
        stop: int | None = None,
        dataset: Dataset | str | os.PathLike[str] | None = None,
    ) -> xr.Dataset:
        """Return what is predicted of each frame from the frames of its sequence before it alone.

        Parameters
        ----------
        start, stop : int, optional
            Rows; all when left out. Their sequences are gone through from the beginning.
        dataset : Dataset or path, optional
            Other frames of the same views; those of the fit when left out. Entries that a fit held out are
            taken as observed.

        Returns
        -------
        Dataset
            By view ``mean_<view>`` and ``sd_<view>`` of a new observation, (obs, feature); ``present``
            (obs, identity); ``log_density`` (obs,), a lower bound of log p(y_t | y_1 ... y_t-1) in nats.

        Raises
        ------
        InputError
            When the family knows no sequences.
        """
        return sequences.one_step(self, start, stop, dataset)

    def project(self, dataset: Dataset | str | os.PathLike[str], **options: Any) -> Posterior:
        """Return the posterior of new samples under this model, its globals fixed (`factorflow.project`)."""
        return project(self, dataset, **options)

    def log_likelihood(
        self,
        dataset: Dataset | str | os.PathLike[str],
        *,
        n_draws: int = 500,
        n_repeats: int = 4,
        executor: str | Client = "local",
        workers: int | None = None,
    ) -> xr.Dataset:
        """Return log p(y) of samples under the fitted model, their latent variables integrated out.

        By importance sampling; of models that can (`GPLVMCMF`). Missing entries are left out.

        Parameters
        ----------
        dataset : Dataset or path
            Samples, matched as by `project`.
        n_draws : int
            Draws of each repeat.
        n_repeats : int
            Repeats, whose spread gives the error bars.
        executor, workers
            As for `fit`.

        Returns
        -------
        Dataset
            ``log_likelihood`` (nats) and ``log_likelihood_error``, its standard error, (obs,).

        Raises
        ------
        InputError
            When the family cannot, or dataset and model do not fit together.
        """
        for name, value in (("n_draws", n_draws), ("n_repeats", n_repeats)):
            if value < 1:
                raise InputError(name, value, "at least 1", "Leave it out.")
        place, where = _place(executor)
        options = parse_config(ResumeOptions, {"executor": where, "workers": workers})
        tree: Any = run.project(self, dataset, 1, options, place=place, scored=(n_draws, n_repeats))
        found: xr.Dataset = tree[self.main_group].to_dataset(inherit=False)
        return found[["log_likelihood", "log_likelihood_error"]]

    def generate(self, n_samples: int, seed: int = 0) -> dict[str, xr.DataArray]:
        """Return new samples of the model, by view; of models that can (`GPLVMCMF`).

        Parameters
        ----------
        n_samples : int
            Samples (N).
        seed : int
            Key of their noise.

        Returns
        -------
        dict of str to DataArray
            Per view (obs, feature) on the data scale; ``scores`` (obs, factor), the latent variables.

        Raises
        ------
        InputError
            When the family cannot.
        """
        return prediction.generate(self, n_samples, seed)

    def sample(self, n_draws: int = 100, seed: int = 0) -> Posterior:
        """Return this posterior with a group ``posterior`` of draws from a variational distribution."""
        return Posterior(draws.with_draws(self, n_draws, seed), self.path)

    def to_arviz(
        self,
        log_likelihood: bool | str | Sequence[str] = False,
        *,
        start: int | None = None,
        stop: int | None = None,
        samples: bool = False,
    ) -> xr.DataTree:
        """Return the draws as ArviZ takes them, factors aligned between draws and chains.

        ``arviz_stats.summary``, ``rhat`` and ``ess`` and ``arviz_plots`` also take ``tree`` itself; there the
        factors of every draw are as they were drawn, and may have changed places.

        Parameters
        ----------
        log_likelihood : bool, str or sequence of str
            Views whose entries get their log-likelihood under every draw (True: all), for
            ``arviz_stats.loo(tree, var_name=view)``: of the entries that the model saw. It takes 8 bytes for
            each entry and draw. Of a sampler it needs stored factors (``store_factors=True``).
        start, stop : int, optional
            Samples that it is computed for; all when left out.
        samples : bool
            Whether stored draws of the samples' variables are taken along.

        Returns
        -------
        DataTree
            ``posterior``, and ``sample_stats`` and ``constant_data`` where there are any;
            ``log_likelihood`` and ``observed_data``, a variable for each view by ``entry_<view>``, with
            ``obs_<view>`` and ``feature_<view>`` beside.

        Raises
        ------
        InputError
            Without draws (of a variational posterior: `sample` first), or if too much would be computed.
        """
        known = [view.name for view in self.meta.value_views]
        chosen = known if log_likelihood is True else log_likelihood or []
        chosen = [chosen] if isinstance(chosen, str) else list(chosen)
        views = [self.check_explained(view) for view in chosen]
        return pointwise.arviz_tree(self, views, rows_of(self, start, stop, None), samples=samples)

    def diagnostics(self) -> pd.DataFrame:
        """Return R-hat and bulk and tail effective sample sizes of a sampler's variables (arviz-stats)."""
        return diagnostics.diagnostics(self)

    # Faces

    @cached_property
    def findings(self) -> list[Finding]:
        """What to know before relying on it, each with what to do.

        Chains that have not mixed, a budget that ended the run, views predicted worse than by their means,
        overdispersed counts, factors that are one sample or one feature.
        """
        return findings.findings(self)

    def summary(self) -> dict[str, Any]:
        """Return the main results as plain values: run, findings, factors, variance explained, scores."""
        return summary.summary(self, self.findings)

    def load(self) -> Posterior:
        """Read everything into memory; the store is not needed afterwards."""
        load_tree(self.tree, self.path)
        self.path = None
        return self

    def verify(self) -> None:
        """Read everything in the store and compare it with the checksums it was written with.

        Raises
        ------
        InputError
            Naming the first file that is missing or changed.
        """
        if self.path is not None:
            read_sealed(self.path)[1].verify()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to a path where nothing is yet; it appears there when it is complete.

        Raises
        ------
        InputError
            When something is there, or it cannot be written.
        """
        repair(path)
        if os.path.lexists(path):
            raise InputError("path", str(path), "a path where nothing is yet", "Choose another one.")
        with fresh_directory(path, overwrite=False, recognise=is_posterior) as folder:
            store.save(self.tree, folder)

    def __repr__(self) -> str:
        return summary.as_text(self, self.findings)

    def _repr_html_(self) -> str:
        return summary.as_html(self, self.findings)


def _face(found: xr.DataTree | Path) -> Posterior:
    """Return what a run found: a tree in memory, or the store at a path."""
    return open_posterior(found) if isinstance(found, os.PathLike) else Posterior(found)


def _told(posterior: Posterior) -> Posterior:
    """Return a posterior, having said what is to be known of it."""
    for finding in posterior.findings:
        FINDINGS.warning("%s", finding)
    return posterior


def _place(executor: Any) -> tuple[Any, str]:
    """Return the client or executor that a user made, if any, and what the options say of it."""
    if isinstance(executor, str):
        return None, executor
    return executor, str(getattr(getattr(executor, "scheduler", None), "address", "local"))
