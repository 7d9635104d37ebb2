"""The report: one HTML file that needs nothing else, light and dark."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.analysis.anomalies import find_anomalies
from factorflow.engine.progress import clock
from factorflow.errors import InputError
from factorflow.posterior.active_views import active_views
from factorflow.posterior.summary import accepted_line, comparison_rows, outcome, short_config, start_rows
from factorflow.report import (
    answers,
    checks,
    data_plots,
    drawing,
    explore,
    factor_plots,
    factors,
    overview,
    run_plots,
    sample_plots,
    sequences,
    smooth_plots,
)
from factorflow.report.svg import draw_figure
from factorflow.storage.location import Location, output_location
from factorflow.storage.publish import write_file
from factorflow.storage.remote import RemotePath

if TYPE_CHECKING:
    from factorflow.api import Posterior

N_GROUPS = 6
"""Sample groups whose variance explained is drawn."""

N_ANOMALIES = 10
"""Most surprising rows of a table that are listed."""

FALSE_SHARE = 0.1
"""Share of the rows listed as surprising that may be so by chance."""

N_SEQUENCES = 8
"""Sequences of which the one with most identities is drawn."""

N_COURSES = 6
"""Smooth factors whose courses are drawn."""

N_FOLLOWED = 2
"""Identities whose attributes are drawn along a sequence."""


def write_report(
    posterior: Posterior, path: str | os.PathLike[str] | RemotePath, sections: Mapping[str, str] | None = None
) -> Location:
    """Write a report of a posterior: run, convergence, variance explained, factors, scores, held-out scores.

    Parameters
    ----------
    posterior : Posterior
        Variational or of a sampler.
    path : path or URL
        The HTML file; replaced in one step if it exists.
    sections : mapping of str to str, optional
        Sections of your own behind all others: heading to HTML, which is taken as it is.

    Returns
    -------
    Path or Remote

    Raises
    ------
    InputError
        If the file cannot be written.

    Examples
    --------
    >>> factorflow.report.write_report(posterior, "report.html").name
    'report.html'
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("factorflow.report", "."),
        autoescape=select_autoescape(default_for_string=True, default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    with clock("drawing the report"):
        text = environment.get_template("report.html.j2").render(_content(posterior), sections=sections or {})
    write_file(path, text)
    return output_location(path, "path")


def _content(posterior: Posterior) -> dict[str, Any]:
    """Return everything the template shows."""
    facts, run = posterior.summary(), posterior.run
    scored = bool(posterior.factors) and posterior.has("scores")
    associated = factors.associations(posterior) if scored else None
    ranked = factors.rank_by_strength(posterior) if posterior.factors else []
    first_page = ranked[0] if ranked else ""
    explored = explore.explorer_data(posterior, ranked, associated) if scored else None
    return {
        "facts": facts,
        "name": _name_of(run),
        "answers": answers.answers(posterior, facts, associated),
        "explorer": "" if explored is None else explore.as_json(explored),
        "loadings": factors.list_loadings(posterior, ranked) if posterior.loaded_views else None,
        "n_listed": factors.N_LISTED,
        "run": _run_record(run, facts["objective"]),
        "config": json.dumps(short_config(run["config"]), indent=2),
        "trace": draw_figure(partial(run_plots.plot_trace, posterior), 3.0)
        if "objective" in posterior.trace
        else "",
        "sampler": _sampler(posterior) if posterior.kind == "monte carlo" else None,
        "accepted": accepted_line(facts) if "accepted" in facts else "",
        "explained": _variance_heat_maps(posterior) if "variance_explained" in facts else [],
        "smooth": _smooth(posterior) if posterior.meta.score_inputs else None,
        "overview": overview.describe_data(posterior),
        "factors": factors.describe_factors(posterior) if posterior.loaded_views else [],
        "n_drawn": factors.N_DRAWN,
        "sets": factors.set_rows(posterior),
        "scores": factors.scatters(posterior, associated) if scored else [],
        "points": drawing.MAX_POINTS,
        "inputs": factors.scatters(posterior, None, "inputs") if posterior.has("inputs") else [],
        "comparison": comparison_rows(facts),
        "starts": start_rows(facts),
        "correlation": _correlation(posterior) if scored and len(posterior.factors) > 1 else None,
        "associations": factors.association_rows(associated),
        "untested": scored and posterior.meta.n_rows > factors.MAX_TESTED,
        "most_tested": factors.MAX_TESTED,
        "weights": _weights(posterior) if posterior.has("weight") else "",
        "sequence": _sequence(posterior) if posterior.has("present") else [],
        "checks": _checks(posterior),
        "anomalies": _anomalies(posterior),
        "loaded_views": posterior.loaded_views,
        "shown": first_page,
        "data": _data(posterior, first_page)
        if scored and posterior.loaded_views == posterior.views
        else None,
        "reproduce": overview.reproduce(posterior),
        "holdout": _holdout(facts),
    }


def _name_of(run: dict[str, Any]) -> str:
    """Return the name of a dataset.

    Of a flow's, which are all called alike, it is that of the folder; of one in the cache it is without the
    digits of its content.
    """
    path = Path(str(run.get("dataset", "")))
    name = path.parent.name if path.stem == "dataset" else re.sub(r"-[0-9a-f]{12}$", "", path.stem)
    return name or path.stem or "posterior"


_HELD_OUT = {"entry": "observed entries", "row": "samples", "sequence": "sequences", "count": "counts"}


def _run_record(run: dict[str, Any], objective: float | None = None) -> list[tuple[str, str]]:
    """Return the run record as rows of a table."""
    environment, unit = run.get("environment", {}), run.get("holdout_unit") or "entry"
    versions = ", ".join(f"{name} {value}" for name, value in environment.items())
    rows = [
        ("dataset", run.get("dataset", "")),
        ("fingerprint", run.get("fingerprint", "")),
        ("status", outcome(run)),
        ("objective (nats)", "" if objective is None else f"{objective:,.0f}"),
        ("seed", run.get("seed", "")),
        ("device", run.get("device", "")),
        ("held out", f"{100 * float(run.get('holdout') or 0):g} % of the {_HELD_OUT[unit]}"),
        ("created", run.get("created_at", "")),
        ("factorflow", run.get("inference_library_version", "")),
        ("environment", versions),
    ]
    return [(name, str(value)) for name, value in rows if value != ""]


def _sampler(posterior: Posterior) -> dict[str, Any]:
    """Return R-hat and effective sample sizes: a figure and the entries that mix worst."""
    table = posterior.diagnostics().sort_values("r_hat", ascending=False, kind="stable")
    worst = [[str(row[0]), *(f"{value:.3g}" for value in row[1:])] for row in table[:8].itertuples()]
    finite = table["r_hat"].to_numpy()[np.isfinite(table["r_hat"].to_numpy())]
    return {
        "figure": draw_figure(partial(run_plots.plot_rhat, posterior), 2.6),
        "worst": worst,
        "n": len(table),
        "above": int((finite > 1.01).sum()),
    }


def _variance_heat_maps(posterior: Posterior) -> list[tuple[str, str]]:
    """Return the heat map of variance explained, or one for each of the first groups, with their names."""
    height = 0.9 + 0.34 * len(posterior.views)
    by_group = "group" in posterior.variable("variance_explained").dims
    groups = posterior.meta.groups[:N_GROUPS] if by_group else (None,)
    draw = partial(factor_plots.plot_variance_explained, posterior)
    return [(group or "", draw_figure(partial(draw, group=group), height)) for group in groups]


def _smooth(posterior: Posterior) -> dict[str, Any]:
    """Return what factors are functions of, a table and a figure, and courses of the first smooth ones."""
    table, names = posterior.smoothness(), smooth_plots.smooth_factors(posterior)[:N_COURSES]
    rows = [
        [str(row[0]), *("" if np.isnan(value) else f"{value:.3g}" for value in row[1:])]
        for row in table.itertuples()
    ]
    height = 0.9 + 0.24 * len(table)
    figures = [draw_figure(partial(smooth_plots.plot_smoothness, posterior), height)] if rows else []
    places = posterior.meta.places
    if names and places is not None:
        height = 3.0 * -(-len(names) // 3)
        if len(places.columns) == 1:
            draw = partial(sample_plots.plot_covariate, posterior, places.columns[0], names)
            figures.append(draw_figure(draw, height))
        elif len(places.columns) == 2:
            draw = partial(
                smooth_plots.plot_space, posterior, names, of="scores" if places.groups else "course"
            )
            figures.append(draw_figure(draw, height))
        if places.groups:
            draw = partial(smooth_plots.plot_group_correlation, posterior, names)
            figures.append(draw_figure(draw, min(height, 7.0)))
    return {"columns": ["factor", *map(str, table.columns)], "rows": rows, "figures": figures}


def _weights(posterior: Posterior) -> str:
    """Return the figure of the weights of the components."""
    return draw_figure(
        partial(factor_plots.plot_weights, posterior), 0.9 + 0.22 * len(posterior.factors), width=6.2
    )


def _sequence(posterior: Posterior) -> list[str]:
    """Return the figures of one of a few sequences, that with most identities, and of attributes along it."""
    n_sequences = max(1, posterior.meta.n_sequences)
    tried = np.unique(np.linspace(0, n_sequences - 1, N_SEQUENCES).astype(int)).tolist()
    try:
        presence = {s: sequences.first_rows(posterior, "present", s) for s in tried}
    except InputError:  # the dataset has moved
        return []
    sequence = max(tried, key=lambda s: float(presence[s].mean()))
    height = 1.0 + 0.16 * presence[sequence].sizes["identity"]
    out = [draw_figure(partial(sequences.plot_identities, posterior, sequence), min(height, 6.0))]
    most = np.argsort(-presence[sequence].mean("obs").values, kind="stable")[:N_FOLLOWED]
    draw = partial(sequences.plot_attributes, posterior, sequence=sequence)
    return out + [draw_figure(partial(draw, int(p) + 1), 2.4) for p in most]


def _single_response(posterior: Posterior) -> str | None:
    """Return the view of a table's response: the only one with values, of one feature; else None."""
    views = posterior.meta.value_views
    single = len(views) == 1 and views[0].n_features == 1 and bool(posterior.meta.input_views)
    return views[0].name if single and posterior.n_draws != 0 else None


def _checks(posterior: Posterior) -> list[tuple[str, str]]:
    """Return checks of the predictive distribution of a table's response; none without the data."""
    view = _single_response(posterior)
    if view is None:
        return []
    figures: list[tuple[str, Callable[..., Any]]] = [("Predictive probabilities", checks.plot_calibration)]
    if posterior.meta.value_views[0].likelihood == "poisson":
        figures.insert(0, ("Rootogram", checks.plot_rootogram))
    try:
        return [(name, draw_figure(partial(draw, posterior, view), 2.8, width=6.2)) for name, draw in figures]
    except InputError:  # the dataset has moved
        return []


def _anomalies(posterior: Posterior) -> list[list[str]] | None:
    """Return the rows of a table that are surprising among so many; None without the data, or of too many."""
    view = _single_response(posterior)
    if view is None or posterior.meta.n_rows > factors.MAX_TESTED:
        return None
    try:
        table = find_anomalies(posterior, view, N_ANOMALIES)
    except InputError:
        return None
    expected = table["p_value"].to_numpy() * posterior.meta.n_rows / np.arange(1, len(table) + 1)
    q_value = np.minimum.accumulate(expected[::-1])[::-1]  # Benjamini and Hochberg, of the smallest p-values
    return [
        [str(row.obs), f"{row.value:g}", f"{row.mean:.3g}", f"{row.sd:.3g}", f"{row.p_value:.1e}", f"{q:.1e}"]
        for row, q in zip(table.itertuples(), q_value, strict=True)
        if q < FALSE_SHARE
    ]


def _correlation(posterior: Posterior) -> str:
    side = 1.6 + 0.28 * len(posterior.factors)
    return draw_figure(
        partial(factor_plots.plot_factor_correlation, posterior), min(side, 7.0), width=min(side, 7.0)
    )


def _data(posterior: Posterior, factor: str) -> str | None:
    """Return the data heat map of a factor in the view it explains most of; None without the data."""
    views = active_views(posterior, factor)
    if not views:
        return None
    view = views[0]
    if posterior.has("variance_explained"):
        share = posterior.variable("variance_explained").sel(factor=factor)
        share = share.mean("group") if "group" in share.dims else share
        view = views[int(np.nan_to_num(share.sel(view=views).values, nan=-np.inf).argmax())]
    n = min(20, factors.n_features(posterior, view, factor))
    try:
        return draw_figure(partial(data_plots.plot_data, posterior, view, factor, n), 0.8 + 0.16 * n)
    except InputError:  # the dataset has moved
        return None


def _holdout(facts: dict[str, Any]) -> dict[str, Any] | None:
    """Return the held-out scores, each beside that of the features' shown means."""
    table: dict[str, dict[str, float]] = facts.get("holdout_scores", {})
    if not table:
        return None
    names = (
        "r2",
        "rmse",
        "log_likelihood",
        "accuracy",
        "auc",
        "concordance",
        "log_loss",
        "rare_log_loss",
        "deviance",
    )
    columns = [name for name in names if any(name in row for row in table.values())]
    rows = []
    for view, row in table.items():
        cells = []
        for name in columns:
            base = row.get("rare_baseline_log_loss" if name == "rare_log_loss" else f"baseline_{name}")
            cells.append(_cell(name, row.get(name), base))
        rows.append((view, int(row.get("n_entries", 0)), cells))
    titles = [name.replace("_", " ") for name in columns]
    return {"names": titles, "rows": rows, "is_split": facts.get("holdout_unit") == "count"}


def _cell(name: str, value: float | None, base: float | None) -> tuple[str, str, bool]:
    """Return a score, that of the baseline, and whether that is better."""
    worse = False
    if value is not None and base is not None:
        larger_is_better = name in {"r2", "log_likelihood", "accuracy", "auc", "concordance"}
        worse = base > value if larger_is_better else base < value
    texts = ["" if number is None else f"{number:.4f}" for number in (value, base)]
    return texts[0], texts[1], worse
