"""Model selection by held-out score: every combination of options, several seeds each.

A seed also draws the held-out entries, so that seeds are splits of the data as well as starting points. All
combinations are scored on the same splits: what one is behind the best is compared split by split, which is
known much better than either score.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from factorflow.core.extras import require
from factorflow.errors import InputError
from factorflow.settings import SELECTION, RunOptions, SelectOptions, TrialOptions
from factorflow.storage.local import disk_errors
from factorflow.storage.location import Location, as_location
from factorflow.storage.remote import RemotePath
from factorflow.workflow.folder import check_folder
from factorflow.workflow.parallel import run_in_parallel

if TYPE_CHECKING:
    from factorflow.data import Dataset
    from factorflow.engine.events import OnEvent
    from factorflow.posterior.findings import Finding


@dataclass(frozen=True)
class Trial:
    """One fit of a selection.

    Parameters
    ----------
    seed : int
        Of the run and of its held-out entries.
    """

    model: Mapping[str, Any]
    varied: Mapping[str, Any]
    seed: int

    @property
    def name(self) -> str:
        """A name for files, the same for the same options and seed."""
        text = json.dumps([dict(self.model), self.seed], sort_keys=True)
        return f"trial-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Verdict:
    """The result of a trial.

    Parameters
    ----------
    log_likelihood : float
        Mean over all held-out entries of all views, nats.
    """

    trial: Trial
    log_likelihood: float
    posterior: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Selection:
    """The outcome of a selection.

    Parameters
    ----------
    best : mapping
        Options of the model with the best mean held-out log-likelihood.
    table : tuple of mapping
        One row for each combination of options, best first: the options, ``options`` in one text,
        ``log_likelihood`` (nats an entry, mean over seeds) with ``standard_deviation`` and
        ``standard_error`` over seeds, ``behind`` (the best, on the seeds that both have) with
        ``behind_error``, ``n_seeds``, ``findings`` (kinds of those of any seed) and ``posterior`` of its best
        seed. Errors are None for one seed.
    posterior : str or None
        The best model, fitted to everything.
    findings : tuple of Finding
        What is to be known of that, else of the best trial.
    """

    best: Mapping[str, Any]
    table: tuple[Mapping[str, Any], ...]
    posterior: str | None = None
    findings: tuple[Finding, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "best": dict(self.best),
            "table": [dict(row) for row in self.table],
            "posterior": self.posterior,
            "findings": [asdict(finding) for finding in self.findings],
        }


def plan(
    model: Mapping[str, Any], grid: Mapping[str, Sequence[Any]], seeds: Sequence[int] = (0,)
) -> tuple[Trial, ...]:
    """Return the trials of a grid of options.

    Parameters
    ----------
    model : mapping
        Options that all trials share, ``model`` among them.
    grid : mapping of str to sequence
        Options to vary, with their values: ``{"n_factors": [5, 10, 15]}``.

    Raises
    ------
    InputError
        For an empty grid, a value that comes twice, an unknown option, or a value the model refuses.
    """
    from factorflow.models import configure

    for name, values in grid.items():
        if not values:
            raise InputError("grid", name, "at least one value", f"Give values, or leave {name} out.")
    if not seeds:
        raise InputError("seeds", (), "at least one seed", "Leave it out for one run of each combination.")
    for name, values in (*grid.items(), ("seeds", seeds)):
        if twice := [value for i, value in enumerate(values) if value in values[:i]]:
            raise InputError(name, twice[0], "every value once", "Remove duplicates.")
    for seed in seeds:
        RunOptions(seed=seed)
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return tuple(
        Trial(configure({**model, **varied}).model_dump(mode="json"), varied, seed)
        for varied in combinations
        for seed in seeds
    )


def check_trials(dataset: Dataset, trials: Sequence[Trial]) -> None:
    """Refuse a model that cannot be fitted to a dataset, before the first trial runs."""
    from factorflow.data.sample_tables import model_meta
    from factorflow.models import configure

    for trial in trials:
        config = configure(trial.model)
        config.build(model_meta(dataset, config))


def check_holdout(options: TrialOptions) -> None:
    """Refuse runs without held-out entries: there would be nothing to rank them by."""
    if not options.holdout:
        expected = "a share of the entries, 0 < holdout < 1"
        raise InputError("holdout", options.holdout, expected, "For example 0.1.")


def run_trial(
    dataset: Dataset | str | os.PathLike[str],
    trial: Trial,
    out: str | os.PathLike[str],
    options: TrialOptions = SELECTION,
    *,
    on_event: OnEvent | None = None,
) -> Verdict:
    """Fit one trial, or open it if it is there already, and return its score.

    Parameters
    ----------
    options : TrialOptions
        The rest of its parameters; the seed is the trial's.
    """
    from factorflow.api import fit

    check_holdout(options)
    folder = as_location(out, "out")
    with disk_errors(folder, "out"):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{trial.name}.zarr"
    posterior = fit(
        dataset,
        trial.model,
        out=str(path),
        resume="auto",
        overwrite=True,
        on_event=on_event,
        **{**_arguments(options, trial.name), "seed": trial.seed},
    )
    scores = posterior.holdout_scores()
    total = (scores["n_entries"] * scores["log_likelihood"]).sum()
    mean_score = float(total / scores["n_entries"].sum())
    return Verdict(trial, mean_score, str(path), tuple(posterior.findings))


def _arguments(options: TrialOptions, name: str) -> dict[str, Any]:
    """Return the options of one run; Dask's report has its name, that of one would replace the other."""
    of_selection = SelectOptions.model_fields.keys() - TrialOptions.model_fields.keys()
    arguments = {name: value for name, value in options.arguments().items() if name not in of_selection}
    if (report := options.performance_report) is not None:
        root, ending = os.path.splitext(report)
        arguments["performance_report"] = f"{root}-{name}{ending}"
    return arguments


def choose(verdicts: Sequence[Verdict]) -> Selection:
    """Return the combination with the best mean score over its seeds."""
    by_combination: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        key = json.dumps(dict(verdict.trial.varied), sort_keys=True)
        by_combination.setdefault(key, []).append(verdict)
    rows = sorted(by_combination.values(), key=lambda group: _mean(group)[0], reverse=True)
    best = rows[0]
    table = []
    for group in rows:
        score, deviation, error = _mean(group)
        behind, _, behind_error = _behind(best, group)
        table.append(
            {
                **group[0].trial.varied,
                "options": ", ".join(f"{name}={value}" for name, value in group[0].trial.varied.items()),
                "log_likelihood": score,
                "standard_deviation": deviation,
                "standard_error": error,
                "behind": behind,
                "behind_error": behind_error,
                "n_seeds": len(group),
                "findings": ", ".join(
                    dict.fromkeys(finding.kind for one in group for finding in one.findings)
                ),
                "posterior": _best(group).posterior,
            }
        )
    return Selection(best[0].trial.model, tuple(table), findings=_best(best).findings)


def _best(group: Sequence[Verdict]) -> Verdict:
    return max(group, key=lambda verdict: verdict.log_likelihood)


def _mean(group: Sequence[Verdict]) -> tuple[float, float | None, float | None]:
    return _moments([verdict.log_likelihood for verdict in group])


def _behind(best: Sequence[Verdict], group: Sequence[Verdict]) -> tuple[float, float | None, float | None]:
    """Return by how much a combination is behind the best, seed by seed; 0 for the best itself."""
    theirs = {verdict.trial.seed: verdict.log_likelihood for verdict in best}
    return _moments([theirs[v.trial.seed] - v.log_likelihood for v in group if v.trial.seed in theirs])


def _moments(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return mean, standard deviation and standard error of the mean."""
    if len(values) < 2:
        return mean(values), None, None
    deviation = stdev(values)
    return mean(values), deviation, deviation / math.sqrt(len(values))


def refit(
    dataset: Dataset | str | os.PathLike[str],
    selection: Selection,
    out: str | os.PathLike[str],
    options: TrialOptions = SELECTION,
    *,
    seed: int = 0,
    on_event: OnEvent | None = None,
) -> Selection:
    """Fit the best model to everything, nothing held out; return the selection with its posterior.

    Parameters
    ----------
    out : path
        Where the posterior goes; one of this very fit that is there is taken.
    """
    from factorflow.api import fit

    how = {**_arguments(options, "best"), "holdout": 0.0, "holdout_unit": "entry", "seed": seed}
    posterior = fit(dataset, selection.best, out=out, resume="auto", overwrite=True, on_event=on_event, **how)
    return replace(selection, posterior=str(out), findings=tuple(posterior.findings))


def publish(selection: Selection, out: str | os.PathLike[str] | RemotePath) -> Location:
    """Write ``selection.json``, the table, and ``selection.png``, its figure; return where the figure is."""
    from factorflow.report.selection import write_figure
    from factorflow.storage.publish import write_file

    folder = as_location(out, "out")
    with disk_errors(folder, "out"):
        folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "selection.json", json.dumps(selection.describe(), indent=2) + "\n", "out")
    return write_figure(selection.table, folder / "selection.png")


def select(
    dataset: Dataset | str | os.PathLike[str],
    model: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    *,
    out: str | os.PathLike[str],
    options: SelectOptions = SELECTION,
    on_event: OnEvent | None = None,
) -> Selection:
    """Fit every combination of a grid, rank them by held-out log-likelihood, fit the best to everything.

    Trials that are finished already are not run again, so an interrupted selection goes on where it was. They
    share one cluster where each would start its own, and several may run at a time, with the same results.
    The posteriors are in ``out``, the best model's is ``best.zarr``; ``selection.json`` and ``selection.png``
    are the table and its figure.

    Parameters
    ----------
    dataset, out, on_event
        As for `run_trial`; events of trials that run at the same time are not passed on.

    Raises
    ------
    InputError
        When the input cannot be used, before the first trial runs.
    """
    from factorflow.data import Dataset, open_dataset
    from factorflow.engine.executors.launch import shared_cluster
    from factorflow.engine.progress import LOGGER

    seeds, parallel = options.seeds, options.parallel
    require("matplotlib", "draws selection.png")
    folder = check_folder(out)
    trials = plan(model, grid, seeds)
    check_holdout(options)
    data = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    check_trials(data, trials)
    with shared_cluster(options, parallel) as shared:

        def run(trial: Trial, listener: OnEvent | None) -> Verdict:
            verdict = run_trial(dataset, trial, out, shared, on_event=listener)
            if parallel > 1:  # bars of several runs would not be told apart
                what = ", ".join(f"{name}={value}" for name, value in trial.varied.items())
                LOGGER.info("%s, seed %s: %.6g nats an entry", what, trial.seed, verdict.log_likelihood)
            return verdict

        if parallel == 1:
            verdicts = [run(trial, on_event) for trial in trials]
        else:
            verdicts = run_in_parallel(run, trials, parallel)
        selection = choose(verdicts)
        if options.refit:
            best = str(folder / "best.zarr")
            with shared_cluster(shared) as alone:
                selection = refit(dataset, selection, best, alone, seed=seeds[0], on_event=on_event)
    publish(selection, out)
    return selection
