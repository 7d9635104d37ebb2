"""Summaries of a posterior: main results as plain values, text and HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from factorflow.errors import InputError, pluralize
from factorflow.posterior.active_views import active_views

if TYPE_CHECKING:
    import pandas as pd

    from factorflow.core.block import ViewMeta
    from factorflow.posterior.findings import Finding
    from factorflow.posterior.stored_posterior import StoredPosterior

N_TOP = 5
"""Features named per factor and view in a summary."""

ACCEPTED = "accepted_"
"""What names of shares of Metropolis steps begin with."""

WIDTH = 100
"""Characters of a line of text."""

SHOWN = (
    "r2",
    "rmse",
    "accuracy",
    "auc",
    "concordance",
    "log_loss",
    "baseline_log_loss",
    "log_likelihood",
    "baseline_log_likelihood",
)


def top_features(
    posterior: StoredPosterior, view: str | None, factor: str, n: int, interval: float | None = None
) -> pd.DataFrame:
    """Return the features with the largest loadings of a factor (`Posterior.top_features`)."""
    import pandas as pd

    if n < 0:
        raise InputError("n", n, "a number of features, 0 or more", "For example 10.")
    if interval is not None and not 0.0 < interval < 1.0:
        raise InputError("interval", interval, "a share between 0 and 1", "For example 0.95.")
    if view is None:
        parts = [top_features(posterior, name, factor, n, interval) for name in posterior.loaded_views]
        if not parts:
            raise InputError("view", view, "a family whose views have loadings", "Use variable(name).")
        for name, part in zip(posterior.loaded_views, parts, strict=True):
            part.insert(0, "view", name)
        return pd.concat(parts)
    loadings = posterior.loadings(view).sel(factor=factor)
    table = {"loading": loadings.values}
    for column, name in (("sd", f"loadings_variance_{view}"), ("inclusion", f"inclusion_{view}")):
        if posterior.has(name):
            values = posterior.variable(name).sel(factor=factor).values
            table[column] = np.sqrt(values) if column == "sd" else values
    if posterior.kind == "monte carlo":
        draws = posterior.draws(f"loadings_{view}").sel(factor=factor)
        table["sd"] = draws.std([dim for dim in ("chain", "draw") if dim in draws.dims]).values
    if interval is not None:
        table["lower"], table["upper"] = _ends(posterior, str(view), factor, interval, table)
    order = np.argsort(-np.abs(loadings.values), kind="stable")[:n]
    frame = pd.DataFrame(table, index=pd.Index(posterior.features(view), name="feature"))
    return frame.iloc[order]


def _ends(
    posterior: StoredPosterior, view: str, factor: str, share: float, table: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return the ends of central intervals: quantiles of draws, or normal with what a fit leaves open."""
    from scipy.stats import norm

    tail = 0.5 - 0.5 * share
    if posterior.kind == "monte carlo":
        draws = posterior.draws(f"loadings_{view}").sel(factor=factor)
        dims = [dim for dim in ("chain", "draw") if dim in draws.dims]
        return tuple(draws.quantile([tail, 1.0 - tail], dims).values)
    mean, sd = table["loading"], table.get("sd")
    if posterior.has(f"corrected_loadings_{view}"):
        mean, sd = (
            posterior.variable(f"corrected_{kind}_{view}").sel(factor=factor).values
            for kind in ("loadings", "loadings_sd")
        )
    if sd is None:
        expected = f"a family with standard deviations of the loadings of {view}"
        raise InputError("interval", share, expected, "Leave it out.")
    reach = -norm.ppf(tail) * sd
    return mean - reach, mean + reach


def likelihood_of(posterior: StoredPosterior, view: ViewMeta) -> str:
    """Return the likelihood of a view in words; of an input its kind."""
    return posterior.model.likelihood(view.name).label if view.kind.is_values else view.likelihood


def summary(posterior: StoredPosterior, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the main results and findings as plain values (`Posterior.summary`)."""
    run, meta = posterior.run, posterior.meta
    result: dict[str, Any] = {
        "model": run["config"].get("model"),
        "method": posterior.kind,
        "status": run["status"],
        "reason": run.get("reason", ""),
        "n_iterations": run.get("n_iterations", 0),
        "objective": _last_objective(posterior),
        "n_samples": meta.n_rows,
        "n_factors": len(posterior.factors),
        "views": {
            v.name: {"likelihood": likelihood_of(posterior, v), "n_features": v.n_features}
            for v in meta.views
        },
        "seed": run.get("seed"),
        "holdout": run.get("holdout"),
        "holdout_unit": run.get("holdout_unit"),
        "dataset": run.get("dataset"),
    }
    if posterior.has("n_factors_counted"):
        result["n_factors_counted"] = int(posterior.variable("n_factors_counted"))
    result["findings"] = [asdict(finding) for finding in findings]
    if posterior.has("variance_explained"):
        result["variance_explained"] = shares_by_view(posterior.variable("variance_explained_total"))
    if posterior.n_draws is not None:
        result["n_draws"] = posterior.n_draws
        if posterior.n_draws:
            result |= _acceptance_rates(posterior)
    result["factors"] = [_factor(posterior, label) for label in posterior.factors if posterior.n_draws != 0]
    if posterior.has("stability") and (objectives := posterior.variable("start_objective")).size:
        result["starts"] = {str(n): _json_number(objectives.sel(start=n)) for n in objectives["start"].values}
    if posterior.has("comparison"):
        result["comparison"] = _comparison(posterior)
    if posterior.was_scored:
        result["holdout_scores"] = holdout_scores(posterior)
    return result


def holdout_scores(posterior: StoredPosterior) -> dict[str, dict[str, float]]:
    """Return the scores of held-out entries by view, those that there are."""
    return {
        str(view): {str(k): round(float(x), 6) for k, x in row.items() if x == x}
        for view, row in posterior.holdout_scores().iterrows()
    }


def _acceptance_rates(posterior: StoredPosterior) -> dict[str, dict[str, float | None]]:
    """Return the shares of Metropolis steps that were taken, over draws and chains, where there are any."""
    statistics = posterior.tree["sample_stats"].to_dataset()
    names = [str(name) for name in statistics.data_vars if str(name).startswith(ACCEPTED)]
    shares = {name.removeprefix(ACCEPTED): _json_number(statistics[name].mean()) for name in names}
    return {"accepted": shares} if shares else {}


def _factor(posterior: StoredPosterior, label: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"factor": label}
    if posterior.has("variance_explained"):
        facts["variance_explained"] = shares_by_view(
            posterior.variable("variance_explained").sel(factor=label)
        )
    if posterior.has("worth"):
        facts["worth"] = _json_number(posterior.variable("worth").sel(factor=label))
    if posterior.has("stability"):
        facts["stability"] = _json_number(posterior.variable("stability").sel(factor=label))
    if posterior.has("weight"):
        facts["weight"] = _json_number(posterior.variable("weight").sel(factor=label))
    if posterior.loaded_views:
        facts["top_features"] = {
            view: [str(name) for name in top_features(posterior, view, label, N_TOP).index]
            for view in active_views(posterior, label)
        }
    return facts


def _comparison(posterior: StoredPosterior) -> dict[str, dict[str, float | None]]:
    """Return the bound a row of each family of q that was compared, and the error of its difference."""
    bound, error = posterior.variable("comparison"), posterior.variable("comparison_error")
    return {
        str(name): {
            "bound": _json_number(bound.sel(coupling=name)),
            "error": _json_number(error.sel(coupling=name)),
        }
        for name in bound["coupling"].values
        if np.isfinite(float(bound.sel(coupling=name)))
    }


def components(posterior: StoredPosterior, n: int) -> pd.DataFrame:
    """Return weight and strongest features of every component (`Posterior.components`)."""
    import pandas as pd

    if not posterior.has("weight"):
        raise InputError(
            "model",
            posterior.run["config"].get("model"),
            "a family whose components have weights",
            "Use variance_explained() and top_features(view, factor).",
        )
    columns: dict[str, Any] = {"weight": posterior.variable("weight").values}
    for view in posterior.loaded_views:
        columns[view] = [
            [str(name) for name in top_features(posterior, view, label, n).index]
            for label in posterior.factors
        ]
    return pd.DataFrame(columns, index=pd.Index(posterior.factors, name="factor"))


def _json_number(value: Any) -> float | None:
    """Return a number for JSON: None if it is not finite."""
    return round(float(value), 6) if np.isfinite(float(value)) else None


def short_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a model to print: of feature sets with all members only how many there are."""
    sets = config.get("feature_sets")
    if not isinstance(sets, Mapping):
        return dict(config)
    return {**config, "feature_sets": f"{len(sets)} entries: posterior.config.feature_sets"}


def shares_by_view(share: Any) -> dict[str, float | None]:
    """Return recorded shares by view, or by "view (group)" where the run recorded them by group."""
    if "group" not in share.dims:
        return {str(view): _json_number(share.sel(view=view)) for view in share["view"].values}
    return {
        f"{view} ({group})": _json_number(share.sel(view=view, group=group))
        for view in share["view"].values
        for group in share["group"].values
    }


def _last_objective(posterior: StoredPosterior) -> float | None:
    trace = posterior.trace
    if "objective" not in trace or not trace.sizes["iteration"]:
        return None
    value = float(trace["objective"].isel(iteration=-1).mean())
    cut = posterior.has("stability") and not str(trace["stage"].values[-1]).startswith("best")
    if cut and (bounds := posterior.variable("start_objective")).size:
        value = float(bounds.max())  # cut short amid a start that was given up
    return value if np.isfinite(value) else None


def as_text(
    posterior: StoredPosterior, findings: Sequence[Finding], format_text: Callable[[str], str] = str
) -> str:
    """Return the representation for a terminal; a front end formats options in texts of findings."""
    facts = summary(posterior, findings)
    lines = [f"<factorflow.Posterior: {_head(facts)}>"]
    lines += [f"  {line}" for line in _run_lines(facts)]
    for finding in findings:
        text = f"! {format_text(finding.message)} {format_text(finding.remedy)}"
        lines += ["", *wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")]
    for title, rows in _tables(facts):
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines += ["", f"  {title}"]
        for row in rows:
            cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  " + "  ".join([row[0].ljust(widths[0]), *cells[1:]]))
    return "\n".join(lines)


def as_html(posterior: StoredPosterior, findings: Sequence[Finding]) -> str:
    """Return the representation for a notebook."""
    facts = summary(posterior, findings)
    lines = "".join(f"<div>{escape(line)}</div>" for line in _run_lines(facts))
    parts = [f"<div><strong>factorflow.Posterior</strong>: {escape(_head(facts))}</div>{lines}"]
    if findings:
        items = "".join(f"<li><b>{escape(f.message)}</b> {escape(f.remedy)}</li>" for f in findings)
        parts.append(f"<ul>{items}</ul>")
    for title, rows in _tables(facts):
        head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows[1:])
        parts.append(
            f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )
    return "".join(parts)


def _tables(facts: Mapping[str, Any]) -> list[tuple[str, list[list[str]]]]:
    """Return the tables that have anything in them, each with its header first."""
    tables = [
        ("variance explained (%)", _factor_rows(facts)),
        ("starts", start_rows(facts)),
        ("bound a sample on the same decoders (nats)", comparison_rows(facts)),
        (
            f"held-out {'counts' if facts.get('holdout_unit') == 'count' else 'entries'}",
            score_rows(facts.get("holdout_scores", {})),
        ),
    ]
    return [(title, rows) for title, rows in tables if rows]


def _head(facts: Mapping[str, Any]) -> str:
    counts = {"factor": facts["n_factors"], "sample": facts["n_samples"], "view": len(facts["views"])}
    sizes = [pluralize(n, what) for what, n in counts.items() if n or what != "factor"]
    return f"{facts['model']} ({facts['method']}), {', '.join(sizes)}"


def outcome(run: Mapping[str, Any]) -> str:
    """Return how a run ended, the reason if it adds information, and the iterations."""
    status, reason = run["status"], run.get("reason") or run["status"]
    why = "" if reason == status else f" ({reason})"
    return f"{status}{why} after {pluralize(run.get('n_iterations', 0), 'iteration')}"


def _run_lines(facts: Mapping[str, Any]) -> list[str]:
    objective = "" if facts["objective"] is None else f", objective {facts['objective']:.8g}"
    counted_before = facts.get("n_factors_counted", -1)
    return [
        outcome(facts) + objective + (", in the burn-in: no draws yet" if facts.get("n_draws") == 0 else ""),
        *([f"components counted before the fit: {counted_before}"] if counted_before >= 0 else []),
        "views: "
        + ", ".join(f"{n} ({v['likelihood']}, {v['n_features']:,})" for n, v in facts["views"].items()),
        *([f"Metropolis steps taken: {accepted_line(facts)}"] if "accepted" in facts else []),
        f"dataset {facts['dataset']}, seed {facts['seed']}",
    ]


def accepted_line(facts: Mapping[str, Any]) -> str:
    """Return the shares of Metropolis steps that were taken, in percent."""
    return ", ".join(f"{name} {percent(share)} %" for name, share in facts["accepted"].items())


def _factor_rows(facts: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of variance explained in percent, header first; empty when it was not recorded."""
    if "variance_explained" not in facts:
        return []
    columns = list(facts["variance_explained"])
    rows = [*facts["factors"], {"factor": "all", "variance_explained": facts["variance_explained"]}]
    body = [[row["factor"], *(percent(row["variance_explained"][c]) for c in columns)] for row in rows]
    if "starts" not in facts:
        return [["factor", *columns], *body]
    stability = [row.get("stability") for row in rows]
    last = ["" if value is None else f"{value:.2f}" for value in stability]
    return [["factor", *columns, "stability"], *([*row, x] for row, x in zip(body, last, strict=True))]


def percent(share: float | None) -> str:
    """Return a share in percent; nothing where it is not known."""
    return "" if share is None else f"{100 * share:.2f}"


def start_rows(facts: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of the bounds that several starts reached, header first; empty without."""
    if "starts" not in facts:
        return []
    rows = [[name, "" if bound is None else f"{bound:.8g}"] for name, bound in facts["starts"].items()]
    return [["start", "bound"], *rows]


def comparison_rows(facts: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of what was compared, header first; empty where nothing was."""
    comparison: Mapping[str, Mapping[str, float | None]] = facts.get("comparison", {})
    rows = [
        [name, f"{row['bound']:.4f}", "" if row["error"] is None else f"{row['error']:.4f}"]
        for name, row in comparison.items()
    ]
    return [["q(z)", "bound", "error of the difference"], *rows] if rows else []


def score_rows(scores: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """Return the table of held-out scores, header first; empty when nothing was held out."""
    names = [name for name in SHOWN if any(name in row for row in scores.values())]
    if not scores or not names:
        return []
    body = [[view, *(f"{row[n]:.4f}" if n in row else "" for n in names)] for view, row in scores.items()]
    return [["view", *(name.replace("_", " ") for name in names)], *body]
