"""Decide whether a recurring run fits, projects or does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from factorflow.errors import InputError
from factorflow.settings import RefreshOptions, RunOptions
from factorflow.storage.location import Location, modified_at
from factorflow.workflow.folder import Folder
from factorflow.workflow.history import History

if TYPE_CHECKING:
    from factorflow.data import Dataset
    from factorflow.models.configuration import ModelConfig
    from factorflow.posterior.record import RunRecord


@dataclass(frozen=True)
class Last:
    """The state of a folder when a recurring run starts.

    Parameters
    ----------
    record : RunRecord
        Of the last complete fit.
    path : Path or Remote
        Where it is.
    n_rows : int
        Rows that it was fitted to.
    made : datetime
        When.
    fingerprint : str
        Of the data of the latest posterior, a fit or a projection; empty: it is gone or cannot be read.
    covariates : str
        Digest of the columns of the sample metadata that the latest posterior was given; empty: none.
    """

    record: RunRecord
    path: Location
    n_rows: int
    made: datetime
    fingerprint: str
    covariates: str = ""


@dataclass(frozen=True)
class Due:
    """The decision, and its reason."""

    action: Literal["nothing", "project", "fit"]
    reason: str


def due(last: Last | None, requested: RunRecord, n_rows: int, rule: RefreshOptions, now: datetime) -> Due:
    """Decide what a recurring run does.

    Parameters
    ----------
    last : Last or None
        What there is; None: nothing yet.
    requested : RunRecord
        The run that would be made anew.
    n_rows : int
        Rows of the data.
    rule : RefreshOptions
        When a fit is due.
    now : datetime
        The present.
    """
    if last is None:
        return Due("fit", "There is no complete fit yet.")
    data = {name: getattr(requested.identity, name) for name in ("fingerprint", "covariates")}
    before = last.record.identity.model_copy(update={**data, "warm_start": ""})
    if other := sorted(before.differences(requested.identity)):
        return Due("fit", f"Other settings than those of the last fit: {', '.join(other)}.")
    if not last.record.model_copy(update={"identity": before}).answers(requested):
        return Due("fit", "Another budget of iterations than that of the last fit.")
    if not last.fingerprint:
        return Due("fit", "The latest posterior is gone, or cannot be read.")
    if data == {"fingerprint": last.fingerprint, "covariates": last.covariates}:
        return Due("nothing", "Data and settings are those of the latest posterior.")
    grown = (n_rows - last.n_rows) / last.n_rows
    days = (now - last.made).total_seconds() / 86400.0
    if grown <= 0:
        return Due("fit", "The data changed, and there are no more rows than before.")
    share = f"The rows grew by {100 * grown:.3g} % since the last fit"
    if grown >= rule.refit_growth:
        return Due("fit", f"{share}; {100 * rule.refit_growth:g} % are enough for another.")
    if rule.refit_days is not None and days >= rule.refit_days:
        return Due("fit", f"{share}, which is {days:.3g} days ago; {rule.refit_days:g} are enough.")
    return Due("project", f"{share}; below {100 * rule.refit_growth:g} % they are projected on it.")


def run_asked_for(
    dataset: Dataset, model: ModelConfig | Mapping[str, Any], options: RunOptions, last: Last | None = None
) -> RunRecord:
    """Return the record of the run that a fit of the dataset would be.

    Covariates are coded as by the last fit: their digest is that of the latest posterior if no column of them
    has changed.
    """
    from factorflow.engine.executors.environment import environment
    from factorflow.models import configure
    from factorflow.posterior.record import RunRecord

    config = configure(model)
    covariates = _digest_of_columns(dataset, config, last)
    settings = config.model_dump(mode="json")
    begin = partial(RunRecord.begin, str(dataset.path), dataset.fingerprint, settings, options)
    return begin(environment(), covariates=covariates, feature_sets=_sets_digest(dataset, config))


def _sets_digest(dataset: Dataset, config: ModelConfig) -> str:
    from factorflow.data.feature_sets import match_feature_sets

    sets = config.given_sets([view.name for view in dataset.meta(config.views).value_views])
    return "" if sets is None else match_feature_sets(dataset, *sets).digest


def _digest_of_columns(dataset: Dataset, config: ModelConfig, last: Last | None) -> str:
    from factorflow.api import open_posterior
    from factorflow.data.sample_tables import SampleTables, model_meta

    like = None if last is None else open_posterior(last.path).meta
    try:
        meta = model_meta(dataset, config, like=like)
    except InputError:  # columns that are no longer there, or are of another kind
        meta = model_meta(dataset, config)
    return SampleTables.of(meta).digest


def last_fit(history: History, folder: Folder) -> Last | None:
    """Return what there is: of the history, else the posterior of a fit to the same folder."""
    from factorflow.posterior.store import read_run

    entries = history.entries()
    latest = read_run(history.path(entries[-1])) if entries else None
    fingerprint, covariates = "", ""
    if latest is not None:
        fingerprint, covariates = entries[-1].fingerprint, latest.identity.covariates
    for entry in reversed(entries):
        record = read_run(history.path(entry)) if entry.kind == "fit" else None
        if record is not None and record.status == "complete":
            fitted_at = datetime.fromisoformat(entry.made)
            return Last(record, history.path(entry), entry.n_rows, fitted_at, fingerprint, covariates)
    record = read_run(folder.posterior)
    if record is None or record.status != "complete" or entries:
        return None
    from factorflow.api import open_posterior

    fitted_at = modified_at(folder.posterior)
    rows = open_posterior(folder.posterior).meta.n_rows
    its = record.identity
    return Last(record, folder.posterior, rows, fitted_at, its.fingerprint, its.covariates)


def n_latest_rows(history: History, last: Last | None) -> int:
    """Return the rows of the latest posterior, a fit or a projection; 0 where there is none.

    The history knows them also where its posteriors are gone or cannot be read.
    """
    entries = history.entries()
    return entries[-1].n_rows if entries else 0 if last is None else last.n_rows


def check_rows(history: History, last: Last | None, dataset: Dataset, rule: RefreshOptions) -> None:
    """Refuse data that lost most of their rows, before anything is made of them."""
    rows, before = dataset.n_rows, n_latest_rows(history, last)
    # Rows of a table that agree are one, which depends on the formula.
    if dataset.design is not None and last is not None and last.fingerprint:
        from factorflow.api import open_posterior

        entries = history.entries()
        latest = open_posterior(history.path(entries[-1]) if entries else last.path).meta.design
        rows, before = dataset.design.n_table_rows, latest.n_table_rows if latest is not None else 0
    if before and rows / before < rule.min_rows:
        expected = f">= {rule.min_rows * before:g}: {rule.min_rows:g} of the {before} of the latest posterior"
        remedy = "Restore the source, or set min_rows (0: any number)."
        raise InputError("rows of the source", rows, expected, remedy)


def other_features(last: Last, dataset: Dataset, model: ModelConfig | Mapping[str, Any]) -> list[str]:
    """Return what is not as in the last fit, so that rows cannot be projected on it.

    Views whose features differ, and "covariates" where columns of them are of another kind.
    """
    from factorflow.api import open_posterior
    from factorflow.data.sample_tables import model_meta
    from factorflow.models import configure

    fitted = open_posterior(last.path)
    before = {view.name: view.n_features for view in fitted.meta.views}
    now = {view.name: view.n_features for view in dataset.meta(configure(model).views).views}
    other = {name for name, _ in before.items() ^ now.items()}
    for name in before.keys() & now.keys():
        own = fitted.own_features(name)
        if own is not None and not np.array_equal(own, np.asarray(dataset.features(name), dtype=object)):
            other.add(name)
        if own is None and before[name] > 1:  # nobody knows any more which they were
            other.add(name)
    try:
        model_meta(dataset, configure(model), like=fitted.meta)
    except InputError:
        other.add("covariates")
    return sorted(other)
