"""The posterior of a run and its methods."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

from factorflow.api.inputs import as_dataset, likelihoods_for
from factorflow.api.storage import StorageMethods
from factorflow.core.lazy_imports import on_first_use
from factorflow.engine import run
from factorflow.engine.executors.launch import executor_options
from factorflow.engine.progress import LOGGER, say, watching
from factorflow.errors import InputError
from factorflow.posterior import card, diagnostics, draws, summary
from factorflow.posterior.labels import sample_metadata
from factorflow.posterior.open import open_tree
from factorflow.settings import ProjectOptions, ResumeOptions, document_options, parse_config
from factorflow.storage.location import Location, as_location
from factorflow.storage.publish import current_version, write_file
from factorflow.storage.remote import RemotePath

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from anndata import AnnData
    from mudata import MuData

    from factorflow.data import Dataset
    from factorflow.engine.events import OnEvent
    from factorflow.engine.executors.launch import ExecutorLike

_figures = on_first_use(
    "factorflow.api.posterior",
    {"Plots": "factorflow.report.accessor", "write_report": "factorflow.report.html"},
)

FINDINGS = logging.getLogger("factorflow.findings")
"""Logger of the findings of `fit` and `project`, as warnings."""


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


class Posterior(StorageMethods):
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

    def sample_metadata(self) -> pd.DataFrame:
        """Return the metadata of the samples, from the dataset.

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
        self,
        view: str | None = None,
        factor: str | SupportsIndex = 1,
        n: int = 10,
        interval: float | None = None,
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
        interval : float, optional
            Share of the posterior that central intervals of loadings are to hold, such as 0.95: quantiles of
            draws; else normal ones, of sparse GFA with what the fit leaves open.

        Returns
        -------
        DataFrame
            By feature: ``loading`` and, where the model has them, ``sd`` and ``inclusion``; with an interval
            also ``lower`` and ``upper``; of all views with a column ``view`` in front.

        Raises
        ------
        InputError
            When there is no such view or factor, the view has no loadings, or no standard deviations of them.

        Examples
        --------
        >>> top = posterior.top_features("rna", factor=1, n=3)
        >>> top.index.tolist(), top.columns.tolist()
        (['gene0', 'gene19', 'gene28'], ['loading', 'sd', 'inclusion'])
        >>> posterior.top_features(factor=1, n=2)["view"].tolist()
        ['rna', 'rna', 'mutations', 'mutations']
        """
        return summary.top_features(self, view, self.factor(factor), n, interval)

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

    def write_report(
        self, path: str | os.PathLike[str] | RemotePath, sections: Mapping[str, str] | None = None
    ) -> Location:
        """Write a report: one HTML file that needs no network and no other files.

        Parameters
        ----------
        path, sections
            As for `factorflow.report.write_report`.

        Returns
        -------
        Path or Remote

        Raises
        ------
        InputError
            If the file cannot be written.

        Examples
        --------
        >>> posterior.write_report("report.html").name
        'report.html'
        """
        written: Location = _figures("write_report")(self, path, sections)
        return written

    @document_options(ProjectOptions)
    def project(
        self,
        dataset: Dataset | AnnData | MuData | Mapping[str, Any] | str | os.PathLike[str],
        *,
        covariates: pd.DataFrame | str | os.PathLike[str] | Literal[False] | None = None,
        iterations: int = 20,
        executor: ExecutorLike = "local",
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
        dataset : Dataset, path, AnnData, MuData or mapping
            New samples: a dataset, or data as `fit` takes them, which are written to one in the cache folder.
            Features are matched by name; views, features and entries may be missing.
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
        >>> posterior.project({"rna": rna.iloc[:5]}).scores().shape
        (5, 3)
        """
        place, where = executor_options(executor)
        options = {"workers": workers, "memory_limit": memory_limit} | where
        parse_config(ProjectOptions, {"iterations": iterations, **options})
        show = say if progress or (progress is None and on_event is None) else partial(LOGGER.info, "%s")
        with watching(progress, on_event, "preparing the projection") as watch:
            projection = run.project(
                self,
                as_dataset(dataset, likelihoods_for(dataset, self), show),
                iterations,
                parse_config(ResumeOptions, options),
                out=out,
                overwrite=overwrite,
                resume=resume,
                place=place,
                on_event=watch,
                covariates=covariates,
            )
        return log_findings(as_posterior(projection))

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

    def __repr__(self) -> str:
        return summary.as_text(self, self.findings)

    def _repr_html_(self) -> str:
        return summary.as_html(self, self.findings)


def as_posterior(source: xr.DataTree | Path | RemotePath) -> Posterior:
    """Return the result of a run, a tree in memory or the store at a path, as a posterior."""
    return open_posterior(source) if isinstance(source, os.PathLike | RemotePath) else Posterior(source)


def write_card(posterior: Posterior) -> Posterior:
    """Write the card of a stored posterior, where it has none, and return the posterior."""
    if posterior.path is not None:
        file = as_location(posterior.path) / card.CARD
        try:
            if not file.exists():
                write_file(file, posterior.card())
        except (InputError, OSError) as error:  # the posterior is complete without
            LOGGER.warning("%s was not written: %s", card.CARD, error)
    return posterior


def log_findings(posterior: Posterior) -> Posterior:
    """Log the findings of a posterior as warnings, and return it."""
    for finding in posterior.findings:
        with suppress(ValueError):  # of logging, where stderr is closed
            FINDINGS.warning("%s", finding)
    return posterior
