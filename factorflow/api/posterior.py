"""The posterior of a run and its methods."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

from factorflow import run
from factorflow.api.families import Special
from factorflow.arguments import name_wrong_arguments_of_methods
from factorflow.engine.executors.launch import executor_options
from factorflow.engine.progress import watching
from factorflow.errors import InputError
from factorflow.lazy_imports import on_first_use
from factorflow.posterior import (
    diagnostics,
    draws,
    findings,
    prediction,
    store,
    summary,
    tables,
    variance,
)
from factorflow.posterior.covariates import variance_explained as shares_of_covariates
from factorflow.posterior.labels import rows_of, sample_metadata
from factorflow.posterior.log_likelihood import arviz_tree
from factorflow.posterior.open import load_tree, open_tree
from factorflow.posterior.schema import is_posterior, read_with_checksums
from factorflow.settings import ProjectOptions, ResumeOptions, document_options, parse_config
from factorflow.storage.location import as_location
from factorflow.storage.publish import current_version, new_directory
from factorflow.storage.remote import RemotePath

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import xarray as xr

    from factorflow.data import Dataset
    from factorflow.engine.events import OnEvent
    from factorflow.engine.executors.launch import Place
    from factorflow.posterior.findings import Finding
    from factorflow.posterior.variance import By

__all__ = ["Posterior", "as_posterior", "log_findings", "open_posterior"]

_figures = on_first_use("factorflow.api.posterior", {"Plots": "factorflow.report.accessor"})

FINDINGS = logging.getLogger("factorflow.findings")
"""Where `fit` and `project` say what they found, as warnings."""


def open_posterior(path: str | os.PathLike[str] | RemotePath) -> Posterior:
    """Open the posterior at ``path``; values are read when they are used.

    Parameters
    ----------
    path : path-like, or URL
        What ``factorflow.fit(..., out=path)`` wrote, or where it lies in an object store
        (``s3://bucket/name``; ``docs/object-stores.md``).

    Returns
    -------
    Posterior

    Raises
    ------
    InputError
        When there is no posterior, one of another schema version, or one that lacks a chunk.

    Examples
    --------
    >>> factorflow.open_posterior("cohort-k3.zarr").factors
    ['Factor1', 'Factor2', 'Factor3']
    """
    place = current_version(as_location(path, "posterior"))
    return Posterior(open_tree(place), str(place))


@name_wrong_arguments_of_methods
class Posterior(Special):
    """The posterior of one run, as `fit` returns it: its variables and the methods that analyse them.

    Arrays come labelled, with samples and features in the dataset's order. Of a sampler, `scores`,
    `loadings`, `inclusion` and `intercept` are means over aligned draws of all chains; the draws are in
    ``tree["posterior"]``. The groups of ``tree`` are described in ``docs/posterior.md``.

    Parameters
    ----------
    tree : DataTree
        Its groups.
    path : str, optional
        The store that it was opened from; left out: it is in memory.

    Examples
    --------
    >>> posterior.views
    ('rna', 'mutations')
    >>> posterior.kind
    'variational'
    >>> posterior.run["status"], posterior.run["seed"]
    ('complete', 0)
    """

    def __init__(self, tree: xr.DataTree, path: str | None = None) -> None:
        super().__init__(tree, path)
        self._shares_of: dict[tuple[By | None, str | None], xr.Dataset] = {}

    # What was found

    def sample_metadata(self) -> pd.DataFrame:
        """Return what the dataset says of its samples.

        Returns
        -------
        DataFrame
            By sample name: columns as at ingest, with ``group``, ``sequence`` and ``time`` if there are any.

        Examples
        --------
        >>> posterior.sample_metadata().columns.tolist()
        ['age', 'clinic']
        """
        return sample_metadata(self)

    def top_features(
        self, view: str | None = None, factor: str | SupportsIndex = 1, n: int = 10
    ) -> pd.DataFrame:
        """Return the features with the largest loadings of a factor.

        Parameters
        ----------
        view : str, optional
            Name of the view; all with loadings when left out.
        factor : str or int
            Label, or number from 1.
        n : int
            Features at most, of each view.

        Returns
        -------
        DataFrame
            By feature: ``loading`` and, where the model has them, ``sd`` and ``inclusion``; of all views
            with a column ``view`` in front.

        Raises
        ------
        InputError
            When there is no such view or factor, or the view has no loadings.

        Examples
        --------
        >>> top = posterior.top_features("rna", factor=1, n=3)
        >>> top.index.tolist(), top.columns.tolist()
        (['gene0', 'gene19', 'gene28'], ['loading', 'sd', 'inclusion'])
        >>> posterior.top_features(factor=1, n=2)["view"].tolist()
        ['rna', 'rna', 'mutations', 'mutations']
        """
        return summary.top_features(self, view, self.factor(factor), n)

    def variance_explained(
        self,
        by: By | None = None,
        *,
        view: str | None = None,
        terms: Literal["factor", "covariate", "all"] = "factor",
    ) -> xr.DataArray:
        """Return the share of the variance of each view that each factor explains.

        Parameters
        ----------
        by : {"group", "sample", "feature"}, optional
            For every sample group, sample or feature. What the run did not record is computed from the
            dataset, block by block.
        view : str, optional
            One view alone; needed by feature, where there are several.
        terms : {"factor", "covariate", "all"}
            What each factor explains beside the covariates of the model; what the covariates explain, each
            term alone and all together; or both.

        Returns
        -------
        DataArray
            (view, factor), with ``by`` (group, view, factor) or (obs, view, factor); of one view without that
            dimension: (feature_<view>, factor). Of covariates (view, term).

        Raises
        ------
        InputError
            When the dataset has no groups, or shares by feature are asked for of several views.

        Examples
        --------
        >>> posterior.variance_explained().sel(view="rna").round(1).values
        array([0.4, 0.3, 0.3])
        >>> posterior.variance_explained(by="feature", view="rna").sizes["feature_rna"]
        30
        """
        if terms == "factor":
            return self._shares(by, view)["variance_explained"]
        if terms not in ("covariate", "all"):
            raise InputError("terms", terms, "factor, covariate or all", "Leave it out for factors.")
        return shares_of_covariates(self, by, view, with_factors=terms == "all")

    def variance_explained_total(self, by: By | None = None, *, view: str | None = None) -> xr.DataArray:
        """Return the share of the variance of each view that all factors explain.

        Parameters
        ----------
        by, view
            As for `variance_explained`.

        Returns
        -------
        DataArray
            (view,), with ``by`` (group, view) or (obs, view); of one view without that dimension.

        Raises
        ------
        InputError
            As for `variance_explained`.

        Examples
        --------
        >>> posterior.variance_explained_total().round(1).values
        array([0.9, 0.5])
        """
        return self._shares(by, view)["variance_explained_total"]

    def contribution_scores(self) -> xr.DataArray:
        """Return how much each view contributes to where each sample lies among the factors.

        The variance of a sample that all factors explain in a view, divided by what they explain of the view
        in all samples (below 0 taken as 0), as a share of the sum over views (MOFA2's
        `calculate_contribution_scores`).

        Returns
        -------
        DataArray
            (obs, view); rows sum to 1. NaN of a view that a sample lacks, and where no view is explained.

        Raises
        ------
        InputError
            When fewer than two views are explained.

        Examples
        --------
        >>> posterior.contribution_scores().sum("view").values[:3].round(6)
        array([1., 1., 1.])
        """
        return variance.contribution_scores(
            self, self.variance_explained_total(by="sample"), self.variance_explained_total()
        )

    def _shares(self, by: By | None, view: str | None) -> xr.Dataset:
        if by not in (None, "group", "sample", "feature"):
            raise InputError("by", by, "group, sample or feature", "Leave it out for all samples.")
        if (by, view) not in self._shares_of:
            self._shares_of[by, view] = variance.variance_explained(self, by, view)
        return self._shares_of[by, view]

    @cached_property
    def plot(self) -> Any:
        """Figures, each one a method that returns Matplotlib Axes: ``posterior.plot.scores(color="age")``.

        The methods are those of `factorflow.report`: ``plot.NAME(...)`` is ``report.plot_NAME(posterior,
        ...)``; each takes ``ax=``. They need Matplotlib: ``pip install 'factorflow[report]'``.

        Examples
        --------
        >>> ax = posterior.plot.scores([1, 2], color="age")
        >>> ax.get_xlabel()
        'Factor1'
        """
        return _figures("Plots")(self)

    # Prediction

    def predict(
        self,
        view: Any,
        start: int | None = None,
        stop: int | None = None,
        obs: Sequence[str] | None = None,
        interval: float | None = None,
        factors: Sequence[str | SupportsIndex] | None = None,
        trials: int | None = None,
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
        factors : sequence of str or int, optional
            Factors, by label or number from 1, that predict beside the intercepts; all when left out. Of a
            variational posterior; not of new rows of a table.
        trials : int, optional
            Of a view with numbers of trials, that of new observations; when left out, that of each entry, or
            1 where it is missing.

        Returns
        -------
        Dataset
            ``mean`` and ``sd`` of a new observation, (obs, feature_<view>); with an interval also ``lower``
            and ``upper``: quantiles of Student's t where the degrees of freedom of the noise are known, else
            of a normal distribution; of counts and binary values their own. Nothing is computed until values
            are asked for, and then only for the rows selected: ``predict("rna").isel(obs=slice(0, 100))``. Of
            a table (obs,), in its order, and at once.

        Raises
        ------
        InputError
            When there is no such view, sample or factor, a row is negative, or ``interval`` is not in (0, 1).

        Examples
        --------
        >>> found = posterior.predict("rna", obs=["patient0", "patient1"], interval=0.9)
        >>> found["mean"].dims, found["mean"].shape
        (('obs', 'feature_rna'), (2, 30))
        >>> bool((found["lower"] < found["upper"]).all())
        True
        """
        self.check_draws()
        if self.meta.design is not None and not (isinstance(view, str) and view in self.views):
            return tables.predict_table(self, view)
        return prediction.predict(
            self, self.check_explained(view), rows_of(self, start, stop, obs), interval, factors, trials
        )

    def impute(self, view: str, start: int | None = None, stop: int | None = None) -> xr.Dataset:
        """Return a view with its missing entries predicted.

        Parameters
        ----------
        view : str
            Name of the view.
        start, stop : int, optional
            Rows; all when left out.

        Returns
        -------
        Dataset
            ``mean``, ``sd`` and ``observed``, (obs, feature_<view>), computed for the rows that are looked
            at. Where there is a value, it is the ``mean``, and ``sd`` is 0; also where the fit held it out.

        Raises
        ------
        InputError
            When there is no such view, or the dataset is not there any more.

        Examples
        --------
        >>> found = posterior.impute("rna", stop=10)
        >>> found["observed"].values[0, :3]
        array([False,  True,  True])
        >>> found["sd"].values[0, :3].round(1)
        array([0.6, 0. , 0. ])
        """
        self.check_draws()
        return prediction.impute(self, self.check_explained(view), rows_of(self, start, stop, None))

    @document_options(ProjectOptions)
    def project(
        self,
        dataset: Dataset | str | os.PathLike[str],
        *,
        covariates: pd.DataFrame | str | os.PathLike[str] | Literal[False] | None = None,
        iterations: int = 20,
        executor: Place = "local",
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        resume: bool | Literal["auto"] = False,
        workers: int | None = None,
        memory_limit: str | int | None = None,
        progress: bool | None = None,
        on_event: OnEvent | None = None,
    ) -> Posterior:
        """Return the posterior of new samples under this model, its globals fixed.

        A run like that of `fit`: block by block, out of core, with the same bits on every executor.

        Parameters
        ----------
        dataset : Dataset or path
            New samples. Features are matched by name; views, features and entries may be missing.
        covariates : DataFrame, path or False, optional
            Columns that the model has as covariates, by sample name; left out: those of the dataset's
            metadata. False, or where there are none: they are not known, and integrated over.
        <options>
        executor : {"local", "threads", "dask"}, address, distributed.Client, cluster object or mapping
            As for `fit`.
        out, progress, on_event
            As for `fit`.

        Returns
        -------
        Posterior
            With the new samples as ``obs``; in memory, or opened from ``out``.

        Raises
        ------
        InputError
            When dataset and model do not fit together, or ``out`` exists.

        Examples
        --------
        >>> new = factorflow.write_dataset("new.zarr", {"rna": rna.iloc[:5]})
        >>> posterior.project(new).scores().shape
        (5, 3)
        """
        place, where = executor_options(executor)
        options = {"workers": workers, "memory_limit": memory_limit} | where
        parse_config(ProjectOptions, {"iterations": iterations, **options})
        with watching(progress, on_event, "preparing the projection") as watch:
            found = run.project(
                self,
                dataset,
                iterations,
                parse_config(ResumeOptions, options),
                out=out,
                overwrite=overwrite,
                resume=resume,
                place=place,
                on_event=watch,
                covariates=covariates,
            )
        return log_findings(as_posterior(found))

    def sample(self, n_draws: int = 100, seed: int = 0) -> Posterior:
        """Return this posterior with draws from its variational distribution.

        Parameters
        ----------
        n_draws : int
            Draws.
        seed : int
            Key of their noise.

        Returns
        -------
        Posterior
            With the draws in the group ``posterior`` of its tree.

        Raises
        ------
        InputError
            Of a sampler, which has draws; when ``n_draws`` is below 1, or they do not fit into memory.

        Examples
        --------
        >>> drawn = posterior.sample(n_draws=50)
        >>> drawn.draws("loadings_rna").shape
        (1, 50, 30, 3)
        """
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

        Examples
        --------
        >>> tree = posterior.sample(50).to_arviz(log_likelihood="rna")
        >>> tree["log_likelihood/rna"].dims
        ('chain', 'draw', 'entry_rna')
        """
        known = [view.name for view in self.meta.value_views]
        chosen = known if log_likelihood is True else log_likelihood or []
        chosen = [chosen] if isinstance(chosen, str) else list(chosen)
        views = [self.check_explained(view) for view in chosen]
        return arviz_tree(self, views, rows_of(self, start, stop, None), samples=samples)

    def diagnostics(self) -> pd.DataFrame:
        """Return R-hat and effective sample sizes of a sampler's variables (arviz-stats).

        Returns
        -------
        DataFrame
            By entry of a variable: ``r_hat``, ``ess_bulk``, ``ess_tail``.

        Raises
        ------
        InputError
            Of a variational posterior.
        """
        return diagnostics.diagnostics(self)

    # Faces

    @cached_property
    def findings(self) -> list[Finding]:
        """What to know before relying on it, each with what to do.

        Chains that have not mixed, a budget that ended the run, views predicted worse than by their means,
        overdispersed counts, factors that are one sample or one feature, or follow depth or a batch.

        Examples
        --------
        >>> posterior.findings
        []
        >>> stopped = factorflow.fit(dataset, model, max_iter=3)
        >>> stopped.findings[0].kind
        'budget'
        """
        return findings.findings(self)

    def summary(self) -> dict[str, Any]:
        """Return the main results as plain values.

        Returns
        -------
        dict
            As JSON has it: run, findings, factors, variance explained, held-out scores.

        Examples
        --------
        >>> summary = posterior.summary()
        >>> summary["model"], summary["status"], summary["n_factors"]
        ('sparse_gfa', 'complete', 3)
        """
        return summary.summary(self, self.findings)

    def load(self) -> Posterior:
        """Read everything into memory; the store is not needed afterwards.

        Returns
        -------
        Posterior
            This one.

        Examples
        --------
        >>> opened = factorflow.open_posterior("cohort-k3.zarr").load()
        >>> opened.path is None
        True
        """
        load_tree(self.tree, self.path)
        self.path = None
        return self

    def verify(self) -> None:
        """Read everything in the store and compare it with the checksums it was written with.

        Raises
        ------
        InputError
            Naming the first file that is missing or changed.

        Examples
        --------
        >>> posterior.verify()
        """
        if self.path is not None:
            read_with_checksums(self.path)[1].verify()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to a path where nothing is yet; it appears there when it is complete.

        Parameters
        ----------
        path : path or URL
            Where nothing is yet.

        Raises
        ------
        InputError
            When something is there, or it cannot be written.

        Examples
        --------
        >>> posterior.sample(50).save("cohort-k3-draws.zarr")
        """
        place = as_location(path)
        if current_version(place).exists():
            raise InputError("path", str(path), "a path where nothing is yet", "Choose another one.")
        with new_directory(place, overwrite=False, recognise=is_posterior) as folder:
            store.save(self.tree, folder)

    def __repr__(self) -> str:
        return summary.as_text(self, self.findings)

    def _repr_html_(self) -> str:
        return summary.as_html(self, self.findings)


def as_posterior(found: xr.DataTree | Path | RemotePath) -> Posterior:
    """Return the result of a run, a tree in memory or the store at a path, as a posterior."""
    return open_posterior(found) if isinstance(found, os.PathLike | RemotePath) else Posterior(found)


def log_findings(posterior: Posterior) -> Posterior:
    """Log the findings of a posterior as warnings, and return it."""
    for finding in posterior.findings:
        with suppress(ValueError):  # of logging, where stderr is closed
            FINDINGS.warning("%s", finding)
    return posterior
